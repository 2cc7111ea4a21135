"""What a table of cells shows, before it is Markdown or terminal text: order, short forms, notes and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from repromatrix.evidence.model import RankResult, Signature
from repromatrix.results.combine import counts, tally
from repromatrix.results.judge import different
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
        """Of how many cells it is the failure; 0 where only ranks that were not the first ended by it."""
        return self.primary.total()


class Notes:
    """Numbers for failures and letters for reasons, the same all over one page.

    Failures whose titles meet, if only through a third, have one number.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        self._by_title: dict[str, Failure] = {}
        for cell in cells:
            if cell.signature is not None and cell.outcome.failed:  # a `skip` may have one: the flag that was refused
                self._add(cell.signature, 1)
        for rank in (rank for cell in cells for attempt in cell.attempts for rank in attempt.ranks):
            if rank.signature is not None and rank.outcome.failed:
                self._add(rank.signature, 0)  # after the cells, whose numbers have no gaps without these
        unique = {id(failure): failure for failure in self._by_title.values()}
        self.failures = tuple(sorted(unique.values(), key=lambda failure: failure.number))
        for number, failure in enumerate(self.failures, 1):
            failure.number = number
        reasons = dict.fromkeys(why(cell) for cell in cells if why(cell) and _needs_reason(cell))
        self._letters = {reason: letters(place) for place, reason in enumerate(reasons)}

    def _add(self, signature: Signature, cells: int) -> None:
        """Count a failure, and make one of all whose titles it meets."""
        known = self._by_title
        met = {id(known[title]): known[title] for title in signature.titles if title in known}
        failure = min(met.values(), key=lambda other: other.number, default=None)
        if failure is None:
            failure = Failure(len(known))  # in order; numbered for good once all are known
        failure.primary[signature.title] += cells
        failure.titles |= signature.titles
        known |= dict.fromkeys(signature.titles, failure)
        for other in met.values():
            if other is not failure:
                failure.primary.update(other.primary)
                failure.titles |= other.titles
                known |= dict.fromkeys(other.titles, failure)

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """(letter, reason) pairs."""
        return tuple((letter, reason) for reason, letter in self._letters.items())

    def number(self, ended: CellResult | RankResult) -> int | None:
        """The number of the failure of a cell or rank; None where it did not fail or left no signature."""
        if ended.signature is None or not ended.outcome.failed:
            return None
        return self._by_title[ended.signature.title].number

    def marks(self, cell: CellResult) -> str:
        """`[1]`, `[a]`, `[1] [a]`, or empty."""
        number = self.number(cell)
        marks = [f"[{number}]"] if number is not None else []
        if _needs_reason(cell) and why(cell):
            marks.append(f"[{self._letters[why(cell)]}]")
        return " ".join(marks)


def short(cell: CellResult, notes: Notes) -> str:
    """`ok 1.2s`, `crash SIGABRT [1] 2.3s`, `error 1 [2] 0.8s`, `hang [3] 60s (3 of 10 hang, 7 ok)`, `skip [a]`."""
    parts = [ending(cell)]
    if marks := notes.marks(cell):
        parts.append(marks)
    if cell.attempts and cell.outcome not in (Outcome.SKIP, Outcome.INFRA):
        parts.append(duration(cell.seconds))
    if len(cell.attempts) > 1:
        groups = tally(cell.attempts)
        parts.append(f"({counts(groups, brief=True)})" if len(groups) > 1 else f"({len(groups[0])} attempts)")
    return " ".join(parts)


def ending(ended: CellResult | RankResult) -> str:
    """`ok`, `crash SIGABRT`, `error 1`, `hang`: a hang's signal was our own."""
    if ended.outcome in (Outcome.CRASH, Outcome.OOM) and ended.signal:
        return f"{ended.outcome.value} {ended.signal}"
    if ended.outcome in (Outcome.ERROR, Outcome.OOM) and ended.exit_status is not None:
        return f"{ended.outcome.value} {ended.exit_status}"
    return ended.outcome.value


def verdict(cell: CellResult) -> str:
    """`as claimed`, `not as claimed`, `a different failure`, `no verdict on the claim`; empty where none was due."""
    if undecided(cell):
        return "no verdict on the claim"
    if cell.as_expected is False and cell.different_failure:
        return different(None)
    return {True: "as claimed", False: "not as claimed", None: ""}[cell.as_expected]


def undecided(cell: CellResult) -> bool:
    """Whether a cell ended in a way that could have decided its claim, and did not: a number or the HLO is missing."""
    ended = cell.outcome is Outcome.OK or cell.outcome.failed
    return bool(cell.attempts and cell.expected) and cell.as_expected is None and ended


def contradicts(cell: CellResult) -> bool:
    """Whether a cell is bad news: its claim is broken or, where nothing is claimed, it failed."""
    return cell.as_expected is False or unclaimed_failure(cell)


def unclaimed_failure(cell: CellResult) -> bool:
    """Whether a cell failed of which nothing is claimed: bad news, but no claim is broken."""
    return not cell.expected and cell.outcome.failed


def why(cell: CellResult) -> str:
    """The reason, without the parts that only say again what was claimed and what came."""
    reason = cell.reason
    if cell.signature is not None:
        reason = reason.replace(different(cell.signature), different(None))
    return reason.removesuffix(f"claimed {cell.expected}, was {cell.outcome.value}").removesuffix("; ")


def totals(cells: Sequence[CellResult]) -> str:
    """`22 cells: 14 crash, 4 ok, 4 skip; 18 as claimed, 4 without a verdict on the claim`."""
    found = Counter(cell.outcome for cell in cells)
    text = counted(len(cells), "cell")
    if found:
        text += ": " + ", ".join(f"{found[outcome]} {outcome.value}" for outcome in Outcome if found[outcome])
    claimed = [cell for cell in cells if cell.expected]
    judged = [cell.as_expected for cell in claimed]
    parts = [
        f"{judged.count(value)} {words}"
        for value, words in ((True, "as claimed"), (False, "not as claimed"), (None, "without a verdict on the claim"))
        if value in judged
    ]
    if failed := sum(map(unclaimed_failure, cells)):
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


def allowed(cells: Iterable[CellResult]) -> dict[int, int]:
    """How many cells have several attempts and nothing but ok, by the number of attempts, the largest first."""
    groups = [tally(cell.attempts) for cell in cells if cell.outcome is Outcome.OK and len(cell.attempts) > 1]
    sizes = Counter(len(group[0]) for group in groups if len(group) == 1 and len(group[0]) > 1)
    return dict(sorted(sizes.items(), reverse=True))


def counted(number: int, what: str) -> str:
    """`1 cell`, `2 cells`, `0 cells`."""
    return f"{number} {what}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """`1.2s`, `60s`, `12m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}m"


def size(amount: int) -> str:
    """`1.2 GiB`, `310 MiB`, `12 KiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if amount >= unit:
            return f"{amount / unit:.{1 if amount < 9.95 * unit else 0}f} {name}"
    return f"{amount / 1024:.0f} KiB"


def _kind(cell: CellResult, notes: Notes) -> tuple[Outcome, int | None]:
    return cell.outcome, notes.number(cell)


def _needs_reason(cell: CellResult) -> bool:
    """Whether the short form alone leaves the reader asking why."""
    if cell.outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE, Outcome.INFRA) or undecided(cell):
        return True
    return len(cell.attempts) > 1 and len(tally(cell.attempts)) > 1


def letters(place: int) -> str:
    """`a`, `b`, ..., `z`, `aa`, ... for 0, 1, ..."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
