"""What would run, and why each excluded cell does not: `invoke cells`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repromatrix.spec.model import Cell, Excluded


def listing(cells: Sequence[Cell], not_here: dict[Cell, str], excluded: Sequence[Excluded], described: int) -> str:
    """A line per cell, then a line per cell that does not run, with the reason.

    Args:
        cells: The selected cells.
        not_here: Those of them that this host or the index bars, with the reason.
        excluded: Cells that matrix.toml or the meaning of the axes leaves out.
        described: Cells that the files describe in all.
    """
    runnable = [cell for cell in cells if cell not in not_here]
    lines = [cell.id for cell in runnable]
    lines += [f"skip      {cell.id}: {reason}" for cell, reason in not_here.items()]
    lines += [f"excluded  {entry.cell.id}: {entry.reason}" for entry in excluded]
    lines.append(
        f"{len(runnable)} cells would run, {len(not_here)} would be skipped, {len(excluded)} are excluded; "
        f"{described - len(cells)} more are not selected"
    )
    return "\n".join(lines)


def listing_document(cells: Sequence[Cell], not_here: dict[Cell, str], excluded: Sequence[Excluded]) -> dict[str, Any]:
    """The same as data."""
    return {
        "schema": 1,
        "cells": [_row(cell) | {"skip": not_here.get(cell)} for cell in cells],
        "excluded": [_row(entry.cell) | {"reason": entry.reason} for entry in excluded],
    }


def _row(cell: Cell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "repro": cell.repro.name,
        "environment": cell.environment.id,
        "axes": dict(cell.environment.axes),
        "target": cell.target,
        "params": dict(cell.params),
    }
