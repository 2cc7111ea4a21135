"""Jobs with dependencies and token demands, run on threads in the order given.

A token stands for a share of something limited: a CPU, a GPU, the network, a build. One job that fails stops only those
that need it. The first job in line that does not fit reserves its tokens, so a job that wants the whole host starts as
soon as those before it have ended, while jobs that want other things fill the rest.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

GPU = "gpu"
"""The token that is handed out by index: a job is told which GPUs are its own."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a running job holds: the indices of its GPUs, lowest first."""

    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One piece of work.

    Attributes:
        name: Unique within a run.
        needs: Names of the jobs that must have succeeded before.
        tokens: Demand per token; absent = 0.
        run: The work; what it raises ends up in `Done`.
    """

    name: str
    needs: frozenset[str]
    tokens: Mapping[str, int]
    run: Callable[[Grant], object]


@dataclass(frozen=True, slots=True)
class Done:
    """How a job ended.

    Attributes:
        error: What it raised, or None. For a job that never ran, the error of the job it needed.
        cause: Name of the failed job because of which it never ran, or `cancelled`; empty if it ran.
    """

    name: str
    error: BaseException | None = None
    cause: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None and not self.cause


CANCELLED = "cancelled"
"""`Done.cause` of a job that was not started because the run was cancelled."""


class Scheduler:
    """Runs jobs within a capacity.

    Args:
        capacity: Tokens of each kind; a kind that is absent has none.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self.capacity = dict(capacity)

    def run(self, jobs: Iterable[Job], on_done: Callable[[Done], object], cancel: threading.Event) -> dict[str, Done]:
        """Run every job whose needs succeed; returns when nothing runs any more.

        Args:
            jobs: The work.
            on_done: Called once a job, as it ends or is given up; from one thread, which is not the caller's.
            cancel: Set by anyone: no further job starts. Jobs that run are expected to look at it themselves.

        Returns:
            How every job ended, by name.

        Raises:
            ValueError: Names that are not unique, needs that are unknown or in a circle, demands above the capacity.
            KeyboardInterrupt: After Ctrl-C: `cancel` was set and the running jobs have ended. A second Ctrl-C does not
                wait for them.
            Exception: What `on_done` raised, after the running jobs have ended.
        """
        state = _State(list(jobs), self.capacity)
        results: dict[str, Done] = {}
        trouble: list[BaseException] = []
        finished = threading.Event()

        def report(done: Done) -> None:
            results[done.name] = done
            on_done(done)

        def coordinate() -> None:
            try:
                _coordinate(state, report, cancel)
            except BaseException as error:  # raised again below, in the caller's thread
                trouble.append(error)
            finally:
                finished.set()

        # Ctrl-C arrives in the main thread at any instruction; here it cannot tear the bookkeeping.
        thread = threading.Thread(target=coordinate, name="scheduler", daemon=True)
        try:
            thread.start()
            finished.wait()
        except KeyboardInterrupt:
            cancel.set()
            # It may have come while the thread was being started; one that never was will not finish.
            while not finished.wait(0.2) and thread.is_alive():
                pass
            raise
        if trouble:
            raise trouble[0]
        return results


def _coordinate(state: _State, report: Callable[[Done], None], cancel: threading.Event) -> None:
    ended: queue.SimpleQueue[tuple[Job, Grant, Done]] = queue.SimpleQueue()

    def work(job: Job, grant: Grant) -> None:
        try:
            job.run(grant)
            done = Done(job.name)
        except BaseException as error:  # whatever it is, the scheduler must hear that this job has ended
            done = Done(job.name, error=error)
        ended.put((job, grant, done))

    def start() -> None:
        while not cancel.is_set() and (chosen := state.next()) is not None:
            job, grant = chosen
            try:
                # Daemonic, so that a second Ctrl-C ends the process even when a job does not look at `cancel`.
                threading.Thread(target=work, args=(job, grant), name=job.name, daemon=True).start()
            except RuntimeError as error:  # the host has no thread left
                ended.put((job, grant, Done(job.name, error=error)))

    try:
        start()
        while state.running:
            for done in state.end(*ended.get()):
                report(done)
            start()
        for name in state.unstarted():
            report(Done(name, cause=CANCELLED))
    except BaseException:
        cancel.set()
        while state.running:
            state.end(*ended.get())
        raise


