"""What `invoke diff` shows: two environments, and one repro compiled in both, gathered as data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from repromatrix.accepted import ask_flags, kept_flags
from repromatrix.collected import hlo_text, read_hlo
from repromatrix.engines.choose import choose_engine, count_gpus
from repromatrix.envs.model import Impossible, Lock
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.evidence.hlo import Hlo
from repromatrix.flow import run_matrix
from repromatrix.plan import Request, bars, choose, load
from repromatrix.project import Project
from repromatrix.ready import fetch_missing
from repromatrix.results.difference import (
    CellChanges,
    Difference,
    FlagChanges,
    flag_changes,
    module_changes,
    package_changes,
)
from repromatrix.results.model import CellResult
from repromatrix.spec.cells import besides
from repromatrix.spec.model import Environment, Matrix, Outcome
from repromatrix.spec.named import every
from repromatrix.spec.words import longer, nearest

LISTED = 20
"""Environments that a refusal names at most."""


def compare(
    project: Project,
    first: str,
    second: str,
    request: Request,
    listener: Listener,
    cancel: threading.Event,
    *,
    flags: bool = False,
) -> Difference:
    """Hold two environments against each other.

    Args:
        first, second: An environment's id, a glob that one id alone matches, or a version of jax that only one of the
            environments has; those of the repro where one is asked for.
        request: What chooses the cells to compile in both; its `env` does not count. Without a repro nothing runs.
        flags: Ask for the accepted flags where they are not known.

    Raises:
        UserError: The files, names or parameters are wrong, or an environment cannot exist.
        InfraError: An environment cannot be locked or made ready.
        KeyboardInterrupt: `cancel` was set.
    """
    matrix, repros = load(project)
    env = every(matrix, first, second) if request.repro else "*"
    everything = choose(matrix, repros, replace(request, env=env), request.engine or matrix.run.engine)
    # Without a repro nothing runs, so that a rule against some cells does not count.
    excluded = () if request.repro else (each.cell for each in everything.excluded)
    barred = bars(everything.cells, count_gpus()) if request.repro else {}
    environments = list(dict.fromkeys(cell.environment for cell in (*everything.cells, *excluded)))
    usable = {cell.environment for cell in everything.cells if cell not in barred}
    whose = f" of {request.repro}" if request.repro else ""
    pair = (
        find_environment(first, environments, usable, whose, matrix.locked),
        find_environment(second, environments, usable, whose, matrix.locked),
    )
    if pair[0] == pair[1]:
        raise UserError(f"{first} and {second} are one environment: {pair[0].id}", hint="name two")
    left, right = locked(project, matrix, pair, request, listener, cancel)
    locks = left, right
    found, missing = _flags(project, matrix, locks, request, listener, cancel, ask=flags)
    cells = _cells(project, pair, request, listener, cancel) if request.repro else ()
    return Difference(*locks, package_changes(*locks), found, missing, cells)


def find_environment(
    asked: str,
    environments: Sequence[Environment],
    usable: Set[Environment] = frozenset(),
    whose: str = "",
    locked: Sequence[Environment] = (),
) -> Environment:
    """The one environment that `asked` means: its id, a glob, or its version of jax.

    Args:
        usable: Those that count where several match; empty = all.
        whose: Words for a refusal: ` of windowed_einsum`.
        locked: Further ones, which an exact id means and nothing else.

    Raises:
        UserError: None or several match.
    """
    hits = (
        [each for each in environments if each.id == asked]
        or [each for each in locked if each.id == asked]
        or [each for each in environments if fnmatchcase(each.id, asked) or each.jax == asked]
    )
    if len(hits) > 1 and any(each in usable for each in hits):
        hits = [each for each in hits if each in usable]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise UserError(f"{asked} means {len(hits)} environments{whose}", hint=f"name one of: {_listed(hits)}")
    ids, further = [each.id for each in environments], [each.id for each in locked]
    beside = besides(asked, further) or besides(f"jax{asked}-*", further)
    advice = longer(asked, ids) or beside or nearest(asked, ids) or f"there are: {_listed(environments)}"
    raise UserError(f"no environment{whose} is called {asked}", hint=advice)


def _listed(environments: Sequence[Environment]) -> str:
    more = f" and {len(environments) - LISTED} more" if len(environments) > LISTED else ""
    return ", ".join(each.id for each in environments[:LISTED]) + more


def locked(
    project: Project,
    matrix: Matrix,
    environments: Sequence[Environment],
    request: Request,
    listener: Listener,
    cancel: threading.Event,
) -> list[Lock]:
    """The locks of `environments`, in their order.

    Raises:
        UserError: One cannot exist.
        InfraError: One cannot be locked.
    """
    from repromatrix.envs.lock import lock_all

    states = lock_all(environments, matrix, project, listener, offline=request.offline, cancel=cancel)
    locks = []
    for environment in environments:
        state = states[environment]
        if isinstance(state, InfraError):
            raise state
        if isinstance(state, Impossible):
            raise UserError(f"this environment cannot exist: {state.reason}", where=environment.id, hint="name another")
        locks.append(state)
    return locks


def _flags(
    project: Project,
    matrix: Matrix,
    locks: tuple[Lock, Lock],
    request: Request,
    listener: Listener,
    cancel: threading.Event,
    *,
    ask: bool,
) -> tuple[FlagChanges | None, str]:
    """How the accepted flags differ, or why that is not known."""
    from repromatrix.envs.wheels import WheelStore

    known = {lock: kept for lock in locks if (kept := kept_flags(lock, project)) is not None}
    unknown = [lock for lock in locks if lock not in known]
    if unknown and not ask:
        return None, f"not known of {' and '.join(lock.id for lock in unknown)}; --flags asks for them"
    if unknown:
        engine = choose_engine(request.engine or matrix.run.engine, project, matrix, listener)
        store = WheelStore(project.store)
        for lock in unknown:
            if engine.known(lock) is None:
                fetch_missing(lock, matrix, store, listener, cancel, offline=request.offline)
            known[lock] = ask_flags(lock, project, engine, listener, cancel)
    unasked = {lock: known[lock].trouble or "no jaxlib is installed in it" for lock in locks if not known[lock].known}
    if unasked:
        return None, "; ".join(f"not known of {lock.id}: {why}" for lock, why in unasked.items())
    return flag_changes(known[locks[0]], known[locks[1]]), ""


def _cells(
    project: Project,
    pair: tuple[Environment, Environment],
    request: Request,
    listener: Listener,
    cancel: threading.Event,
) -> tuple[CellChanges, ...]:
    """Run the cells that both environments have, with dumps, and compare what the compiler did."""
    wanted = replace(request, env=",".join(each.id for each in pair), hlo="passes")
    done = run_matrix(project, wanted, listener, cancel)
    # Evidence of an earlier version of this tool, or evidence that was deleted.
    if lacking := sorted(
        {cell.environment for cell in done.cells if cell.target != "wheels" and _lacks(project, cell)}
    ):
        listener.note(f"the kept results of {', '.join(lacking)} have no HLO: they run again")
        run_matrix(project, replace(wanted, env=",".join(lacking), rerun=True), listener, cancel)
        done = run_matrix(project, wanted, listener, cancel)
    if done.interrupted:
        raise KeyboardInterrupt
    sides = [{(c.repro, c.column): c for c in done.cells if c.environment == each.id} for each in pair]
    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        raise UserError(
            f"no cell of {request.repro} is in both {pair[0].id} and {pair[1].id}",
            hint="`uv run invoke cells` shows the targets and parameters of each",
        )
    return tuple(_changes(project, sides[0][key], sides[1][key]) for key in shared)


def _lacks(project: Project, cell: CellResult) -> bool:
    """Whether `cell` has attempts that ran, and none of them any word of its HLO."""
    ran = [one for one in cell.attempts if one.outcome not in (Outcome.SKIP, Outcome.INFRA)]
    return bool(ran) and all(read_hlo(project.root / one.evidence) is None for one in ran)


def _changes(project: Project, first: CellResult, second: CellResult) -> CellChanges:
    kept = [_evidence(project, cell) for cell in (first, second)]
    missing = tuple(why for why, _, _ in kept if why)
    (_, left, left_texts), (_, right, right_texts) = kept
    notes = tuple(
        f"{cell.environment}: {note}"
        for cell, (_, hlo, _) in zip((first, second), kept, strict=True)
        for note in hlo.notes
    )
    if missing:
        return CellChanges(first, second, missing=missing, notes=notes)
    modules = module_changes(left, right, (left_texts, right_texts))
    return CellChanges(first, second, *modules, notes=notes)


def _evidence(project: Project, cell: CellResult) -> tuple[str, Hlo, Callable[[str], str | None]]:
    """(why there is no HLO, the HLO, reader of its texts) of the newest attempt that has any."""
    why = cell.reason or "no HLO was collected"
    for attempt in reversed(cell.attempts):
        folder = project.root / attempt.evidence
        hlo = read_hlo(folder)
        if hlo is None:
            continue
        if hlo.modules or hlo.ran:
            return "", hlo, _reader(folder)
        why = "; ".join(hlo.notes) or "no module was compiled"
    return f"{cell.environment}: {why}", Hlo(), _reader(project.root)


def _reader(folder: Path) -> Callable[[str], str | None]:
    def read(name: str) -> str | None:
        from zstandard import ZstdError

        try:
            return hlo_text(folder, name)
        except (OSError, ZstdError):  # over the cap, or deleted by hand
            return None

    return read
