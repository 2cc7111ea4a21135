from __future__ import annotations

from itertools import pairwise
from math import ceil, log, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.search.midpoint import clear, rounds, split


@settings(deadline=None)
@given(st.integers(1, 2_000), st.integers(0, 500), st.integers(1, 9))
def test_no_part_needs_more_rounds_than_an_even_split(count: int, offset: int, ways: int) -> None:
    places = range(offset, offset + count)
    chosen = split(places, (), ways)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(ways, count)
    parts = [high - low - 1 for low, high in pairwise([offset - 1, *chosen, offset + count])]
    assert 1 + max(rounds(part, len(chosen)) for part in parts) == rounds(count, len(chosen))


@settings(deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 8))
def test_rounds_is_a_logarithm(places: int, ways: int) -> None:
    needed = rounds(places, ways)
    assert (ways + 1) ** needed >= places + 1
    assert not needed or (ways + 1) ** (needed - 1) < places + 1
    assert rounds(places) == ceil(log2(places + 1))


@pytest.mark.parametrize(
    ("places", "numbers", "chosen"),
    [
        (range(1, 8), (), 4),  # seven places leave no choice
        (range(1, 7), (), 4),
        (range(10, 16), (), 12),
        (range(9, 40), (), 24),
        (range(9, 41), (), 32),  # 32 to one side of 0: five rounds more, as with the middle
        (range(1, 3), (0, 6, 8), 2),
        (range(1, 3), (0, 8, 6), 1),
        (range(4), (), 0),  # 0 is divided by every power
    ],
)
def test_the_number_divided_by_the_highest_power_of_two_is_taken(
    places: range, numbers: tuple[int, ...], chosen: int
) -> None:
    assert split(places, numbers) == [chosen]


def test_of_equals_the_one_nearest_to_an_even_split_is_taken() -> None:
    assert split(range(1, 12), [1] * 20) == [6]
    assert split(range(1, 12), [1] * 20, ways=3) == [3, 6, 9]


def found(start: int, end: int, edge: int, *, plain: bool) -> set[int]:
    """Places that a bisection from a good `start` to a bad `end` meets, without the two."""
    met = set()
    while end - start > 1:
        middle = (start + end) // 2 if plain else split(range(start + 1, end), ())[0]
        met.add(middle)
        start, end = (start, middle) if middle >= edge else (middle, end)
    return met


def test_other_ranges_meet_the_same_versions() -> None:
    """Ranges to the same newest version, each from another oldest one: how many versions two of them have in common."""
    common = {True: 0, False: 0}
    pairs = 0
    for end in range(30, 90, 7):
        for start, other in pairwise(range(0, end - 12, 5)):
            for edge in range(other + 1, end, 3):
                pairs += 1
                for plain in common:
                    common[plain] += len(found(start, end, edge, plain=plain) & found(other, end, edge, plain=plain))
    stable, middle = common[False] / pairs, common[True] / pairs
    print(f"{pairs} pairs of ranges: {stable:.2f} versions in common, {middle:.2f} with the plain middle")
    assert stable > 1.5 * middle


def test_a_run_casts_a_shadow_that_grows_with_it() -> None:
    def passed_over(*skipped: int) -> list[int]:
        untried = [place for place in range(40) if place not in skipped]
        return sorted({*untried} - {*clear(untried, skipped)})

    assert passed_over(20) == []
    assert passed_over(20, 21) == [19, 22]
    assert passed_over(20, 21, 23) == [18, 19, 22, 24, 25]  # one that was passed over belongs to the run
    assert passed_over(20, 22) == [19, 21, 23]
    assert passed_over(20, 23) == []
    assert passed_over(5, 6, 20, 21) == [4, 7, 19, 22]
    assert clear([1, 2], {0, 3}) == [1, 2]
    assert clear([2], {0, 1, 3, 4}) == []


@pytest.mark.parametrize("length", [1, 2, 4, 10, 30, 60, 120])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_broken_run_is_left_behind_in_about_a_logarithm_of_its_length(length: int, share: float) -> None:
    """From a place in it, the nearest place that is clear of what was skipped, until one is not in the run."""
    run = range(500, 500 + length)
    start = run[int(length * share)]
    skipped: set[int] = set()
    place = start
    while place in run:
        skipped.add(place)
        place = min(clear([each for each in range(1000) if each not in skipped], skipped), key=lambda p: abs(p - start))
    print(f"{length} broken: {len(skipped)} tried")
    assert len(skipped) <= 2 + log(length, 1.5)
