"""Jobs with dependencies and token demands, run on threads in the order given.

A token stands for a share of something limited: a CPU, a GPU, the network, a build. One job that fails stops only those
that need it. The first job in line that does not fit reserves all its tokens, each other one what it lacks: so a job
that wants the whole host starts as soon as those before it have ended, while jobs that want other things fill the rest.

GPUs are looked at before a job gets them and after it: one that broke stays out, one that a stranger works on is not
granted until he has gone, which is asked where the others do not suffice. A job for which too few are left is given up.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from repromatrix.engines.fitness import Fitness, Unfit
from repromatrix.errors import InfraError

_TICK = 0.2
"""Seconds after which the caller's thread looks whether a signal has come."""

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
        error: What it raised, or None. For a job that never ran, the error of the job it needed, or an `InfraError`
            that says what is wrong with the GPUs.
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
        gpus: Who knows the GPUs; None = all are alike and fit.
    """

    def __init__(self, capacity: Mapping[str, int], gpus: Fitness | None = None) -> None:
        self.capacity = dict(capacity)
        self.gpus = gpus or Fitness()

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
        state = _State(list(jobs), self.capacity, self.gpus)
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
            # Not without end: a signal that another thread took (one that has just started a process, and lets signals
            # in again) wakes nobody here. Seen where environments are made ready beside an attempt.
            while not finished.wait(_TICK):
                pass
        except KeyboardInterrupt:
            cancel.set()
            # It may have come while the thread was being started; one that never was will not finish.
            while not finished.wait(_TICK) and thread.is_alive():
                pass
            raise
        if trouble:
            raise trouble[0]
        return results


@dataclass(frozen=True, slots=True)
class _Start:
    """A job with what it is granted.

    Attributes:
        asks: Not the job is to be done, but its GPUs, all of them strangers', are looked at; it holds nothing else.
    """

    job: Job
    grant: Grant
    asks: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    """A job that has given back its tokens.

    Attributes:
        done: How it ended; None where it was not started, for what speaks against its GPUs.
        unfit: What that is. After a job that ran: what broke meanwhile.
    """

    start: _Start
    done: Done | None
    unfit: Unfit = Unfit()  # noqa: RUF009


def _coordinate(state: _State, report: Callable[[Done], None], cancel: threading.Event) -> None:
    ended: queue.SimpleQueue[_End] = queue.SimpleQueue()

    def work(start: _Start) -> None:
        job, gpus = start.job, start.grant.gpus
        try:
            unfit = state.fitness.settled(gpus, cancel)
            if cancel.is_set():
                ended.put(_End(start, Done(job.name, cause=CANCELLED)))
                return
            if unfit or start.asks:
                ended.put(_End(start, None, unfit))
                return
            job.run(start.grant)
            done = Done(job.name)
        except BaseException as error:  # whatever it is, the scheduler must hear that this job has ended
            done = Done(job.name, error=error)
        ended.put(_End(start, done, _broken(state.fitness, gpus)))

    def start() -> None:
        while not cancel.is_set() and (chosen := state.next()) is not None:
            try:
                # Daemonic, so that a second Ctrl-C ends the process even when a job does not look at `cancel`.
                threading.Thread(target=work, args=(chosen,), name=chosen.job.name, daemon=True).start()
            except RuntimeError as error:  # the host has no thread left
                ended.put(_End(chosen, Done(chosen.job.name, error=error)))

    try:
        start()
        while state.running:
            for done in state.end(ended.get()):
                report(done)
            start()
        for name in state.unstarted():
            report(Done(name, cause=CANCELLED))
    except BaseException:
        cancel.set()
        while state.running:
            state.end(ended.get())
        raise


def _broken(fitness: Fitness, gpus: tuple[int, ...]) -> Unfit:
    """What broke of a job's GPUs meanwhile; a stranger is looked for before the next one."""
    try:
        return Unfit(fitness.look(gpus).broken)
    except BaseException as error:
        return Unfit(dict.fromkeys(gpus, f"it cannot be looked at: {error!r}"))


