"""What a run will do, decided before anything is touched: which cells, which are known, what must be downloaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from repromatrix.engines.base import Engine
from repromatrix.engines.gpu_host import GpuHost, Ground, libraries_of
from repromatrix.engines.gpus import Inventory, inventory
from repromatrix.envs.model import Impossible, Lock, Wheel
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.attempt import more
from repromatrix.spec.deviceless import unable
from repromatrix.spec.host import with_host
from repromatrix.spec.model import Cell, Environment, Excluded, Matrix, Repro, word


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for on the command line; empty and zero mean: as matrix.toml says.

    Attributes:
        params: Values that cells must have, as text; empty = all.
        single: Exactly one cell is wanted: it is run again and its output streamed.
        hlo: `text` or `passes`: collect at least this of the HLO, as in `Cell`.
    """

    repro: str = ""
    env: str = ""
    target: str = ""
    engine: str = ""
    jobs: int = 0
    repeat: int = 0
    rerun: bool = False
    offline: bool = False
    command: str = "invoke matrix"
    params: tuple[tuple[str, str], ...] = ()
    single: bool = False
    hlo: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files, read, and the cells that were asked for."""

    matrix: Matrix
    repros: tuple[Repro, ...]
    cells: tuple[Cell, ...]
    excluded: tuple[Excluded, ...]
    described: int
    """Cells that the files describe in all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A selection held against this host, the locks and the kept results.

    Attributes:
        locks: Of the environments that can exist.
        keys: Result key of every runnable cell.
        barred: Reason per cell that cannot run here: no such device, or an environment that cannot exist.
        missing: Wheels to be downloaded.
        infra: Cells whose environment could not be locked or has no base, with the reason.
        bases: Per Python minor version, where the interpreter comes from.
        grounds: Per environment with cells on GPUs, what these stand on.
        gpus: Of this host, as they were then; none where no cell runs on them.
    """

    selection: Selection
    locks: Mapping[Environment, Lock]
    keys: Mapping[Cell, str]
    barred: Mapping[Cell, str]
    missing: tuple[Wheel, ...]
    infra: Mapping[Cell, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    grounds: Mapping[Environment, Ground] = field(default_factory=dict)
    gpus: Inventory = field(default_factory=Inventory)

    def ground(self, cell: Cell) -> Ground:
        """What an attempt of `cell` gets of this host; nothing where it runs on no GPU."""
        return self.grounds.get(cell.environment, Ground()) if gpus_wanted(cell.target) else Ground()


def load(project: Project) -> tuple[Matrix, tuple[Repro, ...]]:
    """Read matrix.toml and the repros, and which environments are locked.

    Raises:
        InputErrors: With every mistake of the file, or of all scripts.
        UserError: A signature rule is wrong: told here, and not when the first attempt is graded.
    """
    from repromatrix.envs.lockfile import locked_environments
    from repromatrix.evidence.rules import pattern
    from repromatrix.spec.matrix import load_matrix
    from repromatrix.spec.repro import load_repros

    matrix = with_host(load_matrix(project.matrix_toml))
    for rule in matrix.signatures:
        pattern(rule)
    return replace(matrix, locked=locked_environments(project.locks)), load_repros(project.repros)


def read(project: Project, request: Request) -> Selection:
    """Read the files and keep the cells asked for; see `load` and `choose`."""
    matrix, repros = load(project)
    return choose(matrix, repros, request, request.engine or matrix.run.engine)


def choose(matrix: Matrix, repros: tuple[Repro, ...], request: Request, engine: str) -> Selection:
    """Expand the files into cells and keep those asked for.

    A glob of environments means those of the matrix; an exact id also one that is locked, see `spec/named.py`.

    Args:
        engine: Name of the engine that will run them: claims may depend on it.

    Raises:
        UserError: A glob that matches nothing; a target or parameter that does not exist.
    """
    from repromatrix.spec.cells import expand, names, select
    from repromatrix.spec.named import with_named

    everything = expand(matrix, repros, engine)
    asked = (names(request.repro or None, repros), request.env or None, request.target or None)
    ids = [each.id for each in matrix.locked]
    chosen = select(
        with_named(everything, matrix, repros, *asked, engine), *asked, default=matrix.run.default, locked=ids
    )
    cells = chosen.cells
    if request.params or request.single:
        cells = _with_params(cells, request)
    if request.repeat:
        cells = tuple(replace(cell, repeat=request.repeat) for cell in cells)
    if request.hlo:
        cells = tuple(cell if cell.repro.probe else replace(cell, hlo=more(cell.hlo, request.hlo)) for cell in cells)
    return Selection(matrix, repros, cells, chosen.excluded, len(everything.cells))


def tell_left_out(selection: Selection, listener: Listener) -> None:
    """A repro whose every cell is left out must not look like one that is well.

    Raises:
        UserError: Nothing is left at all.
    """
    if not selection.cells:
        raise UserError("no cell is left to run", hint="`uv run invoke cells` says why each is left out")
    chosen = {cell.repro.name for cell in selection.cells}
    reasons = {left.cell.repro.name: left.reason for left in reversed(selection.excluded)}
    for name, reason in reasons.items():
        if name not in chosen:
            listener.warn(f"{name}: no cell of it is chosen: {reason}")


def _with_params(cells: tuple[Cell, ...], request: Request) -> tuple[Cell, ...]:
    """The cells whose parameters have the values asked for; one alone where a single one is wanted."""
    named = {name for cell in cells for name, _ in cell.params}
    if unknown := [name for name, _ in request.params if name not in named]:
        raise UserError(
            f"no parameter {unknown[0]!r} in the chosen repros", hint=f"known: {', '.join(sorted(named)) or 'none'}"
        )
    wanted = dict(request.params)
    found = tuple(
        cell for cell in cells if all(wanted.get(name, word(value)) == word(value) for name, value in cell.params)
    )
    if request.single and len(found) != 1:
        listed = "\n    ".join(cell.id for cell in (found or cells)[:20])
        raise UserError(
            f"{len(found)} cells match, and one is wanted",
            hint=f"say which with --env, --target and --param; the choices:\n    {listed}",
        )
    return found


def gpus_wanted(target: str) -> int:
    """GPUs a target needs: `gpu` 1, `gpu:2` 2, all others 0."""
    kind, _, count = target.partition(":")
    return int(count or 1) if kind == "gpu" else 0


def bars(cells: Iterable[Cell], gpus: int) -> dict[Cell, str]:
    """Cells that this host, or the version of jax, cannot run, with the reason."""
    found = {}
    usable = len(os.sched_getaffinity(0))
    for cell in cells:
        wanted = gpus_wanted(cell.target)
        if wanted > gpus:
            has = f"{gpus} here" if gpus else "none here"
            found[cell] = f"needs {wanted} NVIDIA GPU{'s' * (wanted != 1)}, {has}"
        elif cell.described and (why := unable(cell.environment.jax)):
            found[cell] = why
        elif (cell.repro.cpus or 1) > usable:
            found[cell] = f"needs {cell.repro.cpus} CPUs, {usable} here"
    return found


def make(
    project: Project,
    request: Request,
    selection: Selection,
    engine: Engine,
    gpus: int,
    listener: Listener,
    cancel: threading.Event,
    given: Mapping[Environment, Lock] | None = None,
) -> Plan:
    """Lock what is not locked yet and hold the selection against this host.

    Args:
        given: Locks that are no file: what a search puts together to try.

    Raises:
        InfraError: Only where nothing at all can be said; trouble with one environment bars its cells alone.
    """
    from repromatrix.envs.lock import lock_all
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.results.key import hardware_facts, result_key

    barred = bars(selection.cells, gpus)
    infra: dict[Cell, str] = {}
    wanted = dict.fromkeys(cell.environment for cell in selection.cells if cell not in barred)
    given = given or {}
    asked = [each for each in wanted if each not in given]
    locked = lock_all(asked, selection.matrix, project, listener, offline=request.offline, cancel=cancel)
    locked |= {each: given[each] for each in wanted if each in given}
    locks: dict[Environment, Lock] = {}
    bases: dict[str, str | InfraError] = {}
    hardware = hardware_facts(project.state)
    on_gpus = {cell.environment for cell in selection.cells if gpus_wanted(cell.target) and cell not in barred}
    locked_on_gpus = [locked[each] for each in wanted if each in on_gpus]
    grounds, seen = _grounds(locked_on_gpus, selection.matrix, engine, listener)
    keys: dict[Cell, str] = {}
    for cell in selection.cells:
        if cell in barred:
            continue
        state = locked[cell.environment]
        if isinstance(state, Impossible):
            barred[cell] = state.reason
            continue
        if isinstance(state, InfraError):
            infra[cell] = state.line
            continue
        python = cell.environment.python
        if python not in bases:
            bases[python] = _basis(engine, python, listener, request.offline)
        base = bases[python]
        if isinstance(base, InfraError):
            infra[cell] = base.line
            continue
        ground = grounds[cell.environment] if gpus_wanted(cell.target) else Ground()
        if ground.unable:
            (barred if ground.is_final else infra)[cell] = ground.unable
            continue
        locks[cell.environment] = state
        keys[cell] = result_key(cell, state.hash, engine.name, base, {**hardware, **dict(ground.facts)})
    known = {python: base for python, base in bases.items() if isinstance(base, str)}
    store = WheelStore(project.store)
    wheels = {wheel.sha256: wheel for lock in locks.values() for wheel in lock.wheels}
    return Plan(selection, locks, keys, barred, tuple(store.missing(wheels.values())), infra, known, grounds, seen)


def _grounds(
    locked: Iterable[Lock | Impossible | InfraError], matrix: Matrix, engine: Engine, listener: Listener
) -> tuple[dict[Environment, Ground], Inventory]:
    """What the GPU cells of each environment stand on, and the GPUs; the host is asked nothing where there are none.

    Raises:
        UserError: A folder given for CUDA's libraries is not there, or holds none.
    """
    from repromatrix.results.key import gpu_facts

    locks = [state for state in locked if isinstance(state, Lock)]
    if not locks:
        return {}, Inventory()
    reach, seen = engine.gpu_access(), inventory()
    if reach.how != "host":
        listener.note(f"GPUs by {reach.why}" if reach.how else f"no GPUs for containers: {reach.why}")
    host = GpuHost(seen, reach, gpu_facts() or seen.identity(), libraries_of(matrix))
    grounds = {lock.environment: host.ground(lock) for lock in locks}
    for doubt in dict.fromkeys(doubt for ground in grounds.values() for doubt in ground.doubts):
        listener.warn(doubt)
    return grounds, seen


def _basis(engine: Engine, python: str, listener: Listener, offline: bool) -> str | InfraError:
    try:
        return engine.basis(python, listener, offline=offline)
    except InfraError as error:
        return error
