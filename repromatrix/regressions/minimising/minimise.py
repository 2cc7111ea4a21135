"""The job of `invoke minimise`: the smallest difference that flips the verdict of a failing cell."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from repromatrix.axes.history import past
from repromatrix.compare import find_environment, locked
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.flow import host_facts, ready_engine
from repromatrix.kept import known_of_one
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.regressions.bisection.asked import width
from repromatrix.regressions.failure import Failure, failure_of, likeness, words
from repromatrix.regressions.minimising import shrink
from repromatrix.regressions.minimising.model import WHAT, Minimised, Smallest, Threshold, Wanted
from repromatrix.regressions.minimising.tries import Tries
from repromatrix.regressions.minimising.variants import flags_of, variables_of, with_values
from repromatrix.regressions.model import Spent
from repromatrix.regressions.trials import Trials
from repromatrix.report.layout import Notes, counted
from repromatrix.results.model import CellResult
from repromatrix.search.model import Rules, Verdict
from repromatrix.search.threshold import Number, Range, coarse
from repromatrix.search.verdict import passes_needed
from repromatrix.share.handoffs.handoff import pick
from repromatrix.share.issues.history import histories
from repromatrix.spec.model import Cell, Environment, Matrix, Outcome, Repro
from repromatrix.spec.named import every

_DATE = re.compile(r"\d{4}-\d\d-\d\d|release|latest")


def minimise(
    project: Project, request: Request, wanted: Wanted, rules: Rules, listener: Listener, cancel: threading.Event
) -> Minimised:
    """Find what of the failing cell makes it fail. Ctrl-C ends it with what is known so far.

    Args:
        request: Its `repro`, `env`, `target`, `params` and `engine` say which cell. `jobs` are as many attempts at once
            as may be; where it is not said, one variant is tried at a time.
        cancel: Set at the end.

    Raises:
        UserError: The request, or a file, is wrong; the cell does not fail; the good environment is not good; nothing
            that was asked for applies.
        InfraError: No engine, no index, no disk.
    """
    began = time.monotonic()
    matrix, repros = load(project)
    engine = ready_engine(project, matrix, request.engine or matrix.run.engine, listener)
    cells, found = known_of_one(project, matrix, repros, replace(request, engine=engine.name))
    known = [one for one in found if one.engine == engine.name]
    failing = _chosen(cells, {one.id: one for one in known if one.attempts}, wanted)
    good = _good(matrix, repros, request, wanted.good, failing, engine.name) if wanted.good else None
    parts: list[Smallest | Threshold] = []
    interrupted = False
    with Trials(project, request, matrix, repros, engine, listener, cancel) as trials:
        tries = Tries(trials, Failure(), rules, listener)
        at_once = width(request, matrix, failing)
        try:
            failing = _failing(tries, matrix, failing, wanted, engine.name)
            what = _what(wanted, tries, matrix, failing, engine.name)
            listener.note(f"{failing.id}: {tries.how(failing)}; looked at: {', '.join(what)}")
            # The ends are looked at first: a good environment that is not good makes the rest a waste.
            if good is not None:
                locks = locked(project, matrix, [good, failing.environment], request, listener, cancel)
                shrink.check_good(tries, failing, locks[0])
                shrink.packages(project, tries, failing, (locks[0], locks[1]), at_once, parts)
            if "flags" in what:
                shrink.flags(tries, failing, at_once, parts)
            if "env" in what:
                shrink.variables(tries, failing, at_once, parts)
            for space in _spaces(wanted, tries, matrix, failing, engine.name) if "threshold" in what else ():
                shrink.threshold(tries, matrix, failing, space, engine.name, at_once, parts)
        except KeyboardInterrupt:
            interrupted = True
        running, rate = trials.running, tries.rate
    total = time.monotonic() - began
    return Minimised(
        cell=failing.id,
        repro=failing.repro.name,
        environment=failing.environment.id,
        target=failing.target,
        params=failing.params,
        engine=engine.name,
        outcome=tries.seen[failing].result.outcome if failing in tries.seen else Outcome.INFRA,
        failure=words(tries.failure),
        rules=rules,
        parts=tuple(parts),
        spent=Spent(round(total, 3), round(running, 3), round(total - running, 3)),
        command=request.command,
        rate=rate,
        hints=(
            *likeness(tries.failure),
            *(() if wanted.good or interrupted else _hints(failing, [one for one in known if one.attempts])),
        ),
        interrupted=interrupted,
        facts=host_facts(),
    )


def _chosen(cells: Sequence[Cell], kept: dict[str, CellResult], wanted: Wanted) -> Cell:
    """The cell that fails, as far as is known without running anything.

    Raises:
        UserError: It must be named.
    """
    named = {name for name, _, _ in wanted.ranges}
    if unknown := named - {name for cell in cells for name, _ in cell.params}:
        known = sorted({name for cell in cells for name, _ in cell.params})
        hint = (
            f"known: {', '.join(known)}"
            if known
            else f"add a line to its header: # params = {{ {min(unknown)} = [1] }}"
        )
        raise UserError(f"the repro has no parameter {min(unknown)!r}", hint=hint)
    alike = {replace(cell, params=tuple(p for p in cell.params if p[0] not in named)).id for cell in cells}
    none_fails = not any(cell.id in kept and kept[cell.id].outcome.failed for cell in cells)
    if named and not wanted.cell and none_fails and len(alike) == 1:
        return cells[0]  # which of its values fails is found by running them
    return pick(cells, kept, wanted.cell)


def _good(
    matrix: Matrix, repros: tuple[Repro, ...], request: Request, asked: str, failing: Cell, engine: str
) -> Environment:
    """The environment that is said to be good.

    Raises:
        UserError: There is none, there are several, or it is the failing one; or the day is none.
    """
    if _DATE.fullmatch(asked):
        if asked[0].isdigit():
            past(asked)
        found = replace(failing.environment, as_of=asked)
    else:
        everything = replace(request, repro="", env=every(matrix, asked), target="", params=())
        cells = choose(replace(matrix, excludes=()), repros, everything, engine).cells
        own = {cell.environment for cell in cells if cell.repro.name == failing.repro.name} - {failing.environment}
        there = list(dict.fromkeys(cell.environment for cell in cells))
        found = find_environment(asked, there, own, locked=matrix.locked)
    if found == failing.environment:
        raise UserError(f"--good {asked} is the failing environment itself", where=failing.id, hint="name another")
    return found


def _failing(tries: Tries, matrix: Matrix, cell: Cell, wanted: Wanted, engine: str) -> Cell:
    """The cell that fails, seen to fail; sets what `bad` means.

    Raises:
        UserError: It does not.
        InfraError: It could not be run.
    """
    if attempts := _attempts(tries, cell):
        tries.failure = attempts
        return cell
    for name, low, high in wanted.ranges:
        values = coarse(_range(cell, name, low, high))
        for value in (values[1], values[0], *reversed(values[2:])):
            other = with_values(matrix, cell, name, [value], engine)[value]
            if found := _attempts(tries, other):
                tries.failure = found
                return other
    result = tries.seen[cell].result
    if result.outcome is Outcome.INFRA:
        raise InfraError(f"it could not be run: {result.reason}", where=cell.id)
    if wanted.ranges and result.outcome is Outcome.OK:
        raise UserError(
            f"none of {counted(len(tries.seen), 'value')} tried fails", where=cell.id, hint="give a wider range"
        )
    hint = "name another with --cell; --rate 0.1 tries one that comes and goes more often"
    raise UserError(
        f"this cell does not fail: {result.outcome.value} {result.reason}".rstrip(), where=cell.id, hint=hint
    )


def _attempts(tries: Tries, cell: Cell) -> Failure | None:
    """The failure of `cell`, tried as often as a rare one needs; None where it did not fail."""
    often = passes_needed(tries.rules.rate, 1 - tries.rules.confidence) if tries.rules.rate else cell.repeat
    for count in range(1, min(often, tries.rules.most) + 1):
        tries.attempt(cell, count)
        if failure := failure_of(tries.seen[cell].attempts):
            return failure
        if tries.seen[cell].result.outcome is not Outcome.OK:
            break
    return None


def _what(wanted: Wanted, tries: Tries, matrix: Matrix, cell: Cell, engine: str) -> tuple[str, ...]:
    """What is minimised.

    Raises:
        UserError: What was asked for does not apply, or nothing does.
    """
    asked = not wanted.what or "threshold" in wanted.what
    values = asked and not wanted.ranges and _values(tries, matrix, cell, engine, run=bool(wanted.what))
    reasons = {
        "packages": "" if wanted.good else "no good environment is named: --good ENV",
        "flags": "" if flags_of(cell) else "neither the repro nor the matrix gives it XLA flags",
        "env": "" if variables_of(cell) else "neither the repro nor the matrix sets variables for it",
        "threshold": ""
        if wanted.ranges or values
        else "of no numeric parameter it is known that some values fail and some do not: --param NAME=LOW..HIGH",
    }
    for name in wanted.what:
        if reasons[name]:
            raise UserError(f"{name} cannot be minimised: {reasons[name]}", where=cell.id)
    found = tuple(name for name in WHAT if not reasons[name] and (not wanted.what or name in wanted.what))
    if wanted.good and "packages" not in found:
        raise UserError("--good is for packages, which --what leaves out", hint="--what packages, or no --good")
    if wanted.ranges and "threshold" not in found:
        raise UserError("a range is for a threshold, which --what leaves out", hint="--what threshold")
    if not found:
        listed = "\n    ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UserError("nothing can be minimised", where=cell.id, hint=f"why:\n    {listed}")
    return found


def _values(tries: Tries, matrix: Matrix, cell: Cell, engine: str, *, run: bool) -> dict[str, tuple[Number, ...]]:
    """Declared values of each numeric parameter of which some fail and some do not, all else as in `cell`.

    Args:
        run: Run those of which nothing is known.
    """
    found = {}
    for name, declared in cell.repro.params:
        numbers = [value for value in declared if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < 2 or len(numbers) < len(declared):
            continue
        made = with_values(matrix, cell, name, numbers, engine)
        kept = made.values() if run else tries.trials.kept(made.values())
        told = {value: each for value, each in made.items() if each in kept}
        tries.decide(tuple(told.values()), {each: f"{name}={value}" for value, each in told.items()})
        verdicts = {tries.verdict(each) for each in told.values()}
        if {Verdict.GOOD, Verdict.BAD} <= verdicts:
            found[name] = tuple(sorted(told))
    return found


def _spaces(wanted: Wanted, tries: Tries, matrix: Matrix, cell: Cell, engine: str) -> list[tuple[str, Range]]:
    """(parameter, where to search) of every threshold."""
    if wanted.ranges:
        return [(name, _range(cell, name, low, high)) for name, low, high in wanted.ranges]
    found = []
    for name, values in _values(tries, matrix, cell, engine, run=False).items():
        told = {value: tries.verdict(each) for value, each in with_values(matrix, cell, name, values, engine).items()}
        differ = [pair for pair in pairwise(sorted(told)) if told[pair[0]] is not told[pair[1]]]
        space = _range(cell, name, differ[0][0], differ[-1][1])
        found.append((name, replace(space, known=tuple(sorted(told)), sweep=0)))
    return found


def _range(cell: Cell, name: str, low: Number, high: Number) -> Range:
    """Of integers where the parameter's declared values and both ends are; every declared value in it is looked at.

    Raises:
        UserError: The parameter is no number.
    """
    declared = dict(cell.repro.params)[name]
    numbers = [value for value in declared if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(declared):
        raise UserError(f"the parameter {name} is no number", where=cell.id, hint="only numbers have thresholds")
    if all(isinstance(value, int) for value in (*numbers, low, high)):
        return Range(low, high, tuple(numbers))
    return Range(float(low), float(high), tuple(map(float, numbers)))


def _hints(cell: Cell, known: Sequence[CellResult]) -> tuple[str, ...]:
    """Where kept results have a good neighbour of the failing cell, whose packages can be compared."""
    own = [one for one in known if one.repro == cell.repro.name]
    for series in histories(own, Notes(own)):
        for edge in reversed(series.edges):
            same_kind = dict(edge.good.axes).get("python") == cell.environment.python
            if cell.id in (edge.bad.id, *(one.id for one in series.bad)) and same_kind:
                return (
                    f"in {edge.good.environment} it is ok: `--good {edge.good.environment}` looks for the packages that"
                    " make the difference",
                )
    return ()
