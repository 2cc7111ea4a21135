"""The contract of an engine: prepare an environment once, run attempts in it, leave nothing behind."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from repromatrix.engines.cdi import Access
from repromatrix.engines.local_cuda import CudaLibraries
from repromatrix.envs.model import Lock
from repromatrix.events import Listener

_CONTAINER = (
    "one container per attempt: own files, processes and memory limit, no network, no capabilities; "
    "the kernel, its time and the CPU's caches are shared"
)

ISOLATION = {
    "docker": _CONTAINER,
    "podman": _CONTAINER,
    "venv": "no isolation beyond processes: the script sees this host's files, network, libraries and kernel limits, "
    "and runs as you",
}
"""One sentence per engine for reports: what it keeps apart, and what it does not."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An environment that is ready to run in.

    Attributes:
        engine: Name of the engine that made it.
        identity: What decides results: the image's id (`sha256:...`) for containers, the lock's hash for venv.
        base: Where the interpreter came from, readable: `debian bookworm 9f1c... (mmdebstrap)`,
            `python:3.11-slim-bookworm@sha256:...`, `CPython 3.11.7 of this host`.
        location: What the engine needs to start it: an image id, or the folder of a venv.
    """

    lock: Lock
    engine: str
    identity: str
    base: str
    location: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution to be done.

    Attributes:
        id: Unique; labels containers and processes.
        folder: Host folder of this attempt, existing. The supervisor's `spec.json`, the script, its work folder
            (`work/`) and all evidence (`stdout`, `stderr`, `result.json`) lie in it.
        script: File name of the script inside `folder/work`.
        arguments: Command line after the script.
        env: Variables on top of the engine's own.
        timeout: Seconds until the deadline.
        memory: Bytes the whole tree may use, or None.
        cpus: Size of the CPU set, or None for all.
        gpus: Number of GPUs; 0 = none visible.
        devices: Indices of the GPUs granted; empty = the first `gpus`.
        processes: Ranks to start.
        cores: What becomes of core files: `stacks` (read, then deleted), `keep` (read, then compressed into the
            evidence), `off` (none is written). One of a GPU process was seen to have 8.8 GB, most of it holes.
        tools: Folder of `envs/tools.py` with the programs that read stacks, for the attempt's Python; None = not there.
        cuda: CUDA's libraries of the host that it may use, or None: the environment brings its own.
    """

    id: str
    folder: Path
    script: str
    arguments: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    timeout: float
    memory: int | None = None
    cpus: int | None = None
    gpus: int = 0
    processes: int = 1
    cores: str = "off"
    devices: tuple[int, ...] = ()
    tools: Path | None = None
    cuda: CudaLibraries | None = None


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank of an attempt with several ended, in the supervisor's words.

    Attributes:
        exit_status, signal, core: As in `Raw`.
        seconds: From the start of the attempt to this rank's end.
        stopped: The supervisor ended it: the deadline, the limit, or another rank's failure before.
    """

    rank: int
    pid: int
    exit_status: int | None
    signal: str | None
    core: bool
    seconds: float
    stopped: bool


@dataclass(frozen=True, slots=True)
class Raw:
    """What the supervisor wrote in `result.json`, or the engine's word where there is none.

    Attributes:
        exit_status: The script's own status, or None where a signal ended it.
        signal: Name of the signal that ended it (`SIGSEGV`), or None.
        timed_out: Whether the deadline was reached.
        core: Whether the kernel says that it dumped a core (WCOREDUMP).
        oom_kills: Kernel kills for memory seen from inside, plus the supervisor's own for `memory`.
        peak_memory: Bytes, highest sum over the attempt's tree; 0 where unknown.
        seconds: Wall time of the script.
        started: RFC 3339 time.
        stdout_bytes, stderr_bytes: Bytes written in all, before the caps.
        infra: Why there is no verdict of the script (container not created, engine gone, disk full, supervisor lost);
            empty where there is one.
        notes: Findings worth showing (`closed its stdout`, `left 3 processes behind`).
        pid: Of the script's process, as the attempt's own processes see it (in a container: inside); 0 = unknown.
        over_limit: The supervisor, not the kernel, ended it for memory.
        ranks: How each rank ended, by rank; empty for an attempt of one process. The fields above are those of the
            first rank to fail, or of rank 0.
        device_memory: Bytes, highest sum over the GPUs granted, as the host saw it; 0 where unknown.
        gpus_idle: The host saw that no memory of the GPUs granted was used.
    """

    exit_status: int | None = None
    signal: str | None = None
    timed_out: bool = False
    core: bool = False
    oom_kills: int = 0
    peak_memory: int = 0
    seconds: float = 0.0
    started: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    infra: str = ""
    notes: tuple[str, ...] = ()
    pid: int = 0
    over_limit: bool = False
    ranks: tuple[RankEnd, ...] = ()
    device_memory: int = 0
    gpus_idle: bool = False


class Engine(ABC):
    """One way to run attempts. Methods may be called from several threads at once."""

    name: str
    isolation: str
    """Its entry of `ISOLATION`."""

    @abstractmethod
    def unavailable(self) -> str:
        """Why this engine cannot be used here; empty if it can. Answers within 5 s."""

    @abstractmethod
    def basis(self, python: str, listener: Listener, *, offline: bool = False) -> str:
        """What beside the lock decides results: the base image of this Python minor version, or the host's interpreter.

        Goes into the result's key and, as `Prepared.base`, into reports. May build the base the first time; fast after.

        Args:
            offline: Fetch nothing.

        Raises:
            InfraError: No such base or interpreter can be had here.
        """

    def gpu_access(self) -> Access:
        """How attempts get the GPUs, and why so; `how` is empty where they cannot.

        Raises:
            InfraError: The engine is gone.
        """
        return Access("host", "as processes of this host")

    @abstractmethod
    def known(self, lock: Lock) -> Prepared | None:
        """The environment if it is prepared already (under 0.2 s), else None."""

    @abstractmethod
    def prepare(self, lock: Lock, listener: Listener, cancel: threading.Event | None = None) -> Prepared:
        """Make `lock` ready from the wheels in the store; no network. Setting `cancel` ends it early.

        Raises:
            InfraError: The build failed, the disk is full, the engine does not answer.
        """

    @abstractmethod
    def run(self, prepared: Prepared, attempt: Attempt, cancel: threading.Event) -> Raw:
        """Run one attempt to its end, deadline or cancellation; leaves no process and no container behind.

        Never raises for what the script did. Engine trouble is reported in `Raw.infra`.

        Raises:
            InfraError: The engine is gone, so that no further attempt can run.
        """

    @abstractmethod
    def command(self, prepared: Prepared, attempt: Attempt) -> str:
        """A shell command that runs the same attempt again by hand, for the report."""

    @abstractmethod
    def reap(self) -> list[str]:
        """End whatever earlier runs of this tool left behind and whose owner is dead; says what it ended."""
