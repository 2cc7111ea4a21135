"""The search for changes of verdict along a history, as a function of what was seen.

`step` is called again and again with more seen. It remembers nothing, so a search that was killed goes on where it was,
and what earlier searches saw counts. It goes through these phases, and back where an attempt contradicts former ones:

`end`      the two ends, since a search between ends that are not what they are said to be finds nothing
`rate`     where the failure comes and goes: how often a bad version fails
`sweep`    the places that are looked at in any case
`bisect`   every two neighbours that differ, until no untried place is left between them
`confirm`  both sides of each edge. A failure seen as certain so far: until sides that pass or fail by chance would have
           disagreed with their first attempts, whatever the rate is. A failure that comes and goes: until the good side
           has passed so often that a bad version would not have (`verdict.read` says why that is enough)

All bad versions of a history are taken to fail at the same rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from repromatrix.search import midpoint, steps
from repromatrix.search.ends import ends
from repromatrix.search.model import Answer, Edge, History, Rules, Sample, Seen, Step, Verdict
from repromatrix.search.verdict import (
    NEVER,
    agreement,
    allowed_rates,
    edge_confidence,
    rate_known,
    verdicts,
)
from repromatrix.search.view import View, Wish, look


def step(history: History, seen: Seen, rules: Rules, width: int = 1, *, foresee: bool = True) -> Step | Answer:
    """What to try next, or the answer, given all that was seen.

    Args:
        history: The versions.
        seen: Of each place, what its attempts said, in the order they ended; also those of earlier searches.
        rules: How sure the answer must be.
        width: Attempts that can run at once. A step asks for more only while a rate is counted, where none is in vain.
        foresee: Whether to say what may be needed soon, which takes ten times as long as the step itself.

    Raises:
        ValueError: The history is empty, or `width` is below 1.
    """
    if history.size < 1 or width < 1:
        raise ValueError(f"a history of {history.size} versions, tried {width} at once")
    view = look(history, seen, rules, width)
    now = _next(view)
    if isinstance(now, Answer) or not foresee:
        return now
    return replace(now, soon=steps.soon(view, now, lambda imagined: _next(look(history, imagined, rules, width))))


def search(
    history: History, attempt: Callable[[int], Sample], rules: Rules, width: int = 1, kept: Seen | None = None
) -> Answer:
    """The whole search, with a function that tries a place once.

    Args:
        history, rules, width: As for `step`.
        attempt: Tries a place, and says what came of it.
        kept: What earlier searches saw.

    Raises:
        ValueError: As `step` does; and whatever `attempt` raises.
    """
    seen = dict(kept or {})
    while isinstance(now := step(history, seen, rules, width, foresee=False), Step):
        for each in now.tries:
            for _ in range(each.attempts):
                seen[each.place] = (*seen.get(each.place, ()), attempt(each.place))
    return now


def _next(view: View) -> Step | Answer:
    """The next step, without what may be needed soon."""
    wishes: list[Wish] = []
    sides = ends(view)
    for side in sides:
        if side.refused and not wishes:
            return replace(_answer(view), refused=side.refused, refused_at=side.at)
        wishes += [side.wish] if side.wish else []
    if wishes:
        return steps.make(view, wishes, "end", (0, view.history.size - 1))
    first, last = sorted(side.place for side in sides)
    if wish := _rate(view):
        return steps.make(view, [wish], "rate", (first, last), room=wish[1])
    if wishes := list(_sweep(view, first, last)):
        return steps.make(view, wishes, "sweep", (first, last))
    gaps = _gaps(view, first, last)
    if wide := [gap for gap in gaps if gap.untried]:
        return steps.make(view, _bisect(view, wide), "bisect", (wide[0].low, wide[-1].high))
    if wishes := list(_confirm(view, gaps, first, last)):
        return steps.make(view, wishes, "confirm", (gaps[0].low, gaps[-1].high) if gaps else (first, last))
    return _answer(view, gaps)


def _rate(view: View) -> Wish | None:
    """Further attempts of a bad version that tell how often it fails: as many as must all fail to be enough."""
    bad = [place for place, said in view.verdicts.items() if said is Verdict.BAD]
    if not (view.reading.flaky and bad):
        return None
    place = max(bad, key=lambda place: (view.tally(place).attempts, place))
    room = view.rules.most - view.tally(place).attempts
    seen = view.reading

    def known(more: int) -> bool:
        return rate_known(seen.failed + more, seen.further + more, seen.refuted, view.rules)

    more = bisect_left(range(room), True, key=known)
    return (place, more) if more > 0 else None


def _sweep(view: View, first: int, last: int) -> Iterator[Wish]:
    """What the sweep still lacks, the middle first, so that it has covered the range evenly whenever it is stopped."""
    for place in _middle_out([place for place in sorted(view.history.sweep) if first < place < last]):
        if view.open(place):
            yield view.opening(place)
        elif view.good(place) and (more := view.passes(place, view.reading.lean)):
            yield place, more


def _middle_out(places: Sequence[int]) -> Iterator[int]:
    parts = [places]
    for part in parts:  # grows meanwhile
        if part:
            middle = len(part) // 2
            yield part[middle]
            parts += [part[:middle], part[middle + 1 :]]


@dataclass(frozen=True, slots=True)
class _Gap:
    """Two neighbours among the good and bad versions that differ; an edge once nothing between them is untried."""

    low: int
    high: int
    good: int
    bad: int
    untried: tuple[int, ...]


def _gaps(view: View, first: int, last: int) -> list[_Gap]:
    found = []
    for low, high in pairwise(
        place for place in sorted(view.verdicts) if first <= place <= last and view.steers(place)
    ):
        if view.verdicts[low] is not view.verdicts[high]:
            good, bad = (low, high) if view.good(low) else (high, low)
            found.append(_Gap(low, high, good, bad, tuple(filter(view.open, range(low + 1, high)))))
    return found


def _bisect(view: View, gaps: Sequence[_Gap]) -> Iterator[Wish]:
    """What narrows the gaps, the widest first: so many places that all attempts that can run at once have their use."""
    room = view.width
    ways: dict[_Gap, int] = {}
    for gap in sorted(gaps, key=lambda gap: -len(gap.untried)):
        if wish := _begun(view, gap):
            yield wish
            room -= wish[1]
        else:
            ways[gap] = 0
    for _ in range(room):
        if rest := [gap for gap in ways if ways[gap] < len(gap.untried)]:
            ways[max(rest, key=lambda gap: len(gap.untried) / (ways[gap] + 1))] += 1
    for gap in filter(ways.get, ways):
        skipped = [place for place in range(gap.low + 1, gap.high) if not view.open(place)]
        places = midpoint.promising(gap.untried, skipped)
        yield from map(view.opening, midpoint.split(places, view.history.stable, ways[gap]))


def _begun(view: View, gap: _Gap) -> Wish | None:
    """Attempts that a version that was tried needs before the gap can be narrowed.

    The good side must have passed often enough to go by it. A version that is said to be good is believed till the end.
    """
    said = dict(zip((0, view.history.size - 1), view.history.ends, strict=True))
    if said.get(gap.good) is not Verdict.GOOD and (more := view.passes(gap.good, view.reading.lean)):
        return gap.good, more
    return next((view.opening(place) for place in gap.untried if view.tally(place).attempts), None)


def _confirm(view: View, edges: Sequence[_Gap], first: int, last: int) -> Iterator[Wish]:
    """What the edges lack for the confidence asked for; without an edge, what all that passed lack to be good."""
    if view.rules.symmetric:
        return
    if view.reading.flaky:
        for place in [edge.good for edge in edges] or filter(view.good, range(first, last + 1)):
            if more := view.passes(place, view.reading.passes):
                yield place, more
        return
    for edge in edges:
        passed, failed = view.tally(edge.good).good - 1, view.tally(edge.bad).failed
        more_of: Counter[int] = Counter()
        while agreement(failed + more_of[edge.bad], passed + more_of[edge.good]) > 1 - view.rules.confidence:
            # The fewer there are on one side, the less those on the other say.
            side = edge.good if passed + more_of[edge.good] <= failed + more_of[edge.bad] else edge.bad
            if view.tally(side).attempts + more_of[side] >= view.rules.most:
                break
            more_of[side] += 1
        yield from more_of.items()


def _answer(view: View, edges: Sequence[_Gap] = ()) -> Answer:
    """Edges whose good side could not be made sure of are none: it is ambiguous."""
    reading = view.reading
    sure = [edge for edge in edges if not reading.flaky or view.tally(edge.good).good >= reading.passes]
    return Answer(
        edges=tuple(
            Edge(
                before=edge.low,
                after=edge.high,
                becomes=view.verdicts[edge.high],
                between=tuple(range(edge.low + 1, edge.high)),
                confidence=edge_confidence(view.tally(edge.good), view.tally(edge.bad), view.rules, reading),
            )
            for edge in sure
        ),
        verdicts=verdicts(view.seen, view.rules, view.history.size),
        rate=allowed_rates(reading, view.rules),
        passes=0 if reading.passes == NEVER else reading.passes,
    )
