"""What the reports of a bisection and of a minimisation say in the same words."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor

from repromatrix.regressions.model import Spent
from repromatrix.report.escape import prose
from repromatrix.report.layout import counted, duration
from repromatrix.results.combine import clip
from repromatrix.search.model import Rules

_ROUNDING = 1e-9
"""What floating point may take from a probability."""


def share(confidence: float) -> str:
    """A probability as a percentage, never rounded up: `99 %`, `99.2 %`."""
    return f"{floor(1000 * confidence + _ROUNDING) / 10:.1f}".removesuffix(".0") + " %"


def sure(confidence: float) -> str:
    """`at least 99.2 % sure`, or `not confirmed` where nothing is known of it."""
    return f"at least {share(confidence)} sure" if confidence > 0 else "not confirmed"


def attempts_spent(total: int, made: int) -> str:
    """`12 attempts (4 of them known before)`.

    Args:
        made: By this search.
    """
    known = f" ({total - made} of them known before)" if total > made else ""
    return f"{counted(total, 'attempt')}{known}"


def time_spent(spent: Spent) -> str:
    """`5m: 3m running, 2m waiting for environments`."""
    whole, running, waiting = map(duration, (spent.total, spent.running, spent.waiting))
    return f"{whole}: {running} running, {waiting} waiting for environments"


def enough(confidence: float, rules: Rules) -> bool:
    """Whether an answer is as sure as it was asked to be."""
    return confidence + _ROUNDING >= rules.confidence


def host(facts: Iterable[tuple[str, str]]) -> str:
    """Markdown: the machine, by what reports show of it; empty where nothing is known."""
    told = "; ".join(f"{prose(name)} {prose(clip(value, 200))}" for name, value in facts)
    return f"On a host with {told}." if told else ""
