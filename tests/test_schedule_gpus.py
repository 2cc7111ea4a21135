"""GPUs handed out on simulated hosts: which ones, to whom, and what becomes of those that are not fit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.engines.device_memory import Peak
from repromatrix.engines.fitness import Fitness, Unfit, choose
from repromatrix.engines.gpus import Gpu, Inventory
from repromatrix.engines.schedule import CANCELLED, Done, Grant, Job, Scheduler
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.flow import run_matrix
from repromatrix.kept import regrade
from repromatrix.plan import Request
from repromatrix.project import find_project
from repromatrix.spec.model import Outcome
from tests.conftest import Checkout

STRANGER = 3 << 30

# ---- which GPUs ----

PAIRS = ((0, 1), (2, 3))


def test_joined_gpus_go_together_and_single_ones_leave_pairs_whole() -> None:
    assert choose({0, 1, 2, 3}, 2, PAIRS) == (0, 1)
    assert choose({1, 2, 3}, 2, PAIRS) == (2, 3)
    assert choose({1, 2, 3}, 1, PAIRS) == (1,)
    assert choose({0, 2, 3}, 1, PAIRS) == (0,)
    assert choose({0, 2}, 2, PAIRS) == (0, 2)  # no pair is free: it runs all the same
    assert choose({0, 1, 2, 3}, 3, PAIRS) == (0, 1, 2)


def test_the_lowest_where_links_make_no_difference() -> None:
    everyone = tuple(combinations(range(8), 2))
    assert choose({3, 7, 1, 5}, 2) == (1, 3)
    assert choose({3, 7, 1, 5}, 2, everyone) == (1, 3)


def test_a_host_of_many_gpus_is_answered_soon() -> None:
    halves = tuple(pair for half in (range(8), range(8, 16)) for pair in combinations(half, 2))
    began = time.monotonic()
    assert choose(set(range(1, 16)), 8, halves) == tuple(range(8, 16))
    assert time.monotonic() - began < 2


@given(
    free=st.sets(st.integers(0, 7), min_size=1),
    links=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1])),
    data=st.data(),
)
def test_never_a_split_set_when_a_joined_one_is_free(
    free: set[int], links: set[tuple[int, int]], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(free)))
    chosen = choose(free, count, links)
    assert len(set(chosen)) == count
    assert set(chosen) <= free

    def joined(gpus: Sequence[int]) -> int:
        return sum(pair in links for pair in combinations(sorted(gpus), 2))

    assert joined(chosen) == max(joined(each) for each in combinations(sorted(free), count))


# ---- simulated hosts ----


class Host:
    """GPUs as plain data that changes while jobs run, and who owns which."""

    def __init__(self, gpus: int, links: tuple[tuple[int, int, str], ...] = ()) -> None:
        self.seen = Inventory(tuple(Gpu(index, f"GPU-{index}", "NVIDIA H200", ecc=0) for index in range(gpus)), "580")
        self.seen = replace(self.seen, links=links)
        self.now = {gpu.index: gpu for gpu in self.seen.gpus}
        self.owners: dict[int, str] = {}
        self.started: list[str] = []
        self.wrong: list[str] = []
        self.said: list[str] = []
        self.looks = 0
        self.lock = threading.Lock()

    def look(self, gpus: Sequence[int]) -> Inventory:
        with self.lock:
            self.looks += 1
            return Inventory(tuple(self.now[index] for index in gpus))

    def fitness(self, patience: float = 0.0) -> Fitness:
        return Fitness(self.seen, self.look, self.said.append, patience)

    def change(self, index: int, **changes: object) -> None:
        with self.lock:
            self.now[index] = replace(self.now[index], **changes)  # type: ignore[arg-type]

    def work(
        self, name: str, breaks: bool = False, then: Callable[[], object] = lambda: None
    ) -> Callable[[Grant], None]:
        """A job that takes its GPUs and gives them back; `breaks` the first of them meanwhile."""

        def run(grant: Grant) -> None:
            with self.lock:
                self.started.append(name)
                for index in grant.gpus:
                    if index in self.owners:
                        self.wrong.append(f"{name} and {self.owners[index]} own GPU {index}")
                    if self.now[index].unfit():
                        self.wrong.append(f"{name} got GPU {index}: {self.now[index].unfit()}")
                    self.owners[index] = name
                    self.now[index] = replace(self.now[index], used=40 << 30)  # its own memory is no stranger's
            time.sleep(0.0005)
            then()
            with self.lock:
                for index in grant.gpus:
                    del self.owners[index]
                    self.now[index] = replace(self.now[index], used=0)
                if breaks and grant.gpus:
                    gone = grant.gpus[0]
                    self.now[gone] = replace(self.now[gone], xids=(79,))

        return run


def run(
    host: Host, jobs: list[Job], cpus: int = 4, cancel: threading.Event | None = None, patience: float = 0.0
) -> dict[str, Done]:
    seen: list[Done] = []
    capacity = {"cpu": cpus, "build": 1, "gpu": len(host.seen.gpus)}
    results = Scheduler(capacity, host.fitness(patience)).run(jobs, seen.append, cancel or threading.Event())
    assert sorted(done.name for done in seen) == sorted(job.name for job in jobs)
    assert not host.wrong
    assert not host.owners
    return results


def job(host: Host, name: str, gpus: int, breaks: bool = False, *needs: str, **tokens: int) -> Job:
    work = host.work(name, breaks)

    def run(grant: Grant) -> None:
        if len(set(grant.gpus)) != gpus:
            host.wrong.append(f"{name} wants {gpus} GPUs and got {grant.gpus}")
        work(grant)

    return Job(name, frozenset(needs), {"cpu": 1, "gpu": gpus, **tokens}, run)


def why(done: Done) -> str:
    assert isinstance(done.error, InfraError)
    return done.error.line


def test_two_jobs_of_two_get_the_pairs_that_nvlink_joins() -> None:
    host = Host(4, ((0, 2, "NVLink x4"), (1, 3, "NVLink x4"), (0, 1, "PCIe switch")))
    granted: list[tuple[int, ...]] = []
    both = threading.Barrier(2, timeout=5)

    def note(grant: Grant) -> None:
        both.wait()
        granted.append(grant.gpus)

    run(host, [Job(name, frozenset(), {"cpu": 1, "gpu": 2}, note) for name in "ab"])
    assert sorted(granted) == [(0, 2), (1, 3)]


def test_a_strangers_gpu_is_left_out() -> None:
    host = Host(2)
    host.change(0, used=STRANGER)
    results = run(host, [job(host, f"j{index}", 1) for index in range(5)])
    assert all(done.ok for done in results.values())
    assert host.said == ["GPU 0 is left out while that lasts: 3.0 GiB of its memory are in use by others"]


def test_too_few_fit_gpus_is_infrastructure_and_the_rest_goes_on() -> None:
    host = Host(2)
    host.change(1, used=STRANGER)
    jobs = [job(host, "both", 2), job(host, "after", 0, False, "both"), job(host, "one", 1), job(host, "cpu", 0)]
    results = run(host, jobs)
    assert why(results["both"]) == ("needs 2 GPUs, and 1 is fit: GPU 1: 3.0 GiB of its memory are in use by others")
    assert results["after"].cause == "both"
    assert (results["one"].ok, results["cpu"].ok) == (True, True)


def test_a_stranger_who_leaves_is_forgotten() -> None:
    host = Host(2)
    host.change(0, used=STRANGER)
    leaves = Job("leaves", frozenset(), {"cpu": 1, "gpu": 1}, lambda grant: host.change(0, used=0))
    assert all(done.ok for done in run(host, [leaves, job(host, "both", 2, False, "leaves")]).values())


def test_memory_that_is_about_to_become_free_is_waited_for() -> None:
    host = Host(1)
    host.change(0, used=STRANGER)
    threading.Timer(0.3, lambda: host.change(0, used=0)).start()
    assert run(host, [job(host, "a", 1)], patience=5.0)["a"].ok
    assert host.said == []


def test_a_gpu_that_breaks_stays_out() -> None:
    host = Host(2)
    jobs = [job(host, "breaks", 1, True), *(job(host, f"j{index}", 1) for index in range(4)), job(host, "both", 2)]
    results = run(host, jobs)
    assert [name for name, done in results.items() if not done.ok] == ["both"]
    assert "1 is fit: GPU 0: the kernel's log has a new Xid 79 of it" in why(results["both"])
    assert host.said == ["GPU 0 is left out for the rest of this run: the kernel's log has a new Xid 79 of it"]


def test_who_waits_in_vain_is_told_at_once() -> None:
    host, told = Host(2), threading.Event()
    jobs = [
        Job("long", frozenset(), {"gpu": 1}, lambda grant: None if told.wait(5) else pytest.fail("waited in vain")),
        job(host, "breaks", 1, True),
        job(host, "both", 2),
    ]
    ends: list[str] = []

    def done(end: Done) -> None:
        ends.append(end.name)
        if end.name == "both":
            told.set()

    results = Scheduler({"cpu": 4, "gpu": 2}, host.fitness()).run(jobs, done, threading.Event())
    assert ends == ["breaks", "both", "long"]
    assert results["long"].ok


def test_who_lacks_a_strangers_gpu_holds_up_nobody() -> None:
    """It is not waited for that all the others are free, only to find that they do not suffice."""
    host, told = Host(3), threading.Event()
    host.change(0, used=STRANGER)
    jobs = [
        Job("long", frozenset(), {"gpu": 1}, lambda grant: None if told.wait(5) else pytest.fail("waited in vain")),
        job(host, "three", 3),
        job(host, "one", 1),
    ]
    ends: list[str] = []

    def done(end: Done) -> None:
        ends.append(end.name)
        if len(ends) == 2:
            told.set()

    results = Scheduler({"cpu": 4, "gpu": 3}, host.fitness()).run(jobs, done, threading.Event())
    assert ends[-1] == "long"
    assert (results["long"].ok, results["one"].ok) == (True, True)
    assert why(results["three"]).startswith("needs 3 GPUs, and 2 are fit: GPU 0: 3.0 GiB")


def test_the_last_gpu_breaks() -> None:
    host = Host(1)
    results = run(host, [job(host, "breaks", 1, True), *(job(host, f"j{index}", 1) for index in range(9))])
    assert [done.ok for done in sorted(results.values(), key=lambda done: done.name)] == [True] + [False] * 9
    assert {why(done) for done in results.values() if not done.ok} == {
        "needs 1 GPU, and none are fit: GPU 0: the kernel's log has a new Xid 79 of it"
    }


def test_old_errors_are_told_and_such_gpus_come_last() -> None:
    host = Host(2)
    host.change(0, xids=(79,))
    host.seen = Inventory(tuple(host.now.values()))
    granted: list[tuple[int, ...]] = []
    for count in (1, 2):
        one = Job("j", frozenset(), {"gpu": count}, lambda grant: granted.append(grant.gpus))
        run(host, [one])
    assert granted == [(1,), (0, 1)]
    assert host.said[0] == "GPU 0: the kernel's log has Xid 79 of it: used only where the others do not suffice"


def test_what_the_driver_no_longer_tells_of_is_out() -> None:
    host = Host(2)
    looks = [Inventory(trouble="NVML does not answer: Unknown Error"), Inventory((host.now[1],))]
    fitness = Fitness(host.seen, lambda gpus: looks.pop(0))
    assert fitness.look([0]) == Unfit({0: "NVML does not answer: Unknown Error"})
    assert fitness.look([0, 1]) == Unfit({0: "NVML does not list it"})
    assert fitness.look([]) == Unfit()


def test_a_driver_that_never_answers_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repromatrix.engines.fitness.STUCK", 0.2)
    host, never = Host(2), threading.Event()

    def look(gpus: Sequence[int]) -> Inventory:
        if 0 in gpus:
            never.wait(30)
        return host.look(gpus)

    jobs = [job(host, f"j{index}", 1) for index in range(3)]
    results = Scheduler({"cpu": 1, "gpu": 2}, Fitness(host.seen, look, host.said.append)).run(
        jobs, lambda done: None, threading.Event()
    )
    never.set()
    assert all(done.ok for done in results.values())
    assert host.said == ["GPU 0 is left out for the rest of this run: NVML gave no answer within 0.2 s"]


def test_a_listener_that_fails_stops_nothing() -> None:
    host = Host(2)

    def tell(words: str) -> None:
        raise BrokenPipeError

    fitness = Fitness(host.seen, host.look, tell)
    ends = {}
    jobs = [job(host, "breaks", 1, True), job(host, "both", 2), job(host, "one", 1)]
    results = Scheduler({"cpu": 1, "gpu": 2}, fitness).run(
        jobs, lambda done: ends.update({done.name: done}), threading.Event()
    )
    assert results == ends
    assert results["breaks"].ok
    assert not results["both"].ok
    assert results["one"].ok


def test_what_an_attempt_had_is_told_in_one_sentence() -> None:
    host = Host(2)
    fitness = host.fitness()
    assert fitness.broken([0, 1]) == ""
    host.change(1, ecc=1)
    assert fitness.broken([0, 1]) == (
        "GPU 1: 1 new memory errors that ECC could not correct: what was run on it says nothing of a version"
    )
    assert fitness.broken([0]) == ""


def test_a_host_that_tells_nothing_is_not_asked() -> None:
    def refuse(gpus: Sequence[int]) -> Inventory:
        raise AssertionError("asked")

    assert Fitness(Inventory(trouble="NVML does not answer"), refuse).look([0, 1]) == Unfit()
    host = Host(2)
    run(host, [job(host, f"j{index}", 0) for index in range(5)])
    assert host.looks == 0


def test_cancelled_while_it_waits_for_a_stranger() -> None:
    host, cancel = Host(1), threading.Event()
    host.change(0, used=STRANGER)
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    results = run(host, [job(host, "a", 1), job(host, "b", 1)], cancel=cancel, patience=30.0)
    assert time.monotonic() - began < 5
    assert {done.cause for done in results.values()} == {CANCELLED}
    assert host.started == []


def test_who_waits_for_all_gpus_is_not_overtaken_while_builds_wait_too() -> None:
    host = Host(8)
    building = threading.Event()
    jobs = [
        Job("build 1", frozenset(), {"build": 1}, lambda grant: building.wait(5)),
        Job("build 2", frozenset(), {"build": 1}, lambda grant: None),  # first in line of those that wait
        job(host, "holds", 1),
        job(host, "all", 8),
        *(job(host, f"small {index}", 1) for index in range(6)),
    ]
    jobs[3] = Job("all", frozenset(), {"cpu": 1, "gpu": 8}, host.work("all", then=building.set))
    run(host, jobs)
    assert host.started[:2] == ["holds", "all"]


SIZES = st.sampled_from([0, 1, 2, 4, 8])


@settings(deadline=None, max_examples=80)
@given(data=st.data(), gpus=st.sampled_from([1, 2, 8]), cpus=st.integers(1, 4))
def test_whatever_breaks_and_whoever_comes_all_end(data: st.DataObject, gpus: int, cpus: int) -> None:
    """No GPU has two owners or is granted unfit, and a job fails only where too few are fit."""
    host = Host(gpus)
    strangers = data.draw(st.sets(st.integers(0, gpus - 1), max_size=gpus))
    for index in strangers:
        host.change(index, used=STRANGER)
    jobs = []
    for number in range(data.draw(st.integers(1, 20))):
        wanted = min(gpus, data.draw(SIZES))
        jobs.append(
            job(host, f"j{number}", wanted, data.draw(st.integers(0, 9)) == 0, cpu=data.draw(st.integers(1, cpus)))
        )
    results = run(host, jobs, cpus)
    fit = [gpu for gpu in host.now.values() if not gpu.unfit()]
    for each in jobs:
        done, wanted = results[each.name], each.tokens["gpu"]
        if wanted <= len(fit):
            assert done.ok
        if not done.ok:
            assert f"needs {wanted} GPU" in why(done)
        assert wanted <= gpus - len(strangers) or not done.ok


@settings(deadline=None, max_examples=40)
@given(data=st.data(), gpus=st.sampled_from([2, 8]), place=st.integers(0, 20))
def test_the_wait_for_all_gpus_is_bounded(data: st.DataObject, gpus: int, place: int) -> None:
    """Nothing behind a job that wants all GPUs gets any before it, whatever else is short."""
    host = Host(gpus)
    jobs = [
        job(
            host,
            f"j{index}",
            min(gpus, data.draw(SIZES)),
            cpu=data.draw(st.integers(1, 3)),
            build=data.draw(st.integers(0, 1)),
        )
        for index in range(20)
    ]
    jobs.insert(place, job(host, "all", gpus))
    assert all(done.ok for done in run(host, jobs, 3).values())
    before = {each.name for each in jobs[:place]}
    on_gpus = {each.name for each in jobs if each.tokens["gpu"]}
    assert set(host.started[: host.started.index("all")]) & on_gpus <= before


@settings(deadline=None, max_examples=30)
@given(data=st.data(), gpus=st.sampled_from([1, 2, 8]), after=st.integers(0, 10))
def test_cancelled_at_any_moment_all_end(data: st.DataObject, gpus: int, after: int) -> None:
    host, cancel = Host(gpus), threading.Event()

    def count() -> None:
        if len(host.started) > after:
            cancel.set()

    jobs = [
        Job(f"j{n}", frozenset(), {"cpu": 1, "gpu": min(gpus, data.draw(SIZES))}, host.work(f"j{n}", then=count))
        for n in range(15)
    ]
    results = run(host, jobs, cancel=cancel)
    assert all(done.ok or done.cause == CANCELLED for done in results.values())
    assert {name for name, done in results.items() if done.ok} == set(host.started)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_thousand_jobs_on_simulated_hosts(gpus: int) -> None:
    host = Host(gpus, tuple((first, second, "NVLink x18") for first, second in combinations(range(gpus), 2)))
    jobs = [job(host, f"j{index}", min(gpus, (0, 1, 2, 4, 8)[index % 5])) for index in range(1000)]
    began = time.monotonic()
    assert all(done.ok for done in run(host, jobs).values())
    assert time.monotonic() - began < 30


# ---- the whole job ----

BREAKS = """\
import os, pathlib, jax
print("GPUs", os.environ["CUDA_VISIBLE_DEVICES"])
pathlib.Path(os.environ["BROKEN"]).touch()
"""


@pytest.fixture
def two_gpus(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file: while it is there, the second of the two GPUs of this simulated host is broken."""
    text = (checkout.root / "matrix.toml").read_text().replace('cuda   = ["none"]', 'cuda   = ["12"]')
    (checkout.root / "matrix.toml").write_text(text)
    for name in os.environ:
        if name not in checkout.environ:
            monkeypatch.delenv(name)
    for name, value in checkout.environ.items():
        monkeypatch.setenv(name, value)
    host, mark = Host(2), checkout.root / "broken"

    def look(only: Sequence[int] | None = None) -> Inventory:
        host.change(1, xids=(79,) if mark.exists() else ())
        return host.look(only) if only is not None else host.seen

    monkeypatch.setattr("repromatrix.engines.choose.count_gpus", lambda: 2)
    for module in ("plan", "engines.fitness"):
        monkeypatch.setattr(f"repromatrix.{module}.inventory", look)
    return mark


