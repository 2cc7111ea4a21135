"""What every command does alike: errors as exit codes, and what the command line says."""

from __future__ import annotations

import functools
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, is_dataclass
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
            _interrupt_once()
        try:
            _no_options((*args, *kwargs.values()))
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


_BOUNCE = 0.5
"""Seconds in which a second signal is the first one's echo."""


def _interrupt_once() -> None:
    """Take SIGTERM for Ctrl-C, and either for one interruption where two of them come together.

    `uv run` passes on what the terminal has sent to the whole group already; the second one would end what tells, after
    the first, how far the work has come.
    """
    last = float("-inf")

    def interrupt(_: int, __: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _BOUNCE:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has switched it off
        signal.signal(signal.SIGINT, interrupt)


def uses_store(function: Command) -> Command:
    """Keep `invoke gc` out of the store while the command runs; to stand below `@command`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> int:
        from repromatrix.project import find_project
        from repromatrix.share.upkeep.users import using

        try:
            project = find_project()
        except UserError:
            return function(*args, **kwargs)  # which says so itself, where it needs one
        with using(project, typed(), complain):
            return function(*args, **kwargs)

    return run


def _no_options(values: Iterable[object]) -> None:
    """Refuse values that were meant as options: invoke takes `--help` after a task for that task's argument.

    Raises:
        UserError: There is one.
    """
    for value in values:
        words = astuple(value) if is_dataclass(value) and not isinstance(value, type) else (value,)
        for word in words:
            if not isinstance(word, str) or not re.fullmatch(r"--[A-Za-z][\w-]*|-h", word):
                continue
            if word in ("--help", "-h"):
                raise UserError(f"{word} comes before the task", hint="`uv run invoke --help TASK`")
            raise UserError(
                f"{word!r} is no value: the option before it lacks one, or there is no such option",
                hint="`uv run invoke --help TASK` lists the options of a task",
            )


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


def size(option: str, text: str) -> int:
    """Bytes that the command line names: `20G`, `500MB`, `8GiB`; G and GB are powers of ten.

    Raises:
        UserError: Another form, or nothing.
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) ?([kMGT]?)(i?)B?", text, re.ASCII)
    amount = float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " ") if found else 0
    if not found or (found[3] and not found[2]) or amount < 1:
        raise UserError(f"--{option} {text!r} is not a size", hint=f"for example --{option} 20G, 500MB or 8GiB")
    return int(amount)


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
