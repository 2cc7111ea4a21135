"""The HLO of cells, held against that of a reference cell: the same program, or another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repromatrix.report.layout import newest_first
from repromatrix.results.model import CellResult, HloFacts, HloModule
from repromatrix.spec.model import Outcome


@dataclass(frozen=True, slots=True)
class Compared:
    """A cell of which HLO was collected.

    Attributes:
        hlo: Of the attempt that ended as the cell did, else of the first that has any.
        module: Its module of the name that is compared; None where it compiled none.
        same_before, same_after: Whether that module's HLO before and after optimisation is the same as in the
            reference; None where one of the two was not seen.
    """

    cell: CellResult
    hlo: HloFacts
    module: HloModule | None
    same_before: bool | None
    same_after: bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """The cells of one repro with one target and parameters.

    Attributes:
        name: As `CellResult.column`.
        module: Name of the module that is compared: the largest of the reference. Empty where no cell compiled one.
        reference: The newest cell that is ok; where none is, the newest. None where no cell compiled a module.
        cells: Those with HLO, the newest JAX first.
        without: How many were attempted and have none.
    """

    name: str
    module: str
    reference: Compared | None
    cells: tuple[Compared, ...]
    without: int


def columns(cells: Sequence[CellResult]) -> tuple[Column, ...]:
    """The columns of which some HLO was collected, in the order of the cells."""
    placed: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        placed.setdefault((cell.repro, cell.column), []).append(cell)
    return tuple(_column(name, own) for (_, name), own in placed.items() if any(map(hlo_of, own)))


def hlo_of(cell: CellResult) -> HloFacts | None:
    """What is known of the compiler's work in a cell: that of an attempt which ended as the cell did comes first."""
    known = [attempt for attempt in cell.attempts if attempt.hlo is not None]
    known.sort(key=lambda attempt: attempt.outcome is not cell.outcome)
    return known[0].hlo if known else None


def cell_hlo(cells: Sequence[CellResult]) -> list[dict[str, Any] | None]:
    """Of each cell, its main module and whether that is the same as in the reference, as `--json` has it."""
    found: dict[int, dict[str, Any]] = {}
    for column in columns(cells):
        for one in column.cells:
            found[id(one.cell)] = {
                "module": column.module,
                "reference": column.reference.cell.id if column.reference else "",
                "before": one.module.before if one.module else "",
                "after": one.module.after if one.module else "",
                "same_before": one.same_before,
                "same_after": one.same_after,
            }
    return [found.get(id(cell)) for cell in cells]


def _column(name: str, cells: Sequence[CellResult]) -> Column:
    order = {environment: place for place, environment in enumerate(newest_first(cells))}
    ordered = sorted(cells, key=lambda cell: (order[cell.environment], cell.engine))
    known = [(cell, hlo) for cell in ordered if (hlo := hlo_of(cell)) is not None]
    compiled = [(cell, hlo) for cell, hlo in known if hlo.modules]
    chosen = next((one for one in compiled if one[0].outcome is Outcome.OK), compiled[0] if compiled else None)
    title, against = "", None
    if chosen is not None:
        against = max(chosen[1].modules, key=lambda module: (module.size, len(module.changed)))  # the first of equals
        title = against.name
    compared = tuple(_compared(cell, hlo, title, against) for cell, hlo in known)
    reference = next((one for one in compared if chosen is not None and one.cell is chosen[0]), None)
    return Column(name, title, reference, compared, sum(bool(cell.attempts) for cell in cells) - len(known))


def _compared(cell: CellResult, hlo: HloFacts, title: str, against: HloModule | None) -> Compared:
    module = next((module for module in hlo.modules if module.name == title), None)
    if module is None or against is None:
        return Compared(cell, hlo, None, None, None)
    return Compared(cell, hlo, module, _same(module.before, against.before), _same(module.after, against.after))


def _same(one: str, other: str) -> bool | None:
    return one == other if one and other else None
