"""What a table of cells shows, before it is Markdown or terminal text: order, short forms, notes and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from repromatrix.results.combine import counts, tally
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome


@dataclass(frozen=True, slots=True)
class Grid:
    """One table: the cells of one engine, by environment and column.

    Attributes:
        engine: Empty where no engine ran any of them.
        rows: Environment ids, the newest JAX first.
        columns: Targets with parameters, in the order of the cells.
    """

    engine: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], CellResult]


def grids(cells: Sequence[CellResult]) -> tuple[Grid, ...]:
    """A table per engine, by name. A cell that no engine ran stands in each where that engine has no result of it."""
    engines = sorted({cell.engine for cell in cells if cell.engine}) or [""]
    made = []
    for engine in engines:
        placed = {(cell.environment, cell.column): cell for cell in cells if not cell.engine}
        placed |= {(cell.environment, cell.column): cell for cell in cells if cell.engine == engine}
        columns = dict.fromkeys(cell.column for cell in cells if (cell.environment, cell.column) in placed)
        made.append(Grid(engine, newest_first(placed.values()), tuple(columns), placed))
    return tuple(made)


def newest_first(cells: Iterable[CellResult]) -> tuple[str, ...]:
    """Environment ids by descending JAX version, then by the other axes, ascending.

    Newest first: the top of a table says whether it still fails today, and a page that must be cut loses the oldest.
    """
    axes = {cell.environment: cell.axes for cell in cells}
    order = sorted(axes, key=lambda env: [_sortable(value) for name, value in axes[env] if name != "jax"])
    return tuple(sorted(order, key=lambda env: _sortable(dict(axes[env]).get("jax", "")), reverse=True))


def _sortable(value: str) -> tuple[int, Version, str]:
    try:
        return (1, Version(value), value)
    except InvalidVersion:  # `none`, `12-local`, `locked`
        return (0, Version("0"), value)


@dataclass(slots=True)
class Failure:
    """A failure as a page numbers it, with every title under which it was seen."""

    number: int
    primary: Counter[str] = field(default_factory=Counter)
    titles: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        """The most frequent primary title, of equally frequent ones the first."""
        return self.primary.most_common(1)[0][0]

    @property
    def cells(self) -> int:
        """In how many cells it was seen."""
        return self.primary.total()


class Notes:
    """Numbers for failures and letters for reasons, the same all over one page.

    Failures whose titles meet, if only through a third, have one number.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        by_title: dict[str, Failure] = {}
        for place, cell in enumerate(cells):
            if cell.signature is None or not cell.outcome.failed:  # a `skip` may have one: the flag that was refused
                continue
            titles = cell.signature.titles
            met = {id(by_title[title]): by_title[title] for title in titles if title in by_title}
            failure = min(met.values(), key=lambda other: other.number, default=None)
            if failure is None:
                failure = Failure(place)  # numbered for good below
            failure.primary[cell.signature.title] += 1
            failure.titles |= titles
            by_title |= dict.fromkeys(titles, failure)
            for other in met.values():
                if other is not failure:
                    failure.primary += other.primary
                    failure.titles |= other.titles
                    by_title |= dict.fromkeys(other.titles, failure)
        unique = {id(failure): failure for failure in by_title.values()}
        self.failures = tuple(sorted(unique.values(), key=lambda failure: failure.number))
        for number, failure in enumerate(self.failures, 1):
            failure.number = number
        self._by_title = by_title
        reasons = dict.fromkeys(why(cell) for cell in cells if why(cell) and _needs_reason(cell))
        self._letters = {reason: _letters(place) for place, reason in enumerate(reasons)}

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """(letter, reason) pairs."""
        return tuple((letter, reason) for reason, letter in self._letters.items())

    def number(self, cell: CellResult) -> int | None:
        """The number of the failure of one of the cells; None where it did not fail or left no signature."""
        if cell.signature is None or not cell.outcome.failed:
            return None
        return self._by_title[cell.signature.title].number

    def marks(self, cell: CellResult) -> str:
        """`[1]`, `[a]`, `[1] [a]`, or empty."""
        number = self.number(cell)
        marks = [f"[{number}]"] if number is not None else []
        if _needs_reason(cell) and why(cell):
            marks.append(f"[{self._letters[why(cell)]}]")
        return " ".join(marks)


