"""Which of CUDA's libraries the processes of an attempt really had in memory: looked at from the host while it runs.

What is locked or named is not always what is loaded: an RPATH, a preloaded copy or the image's own may win.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from repromatrix.engines.attempt import ATTEMPT_MARK
from repromatrix.engines.base import Attempt
from repromatrix.envs.model import Lock

PERIOD = 0.5
"""Seconds between two looks; a jax that does anything on a GPU lives for several."""

WHEELS = {
    "cudart": r"nvidia-cuda-runtime(-cu\d+)?",
    "cublas": r"nvidia-cublas(-cu\d+)?",
    "cudnn": r"nvidia-cudnn-cu\d+",
    "nccl": r"nvidia-nccl-cu\d+",
}
"""The libraries that are told of, and the wheels that bring them."""

_MAPPED = re.compile(r"(/\S*/lib(cudart|cublas|cudnn|nccl)\.so[\w.]*)$", re.MULTILINE)


@dataclass(slots=True)
class Loaded:
    """What was seen: library -> path, as the attempt's processes have it."""

    attempt: Attempt
    lock: Lock
    paths: dict[str, str] = field(default_factory=dict)

    def notes(self) -> tuple[str, ...]:
        """One sentence with each library's version and where it is from; none where nothing was seen."""
        said = [f"{name} {self._version(name, path)}" for name, path in sorted(self.paths.items())]
        return (f"loaded: {', '.join(said)}",) if said else ()

    def _version(self, name: str, path: str) -> str:
        file, cuda = Path(path), self.attempt.cuda
        if said := re.search(r"\.so\.(\d+(?:\.\d+)+)$", file.name):
            return said[1]
        if cuda is not None and any(folder.parts[-2:] == file.parts[-3:-1] for folder in cuda.folders):
            version = dict(cuda.versions(self.lock.environment.cuda.partition("-")[0])).get(name)
            return f"{version or file.name} of the host"
        mine = (wheel.version for wheel in self.lock.wheels if re.fullmatch(WHEELS.get(name, ""), wheel.name))
        return next(mine, file.name) if "nvidia" in file.parts else f"as {file.name}, of the system"


@contextmanager
def loaded(attempt: Attempt, lock: Lock, period: float = PERIOD, proc: Path = Path("/proc")) -> Iterator[Loaded]:
    """Look at the attempt's processes while the block runs; an attempt without GPUs is not looked at."""
    seen = Loaded(attempt, lock)
    if not attempt.gpus:
        yield seen
        return
    stop = threading.Event()
    # Of what runs already none is the attempt's. A new process is read anew each time: until it has called exec, it has
    # the variables of the one that started it.
    strangers = {entry.name for entry in proc.iterdir()}
    mark = f"{ATTEMPT_MARK}={attempt.id}".encode()

    def watch() -> None:
        while not stop.wait(period):
            _look(proc, mark, strangers, seen.paths)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield seen
    finally:
        stop.set()
        watching.join(5.0)


def _look(proc: Path, mark: bytes, strangers: set[str], paths: dict[str, str]) -> None:
    """Add what the processes with `mark` have mapped; `strangers` are known not to have it."""
    for entry in proc.iterdir():
        if not entry.name.isdigit() or entry.name in strangers:
            continue
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            text = (entry / "maps").read_text(errors="replace")
        except OSError:  # it has ended, or belongs to another user
            continue
        paths.update((name, path) for path, name in _MAPPED.findall(text))
