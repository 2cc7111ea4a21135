"""Standard output that may be closed, full or unread: none of that changes what a command did or how it exits."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from repromatrix.errors import InfraError


def standard_streams() -> None:
    """Make streams 0 to 2 usable, whatever the caller closed.

    Where one is closed, the next file that is opened gets its number, and what is printed ends up in the database.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = _usable(sys.stdout, 1)
    sys.stderr = _usable(sys.stderr, 2)


def _usable(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:
        return os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")  # a script's text on a terminal that cannot show it
    return stream


def say(text: object, *, stream: TextIO | None = None) -> None:
    """Print a line at once. Where its reader has gone (`| head`), this and all later lines are dropped.

    Args:
        stream: Standard output if not given.

    Raises:
        InfraError: It cannot be written, for example to a full disk.
    """
    out = stream or sys.stdout
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:
        discard(out)
    except OSError as error:
        discard(out)  # what is still in its buffer must not fail again at the exit
        raise InfraError(f"cannot write the output: {error.strerror}", hint="what was finished is kept") from error


def complain(text: str) -> None:
    """Print a line to standard error, if anybody can read it."""
    with suppress(InfraError):
        say(text, stream=sys.stderr)


def discard(stream: TextIO) -> None:
    """Point `stream` at nothing."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
