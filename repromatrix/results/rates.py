"""How often: what a count out of several attempts says of the rate behind it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from repromatrix.spec.model import Outcome

Z = 1.959964
"""Of a two-sided 95 % interval: the 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often one way to end was seen.

    Attributes:
        title: Of its signature; empty where it has none.
        count: Attempts that ended so.
        of: Attempts that count: all but those that ended as infra, where there are others.
        low: Lower end of a 95 % interval (Wilson's) for the rate behind `count` of `of`, from 0 to 1.
        high: Its upper end.
    """

    outcome: Outcome
    title: str
    count: int
    of: int
    low: float
    high: float


def interval(count: int, of: int) -> tuple[float, float]:
    """A 95 % interval for the rate behind `count` of `of`, by Wilson's score.

    It holds its level for few trials and rates near 0 and 1, where the usual `p ± z·sqrt(p(1-p)/n)` is far too short
    (0 of 10 would prove a rate of 0): Brown, Cai and DasGupta, "Interval Estimation for a Binomial Proportion",
    Statistical Science 16 (2001), recommend it for n up to 40. Of E. B. Wilson, J. Am. Stat. Assoc. 22 (1927).

    Raises:
        ValueError: `count` is not within 0 and `of`, or `of` is 0.
    """
    if not 0 <= count <= of or of == 0:
        raise ValueError(f"{count} of {of} is no rate")
    rate, square = count / of, Z * Z
    middle = (rate + square / (2 * of)) / (1 + square / of)
    half = Z / (1 + square / of) * sqrt(rate * (1 - rate) / of + square / (4 * of * of))
    # At 0 and `of` one end is exactly 0 or 1; floating point may miss it by 1e-17 and leave the range.
    low = 0.0 if count == 0 else max(0.0, middle - half)
    high = 1.0 if count == of else min(1.0, middle + half)
    return low, high


def percent(rate: float) -> str:
    """`28 %`; below 1 % and above 99 % with as many digits as keep it from reading 0 or 100."""
    if rate in (0.0, 1.0):
        return f"{rate:.0%}".replace("%", " %")
    digits = next(digits for digits in range(12) if 0 < round(rate, digits + 2) < 1 or digits == 11)
    return f"{100 * rate:.{digits}f} %"
