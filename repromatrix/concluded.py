"""What is known of each cell at the end of a run, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from repromatrix.plan import Plan
from repromatrix.results.assemble import assemble
from repromatrix.results.model import INTERRUPTED, AttemptResult, CellResult
from repromatrix.spec.model import Cell, Outcome, word


def conclude(
    plan: Plan,
    cell: Cell,
    engine: str,
    kept: Mapping[str, tuple[AttemptResult, ...]],
    trouble: Mapping[Cell, str],
    here: tuple[tuple[str, str], ...] = (),
) -> CellResult:
    """The result of `cell` after a run.

    Args:
        engine: Name of the engine of the run.
        kept: Attempts by result key.
        trouble: Why a cell's attempt was lost.
        here: Facts of this machine.
    """
    key = plan.keys.get(cell, "")
    lock = plan.locks.get(cell.environment)
    base = plan.bases.get(cell.environment.python, "")
    if cell in plan.barred:
        absent = (Outcome.SKIP, plan.barred[cell])
    elif cell in plan.infra:
        absent = (Outcome.INFRA, plan.infra[cell])
    else:
        absent = (Outcome.INFRA, trouble.get(cell, INTERRUPTED))
    ran = engine if key else ""
    result = assemble(
        cell,
        key,
        kept.get(key, ()),
        absent,
        engine=ran,
        base=base if ran else "",
        lock=lock if ran else None,
        host=(*plan.ground(cell).hosted, *here) if ran else (),
        command=again(cell, ran),
    )
    if cell not in trouble or result.outcome is Outcome.INFRA:
        return result
    short = f"{len(result.attempts)} of {cell.repeat} attempts have a verdict, the others: {trouble[cell]}"
    return replace(result, reason="; ".join(filter(None, (result.reason, short))))


def again(cell: Cell, engine: str) -> str:
    """The command that runs `cell` again on `engine` (empty: on whichever answers)."""
    params = [part for name, value in cell.params for part in ("--param", f"{name}={word(value)}")]
    place = ["--env", cell.environment.id, "--target", cell.target, *(["--engine", engine] if engine else [])]
    return shlex.join(["uv", "run", "invoke", "run", cell.repro.name, *place, *params])
