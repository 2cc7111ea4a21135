"""Thresholds against thousands of made-up numbers: one boundary, several, values that say nothing, floats."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repromatrix.search.model import Verdict
from repromatrix.search.threshold import DETOUR, Boundary, Found, Number, Range, Values, coarse, step

Oracle = Callable[[Number], Verdict]


def search(space: Range, oracle: Oracle, width: int = 1) -> tuple[tuple[Boundary, ...], dict[Number, Verdict]]:
    seen: dict[Number, Verdict] = {}
    while isinstance(now := step(space, seen, width), Values):
        assert 1 <= len(now.tries) <= width
        assert not set(now.tries) & seen.keys(), "nothing is tried twice"
        assert all(space.low <= value <= space.high for value in now.tries)
        assert len(seen) < 2000
        seen |= {value: oracle(value) for value in now.tries}
    assert isinstance(now, Found)
    return now.boundaries, seen


def above(limit: Number) -> Oracle:
    return lambda value: Verdict.BAD if value > limit else Verdict.GOOD


@given(st.integers(-10_000, 10_000), st.integers(1, 2**24), st.floats(0, 0.999), st.booleans())
@settings(max_examples=600)
def test_an_integer_boundary_is_found_exactly(low: int, size: int, part: float, turned: bool) -> None:
    limit = low + int(size * part)

    def oracle(value: Number) -> Verdict:
        return Verdict.BAD if (value > limit) is not turned else Verdict.GOOD

    found, seen = search(Range(low, low + size), oracle)
    assert found == (Boundary(limit, limit + 1, not turned),)
    assert len(seen) <= 9 + 2.5 * size.bit_length()


def test_a_boundary_at_a_power_of_two_takes_the_tries_of_a_bisection() -> None:
    found, seen = search(Range(1, 65_536), above(1024))
    assert found == (Boundary(1024, 1025, True),)
    assert len(seen) <= 9 + 14


@given(st.integers(1, 2000), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=400)
def test_several_boundaries_that_the_sweep_sees_are_all_found(low: int, seed: int, width: int) -> None:
    dice = random.Random(seed)
    space = Range(low, low + dice.randint(200, 100_000))
    points = sorted(coarse(space))
    changes = sorted(dice.sample(range(len(points) - 1), dice.randint(1, 4)))
    limits = [dice.randrange(int(points[place]), int(points[place + 1])) for place in changes]

    def oracle(value: Number) -> Verdict:
        return Verdict.BAD if sum(value > limit for limit in limits) % 2 else Verdict.GOOD

    found, _ = search(space, oracle, width)
    assert [(one.below, one.above) for one in found] == [(limit, limit + 1) for limit in limits]
    assert [one.fails_above for one in found] == [place % 2 == 0 for place in range(len(limits))]


@given(st.sampled_from([2, 4, 8, 16, 128]), st.integers(0, 2**32))
@settings(max_examples=200)
def test_a_program_that_takes_multiples_alone(unit: int, seed: int) -> None:
    dice = random.Random(seed)
    high = unit * dice.randint(64, 4096)
    limit = unit * dice.randint(1, high // unit - 1)

    def oracle(value: Number) -> Verdict:
        return Verdict.UNKNOWN if value % unit else above(limit)(value)

    found, seen = search(Range(unit, high), oracle)
    assert len(found) == 1
    assert (found[0].below, found[0].above, found[0].fails_above) == (limit, limit + unit, True)
    assert all(found[0].below < value < found[0].above for value in found[0].between)
    assert len(found[0].between) == min(unit - 1, DETOUR)
    assert len(seen) <= 12 + 2.5 * high.bit_length() + DETOUR


@given(st.integers(0, 2**32), st.floats(0, 0.6), st.integers(1, 3))
@settings(max_examples=500)
def test_silence_never_makes_a_boundary_that_is_not_there(seed: int, share: float, width: int) -> None:
    dice = random.Random(seed)
    low = dice.randint(-500, 500)
    space = Range(low, low + dice.randint(1, 3000))
    limits = sorted(dice.sample(range(int(space.low) - 5, int(space.high) + 5), dice.randint(1, 3)))
    silent: dict[Number, bool] = {}

    def truth(value: Number) -> Verdict:
        return Verdict.BAD if sum(value > limit for limit in limits) % 2 else Verdict.GOOD

    def oracle(value: Number) -> Verdict:
        if silent.setdefault(value, dice.random() < share):
            return dice.choice((Verdict.UNKNOWN, Verdict.AMBIGUOUS))
        return truth(value)

    found, seen = search(space, oracle, width)
    for one in found:
        assert seen[one.below] is truth(one.below)
        assert seen[one.above] is truth(one.above)
        assert {seen[one.below], seen[one.above]} == {Verdict.GOOD, Verdict.BAD}
        assert one.fails_above == (seen[one.above] is Verdict.BAD)
        assert all(seen[value] in (Verdict.UNKNOWN, Verdict.AMBIGUOUS) for value in one.between)
        assert any(one.below <= limit < one.above for limit in limits)
        # All between were asked, or as many as a gap is worth.
        assert len(one.between) == min(DETOUR, one.above - one.below - 1) or len(one.between) >= DETOUR


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0.001, 0.999))
@settings(max_examples=500)
def test_a_float_boundary_is_found_to_the_resolution(low: float, size: float, part: float) -> None:
    high, limit = low + size, low + size * part
    assume(low < limit < high)
    space = Range(low, high)
    found, seen = search(space, above(limit))
    assert len(found) == 1
    one = found[0]
    assert one.below <= limit < one.above
    assert one.above - one.below <= space.resolution * max(abs(one.below), abs(one.above))
    assert len(seen) < 80


def test_floats_are_round_and_span_decades() -> None:
    assert coarse(Range(1e-4, 1.0))[2:] == (1e-3, 1e-2, 1e-1)
    found, seen = search(Range(1e-4, 1.0, resolution=0.05), above(0.0237))
    assert found[0].below <= 0.0237 < found[0].above
    assert max(len(f"{value:g}") for value in seen) <= 6, sorted(seen)


@pytest.mark.parametrize(
    ("space", "points"),
    [
        (Range(1, 4096), (1, 4096, 2, 4, 16, 32, 128, 256, 1024)),
        (Range(100, 108), (100, 108, 101, 102, 103, 104, 105, 106, 107)),
        (Range(0, 80), (0, 80, 1, 2, 4, 8, 16, 32, 64)),
        (Range(-8, 8), (-8, 8, -6, -4, -2, 0, 2, 4, 6)),
        (Range(1, 2), (1, 2)),
        (Range(1000, 1800, known=(1024, 1500)), (1000, 1800, 1024, 1100, 1200, 1300, 1400, 1500, 1600, 1700)),
        (Range(0.0, 1.0, sweep=3), (0.0, 1.0, 0.25, 0.5, 0.75)),
    ],
)
def test_what_is_looked_at_first(space: Range, points: tuple[Number, ...]) -> None:
    assert coarse(space) == points


@pytest.mark.parametrize("verdict", list(Verdict))
def test_without_a_change_there_is_no_boundary(verdict: Verdict) -> None:
    found, seen = search(Range(1, 64), lambda _: verdict)
    assert found == ()
    assert set(seen) == set(coarse(Range(1, 64)))


@given(st.integers(0, 2**32), st.integers(0, 20))
@settings(max_examples=100)
def test_a_killed_search_goes_on_where_it_was(seed: int, after: int) -> None:
    dice = random.Random(seed)
    space = Range(1, dice.randint(100, 100_000))
    oracle = above(dice.randint(1, int(space.high) - 1))
    whole, seen = search(space, oracle)
    kept = dict(list(seen.items())[:after])
    asked: list[Number] = []
    while isinstance(now := step(space, kept), Values):
        asked += now.tries
        kept |= {value: oracle(value) for value in now.tries}
    assert now.boundaries == whole
    assert asked == list(seen)[after:]


@pytest.mark.parametrize(("low", "high"), [(2, 2), (3, 2), (0.0, float("inf")), (float("nan"), 1.0)])
def test_what_is_no_range(low: Number, high: Number) -> None:
    with pytest.raises(ValueError, match="no range"):
        step(Range(low, high), {})
