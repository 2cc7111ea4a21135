"""Delta debugging against thousands of made-up differences: single culprits, several, interactions, silence."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.search.delta import Change, Minimal, Trial, step
from repromatrix.search.model import Verdict

Oracle = Callable[[Change], Verdict]


def search(
    groups: Sequence[Sequence[Hashable]], oracle: Oracle, width: int = 1
) -> tuple[Minimal, dict[Change, Verdict], int]:
    """(answer, what was tried, rounds)."""
    tried: dict[Change, Verdict] = {}
    rounds = 0
    while isinstance(now := step(groups, tried, width), Trial):
        assert 1 <= len(now.tries) <= width
        assert not set(now.tries) & tried.keys(), "nothing is tried twice"
        assert not set(now.soon) & {*tried, *now.tries}
        assert tried.get(now.smallest, Verdict.BAD) is Verdict.BAD
        tried |= {change: oracle(change) for change in now.tries}
        rounds += 1
    return now, tried, rounds


def singles(count: int) -> list[list[int]]:
    return [[item] for item in range(count)]


def needs(*culprits: int) -> Oracle:
    return lambda change: Verdict.BAD if change >= set(culprits) else Verdict.GOOD


def assert_minimal(answer: Minimal, oracle: Oracle) -> None:
    assert oracle(answer.change) is Verdict.BAD
    for item in answer.change:
        without = oracle(answer.change - {item})
        assert without is not Verdict.BAD
        assert (item in answer.unproven) == (without is not Verdict.GOOD)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 16, 100, 1000])
def test_one_culprit_takes_log2_tries(count: int) -> None:
    most = 0
    for culprit in range(0, count, 1 + count // 40):
        answer, tried, _ = search(singles(count), needs(culprit))
        assert answer == Minimal(frozenset({culprit}))
        most = max(most, len(tried))
    # Both ends, the halvings, and the culprit alone.
    assert most <= ceil(log2(count)) + 3


@given(st.integers(2, 60), st.data())
@settings(max_examples=400)
def test_items_that_are_needed_together_are_all_found(count: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=5))
    answer, tried, _ = search(singles(count), needs(*culprits))
    assert answer == Minimal(frozenset(culprits))
    k = len(culprits)
    assert len(tried) <= 2 + k * (ceil(log2(count)) + 1) + (k > 1) * (4 * k * k)


@given(st.integers(2, 40), st.data())
@settings(max_examples=400)
def test_of_several_causes_one_is_found_whole(count: int, data: st.DataObject) -> None:
    some = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3)
    causes = data.draw(st.lists(some, min_size=1, max_size=3))

    def oracle(change: Change) -> Verdict:
        return Verdict.BAD if any(change >= cause for cause in causes) else Verdict.GOOD

    answer, _, _ = search(singles(count), oracle)
    assert answer.change in causes
    assert_minimal(answer, oracle)


@given(st.integers(1, 8), st.integers(0, 2**32), st.integers(1, 4), st.floats(0.05, 0.9))
@settings(max_examples=1500)
def test_whatever_the_verdicts_are_the_answer_is_bad_and_no_item_of_it_can_go(
    count: int, seed: int, width: int, share: float
) -> None:
    """Not monotone, with interactions and silence at random: also what is bad apart and good together."""
    dice, told = random.Random(seed), dict[Change, Verdict]()
    told[frozenset()], told[frozenset(range(count))] = Verdict.GOOD, Verdict.BAD

    def oracle(change: Change) -> Verdict:
        others = (Verdict.GOOD, Verdict.UNKNOWN, Verdict.AMBIGUOUS)
        return told.setdefault(change, Verdict.BAD if dice.random() < share else dice.choice(others))

    answer, tried, _ = search(singles(count), oracle, width)
    assert not answer.refused
    assert answer.change <= set(range(count))
    assert tried[answer.change] is Verdict.BAD
    for item in answer.change:  # the proof lies in what was tried: nothing was taken for granted
        assert tried[answer.change - {item}] is not Verdict.BAD
    assert answer.unproven == {x for x in answer.change if tried[answer.change - {x}] is not Verdict.GOOD}


@given(st.integers(2, 24), st.data())
@settings(max_examples=600)
def test_mixtures_that_cannot_be_built_leave_the_culprit_alone_if_it_can_stand_alone(
    count: int, data: st.DataObject
) -> None:
    """Pairs that must move together, as jax and jaxlib; the culprit is in none of them."""
    culprit = data.draw(st.integers(0, count - 1))
    others = [item for item in range(count) if item != culprit]
    pairs = (
        data.draw(st.lists(st.sets(st.sampled_from(others), min_size=2, max_size=2), max_size=4)) if count > 2 else []
    )

    def oracle(change: Change) -> Verdict:
        if any(len(pair & change) == 1 for pair in pairs):
            return Verdict.UNKNOWN
        return Verdict.BAD if culprit in change else Verdict.GOOD

    answer, tried, _ = search(singles(count), oracle)
    assert_minimal(answer, oracle)
    assert culprit in answer.change
    assert len(tried) <= 12 * (ceil(log2(count)) + 4)


@given(st.integers(0, 2**32), st.integers(2, 30), st.integers(1, 4))
@settings(max_examples=300)
def test_groups_move_as_one_and_are_split_where_they_matter(seed: int, count: int, width: int) -> None:
    dice = random.Random(seed)
    items = list(range(count))
    groups, left = [], items[:]
    while left:
        size = dice.randint(1, 4)
        groups.append(left[:size])
        left = left[size:]
    culprits = dice.sample(items, dice.randint(1, min(3, count)))
    answer, tried, _ = search(groups, needs(*culprits), width)
    assert answer == Minimal(frozenset(culprits))
    # Until a group is known to matter, none is torn apart.
    whole = {frozenset(group) for group in groups}
    torn = [change for change in tried if any(change & group and not change >= group for group in whole)]
    matter = {item for group in whole if group & set(culprits) for item in group}
    assert all(change <= matter for change in torn)


def test_a_group_that_cannot_be_split_is_the_answer_and_its_items_are_unproven() -> None:
    def oracle(change: Change) -> Verdict:
        if len(change & {"jax", "jaxlib"}) == 1:
            return Verdict.UNKNOWN
        return Verdict.BAD if "jaxlib" in change else Verdict.GOOD

    answer, _, _ = search([["numpy"], ["jax", "jaxlib"], ["scipy"]], oracle)
    assert answer == Minimal(frozenset({"jax", "jaxlib"}), frozenset({"jax", "jaxlib"}))


@pytest.mark.parametrize("known", [Verdict.GOOD, Verdict.UNKNOWN, Verdict.AMBIGUOUS])
def test_an_end_that_is_not_bad_ends_the_search(known: Verdict) -> None:
    answer, tried, _ = search(singles(5), lambda _: known)
    assert answer == Minimal(frozenset(), refused="with everything changed it is not bad")
    assert len(tried) == 1


def test_what_is_bad_with_nothing_changed_needs_no_change() -> None:
    answer, tried, _ = search(singles(5), lambda _: Verdict.BAD)
    assert answer == Minimal(frozenset())
    assert len(tried) == 2


def test_nothing_changed_may_say_nothing() -> None:
    """As a script does without the flag that leads to its trigger."""
    answer, _, _ = search(singles(9), lambda change: needs(4)(change) if change else Verdict.UNKNOWN)
    assert answer == Minimal(frozenset({4}), unproven=frozenset({4}))


@given(st.integers(2, 40), st.integers(0, 2**32), st.integers(0, 30))
@settings(max_examples=200)
def test_a_killed_search_goes_on_where_it_was(count: int, seed: int, after: int) -> None:
    culprits = random.Random(seed).sample(range(count), min(count, 3))
    oracle = needs(*culprits)
    whole, tried, _ = search(singles(count), oracle)
    kept = dict(list(tried.items())[:after])
    asked = []
    while isinstance(now := step(singles(count), kept), Trial):
        asked.append(now.tries[0])
        kept[now.tries[0]] = oracle(now.tries[0])
    assert now == whole
    assert asked == list(tried)[after:]


def test_more_at_once_takes_fewer_rounds_and_gives_the_same_answer() -> None:
    one, _, rounds = search(singles(64), needs(17, 40))
    wide, tried, fewer = search(singles(64), needs(17, 40), width=3)
    assert one == wide
    assert fewer <= 0.7 * rounds
    assert len(tried) <= 3 * fewer


@pytest.mark.parametrize("groups", [[[1], []], [[1, 2], [2, 3]]])
def test_items_must_be_in_one_group_each(groups: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="one group"):
        step(groups, {})
