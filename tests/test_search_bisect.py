from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import ceil, log, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.search.bisect import search, step
from repromatrix.search.model import Answer, Edge, History, Rules, Sample, Step, Verdict

SAMPLES = {"g": Sample.GOOD, "b": Sample.BAD, "n": Sample.NOTHING}
GOOD, BAD = Verdict.GOOD, Verdict.BAD
ONCE = Rules(confidence=0)
"""Nothing is repeated."""

QUICK = settings(deadline=None, max_examples=60)


def run(
    history: History, truth: str | Callable[[int], Sample], rules: Rules = ONCE, width: int = 1
) -> tuple[Answer, Counter[int], int]:
    """The answer, the attempts of each place, and the steps it took."""
    calls: Counter[int] = Counter()
    seen: dict[int, tuple[Sample, ...]] = {}
    steps = 0
    while isinstance(now := step(history, seen, rules, width, foresee=False), Step):
        steps += 1
        assert now.tries
        assert now.phase == "rate" or sum(each.attempts for each in now.tries) <= width
        for each in now.tries:
            for _ in range(each.attempts):
                calls[each.place] += 1
                sample = SAMPLES[truth[each.place]] if isinstance(truth, str) else truth(each.place)
                seen[each.place] = (*seen.get(each.place, ()), sample)
    return now, calls, steps


def edges(answer: Answer) -> list[tuple[int, int, Verdict]]:
    assert not answer.refused
    return [(edge.before, edge.after, edge.becomes) for edge in answer.edges]


def true_edges(truth: str) -> list[tuple[int, int, Verdict]]:
    """Between neighbours that say something."""
    said = [(place, GOOD if letter == "g" else BAD) for place, letter in enumerate(truth) if letter != "n"]
    return [(older, newer, after) for (older, before), (newer, after) in pairwise(said) if before is not after]


MONOTONE = st.integers(2, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size - 1)))


@settings(QUICK, max_examples=300)
@given(MONOTONE, st.booleans(), st.integers(0, 1000))
def test_one_change_is_found_with_a_logarithm_of_versions(drawn: tuple[int, int], fix: bool, offset: int) -> None:
    size, edge = drawn
    ends = (BAD, GOOD) if fix else (GOOD, BAD)
    truth = ("b" if fix else "g") * edge + ("g" if fix else "b") * (size - edge)
    history = History(size, ends=ends, stable=tuple(range(offset, offset + size)))
    answer, calls, _ = run(history, truth)
    assert edges(answer) == [(edge - 1, edge, ends[1])]
    assert len(calls) <= ceil(log2(size)) + 2
    assert set(calls.values()) == {1}
    assert set(answer.verdicts) == set(calls)


def test_versions_tried_on_average() -> None:
    for size in (10, 30, 33, 100, 300):
        history = History(size, ends=(GOOD, BAD))
        tried = [len(run(history, "g" * edge + "b" * (size - edge))[1]) for edge in range(1, size)]
        print(f"{size} versions: {sum(tried) / len(tried):.2f} tried, {max(tried)} at most")
        # The freedom to take versions that other ranges meet, too, costs less than one more.
        assert sum(tried) / len(tried) < 2 + log2(size) + 0.6


