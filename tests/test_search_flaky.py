"""Failures that come and go, in thousands of histories: how often an answer is wrong, and what it costs."""

from __future__ import annotations

import random
from collections import Counter
from math import sqrt

import pytest

from repromatrix.search.bisect import search, step
from repromatrix.search.model import Answer, History, Rules, Sample, Step, Verdict

GOOD, BAD = Verdict.GOOD, Verdict.BAD


class Killed(Exception):
    """The search ends at once, as with kill -9."""


class World:
    """A seeded history: good up to its edge, then bad at a rate; some versions say nothing."""

    def __init__(self, seed: int, rate: float, *, noisy: bool = False) -> None:
        self.choice = random.Random(f"{seed} {rate}")
        self.size = self.choice.randint(2, 60)
        self.edge = self.choice.randint(1, self.size - 1)
        self.rate = rate
        self.noisy = noisy
        broken = self.choice.random() < 0.3
        self.silent = {place for place in range(1, self.size - 1) if broken and self.choice.random() < 0.3}
        self.seen: dict[int, tuple[Sample, ...]] = {}
        self.killed = 0.0

    def attempt(self, place: int) -> Sample:
        if self.choice.random() < self.killed:
            raise Killed
        chance = self.choice.random()
        if self.noisy:
            fails = (chance < self.rate) != (place >= self.edge)
        else:
            fails = place >= self.edge and chance < self.rate
        sample = Sample.NOTHING if place in self.silent else Sample.BAD if fails else Sample.GOOD
        self.seen[place] = (*self.seen.get(place, ()), sample)
        return sample

    def answer(self, rules: Rules, width: int, sweep: tuple[int, ...] = ()) -> Answer:
        history = History(self.size, sweep, (GOOD, BAD))
        while True:
            try:
                return search(history, self.attempt, rules, width, self.seen)
            except Killed:
                continue

    def judge(self, answer: Answer) -> str:
        if answer.refused:
            return "refused"
        if any(not (edge.becomes is BAD and edge.before < self.edge <= edge.after) for edge in answer.edges):
            return "wrong"
        return "right" if answer.edges else "ambiguous"


@pytest.mark.parametrize(
    ("rate", "confidence", "runs", "answered"),
    [
        (0.01, 0.99, 250, 0.0),
        (0.05, 0.99, 250, 0.0),
        (0.1, 0.99, 250, 0.0),
        (0.2, 0.99, 250, 0.05),
        (0.3, 0.99, 250, 0.55),
        (0.4, 0.99, 250, 0.9),
        (0.5, 0.99, 250, 0.95),
        (0.6, 0.99, 250, 0.95),
        (0.9, 0.99, 250, 0.99),
        (0.3, 0.9, 250, 0.6),
        (0.45, 0.9, 250, 0.8),
        (0.6, 0.9, 250, 0.9),
        (0.3, 0.5, 250, 0.2),
    ],
)
def test_wrong_edges_stay_below_the_error(rate: float, confidence: float, runs: int, answered: float) -> None:
    """One attempt at a time or several, with versions that say nothing, with a sweep, killed anywhere."""
    rules = Rules(confidence=confidence)
    judged: Counter[str] = Counter()
    attempts = versions = most = 0
    for seed in range(runs):
        world = World(seed, rate)
        world.killed = 0.1 if seed % 4 == 3 else 0.0
        sweep = tuple(range(0, world.size, 10)) if seed % 3 == 2 else ()
        answer = world.answer(rules, (1, 4)[seed % 2], sweep)
        judged[world.judge(answer)] += 1
        assert all(edge.confidence >= confidence for edge in answer.edges)
        counts = [len(samples) for samples in world.seen.values()]
        attempts, versions, most = attempts + sum(counts), versions + len(counts), max(most, *counts)
    print(f"rate {rate}, confidence {confidence}: {dict(judged)}", end=", ")
    print(f"{attempts / runs:.1f} attempts of {versions / runs:.1f} versions, {most} of one at most")
    error = 1 - confidence
    assert judged["wrong"] <= runs * error + 3 * sqrt(runs * error * (1 - error))
    assert judged["right"] >= runs * answered
    assert most <= rules.most


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_a_rate_that_is_told_is_reckoned_with_from_the_start(rate: float) -> None:
    """Rates at which little can be told with the usual number of attempts."""
    judged: Counter[str] = Counter()
    attempts, runs = 0, 25
    for seed in range(runs):
        world = World(seed, rate)
        answer = world.answer(Rules(confidence=0.9, rate=rate, most=400), 4)
        judged[world.judge(answer)] += 1
        attempts += sum(map(len, world.seen.values()))
    print(f"rate {rate}: {dict(judged)}, {attempts / runs:.0f} attempts")
    assert judged["wrong"] <= runs * 0.1 + 3 * sqrt(runs * 0.09)
    assert judged["right"] >= 18


