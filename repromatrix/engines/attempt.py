"""What every engine does alike for an attempt: `spec.json`, the script's variables, `result.json` back.

Also the mark of an attempt's owner, by which a later run finds what a killed tool left behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from repromatrix.engines.base import Attempt, RankEnd, Raw
from repromatrix.errors import InfraError

T = TypeVar("T")

SUPERVISOR = Path(__file__).resolve().parents[2] / "containers" / "supervise.py"
"""The parent of the script; engines start it with `python -I -S` (no site-packages: it must not run a wheel's code)."""

STACKS = SUPERVISOR.with_name("stacks.py")
"""Reads stacks and cores; the supervisor starts it."""

CANCELLED = "cancelled"
"""`Raw.infra` of an attempt that was stopped: not to be stored, it runs again."""

ATTEMPT_MARK = "REPROMATRIX_ATTEMPT"
OWNER_MARK = "REPROMATRIX_OWNER"

GRACE = 5.0
"""Seconds between SIGABRT and SIGKILL at the deadline: time for faulthandler and for writing a core."""

AFTERMATH = 165.0
"""Seconds from the deadline to the verdict, at the most. The limits of containers/supervise.py: 30 for a core that is
being written at the deadline, 22 for the stacks of what lives, GRACE, again 30 for a core, 10 for what SIGKILL does not
end, 62 to read the cores, and what draining the output takes in between."""

CORE_CAP = 16 << 30
"""Bytes that a core may take on the disk: that of a process with a GPU was seen to have 8.8 GB, most of it holes."""

_FULL = 1 << 20
"""Bytes free below which a disk counts as full."""


def write_spec(
    attempt: Attempt,
    *,
    python: str,
    root: str,
    stacks: str,
    tools: str | None,
    env: Mapping[str, str],
    watch_stdin: bool,
    own_cgroup: bool,
) -> None:
    """Write `spec.json` into the attempt's folder and make its folder for temporary files.

    Args:
        attempt: What to run; its `folder/work` holds the script.
        python: Interpreter of the environment, as the supervisor sees it.
        root: The attempt's folder, as the supervisor sees it.
        stacks, tools: `STACKS` and `attempt.tools`, as the supervisor sees them.
        env: The engine's own variables (`PATH`); those of the attempt win over them.
        watch_stdin: The supervisor stops everything when its standard input ends: for engines that start it as their
            own child and hold the other end of the pipe.
        own_cgroup: No other attempt shares the memory cgroup.

    Raises:
        InfraError: The script is not there, or the folder cannot be written.
    """
    work = attempt.folder / "work"
    if not (work / attempt.script).is_file():
        raise InfraError(f"the script {attempt.script} is not in the attempt's folder", where=str(work))
    spec = {
        "id": attempt.id,
        "argv": [python, attempt.script, *attempt.arguments],
        "env": script_env(attempt, root, env),
        "timeout": attempt.timeout,
        "grace": GRACE,
        "memory": attempt.memory,
        "cpus": attempt.cpus,
        "processes": attempt.processes,
        "cores": attempt.cores,
        "core_cap": _core_cap(attempt),
        "stacks": stacks,
        "tools": tools,
        "watch_stdin": watch_stdin,
        "own_cgroup": own_cgroup,
    }
    try:
        (attempt.folder / "tmp").mkdir(exist_ok=True)
        (attempt.folder / "result.json").unlink(missing_ok=True)
        (attempt.folder / "spec.json").write_text(json.dumps(spec, indent=1) + "\n")
    except OSError as error:
        raise InfraError(f"cannot write the attempt's folder: {error.strerror}", where=str(attempt.folder)) from error


def _core_cap(attempt: Attempt) -> int:
    """Bytes that one core may take: all ranks together leave half of what is free, for the evidence and for others."""
    try:
        free = shutil.disk_usage(attempt.folder).free
    except OSError as error:
        raise InfraError(f"cannot look at the disk: {error.strerror}", where=str(attempt.folder)) from error
    return min(CORE_CAP, free // 2 // attempt.processes)


def script_env(attempt: Attempt, root: str, env: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the script: nothing of the calling shell, so that two people get the same run.

    A shell's `LD_LIBRARY_PATH`, `PYTHONPATH`, `XLA_FLAGS` or `JAX_*` would change what is tested without a trace in the
    report.
    """
    return {
        "LANG": "C.UTF-8",
        "HOME": f"{root}/work",
        "TMPDIR": f"{root}/tmp",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # that of NVML, so that both mean the same GPU by a number
        "PYTHONFAULTHANDLER": "1",  # Python stacks of a crash, and of a hang when the supervisor sends SIGABRT
        "PYTHONUNBUFFERED": "1",  # a crash must not take the last lines with it
        "PYTHONHASHSEED": "0",  # the order of sets reaches traced programs: the same script, the same HLO
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # environments are shared; they carry their bytecode already
        "JAX_TRACEBACK_FILTERING": "off",  # filtered tracebacks end with an advice instead of the error
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # a cache hit compiles nothing and dumps nothing (maxtext #4167)
        **env,
        **dict(attempt.env),
        **marks(attempt),
    }


def marks(attempt: Attempt) -> dict[str, str]:
    """Variables by which every process of the attempt is recognised."""
    return {ATTEMPT_MARK: attempt.id, OWNER_MARK: owner()}


def read_raw(folder: Path, attempt_id: str = "") -> Raw:
    """What the supervisor wrote; `Raw.infra` says why there is no verdict.

    Args:
        folder: Of the attempt.
        attempt_id: Id that the result must carry, just after the attempt. Empty = evidence that was kept: no id is
            compared, and how full the disk is now says nothing.
    """
    try:
        result = json.loads(own_bytes(folder, "result.json"))
    except FileNotFoundError:
        return Raw(infra="the supervisor ended without a verdict (no result.json)")
    except (OSError, ValueError) as error:
        return Raw(infra=f"result.json cannot be read: {error}")
    if not isinstance(result, dict) or result.get("schema") != 1:
        return Raw(infra="result.json is not a verdict of this tool's supervisor")
    if attempt_id and result.get("id") != attempt_id:
        return Raw(infra=f"result.json belongs to another attempt ({result.get('id')})")
    try:
        return _raw(result, full=bool(attempt_id) and shutil.disk_usage(folder).free < _FULL)
    except (KeyError, TypeError, ValueError) as error:
        return Raw(infra=f"result.json is incomplete: {error!r}")


def own_bytes(folder: Path, name: str, limit: int = -1) -> bytes:
    """Content of a file in an attempt's folder. A script may have put a link to a file of the host there.

    Args:
        folder: Of the attempt.
        name: Path inside it.
        limit: Bytes read at most, -1 = all.

    Raises:
        OSError: There is none (ENOENT), what lies there is no file (ELOOP, ENOTDIR, EINVAL, ENXIO), or it cannot be
            read (EACCES).
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in Path(name).parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        descriptor = os.open(Path(name).name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", name)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def _raw(result: dict[str, object], *, full: bool) -> Raw:
    notes = _get(result, "notes", list)
    raw = Raw(
        exit_status=_optional(result, "exit_status", int),
        signal=_optional(result, "signal", str),
        timed_out=_get(result, "timed_out", bool),
        core=_get(result, "core", bool),
        oom_kills=_get(result, "oom_kills", int),
        peak_memory=_get(result, "peak_memory", int),
        seconds=_get(result, "seconds", float),
        started=_get(result, "started", str),
        stdout_bytes=_get(result, "stdout_bytes", int),
        stderr_bytes=_get(result, "stderr_bytes", int),
        infra=_get(result, "infra", str),
        notes=tuple(str(note) for note in notes),
        # These are absent in evidence of earlier versions.
        pid=_get({"pid": 0} | result, "pid", int),
        over_limit=_get({"over_limit": False} | result, "over_limit", bool),
        ranks=tuple(map(_rank, _get({"ranks": []} | result, "ranks", list))),
    )
    if raw.infra:
        return raw
    if by := _get(result, "cancelled", str):
        return replace(raw, infra=f"the supervisor was stopped from outside ({by})")
    if (full or _get(result, "disk_full", bool)) and raw.exit_status != 0:
        return replace(raw, infra="the disk was full while the script ran, which may be why it failed")
    if raw.exit_status is None and raw.signal is None and not raw.timed_out:
        return replace(raw, infra="the script's processes did not end and could not be killed")
    return raw


def make_way(path: Path) -> None:
    """Let a file of ours be made at `path`, whatever a script put there; a folder is moved aside."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
    else:
        path.unlink(missing_ok=True)


def _rank(end: dict[str, object]) -> RankEnd:
    return RankEnd(
        rank=_get(end, "rank", int),
        pid=_get(end, "pid", int),
        exit_status=_optional(end, "exit_status", int),
        signal=_optional(end, "signal", str),
        core=_get(end, "core", bool),
        seconds=_get(end, "seconds", float),
        stopped=_get(end, "stopped", bool),
    )


def _get(result: dict[str, object], key: str, kind: type[T]) -> T:
    value = result[key]
    if not isinstance(value, kind):
        raise TypeError(f"{key} is {value!r}")
    return value


def _optional(result: dict[str, object], key: str, kind: type[T]) -> T | None:
    return None if result[key] is None else _get(result, key, kind)


def owner() -> str:
    """A mark of this process, by which `abandoned` tells later whether it still lives: where, pid, start time."""
    return f"{_here()} {os.getpid()} {_start_time(os.getpid())}"


def abandoned(mark: str) -> bool:
    """Whether the process that `owner()` described is surely dead; False where that cannot be told from here."""
    try:
        machine, boot, space, pid, start = mark.split(" ")
    except ValueError:
        return False  # not our mark
    our_machine, our_boot, our_space = _here().split(" ")
    if machine != our_machine:
        return False
    if boot != our_boot:
        return True
    return space == our_space and _start_time(int(pid)) != start


@cache
def _here() -> str:
    machine = _text("/etc/machine-id") or os.uname().nodename
    return f"{machine} {_text('/proc/sys/kernel/random/boot_id') or '-'} {Path('/proc/self/ns/pid').readlink()}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat (proc(5)): tells a process from a later one with the same number. Empty if gone."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields and fields[0] != "Z" else ""
