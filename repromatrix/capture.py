"""The GPU of this machine described, to compile for it where it is not: `invoke target --capture`."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from repromatrix.compare import find_environment, locked
from repromatrix.engines.choose import choose_engine, count_gpus
from repromatrix.engines.gpu_host import GpuHost, libraries_of
from repromatrix.engines.gpus import inventory
from repromatrix.envs.disk import write_text
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.plan import Request, choose, gpus_wanted, load
from repromatrix.programs import program
from repromatrix.project import Project
from repromatrix.ready import fetch_missing
from repromatrix.spec.model import Cell, Environment, word

PROGRAM = "capture.py"
TIMEOUT = 600.0
"""Seconds; a repro that is autotuned brings its own."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was written.

    Attributes:
        description: The text proto of the GPU.
        autotune: Results of autotuning; None where none were asked for.
        said: What `capture.py` printed.
    """

    environment: str
    description: Path
    autotune: Path | None
    said: str


def capture(project: Project, name: str, request: Request, listener: Listener, cancel: threading.Event) -> Captured:
    """Write `containers/targets/NAME.txtpb`, and with a repro `NAME.autotune.txt` beside it.

    Args:
        request: Its environment, empty = the newest jax with NVIDIA's wheels; and the repro to be autotuned, empty =
            none, with its target and parameters.

    Raises:
        UserError: There is no GPU here, the name is wrong or taken, or the request does not mean one cell.
        InfraError: The environment or the engine failed, or the program wrote nothing.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise UserError(f"{name!r} is no name of a target", hint="letters, digits, - and _: --capture h200")
    folder = project.containers / "targets"
    description, results = folder / f"{name}.txtpb", folder / f"{name}.autotune.txt"
    for path in (description, *([results] if request.repro else [])):
        if path.exists():
            raise UserError("this file is there already", where=str(path), hint="remove it, or take another name")
    gpus = count_gpus()
    if not gpus:
        raise UserError(
            "there is no NVIDIA GPU here to describe",
            hint="run this where the GPU is, or `python containers/capture.py OUT` in an environment with jax there",
        )
    matrix, _ = load(project)
    engine = choose_engine(request.engine or matrix.run.engine, project, matrix, listener)
    cell = _cell(project, request, gpus) if request.repro else None
    environment = cell.environment if cell is not None else _environment(project, request)
    (lock,) = locked(project, matrix, [environment], request, listener, cancel)
    ground = GpuHost(inventory(), engine.gpu_access(), {}, libraries_of(matrix)).ground(lock)
    if ground.unable:
        raise InfraError(ground.unable, where=lock.id)
    if engine.known(lock) is None:
        fetch_missing(lock, matrix, WheelStore(project.store), listener, cancel, offline=request.offline)
    arguments = [description.name]
    files: list[tuple[Path, str]] = []
    if cell is not None:
        script = cell.repro.path
        files = [(script.parent / one, one) for one in (script.name, *cell.repro.files)]
        words = [part for key, value in cell.params for part in (f"--{key}", word(value))]
        arguments += ["--autotune", results.name, script.name, *words]
    asked = (PROGRAM, tuple(arguments), lock, project, engine, listener, cancel)
    with program(
        *asked,
        timeout=TIMEOUT + (cell.timeout if cell is not None else 0),
        env=cell.env if cell is not None else (),
        files=tuple(files),
        gpus=gpus_wanted(cell.target) if cell is not None else 1,
        cuda=ground.libraries,
        doing=f"description of the GPU with {lock.id}",
    ) as ran:
        if ran.raw.exit_status != 0:
            raise InfraError(f"{PROGRAM} {ran.ending}", where=lock.id, hint="`uv run invoke doctor` checks the GPU")
        written = [path for path in (description, results) if path.name in arguments]
        texts = [ran.text(f"work/{path.name}") for path in written]
        said = ran.text("stdout").strip()
    for path, text in zip(written, texts, strict=True):
        write_text(path, text)
    return Captured(lock.id, description, results if cell is not None else None, said)


def _environment(project: Project, request: Request) -> Environment:
    """The environment asked for, or the newest jax with NVIDIA's wheels."""
    matrix, repros = load(project)
    described = choose(matrix, repros, Request(env="*"), "")
    cells = (*described.cells, *(each.cell for each in described.excluded))
    local = libraries_of(matrix) is not None  # then the host's CUDA serves the environments without NVIDIA's wheels
    kinds = dict.fromkeys(cell.environment for cell in cells)

    def fits(each: Environment) -> bool:
        return each.cuda.isdigit() or (local and each.cuda.endswith("-local"))

    able = [each for each in kinds if fits(each)]
    if request.env:
        locked_ones = [each for each in matrix.locked if fits(each)]
        return find_environment(request.env, able, whose=" with NVIDIA's wheels", locked=locked_ones)
    if not able:
        raise UserError('no environment has NVIDIA\'s wheels (cuda = "12" or "13")', where=str(project.matrix_toml))
    return max(able, key=lambda each: (each.cuda.isdigit(), _newest(each)))


def _newest(environment: Environment) -> Version:
    try:
        return Version(environment.jax)
    except InvalidVersion:
        return Version("0")


def _cell(project: Project, request: Request, gpus: int) -> Cell:
    """The one cell of the repro that runs on GPUs of this machine.

    Raises:
        UserError: None or several do.
    """
    matrix, repros = load(project)
    asked = replace(request, env=request.env or "*", target=request.target or "gpu*", single=True)
    (cell,) = choose(matrix, repros, asked, request.engine).cells
    if not 0 < gpus_wanted(cell.target) <= gpus:
        raise UserError(f"{cell.id} needs {gpus_wanted(cell.target)} GPUs, {gpus} here", hint="choose with --target")
    return cell