@QUICK
@given(MONOTONE, st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_a_certain_failure_is_confirmed_evenly_on_both_sides(drawn: tuple[int, int], confidence: float) -> None:
    size, edge = drawn
    rules = Rules(confidence=confidence)
    answer, calls, _ = run(History(size, ends=(GOOD, BAD)), "g" * edge + "b" * (size - edge), rules)
    assert edges(answer) == [(edge - 1, edge, BAD)]
    assert len(calls) <= ceil(log2(size)) + 2
    further = calls[edge - 1] - 1, calls[edge] - 1
    assert abs(further[0] - further[1]) <= 1
    assert sum(further) in (rules.confirmations, rules.confirmations + 1)
    assert sum(further) + len(calls) == calls.total()
    assert answer.edges[0].confidence >= confidence
    assert answer.rate == (1.0, 1.0)


@QUICK
@given(st.text("gb", min_size=1, max_size=60))
def test_a_full_sweep_finds_every_change_and_tries_each_version_once(truth: str) -> None:
    answer, calls, _ = run(History(len(truth), sweep=tuple(range(len(truth)))), truth)
    assert edges(answer) == true_edges(truth)
    assert calls == dict.fromkeys(range(len(truth)), 1)


@QUICK
@given(st.lists(st.integers(7, 20), min_size=1, max_size=8), st.integers(1, 7), st.integers(1, 4))
def test_a_sweep_finer_than_the_changes_finds_all_of_them(lengths: list[int], distance: int, width: int) -> None:
    truth = "".join("gb"[index % 2] * length for index, length in enumerate(lengths))
    sweep = tuple(range(0, len(truth), distance))
    answer, calls, _ = run(History(len(truth), sweep=sweep), truth, width=width)
    assert edges(answer) == true_edges(truth)
    assert set(calls.values()) == {1}
    if width == 1:
        assert len(calls) <= len(sweep) + 2 + len(answer.edges) * ceil(log2(distance))


@QUICK
@given(st.text("gbn", min_size=2, max_size=50), st.integers(1, 4), st.data())
def test_versions_that_say_nothing_lie_between_and_never_steer(truth: str, width: int, data: st.DataObject) -> None:
    sweep = tuple(data.draw(st.sets(st.integers(0, len(truth) - 1))))
    answer, calls, _ = run(History(len(truth), sweep=sweep), truth, width=width)
    assert set(calls.values()) == {1}
    if set(truth) == {"n"}:
        assert answer.refused == "no version has a verdict"
        return
    known = true_edges(truth)
    for edge in answer.edges:
        assert (edge.before, edge.after, edge.becomes) in known
        assert edge.between == tuple(range(edge.before + 1, edge.after))
        assert all(answer.verdicts[place] is Verdict.UNKNOWN for place in edge.between)


def broken(size: int, edge: int, first: int, length: int) -> str:
    """Good up to `edge`, then bad; a run of `length` from `first` says nothing."""
    return "".join("n" if first <= place < first + length else "gb"[place >= edge] for place in range(size))


@QUICK
@given(st.data(), st.integers(1, 60))
def test_a_broken_run_costs_about_a_logarithm_of_its_length(data: st.DataObject, length: int) -> None:
    """Where the change is not beside it: else it is only known to be there once all of the run was tried."""
    size = 300
    first = data.draw(st.integers(1, size - 1 - length))
    edge = data.draw(st.integers(1, size - 1).filter(lambda edge: not first <= edge <= first + length))
    answer, calls, _ = run(History(size, ends=(GOOD, BAD)), broken(size, edge, first, length))
    assert edges(answer) == [(edge - 1, edge, BAD)]
    beside = first - length // 2 <= edge <= first + length + length // 2
    assert len(calls) <= ceil(log2(size)) + 4 + (length if beside else log(length, 1.5))


def test_sixty_broken_nightlies_on_average() -> None:
    size, length, costs = 300, 60, []
    for seed in range(150):
        choice = random.Random(seed)
        first = choice.randrange(1, size - 1 - length)
        edge = choice.choice([edge for edge in range(1, size) if not first <= edge <= first + length])
        costs.append(len(run(History(size, ends=(GOOD, BAD)), broken(size, edge, first, length))[1]))
    print(f"of 300 versions with 60 broken in a row: {sum(costs) / len(costs):.1f} tried, at most {max(costs)}")
    assert sum(costs) / len(costs) < 15


def test_an_edge_in_a_broken_run_is_final_when_nothing_in_it_is_untried() -> None:
    answer, calls, _ = run(History(30, ends=(GOOD, BAD)), "g" * 10 + "n" * 7 + "b" * 13)
    assert answer.edges == (Edge(9, 17, BAD, tuple(range(10, 17)), 0.0),)
    assert len(calls) <= 7 + 2 * ceil(log2(30))


def test_a_second_bug_in_the_middle_is_no_edge() -> None:
    """It fails otherwise from 5 on, so nothing is known of what is looked for until that is repaired at 12."""
    answer, _, _ = run(History(20, ends=(GOOD, BAD)), "g" * 5 + "n" * 7 + "b" * 8)
    assert [(edge.before, edge.after, edge.between) for edge in answer.edges] == [(4, 12, tuple(range(5, 12)))]


# The ends


@pytest.mark.parametrize(("ends", "order"), [((GOOD, BAD), [9, 0]), ((BAD, GOOD), [0, 9]), ((None, None), [9, 0])])
def test_the_bad_end_is_tried_first(ends: tuple[Verdict | None, Verdict | None], order: list[int]) -> None:
    history = History(10, ends=ends)
    truth = "b" * 5 + "g" * 5 if ends[0] is BAD else "g" * 5 + "b" * 5
    seen: dict[int, tuple[Sample, ...]] = {}
    for place in order:
        now = step(history, seen, ONCE)
        assert isinstance(now, Step)
        assert (now.phase, [each.place for each in now.tries]) == ("end", [place])
        seen[place] = (SAMPLES[truth[place]],)
    both = step(history, {}, ONCE, width=2)
    assert isinstance(both, Step)
    assert [each.place for each in both.tries] == order


@pytest.mark.parametrize(
    ("truth", "rules", "refused", "place", "attempts"),
    [
        (
            "gggggg",
            Rules(),
            "is said to be bad and was ok in 7 of 7 attempts: it fails less often than 48 % or not at all; "
            "--rate 0.05 repeats longer",
            5,
            7,
        ),
        (
            "gggggg",
            Rules(rate=0.2),
            "is said to be bad and was ok in 24 of 24 attempts: it fails less often than 17 % or not at all; "
            "--rate 0.05 repeats longer",
            5,
            24,
        ),
        (
            "gggggg",
            Rules(rate=0.01, most=20),
            "is said to be bad and was ok in 20 of 20 attempts: it fails less often than 21 % or not at all; "
            "--attempts 80 repeats longer",
            5,
            20,
        ),
        ("gggggg", ONCE, "is said to be bad and was ok in 1 of 1 attempt", 5, 1),
        ("bbbbbb", Rules(), "is said to be good and failed in 1 of 1 attempt", 0, 2),
        (
            "nnbbbb",
            Rules(),
            "is the oldest version with a verdict, where a good one is said to be, and failed in 1 of 1 attempt",
            2,
            5,
        ),
        ("nnnnnn", Rules(), "no version has a verdict", None, 6),
        (
            "gggnnn",
            ONCE,
            "is the newest version with a verdict, where a bad one is said to be, and was ok in 1 of 1 attempt",
            2,
            4,
        ),
    ],
)
def test_an_end_that_is_not_what_it_is_said_to_be(
    truth: str, rules: Rules, refused: str, place: int | None, attempts: int
) -> None:
    answer, calls, _ = run(History(6, ends=(GOOD, BAD)), truth, rules)
    assert (answer.refused, answer.refused_at, answer.edges) == (refused, place, ())
    assert calls.total() == attempts


@QUICK
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 10), st.integers(1, 10), st.integers(1, 3))
def test_ends_without_a_verdict_are_left_for_the_nearest_with_one(
    before: int, after: int, good: int, bad: int, width: int
) -> None:
    truth = "n" * before + "g" * good + "b" * bad + "n" * after
    answer, calls, _ = run(History(len(truth), ends=(GOOD, BAD)), truth, width=width)
    assert edges(answer) == [(before + good - 1, before + good, BAD)]
    assert set(calls.values()) == {1}


