"""The engine for hosts without containers: processes in a venv, ended as a whole, otherwise not isolated."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from repromatrix.engines.attempt import (
    AFTERMATH,
    ATTEMPT_MARK,
    CANCELLED,
    OWNER_MARK,
    STACKS,
    SUPERVISOR,
    abandoned,
    marks,
    read_raw,
    script_env,
    write_spec,
)
from repromatrix.engines.base import ISOLATION, Attempt, Engine, Prepared, Raw
from repromatrix.engines.built import in_venv
from repromatrix.engines.cdi import beyond_the_loader
from repromatrix.engines.loaded import loaded
from repromatrix.envs.interpreter import obtain_python, require_python
from repromatrix.envs.model import Lock
from repromatrix.envs.venv import known, materialise
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener

_POLL = 0.1
"""Seconds between looks at the cancellation; the end of an attempt is seen at once."""

_PATIENCE = 15.0
"""Seconds past the last moment for a verdict, or past a cancellation, before the supervisor itself is taken for stuck:
it gives a process that SIGKILL does not end 10 s."""

_TMP_PREFIX = "repromatrix-tmp-"

_LONGEST_TMPDIR = 60
"""A Unix socket's path has at most 107 bytes (unix(7)), and multiprocessing puts 32 behind TMPDIR."""


class VenvEngine(Engine):
    """Runs attempts as processes of this user, in a venv made of the locked wheels."""

    name = "venv"
    isolation = ISOLATION["venv"]

    def __init__(self, store: WheelStore) -> None:
        self._store = store

    def unavailable(self) -> str:
        return "" if sys.platform == "linux" else f"it needs Linux, this is {sys.platform}"

    def basis(self, python: str, listener: Listener, *, offline: bool = False) -> str:
        found = require_python(python) if offline else obtain_python(python, listener)
        return f"CPython {found.version} of this host ({found.id})"

    def known(self, lock: Lock) -> Prepared | None:
        place = known(lock, self._store)
        return self._prepared(lock, place) if place else None

    def prepare(self, lock: Lock, listener: Listener, cancel: threading.Event | None = None) -> Prepared:
        return self._prepared(lock, materialise(lock, self._store, listener))

    def _prepared(self, lock: Lock, place: Path) -> Prepared:
        found = require_python(lock.python)
        return Prepared(lock, self.name, lock.hash, f"CPython {found.version} of this host ({found.id})", str(place))

    def run(self, prepared: Prepared, attempt: Attempt, cancel: threading.Event) -> Raw:
        python = _python(prepared)
        try:
            with _short_tmp(attempt.folder / "tmp") as tmp:
                env = _engine_env(prepared, attempt) | {"TMPDIR": tmp}
                write_spec(
                    attempt,
                    python=python,
                    root=str(attempt.folder),
                    stacks=str(STACKS),
                    tools=None if attempt.tools is None else str(attempt.tools),
                    env=env,
                    watch_stdin=True,
                    own_cgroup=False,
                )
                with loaded(attempt, prepared.lock) as seen:
                    status, said = _supervise(python, attempt, cancel)
        except InfraError as error:
            return Raw(infra=error.line)
        except OSError as error:
            return Raw(infra=f"cannot start the supervisor: {error}")
        if status == 0:
            raw = read_raw(attempt.folder, attempt.id)
            built = filter(None, [in_venv(python)] if attempt.gpus else [])
            raw = replace(raw, notes=(*raw.notes, *built, *seen.notes()))
            return Raw(infra=CANCELLED) if raw.infra and cancel.is_set() else raw
        ours = marks(attempt)
        _end_all(lambda mark: mark == (ours[ATTEMPT_MARK], ours[OWNER_MARK]))
        if cancel.is_set():
            return Raw(infra=CANCELLED)
        return Raw(infra=f"the supervisor ended with status {status} and no verdict{': ' if said else ''}{said}")

    def command(self, prepared: Prepared, attempt: Attempt) -> str:
        python = _python(prepared)
        if attempt.processes > 1:
            # Ranks need the supervisor; on a copy, since it writes its verdict and the logs over those that are kept.
            copied = f'copy=$(mktemp -d) && cp -a {shlex.quote(str(attempt.folder))}/. "$copy"'
            return f'{copied} && {shlex.join([python, "-I", "-S", str(SUPERVISOR)])} "$copy" && echo "$copy"'
        env = script_env(attempt, str(attempt.folder), _engine_env(prepared, attempt))
        told = [f"{name}={value}" for name, value in env.items() if name not in (ATTEMPT_MARK, OWNER_MARK)]
        script = shlex.join(["env", "-i", *told, python, attempt.script, *attempt.arguments])
        return f"cd {shlex.quote(str(attempt.folder / 'work'))} && {script}"

    def reap(self) -> list[str]:
        ended = _end_all(lambda mark: abandoned(mark[1]))
        for place in Path(tempfile.gettempdir()).glob(f"{_TMP_PREFIX}*-*"):
            pid = place.name.removeprefix(_TMP_PREFIX).partition("-")[0]
            if not Path("/proc", pid).exists() and (place / "tmp").is_symlink() and _mine(place):
                _remove_tmp(place)
        return ended


