"""The scheduler: order, tokens, failures and interruption, on simulated hosts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.engines.schedule import CANCELLED, Done, Grant, Job, Scheduler


def job(name: str, run: Callable[[Grant], object] = lambda grant: None, *needs: str, **tokens: int) -> Job:
    return Job(name, frozenset(needs), tokens, run)


def run(capacity: dict[str, int], *jobs: Job, cancel: threading.Event | None = None) -> dict[str, Done]:
    """Run the jobs; checks that each is reported exactly once."""
    seen: list[Done] = []
    results = Scheduler(capacity).run(jobs, seen.append, cancel or threading.Event())
    assert sorted(done.name for done in seen) == sorted(each.name for each in jobs)
    assert {done.name: done for done in seen} == results
    return results


def test_errors_are_reported() -> None:
    error = RuntimeError("x")

    def fail(_: Grant) -> None:
        raise error

    results = run({"cpu": 1}, job("a", cpu=1), job("b", fail, cpu=1), job("c", cpu=1))
    assert results == {"a": Done("a"), "b": Done("b", error=error), "c": Done("c")}
    assert [results[name].ok for name in "abc"] == [True, False, True]


def test_failure_reaches_all_that_need_it_and_nothing_else() -> None:
    error, ran = ValueError("no wheel"), []

    def fail(_: Grant) -> None:
        raise error

    results = run(
        {},
        job("run1", lambda grant: ran.append("run1"), "build"),
        job("report", lambda grant: ran.append("report"), "run1", "run2", "build"),
        job("build", fail),
        job("run2", lambda grant: ran.append("run2")),
    )
    assert ran == ["run2"]
    assert results["run1"] == Done("run1", error=error, cause="build")
    assert results["report"] == Done("report", error=error, cause="build")


def test_two_failures_report_a_dependent_once() -> None:
    def fail(_: Grant) -> None:
        raise ValueError

    assert run({}, job("a", fail), job("b", fail), job("c", lambda grant: None, "a", "b"))["c"].cause in ("a", "b")


def test_needs_run_before_and_the_order_given_decides() -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[Grant], object]:
        return lambda grant: order.append(name)

    run(
        {"cpu": 1},
        job("after", note("after"), "first", cpu=1),
        job("first", note("first"), cpu=1),
        job("second", note("second"), cpu=1),
        job("late", note("late"), cpu=1),
    )
    assert order == ["first", "after", "second", "late"]


def test_jobs_that_want_other_things_overlap() -> None:
    barrier = threading.Barrier(3, timeout=5)
    run(
        {"net": 1, "cpu": 2},
        *(
            job(n, lambda grant: barrier.wait(), **t)
            for n, t in [("n", {"net": 1}), ("a", {"cpu": 1}), ("b", {"cpu": 1})]
        ),
    )


def test_a_job_that_wants_everything_is_not_starved() -> None:
    order: list[str] = []

    def work(name: str) -> Callable[[Grant], object]:
        def run(_: Grant) -> None:
            order.append(name)
            time.sleep(0.01)

        return run

    small = [job(f"s{index}", work(f"s{index}"), cpu=1) for index in range(20)]
    run({"cpu": 2}, *small[:2], job("whole", work("whole"), cpu=2), *small[2:])
    assert order.index("whole") == 2


def test_what_the_first_in_line_wants_and_could_have_is_not_taken_from_it() -> None:
    """Else jobs of two kinds could hold one of its two tokens each in turn, and it would wait for all of them."""
    order: list[str] = []
    run(
        {"cpu": 2, "gpu": 2},
        job("holds", lambda grant: time.sleep(0.2), gpu=1),
        job("both", lambda grant: order.append("both"), gpu=2, cpu=1),
        job("cpus", lambda grant: order.append("cpus"), cpu=2),
    )
    assert order == ["both", "cpus"]


def test_what_waits_for_gpus_lets_cpu_jobs_pass() -> None:
    release = threading.Event()
    order: list[str] = []

    def hold(_: Grant) -> None:
        assert release.wait(5)

    def let_go(_: Grant) -> None:
        order.append("cpu")
        release.set()

    run(
        {"cpu": 3, "gpu": 2},
        job("holds", hold, cpu=1, gpu=1),
        job("wants both", lambda grant: order.append("wants both"), cpu=1, gpu=2),
        job("cpu", let_go, cpu=1),
    )
    assert order == ["cpu", "wants both"]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([job("a"), job("a")], "same name"),
        ([job("a", lambda grant: None, "b")], "a needs b, which is no job"),
        ([job("a", gpu=3)], "a wants 3 of gpu, the capacity is 2"),
        ([job("a", tape=1)], "a wants 1 of tape, the capacity is 0"),
        ([job("a", lambda grant: None, "b"), job("b", lambda grant: None, "a")], "jobs need each other"),
    ],
)
def test_jobs_that_can_never_run_are_refused(jobs: list[Job], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduler({"gpu": 2}).run(jobs, lambda done: None, threading.Event())


def test_cancel_starts_no_more() -> None:
    cancel = threading.Event()
    results = run(
        {"cpu": 1},
        job("a", lambda grant: cancel.set(), cpu=1),
        job("b", cpu=1),
        job("c", lambda grant: None, "b"),
        cancel=cancel,
    )
    assert (results["a"].ok, results["b"].cause, results["c"].cause) == (True, CANCELLED, CANCELLED)


def test_trouble_in_the_callback_is_raised_after_the_running_jobs_ended() -> None:
    ended = threading.Event()

    def slow(_: Grant) -> None:
        time.sleep(0.2)
        ended.set()

    def refuse(done: Done) -> None:
        raise OSError("disk full")

    cancel = threading.Event()
    with pytest.raises(OSError, match="disk full"):
        Scheduler({"cpu": 2}).run([job("fast", cpu=1), job("slow", slow, cpu=1)], refuse, cancel)
    assert ended.is_set()
    assert cancel.is_set()


INTERRUPTED = r"""
import os, threading, time
from repromatrix.engines.schedule import Job, Scheduler
cancel = threading.Event()
def say(text):
    os.write(1, f"{text}\n".encode())  # print() writes the line and its end apart: threads would mix them
