"""What attempts mean: counts, the failure rate behind them, and how often a version must pass to count as good."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, lgamma, log, log1p, log2

from repromatrix.search.model import Rules, Sample, Seen, Verdict

FAILURES = 10
"""Failures by which a rate is known well enough. With f of them the exact lower bound (at 0.5 %) is 0.11 of the rate
for f = 3, 0.37 for 10, 0.52 for 20: f attempts for them and the passes that follow of the bound cost least near 10."""

ASTRAY = 0.1
"""A bad version is taken for good in so many cases at most while the search only narrows; see `Reading.lean`."""

FALSE_GOOD = 0.008
"""A bad version passes as often as a good one must with this probability at most, whatever the confidence asked for.
At a confidence of 0.8, half of the rest would be so much that the bad versions of one search used it up together."""

MISREAD = 0.1
"""Attempts that say the wrong thing, of all, where good versions may look bad too (`Rules.symmetric`)."""

NEVER = sys.maxsize
"""Passes that a version needs where no number of them is enough."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The attempts of one version, counted.

    Attributes:
        attempts: All, also those that say nothing.
        good, bad: Of these.
        further: Good and bad ones after the first bad one.
        failed: Bad ones among these. A version is only called bad because of its first failure, so that one says
            nothing of how often it fails: 1 of 1 is what a rate of 1 % looks like, too.
        refuted: It passed, and then failed.
    """

    attempts: int = 0
    good: int = 0
    bad: int = 0
    further: int = 0
    failed: int = 0
    refuted: bool = False

    @property
    def mixed(self) -> bool:
        return bool(self.good and self.bad)


def tally(samples: tuple[Sample, ...]) -> Tally:
    """Counts the attempts of one version, given in the order they ended."""
    good, bad = samples.count(Sample.GOOD), samples.count(Sample.BAD)
    if not bad:
        return Tally(len(samples), good)
    first = samples.index(Sample.BAD)
    later = samples[first + 1 :]
    further = len(later) - later.count(Sample.NOTHING)
    return Tally(len(samples), good, bad, further, bad - 1, Sample.GOOD in samples[:first])


@dataclass(frozen=True, slots=True)
class Reading:
    """How attempts are to be read, given all that were seen.

    Attributes:
        flaky: The failure comes and goes, as far as is known: a pass proves little.
        failed, further: Of all bad versions together, as in `Tally`.
        refuted: Versions that passed, and then failed.
        low: Least failure rate of a bad version that is reckoned with, from 0 to 1.
        passes: Without a failure, after which a version is good at the confidence asked for; may be `NEVER`.
        lean: Passes after which the search goes on as if the version were good. The good side of an edge is made sure
            of in the end in any case, so a wrong turn costs attempts and is no error; fewer passes of all other
            versions save more than that (mean of 150 searches for a failure of rate 0.6: 46 attempts in all, 60 with
            `passes` for each version).
        lead: Attempts by which one verdict must lead over the other, where good versions may look bad too.
    """

    flaky: bool
    failed: int
    further: int
    refuted: int
    low: float
    passes: int
    lean: int
    lead: int


def read(tallies: Iterable[Tally], rules: Rules, size: int) -> Reading:
    """How to read the attempts of a history.

    A failure that comes and goes: a bad version is called good by mistake if the lower bound of the failure rate is too
    high (probability: half of 1 - confidence at most) or if it passes `passes` times although it is not (the other half
    at most, and `FALSE_GOOD`). The bound is exact also because the counting stops at a number of failures and not of
    attempts: P(N <= n) for the f-th failure is P(at least f of n), which is what the bound is made of.

    Each bad version that a search meets has the second chance: with every one that passed and was refuted later, a good
    one must pass more often. And an edge may have been confirmed as certain before the failure was known to come and
    go. All these together stay below 1 - confidence, since both halves seldom go wrong at once: the exact sum over all
    ways that the counting may end is in tests/test_search_verdict.py.

    Args:
        tallies: Of every version that was tried.
        rules: How sure the answer must be.
        size: Versions in the history.
    """
    counted = list(tallies)
    failed, further = sum(each.failed for each in counted), sum(each.further for each in counted)
    refuted = sum(each.refuted for each in counted)
    repeats = rules.confidence > 0 and not rules.symmetric
    flaky = repeats and (rules.rate > 0 or any(each.mixed for each in counted))
    half = (1 - rules.confidence) / 2
    low, passes, lean = 1.0, 1, 1
    if flaky:
        low = max(rules.rate, lowest_rate(failed, further, half))
        passes = passes_needed(low, _pass_error(refuted, rules))
        likely = max(rules.rate, failed / further if further else 0.0)
        lean = min(passes, passes_needed(likely, ASTRAY), rules.most)
    return Reading(flaky, failed, further, refuted, low, passes, lean, _lead(rules, size))


def _pass_error(refuted: int, rules: Rules) -> float:
    """Probability, at most, with which a bad version may pass as often as a good one must."""
    return min((1 - rules.confidence) / 2, FALSE_GOOD) / (refuted + 1)


def rate_known(failed: int, further: int, refuted: int, rules: Rules) -> bool:
    """Whether so many attempts tell enough of the failure rate: counting on would not save as many passes.

    Not while more passes are needed than attempts are allowed: then counting on is all that can help.
    """
    half = (1 - rules.confidence) / 2
    passes = passes_needed(max(rules.rate, lowest_rate(failed, further, half)), _pass_error(refuted, rules))
    return passes <= FAILURES or (failed >= FAILURES and passes <= rules.most)


def edge_confidence(good: Tally, bad: Tally, rules: Rules, reading: Reading) -> float:
    """Probability, at least, that the verdict changes between these two, given that they were found side by side."""
    if rules.symmetric:
        odds = (1 - MISREAD) / MISREAD
        return (1 - 1 / (1 + odds ** (good.good - good.bad))) * (1 - 1 / (1 + odds ** (bad.bad - bad.good)))
    if not reading.flaky:
        return 0.0 if bad.mixed else 1 - agreement(bad.failed, good.good - 1)
    unsure = 0.0 if reading.low <= rules.rate else (1 - rules.confidence) / 2
    return max(0.0, 1 - unsure - (1 - reading.low) ** good.good)


def _lead(rules: Rules, size: int) -> int:
    """Wald's sequential test between MISREAD and 1 - MISREAD, whose error is MISREAD^lead odds.

    Each of the ceil(log2 size) + 2 versions of a bisection may go wrong, so each gets its part of 1 - confidence.
    """
    if rules.confidence <= 0:
        return 1
    error = (1 - rules.confidence) / (ceil(log2(max(2, size))) + 2)
    return max(1, ceil(log((1 - error) / error) / log((1 - MISREAD) / MISREAD) - 1e-9))


def verdict(counted: Tally, rules: Rules, reading: Reading) -> Verdict | None:
    """What the search takes a version for; None = more attempts are needed to say anything.

    A version that only passed is taken for good however few its passes are: whoever relies on it asks for more first.
    """
    if not counted.attempts:
        return None
    if not counted.good + counted.bad:
        return Verdict.UNKNOWN
    if not rules.symmetric:
        return Verdict.BAD if counted.bad else Verdict.GOOD
    if abs(counted.good - counted.bad) >= reading.lead:
        return Verdict.GOOD if counted.good > counted.bad else Verdict.BAD
    return Verdict.AMBIGUOUS if counted.attempts >= rules.most else None


def verdicts(seen: Seen, rules: Rules, size: int) -> dict[int, Verdict]:
    """What all attempts of each version mean together, for every version with a verdict.

    Where more passes are needed than attempts are allowed, no version is good: those that passed are ambiguous.
    """
    tallies = {place: tally(samples) for place, samples in seen.items()}
    reading = read(tallies.values(), rules, size)
    found = {place: verdict(counted, rules, reading) for place, counted in tallies.items()}
    passed = Verdict.GOOD if reading.passes <= rules.most else Verdict.AMBIGUOUS
    return {place: passed if said is Verdict.GOOD else said for place, said in sorted(found.items()) if said}


def passes_needed(rate: float, error: float) -> int:
    """Passes in a row that a version of this failure rate shows with probability `error` at most."""
    if not 0 < rate < 1:
        return 1 if rate else NEVER
    passes = log(error) / log1p(-rate)
    return max(1, ceil(passes - 1e-9)) if passes < NEVER else NEVER


def allowed_rates(reading: Reading, rules: Rules) -> tuple[float, float]:
    """(lowest, highest) failure rate of bad versions that the attempts allow; both 1 where none came and went."""
    if not reading.flaky:
        return 1.0, 1.0
    if not reading.further:
        return rules.rate, 1.0
    half = (1 - rules.confidence) / 2
    low, high = (
        lowest_rate(failed, reading.further, half) for failed in (reading.failed, reading.further - reading.failed)
    )
    return low, 1 - high


def agreement(failed: int, passed: int) -> float:
    """Probability, at most, of so many failures of one bad version and so many passes of another, at any failure rate.

    r^a (1-r)^b is greatest at r = a / (a + b).
    """
    both = failed + passed
    return exp(sum(count * log(count / both) for count in (failed, passed) if count))


@lru_cache(maxsize=4096)
def lowest_rate(count: int, of: int, error: float) -> float:
    """The rate below which `count` or more of `of` happen with probability `error` at most (Clopper and Pearson)."""
    if not count:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _at_least(count, of, middle) > error else (middle, high)
    return low


def _at_least(count: int, of: int, rate: float) -> float:
    """P(X >= count) for X binomial with 0 < rate < 1: of the two tails, the one with fewer terms is summed.

    Each term by its logarithm: taken from the one before, all would be 0 where the first is (0.5 to the 1100th).
    """
    if count > of / 2:
        return sum(_exactly(k, of, rate) for k in range(count, of + 1))
    return 1 - sum(_exactly(k, of, rate) for k in range(count))


def _exactly(count: int, of: int, rate: float) -> float:
    ways = lgamma(of + 1) - lgamma(count + 1) - lgamma(of - count + 1)
    return exp(ways + count * log(rate) + (of - count) * log1p(-rate))
