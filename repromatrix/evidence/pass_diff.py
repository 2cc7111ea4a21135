"""How the pass pipelines of two versions differ."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repromatrix.evidence.passes import ModulePasses, Step

_SHOWN = 4
"""Passes that `PassChange.words` names at most; a moved pass may have changed sides with a hundred."""


@dataclass(frozen=True, slots=True)
class PassChange:
    """One pass that differs.

    Attributes:
        kind: `added`, `removed` or `moved`.
        name: As the version that runs it writes it; of a moved pass, as the second does.
        pipeline: The pipeline it is in; of a moved pass, in the second version.
        where: Where it stands in that version: `after rename_fusions`.
        side: Of a moved pass: it is now `after` or `before` those of `crossed`; empty where it only changed pipelines.
        crossed: Passes, nearest first, that a moved pass changed sides with, and that run once in either version.
    """

    kind: str
    name: str
    pipeline: str
    where: str
    side: str = ""
    crossed: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """For people: `autotuner: after b, c, was before them`, `sort-rewriter: in optimization, after dce`."""
        if not self.crossed:
            return f"{self.name}: {self.where}"
        more = len(self.crossed) - _SHOWN
        names = ", ".join(self.crossed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"{self.name}: {self.side} {names}, was {self._other_side} {'it' if len(self.crossed) == 1 else 'them'}"

    def against(self, other: str) -> str:
        """`autotuner: after async-stream-attribute-wrapper, was before it`; empty if it did not change sides."""
        match = next((name for name in self.crossed if pass_key(name) == pass_key(other)), None)
        return f"{self.name}: {self.side} {match}, was {self._other_side} it" if match else ""

    @property
    def _other_side(self) -> str:
        return "before" if self.side == "after" else "after"


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    pipeline: str

    @property
    def key(self) -> str:
        """A pipeline of the top never is a pass of the same name: 0.10.2 runs `autotuner` in `autotuner`."""
        return pass_key(self.name) if self.pipeline else f"pipeline {pass_key(self.name)}"


def pass_key(name: str) -> str:
    """What names are compared by: 0.4.30 says `CallInliner`, 0.5.3 `call-inliner`; file names have no blanks."""
    return re.sub(r"[^a-z0-9]", "", name.lower()) or name


def pipeline_diff(a: ModulePasses, b: ModulePasses) -> tuple[PassChange, ...]:
    """What differs from `a` to `b`: passes moved, added and removed, each in the order they run.

    A pass counts once for each place it stands in, however often its pipeline was repeated. A pass that stands in both
    and that the longest common subsequence of the two leaves out has moved.
    """
    left, right = list(_places(a.pipelines)), list(_places(b.pipelines))
    pairs = common([one.key for one in left], [one.key for one in right])
    old = [place for place in range(len(left)) if place not in {pair[0] for pair in pairs}]
    new = [place for place in range(len(right)) if place not in {pair[1] for pair in pairs}]
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for place in old:
        waiting[left[place].key].append(place)
    moved, added = [], []
    for place in new:
        one = right[place]
        if sources := waiting[one.key]:
            sides = _move(left, right, pairs, sources.pop(0), place)
            moved.append(PassChange("moved", one.name, one.pipeline, _where(right, place), *sides))
        else:
            added.append(PassChange("added", one.name, one.pipeline, _where(right, place)))
    gone = sorted(place for places in waiting.values() for place in places)
    removed = [PassChange("removed", left[at].name, left[at].pipeline, _where(left, at)) for at in gone]
    return (*moved, *added, *removed)


def _places(steps: Sequence[Step], pipeline: str = "") -> Iterator[_Place]:
    for step in steps:
        yield _Place(step.name, pipeline)
        yield from _places(step.inner, step.name)


def common(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """The longest common subsequence, as pairs of places, in order (Hunt and Szymanski 1977)."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(b):
        places[name].append(place)
    ends: list[int] = []  # the smallest last place in b of a common subsequence of each length
    chains: list[tuple[int, int, int]] = []  # (place in a, place in b, previous chain)
    tails: list[int] = []
    for at, name in enumerate(a):
        for place in reversed(places[name]):
            length = bisect_left(ends, place)
            chains.append((at, place, tails[length - 1] if length else -1))
            if length == len(ends):
                ends.append(place)
                tails.append(len(chains) - 1)
            else:
                ends[length] = place
                tails[length] = len(chains) - 1
    pairs = []
    chain = tails[-1] if tails else -1
    while chain >= 0:
        at, place, chain = chains[chain]
        pairs.append((at, place))
    return pairs[::-1]


def _move(
    left: list[_Place], right: list[_Place], pairs: list[tuple[int, int]], old: int, new: int
) -> tuple[str, tuple[str, ...]]:
    """(side, passes) that `right[new]` changed sides with."""
    left_counts, right_counts = (Counter(one.key for one in places) for places in (left, right))

    def names(passed: list[tuple[int, int]]) -> tuple[str, ...]:
        places = (right[pair[1]] for pair in passed)
        once = (one.name for one in places if one.pipeline and left_counts[one.key] == right_counts[one.key] == 1)
        return tuple(once)

    if later := names([pair for pair in reversed(pairs) if pair[0] > old and pair[1] < new]):
        return "after", later
    if earlier := names([pair for pair in pairs if pair[0] < old and pair[1] > new]):
        return "before", earlier
    return "", ()


def _where(places: list[_Place], at: int) -> str:
    one = places[at]
    if at == 0:
        return "first of all"
    before = places[at - 1]
    if not one.pipeline:
        return f"after {before.pipeline or before.name}"
    if before.pipeline != one.pipeline and before.name == one.pipeline:
        return f"first in {one.pipeline}"
    return f"in {one.pipeline}, after {before.name}"
