"""What `bad` means, what an attempt says by it, and the parts of the driver that need no cell."""

from __future__ import annotations

import threading
import time

import pytest

from repromatrix.errors import UserError
from repromatrix.events import Silent, Task
from repromatrix.evidence.model import Signature
from repromatrix.regressions.failure import Failure, by_change, by_metric, failure_of, sample, words
from repromatrix.regressions.quiet import Quiet
from repromatrix.results.model import AttemptResult
from repromatrix.search.model import Sample
from repromatrix.spec.model import Outcome


def attempt(
    outcome: Outcome, *titles: str, status: int | None = 1, name: str | None = None, **metrics: float
) -> AttemptResult:
    signature = Signature(titles[0], titles[1:]) if titles else None
    numbers = tuple(metrics.items())
    return AttemptResult(1, outcome, status, name, signature, "", 1.0, "2026-01-01T00:00:00Z", "e/1", numbers)


SEGV = attempt(Outcome.CRASH, "signal SIGSEGV at a.cc f", "signal SIGSEGV at b.cc g", status=None, name="SIGSEGV")
SAME = attempt(Outcome.CRASH, "signal SIGSEGV at b.cc g", status=None, name="SIGSEGV")
OTHER = attempt(Outcome.CRASH, "signal SIGSEGV at z.cc z", status=None, name="SIGSEGV")
OK = attempt(Outcome.OK, status=0, seconds=1.5)
HANG = attempt(Outcome.HANG, status=None, name="SIGABRT")
KILLED = attempt(Outcome.HANG, status=None, name="SIGKILL")
BARE = attempt(Outcome.ERROR, status=3)


@pytest.mark.parametrize(
    ("bad", "one", "says"),
    [
        (SEGV, SEGV, Sample.BAD),
        (SEGV, SAME, Sample.BAD),
        (SEGV, OTHER, Sample.NOTHING),
        (SEGV, HANG, Sample.NOTHING),
        (SEGV, OK, Sample.GOOD),
        (SEGV, attempt(Outcome.SKIP, status=125), Sample.NOTHING),
        (SEGV, attempt(Outcome.INCONCLUSIVE, status=0), Sample.NOTHING),
        (SEGV, attempt(Outcome.INFRA, status=None), Sample.NOTHING),
        (HANG, KILLED, Sample.BAD),
        (BARE, BARE, Sample.BAD),
        (BARE, attempt(Outcome.ERROR, status=4), Sample.NOTHING),
        (BARE, attempt(Outcome.OOM, status=3), Sample.NOTHING),
    ],
)
def test_bad_is_the_failure_of_the_bad_end(bad: AttemptResult, one: AttemptResult, says: Sample) -> None:
    failure = failure_of([bad])
    assert failure is not None
    assert sample(one, failure) is says


def test_the_most_frequent_failure_is_the_one_looked_for() -> None:
    failure = failure_of([BARE, SEGV, OK, OK, OK, SAME])
    assert failure is not None
    assert words(failure) == "signal SIGSEGV at a.cc f"
    assert sample(BARE, failure) is Sample.NOTHING
    assert failure_of([OK, OK]) is None
    assert words(failure_of([BARE]) or Failure()) == "error 3"
    assert words(failure_of([HANG]) or Failure()) == "hang"


def test_a_glob_means_titles() -> None:
    glob = Failure(glob="SIGSEGV at b.cc*")
    assert [sample(one, glob) for one in (SEGV, SAME, OTHER, BARE, OK)] == [
        *(Sample.BAD, Sample.BAD, Sample.NOTHING, Sample.NOTHING, Sample.GOOD)
    ]
    assert words(glob) == "SIGSEGV at b.cc*"


def test_a_number_decides_only_where_the_attempt_was_ok() -> None:
    failure = by_metric("seconds > 1, < 9")
    assert words(failure) == "seconds > 1, < 9"
    slow, fast = attempt(Outcome.OK, status=0, seconds=2.0), attempt(Outcome.OK, status=0, seconds=0.5)
    unproved = attempt(Outcome.INCONCLUSIVE, status=0, seconds=2.0)
    failed = attempt(Outcome.ERROR, status=1, seconds=2.0)
    silent = attempt(Outcome.OK, status=0)
    assert [sample(one, failure) for one in (slow, fast, unproved, failed, silent)] == [
        *(Sample.BAD, Sample.GOOD, Sample.NOTHING, Sample.NOTHING, Sample.NOTHING)
    ]


def numbers(*values: float) -> list[AttemptResult]:
    return [attempt(Outcome.OK, status=0, x=value) for value in values]


