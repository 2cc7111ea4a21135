"""The pass log: which passes ran, as `TF_CPP_VMODULE=hlo_pass_pipeline=1` writes it on stderr.

Facts, from logs of 0.4.30 to 0.10.2 (tests/data/hlo/passlog-*): a pipeline and a pass say when they start. That a pass
has ended is said by 0.4.30 and from 0.7.2 on; 0.5.3 to 0.7.1 do not say it, so that the end of a pipeline inside
another is known there only where that pipeline ran more than once. The thread is said from 0.7.2 on. A pipeline that
runs until nothing changes (`simplification`) says its name and all of its passes every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from repromatrix.evidence.text import LOG

_PIPELINE = re.compile(r"Running HLO pass pipeline on module (.*?): (.*)")
_ENDED = re.compile(r"HLO pass: (.*) time: \d")
_STARTED = re.compile(r" *HLO pass (.*)")
_THREAD = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d+(?:\.\d+)? +(\d{1,18}) ")
_BLAMED = re.compile(r"Pass '([^']*)' in pipeline '([^']*)'")
_CUT = re.compile(r"\[\.\.\. +\d+ bytes left out \.\.\.\]")
_EARLY = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"


@dataclass(frozen=True, slots=True)
class Step:
    """A pass, or a pipeline with its passes.

    Attributes:
        times: How often it ran, one right after the other, with the same passes.
        inner: What ran inside; empty for a pass.
    """

    name: str
    times: int = 1
    inner: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class LastPass:
    """A pass in its pipeline, in the module it worked on."""

    module: str
    pipeline: str
    name: str


@dataclass(frozen=True, slots=True)
class ModulePasses:
    """What ran in one compilation of a module.

    Attributes:
        thread: Number of the thread that compiled it; 0 where the log does not say.
        pipelines: In the order they ran.
        last: The last pass that started; None where none did.
    """

    module: str
    thread: int
    pipelines: tuple[Step, ...]
    last: LastPass | None


@dataclass(frozen=True, slots=True)
class PassLog:
    """What ran, by module.

    Attributes:
        modules: In the order their compilation began; a name comes again where it was compiled again.
        last: The last pass to start before the end of the log: on the thread of the fatal message where there is one,
            else the newest that has not ended, else the newest. What a failure happened in or after; None where no pass
            ran.
        blamed: The pass that a fatal message of the pass pipeline names, or None.
        cut: The log is not whole.
    """

    modules: tuple[ModulePasses, ...] = ()
    last: LastPass | None = None
    blamed: LastPass | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str  # pipeline, pass, end
    name: str
    module: str = ""


@dataclass(slots=True)
class _Node:
    kind: str  # pipeline, pass
    name: str
    module: str
    inner: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Compiled:
    module: str
    thread: int
    begun: int  # place in the log
    pipelines: list[_Node] = field(default_factory=list)
    last: LastPass | None = None


@dataclass(slots=True)
class _Thread:
    """One thread's compilations; `path` holds what is open, outermost first."""

    number: int
    path: list[_Node] = field(default_factory=list)
    compiled: list[_Compiled] = field(default_factory=list)
    last: LastPass | None = None
    newest: int = -1  # place in the log of `last`

    def begin_pipeline(self, event: _Event, place: int) -> None:
        while self.path and self.path[-1].kind == "pipeline":  # only a pass that is open can hold another pipeline
            self.path.pop()
        node = _Node("pipeline", event.name, event.module)
        if self.path and self.path[-1].module == event.module:
            self.path[-1].inner.append(node)
        else:  # also an autotuner's own modules, compiled inside a pass
            self._compilation(event, place).pipelines.append(node)
        self.path.append(node)

    def _compilation(self, event: _Event, place: int) -> _Compiled:
        own = next((one for one in reversed(self.compiled) if one.module == event.module), None)
        again = own is not None and len(own.pipelines) > 1 and own.pipelines[0].name == event.name
        if own is None or again:
            own = _Compiled(event.module, self.number, place)
            self.compiled.append(own)
        return own

    def begin_pass(self, event: _Event, place: int) -> None:
        if self.path and self.path[-1].kind == "pass":  # its end is missing
            self.path.pop()
        if not self.path:  # the log begins in the middle
            self.begin_pipeline(_Event("pipeline", "", ""), place)
        pipeline = self.path[-1]
        node = _Node("pass", event.name, pipeline.module)
        pipeline.inner.append(node)
        self.path.append(node)
        self.last, self.newest = LastPass(pipeline.module, pipeline.name, event.name), place
        own = next((one for one in reversed(self.compiled) if one.module == pipeline.module), None)
        if own is not None:
            own.last = self.last

    def end_pass(self, event: _Event) -> None:
        for place in range(len(self.path) - 1, -1, -1):
            if self.path[place].kind == "pass" and self.path[place].name == event.name:
                del self.path[place:]
                return

    @property
    def open(self) -> bool:
        return any(node.kind == "pass" for node in self.path)