def test_an_attempt_on_a_gpu_that_breaks_is_infrastructure_and_the_run_ends(checkout: Checkout, two_gpus: Path) -> None:
    env = f'{{ BROKEN = "{two_gpus}" }}'
    checkout.repro("breaks", BREAKS, targets='["gpu:2"]', env=env)
    checkout.repro("other", BREAKS, targets='["gpu"]', env=env)
    project = find_project(checkout.root)
    done = run_matrix(project, Request(engine="venv", jobs=1), Silent(), threading.Event())
    first, *both = [cell for cell in done.cells if cell.repro == "breaks"]
    assert (first.outcome, first.attempts[0].exit_status) == (Outcome.INFRA, 0)
    xid = "GPU 1: the kernel's log has a new Xid 79 of it"
    assert first.reason == f"{xid}: what was run on it says nothing of a version"
    assert {(cell.outcome, cell.reason) for cell in both} == {(Outcome.INFRA, f"needs 2 GPUs, and 1 is fit: {xid}")}
    alone = [cell for cell in done.cells if cell.repro == "other"]
    assert {cell.outcome for cell in alone} == {Outcome.OK}
    said = {(project.root / cell.attempts[0].evidence / "stdout").read_text() for cell in alone}
    assert said == {"GPUs 0\n"}
    assert regrade(project)[0] == []  # the host's word is kept with the evidence


def test_a_gpu_that_was_left_idle_proves_nothing(
    checkout: Checkout, two_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def watched(devices: Sequence[int]) -> Iterator[Peak]:
        yield Peak(used=use)

    use, project = 0, find_project(checkout.root)
    monkeypatch.setattr("repromatrix.flow.watched", watched)
    checkout.repro("idle", BREAKS, targets='["gpu"]', env=f'{{ BROKEN = "{two_gpus}.not" }}')
    done = run_matrix(project, Request(engine="venv"), Silent(), threading.Event())
    assert {(cell.outcome, cell.reason) for cell in done.cells} == {
        (Outcome.INCONCLUSIVE, "exit 0, but no memory of its GPUs was used: it ran on the CPU")
    }
    assert regrade(project)[0] == []
    use = 1 << 29
    done = run_matrix(project, Request(engine="venv", rerun=True), Silent(), threading.Event())
    assert {cell.outcome for cell in done.cells} == {Outcome.OK}