class _State:
    """Which jobs wait, are ready, or run, and what is free; no thread of its own."""

    def __init__(self, jobs: list[Job], capacity: Mapping[str, int]) -> None:
        _check(jobs, capacity)
        self.free = dict(capacity)
        self.gpus = list(range(capacity.get(GPU, 0)))
        self.running = 0
        self.jobs = {job.name: job for job in jobs}
        self.place = {job.name: index for index, job in enumerate(jobs)}
        self.waits_for = {job.name: len(job.needs) for job in jobs}
        self.dependents: dict[str, list[str]] = {}
        # One queue per demand: of jobs that want the same, only the first in line matters.
        self.ready: dict[frozenset[tuple[str, int]], list[tuple[int, str]]] = {}
        for job in jobs:
            for need in sorted(job.needs):
                self.dependents.setdefault(need, []).append(job.name)
            if not job.needs:
                self._make_ready(job.name)

    def _make_ready(self, name: str) -> None:
        demand = frozenset(self.jobs[name].tokens.items())
        heapq.heappush(self.ready.setdefault(demand, []), (self.place[name], name))

    def next(self) -> tuple[Job, Grant] | None:
        """Take the first job in line that may start, with what it is granted."""
        reserved: Mapping[str, int] = {}
        for line in sorted((line for line in self.ready.values() if line), key=lambda line: line[0]):
            job = self.jobs[line[0][1]]
            if all(
                count <= self.free.get(kind, 0) - reserved.get(kind, 0) for kind, count in job.tokens.items() if count
            ):
                heapq.heappop(line)
                return self._grant(job)
            reserved = reserved or job.tokens
        return None

    def _grant(self, job: Job) -> tuple[Job, Grant]:
        for kind, count in job.tokens.items():
            self.free[kind] = self.free.get(kind, 0) - count
        wanted = job.tokens.get(GPU, 0)
        grant, self.gpus = Grant(tuple(self.gpus[:wanted])), self.gpus[wanted:]
        self.running += 1
        return job, grant

    def end(self, job: Job, grant: Grant, done: Done) -> list[Done]:
        """Take back what `job` held; its `done`, followed by those of the jobs that can no longer run."""
        self.running -= 1
        for kind, count in job.tokens.items():
            self.free[kind] += count
        self.gpus = sorted([*self.gpus, *grant.gpus])
        del self.waits_for[job.name]
        if not done.ok:
            return [done, *(Done(name, error=done.error, cause=job.name) for name in self._give_up(job.name))]
        for name in self.dependents.get(job.name, ()):
            if name in self.waits_for:
                self.waits_for[name] -= 1
                if self.waits_for[name] == 0:
                    self._make_ready(name)
        return [done]

    def _give_up(self, failed: str) -> list[str]:
        """Everything that needs `failed`, directly or through others, and is not given up already."""
        lost: list[str] = []
        pending = [failed]
        while pending:
            for name in self.dependents.get(pending.pop(0), ()):
                if self.waits_for.pop(name, None) is not None:
                    lost.append(name)
                    pending.append(name)
        return lost

    def unstarted(self) -> list[str]:
        """Jobs that have neither ended nor been given up."""
        return [name for name in self.jobs if name in self.waits_for]


def _check(jobs: list[Job], capacity: Mapping[str, int]) -> None:
    names = {job.name for job in jobs}
    if len(names) != len(jobs):
        raise ValueError("two jobs have the same name")
    for job in jobs:
        if unknown := job.needs - names:
            raise ValueError(f"{job.name} needs {min(unknown)}, which is no job")
        for kind, count in job.tokens.items():
            if not 0 <= count <= capacity.get(kind, 0):
                raise ValueError(f"{job.name} wants {count} of {kind}, the capacity is {capacity.get(kind, 0)}")
    try:
        TopologicalSorter({job.name: job.needs for job in jobs}).prepare()
    except CycleError as error:
        raise ValueError(f"jobs need each other: {' -> '.join(error.args[1])}") from error
