"""The main job as a list of steps: read, plan, fetch, prepare, run, grade, keep, report.

Fetching and building overlap with running; every attempt is on disk before it is counted; an interrupted run leaves
what it finished and nothing that still runs.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from repromatrix import __version__
from repromatrix.attempts import lay_out
from repromatrix.concluded import conclude
from repromatrix.engines.base import Attempt, Engine, Prepared, Raw
from repromatrix.engines.cores import store as store_cores
from repromatrix.engines.device_memory import watched
from repromatrix.engines.fitness import Fitness
from repromatrix.engines.schedule import Done, Grant, Job, Scheduler
from repromatrix.envs.lockfile import keep_lock
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError, ReproError
from repromatrix.events import Listener
from repromatrix.evidence.passes import without_log
from repromatrix.explain import due, dumps, explain, keep_own, run_dumping
from repromatrix.graded import grade_attempt, record
from repromatrix.plan import Plan, Request, Selection, choose, gpus_wanted, load, make, tell_left_out
from repromatrix.project import Project
from repromatrix.ready import Ready
from repromatrix.report.layout import counted
from repromatrix.results.model import AttemptResult, CellResult, RunInfo
from repromatrix.results.store import Results
from repromatrix.spec.model import Cell, Environment, Matrix, Outcome
from repromatrix.ui.stream import streaming


@dataclass(frozen=True, slots=True)
class Run:
    """A finished or interrupted run: every selected cell with what is known of it.

    Attributes:
        short: Cells with a verdict of fewer attempts than were wanted, since infrastructure failed in the others.
    """

    selection: Selection
    cells: tuple[CellResult, ...]
    info: RunInfo
    interrupted: bool = False
    short: tuple[str, ...] = ()


def run_matrix(project: Project, request: Request, listener: Listener, cancel: threading.Event) -> Run:
    """Do the main job.

    Raises:
        UserError: The files or the request are wrong; nothing was touched.
        InfraError: No engine, no disk, no network where all cells need it.
    """
    matrix, repros = load(project)
    engine = ready_engine(project, matrix, request.engine or matrix.run.engine, listener)
    selection = choose(matrix, repros, request, engine.name)
    tell_left_out(selection, listener)
    return run_selection(project, request, selection, engine, listener, cancel)


def ready_engine(project: Project, matrix: Matrix, name: str, listener: Listener) -> Engine:
    """The engine called `name`, with nothing left in it of earlier runs.

    Raises:
        InfraError: It does not answer.
    """
    from repromatrix.engines.choose import choose_engine

    engine = choose_engine(name, project, matrix, listener)
    for ended in engine.reap():
        listener.note(f"ended what an earlier run left behind: {ended}")
    return engine


def run_selection(
    project: Project,
    request: Request,
    selection: Selection,
    engine: Engine,
    listener: Listener,
    cancel: threading.Event,
    ready: Ready | None = None,
    given: Mapping[Environment, Lock] | None = None,
) -> Run:
    """Run the cells of `selection` that are not known yet, each as often as it says.

    Args:
        request: Its `jobs`, `rerun`, `single`, `offline` and `command` count.
        ready: Makes environments ready, for whoever shares that work with others; None = for this run alone.
        given: Locks that are no file: what a search puts together to try.

    Raises:
        InfraError: No disk, no network where all cells need it.
    """
    from repromatrix.engines.choose import count_gpus, default_jobs

    began, started = time.monotonic(), datetime.now(UTC)
    matrix, gpus = selection.matrix, count_gpus()
    plan = make(project, request, selection, engine, gpus, listener, cancel, given)
    keys = plan.keys.values()
    with Results(project.state) as results, results.writing(announce=listener.note):
        if aside := results.recover():
            lie = "lies" if len(aside) == 1 else "lie"
            told = counted(len(aside), "unfinished attempt")
            listener.note(f"{told} of earlier runs {lie}, without cores, in {aside[0].parent}")
        if request.rerun or request.single:
            results.forget(keys)
        kept = results.many(keys)
        wanting = {cell: cell.repeat - len(kept.get(key, ())) for cell, key in plan.keys.items()}
        todo = {cell: count for cell, count in wanting.items() if count > 0}
        parallel = request.jobs or matrix.run.jobs or default_jobs()
        fitness = Fitness(plan.gpus, tell=listener.warn)
        ready = ready or Ready(project, matrix, engine, listener, cancel, offline=request.offline)
        work = _Work(project, request, plan, engine, results, listener, cancel, parallel, fitness, ready)
        interrupted = False
        if todo:
            _announce(project, plan, todo, engine, listener, offline=request.offline)
            try:
                work.do(todo, gpus)
            except KeyboardInterrupt:
                interrupted = True
        kept = results.many(keys, or_infra=True)
        # The kernel changes, and kept attempts ran under the one there was then.
        here = tuple(fact for fact in host_facts() if fact[0] != "kernel")
        cells = tuple(conclude(plan, cell, engine.name, kept, work.trouble, here) for cell in selection.cells)
        results.save_cells(cells)
    verdicts = zip(selection.cells, cells, strict=True)
    short = tuple(cell.id for cell, result in verdicts if cell in work.trouble and result.outcome is not Outcome.INFRA)
    info = RunInfo(
        command=request.command,
        started=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=round(time.monotonic() - began, 3),
        tool_version=__version__,
        engine=engine.name,
        isolation=engine.isolation,
        attempted=work.attempted,
        reused=len(plan.keys) - len(todo),
        facts=host_facts(),
    )
    return Run(selection, cells, info, interrupted, short)


def host_facts() -> tuple[tuple[str, str], ...]:
    """Facts of this machine that reports show, by name."""
    from repromatrix.results.key import gpu_host_facts, hardware_facts

    return tuple(sorted({**hardware_facts(), **gpu_host_facts()}.items()))


def _announce(
    project: Project, plan: Plan, todo: Mapping[Cell, int], engine: Engine, listener: Listener, *, offline: bool
) -> None:
    """Say how much is to be done and downloaded, and refuse a disk that cannot hold it."""
    needed = {cell.environment for cell in todo}
    wanted = {wheel.sha256 for env in needed for wheel in plan.locks[env].wheels}
    size = sum(wheel.size for wheel in plan.missing if wheel.sha256 in wanted)
    listener.note(
        f"{counted(sum(todo.values()), 'attempt')} of {counted(len(todo), 'cell')} "
        f"in {counted(len(needed), 'environment')} on {engine.name}; "
        + (f"{size / 1e6:.0f} MB {'missing' if offline else 'to download'}" if size else "nothing to download")
    )
    project.store.mkdir(parents=True, exist_ok=True)
    for env in needed:
        keep_lock(plan.locks[env], project.store)
    # A wheel is kept as published, packed and, for venv, unpacked: about six times its published size (jaxlib: 5.6).
    free = shutil.disk_usage(project.store).free
    if free < 6 * size:
        raise InfraError(
            f"{free / 1e9:.1f} GB free, about {6 * size / 1e9:.1f} GB needed for {size / 1e9:.1f} GB of wheels",
            where=str(project.store),
            hint="free some space, or set REPROMATRIX_STORE to a folder on a larger disk",
        )


@dataclass(slots=True)
class _Work:
    """The jobs of one run, and what they share.

    Attributes:
        parallel: Attempts at once.
        fitness: Of the GPUs.
        ready: Makes environments ready.
        prepared: Environments that are ready.
        tools: What reads stacks, by Python minor version; absent where it cannot be had.
        told: Why it cannot, each said once.
        trouble: Why a cell's attempt was lost.
        attempted: Attempts that ended.
        turns: Who explains a cell, one attempt at a time.
        done_with: Cells whose HLO was collected by a second run.
    """

    project: Project
    request: Request
    plan: Plan
    engine: Engine
    results: Results
    listener: Listener
    cancel: threading.Event
    parallel: int
    fitness: Fitness
    ready: Ready
    prepared: dict[Environment, Prepared] = field(default_factory=dict)
    tools: dict[str, Path] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    trouble: dict[Cell, str] = field(default_factory=dict)
    attempted: int = 0
    turns: dict[Cell, threading.Lock] = field(default_factory=dict)
    done_with: set[Cell] = field(default_factory=set)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def do(self, todo: Mapping[Cell, int], gpus: int) -> None:
        """Attempt each cell of `todo` as often as it says, on `gpus` GPUs."""
        environments = list(dict.fromkeys(cell.environment for cell in todo))
        jobs = [self.tools_job(python) for python in dict.fromkeys(each.python for each in environments)]
        jobs += [job for environment in environments for job in self.environment_jobs(environment)]
        attempts: dict[str, Cell] = {}
        for cell, count in todo.items():
            for turn in range(count):
                jobs.append(self.attempt_job(cell, turn))
                attempts[jobs[-1].name] = cell
        overall = self.listener.start("run", "attempts", len(attempts))

        def done(end: Done) -> None:
            if end.name in attempts:
                overall.advance(1)
                # Its own, or that of the environment it needed; what fails after Ctrl-C does so because of it.
                if end.error is not None and not self.cancel.is_set():
                    self.trouble.setdefault(attempts[end.name], _words(end.error))
            if end.error is not None and not end.cause and not isinstance(end.error, ReproError):
                self.listener.warn(f"{end.name}: {type(end.error).__name__}: {end.error}")

        try:
            capacity = {"net": 1, "build": 2, "cpu": self.parallel, "gpu": gpus}
            Scheduler(capacity, self.fitness).run(jobs, done, self.cancel)
        finally:
            overall.finish()

    def tools_job(self, python: str) -> Job:
        """What reads stacks: a run without them is poorer, and no attempt fails for it."""

        def fetch(_: Grant) -> None:
            from repromatrix.envs.tools import tools

            matrix, offline = self.plan.selection.matrix, self.request.offline
            try:
                found = tools(python, matrix, self.project, self.listener, self.cancel, offline=offline)
            except Exception as error:
                with self.mutex:
                    told = _words(error) in self.told
                    self.told.add(_words(error))
                if not told and not self.cancel.is_set():
                    self.listener.warn(_words(error))
            else:
                if found is not None:
                    self.tools[python] = found

        return Job(_tools_of(python), frozenset(), {"net": 1}, fetch)

    def environment_jobs(self, environment: Environment) -> list[Job]:
        lock = self.plan.locks[environment]

        def fetch(_: Grant) -> None:
            self.ready.fetch(lock)

        def prepare(_: Grant) -> None:
            found = self.ready.prepare(lock)
            with self.mutex:
                self.prepared[environment] = found

        return [
            Job(f"fetch {lock.id}", frozenset(), {"net": 1}, fetch),
            Job(f"prepare {lock.id}", frozenset({f"fetch {lock.id}"}), {"build": 1}, prepare),
        ]

    def attempt_job(self, cell: Cell, turn: int) -> Job:
        def run(grant: Grant) -> None:
            number, folder = self.results.new_attempt(self.plan.keys[cell])
            task = self.listener.start("run", f"{cell.id}#{number}")
            try:
                note = self.attempt(cell, number, folder, grant.gpus)
            except BaseException:
                task.finish("failed")
                raise
            task.finish(note)

        tokens = {"cpu": min(self.parallel, cell.repro.cpus or 1), "gpu": gpus_wanted(cell.target)}
        needs = {f"prepare {self.plan.locks[cell.environment].id}", _tools_of(cell.environment.python)}
        return Job(f"run {cell.id}#{turn}", frozenset(needs), tokens, run)

    def attempt(self, cell: Cell, number: int, folder: Path, gpus: tuple[int, ...]) -> str:
        """Run one attempt and put it on record; returns how it ended."""
        key, prepared = self.plan.keys[cell], self.prepared[cell.environment]
        cores, tools = self.plan.selection.matrix.run.cores, self.tools.get(cell.environment.python)
        cuda = self.plan.ground(cell).libraries
        attempt = lay_out(cell, f"{key[:16]}-{number}", folder, gpus, cores=cores, tools=tools, cuda=cuda)
        (folder / "command").write_text(self.engine.command(prepared, attempt) + "\n")
        hlo = None
        told = without_log if dumps(cell) else None
        with (
            streaming(folder, attempt.processes, told) if self.request.single else nullcontext(),
            watched(gpus) as seen,
        ):
            if dumps(cell):
                raw, hlo = run_dumping(self.engine, prepared, attempt, cell, self.cancel)
            else:
                raw = self.engine.run(prepared, attempt, self.cancel)
        if self.cancel.is_set() and raw.infra:
            return "cancelled"
        notes = (*raw.notes, *filter(None, [seen.trouble]), *store_cores(folder, self.cancel))
        idle = bool(gpus) and not seen.used and not seen.trouble
        broken = raw.infra or self.fitness.broken(gpus)
        raw = replace(raw, notes=notes, device_memory=seen.used, gpus_idle=idle, infra=broken)
        record(folder, raw)
        graded = self.grade(cell, number, folder, raw)
        second = due(cell, graded)
        if second and not self.explained(cell, graded, attempt):
            return "cancelled"
        if hlo is not None:
            keep_own(folder, raw, graded, hlo)
        if second or hlo is not None:
            graded = self.grade(cell, number, folder, raw)
        self.results.add(key, graded, {"cell": cell.id, "engine": self.engine.name, "identity": prepared.identity})
        with self.mutex:
            self.attempted += 1
            if graded.outcome is Outcome.INFRA:
                self.trouble.setdefault(cell, graded.reason)
        return f"{graded.outcome.value} {graded.seconds:.1f}s"

    def grade(self, cell: Cell, number: int, folder: Path, raw: Raw) -> AttemptResult:
        return grade_attempt(cell, self.plan.selection.matrix.signatures, number, folder, raw, self.project)

    def explained(self, cell: Cell, found: AttemptResult, attempt: Attempt) -> bool:
        """Collect the HLO of `cell`, once in this run; False where that was cancelled and the attempt needs it.

        Another attempt of the cell waits meanwhile, as its witness is looked for in the same HLO.
        """
        with self.mutex:
            turn = self.turns.setdefault(cell, threading.Lock())
        with turn:
            if cell in self.done_with:
                return True
            if self.request.single:
                self.listener.note(f"{found.outcome.value} after {found.seconds:.1f} s; a second run collects its HLO")
            task = self.listener.start("run", f"{cell.id}#{found.number} HLO")
            rules, prepared = self.plan.selection.matrix.signatures, self.prepared[cell.environment]
            try:
                ended = explain(cell, rules, found, attempt, self.engine, prepared, self.project, self.cancel)
            finally:
                task.finish()
            if ended:
                self.done_with.add(cell)
            return ended or cell.hlo == "failures"  # a failure counts without its HLO, a witness does not


def _tools_of(python: str) -> str:
    return f"tools py{python.replace('.', '')}"


def _words(error: BaseException) -> str:
    return error.line if isinstance(error, ReproError) else f"{type(error).__name__}: {error}"
