"""The smallest part of a difference that makes the failure: delta debugging, as a pure function of what was tried.

Between something good and something bad lies a set of changed items. A *change* is a subset of them, put into the good
one, and has a verdict. `step` says what to try next, all of it at once where that can be, or gives the answer: a change
that is bad and 1-minimal, which is that without any one of its items it is not bad, as far as is known.

First prefixes of the items are halved: the least prefix that is bad ends with an item that matters, which is kept while
those before it are halved again, until what was kept is bad alone. One item at fault among n is found by log2(n) + 1
tries, k that are needed together by k times as many. What remains goes through `ddmin` (Zeller and Hildebrandt,
"Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on Software Engineering 28 (2002), section 3.2),
which asks nothing of the verdicts: changes may be bad apart and good together, or say nothing at all.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from repromatrix.search.model import Verdict

Change = frozenset[Hashable]
"""The items that are changed, of all that could be."""

Tried = Mapping[Change, Verdict]
"""What is known of changes. `UNKNOWN` and `AMBIGUOUS` count alike: not known to be bad."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Trial:
    """What to do next.

    Attributes:
        tries: What to try now; the first is needed, the others probably are.
        soon: What a later step may ask for.
        phase: `end`, `halve` (prefixes of the items), or `reduce` (ddmin; its last round takes each item away).
        left: Tries still to be made after the first, as far as that can be foretold.
        smallest: The smallest change known to be bad.
    """

    tries: tuple[Change, ...]
    soon: tuple[Change, ...]
    phase: str
    left: int
    smallest: Change


@dataclass(frozen=True, slots=True)
class Minimal:
    """The end of a search.

    Attributes:
        change: The items that make the failure together; empty where it is bad with nothing changed.
        unproven: Those of them without which nothing can be said: whether they are needed is not known.
        refused: Why there is no search; empty = there was one.
    """

    change: Change
    unproven: Change = frozenset()
    refused: str = ""


_Search = Generator[Trial, None, _T]
"""Yields what it needs next, and is resumed when that is known."""


def step(groups: Sequence[Iterable[Hashable]], tried: Tried, width: int = 1) -> Trial | Minimal:
    """What to try next, or the answer. The same `tried` gives the same step, whoever tried it and when.

    Args:
        groups: The changed items, each in one group, in the order in which they are halved. Those of a group are moved
            together first, and apart only where the group turns out to matter.
        tried: Of changes that were tried.
        width: Changes that can be tried at once.

    Raises:
        ValueError: A group is empty, or an item is in two.
    """
    wholes = [frozenset(group) for group in groups]
    if not all(wholes) or sum(map(len, wholes)) != len(_union(wholes)):
        raise ValueError("each item must be in one group, and no group may be empty")
    search = _search(wholes, [tuple(group) for group in groups], tried)
    while True:
        try:
            wanted = next(search)
        except StopIteration as end:
            found: Minimal = end.value
            return found
        if wanted.tries[0] not in tried:
            unknown = [one for one in dict.fromkeys((*wanted.tries, *wanted.soon)) if one not in tried]
            return replace(wanted, tries=tuple(unknown[:width]), soon=tuple(unknown[width:]))


def _search(wholes: list[Change], members: list[tuple[Hashable, ...]], tried: Tried) -> _Search[Minimal]:
    nothing, everything = frozenset[Hashable](), _union(wholes)
    left = len(wholes).bit_length() + 1
    yield Trial((everything,), (nothing,), "end", left + 1, everything)
    if tried[everything] is not Verdict.BAD:
        return Minimal(nothing, refused="with everything changed it is not bad")
    yield Trial((nothing,), (), "end", left, everything)
    if tried[nothing] is Verdict.BAD:
        return Minimal(nothing)
    kept = yield from _reduced(wholes, tried)
    if any(len(whole) > 1 for whole in kept):
        apart = [frozenset({item}) for group in members for item in group if item in _union(kept)]
        kept = yield from _reduced(apart, tried)
    change = _union(kept)
    return Minimal(change, frozenset(item for item in change if tried[change - {item}] is not Verdict.GOOD))


def _reduced(chunks: list[Change], tried: Tried) -> _Search[list[Change]]:
    """Chunks, together bad, of which none can be taken away. Of a single one that is so as nothing is not bad."""
    kept = yield from _halved(chunks, tried)
    return (yield from _ddmin(kept, tried))


def _halved(chunks: list[Change], tried: Tried) -> _Search[list[Change]]:
    """Chunks, together bad, each of which ended a least prefix that was bad."""
    kept: list[Change] = []
    rest = chunks
    while rest:
        base = _union(kept)
        if kept:
            guess = _middles(base, rest, 0, len(rest))
            yield Trial((base,), guess, "halve", 0, base | _union(rest))
            if tried[base] is Verdict.BAD:
                break
        low, high = 0, len(rest)  # prefixes: `low` is not bad, `high` is
        while high - low > 1:
            ahead = _middles(base, rest, low, high)
            left = (high - low - 1).bit_length()
            yield Trial(ahead[:1], ahead[1:], "halve", left, base | _union(rest[:high]))
            middle = (low + high) // 2
            if tried[ahead[0]] is Verdict.BAD:
                high = middle
            else:
                low = middle
        kept = [rest[high - 1], *kept]
        rest = rest[: high - 1]
    return kept


def _middles(base: Change, rest: Sequence[Change], low: int, high: int) -> tuple[Change, ...]:
    """The middle prefix between two, then those that follow from it, whatever its verdict is: two levels more."""
    spans, found = [(low, high)], []
    for _ in range(7):
        if not spans:
            break
        low, high = spans.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            found.append(base | _union(rest[:middle]))
            spans += [(low, middle), (middle, high)]
    return tuple(found)


def _ddmin(chunks: list[Change], tried: Tried) -> _Search[list[Change]]:
    """The algorithm of the paper: parts alone, then all but one part, then smaller parts."""
    parts = 2
    while len(chunks) > 1:
        size = len(chunks)
        split = [chunks[size * i // parts : size * (i + 1) // parts] for i in range(parts)]
        alone = [(part, 2) for part in split]
        without = [([chunk for chunk in chunks if chunk not in part], max(parts - 1, 2)) for part in split]
        turns = alone if parts == 2 else [*alone, *without]  # of two parts each is what the other leaves
        for turn, (some, then) in enumerate(turns):
            ahead = tuple(_union(later) for later, _ in turns[turn:])
            yield Trial(ahead[:1], ahead[1:], "reduce", len(ahead) - 1, _union(chunks))
            if tried[ahead[0]] is Verdict.BAD:
                chunks, parts = some, then
                break
        else:
            if parts == size:
                return chunks
            parts = min(2 * parts, size)
    return chunks


def _union(chunks: Iterable[Change]) -> Change:
    return frozenset().union(*chunks)
