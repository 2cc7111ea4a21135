"""The data of a search along a history: what was seen, what to try next, what is found.

A history is a row of versions, oldest first, spoken of by their places 0, 1, 2, ... What the versions are, and how one
is tried, is the caller's. Places that say nothing (they cannot be built, fail otherwise, prove nothing) never steer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

Seen = Mapping[int, "tuple[Sample, ...]"]
"""What the attempts of each place said, in the order they ended; a place that was never tried is absent."""


class Sample(StrEnum):
    """What one attempt says of its version."""

    GOOD = "good"
    BAD = "bad"
    """The failure that is looked for, by its signature."""
    NOTHING = "nothing"
    """Another failure, a skip, no proof, no such environment, or the machine's fault."""


class Verdict(StrEnum):
    """What all attempts of a version mean together."""

    GOOD = "good"
    BAD = "bad"
    AMBIGUOUS = "ambiguous"
    """As many attempts as are allowed do not tell at the confidence asked for."""
    UNKNOWN = "unknown"
    """It was tried and says nothing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How sure an answer must be.

    Attributes:
        confidence: Least probability that an edge is where the answer says. At 0 nothing is confirmed.
        rate: Least failure rate of a bad version to reckon with, 0 to 1. 0 = a failure is taken to be certain until an
            attempt shows otherwise; the edges are then confirmed, see `confirmations`.
        most: Attempts of one version at most.
        symmetric: Attempts of good versions may look bad too, as with a noisy metric; else one bad attempt proves a
            version bad.
    """

    confidence: float = 0.99
    rate: float = 0.0
    most: int = 50
    symmetric: bool = False

    @property
    def confirmations(self) -> int:
        """Further attempts at an edge, on both sides together, that must agree with the first.

        A failure of rate r, seen as certain until then, passes unseen through a further failures on the one side and b
        passes on the other with probability r^a (1-r)^b, at most 2^-(a+b) for a = b: so this many bring the probability
        of a wrong edge below 1 - confidence, whatever r is.
        """
        return ceil(log2(1 / (1 - self.confidence))) if self.confidence > 0 else 0


@dataclass(frozen=True, slots=True)
class History:
    """What is searched.

    Attributes:
        size: Versions.
        sweep: Places looked at first, whatever the ends are, so that a change and its return are both seen.
        ends: What the oldest and the newest version are said to be; None = nothing is said.
        stable: Per place a number that belongs to the version whatever the range is (its place among all releases):
            of equally good places to try, the one whose number is divisible by the highest power of two is taken, so
            that searches over other ranges meet the same versions. Empty = the places themselves.
    """

    size: int
    sweep: tuple[int, ...] = ()
    ends: tuple[Verdict | None, Verdict | None] = (None, None)
    stable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Try:
    """To be run now: so many further attempts of one version."""

    place: int
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next.

    Attributes:
        tries: What to run now, all at once where that can be.
        soon: Places that a later step may ask for, the likeliest first: worth making ready meanwhile.
        phase: `end`, `sweep`, `bisect`, `confirm` or `rate` (a failure that comes and goes is counted).
        left: Versions still to be tried after these, as far as that can be foretold.
        bounds: Places between which the search goes on; the oldest and the newest where there are several edges.
    """

    tries: tuple[Try, ...]
    soon: tuple[int, ...]
    phase: str
    left: int
    bounds: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Edge:
    """Two versions between which the verdict changes.

    Attributes:
        before, after: Places; nothing between them has a verdict.
        becomes: What the newer one is, `GOOD` or `BAD`.
        between: Places between them that are unknown or ambiguous.
        confidence: Probability, at least, that the change is here, from 0 to 1.
    """

    before: int
    after: int
    becomes: Verdict
    between: tuple[int, ...]
    confidence: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a search.

    Attributes:
        edges: Oldest first; none where no change was seen.
        verdicts: Of every place that was tried.
        rate: (lowest, highest) failure rate of bad versions that the attempts allow; both 1 where none came and went.
        refused: Why there is no search: an end is not what it is said to be, or has no verdict. Empty = there was one.
        refused_at: The place that `refused` speaks of, as the subject of its sentence; None = of none.
        passes: Passes without a failure after which a version counts as good, 0 = no number is enough. Where it is more
            than `Rules.most`, no version does: those that passed are `AMBIGUOUS`.
    """

    edges: tuple[Edge, ...]
    verdicts: Mapping[int, Verdict]
    rate: tuple[float, float] = (1.0, 1.0)
    refused: str = ""
    refused_at: int | None = None
    passes: int = 1
