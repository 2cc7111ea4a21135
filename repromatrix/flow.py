"""The main job as a list of steps: read, plan, fetch, prepare, run, grade, keep, report.

Fetching and building overlap with running; every attempt is on disk before it is counted; an interrupted run leaves
what it finished and nothing that still runs.
"""

from __future__ import annotations

import shlex
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from repromatrix import __version__
from repromatrix.engines.base import ISOLATION, Attempt, Engine, Prepared, Raw
from repromatrix.engines.schedule import Done, Grant, Job, Scheduler
from repromatrix.errors import InfraError, ReproError, UserError
from repromatrix.events import Listener
from repromatrix.plan import Plan, Request, Selection, choose, gpus_wanted, load, make, word
from repromatrix.project import Project
from repromatrix.results.model import AttemptResult, CellResult, RunInfo
from repromatrix.results.store import Results
from repromatrix.spec.model import Cell, Environment, Outcome, SignatureRule
from repromatrix.ui.stream import streaming


@dataclass(frozen=True, slots=True)
class Run:
    """A finished or interrupted run: every selected cell with what is known of it."""

    selection: Selection
    cells: tuple[CellResult, ...]
    info: RunInfo
    interrupted: bool = False


@dataclass(slots=True)
class _Progress:
    """What the jobs of one run share."""

    prepared: dict[Environment, Prepared] = field(default_factory=dict)
    trouble: dict[Cell, str] = field(default_factory=dict)
    attempted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def run_matrix(project: Project, request: Request, listener: Listener, cancel: threading.Event) -> Run:
    """Do the main job.

    Raises:
        UserError: The files or the request are wrong; nothing was touched.
        InfraError: No engine, no disk, no network where all cells need it.
    """
    from repromatrix.engines.choose import choose_engine, count_gpus

    began, started = time.monotonic(), datetime.now(UTC)
    matrix, repros = load(project)
    engine = choose_engine(request.engine or matrix.run.engine, project, matrix, listener)
    selection = choose(matrix, repros, request, engine.name)
    for ended in engine.reap():
        listener.note(f"ended what an earlier run left behind: {ended}")
    gpus = count_gpus()
    plan = make(project, request, selection, engine, gpus, listener, cancel)
    keys = plan.keys.values()
    with Results(project.state) as results, results.writing(announce=listener.note):
        if aside := results.recover():
            listener.note(f"{len(aside)} unfinished attempts of earlier runs set aside in {aside[0].parent}")
        if request.rerun or request.single:
            results.forget(keys)
        kept = results.many(keys)
        wanting = {cell: cell.repeat - len(kept.get(key, ())) for cell, key in plan.keys.items()}
        todo = {cell: count for cell, count in wanting.items() if count > 0}
        shared = _Progress()
        interrupted = False
        if todo:
            _announce(project, plan, todo, engine, listener)
            try:
                _execute(project, request, plan, todo, engine, gpus, results, shared, listener, cancel)
            except KeyboardInterrupt:
                interrupted = True
        kept = results.many(keys, or_infra=True)
        cells = tuple(_cell_result(plan, cell, engine, kept, shared) for cell in selection.cells)
        results.save_cells(cells)
    info = RunInfo(
        command=request.command,
        started=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=round(time.monotonic() - began, 3),
        tool_version=__version__,
        engine=engine.name,
        isolation=engine.isolation,
        attempted=shared.attempted,
        reused=len(plan.keys) - len(todo),
        facts=host_facts(),
        extra={"isolation": ISOLATION},
    )
    return Run(selection, cells, info, interrupted)


def host_facts() -> tuple[tuple[str, str], ...]:
    """Facts of this machine that reports show, by name."""
    from repromatrix.results.key import hardware_facts

    return tuple(sorted(hardware_facts().items()))


def _announce(project: Project, plan: Plan, todo: Mapping[Cell, int], engine: Engine, listener: Listener) -> None:
    """Say how much is to be done and downloaded, and refuse a disk that cannot hold it."""
    needed = {cell.environment for cell in todo}
    wanted = {wheel.sha256 for env in needed for wheel in plan.locks[env].wheels}
    size = sum(wheel.size for wheel in plan.missing if wheel.sha256 in wanted)
    listener.note(
        f"{sum(todo.values())} attempts of {len(todo)} cells in {len(needed)} environments on {engine.name}; "
        + (f"{size / 1e6:.0f} MB to download" if size else "nothing to download")
    )
    project.store.mkdir(parents=True, exist_ok=True)
    # A wheel is kept as published, packed and, for venv, unpacked: about six times its published size (jaxlib: 5.6).
    free = shutil.disk_usage(project.store).free
    if free < 6 * size:
        raise InfraError(
            f"{free / 1e9:.1f} GB free, about {6 * size / 1e9:.1f} GB needed for {size / 1e9:.1f} GB of wheels",
            where=str(project.store),
            hint="free some space, or set REPROMATRIX_STORE to a folder on a larger disk",
        )


