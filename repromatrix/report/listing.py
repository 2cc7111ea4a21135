"""What would run, and why each excluded cell does not: `invoke cells`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from repromatrix.report.layout import counted
from repromatrix.spec.model import Cell, Excluded

PLACES = 3
"""Environments and targets that a line on several cells names."""


def listing(cells: Sequence[Cell], not_here: dict[Cell, str], excluded: Sequence[Excluded], described: int) -> str:
    """A line per cell that would run, then a line per repro and reason for those that do not.

    Args:
        cells: The selected cells.
        not_here: Those of them that this host or the index bars, with the reason.
        excluded: Cells that matrix.toml or the meaning of the axes leaves out.
        described: Cells that the files describe in all.
    """
    runnable = [cell for cell in cells if cell not in not_here]
    lines = [cell.id for cell in runnable]
    lines += [f"skip      {line}" for line in _folded(not_here.items())]
    lines += [f"excluded  {line}" for line in _folded((entry.cell, entry.reason) for entry in excluded)]
    lines.append(
        f"{counted(len(runnable), 'cell')} would run, {len(not_here)} would be skipped, "
        f"{len(excluded)} {'is' if len(excluded) == 1 else 'are'} excluded; "
        f"{described - len(cells)} more are not selected"
    )
    return "\n".join(lines)


def _folded(reasons: Iterable[tuple[Cell, str]]) -> Iterator[str]:
    """One line for all cells of a repro that do not run for one reason; `--json` names each."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell, reason in reasons:
        groups.setdefault((cell.repro.name, reason), []).append(cell)
    for (repro, reason), cells in groups.items():
        if len(cells) == 1:
            yield f"{cells[0].id}: {reason}"
            continue
        places = list(dict.fromkeys(f"{cell.environment.id}@{cell.target}" for cell in cells))
        shown = ", ".join(places[:PLACES]) + (f" and {len(places) - PLACES} more" if len(places) > PLACES else "")
        yield f"{repro}, {counted(len(cells), 'cell')} on {shown}: {reason}"


def listing_document(cells: Sequence[Cell], not_here: dict[Cell, str], excluded: Sequence[Excluded]) -> dict[str, Any]:
    """The same as data, every cell by itself."""
    return {
        "schema": 1,
        "cells": [_row(cell) | {"skip": not_here.get(cell)} for cell in cells],
        "excluded": [_row(entry.cell) | {"reason": entry.reason} for entry in excluded],
    }


def _row(cell: Cell) -> dict[str, Any]:
    gpus = cell.described
    return {
        "id": cell.id,
        "repro": cell.repro.name,
        "environment": cell.environment.id,
        "axes": dict(cell.environment.axes),
        "target": cell.target,
        "params": dict(cell.params),
        "hlo": cell.hlo,
        "deviceless": {"description": gpus.description_sha256, "topology": gpus.topology} if gpus else None,
    }
