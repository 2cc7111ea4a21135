"""What every command does alike: errors as exit codes, and what the command line says."""

from __future__ import annotations

import functools
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from repromatrix.errors import InfraError, ReproError, UserError
from repromatrix.output import complain, standard_streams

Command = Callable[..., int]


def command(function: Command) -> Command:
    """Turn errors into messages and exit codes: nothing a user can cause ends in a traceback."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> int:
        standard_streams()
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was finished is kept
        try:
            return function(*args, **kwargs)
        except ReproError as error:
            complain(f"error: {error}")
            return error.exit_code
        except OSError as error:  # a place that nobody thought could fail: it is still the machine's trouble
            complain(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
            return InfraError.exit_code
        except KeyboardInterrupt:
            complain("interrupted: what was finished is kept; the same command continues")
            return 130

    return run


def typed() -> str:
    """The command line as the user would type it again."""
    return "uv run invoke " + shlex.join(sys.argv[1:])


def count(option: str, text: str) -> int:
    """A number of the command line; empty = 0.

    Raises:
        UserError: It is none, or not within bounds.
    """
    if not text:
        return 0
    most = 10_000
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise UserError(f"--{option} {text!r} is not a number from 1 to {most}", hint=f"for example --{option} 2")
    return int(text)


def pairs(params: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`--param name=value` as (name, value); of a name given twice the last counts.

    Raises:
        UserError: One has another form.
    """
    wanted: dict[str, str] = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name:
            raise UserError(f"--param {param!r} is not name=value", hint="for example --param per_dev=2048")
        wanted[name] = value
    return tuple(wanted.items())
