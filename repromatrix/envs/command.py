"""Run a command of the host with a deadline, so that nothing it started outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from repromatrix.errors import InfraError

KEPT_LINES = 400
"""Lines of output kept for the error message's tail; a build prints a few hundred."""


def run_command(
    argv: Sequence[str],
    *,
    timeout: float,
    cancel: threading.Event | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    hint: str = "",
) -> tuple[int, str]:
    """Run `argv` in a session of its own, reading stdout and stderr together line by line.

    Args:
        timeout: Seconds until the whole session is killed.
        cancel: Kills it too, when set.
        env: Variables on top of this process's own.
        on_line: Called for each line, without its newline.
        hint: What to do where the program does not exist.

    Returns:
        Exit status, and the last lines of the output.

    Raises:
        InfraError: Program missing, deadline reached, or cancelled.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise InfraError(f"{argv[0]} is not installed", hint=hint) from None
    except OSError as error:
        raise InfraError(f"{argv[0]} cannot be started: {error.strerror}", hint=hint) from error
    kept: deque[str] = deque(maxlen=KEPT_LINES)

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            kept.append(line)
            on_line(line.rstrip("\n"))

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    ended = threading.Event()

    def watch() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    waited = 0.0
    try:
        while not ended.wait(0.2):
            waited += 0.2
            if cancel is not None and cancel.is_set():
                raise InfraError(f"{argv[0]} was cancelled")
            if waited > timeout:
                raise InfraError(f"{argv[0]} did not end within {timeout:.0f} s", where="".join(kept)[-2000:].strip())
        # What it left behind may hold the pipe open: the output that matters is there by now.
        reader.join(2.0)
        return process.returncode, "".join(kept)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
