"""What is known without running anything: the last result of every cell, and evidence graded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from repromatrix import __version__
from repromatrix.engines.base import ISOLATION
from repromatrix.errors import UserError
from repromatrix.evidence.signature import VERSION
from repromatrix.flow import host_facts
from repromatrix.graded import grade_attempt, recall
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.report.layout import newest_first
from repromatrix.results.assemble import judged, with_attempts
from repromatrix.results.model import AttemptResult, CellResult, RunInfo
from repromatrix.results.store import Results
from repromatrix.spec.cells import in_environment
from repromatrix.spec.host import anywhere
from repromatrix.spec.model import Cell, Matrix, Outcome, Repro, SignatureRule
from repromatrix.spec.named import every

EVERYTHING = Request(env="*")


def known_cells(
    project: Project, matrix: Matrix, repros: tuple[Repro, ...], *, beyond: bool = False
) -> tuple[CellResult, ...]:
    """The last result of every cell that `matrix` and `repros` describe, with the script as it is in them.

    Whether this host could run a cell makes no difference: results are restored from machines with GPUs.

    Args:
        beyond: Also of cells that must be asked for by name, in environments that are locked: a bisection's.

    Raises:
        InfraError: The results cannot be read.
    """
    with Results(project.state) as results:
        kept = results.latest_cells()
    found: list[tuple[int, CellResult]] = []
    # Claims may name the engine. Cells that no engine ran carry no verdict, so any engine's claims will do for them.
    engines = sorted({cell.engine for cell in kept} - {""}) or [matrix.run.engine]
    for engine in engines:
        described = choose(anywhere(matrix), repros, EVERYTHING, engine).cells
        if beyond:
            described += _named(anywhere(matrix), repros, described, kept, engine)
        place = {cell.id: (number, cell) for number, cell in enumerate(described)}
        for result in kept:
            if (result.engine or engines[0]) != engine or result.id not in place:
                continue
            number, cell = place[result.id]
            if result.script in ("", cell.repro.body):
                found.append((number, judged(result, cell.expect)))
    return tuple(result for _, result in sorted(found, key=lambda pair: pair[0]))


def _named(
    matrix: Matrix, repros: Sequence[Repro], described: Sequence[Cell], kept: Sequence[CellResult], engine: str
) -> tuple[Cell, ...]:
    """The cells of which results are kept, which are not `described`, and which can be asked for by name."""
    there, by_name = {cell.id for cell in described}, {repro.name: repro for repro in repros}
    locked = {each.id: each for each in matrix.locked}
    wanted = {result.id for result in kept} - there
    places = dict.fromkeys((result.repro, result.environment) for result in kept if result.id in wanted)
    return tuple(
        cell
        for repro, environment in places
        if repro in by_name and environment in locked
        for cell in in_environment(matrix, by_name[repro], locked[environment], engine).cells
        if cell.id in wanted
    )


def known_of_one(
    project: Project, matrix: Matrix, repros: tuple[Repro, ...], request: Request
) -> tuple[tuple[Cell, ...], tuple[CellResult, ...]]:
    """The cells of the one repro that `request` means, and what is kept of them on the engines that it allows.

    Without a word on environments those are meant that the matrix has, and others that results are kept of.

    Raises:
        UserError: The request is wrong, no cell is left, or those of several repros are.
        InfraError: The results cannot be read.
    """
    engine = request.engine or matrix.run.engine
    chosen = choose(matrix, repros, replace(request, env=request.env or "*"), engine)
    cells = chosen.cells
    names = sorted({cell.repro.name for cell in cells or [each.cell for each in chosen.excluded]})
    if len(names) != 1:
        raise UserError(f"{request.repro} means {len(names)} repros: {', '.join(names)}", hint="name one of them")
    known = [
        one
        for one in known_cells(project, matrix, repros, beyond=True)
        if one.repro == names[0] and (request.engine in ("", "auto") or one.engine in ("", request.engine))
    ]
    if not request.env:
        env = every(matrix, *(one.environment for one in known))
        cells = choose(matrix, repros, replace(request, repro=names[0], env=env), engine).cells
    if not cells:
        raise UserError(
            f"no cell of {request.repro} is left", hint=f"`uv run invoke cells --repro {request.repro}` says why"
        )
    ids_of = {cell.id for cell in cells}
    return cells, tuple(one for one in known if one.id in ids_of)


def to_show(cells: Sequence[CellResult]) -> CellResult | None:
    """The failing cell that a maintainer should see: a claimed failure before others, the newest version, as it comes.

    None where none fails.
    """
    failing = [cell for cell in cells if cell.outcome.failed and cell.attempts]
    order = {environment: place for place, environment in enumerate(newest_first(failing))}
    ranked = sorted(failing, key=lambda cell: (cell.as_expected is not True, order[cell.environment]))
    return ranked[0] if ranked else None


def report_info(command: str, cells: tuple[CellResult, ...]) -> RunInfo:
    """The run that a report without a run speaks of."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    engines = ", ".join(sorted({cell.engine for cell in cells if cell.engine}))
    return RunInfo(command, now, 0.0, __version__, engines, ISOLATION.get(engines, ""), 0, len(cells), host_facts())


