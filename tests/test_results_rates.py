from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.results.rates import interval, percent


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3, gives these ends to four digits.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(count: int, of: int, low: float, high: float) -> None:
    assert interval(count, of) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2_000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_an_interval_is_within_0_and_1_and_holds_what_was_seen(seen: tuple[int, int]) -> None:
    count, of = seen
    low, high = interval(count, of)
    assert 0 <= low <= count / of <= high <= 1
    assert (low == 0) == (count == 0)
    assert (high == 1) == (count == of)
    assert interval(of - count, of) == pytest.approx((1 - high, 1 - low))


def test_more_attempts_say_more() -> None:
    widths = [high - low for low, high in (interval(n, 4 * n) for n in (1, 2, 10, 100, 10_000))]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.01


@pytest.mark.parametrize(("count", "of"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_rate(count: int, of: int) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        interval(count, of)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.2775, "28 %"),
        (0.0051, "1 %"),
        (0.0049, "0.5 %"),
        (0.99994, "99.99 %"),
        (0.996, "99.6 %"),
        (0.000004, "0.0004 %"),
    ],
)
def test_a_percentage_never_claims_never_or_always(rate: float, text: str) -> None:
    assert percent(rate) == text