def _python(prepared: Prepared) -> str:
    return f"{prepared.location}/bin/python"


def _engine_env(prepared: Prepared, attempt: Attempt) -> dict[str, str]:
    devices = attempt.devices or range(attempt.gpus)
    return {
        "PATH": f"{prepared.location}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": prepared.location,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
        **(_gpu_env(prepared, attempt) if attempt.gpus else {}),
    }


def _gpu_env(prepared: Prepared, attempt: Attempt) -> dict[str, str]:
    """Where the host's CUDA and driver are, as far as the loader does not know it by itself."""
    found = {} if attempt.cuda is None else attempt.cuda.variables(lambda folder: folder)
    if driver := beyond_the_loader():
        found["LD_LIBRARY_PATH"] = ":".join(filter(None, (found.get("LD_LIBRARY_PATH"), driver)))
    if tools := found.get("CUDA_ROOT"):
        found["PATH"] = f"{prepared.location}/bin:{tools}/bin:/usr/local/bin:/usr/bin:/bin"
    return found


def _supervise(python: str, attempt: Attempt, cancel: threading.Event) -> tuple[int, str]:
    """Run the supervisor to its end; its exit status, and what it said on stderr."""
    # In a session of its own, since Ctrl-C in the terminal is the tool's to handle. Its standard input is a pipe that
    # we hold: when this tool is killed, the pipe ends, and the supervisor stops everything.
    with subprocess.Popen(
        [python, "-I", "-S", str(SUPERVISOR), str(attempt.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=attempt.folder,
        env=marks(attempt),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.fileno()
        said = b""
        poll = select.poll()
        poll.register(errors, select.POLLIN)
        give_up = time.monotonic() + attempt.timeout + AFTERMATH + _PATIENCE
        stopping = False
        try:
            while time.monotonic() < give_up:
                if poll.poll(_POLL * 1000):
                    chunk = os.read(errors, 65536)
                    if not chunk:  # the supervisor has ended: nobody else has this pipe
                        break
                    said = (said + chunk)[-4096:]
                if cancel.is_set() and not stopping:
                    stopping = True
                    process.terminate()
                    give_up = time.monotonic() + _PATIENCE
            else:
                process.kill()
            return process.wait(), said.decode(errors="replace").strip()
        except BaseException:  # Ctrl-C in a caller that runs us in its main thread
            process.terminate()
            raise


def _end_all(ours: Callable[[tuple[str, str]], bool]) -> list[str]:
    """SIGKILL every process whose mark (attempt, owner) is `ours`, until there is none; says which they were."""
    ended: dict[int, str] = {}
    for _ in range(200):
        found = [(pid, mark) for pid, mark in _marked() if ours(mark)]
        if not found:
            break
        for pid, mark in found:
            ended.setdefault(pid, f"process {pid} of attempt {mark[0]}")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return list(ended.values())


def _marked() -> Iterator[tuple[int, tuple[str, str]]]:
    """Processes that carry the mark of an attempt in the environment they were started with."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        variables = dict(item.partition(b"=")[::2] for item in environ.split(b"\0"))
        attempt, owner = (
            variables.get(name.encode(), b"").decode(errors="replace") for name in (ATTEMPT_MARK, OWNER_MARK)
        )
        if attempt and owner:
            yield int(entry.name), (attempt, owner)


@contextmanager
def _short_tmp(folder: Path) -> Iterator[str]:
    """A short path to `folder`: itself, or a link, where sockets in it would have too long a name."""
    if len(str(folder)) <= _LONGEST_TMPDIR:
        yield str(folder)
        return
    place = Path(tempfile.mkdtemp(prefix=f"{_TMP_PREFIX}{os.getpid()}-"))
    try:
        (place / "tmp").symlink_to(folder)
        yield str(place / "tmp")
    finally:
        _remove_tmp(place)


def _mine(place: Path) -> bool:
    return place.lstat().st_uid == os.getuid()


def _remove_tmp(place: Path) -> None:
    (place / "tmp").unlink(missing_ok=True)
    place.rmdir()