@pytest.mark.parametrize(
    ("good", "bad", "condition"),
    [((1, 2, 3), (9, 10, 11), "> 6"), ((9, 10), (1, 2), "< 5.5"), ((1,), (2,), "> 1.5"), ((-1,), (1e30,), "> 5e+29")],
)
def test_nearer_to_the_bad_one(good: tuple[float, ...], bad: tuple[float, ...], condition: str) -> None:
    failure = by_change("x", numbers(*good), numbers(*bad))
    assert failure.condition == condition
    assert {sample(one, failure) for one in numbers(*good)} == {Sample.GOOD}
    assert {sample(one, failure) for one in numbers(*bad)} == {Sample.BAD}


@pytest.mark.parametrize("bad", [(3,), (2, 9), (1,)])
def test_numbers_that_overlap_tell_nothing(bad: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="does not tell the good version from the bad one"):
        by_change("x", numbers(1, 2, 3), numbers(*bad))


def test_a_number_must_be_there() -> None:
    with pytest.raises(UserError, match="the bad version that ended well printed"):
        by_change("x", numbers(1), [OK])


@pytest.mark.parametrize("text", ["", "> 3", "x=3", "x>", "x > a", "x > inf"])
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--metric"):
        by_metric(text)


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        self.lines.append(f"{phase} {name}{f' ({total})' if total is not None else ''}")
        return super().start(phase, name, total, unit)

    def note(self, message: str) -> None:
        self.lines.append(message)


SOON = 0.05
"""Seconds of patience."""


def test_a_quiet_listener_measures_attempts() -> None:
    quiet, began = Quiet(Heard(), threading.Event()), time.monotonic()
    first, second = quiet.start("run", "a#1"), quiet.start("run", "b#1")
    time.sleep(SOON)
    first.finish()
    first.finish()
    second.finish("ok")
    assert 0.8 * SOON < quiet.running <= time.monotonic() - began  # at the same time, so counted once
    stopped = quiet.running
    time.sleep(0.02)
    assert quiet.running == stopped


def test_a_quiet_listener_tells_a_thing_once() -> None:
    quiet = Quiet(heard := Heard(), threading.Event())
    quiet.start("run", "attempts", 1)
    quiet.start("run", "attempts", 7)
    quiet.note("1 attempts of 1 cells; 12 MB to download")
    quiet.note("2 attempts of 1 cells; 7.5 MB to download")
    assert heard.lines == ["run attempts (7)", "1 attempts of 1 cells; 12 MB to download"]


def shown_within(heard: Heard, lines: list[str]) -> bool:
    end = time.monotonic() + 10
    while heard.lines != lines and time.monotonic() < end:
        time.sleep(0.01)
    return heard.lines == lines


@pytest.mark.parametrize("phase", ["lock", "fetch", "unpack", "venv", "base", "build", "copy"])
def test_what_a_search_waits_for_is_seen(phase: str) -> None:
    """Whatever it is: a phase that nobody thought of here must not be silence."""
    quiet = Quiet(heard := Heard(), threading.Event(), SOON)
    quiet.start(phase, "short").finish()
    quiet.start(phase, "long", 9)
    assert heard.lines == []
    assert shown_within(heard, [f"{phase} long (9)"])


def test_what_is_made_ready_ahead_is_seen_once_it_is_waited_for() -> None:
    quiet = Quiet(heard := Heard(), threading.Event(), SOON)
    attempt = quiet.start("run", "a#1")
    ahead, done = quiet.start("unpack", "next", 10), quiet.start("fetch", "done", 90_000_000, "B")
    time.sleep(3 * SOON)
    assert heard.lines == []
    ahead.advance(4)
    done.finish()
    attempt.finish()
    assert shown_within(heard, ["unpack next (6)"])  # the rest of it
    time.sleep(3 * SOON)
    assert heard.lines == ["unpack next (6)"]


def test_between_two_attempts_that_follow_each_other_nothing_is_waited_for() -> None:
    quiet = Quiet(heard := Heard(), threading.Event(), 4 * SOON)
    quiet.start("unpack", "ahead")
    for _ in range(8):
        attempt = quiet.start("run", "a#1")
        time.sleep(SOON)
        attempt.finish()
    assert heard.lines == []


def test_what_is_cut_off_at_the_end_is_waited_for_by_nobody() -> None:
    quiet = Quiet(heard := Heard(), over := threading.Event(), SOON)
    quiet.start("unpack", "ahead")
    over.set()
    time.sleep(3 * SOON)
    assert heard.lines == []