def _execute(
    project: Project,
    request: Request,
    plan: Plan,
    todo: Mapping[Cell, int],
    engine: Engine,
    gpus: int,
    results: Results,
    shared: _Progress,
    listener: Listener,
    cancel: threading.Event,
) -> None:
    from repromatrix.engines.choose import default_jobs

    run = plan.selection.matrix.run
    parallel = request.jobs or run.jobs or default_jobs()
    jobs: list[Job] = []
    for environment in dict.fromkeys(cell.environment for cell in todo):
        jobs += _environment_jobs(project, request, plan, environment, engine, shared, listener, cancel)
    total = sum(todo.values())
    overall = listener.start("run", "attempts", total)
    for cell, count in todo.items():
        for turn in range(count):
            jobs.append(
                _attempt_job(project, request, plan, cell, turn, engine, results, shared, listener, cancel, parallel)
            )
    owners = {job.name: cells for job, cells in _owners(jobs, todo).items()}

    def done(end: Done) -> None:
        if end.name.startswith("run "):
            overall.advance(1)
        if end.error is not None:
            for cell in owners.get(end.name, ()):
                shared.trouble.setdefault(cell, str(end.error))
            if not isinstance(end.error, ReproError):
                listener.warn(f"{end.name}: {type(end.error).__name__}: {end.error}")

    try:
        Scheduler({"net": 1, "build": 2, "cpu": parallel, "gpu": gpus}).run(jobs, done, cancel)
    finally:
        overall.finish()


def _owners(jobs: list[Job], todo: Mapping[Cell, int]) -> dict[Job, tuple[Cell, ...]]:
    """Cells whose attempt is lost when a job fails: an attempt's own, or all of an environment's."""
    found = {}
    for job in jobs:
        kind, _, rest = job.name.partition(" ")
        if kind == "run":
            found[job] = tuple(cell for cell in todo if rest.rpartition("#")[0] == cell.id)
        else:
            found[job] = tuple(cell for cell in todo if cell.environment.id == rest)
    return found


def _environment_jobs(
    project: Project,
    request: Request,
    plan: Plan,
    environment: Environment,
    engine: Engine,
    shared: _Progress,
    listener: Listener,
    cancel: threading.Event,
) -> list[Job]:
    from repromatrix.envs.wheels import WheelStore

    lock = plan.locks[environment]
    store = WheelStore(project.store)

    def fetch(_: Grant) -> None:
        from repromatrix.envs.index import addresses

        if engine.known(lock) is not None or not (missing := store.missing(lock.wheels)):
            return
        if request.offline:
            raise InfraError(
                f"{len(missing)} wheels of {lock.id} are not in the store and --offline forbids fetching them",
                where=str(project.store),
                hint="run once without --offline, or restore an archive",
            )
        store.fetch(missing, addresses(lock, plan.selection.matrix), listener, cancel)

    def prepare(_: Grant) -> None:
        found = engine.known(lock) or engine.prepare(lock, listener, cancel)
        with shared.lock:
            shared.prepared[environment] = found

    return [
        Job(f"fetch {lock.id}", frozenset(), {"net": 1}, fetch),
        Job(f"prepare {lock.id}", frozenset({f"fetch {lock.id}"}), {"build": 1}, prepare),
    ]


