"""The job of `invoke bisect`: since when a repro fails, and until when."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from repromatrix.axes.history import OneVersion
from repromatrix.axes.model import Series
from repromatrix.axes.reference import reference
from repromatrix.axes.versions import coarse, series
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.flow import host_facts, ready_engine
from repromatrix.plan import Request, load
from repromatrix.project import Project
from repromatrix.regressions.bisection.asked import (
    Said,
    check_nightly,
    claimed,
    claims,
    ends,
    failure_said,
    turned,
    width,
)
from repromatrix.regressions.bisection.found import found_edges
from repromatrix.regressions.bisection.walk import Walk
from repromatrix.regressions.failure import Failure, by_change, by_metric, failure_of, likeness, words
from repromatrix.regressions.model import Bisection, FoundEdge, Spent, Tested, Wanted
from repromatrix.regressions.trials import Trials
from repromatrix.report.layout import counted
from repromatrix.results.model import AttemptResult
from repromatrix.search.midpoint import clear
from repromatrix.search.model import Answer, Edge, History, Rules, Try, Verdict
from repromatrix.search.verdict import read
from repromatrix.search.verdict import verdicts as so_far
from repromatrix.spec.model import Outcome

_STEERS = (Verdict.GOOD, Verdict.BAD)


def bisect(
    project: Project,
    request: Request,
    wanted: Wanted,
    rules: Rules,
    listener: Listener,
    cancel: threading.Event,
) -> Bisection:
    """Find the versions between which the verdict of one cell changes. Ctrl-C ends it with what is known so far.

    Args:
        request: Its `repro`, `env`, `target`, `params` and `engine` say which cell. `jobs` are as many attempts at once
            as may be; where it is not said, one version is tried at a time.
        cancel: Set at the end.

    Raises:
        UserError: The request, or a file, is wrong; the ends are not in the order that `wanted.find` asks for.
        InfraError: No engine, no index, no disk; or an end cannot be tried for the machine's fault.
    """
    began = time.monotonic()
    failure, (low, high) = failure_said(wanted), ends(wanted)
    matrix, repros = load(project)
    check_nightly(wanted, matrix)
    engine = ready_engine(project, matrix, request.engine or matrix.run.engine, listener)
    cell = reference(matrix, repros, request, engine.name, listener, wanted.axis, (low, high))

    def versions(low: str, high: str, nightly: bool = False) -> Series:
        fixed = (project, matrix, cell, wanted.axis)
        return series(*fixed, low, high, engine, listener, cancel, offline=request.offline, nightly=nightly)

    builds = wanted.nightly and any(".dev" in end for end in (low, high))
    try:
        line = versions(low, high, builds)
    except OneVersion:  # days of one release, perhaps, and of several builds
        if builds or not wanted.nightly:
            raise
        builds, line = True, versions(low, high, nightly=True)
    said, other_way = claims(wanted, line), turned(wanted, line)
    for note in other_way:
        listener.note(note)
    rules = replace(rules, symmetric=bool(wanted.metric))
    with Trials(project, request, matrix, repros, engine, listener, cancel) as trials:
        # What is measured is not to be disturbed by what is unpacked and compiled meanwhile.
        prefetch = wanted.prefetch and not wanted.metric
        walk = Walk(trials, line, rules, width(request, matrix, cell), listener, prefetch=prefetch)
        walk.failure = failure
        known = _Known(walk)
        try:
            _find(project, wanted, said, known)
            if wanted.nightly and not builds:
                _go_on(project, versions, known)
        except KeyboardInterrupt:
            known.interrupted = True
        except InfraError as error:
            if not known.edges:
                raise
            known.trouble = error  # what was found among the releases stands
        running = trials.running
        path = known.path()
    total = time.monotonic() - began
    return Bisection(
        repro=cell.repro.name,
        target=cell.target,
        params=cell.params,
        engine=engine.name,
        series=known.series,
        failure=words(walk.failure) if walk.failure is not None else "",
        rules=rules,
        edges=known.edges,
        path=path,
        spent=Spent(round(total, 3), round(running, 3), round(total - running, 3)),
        command=request.command,
        rate=known.rate,
        refused=known.refused,
        others=walk.others(),
        notes=(
            *(*_unfinished(known), *other_way, *known.series.notes),
            *(*_notes(walk, path), *_advice(wanted, walk, known)),
        ),
        interrupted=known.interrupted,
        trouble=known.trouble,
        facts=host_facts(),
    )


@dataclass(slots=True)
class _Known:
    """What a search knows at any moment, so that an interrupted one can tell it."""

    walk: Walk
    answer: Answer = field(default_factory=lambda: Answer((), {}))
    edges: tuple[FoundEdge, ...] = ()
    refused: str = ""
    nightlies: list[tuple[Walk, Answer]] = field(default_factory=list)
    interrupted: bool = False
    trouble: InfraError | None = None

    def path(self) -> tuple[Tested, ...]:
        """All versions, in the order they were first tried, each once."""
        tested: dict[str, Tested] = {}
        for walk, answer in [(self.walk, self.answer), *self.nightlies]:
            for one in walk.tested(answer.verdicts).values():
                tested[one.name] = _together(tested[one.name], one) if one.name in tested else one
        return tuple(tested.values())

    @property
    def series(self) -> Series:
        """The releases, with the nightly builds between them."""
        whole = self.walk.series
        for walk, _ in self.nightlies:
            inner = walk.series
            names = [version.name for version in whole.versions]
            older, newer = names.index(inner.versions[0].name), names.index(inner.versions[-1].name)
            versions = (*whole.versions[:older], *inner.versions, *whole.versions[newer + 1 :])
            left_out = tuple(dict.fromkeys((*whole.left_out, *inner.left_out)))
            notes = tuple(dict.fromkeys((*whole.notes, *inner.notes)))
            whole = replace(whole, versions=versions, left_out=left_out, notes=notes)
        return whole

    @property
    def rate(self) -> tuple[float, float]:
        rates = [answer.rate for answer in (self.answer, *(answer for _, answer in self.nightlies))]
        return min(low for low, _ in rates), max(high for _, high in rates)


def _together(first: Tested, later: Tested) -> Tested:
    """What two walks know of one version; the later one knows all its attempts."""
    attempted, seconds = first.attempted + later.attempted, first.seconds + later.seconds
    return replace(later, phase=first.phase, attempted=attempted, seconds=seconds)


def _find(project: Project, wanted: Wanted, said: Said, known: _Known) -> None:
    """Search among the releases."""
    walk, size = known.walk, len(known.walk.versions)
    row = coarse(walk.series, wanted.sweep)
    if wanted.sweep != "0":
        row = tuple(sorted({*row, *claimed(walk.series)} - {0, size - 1}))
    walk.recall(lambda number: "end" if number in (0, size - 1) else "sweep" if number in row else "bisect")
    decide = _decide(wanted, said, walk)
    _prepare(wanted, said, walk, row)
    stable = tuple(version.number for version in walk.versions)
    history = History(size, row, (said.get(0), said.get(size - 1)), stable)
    known.answer = _of_one_kind(wanted.find, walk, history, decide)
    known.refused = _refusal(said, known)
    known.edges = found_edges(project, known.answer, walk.tested(known.answer.verdicts))


def _prepare(wanted: Wanted, said: Said, walk: Walk, row: Sequence[int]) -> None:
    """Try what tells what `bad` means, where that is more than the bad end: this one the search tries first anyway.

    A version alone that is said to be good goes before all others, as whatever failure it shows refutes that.
    """
    ends = 0, len(walk.versions) - 1
    if walk.failure is not None or (Verdict.BAD in said.values() and not wanted.metric):
        return
    if wanted.metric:
        each = read((), walk.rules, len(walk.versions)).lead
        _try(walk, ends, each, "end", row, _decide(wanted, said, walk))
        return
    if said:
        (good,) = said
        _try(walk, [good], 1, "end", row, lambda: failure_of(walk.places[good].attempts))
    if walk.failure is None:
        _try(walk, sorted({*ends, *row}), 1, "sweep", (), _decide(wanted, said, walk))


def _try(
    walk: Walk,
    places: Iterable[int],
    each: int,
    phase: str,
    soon: Iterable[int],
    decide: Callable[[], Failure | None],
) -> None:
    """Attempt these until each has so many attempts, and decide what `bad` means."""
    missing = {number: each - len(walk.places[number].attempts if number in walk.places else ()) for number in places}
    tries = [Try(number, count) for number, count in missing.items() if count > 0]
    task = walk.attempt(tries, phase, soon) if tries else None
    walk.failure = decide()
    if task is not None:
        walk.tell(task, tries)


def _of_one_kind(find: str, walk: Walk, history: History, decide: Callable[[], Failure | None]) -> Answer:
    """Search for all changes, or after the sweep between those versions alone where the wanted kind must be."""
    end = walk.search(history, decide, until=() if find == "any" else ("bisect", "confirm"))
    if isinstance(end, Answer):
        return replace(end, edges=tuple(edge for edge in end.edges if _is(find, edge.becomes)))
    answers: dict[tuple[int, int], Answer] = {}
    while True:
        verdicts = so_far(walk.samples(), walk.rules, history.size)
        told = [number for number, verdict in verdicts.items() if verdict in _STEERS]
        changes = [(a, b) for a, b in pairwise(told) if verdicts[a] is not verdicts[b] and _is(find, verdicts[b])]
        if answers.keys() >= set(changes):
            break
        for older, newer in changes:  # and look again: an attempt may have contradicted what was seen before
            part = History(newer + 1 - older, stable=history.stable[older : newer + 1])
            found = walk.search(part, decide, older)
            assert isinstance(found, Answer)  # no phase was left out
            answers[older, newer] = found
    edges = tuple(_moved(edge, change[0]) for change in changes for edge in answers[change].edges)
    rates = [(1.0, 1.0), *(answers[change].rate for change in changes)]
    return Answer(edges, verdicts, (min(low for low, _ in rates), max(high for _, high in rates)))


def _is(find: str, becomes: Verdict) -> bool:
    """Whether a change to this verdict is looked for."""
    return find in ("any", "regression" if becomes is Verdict.BAD else "fix")


def _moved(edge: Edge, by: int) -> Edge:
    between = tuple(place + by for place in edge.between)
    return replace(edge, before=edge.before + by, after=edge.after + by, between=between)


def _go_on(project: Project, versions: Callable[..., Series], known: _Known) -> None:
    """Search among the nightly builds between the two releases of each edge."""
    walk, releases = known.walk, known.edges
    edges: list[FoundEdge] = []
    for place, edge in enumerate(releases, 1):
        line = versions(edge.older.name, edge.newer.name, nightly=True)
        if len(line.versions) < 3:
            walk.listener.note(f"no nightly builds between {edge.older.name} and {edge.newer.name}")
            edges.append(edge)
            continue
        inner = Walk(walk.trials, line, walk.rules, walk.width, walk.listener, prefetch=walk.prefetch)
        inner.failure = walk.failure
        inner.recall(lambda _: "bisect")
        history = History(
            size=len(line.versions),
            ends=(edge.older.verdict, edge.newer.verdict),
            stable=tuple(version.number for version in line.versions),
        )
        known.nightlies.append((inner, Answer((), {})))
        answer = inner.search(history, lambda: None)
        assert isinstance(answer, Answer)  # no phase was left out
        known.nightlies[-1] = inner, answer
        edges += found_edges(project, answer, inner.tested(answer.verdicts)) or [edge]
        known.edges = (*edges, *releases[place:])
    known.edges = tuple(edges)


def _decide(wanted: Wanted, said: Said, walk: Walk) -> Callable[[], Failure | None]:
    """How to tell what `bad` means from what was tried: by the bad end, else by the failure that most versions show."""
    where = {verdict: number for number, verdict in said.items()}

    def from_end(verdict: Verdict) -> Sequence[AttemptResult]:
        """Of the version nearest to that end that has any attempts that tell something.

        Of none while the search has a nearer one to try: what is kept of one far away may be another failure.
        """
        start = where[verdict]
        if start not in walk.places:
            return ()
        inward = range(len(walk.versions))[:: -1 if start else 1]
        known = {number: [one.outcome for one in place.attempts] for number, place in walk.places.items()}
        passed = next((number for number in inward if Outcome.OK in known.get(number, ())), None)
        outside = inward if passed is None else inward[: inward.index(passed)]
        untried = [number for number in outside if number not in known]
        nearest = clear(untried, [number for number in outside if number in known])[:1]
        for number in (each for each in inward if each in known):
            if nearest and abs(number - start) > abs(nearest[0] - start):
                break
            if any(outcome is Outcome.OK or outcome.failed for outcome in known[number]):
                return walk.places[number].attempts
        return ()

    def decide() -> Failure | None:
        if wanted.metric:
            good, bad = from_end(Verdict.GOOD), from_end(Verdict.BAD)
            return by_change(by_metric(wanted.metric).metric, good, bad) if good and bad else None
        return failure_of(from_end(Verdict.BAD)) if Verdict.BAD in where else walk.most_shown()

    return decide


def _refusal(said: Said, known: _Known) -> str:
    """Why there is no search, in a sentence; empty where there is one."""
    answer, walk = known.answer, known.walk
    if answer.refused_at is None or not answer.refused:
        return answer.refused
    refused = f"{walk.versions[answer.refused_at].name} {answer.refused}"
    for number, verdict in said.items():
        failed = number in walk.places and any(one.outcome.failed for one in walk.places[number].attempts)
        if verdict is Verdict.GOOD and failed and number != answer.refused_at:
            return f"{refused}. {walk.versions[number].name}, said to be good, fails: it may be the other way round"
    return refused


def _unfinished(known: _Known) -> tuple[str, ...]:
    """That the search did not come to its end."""
    return (f"the nightly builds were not searched to the end: {known.trouble.line}",) if known.trouble else ()


def _notes(walk: Walk, path: Sequence[Tested]) -> tuple[str, ...]:
    """What the reader must know beside the edges."""
    notes = [*likeness(walk.failure)]
    if walk.failure is not None and (missing := re.search(r"No module named '([\w.]+)'", walk.failure.title)):
        name = missing[1].partition(".")[0]
        notes.append(
            f'the script cannot import {name}: where it is no part of the failure, packages = ["{name}"] in its header'
        )
    pythons = [(version.cell.environment.python, version.name) for version in walk.versions]
    if len({python for python, _ in pythons}) > 1:
        spans = [(python, [name for _, name in group]) for python, group in groupby(pythons, key=lambda pair: pair[0])]
        told = ", ".join(f"{python} from {names[0]} to {names[-1]}" for python, names in spans)
        notes.append(f"Python changes along the range: {told}; an edge where it does may be Python's")
    tested = {one.name: one for one in path}
    names = [version.name for version in walk.versions]
    steer = [name for name in names if name in tested and tested[name].verdict in _STEERS]
    for end, reached in ((names[0], steer[:1]), (names[-1], steer[-1:])):
        if end in tested and reached and end != reached[0]:
            notes.append(f"{end} has no verdict ({tested[end].why}), so that {reached[0]} was the end of the search")
    lost = [one.name for one in path if one.result is not None and one.result.outcome is Outcome.INFRA]
    if lost:
        notes.append(f"infrastructure failed for {', '.join(lost)}; the same command tries again")
    return tuple(notes)


def _advice(wanted: Wanted, walk: Walk, known: _Known) -> tuple[str, ...]:
    """How to look for more: where nothing was found, and where the search chose which failure to look for."""
    untried = len(walk.versions) - len(walk.places)
    if untried and not known.edges and not known.refused and not known.interrupted:
        return (f"no change was seen; {counted(untried, 'version')} of the range not tried: --sweep all tries each",)
    if wanted.signature or wanted.metric or walk.failure is None:
        return ()
    end = dict(walk.series.meant).get(wanted.bad, wanted.bad)
    inside = {tested.name for edge in known.edges for tested in edge.between}
    others = [title for title, names in walk.others() if not end or end in names or inside & set(names)]
    if not others:
        return ()
    which = f"that {end} showed first" if end else "that most versions show"
    title = others[0].replace("'", "*")
    return (f"the failure {which} was looked for; --signature '{title}' looks for another",)
