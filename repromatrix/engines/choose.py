"""Which engine runs the cells, and how much of the host it may use."""

from __future__ import annotations

import os
from pathlib import Path

from repromatrix.engines.base import Engine
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.model import Matrix

KNOWN = ("docker", "podman", "venv")
LATER = ("slurm",)


def choose_engine(name: str, project: Project, matrix: Matrix, listener: Listener) -> Engine:
    """The engine called `name`; `auto` takes the first of docker, podman, venv that answers, and says which it is.

    Raises:
        UserError: No engine of this name.
        InfraError: The engine asked for by name does not answer.
    """
    if name in LATER:
        raise UserError(f"engine {name} is not built yet", hint=f"use one of: auto, {', '.join(KNOWN)}")
    if name not in ("auto", *KNOWN):
        raise UserError(f"no engine is called {name!r}", hint=f"use one of: auto, {', '.join(KNOWN)}")
    passed: list[str] = []
    for candidate in KNOWN if name == "auto" else (name,):
        engine = _make(candidate, project, matrix)
        why = engine.unavailable()
        if not why:
            if passed:
                others = " and ".join(passed)
                listener.note(f"engine {candidate}, as {others} cannot be used here: `invoke doctor` says why")
            return engine
        if name != "auto":
            raise InfraError(f"engine {candidate} does not answer: {why}", hint="`invoke doctor` says what to do")
        passed.append(candidate)
    raise InfraError("no engine answers", hint="`invoke doctor` says what is missing")


def _make(name: str, project: Project, matrix: Matrix) -> Engine:
    from repromatrix.envs.wheels import WheelStore

    if name == "docker":
        from repromatrix.engines.docker import DockerEngine

        return DockerEngine(project, matrix)
    if name == "podman":
        from repromatrix.engines.podman import PodmanEngine

        return PodmanEngine(project, matrix)
    from repromatrix.engines.venv import VenvEngine

    return VenvEngine(WheelStore(project.store))


def count_gpus() -> int:
    """NVIDIA GPUs of this host, by their device nodes (`/dev/nvidia0`...): the driver makes one for each."""
    return sum(1 for node in Path("/dev").glob("nvidia[0-9]*") if node.name.removeprefix("nvidia").isdigit())


def default_jobs() -> int:
    """Attempts at once: one per two usable CPUs, since XLA compiles on several threads, but two where there are two."""
    usable = len(os.sched_getaffinity(0))
    return min(usable, max(2, usable // 2))
