"""First bad and last good: where along the versions a failure begins and ends, from results that are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from repromatrix.report.layout import Notes
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome

_NOT_VERSIONS = ("cuda", "python")
"""Axes along which nothing begins: their values are kinds, and which jax has which Python is the matrix's choice."""
DATE = "date"
"""As an axis: the day as of which everything is that nothing pins. An environment's id has it, its axes do not."""
_DAY = re.compile(r"-asof(\d{4})(\d\d)(\d\d)(?=-|$)")


@dataclass(frozen=True, slots=True)
class Edge:
    """Two versions next to each other of which one fails and one does not.

    Attributes:
        good, bad: The cell that is ok, and the one that fails.
        between: Cells between them that say nothing: skipped, inconclusive, infra, or failed otherwise.
    """

    good: CellResult
    bad: CellResult
    between: tuple[CellResult, ...]
    axis: str

    @property
    def begins(self) -> bool:
        """Whether the failure begins here; else it ends here."""
        return Version(position(self.good, self.axis)) < Version(position(self.bad, self.axis))


@dataclass(frozen=True, slots=True)
class History:
    """One failure along the versions of one axis, all else equal.

    Attributes:
        axis: `jax`, `jaxlib`, a package, or `DATE`.
        failure: Its number on the page.
        edges: Where it begins and ends, oldest first; several where it came back.
        cells: That gave a verdict on it, oldest first.
    """

    axis: str
    engine: str
    column: str
    failure: int | None
    edges: tuple[Edge, ...]
    cells: tuple[CellResult, ...]

    @property
    def bad(self) -> tuple[CellResult, ...]:
        """The cells that fail by it, oldest first."""
        return tuple(cell for cell in self.cells if cell.outcome.failed)

    @property
    def good(self) -> tuple[CellResult, ...]:
        """The cells that are ok, oldest first."""
        return tuple(cell for cell in self.cells if cell.outcome is Outcome.OK)


def position(cell: CellResult, axis: str) -> str:
    """Where `cell` stands along `axis`: its version, or its day as `2026.03.14`; empty where it stands nowhere."""
    if axis != DATE:
        return dict(cell.axes).get(axis, "")
    day = _DAY.search(cell.environment)
    return ".".join(day.groups()) if day else ""


def histories(cells: Sequence[CellResult], notes: Notes) -> tuple[History, ...]:
    """Every failure in every series of versions, in the order of the cells.

    A cell that failed by another failure is neither good nor bad for this one, as a commit that does not build is
    skipped in a bisection; a cell of several failures counts by the one that it is numbered with.
    """
    found = []
    for axis, series in _series(cells):
        failures = dict.fromkeys(_failure(cell, notes) for cell in series if cell.outcome.failed)
        for failure in failures:
            told = [cell for cell in series if cell.outcome is Outcome.OK or _failure(cell, notes) == failure]
            edges = tuple(
                Edge(*_good_first(first, second), tuple(_between(series, first, second)), axis)
                for first, second in pairwise(told)
                if first.outcome.failed != second.outcome.failed
            )
            found.append(History(axis, series[0].engine, series[0].column, failure[0], edges, tuple(told)))
    return tuple(found)


def _series(cells: Sequence[CellResult]) -> Iterator[tuple[str, tuple[CellResult, ...]]]:
    """(axis, cells by version) of every series with two versions at least, and along jax of cells that are in none."""
    axes = [
        axis for axis in dict.fromkeys(name for cell in cells for name, _ in cell.axes) if axis not in _NOT_VERSIONS
    ]
    found = [(axis, group) for axis in axes for group in _told_apart(cells, axis, ("python", DATE))]
    found += ((DATE, group) for group in _told_apart(cells, DATE, ("python",)))
    told = {(cell.engine, cell.id) for _, group in found if len(group) > 1 for cell in group}
    for axis, group in found:
        alone = axis == "jax" and (group[0].engine, group[0].id) not in told
        if len(group) > 1 or alone:
            yield axis, tuple(sorted(group, key=lambda cell: Version(position(cell, axis))))


def _told_apart(cells: Iterable[CellResult], axis: str, ignored: tuple[str, ...]) -> Iterator[list[CellResult]]:
    """Groups in which every cell has a version of its own.

    Old versions of jax need old Pythons, and an override may give some their day: one series, unless a version was run
    with several.
    """
    for group in _groups(cells, axis, ignored):
        if not ignored or len({position(cell, axis) for cell in group}) == len(group):
            yield group
        else:
            yield from _told_apart(group, axis, ignored[:-1])


def _groups(cells: Iterable[CellResult], axis: str, ignored: tuple[str, ...]) -> list[list[CellResult]]:
    groups: dict[object, list[CellResult]] = {}
    for cell in cells:
        if not cell.engine or not _is_version(position(cell, axis)):
            continue  # what no engine ran says nothing; `locked` stands nowhere in an order
        told = (*cell.axes, (DATE, position(cell, DATE)))
        rest = tuple(pair for pair in told if pair[0] not in (axis, *ignored))
        groups.setdefault((cell.engine, cell.column, rest), []).append(cell)
    return list(groups.values())


def _failure(cell: CellResult, notes: Notes) -> tuple[int | None, str]:
    """What tells one failure from another: its number, or where no signature was left, how it ended."""
    number = notes.number(cell) if cell.outcome.failed else None
    return number, "" if number is not None else f"{cell.outcome.value} {cell.signal or cell.exit_status}"


def _good_first(first: CellResult, second: CellResult) -> tuple[CellResult, CellResult]:
    return (second, first) if first.outcome.failed else (first, second)


def _between(series: Sequence[CellResult], first: CellResult, second: CellResult) -> Sequence[CellResult]:
    return series[series.index(first) + 1 : series.index(second)]


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