def _attempt_job(
    project: Project,
    request: Request,
    plan: Plan,
    cell: Cell,
    turn: int,
    engine: Engine,
    results: Results,
    shared: _Progress,
    listener: Listener,
    cancel: threading.Event,
    parallel: int,
) -> Job:
    key = plan.keys[cell]
    gpus = gpus_wanted(cell.target)

    def run(grant: Grant) -> None:
        prepared = shared.prepared[cell.environment]
        number, folder = results.new_attempt(key)
        attempt = lay_out(cell, f"{key[:16]}-{number}", folder, grant.gpus)
        task = listener.start("run", f"{cell.id}#{number}")
        (folder / "command").write_text(engine.command(prepared, attempt) + "\n")
        with streaming(folder) if request.single else nullcontext():
            raw = engine.run(prepared, attempt, cancel)
        if cancel.is_set():
            task.finish("cancelled")
            return
        graded = grade_attempt(cell, plan.selection.matrix.signatures, number, folder, raw, project)
        results.add(key, graded, {"cell": cell.id, "engine": engine.name, "identity": prepared.identity})
        with shared.lock:
            shared.attempted += 1
        task.finish(f"{graded.outcome.value} {graded.seconds:.1f}s")

    tokens = {"cpu": min(parallel, cell.repro.cpus or 1), "gpu": gpus}
    return Job(f"run {cell.id}#{turn}", frozenset({f"prepare {plan.locks[cell.environment].id}"}), tokens, run)


def lay_out(cell: Cell, ident: str, folder: Path, devices: tuple[int, ...]) -> Attempt:
    """Put the script and the files it needs into the attempt's folder.

    Raises:
        UserError: A file of the repro has gone.
    """
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    for name in (cell.repro.path.name, *cell.repro.files):
        source = cell.repro.path.parent / name
        target = work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            raise UserError("the file has gone", where=str(source), hint="restore it, or correct `files`") from None
    arguments = [part for name, value in cell.params for part in (f"--{name}", word(value))]
    return Attempt(
        id=ident,
        folder=folder,
        script=cell.repro.path.name,
        arguments=tuple(arguments),
        env=cell.env,
        timeout=cell.timeout,
        memory=cell.memory,
        cpus=cell.repro.cpus,
        gpus=len(devices),
        devices=devices,
        processes=cell.repro.processes,
    )


def grade_attempt(
    cell: Cell, rules: Sequence[SignatureRule], number: int, folder: Path, raw: Raw, project: Project
) -> AttemptResult:
    """What one attempt means, from the supervisor's record and the logs in `folder`."""
    from repromatrix.evidence.outcome import GradeContext, grade

    stdout, stderr = (read_log(folder, name) for name in ("stdout", "stderr"))
    found = grade(raw, stdout, stderr, GradeContext.of(cell, tuple(rules)))
    return AttemptResult(
        number=number,
        outcome=found.outcome,
        exit_status=found.exit_status,
        signal=found.signal,
        signature=found.signature,
        reason=found.reason,
        seconds=raw.seconds,
        started=raw.started,
        evidence=str(folder.relative_to(project.root)),
        metrics=found.metrics,
        peak_memory=raw.peak_memory,
        notes=(*raw.notes, *found.notes),
    )


def read_log(folder: Path, name: str) -> str:
    """A log's text, those of several ranks one after the other; undecodable bytes become U+FFFD.

    Args:
        name: `stdout` or `stderr`; ranks write `stdout.0`, `stdout.1`...
    """
    ranks = sorted(folder.glob(f"{name}.[0-9]*"), key=lambda path: int(path.suffix[1:]))
    paths = [path for path in (folder / name, *ranks) if path.is_file()]
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in paths)


def _cell_result(
    plan: Plan,
    cell: Cell,
    engine: Engine,
    kept: Mapping[str, tuple[AttemptResult, ...]],
    shared: _Progress,
) -> CellResult:
    from repromatrix.results.assemble import assemble

    key = plan.keys.get(cell, "")
    lock = plan.locks.get(cell.environment)
    base = plan.bases.get(cell.environment.python, "")
    if cell in plan.barred:
        absent = (Outcome.SKIP, plan.barred[cell])
    elif cell in plan.infra:
        absent = (Outcome.INFRA, plan.infra[cell])
    else:
        absent = (Outcome.INFRA, shared.trouble.get(cell, "the run was interrupted before this cell"))
    ran = engine.name if key else ""
    return assemble(
        cell,
        key,
        kept.get(key, ()),
        absent,
        engine=ran,
        base=base if ran else "",
        lock=lock if ran else None,
        command=again(cell),
    )


def again(cell: Cell) -> str:
    """The command that runs `cell` again."""
    params = [part for name, value in cell.params for part in ("--param", f"{name}={word(value)}")]
    place = ["--env", cell.environment.id, "--target", cell.target]
    return shlex.join(["uv", "run", "invoke", "run", cell.repro.name, *place, *params])
