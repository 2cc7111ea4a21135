"""The environment as JAX's bug template asks for it: `jax.print_environment_info()`, asked once and kept."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass

from repromatrix.compare import locked
from repromatrix.engines.choose import choose_engine, count_gpus
from repromatrix.envs.disk import write_text
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.plan import Request, gpus_wanted
from repromatrix.programs import program
from repromatrix.project import Project
from repromatrix.ready import fetch_missing
from repromatrix.results.key import gpu_facts, hardware_facts
from repromatrix.spec.model import Cell, Matrix

PROGRAM = "environment_info.py"
_PROCESSES = re.compile(r"\n+\+-+\+\n\| Processes:.*(?:\n[|+].*)*")
TIMEOUT = 120.0
"""Seconds; it takes 2 s on two cores."""


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What an environment says of itself.

    Attributes:
        text: As jax prints it, or the installed versions where jax could not; empty where nothing ran.
        trouble: Why it is not what jax prints; empty where it is.
    """

    text: str
    trouble: str = ""


def environment_info(
    project: Project,
    matrix: Matrix,
    cell: Cell,
    request: Request,
    listener: Listener,
    cancel: threading.Event,
) -> EnvironmentInfo:
    """Ask the environment of `cell`, on `request.engine`, as the cell's target needs it. Any failure is in `trouble`.

    The answer is kept in the state of the checkout, not in the store: it tells of this machine, too.

    Raises:
        UserError: The environment cannot exist.
        KeyboardInterrupt: `cancel` was set.
    """
    gpus = gpus_wanted(cell.target)
    if gpus > (here := count_gpus()):
        return EnvironmentInfo("", f"it needs {gpus} NVIDIA GPUs, and there are {here} here")
    try:
        (lock,) = locked(project, matrix, [cell.environment], request, listener, cancel)
        engine = choose_engine(request.engine or matrix.run.engine, project, matrix, listener)
        base = engine.basis(lock.python, listener, offline=request.offline)
        facts = {**hardware_facts(), **(gpu_facts() if gpus else {})}
        # XLA_FLAGS may be what makes it fail; then nothing would be told at all.
        env = tuple((name, value) for name, value in cell.env if name != "XLA_FLAGS")
        key = json.dumps([lock.hash, engine.name, base, gpus, env, facts], sort_keys=True)
        kept = project.state / "environment_info" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.txt"
        if kept.is_file():
            return EnvironmentInfo(without_processes(kept.read_text(encoding="utf-8").strip()))
        if engine.known(lock) is None:
            fetch_missing(lock, matrix, WheelStore(project.store), listener, cancel, offline=request.offline)
        asked = (PROGRAM, (), lock, project, engine, listener, cancel)
        with program(*asked, timeout=TIMEOUT, env=env, gpus=gpus, doing=f"environment of {lock.id}") as ran:
            said = ran.text("stdout").strip()
            trouble = "" if ran.raw.exit_status == 0 else f"{PROGRAM} {ran.ending}"
            if ran.raw.exit_status == 1 and (told := ran.text("stderr").strip()):
                trouble = told.splitlines()[-1]  # the exception that jax raised
    except InfraError as error:
        return EnvironmentInfo("", error.line)
    if not trouble:
        write_text(kept, said + "\n")
    return EnvironmentInfo(without_processes(said), trouble)


def without_processes(text: str) -> str:
    """`text` without nvidia-smi's table of processes: it has those of everybody on the machine, cut in the middle."""
    return _PROCESSES.sub("", text)
