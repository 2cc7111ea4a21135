"""Which versions between two others to try: few rounds in the worst case, the same ones in every range, around gaps."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def clear(untried: Sequence[int], skipped: Collection[int]) -> list[int]:
    """The places that do not lie beside a run of skipped ones, in their order; there may be none.

    A version that says nothing often stands in a run of its like (60 nightlies broken by one commit). So beyond a run
    of length L as many as L // 2 places are left out at first: a run is left behind in about log L tries, and a single
    one costs no more than a step to its neighbour. What was left out belongs to the run: two runs are one where no more
    places lie between them than the longer one has.
    """
    runs: list[tuple[int, int]] = []
    for place in sorted(skipped):
        runs.append((place, place))
        while len(runs) > 1 and runs[-1][0] - runs[-2][1] - 1 <= max(map(_length, runs[-2:])):
            runs[-2:] = [(runs[-2][0], runs[-1][1])]
    dark = [(run[0] - _length(run) // 2, run[1] + _length(run) // 2) for run in runs]
    return [place for place in untried if not any(low <= place <= high for low, high in dark)]


def promising(untried: Sequence[int], skipped: Collection[int]) -> Sequence[int]:
    """The places to choose from, in order, where others beside them say nothing: never none unless all were tried.

    Where every place is too near to a run that says nothing, those outside of all runs come before those within.
    """
    older = [place for place in untried if place < min(skipped, default=0)]
    newer = [place for place in untried if place > max(skipped, default=0)]
    return clear(untried, skipped) or max(older, newer, key=len) or untried


def _length(run: tuple[int, int]) -> int:
    return run[1] - run[0] + 1


def rounds(places: int, ways: int = 1) -> int:
    """Rounds of `ways` tries each that find a change before, after or between so many untried places."""
    needed, reach = 0, 1
    while reach < places + 1:
        needed, reach = needed + 1, reach * (ways + 1)
    return needed


def split(places: Sequence[int], numbers: Sequence[int], ways: int = 1) -> list[int]:
    """Up to `ways` of the places, that leave the least number of rounds in the worst case.

    Which of these is free to choose as long as no part needs more rounds than are left. Taken is the one whose number
    is divisible by the highest power of two, so that searches over other ranges meet the same versions; then the one
    nearest to an even split.

    Args:
        places: Untried, in order, none empty.
        numbers: Per place of the history, its number whatever the range is; empty = the place itself.
        ways: Places wanted.
    """
    count, ways = len(places), min(ways, len(places))
    longest = (ways + 1) ** (rounds(count, ways) - 1)
    chosen: list[int] = []
    last = -1
    for way in range(1, ways + 1):
        even = (count + 1) * way / (ways + 1) - 1
        first = max(last + 1, count - (ways + 1 - way) * longest)
        beyond = min(last + longest, count - (ways + 1 - way))

        def worth(index: int, even: float = even) -> tuple[int, float]:
            place = places[index]
            return -_twos(numbers[place] if numbers else place), abs(index - even)

        last = min(range(first, beyond + 1), key=worth)
        chosen.append(places[last])
    return chosen


def _twos(number: int) -> int:
    """How often 2 divides the number; 0 is divided by every power."""
    return (number & -number).bit_length() if number else 64
