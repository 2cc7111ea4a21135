"""A step: what of all that is wanted runs at once, how much is left after it, and what may be needed soon."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

from repromatrix.search import midpoint
from repromatrix.search.model import Answer, Sample, Seen, Step, Try
from repromatrix.search.view import View, Wish

_Followed = tuple[Seen, Step]


def make(view: View, wishes: Iterable[Wish], phase: str, bounds: tuple[int, int], room: int = 0) -> Step:
    """The step that runs as many of the wishes as fit, the first ones first; without what may be needed soon.

    Args:
        room: Attempts that it may have; 0 = as many as can run at once.
    """
    room = room or view.width
    tries: dict[int, int] = {}
    for place, attempts in wishes:
        if room and place not in tries:
            tries[place] = min(attempts, room)
            room -= tries[place]
    chosen = tuple(Try(place, attempts) for place, attempts in tries.items())
    return Step(chosen, (), phase, _left(view, bounds, set(tries)), bounds)


def _left(view: View, bounds: tuple[int, int], trying: set[int]) -> int:
    """Versions still to be tried after these: of the ends and the sweep, and to close the gaps that are known."""
    ends = dict(zip((0, view.history.size - 1), view.history.ends, strict=True))
    known = {place: said for place, said in view.verdicts.items() if view.steers(place)}
    known |= {place: claim for place, claim in ends.items() if claim}
    certain = {
        place
        for place in {*ends, *view.history.sweep} - trying
        if bounds[0] <= place <= bounds[1] and not view.tally(place).attempts
    }
    left, told = len(certain), sorted(view.verdicts)
    for low, high in pairwise(sorted(known)):
        if known[low] is not known[high]:
            cuts = [low, *sorted(place for place in certain | trying if low < place < high), high]
            longest = max(b - a - 1 - (bisect_left(told, b) - bisect_right(told, a)) for a, b in pairwise(cuts))
            left += min(longest, midpoint.rounds(longest, view.width) * view.width)
    return left


def soon(view: View, now: Step, plan: Callable[[Seen], Step | Answer]) -> tuple[int, ...]:
    """Places that the next step and the one after may ask for, found by imagining what the tries say.

    First those of the next step, the ones that come whatever is said before the others; then the sweep, which comes in
    any case; then the step after that; last those of the next step if the tries say nothing.

    Args:
        view: What was seen.
        now: The step that runs.
        plan: The step after what was seen and imagined.
    """

    def follow(seen: Seen, outcomes: Iterable[dict[int, Sample]]) -> list[_Followed]:
        found: list[_Followed] = []
        for outcome in outcomes:
            imagined = dict(seen)
            for place, sample in outcome.items():
                # As often as it takes to believe it: what is wanted are the places after these.
                once = sample is not Sample.GOOD and not view.rules.symmetric
                imagined[place] = (*seen.get(place, ()), *[sample] * (1 if once else view.rules.most))
            following = plan(imagined)
            if isinstance(following, Step):
                found.append((imagined, following))
        return found

    def places(steps: Iterable[_Followed]) -> list[int]:
        return [place for place, _ in Counter(each.place for _, step in steps for each in step.tries).most_common()]

    trying = {each.place for each in now.tries}
    following = follow(view.seen, _outcomes(now))
    sweep = [place for place in view.history.sweep if not view.tally(place).attempts]
    after = [each for seen, step in following for each in follow(seen, _outcomes(step))]
    nothing = follow(view.seen, [dict.fromkeys(trying, Sample.NOTHING)])
    order = (*places(following), *sweep, *places(after), *places(nothing))
    return tuple(place for place in dict.fromkeys(order) if place not in trying)


def _outcomes(now: Step) -> list[dict[int, Sample]]:
    """What the tries may say if each gets a verdict, and one change at most lies among them, this way or that."""
    places = sorted(each.place for each in now.tries)
    return [
        dict.fromkeys(places[:cut], older) | dict.fromkeys(places[cut:], newer)
        for older, newer in ((Sample.GOOD, Sample.BAD), (Sample.BAD, Sample.GOOD))
        for cut in range(len(places))
    ]