@QUICK
@given(st.text("gbn", min_size=1, max_size=30))
def test_where_nothing_is_claimed_nothing_is_refused(truth: str) -> None:
    answer, _, _ = run(History(len(truth)), truth, Rules())
    assert bool(answer.refused) == (set(truth) == {"n"})


def test_a_range_without_a_change() -> None:
    answer, calls, _ = run(History(50), "g" * 50, Rules())
    assert (answer.edges, answer.refused, answer.verdicts) == ((), "", {0: GOOD, 49: GOOD})
    assert calls == {0: 1, 49: 1}


@pytest.mark.parametrize(("size", "width"), [(0, 1), (5, 0)])
def test_what_is_no_search(size: int, width: int) -> None:
    with pytest.raises(ValueError, match="a history of"):
        step(History(size), {}, ONCE, width)


# Going on


@QUICK
@given(st.text("gbn", min_size=2, max_size=40), st.integers(1, 3), st.data())
def test_a_search_killed_anywhere_goes_on_to_the_same_answer(truth: str, width: int, data: st.DataObject) -> None:
    history = History(len(truth), sweep=tuple(range(0, len(truth), 9)))
    rules = Rules(confidence=data.draw(st.sampled_from([0.0, 0.99])))
    whole, whole_calls, _ = run(history, truth, rules, width)
    kept: dict[int, tuple[Sample, ...]] = {}
    attempts = 0

    class Killed(Exception):
        pass

    choice = random.Random(data.draw(st.integers(0, 1000)))

    def attempt(place: int) -> Sample:
        nonlocal attempts
        if choice.random() < 0.2:
            raise Killed
        attempts += 1
        kept[place] = (*kept.get(place, ()), SAMPLES[truth[place]])
        return SAMPLES[truth[place]]

    answer = None
    while answer is None:
        try:
            answer = search(history, attempt, rules, width, kept)
        except Killed:
            continue
    assert attempts == sum(map(len, kept.values()))
    if width == 1:
        assert answer == whole
        assert kept == {place: (SAMPLES[truth[place]],) * count for place, count in whole_calls.items()}
    else:  # a batch cut short may leave other places tried, but what it finds is there
        assert set(edges(answer)) <= set(true_edges(truth)) if not answer.refused else whole.refused