def work(grant):
    say("started")
    cancel.wait(10)
    time.sleep(0.2)
    say("ended")
jobs = [Job(f"j{n}", frozenset(), {"cpu": 1}, work) for n in range(4)]
try:
    Scheduler({"cpu": 2}).run(jobs, lambda done: say(f"{done.name} {done.cause or 'ran'}"), cancel)
except KeyboardInterrupt:
    say("interrupted")
"""


def test_ctrl_c_waits_for_what_runs() -> None:
    root = Path(__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    process.send_signal(signal.SIGINT)
    lines = process.communicate(timeout=10)[0].splitlines()
    assert process.returncode == 0
    assert sorted(lines) == sorted(
        ["ended", "ended", "j0 ran", "j1 ran", "j2 cancelled", "j3 cancelled", "interrupted"]
    )
    assert lines[-1] == "interrupted"


class Host:
    """Watches the jobs of a simulated host: who owns which GPU, and how much of each token is out."""

    def __init__(self, capacity: dict[str, int]) -> None:
        self.capacity = capacity
        self.out = dict.fromkeys(capacity, 0)
        self.owners: dict[int, str] = {}
        self.finished: set[str] = set()
        self.lock = threading.Lock()

    def work(self, name: str, needs: frozenset[str], tokens: dict[str, int], fails: bool) -> Callable[[Grant], None]:
        def run(grant: Grant) -> None:
            with self.lock:
                assert needs <= self.finished
                assert len(set(grant.gpus)) == tokens["gpu"]
                for index in grant.gpus:
                    assert 0 <= index < self.capacity["gpu"]
                    assert index not in self.owners
                    self.owners[index] = name
                for kind, count in tokens.items():
                    self.out[kind] += count
                    assert self.out[kind] <= self.capacity[kind]
            time.sleep(0.0005)
            with self.lock:
                for index in grant.gpus:
                    del self.owners[index]
                for kind, count in tokens.items():
                    self.out[kind] -= count
                if fails:
                    raise LookupError(name)
                self.finished.add(name)

        return run


@settings(deadline=None, max_examples=60)
@given(data=st.data(), gpus=st.sampled_from([1, 2, 8]), cpus=st.integers(1, 4))
def test_no_gpu_has_two_owners_and_everything_ends(data: st.DataObject, gpus: int, cpus: int) -> None:
    host = Host({"gpu": gpus, "cpu": cpus})
    jobs: list[Job] = []
    expected: dict[str, bool] = {}
    for index in range(data.draw(st.integers(1, 25), label="jobs")):
        earlier = [each.name for each in jobs]
        needs = frozenset(data.draw(st.sets(st.sampled_from(earlier), max_size=2)) if earlier else ())
        tokens = {"gpu": data.draw(st.integers(0, gpus)), "cpu": data.draw(st.integers(0, cpus))}
        fails = data.draw(st.booleans()) and data.draw(st.booleans())
        name = f"j{index}"
        jobs.append(Job(name, needs, tokens, host.work(name, needs, tokens, fails)))
        expected[name] = not fails and all(expected[need] for need in needs)
    results = run(host.capacity, *data.draw(st.permutations(jobs)))
    assert {name: done.ok for name, done in results.items()} == expected
    assert not [done.error for done in results.values() if isinstance(done.error, AssertionError)]
    assert (host.owners, set(host.out.values())) == ({}, {0})


@settings(deadline=None, max_examples=30)
@given(
    gpus=st.sampled_from([1, 2, 8]),
    place=st.integers(0, 30),
    wants=st.lists(st.integers(1, 8), min_size=30, max_size=30),
)
def test_nothing_that_comes_later_overtakes_who_waits_for_the_whole_host(
    gpus: int, place: int, wants: list[int]
) -> None:
    started: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> Callable[[Grant], None]:
        def run(_: Grant) -> None:
            with lock:
                started.append(name)
            time.sleep(0.0003)

        return run

    jobs = [job(f"j{index}", work(f"j{index}"), gpu=min(gpus, want)) for index, want in enumerate(wants)]
    jobs.insert(place, job("whole", work("whole"), gpu=gpus))
    run({"gpu": gpus}, *jobs)
    # Of the same token, jobs before it may overtake each other; none behind it may start before it.
    assert set(started[: started.index("whole")]) == {each.name for each in jobs[:place]}


def test_ten_thousand_jobs_cost_little() -> None:
    jobs = [job(f"j{index}", cpu=1 + index % 2) for index in range(10_000)]
    began = time.monotonic()
    run({"cpu": 4}, *jobs)
    assert time.monotonic() - began < 10
