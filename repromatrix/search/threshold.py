"""Where along a number the verdict changes: a coarse sweep, then bisection of each change, as a pure function.

`step` is given what was seen of values and says which to try next, all of them at once where that can be, or gives the
answer. Values without a verdict (the script fails otherwise there, or asks for a multiple of something) are gone round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from math import floor, isfinite, log10

from repromatrix.search.model import Verdict

Number = int | float

DETOUR = 24
"""Values without a verdict in one gap after which the gap is left as it is."""


@dataclass(frozen=True, slots=True)
class Range:
    """What is searched.

    Attributes:
        low, high: Ends; of integers the boundary is found exactly.
        known: Values to look at in any case, as those that a repro declares.
        sweep: Values looked at first, between the ends: powers of two (of floats, of ten) where the range spans many of
            them, else evenly spaced.
        resolution: Of floats, the distance of the two sides of a boundary relative to the larger one.
    """

    low: Number
    high: Number
    known: tuple[Number, ...] = ()
    sweep: int = 7
    resolution: float = 1e-3

    @property
    def whole(self) -> bool:
        """Whether it is one of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Two values between which the verdict changes.

    Attributes:
        below, above: The smaller and the larger one.
        fails_above: Whether `above` is the bad one.
        between: Values between them that were tried and have no verdict.
    """

    below: Number
    above: Number
    fails_above: bool
    between: tuple[Number, ...] = ()


@dataclass(frozen=True, slots=True)
class Values:
    """What to try next.

    Attributes:
        tries: Now; of the sweep, and of several changes, all that can be tried at once.
        phase: `sweep` or `bisect`.
        left: Tries after these, as far as that can be foretold.
    """

    tries: tuple[Number, ...]
    phase: str
    left: int


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search: every change of verdict, the smallest values first; none where no change was seen."""

    boundaries: tuple[Boundary, ...]


def step(space: Range, seen: Mapping[Number, Verdict], width: int = 1) -> Values | Found:
    """What to try next, or the answer.

    Args:
        seen: Of values that were tried; `AMBIGUOUS` and `UNKNOWN` say nothing.
        width: Values that can be tried at once.

    Raises:
        ValueError: The range is empty or not finite.
    """
    if not (isfinite(space.low) and isfinite(space.high) and space.low < space.high):
        raise ValueError(f"{space.low}..{space.high} is no range")
    first = [value for value in coarse(space) if value not in seen]
    if first:
        return Values(
            tuple(first[:width]), "sweep", max(0, len(first) - width) + _halvings(space, space.low, space.high)
        )
    gaps = list(_gaps(seen))
    wanted = [(low, high, _next(space, low, high, seen)) for low, high in gaps]
    open_gaps = [(low, high, value) for low, high, value in wanted if value is not None]
    if open_gaps:
        left = sum(_halvings(space, low, high) for low, high, _ in open_gaps)
        tries = tuple(value for _, _, value in open_gaps if value is not None)[:width]
        return Values(tries, "bisect", max(0, left - len(tries)))
    return Found(
        tuple(Boundary(low, high, seen[high] is Verdict.BAD, tuple(_within(low, high, seen))) for low, high in gaps)
    )


def coarse(space: Range) -> tuple[Number, ...]:
    """The values that are looked at first, the ends before all others, then from small to large."""
    low, high = space.low, space.high
    between = [value for value in _powers(space) if low < value < high]
    if len(between) < 3:
        parts = space.sweep + 1
        if space.whole:
            between = [int(low) + (int(high) - int(low)) * part // parts for part in range(1, parts)]
        else:
            between = [low + (high - low) * part / parts for part in range(1, parts)]
    elif len(between) > space.sweep:  # each of them would be a long search of its own
        between = [between[len(between) * part // space.sweep] for part in range(space.sweep)]
    inside = {value for value in (*between, *space.known) if low < value < high}
    return (low, high, *sorted(inside))


def _powers(space: Range) -> list[Number]:
    low, high = space.low, space.high
    if low < 0 or (low == 0 and not space.whole):
        return []
    if space.whole:
        return [1 << exponent for exponent in range(int(high).bit_length())]
    return [float(f"1e{exponent}") for exponent in range(floor(log10(low)), floor(log10(high)) + 1)]


def _gaps(seen: Mapping[Number, Verdict]) -> Iterator[tuple[Number, Number]]:
    """Neighbours of which one is good and one is bad."""
    told = sorted(value for value, verdict in seen.items() if verdict in (Verdict.GOOD, Verdict.BAD))
    return ((low, high) for low, high in pairwise(told) if seen[low] is not seen[high])


def _within(low: Number, high: Number, seen: Mapping[Number, Verdict]) -> list[Number]:
    return sorted(value for value in seen if low < value < high)


def _next(space: Range, low: Number, high: Number, seen: Mapping[Number, Verdict]) -> Number | None:
    """A value between `low` and `high` that was not tried; None where they are as near as they can be."""
    silent = len(_within(low, high, seen))
    if silent >= DETOUR or (not space.whole and high - low <= space.resolution * max(abs(low), abs(high))):
        return None
    choices = _round_integers(int(low), int(high)) if space.whole else _round_floats(low, high)
    return next((value for value in islice(choices, 64 * DETOUR) if value not in seen), None)


def _round_integers(low: int, high: int) -> Iterator[int]:
    """The integers between, multiples of high powers of two before others, and near the middle before others.

    A program often takes multiples of 8 or 128 alone; and the same values are met again in a search of another range.
    The first one lies in the middle half, so that each try takes away a quarter of the range at least.
    """
    unit = 1 << max(0, (high - low).bit_length() - 2)  # at most half of the range: one lies in its middle half
    given: set[int] = set()
    while unit:
        first, last = low // unit + 1, (high - 1) // unit
        middle = (low + high) / 2
        for value in sorted((unit * k for k in range(first, last + 1)), key=lambda value: (abs(value - middle), value)):
            if value not in given:
                given.add(value)
                yield value
        unit //= 2
        if len(given) > 64 * DETOUR:
            return


def _round_floats(low: Number, high: Number) -> Iterator[float]:
    """Numbers between, those with few digits before others."""
    given: set[float] = set()
    for digits in range(1, 18):
        for part in (8, 7, 9, 6, 10, 5, 11, 4, 12):  # sixteenths: the middle half, the middle first
            exact = low + (high - low) * part / 16
            value = float(f"{exact:.{digits - 1}e}")
            quarter = (high - low) / 4
            if low + quarter <= value <= high - quarter and value not in given:
                given.add(value)
                yield value


def _halvings(space: Range, low: Number, high: Number) -> int:
    """Tries that a bisection between these takes."""
    size = (high - low) if space.whole else (high - low) / (space.resolution * max(abs(low), abs(high)))
    return max(0, int(size) - 1).bit_length()