class _State:
    """Which jobs wait, are ready, or run, and what is free; no thread of its own."""

    def __init__(self, jobs: list[Job], capacity: Mapping[str, int], fitness: Fitness) -> None:
        _check(jobs, capacity)
        self.fitness = fitness
        self.free = {kind: count for kind, count in capacity.items() if kind != GPU}
        self.gpus = set(range(capacity.get(GPU, 0)))
        self.left = len(self.gpus)
        self.unfit = Unfit()
        self.running: set[str] = set()
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

    def next(self) -> _Start | None:
        """Take the first job in line that may start, with what it is granted."""
        reserved: Counter[str] = Counter()
        for line in sorted((line for line in self.ready.values() if line), key=lambda line: line[0]):
            job = self.jobs[line[0][1]]
            if not self._suffice(job):
                if asked := self.gpus & self.unfit.taken.keys():
                    heapq.heappop(line)
                    return self._hold(_Start(job, Grant(tuple(sorted(asked))), asks=True))
                continue  # another job asks already
            lacks = {kind: n for kind, n in job.tokens.items() if n and n > self._free(kind) - reserved[kind]}
            if not lacks:
                heapq.heappop(line)
                return self._grant(job)
            reserved.update(lacks if reserved else job.tokens)
        return None

    def _free(self, kind: str) -> int:
        return len(self.gpus - self.unfit.taken.keys()) if kind == GPU else self.free.get(kind, 0)

    def _suffice(self, job: Job) -> bool:
        """Whether there are GPUs enough, free or not, that are neither broken nor taken."""
        return self.left - len(self.unfit.taken) >= job.tokens.get(GPU, 0)

    def _grant(self, job: Job) -> _Start:
        for kind, count in job.tokens.items():
            if kind != GPU and count:
                self.free[kind] -= count
        wanted = job.tokens.get(GPU, 0)
        gpus = self.fitness.choose(self.gpus - self.unfit.taken.keys(), wanted) if wanted else ()
        return self._hold(_Start(job, Grant(gpus)))

    def _hold(self, start: _Start) -> _Start:
        self.gpus -= set(start.grant.gpus)
        self.running.add(start.job.name)
        return start

    def end(self, end: _End) -> list[Done]:
        """Take back what a job held; how it ended, followed by those that can no longer run."""
        job, done = end.start.job, end.done
        self.running.remove(job.name)
        for kind, count in job.tokens.items():
            if kind != GPU and count and not end.start.asks:
                self.free[kind] += count
        self._take_back(end.start.grant.gpus, end.unfit)
        if done is None and self._suffice(job):
            self._make_ready(job.name)
            ended = []
        else:
            ended = self._ended(done or Done(job.name, error=self._too_few(job)))
        return [*ended, *(self._too_large() if end.unfit.broken else ())]

    def _take_back(self, gpus: tuple[int, ...], unfit: Unfit) -> None:
        taken = {gpu: why for gpu, why in self.unfit.taken.items() if gpu not in gpus}
        self.unfit = Unfit({**self.unfit.broken, **unfit.broken}, {**taken, **unfit.taken})
        self.gpus |= set(gpus) - unfit.broken.keys()
        self.left -= len(unfit.broken)

    def _ended(self, done: Done) -> list[Done]:
        del self.waits_for[done.name]
        if not done.ok:
            return [done, *(Done(name, error=done.error, cause=done.name) for name in self._give_up(done.name))]
        for name in self.dependents.get(done.name, ()):
            if name in self.waits_for:
                self.waits_for[name] -= 1
                if self.waits_for[name] == 0:
                    self._make_ready(name)
        return [done]

    def _too_large(self) -> list[Done]:
        """Give up what wants more GPUs than are left."""
        ended: list[Done] = []
        for name in list(self.waits_for):
            job = self.jobs[name]
            if name in self.waits_for and name not in self.running and job.tokens.get(GPU, 0) > self.left:
                ended += self._ended(Done(name, error=self._too_few(job)))
        for demand, line in self.ready.items():
            if dict(demand).get(GPU, 0) > self.left:
                line.clear()
        return ended

    def _too_few(self, job: Job) -> InfraError:
        wanted, fit = job.tokens.get(GPU, 0), self.left - len(self.unfit.taken)
        are = "are" if fit != 1 else "is"
        return InfraError(
            f"needs {wanted} GPU{'s' * (wanted != 1)}, and {fit or 'none'} {are} fit: {self.unfit.words()}"
        )

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
