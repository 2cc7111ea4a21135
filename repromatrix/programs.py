"""A program of `containers/` run in an environment for the tool's own use, outside any cell."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repromatrix.engines.attempt import SUPERVISOR, own_bytes
from repromatrix.engines.base import Attempt, Engine, Raw
from repromatrix.engines.local_cuda import CudaLibraries
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.project import Project

MOST = 64 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that has ended: how, and the folder with what it left."""

    raw: Raw
    folder: Path

    def text(self, name: str) -> str:
        """Content of a file in the folder.

        Raises:
            OSError: There is none.
        """
        return own_bytes(self.folder, name, MOST).decode("utf-8", "replace")

    @property
    def ending(self) -> str:
        """How it ended, and the end of what it said, in words."""
        how = (
            "took too long"
            if self.raw.timed_out
            else f"ended with {self.raw.signal or f'status {self.raw.exit_status}'}"
        )
        said = "\n".join(self.text(name).strip() for name in ("stdout", "stderr")).strip()
        return f"{how}: {said[-1500:]}" if said else how


@contextmanager
def program(
    name: str,
    arguments: tuple[str, ...],
    lock: Lock,
    project: Project,
    engine: Engine,
    listener: Listener,
    cancel: threading.Event,
    *,
    timeout: float,
    env: tuple[tuple[str, str], ...] = (),
    files: tuple[tuple[Path, str], ...] = (),
    gpus: int = 0,
    cuda: CudaLibraries | None = None,
    doing: str,
) -> Iterator[Ran]:
    """Run `containers/NAME` in the environment of `lock`, whose wheels are in the store; what it left goes afterwards.

    Args:
        files: (source, path in the work folder) of what it needs beside.
        gpus: The first so many are granted.
        cuda: CUDA's libraries of the host that it may use.
        doing: What it is done for, for the progress: `flags of jax0.10.2-cpu-py311`.

    Raises:
        InfraError: The engine failed.
        KeyboardInterrupt: `cancel` was set.
    """
    folder = project.state / "programs" / f"{lock.hash[:16]}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for source, target in ((SUPERVISOR.parent / name, name), *files):
            place = folder / "work" / target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        prepared = engine.known(lock) or engine.prepare(lock, listener, cancel)
        task = listener.start("run", doing)
        try:
            devices = tuple(range(gpus))
            attempt = Attempt(folder.name, folder, name, arguments, env, timeout, gpus=gpus, devices=devices, cuda=cuda)
            raw = engine.run(prepared, attempt, cancel)
        finally:
            task.finish()
        if cancel.is_set():
            raise KeyboardInterrupt
        if raw.infra:
            raise InfraError(f"{name} could not be run: {raw.infra}", where=lock.id)
        yield Ran(raw, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
