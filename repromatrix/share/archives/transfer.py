"""Image streams from and to an engine: `docker save` and `docker load`, which end when the work is cancelled.

Through Docker's client, not its HTTP interface: a daemon is silent for as long as it packs or unpacks layers, and only
a process of its own can be ended in the middle of that.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from repromatrix.envs.daemon import Daemon, trouble
from repromatrix.envs.wheels import Cancelled
from repromatrix.errors import InfraError

TIMEOUT = 1800
"""Seconds that one image may take: as many as its build may."""

HINT = "install Docker's command line client"


@contextmanager
def saved(daemon: Daemon, image_id: str, cancel: threading.Event) -> Iterator[IO[bytes]]:
    """What `docker save` writes, as it comes.

    Raises:
        InfraError: No client, the daemon failed, or it took more than `TIMEOUT`.
        Cancelled: `cancel` was set.
    """
    with _client(daemon, ("save", image_id), f"save {image_id}", cancel, reading=True) as stream:
        yield stream


@contextmanager
def loading(daemon: Daemon, name: str, cancel: threading.Event) -> Iterator[IO[bytes]]:
    """Where `docker load` reads; when the body ends without an error the daemon has all that was written.

    Raises: as `saved`. A body that raises leaves the daemon with a stream cut short, of which it takes nothing.
    """
    with _client(daemon, ("load", "--quiet"), f"load {name}", cancel, reading=False) as stream:
        yield stream


@contextmanager
def _client(
    daemon: Daemon, arguments: Sequence[str], doing: str, cancel: threading.Event, *, reading: bool
) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                ["docker", "--host", daemon.host, *arguments],
                stdin=subprocess.DEVNULL if reading else subprocess.PIPE,
                stdout=subprocess.PIPE if reading else subprocess.DEVNULL,
                stderr=said,
                bufsize=1 << 20,
                start_new_session=True,
            )
        except OSError as error:
            raise InfraError(f"docker cannot be started: {error.strerror}", hint=HINT) from error
        late, over = threading.Event(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(process, cancel, late, over), daemon=True)
        watcher.start()
        stream = process.stdout if reading else process.stdin
        assert stream is not None
        broken: Exception | None = None
        try:
            yield stream
            if not reading:
                stream.close()
            process.wait()
        except Exception as error:
            broken = error
            if reading or isinstance(error, BrokenPipeError):
                # It may be the end of the client that broke the stream: then that says why.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(2)
        finally:
            over.set()
            watcher.join()
            ended = process.poll()
            process.kill()
            process.wait()
            with suppress(OSError):  # what was not yet written has no reader any more
                stream.close()
        if cancel.is_set():
            raise Cancelled(f"cancelled: could not {doing}") from broken
        if late.is_set():
            raise InfraError(f"the Docker daemon did not {doing} within {TIMEOUT} s", where=daemon.host) from broken
        if ended:
            said.seek(0)
            text = said.read().decode(errors="replace").strip() or f"exit status {ended}"
            raise trouble(text[-2000:], doing, daemon.host) from broken
        if broken is not None:
            raise broken


def _watch(
    process: subprocess.Popen[bytes], cancel: threading.Event, late: threading.Event, over: threading.Event
) -> None:
    end = time.monotonic() + TIMEOUT
    while not over.wait(0.1):
        if time.monotonic() > end:
            late.set()
        if late.is_set() or cancel.is_set():
            process.kill()
            return