def regrade(project: Project) -> tuple[list[Mapping[str, object]], int]:
    """Grade all kept evidence again and keep what changed.

    Returns:
        The changes (`cell`, `attempt`, `before`, `after`), and how many attempts were looked at.

    Raises:
        InputErrors: The files are wrong.
        InfraError: The results cannot be read or written.
    """
    matrix, repros = load(project)
    anyone = anywhere(matrix)
    described = choose(anyone, repros, EVERYTHING, matrix.run.engine).cells
    changes: list[Mapping[str, object]] = []
    total = 0
    with Results(project.state) as results, results.writing():
        latest = results.latest_cells()
        cells = {cell.id: cell for cell in described}
        cells |= {cell.id: cell for cell in _named(anyone, repros, described, latest, matrix.run.engine)}
        for kept in latest:
            cell = cells.get(kept.id)
            if cell is None or not kept.attempts or kept.script != cell.repro.body:
                continue
            rules = matrix.signatures
            graded = tuple(_again(project, cell, rules, attempt) for attempt in kept.attempts)
            total += len(graded)
            if graded == kept.attempts:
                continue
            for before, after in zip(kept.attempts, graded, strict=True):
                if before != after:
                    results.amend(kept.key, after)
                words = {"before": _words(before), "after": _words(after)}
                if words["before"] != words["after"]:  # a new version of the signatures alone changes nothing to tell
                    changes.append({"cell": kept.id, "attempt": after.number, **words})
            results.save_cells([with_attempts(kept, cell.expect, graded)])
    return changes, total


def up_to_date(project: Project, cell: Cell, rules: Sequence[SignatureRule], attempt: AttemptResult) -> AttemptResult:
    """`attempt`, signed again where an older algorithm signed it: titles of two algorithms do not meet."""
    signature = attempt.signature
    return attempt if signature is None or signature.version == VERSION else _again(project, cell, rules, attempt)


def _again(project: Project, cell: Cell, rules: Sequence[SignatureRule], attempt: AttemptResult) -> AttemptResult:
    if attempt.outcome is Outcome.INFRA:
        return attempt  # that there was no verdict is the engine's word; a script can write a result.json
    folder = project.root / attempt.evidence
    if not (folder / "result.json").is_file():
        return attempt  # its evidence was deleted: what was found then stands
    found = grade_attempt(cell, rules, attempt.number, Path(folder), recall(folder), project)
    return replace(found, started=attempt.started, seconds=attempt.seconds)


def _words(attempt: AttemptResult) -> str:
    title = attempt.signature.title if attempt.signature is not None else ""
    return f"{attempt.outcome.value} {title}".strip()
