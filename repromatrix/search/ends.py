"""Where a search begins and ends, and whether the ends are what they are said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repromatrix.search import midpoint
from repromatrix.search.model import Rules, Verdict
from repromatrix.search.verdict import Tally
from repromatrix.search.view import View, Wish


@dataclass(frozen=True, slots=True)
class End:
    """Where an end is, or what must be tried to tell, or why there is none.

    Attributes:
        place: The outermost one with a verdict.
        wish: What must be tried first, or None.
        refused, at: As in `Answer`.
    """

    place: int = 0
    wish: Wish | None = None
    refused: str = ""
    at: int | None = None


def ends(view: View) -> tuple[End, End]:
    """Both ends.

    The one that is said to be bad is the first, as what it shows is what the search looks for; one of which nothing is
    said is the last, as it refutes nothing.
    """
    size, (oldest, newest) = view.history.size, view.history.ends
    first, last = _end(view, oldest, range(size), "oldest"), _end(view, newest, range(size)[::-1], "newest")
    order = (Verdict.BAD, Verdict.GOOD, None)
    return (first, last) if order.index(oldest) < order.index(newest) else (last, first)


def _end(view: View, claim: Verdict | None, inward: Sequence[int], name: str) -> End:
    """One end: the place nearest to it that has a verdict, but for such as were passed over in a run that says nothing.

    Args:
        claim: What the end is said to be.
        inward: All places from this end on.
        name: Which end it is.
    """
    reached = next((place for place in inward if view.steers(place)), None)
    outside = inward if reached is None else inward[: inward.index(reached)]
    untried = [place for place in outside if view.open(place)]
    skipped = [place for place in outside if not view.open(place)]
    if nearest := midpoint.clear(untried, skipped) or (untried if reached is None else []):
        return End(wish=view.opening(nearest[0]))
    if reached is None:
        return End(refused="no version has a verdict")
    if claim in (None, view.verdicts[reached]):
        return End(reached)
    # A failure that comes and goes may have stayed away.
    if claim is Verdict.BAD and not view.rules.symmetric and (more := view.passes(reached, _passes_to_refuse(view))):
        return End(wish=(reached, more))
    if untried:
        return End(wish=view.opening(untried[0]))
    who = f"is said to be {claim}"
    if outside:
        who = f"is the {name} version with a verdict, where a {claim} one is said to be,"
    return End(refused=f"{who} and {_contradiction(claim, view.tally(reached), view.rules)}", at=reached)


def _passes_to_refuse(view: View) -> int:
    return max(view.rules.confirmations, view.reading.passes if view.reading.flaky else 0)


def _contradiction(claim: Verdict, counted: Tally, rules: Rules) -> str:
    """What the attempts show instead, and which failure rate they exclude."""
    of = counted.good + counted.bad
    if claim is Verdict.GOOD:
        return f"failed in {counted.bad} of {_attempts(of)}"
    said = f"was ok in {counted.good} of {_attempts(of)}"
    if rules.symmetric or rules.confidence <= 0:
        return said
    excluded = 1 - (1 - rules.confidence) ** (1 / counted.good)
    longer = f"--rate {min(0.05, rules.rate / 2 or 1):g}" if counted.attempts < rules.most else f"--attempts {4 * of}"
    return f"{said}: it fails less often than {100 * excluded:.2g} % or not at all; {longer} repeats longer"


def _attempts(number: int) -> str:
    return f"{number} attempt{'s' * (number != 1)}"