def pass_log(text: str) -> PassLog:
    """Read the pass log in `text`, which may hold anything else too; no text raises."""
    events: dict[int, list[tuple[int, _Event]]] = {}
    fatal: tuple[int, re.Match[str] | None] | None = None
    cut = False
    for place, line in enumerate(text.splitlines()):
        if (found := LOG.search(line)) is None:
            cut = cut or _CUT.search(line) is not None
            continue
        number = _THREAD.match(line, found.start())
        thread = int(number[1]) if number else 0
        if fatal is None and "F" in (found["old"], found["new"]):
            fatal = thread, _BLAMED.match(found["message"])
        elif found["file"].endswith("hlo_pass_pipeline.cc") and (event := _event(found["message"])):
            events.setdefault(thread, []).append((place, event))
    threads = {}
    for thread, own in events.items():
        threads[thread] = state = _Thread(thread)
        timed = any(event.kind == "end" for _, event in own)
        for place, event in own if timed else _with_ends(own):
            if event.kind == "pipeline":
                state.begin_pipeline(event, place)
            elif event.kind == "pass":
                state.begin_pass(event, place)
            else:
                state.end_pass(event)
    last = _last(threads, fatal[0] if fatal else None)
    compiled = sorted((one for state in threads.values() for one in state.compiled), key=lambda one: one.begun)
    modules = tuple(ModulePasses(one.module, one.thread, _steps(one.pipelines), one.last) for one in compiled)
    named = fatal[1] if fatal else None
    blamed = LastPass(last.module if last else "", named[2], named[1]) if named else None
    return PassLog(modules, last, blamed, cut)


def _event(message: str) -> _Event | None:
    if pipeline := _PIPELINE.fullmatch(message):
        return _Event("pipeline", pipeline[2], pipeline[1])
    if ended := _ENDED.match(message):
        return _Event("end", ended[1])
    if started := _STARTED.fullmatch(message):
        return _Event("pass", started[1])
    return None


def _last(threads: dict[int, _Thread], fatal: int | None) -> LastPass | None:
    if fatal is not None and fatal in threads:
        return threads[fatal].last
    states = [state for state in threads.values() if state.open] or list(threads.values())
    return max(states, key=lambda state: state.newest).last if states else None


def _with_ends(events: list[tuple[int, _Event]]) -> Iterator[tuple[int, _Event]]:
    """The events of a log that does not say when a pass ends, with the ends that can be known.

    A pass ends where the next one starts, but for a pipeline that is a pass itself: it says its name a second time. It
    ends after its passes, which are known where it ran more than once; else it is taken to end at once, and its passes
    stand after it.
    """
    known = _bodies(events)
    open_pass = ""  # a plain pass
    inside: list[str] = []  # of the pipeline that is open as a pass: its name, and the passes it still has to run
    for index, (place, event) in enumerate(events):
        if event.kind == "pipeline":
            again = inside[:1] == [event.name] and open_pass != event.name
            if open_pass and open_pass != event.name:
                yield place, _Event("end", open_pass)
            if inside and not again:
                yield place, _Event("end", inside[0])
                inside = []
            nested = again or open_pass == event.name
            yield place, event
            open_pass = ""
            body = known.get(event.name, []) if nested else []
            ahead = [one.name for _, one in events[index + 1 : index + 1 + len(body)] if one.kind == "pass"]
            if body and ahead == body:
                inside = [event.name, *body]
            elif nested:
                yield place, _Event("end", event.name)
                inside = []
        else:
            if open_pass:
                yield place, _Event("end", open_pass)
            if len(inside) == 1:
                yield place, _Event("end", inside[0])
                inside = []
            elif inside:
                del inside[1]
            yield place, event
            open_pass = event.name


def _bodies(events: list[tuple[int, _Event]]) -> dict[str, list[str]]:
    """Passes of the pipelines that ran twice in a row."""
    bodies: dict[str, list[str]] = {}
    name, body = "", list[str]()
    for _, event in events:
        if event.kind == "pass":
            body.append(event.name)
            continue
        if event.name == name and body[-1:] != [name]:  # else it is the same pipeline as another pass
            bodies[name] = body
        name, body = event.name, []
    return bodies


def _steps(nodes: Iterable[_Node]) -> tuple[Step, ...]:
    """`nodes` as steps: a pipeline that is a pass once, what repeats counted."""
    steps: list[Step] = []
    for node in nodes:
        runs = _steps(node.inner)
        if node.kind == "pass" and runs and all(run.name == node.name for run in runs):
            step = Step(node.name, sum(run.times for run in runs), max((run.inner for run in runs), key=len))
        else:
            step = Step(node.name, 1, runs)
        if steps and replace(steps[-1], times=1) == replace(step, times=1):
            steps[-1] = replace(step, times=steps[-1].times + step.times)
        else:
            steps.append(step)
    return tuple(steps)


def without_log(stderr: str) -> str:
    """`stderr` without the lines that an explain run's variables add: what a plain run would have written.

    Those are all lines at level INFO, which JAX hides unless `TF_CPP_MIN_LOG_LEVEL=0`, and the warnings of the dumping
    code (0.7.2: `Failed to dump compile inputs: UNIMPLEMENTED`). What another process wrote before such a line, on the
    same line, stays.
    """
    kept: list[str] = []
    for line in stderr.splitlines(keepends=True):
        found = LOG.search(line)
        level = (found["old"] or found["new"]) if found else ""
        if found is None or (level != "I" and not (level == "W" and found["file"].endswith("dump.cc"))):
            kept.append(line)
        else:
            if kept and kept[-1].rstrip("\n") == _EARLY:  # of a line that a plain run would not have shown either
                kept.pop()
            if found.start():
                kept.append(line[: found.start()])
    return "".join(kept)