@pytest.mark.parametrize("misread", [0.02, 0.1])
def test_a_noisy_metric(misread: float) -> None:
    rules = Rules(symmetric=True)
    judged: Counter[str] = Counter()
    attempts = most = 0
    for seed in range(400):
        world = World(seed, misread, noisy=True)
        answer = world.answer(rules, (1, 4)[seed % 2])
        judged[world.judge(answer)] += 1
        attempts, most = attempts + sum(map(len, world.seen.values())), max(most, *map(len, world.seen.values()))
        assert all(edge.confidence >= 0.99 for edge in answer.edges)
    print(f"{misread} misread: {dict(judged)}, {attempts / 400:.1f} attempts, {most} of one at most")
    assert judged["wrong"] <= 4 + 3 * 2
    assert judged["right"] >= 380
    assert most <= rules.most


def test_a_noisy_metric_near_its_limit_is_ambiguous_and_lies_between() -> None:
    """The one version whose metric is on the limit says this and that, and its neighbours do not."""
    seen: dict[int, tuple[Sample, ...]] = {}
    toggled = 0

    def attempt(place: int) -> Sample:
        nonlocal toggled
        toggled += place == 6
        sample = (Sample.GOOD, Sample.BAD)[toggled % 2] if place == 6 else (Sample.GOOD, Sample.BAD)[place > 6]
        seen[place] = (*seen.get(place, ()), sample)
        return sample

    answer = search(History(12, ends=(GOOD, BAD)), attempt, Rules(symmetric=True, most=9))
    assert [(edge.before, edge.after, edge.between) for edge in answer.edges] == [(5, 7, (6,))]
    assert answer.verdicts[6] is Verdict.AMBIGUOUS
    assert len(seen[6]) == 9


# The way, attempt by attempt


def follow(history: History, rules: Rules, samples: dict[int, str]) -> tuple[list[tuple[str, int, int]], Answer]:
    """(phase, place, attempts) of every try, and the answer; a place says its letters in turn, then `g` for ever."""
    path: list[tuple[str, int, int]] = []
    seen: dict[int, tuple[Sample, ...]] = {}
    while isinstance(now := step(history, seen, rules), Step):
        for each in now.tries:
            done = len(seen.get(each.place, ()))
            letters = samples.get(each.place, "").ljust(done + each.attempts, "g")[done : done + each.attempts]
            said = tuple({"g": Sample.GOOD, "b": Sample.BAD}[letter] for letter in letters)
            seen[each.place] = (*seen.get(each.place, ()), *said)
            if path and path[-1][:2] == (now.phase, each.place):
                path[-1] = (now.phase, each.place, path[-1][2] + each.attempts)
            else:
                path.append((now.phase, each.place, each.attempts))
    return path, now


def test_a_failure_that_comes_and_goes_is_counted_then_the_search_goes_on_to_the_left() -> None:
    """4 is bad and passed at first; the third further attempt of it fails."""
    samples = {7: "b" * 40, 6: "b" * 40, 5: "bbbb", 4: "gggb" + "b" * 30, 3: "g"}
    path, answer = follow(History(8, ends=(GOOD, BAD)), Rules(), samples)
    assert path[:3] == [("end", 7, 1), ("end", 0, 1), ("bisect", 4, 1)]
    counted = [step for step in path if step[0] == "rate"]
    after = path[path.index(counted[-1]) + 1 :]
    assert [place for phase, place, _ in after if phase == "bisect"] == [2, 3]
    assert path[-1][:2] == ("confirm", 3)
    assert [(edge.before, edge.after) for edge in answer.edges] == [(3, 4)]
    assert answer.rate[0] < answer.rate[1]
    assert answer.passes == 1 + path[-1][2] + next(count for phase, place, count in after if place == 3) - 1


def test_a_bad_end_that_passed_is_repeated_before_it_is_refused() -> None:
    path, answer = follow(History(3, ends=(GOOD, BAD)), Rules(), {2: "gggb" + "b" * 50, 1: "b" * 50})
    assert path[0] == ("end", 2, 4)
    assert not answer.refused
    assert [(edge.before, edge.after) for edge in answer.edges] == [(0, 1)]


def test_where_no_number_of_passes_is_enough_nothing_is_claimed() -> None:
    """It failed twice in 50: how seldom it may fail is not known, and 50 passes prove nothing."""
    path, answer = follow(History(9, ends=(GOOD, BAD)), Rules(), {8: "b" + "g" * 20 + "b" + "g" * 28, 4: "gb"})
    assert answer.edges == ()
    assert not answer.refused
    assert answer.passes > 50
    assert answer.verdicts[8] is BAD
    assert set(answer.verdicts.values()) == {BAD, Verdict.AMBIGUOUS}
    assert all(sum(count for _, each, count in path if each == place) <= 50 for place in answer.verdicts)


def test_without_a_change_all_that_passed_are_made_sure_of_if_the_failure_may_come_and_go() -> None:
    path, answer = follow(History(9, sweep=(4,)), Rules(rate=0.3), {})
    passes = answer.passes
    assert passes == 15
    assert {place: sum(count for _, each, count in path if each == place) for place in (0, 4, 8)} == {
        0: passes,
        4: passes,
        8: passes,
    }
    assert answer.verdicts == {0: GOOD, 4: GOOD, 8: GOOD}
