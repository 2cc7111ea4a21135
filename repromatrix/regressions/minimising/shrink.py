"""The searches of `invoke minimise`, one for each kind of difference, from the pure ones to cells and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.project import Project
from repromatrix.regressions.minimising.mixing import Mixing, mixing
from repromatrix.regressions.minimising.model import Item, Smallest, Threshold, Tried
from repromatrix.regressions.minimising.tries import Tries
from repromatrix.regressions.minimising.variants import (
    flags_of,
    marked,
    variables_of,
    with_flags,
    with_values,
    with_variables,
)
from repromatrix.regressions.told import enough
from repromatrix.results.combine import clip
from repromatrix.search import delta
from repromatrix.search import threshold as thresholds
from repromatrix.search.delta import Change
from repromatrix.search.model import Verdict
from repromatrix.search.threshold import Number, Range
from repromatrix.spec.model import Cell, Matrix, Outcome, word

Parts = list[Smallest | Threshold]
"""What was found, to which each search adds its own, also when it is interrupted."""

_LABEL = 60
"""Characters of the names in a line of progress."""


def in_good(failing: Cell, good: Lock) -> Cell:
    """The failing cell in the good environment, or in a mixture.

    It has the failing one's variables and deadline, which another environment's own cell may not have.
    """
    return marked(replace(failing, environment=good.environment), "mixed")


def check_good(tries: Tries, failing: Cell, good: Lock) -> None:
    """See that the good environment is good.

    Raises:
        UserError: It is not.
        InfraError: It could not be tried.
    """
    cell = in_good(failing, good)
    tries.given[good.environment] = good
    tries.decide([cell], {cell: f"all of {good.id}"})
    if tries.verdict(cell) is Verdict.GOOD:
        return
    result = tries.seen[cell].result
    if result.outcome is Outcome.INFRA:
        raise InfraError(f"it could not be run: {result.reason}", where=cell.id)
    raise UserError(
        f"{good.id} is not good: {tries.how(cell)}",
        hint="name an environment with --good in which the script ends well",
    )


def packages(project: Project, tries: Tries, failing: Cell, locks: tuple[Lock, Lock], width: int, parts: Parts) -> None:
    """The fewest wheels that make the failure when they are put into the good environment.

    Args:
        locks: Of the good environment and of the failing one, both seen to be so.

    Raises:
        UserError: The two cannot be mixed.
        KeyboardInterrupt, InfraError: See `Tries.decide`.
    """
    mixed = mixing(*locks, WheelStore(project.store))
    items = tuple(
        Item(one.name, one.first.version if one.first else "", one.second.version if one.second else "")
        for one in mixed.changes
    )

    def variant(change: Change) -> Cell:
        lock = mixed.mixture(map(str, change))
        tries.given[lock.environment] = lock
        if len(change) == len(mixed.changes):
            return failing
        return in_good(failing, lock)

    search = _Search(tries, "packages", items, mixed.groups, variant, mixed)
    search.run(width, parts)


def flags(tries: Tries, failing: Cell, width: int, parts: Parts) -> None:
    """The fewest XLA flags with which it still fails; raises as `packages`."""
    items = flags_of(failing)
    groups = [(item.name,) for item in items]
    _Search(tries, "flags", items, groups, lambda kept: with_flags(failing, kept)).run(width, parts)


def variables(tries: Tries, failing: Cell, width: int, parts: Parts) -> None:
    """The fewest variables with which it still fails; raises as `packages`."""
    items = variables_of(failing)
    groups = [(item.name,) for item in items]
    _Search(tries, "env", items, groups, lambda kept: with_variables(failing, kept)).run(width, parts)


class _Search:
    """One search for the smallest part of a difference.

    Args:
        variant: The cell of a change.
        mixed: Of packages.
    """

    def __init__(
        self,
        tries: Tries,
        what: str,
        items: tuple[Item, ...],
        groups: Sequence[Sequence[str]],
        variant: Callable[[Change], Cell],
        mixed: Mixing | None = None,
    ) -> None:
        self.tries, self.what, self.items, self.groups, self.mixed = tries, what, items, groups, mixed
        self.variant = variant
        self.cells: dict[Change, Cell] = {}
        """In the order in which they were tried."""
        self.names: dict[Cell, str] = {}

    def run(self, width: int, parts: Parts) -> None:
        try:
            found = self._found(width)
        except KeyboardInterrupt:
            parts.append(self._part((), "interrupted"))
            raise
        parts.append(found)

    def _found(self, width: int) -> Smallest:
        while True:
            now = delta.step(self.groups, self._verdicts(), width)
            if isinstance(now, delta.Minimal):
                change = now.change
                rest = [change - {item} for item in change]
                good = [self.cells[one] for one in rest if self.tries.verdict(self.cells[one]) is Verdict.GOOD]
                if self.tries.sure(self.cells[change], good, self.names):
                    return self._part(change)
            else:
                for change in now.tries:
                    self.cells.setdefault(change, self.variant(change))
                    self.names.setdefault(self.cells[change], self._label(change))
                self.tries.decide([self.cells[change] for change in now.tries], self.names)
                self._tell(now.tries, width)

    def _verdicts(self) -> dict[Change, Verdict]:
        """Of those that have one; what comes and goes can lose it, until it was tried more often."""
        told = ((change, self.tries.verdict(cell)) for change, cell in self.cells.items())
        return {change: verdict for change, verdict in told if verdict is not None}

    def _tell(self, tried: Sequence[Change], width: int) -> None:
        """A line for each variant that was just tried."""
        now = delta.step(self.groups, self._verdicts(), width)
        where = ""
        if isinstance(now, delta.Trial):
            left = f"; about {now.left + 1} more to try"
            where = f"   at most {len(now.smallest)} of {len(self.items)} needed{left}"
        for change in tried:
            self.tries.listener.note(f"{self._label(change)}  {self.tries.how(self.cells[change])}{where}")

    def _label(self, change: Change) -> str:
        size = len(self.items)
        named = f" ({clip(', '.join(self._names(change)), _LABEL)})" if 0 < len(change) < size else ""
        return f"{self.what}: {len(change)} of {size}{named}"

    def _names(self, change: Change) -> tuple[str, ...]:
        return tuple(item.name for item in self.items if item.name in change)

    def _part(self, change: Change | tuple[()], trouble: str = "") -> Smallest:
        found: Change = frozenset(change)
        known = [each for each, cell in self.cells.items() if cell in self.tries.seen]
        rest = {name: found - {name} for name in self._names(found)}
        sure = {
            name: self.tries.confidence(self.cells[found], self.cells[each])
            for name, each in rest.items()
            if self.tries.verdict(self.cells[each]) in (Verdict.GOOD, Verdict.AMBIGUOUS)
        }
        unsure = {rest[name] for name, share in sure.items() if not enough(share, self.tries.rules)}
        return Smallest(
            what=self.what,
            items=self.items,
            needed=self._names(found),
            without={name: self._tried(each, unsure) for name, each in rest.items()},
            confidence=sure,
            path=tuple(self._tried(each, unsure) for each in known),
            good=self.mixed.good.id if self.mixed is not None else "",
            trouble=trouble,
            contradictions=self._contradictions(found),
        )

    def _tried(self, change: Change, unsure: Collection[Change]) -> Tried:
        against = clip("; ".join(self._contradictions(change)), 400)
        return self.tries.tried(self.cells[change], self._names(change), against, unsure=change in unsure)

    def _contradictions(self, change: Change) -> tuple[str, ...]:
        return self.mixed.contradictions(self.mixed.mixture(map(str, change))) if self.mixed is not None else ()


def threshold(
    tries: Tries,
    matrix: Matrix,
    failing: Cell,
    where: tuple[str, Range],
    engine: str,
    width: int,
    parts: Parts,
) -> None:
    """Where along a parameter the verdict changes; raises as `packages`."""
    param, space = where
    cells: dict[Number, Cell] = {}
    names: dict[Cell, str] = {}

    def verdicts() -> dict[Number, Verdict]:
        told = ((value, tries.verdict(cell)) for value, cell in cells.items())
        return {value: verdict for value, verdict in told if verdict is not None}

    def part(found: thresholds.Found, trouble: str = "") -> Threshold:
        rows = sorted(value for value, cell in cells.items() if cell in tries.seen)
        confidence = [tries.confidence(*sides(one)) for one in found.boundaries]
        unsure = {
            sides(one)[1]
            for one, share in zip(found.boundaries, confidence, strict=True)
            if not enough(share, tries.rules)
        }
        tried = tuple(
            (value, tries.tried(cells[value], (word(value),), unsure=cells[value] in unsure)) for value in rows
        )
        return Threshold(param, space.low, space.high, found.boundaries, tuple(confidence), tried, trouble)

    def sides(boundary: thresholds.Boundary) -> tuple[Cell, Cell]:
        """(the bad one, the good one)"""
        below, above = cells[boundary.below], cells[boundary.above]
        return (above, below) if boundary.fails_above else (below, above)

    def sure(boundary: thresholds.Boundary) -> bool:
        bad, good = sides(boundary)
        return tries.sure(bad, [good], names)

    try:
        while True:
            now = thresholds.step(space, verdicts(), width)
            if isinstance(now, thresholds.Found):
                if all(map(sure, now.boundaries)):
                    parts.append(part(now))
                    return
                continue
            made = with_values(matrix, failing, param, [value for value in now.tries if value not in cells], engine)
            cells |= made
            names |= {cell: f"{param}={word(value)}" for value, cell in made.items()}
            tries.decide([cells[value] for value in now.tries], names)
            for value in now.tries:
                left = f"   about {now.left} more to try" if now.left else ""
                tries.listener.note(f"{param}={word(value)}  {tries.how(cells[value])}{left}")
    except KeyboardInterrupt:
        parts.append(part(thresholds.Found(()), "interrupted"))
        raise
