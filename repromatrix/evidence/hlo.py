"""HLO evidence: the dumps of an attempt, by module, as kept in `hlo.json`; and what the names of dump files say.

File names, from runs of 0.4.30 to 0.10.2 (tests/data/hlo/dump-names*) and openxla's xla/service/dump.cc:
`[TIME.]module_NNNN.NAME.WHAT`, without NAME where the whole would be longer than 255 characters. Numbers of modules
differ between versions, names do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from repromatrix.evidence.hlo_text import identity
from repromatrix.evidence.passes import LastPass, PassLog, Step

SCHEMA = 1
"""Version of the format of `hlo.json`."""

_MODULE = re.compile(r"(?:(?P<time>\d{9,})\.)?module_(?P<number>\d{4,})(?:\.(?P<rest>.*))?")
_INPUTS = re.compile(r"(?P<name>.+)_\d{12,}")  # 0.7.2 to 0.9.2: jit_f_1796022158736/module.mlir
_PASS = re.compile(
    r"(?:(?P<name>.+?)\.)?(?P<place>\d{4,})\.(?P<pipeline>.+?)\.after_(?P<after>.+?)\.before_(?P<before>.+)"
)
_STEP = re.compile(r"(?:(?P<name>.+?)\.)?(?P<place>\d{4,})\.(?P<pipeline>[^.]+)\.(?P<after>.+)")
_STAGE = re.compile(
    r"(?:(?P<name>.+?)\.)?(?P<stage>before_optimizations"
    r"|(?P<backend>cpu|gpu|(?:sm_\d+\.\d+\w*|gfx\w+)_gpu|interpreter)_after_optimizations(?P<buffer>-[\w-]+)?"
    r"|after_\w+|debug_options|config|gpu_target_config)"
)
_PROTO = re.compile(r"\.(?:hlo\.pb|pb)(?:\.gz)?$")
_SUFFIX = re.compile(r"\.(?:txt|hlo\.pb|pb|pbtxt|textproto)(?:\.gz)?$")


@dataclass(frozen=True, slots=True)
class Dump:
    """What the name of a dump file says.

    Attributes:
        kind: `before` and `after` (the optimisation), `pass` (after a pass that changed the module, or at the start of
            a pipeline), `step` (inside a pass), `buffer` (buffer assignment, live ranges, memory use), `options`
            (flags and compile options), or `other`.
        name: Of the module; empty where the file name leaves it out for its length. Of `other`, the name up to its
            first dot: what follows is up to each writer.
        number: Of the module in its process; -1 where the file name has none.
        proto: The file is a serialised protobuf.
        place: Place among the dumps of passes of this module; -1 for others.
        pipeline, after, before: Of a `pass`: its pipeline and the passes around it; `pipeline-start` and
            `pipeline-end` stand for none. File names have `_` for blanks. Of a `step`: the pass, and what it did.
        backend: `cpu`, `gpu`, `sm_9.0_gpu`; of an `after` and its buffers.
    """

    kind: str
    name: str
    number: int
    proto: bool = False
    place: int = -1
    pipeline: str = ""
    after: str = ""
    before: str = ""
    backend: str = ""


def parse_name(name: str) -> Dump | None:
    """What the dump file `name` (relative to the dump folder, `/` between folders) is; None if it is no dump of XLA."""
    parts = PurePosixPath(name).parts
    if not parts:
        return None
    file = parts[-1]
    for folder in parts[
        :-1
    ]:  # 0.10.2: module_0004.jit_f/module.mlir, shardy/module_0001.jit_f/02.after_propagation.mlir
        if module := _MODULE.fullmatch(folder):
            return Dump(_input_kind(file), module["rest"] or "", _number(module["number"]), bool(_PROTO.search(file)))
        if inputs := _INPUTS.fullmatch(folder):
            return Dump(_input_kind(file), inputs["name"], -1, bool(_PROTO.search(file)))
    module = _MODULE.fullmatch(file)
    if module is None or module["rest"] is None:
        return None
    number, proto = _number(module["number"]), bool(_PROTO.search(file))
    rest = _SUFFIX.sub("", module["rest"])
    text = rest != module["rest"]
    if text and (found := _PASS.fullmatch(rest)):
        around = found["pipeline"], found["after"], found["before"]
        return Dump("pass", found["name"] or "", number, proto, _number(found["place"]), *around)
    if text and (step := _STEP.fullmatch(rest)):
        return Dump("step", step["name"] or "", number, proto, _number(step["place"]), step["pipeline"], step["after"])
    if (text or rest.endswith("debug_options")) and (stage := _STAGE.fullmatch(rest)):
        what = stage["stage"]
        kind = "other"
        if what == "before_optimizations":
            kind = "before"
        elif stage["backend"]:
            kind = "buffer" if stage["buffer"] else "after"
        elif what in ("debug_options", "config", "gpu_target_config"):
            kind = "options"
        return Dump(kind, stage["name"] or "", number, proto, backend=stage["backend"] or "")
    return Dump("other", rest.partition(".")[0], number, proto)


def _input_kind(file: str) -> str:
    return "options" if file.startswith(("compile_options", "topology")) else "other"


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 19 else -1


@dataclass(frozen=True, slots=True)
class Change:
    """A dump of a pass: `identity` of the module after the pass `after` of `pipeline`, whose text is `file`."""

    pipeline: str
    after: str
    file: str
    identity: str


@dataclass(frozen=True, slots=True)
class Module:
    """One compiled module.

    Attributes:
        name: As the program gives it, the same in all versions; `jit_f#2` for the second of one name in a process.
        before, after: `hlo_text.identity` before and after optimisation; empty where there is no such text.
        changes: The passes that changed it, and the starts of pipelines, in order.
        files: All of its files, relative to the dump folder.
        size: Characters of its text before optimisation, of that after where there is no other; 0 without both.
    """

    name: str
    before: str
    after: str
    changes: tuple[Change, ...] = ()
    files: tuple[str, ...] = ()
    size: int = 0

    @property
    def changed_by(self) -> tuple[str, ...]:
        """`pipeline: pass` of the passes that changed it, in order, however often."""
        return tuple(f"{one.pipeline}: {one.after}" for one in self.changes if one.after != "pipeline-start")


@dataclass(frozen=True, slots=True)
class Ran:
    """The pipelines that ran on one module, from the pass log."""

    module: str
    pipelines: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Hlo:
    """The HLO evidence of one attempt.

    Attributes:
        modules: In the order the process compiled them.
        ran: What ran, also where it changed nothing; from the pass log.
        last: The last pass that started before the end; None where no log tells.
        notes: What was left out, and why.
        level: `text` or `passes`: what was asked for.
        source: `run` (the attempt itself dumped) or `explain` (a second run of it did).
        whole: Nothing that was asked for is missing, and what was dumped is of a run that ended as the attempt did.
    """

    modules: tuple[Module, ...] = ()
    ran: tuple[Ran, ...] = ()
    last: LastPass | None = None
    notes: tuple[str, ...] = ()
    level: str = "passes"
    source: str = "run"
    whole: bool = True

    def to_json(self) -> str:
        """The text of `hlo.json`."""
        stored = {
            "schema": SCHEMA,
            "modules": [
                {
                    "name": one.name,
                    "before": one.before,
                    "after": one.after,
                    "changes": [[c.pipeline, c.after, c.file, c.identity] for c in one.changes],
                    "files": list(one.files),
                    "size": one.size,
                }
                for one in self.modules
            ],
            "ran": [
                {"module": one.module, "pipelines": [_step_object(step) for step in one.pipelines]} for one in self.ran
            ],
            "last": None if self.last is None else [self.last.module, self.last.pipeline, self.last.name],
            "notes": list(self.notes),
            "level": self.level,
            "source": self.source,
            "whole": self.whole,
        }
        return json.dumps(stored, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Hlo:
        """Read `hlo.json`.

        Raises:
            ValueError: It is no such text, or of another schema.
        """
        try:
            stored = json.loads(text)
            if stored["schema"] != SCHEMA:
                raise ValueError(f"schema {stored['schema']}, expected {SCHEMA}")
            return cls(
                tuple(
                    Module(
                        m["name"],
                        m["before"],
                        m["after"],
                        tuple(Change(*c) for c in m["changes"]),
                        tuple(m["files"]),
                        m["size"],
                    )
                    for m in stored["modules"]
                ),
                tuple(Ran(r["module"], tuple(map(_step_from, r["pipelines"]))) for r in stored["ran"]),
                None if stored["last"] is None else LastPass(*stored["last"]),
                tuple(stored["notes"]),
                str(stored["level"]),
                str(stored["source"]),
                bool(stored["whole"]),
            )
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not an hlo.json: {error!r}") from error


def _step_object(step: Step) -> list[object]:
    return [step.name, step.times, [_step_object(one) for one in step.inner]]


def _step_from(stored: object) -> Step:
    if not isinstance(stored, list):
        raise TypeError(f"no step: {stored!r}")
    name, times, inner = stored
    return Step(str(name), int(times), tuple(map(_step_from, inner)))


def describe(files: Iterable[str], read: Callable[[str], str], log: PassLog, notes: Iterable[str] = ()) -> Hlo:
    """What the dump files of an attempt and its pass log tell.

    Args:
        files: Names of the kept dump files, relative to the dump folder.
        read: Gives the text of one; called once for each text that an identity is made of.
        notes: What is known beside: files left out, flags that this version lacks.
    """
    dumps = [(dump, name) for name in sorted(files) if (dump := parse_name(name)) is not None]
    named = {dump.number: dump.name for dump, _ in dumps if dump.name and dump.number >= 0 and dump.kind != "other"}
    numbers = sorted({dump.number for dump, _ in dumps if dump.number >= 0})
    compiled = []
    for number in numbers:
        own = [(dump, name) for dump, name in dumps if dump.number == number]
        if any(dump.kind in ("before", "after", "pass") for dump, _ in own):
            compiled.append((named.get(number, ""), own))
    titles = _distinct([name for name, _ in compiled])
    modules = tuple(_module(title, own, read) for title, (_, own) in zip(titles, compiled, strict=True))
    logged = _distinct([one.module for one in log.modules])
    ran = tuple(Ran(title, one.pipelines) for title, one in zip(logged, log.modules, strict=True))
    return Hlo(modules, ran, log.last, tuple(notes))


def _distinct(names: list[str]) -> list[str]:
    """`jit_f`, `jit_f#2` for the first and the second of one name."""
    return [
        f"{name}#{count}" if (count := names[: place + 1].count(name)) > 1 else name for place, name in enumerate(names)
    ]


def _module(title: str, own: list[tuple[Dump, str]], read: Callable[[str], str]) -> Module:
    def text(kind: str) -> str:
        return next((read(name) for dump, name in own if dump.kind == kind and not dump.proto), "")

    changes = []
    for dump, name in sorted(own, key=lambda one: (one[0].place, one[1])):
        if dump.kind == "pass" and not dump.proto:
            changes.append(Change(dump.pipeline, dump.after, name, identity(read(name))))
    before, after = text("before"), text("after")
    return Module(
        title,
        identity(before) if before else "",
        identity(after) if after else "",
        tuple(changes),
        tuple(name for _, name in own),
        len(before or after),
    )
