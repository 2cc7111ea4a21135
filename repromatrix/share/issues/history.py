"""First bad and last good: where along the versions a failure begins and ends, from results that are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from repromatrix.report.layout import Notes
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome

_NOT_VERSIONS = ("cuda", "python")
"""Axes along which nothing begins: their values are kinds, and which jax has which Python is the matrix's choice."""


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
        return _version(self.good, self.axis) < _version(self.bad, self.axis)


@dataclass(frozen=True, slots=True)
class History:
    """One failure along the versions of one axis, all else equal.

    Attributes:
        axis: `jax`, `jaxlib`, or a package.
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
    """(axis, cells by version) of every series with two versions at least; along jax also shorter ones."""
    axes = [
        axis for axis in dict.fromkeys(name for cell in cells for name, _ in cell.axes) if axis not in _NOT_VERSIONS
    ]
    for axis in axes:
        for loose in _groups(cells, axis, ("python",)):
            # Old versions of jax need old Pythons: one series, unless a version was run with several.
            distinct = len({dict(cell.axes)[axis] for cell in loose}) == len(loose)
            for group in [loose] if distinct else _groups(loose, axis, ()):
                if axis == "jax" or len(group) > 1:
                    yield axis, tuple(sorted(group, key=lambda cell: _version(cell, axis)))


def _groups(cells: Iterable[CellResult], axis: str, ignored: tuple[str, ...]) -> list[list[CellResult]]:
    groups: dict[object, list[CellResult]] = {}
    for cell in cells:
        if not cell.engine or not _is_version(dict(cell.axes).get(axis, "")):
            continue  # what no engine ran says nothing; `locked` stands nowhere in an order
        rest = tuple(pair for pair in cell.axes if pair[0] not in (axis, *ignored))
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


def _version(cell: CellResult, axis: str) -> Version:
    return Version(dict(cell.axes)[axis])