def short(cell: CellResult, notes: Notes) -> str:
    """`ok 1.2s`, `crash SIGABRT [1] 2.3s`, `error 1 [2] 0.8s`, `hang [3] 60s (3 of 10 hang, 7 ok)`, `skip [a]`."""
    parts = [cell.outcome.value]
    if cell.outcome in (Outcome.CRASH, Outcome.OOM) and cell.signal:
        parts.append(cell.signal)
    elif cell.outcome in (Outcome.ERROR, Outcome.OOM) and cell.exit_status is not None:
        parts.append(str(cell.exit_status))
    if marks := notes.marks(cell):
        parts.append(marks)
    if cell.attempts and cell.outcome not in (Outcome.SKIP, Outcome.INFRA):
        parts.append(duration(cell.seconds))
    if len(cell.attempts) > 1:
        groups = tally(cell.attempts)
        parts.append(f"({counts(groups, titles=False)})" if len(groups) > 1 else f"({len(groups[0])} attempts)")
    return " ".join(parts)


def verdict(cell: CellResult) -> str:
    """`as claimed`, `not as claimed`, or empty where nothing was learnt of a claim."""
    return {True: "as claimed", False: "not as claimed", None: ""}[cell.as_expected]


def contradicts(cell: CellResult) -> bool:
    """Whether a cell is bad news: its claim is broken or, where nothing is claimed, it failed."""
    return cell.as_expected is False or (not cell.expected and cell.outcome.failed)


def why(cell: CellResult) -> str:
    """The reason, without the part that only says again what was claimed and what came."""
    return cell.reason.removesuffix(f"claimed {cell.expected}, was {cell.outcome.value}").removesuffix("; ")


def totals(cells: Sequence[CellResult]) -> str:
    """`22 cells: 14 crash, 4 ok, 4 skip; 18 as claimed, 4 without a verdict on the claim`."""
    found = Counter(cell.outcome for cell in cells)
    text = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
    if found:
        text += ": " + ", ".join(f"{found[outcome]} {outcome.value}" for outcome in Outcome if found[outcome])
    claimed = [cell for cell in cells if cell.expected]
    judged = [cell.as_expected for cell in claimed]
    parts = [
        f"{judged.count(value)} {words}"
        for value, words in ((True, "as claimed"), (False, "not as claimed"), (None, "without a verdict on the claim"))
        if value in judged
    ]
    if failed := sum(cell.outcome.failed for cell in cells if not cell.expected):
        parts.append(f"{failed} failed with nothing claimed")
    return "; ".join([text, ", ".join(parts)] if parts else [text])


def disagreements(cells: Sequence[CellResult], notes: Notes) -> tuple[tuple[CellResult, ...], ...]:
    """Cells on which engines disagree: both gave a verdict of the version, and the outcomes or failures differ."""
    by_place: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        if cell.engine and (cell.outcome is Outcome.OK or cell.outcome.failed):
            by_place.setdefault((cell.environment, cell.column), []).append(cell)
    kinds = {place: {_kind(cell, notes) for cell in group} for place, group in by_place.items()}
    return tuple(tuple(group) for place, group in by_place.items() if len(kinds[place]) > 1)


def duration(seconds: float) -> str:
    """`1.2s`, `60s`, `12m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}m"


def _kind(cell: CellResult, notes: Notes) -> tuple[Outcome, int | None]:
    return cell.outcome, notes.number(cell)


def _needs_reason(cell: CellResult) -> bool:
    """Whether the short form alone leaves the reader asking why."""
    if cell.outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE, Outcome.INFRA):
        return True
    return len(cell.attempts) > 1 and len(tally(cell.attempts)) > 1


def _letters(place: int) -> str:
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
