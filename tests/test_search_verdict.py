from __future__ import annotations

from math import ceil, comb, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.search.model import Rules, Sample, Verdict
from repromatrix.search.verdict import (
    NEVER,
    Tally,
    agreement,
    allowed_rates,
    lowest_rate,
    passes_needed,
    rate_known,
    read,
    tally,
    verdict,
    verdicts,
)

GOOD, BAD, NOTHING = Sample.GOOD, Sample.BAD, Sample.NOTHING
SAMPLES = {"g": GOOD, "b": BAD, "n": NOTHING}


def seen(text: str) -> tuple[Sample, ...]:
    return tuple(SAMPLES[letter] for letter in text)


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        # Clopper-Pearson, 95 %, of Newcombe, Statistics in Medicine 17 (1998), table I, method 5.
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ],
)
def test_published_bounds(count: int, of: int, low: float, high: float) -> None:
    assert lowest_rate(count, of, 0.025) == pytest.approx(low, abs=5e-5)
    assert 1 - lowest_rate(of - count, of, 0.025) == pytest.approx(high, abs=5e-5)


@settings(deadline=None)
@given(
    st.integers(1, 120).flatmap(lambda of: st.tuples(st.integers(1, of), st.just(of))), st.sampled_from([0.1, 0.005])
)
def test_a_lower_bound_is_where_so_many_failures_are_just_too_improbable(seen: tuple[int, int], error: float) -> None:
    count, of = seen
    low = lowest_rate(count, of, error)
    tail = sum(comb(of, k) * low**k * (1 - low) ** (of - k) for k in range(count, of + 1))
    assert tail == pytest.approx(error, rel=1e-6)
    assert low <= count / of


@pytest.mark.parametrize(("count", "quantile"), [(1, 0.0050), (3, 0.3379), (10, 3.7169), (20, 10.3533)])
def test_bounds_of_many_attempts_are_those_of_poisson(count: int, quantile: float) -> None:
    """Half the 0.5 % quantiles of chi-squared with 2 `count` degrees of freedom."""
    assert lowest_rate(count, 100_000, 0.005) * 100_000 == pytest.approx(quantile, rel=0.01)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(1e-6, 0.5))
def test_so_many_passes_are_needed_and_no_more(rate: float, error: float) -> None:
    passes = passes_needed(rate, error)
    assert (1 - rate) ** passes <= error * (1 + 1e-6)
    assert passes == 1 or (1 - rate) ** (passes - 1) > error * (1 - 1e-6)


def test_passes_at_the_ends_of_all_rates() -> None:
    assert passes_needed(0.0, 0.01) == NEVER
    assert passes_needed(5e-324, 0.01) == NEVER
    assert passes_needed(1.0, 0.01) == 1


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30))
def test_agreement_is_the_greatest_probability_over_all_rates(failed: int, passed: int) -> None:
    rates = [index / 1000 for index in range(1001)]
    greatest = max(rate**failed * (1 - rate) ** passed for rate in rates)
    assert greatest <= agreement(failed, passed) * (1 + 1e-9)
    assert greatest == pytest.approx(agreement(failed, passed), rel=0.01)


def test_a_first_failure_does_not_count_for_the_rate() -> None:
    assert tally(seen("ggbgnb")) == Tally(attempts=6, good=3, bad=2, further=2, failed=1, refuted=True)
    assert tally(seen("b")) == Tally(attempts=1, bad=1)
    assert tally(seen("gnn")) == Tally(attempts=3, good=1)
    assert tally(()) == Tally()


@pytest.mark.parametrize(
    ("samples", "said"),
    [("", None), ("n", Verdict.UNKNOWN), ("nng", Verdict.GOOD), ("nb", Verdict.BAD), ("gggb", Verdict.BAD)],
)
def test_one_failure_proves_a_version_bad(samples: str, said: Verdict | None) -> None:
    counted = tally(seen(samples))
    assert verdict(counted, Rules(), read([counted], Rules(), 9)) is said