@QUICK
@given(st.integers(2, 60), st.floats(0.2, 0.9), st.integers(0, 10_000), st.data())
def test_a_flaky_search_killed_anywhere_goes_on_to_the_same_answer(
    size: int, rate: float, seed: int, data: st.DataObject
) -> None:
    """With one attempt at a time, and an outcome that hangs on the version and the number of its attempt alone."""
    edge = data.draw(st.integers(1, size - 1))

    def outcome(place: int, number: int) -> Sample:
        fails = place >= edge and random.Random(f"{seed} {place} {number}").random() < rate
        return Sample.BAD if fails else Sample.GOOD

    history, rules = History(size, ends=(GOOD, BAD)), Rules(confidence=0.9)
    calls: Counter[int] = Counter()
    taken: list[tuple[int, Sample]] = []

    def attempt(place: int) -> Sample:
        taken.append((place, outcome(place, calls[place])))
        calls[place] += 1
        return taken[-1][1]

    whole = search(history, attempt, rules)
    stop = data.draw(st.integers(0, len(taken)))
    kept: dict[int, tuple[Sample, ...]] = {}
    for place, sample in taken[:stop]:
        kept[place] = (*kept.get(place, ()), sample)
    calls = Counter({place: len(samples) for place, samples in kept.items()})
    assert search(history, attempt, rules, kept=kept) == whole


@QUICK
@given(st.text("gbn", min_size=2, max_size=60), st.data())
def test_what_is_kept_is_not_tried_again(truth: str, data: st.DataObject) -> None:
    places = data.draw(st.sets(st.integers(0, len(truth) - 1)))
    kept = {place: (SAMPLES[truth[place]],) for place in places}
    calls: Counter[int] = Counter()

    def attempt(place: int) -> Sample:
        calls[place] += 1
        return SAMPLES[truth[place]]

    answer = search(History(len(truth)), attempt, ONCE, kept=kept)
    assert not set(calls) & places
    if not answer.refused:
        assert set(edges(answer)) <= set(true_edges(truth))


def test_kept_verdicts_narrow_the_range_at_once() -> None:
    kept = {place: (SAMPLES["gb"[place >= 70]],) for place in (0, 60, 75, 99)}
    now = step(History(100, ends=(GOOD, BAD)), kept, ONCE)
    assert isinstance(now, Step)
    assert (now.bounds, [each.place for each in now.tries]) == ((60, 75), [68])


# At once, soon, left


@pytest.mark.parametrize("width", [2, 3, 4, 7])
@pytest.mark.parametrize("size", [30, 100, 300])
def test_a_search_of_k_ways_takes_a_logarithm_to_k_plus_1_of_rounds(size: int, width: int) -> None:
    for edge in range(1, size, 11):
        answer, calls, steps = run(History(size, ends=(GOOD, BAD)), "g" * edge + "b" * (size - edge), width=width)
        assert edges(answer) == [(edge - 1, edge, BAD)]
        assert set(calls.values()) == {1}
        assert steps <= 1 + ceil(log(size, width + 1))


def test_the_width_is_shared_by_several_edges() -> None:
    truth = "g" * 33 + "b" * 33 + "g" * 34
    answer, _, steps = run(History(100, sweep=(20, 50, 80)), truth, width=2)
    assert edges(answer) == true_edges(truth)
    assert steps <= 1 + 2 + 5


@QUICK
@given(st.text("gbn", min_size=2, max_size=40), st.data())
def test_what_comes_next_was_told_before(truth: str, data: st.DataObject) -> None:
    """Whatever the tries say: each place that a step asks for was among those that the step before called soon."""
    sweep = tuple(data.draw(st.sets(st.integers(0, len(truth) - 1), max_size=5)))
    ends = data.draw(st.sampled_from([(None, None), (GOOD, BAD), (BAD, GOOD)]))
    rules = Rules(confidence=data.draw(st.sampled_from([0.0, 0.99])))
    seen: dict[int, tuple[Sample, ...]] = {}
    told: set[int] | None = None
    while isinstance(now := step(History(len(truth), sweep, ends), seen, rules), Step):
        trying = {each.place for each in now.tries}
        assert told is None or trying <= told | set(seen)
        assert not trying & set(now.soon)
        told = set(now.soon)
        for each in now.tries:
            seen[each.place] = (*seen.get(each.place, ()), *[SAMPLES[truth[each.place]]] * each.attempts)


def test_both_halves_are_soon_before_what_comes_after_them() -> None:
    seen = {0: (Sample.GOOD,), 63: (Sample.BAD,)}
    now = step(History(64, ends=(GOOD, BAD)), seen, ONCE)
    assert isinstance(now, Step)
    assert [each.place for each in now.tries] == [32]
    assert set(now.soon[:2]) == {16, 48}
    assert set(now.soon[2:6]) == {8, 24, 40, 56}


def test_the_sweep_is_soon_from_the_start() -> None:
    now = step(History(64, (10, 20, 30), (GOOD, BAD)), {}, ONCE)
    assert isinstance(now, Step)
    assert now.soon[0] == 0
    assert set(now.soon[1:4]) == {10, 20, 30}


@QUICK
@given(MONOTONE, st.sets(st.integers(0, 299), max_size=6))
def test_so_many_versions_are_left_at_most(drawn: tuple[int, int], swept: set[int]) -> None:
    size, edge = drawn
    history = History(size, tuple(sorted(place for place in swept if place < size)), (GOOD, BAD))
    seen: dict[int, tuple[Sample, ...]] = {}
    foretold: list[int] = []
    while isinstance(now := step(history, seen, ONCE, foresee=False), Step):
        foretold.append(now.left)
        for each in now.tries:
            seen[each.place] = (SAMPLES["gb"[each.place >= edge]],)
    left = list(range(len(foretold)))[::-1]
    assert all(told >= actual for told, actual in zip(foretold, left, strict=True))
    assert all(later < earlier for earlier, later in pairwise(foretold))
    assert foretold[0] <= ceil(log2(size)) + 1 + len(swept)


def test_the_same_range_meets_the_same_versions() -> None:
    """Also where the ranges are numbered alike and begin elsewhere."""
    whole = History(100, ends=(GOOD, BAD), stable=tuple(range(500, 600)))
    part = History(60, ends=(GOOD, BAD), stable=tuple(range(540, 600)))
    met = set(run(whole, "g" * 70 + "b" * 30)[1])
    again = {40 + place for place in run(part, "g" * 30 + "b" * 30)[1]}
    assert met == set(run(whole, "g" * 70 + "b" * 30)[1])
    assert len(again - met) <= 2  # its own oldest, and one on the way