def test_a_pass_is_enough_until_a_failure_came_and_went() -> None:
    certain = {0: seen("g"), 1: seen("b"), 2: seen("nn")}
    assert verdicts(certain, Rules(), 3) == {0: Verdict.GOOD, 1: Verdict.BAD, 2: Verdict.UNKNOWN}
    flaky = {**certain, 1: seen("b" + ("g" * 9 + "b") * 10)}
    reading = read([tally(samples) for samples in flaky.values()], Rules(), 3)
    assert (reading.failed, reading.further) == (10, 100)
    assert reading.passes == passes_needed(lowest_rate(10, 100, 0.005), 0.005) == 137
    assert verdicts(flaky, Rules(most=136), 3)[0] is Verdict.AMBIGUOUS
    assert verdicts(flaky, Rules(most=137), 3)[0] is Verdict.GOOD
    low, high = allowed_rates(reading, Rules())
    assert low == pytest.approx(0.0382, abs=1e-4)
    assert high == pytest.approx(0.2020, abs=1e-4)


def test_a_vouched_rate_is_reckoned_with_from_the_start() -> None:
    reading = read([], Rules(rate=0.1), 9)
    assert reading.flaky
    assert reading.passes == passes_needed(0.1, 0.005) == 51
    assert reading.lean < reading.passes


def test_each_refuted_version_asks_for_more_passes() -> None:
    """The more bad versions passed for a while, the likelier one of them passes as often as a good one must."""
    passes = [read([tally(seen("gb"))] * refuted, Rules(rate=0.1), 9).passes for refuted in range(5)]
    assert passes == [passes_needed(0.1, 0.005 / (refuted + 1)) for refuted in range(5)]
    assert passes == sorted(set(passes))


def test_a_noisy_metric_needs_a_lead() -> None:
    rules = Rules(symmetric=True, most=9)
    reading = read([], rules, 30)
    assert reading.lead == 3
    for samples, said in (
        ("gg", None),
        ("ggg", Verdict.GOOD),
        ("gbbnbb", Verdict.BAD),
        ("gbgbgbgbg", Verdict.AMBIGUOUS),
        ("n", Verdict.UNKNOWN),
    ):
        assert verdict(tally(seen(samples)), rules, reading) is said, samples


def chance_of_a_false_good(rate: float, rules: Rules) -> float:
    """That a bad version of this rate passes as often as is asked for: exact, over all ways that the counting ends."""
    ways, wrong = {(0, 0): 1.0}, 0.0
    while ways:
        after: dict[tuple[int, int], float] = {}
        for (failed, further), chance in ways.items():
            if rate_known(failed, further, 0, rules) or further >= rules.most - 1:
                counted = Tally(further + 1, further - failed, failed + 1, further, failed)
                passes = read([counted, Tally(attempts=2, good=1, bad=1)], rules, 300).passes
                wrong += chance * (1 - rate) ** passes if passes <= rules.most else 0.0
                continue
            for fails, share in ((1, rate), (0, 1 - rate)):
                state = (failed + fails, further + 1)
                after[state] = after.get(state, 0.0) + chance * share
        ways = after
    return wrong


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("most", [20, 50, 100])
def test_both_ways_to_a_wrong_edge_together_stay_below_the_error(confidence: float, most: int) -> None:
    """A wrong edge is confirmed as certain, or one of the bad versions that a search meets is called good later on."""
    rules = Rules(confidence=confidence, most=most)
    failed = passed = 0
    while agreement(failed, passed) > 1 - confidence:
        passed, failed = (passed + 1, failed) if passed <= failed else (passed, failed + 1)
    assert failed + passed <= rules.confirmations + 1
    met = ceil(log2(300)) + 1
    worst = 0.0
    for rate in (index / 25 for index in range(1, 25)):
        as_certain = rate**failed * (1 - rate) ** passed
        # It takes a bad version that passes at its first attempt to be there at all.
        once = 1 - rate**met
        worst = max(worst, once * as_certain + (1 - once * as_certain) * met * chance_of_a_false_good(rate, rules))
    print(f"confidence {confidence}, {most} attempts: {worst:.2g}")
    assert worst <= 1 - confidence
