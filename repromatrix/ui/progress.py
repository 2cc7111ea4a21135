"""Progress on standard error: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from repromatrix.events import Listener, Task

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID
    from rich.progress import Task as Row
    from rich.text import Text

PERIOD = 5.0
"""Seconds between two plain lines on the progress of one task."""


@contextmanager
def listener(stream: TextIO | None = None, *, live: bool = True) -> Iterator[Listener]:
    """A listener that shows progress while the block runs.

    Args:
        stream: Where; standard error if not given.
        live: False gives plain lines on a terminal too: for a block that lets a script write to it meanwhile.
    """
    stream = stream or sys.stderr
    if live and stream.isatty() and os.environ.get("TERM") != "dumb":
        with _live(stream) as shown:
            yield shown
    else:
        yield Plain(stream)


def use_colour(stream: TextIO) -> bool:
    """Whether to colour what is written to `stream`: a terminal, and NO_COLOR not set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def amount(done: float, unit: str) -> str:
    """`120.4 MB` for bytes, `7` for counts."""
    if unit != "B":
        return f"{done:.0f}{unit and ' ' + unit}"
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if done >= size:
            return f"{done / size:.1f} {name}"
    return f"{done:.0f} B"


class Plain:
    """Lines for logs: start and end of each task, between them at most one every `PERIOD` seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO | None = stream
        self._mutex = threading.Lock()
        self.clock = clock

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        size = f" ({amount(total, unit)})" if total is not None else ""
        self.write(f"{phase:6} {name}{size}")
        return _PlainTask(self, phase, name, total, unit)

    def note(self, message: str) -> None:
        self.write(message)

    def warn(self, message: str) -> None:
        self.write(f"warning: {message}")

    def write(self, text: str) -> None:
        with self._mutex:
            if self._stream is None:
                return
            try:
                self._stream.write(_one_line(text) + "\n")
                self._stream.flush()
            except OSError:  # the reader has gone: what is known of cells matters more than saying so
                self._stream = None


class _PlainTask:
    def __init__(self, plain: Plain, phase: str, name: str, total: int | None, unit: str) -> None:
        self._plain = plain
        self._label = f"{phase:6} {name}"
        self._total = total
        self._unit = unit
        self._began = self._told = plain.clock()
        self._done = 0
        self._ended = False
        self._mutex = threading.Lock()

    def advance(self, amount: int) -> None:
        with self._mutex:
            self._done += amount
            now = self._plain.clock()
            if self._ended or now - self._told < PERIOD:
                return
            self._told = now
            line = self._line(now)
        self._plain.write(line)

    def finish(self, note: str = "") -> None:
        with self._mutex:
            if self._ended:
                return
            self._ended = True
            seconds = self._plain.clock() - self._began
        self._plain.write(f"{self._label}: {note or 'done'} ({seconds:.1f} s)")

    def _line(self, now: float) -> str:
        seconds = max(now - self._began, 1e-3)
        rate = self._done / seconds
        text = amount(self._done, self._unit)
        if self._total:
            text += f" of {amount(self._total, self._unit)}"
        if self._unit == "B":
            text += f", {amount(rate, 'B')}/s"
        if self._total and rate and self._total > self._done:
            text += f", {(self._total - self._done) / rate:.0f} s left"
        return f"{self._label}: {text}"


@contextmanager
def _live(stream: TextIO) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    # Rich honours NO_COLOR by itself. Four frames a second are enough to look at and cost no time of the attempts.
    console = Console(file=stream)
    columns = (_column(_label), BarColumn(bar_width=20), _column(_state), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as progress:
        yield _Live(progress)


def _column(text: Callable[[Row], Text]) -> ProgressColumn:
    from rich.progress import ProgressColumn

    class Column(ProgressColumn):
        def render(self, task: Row) -> Text:
            return text(task)

    return Column()


class _Live:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        ident = self._progress.add_task(_one_line(name), total=total, phase=phase, unit=unit)
        return _LiveTask(self._progress, ident)

    def note(self, message: str) -> None:
        _print(self._progress, _one_line(message))

    def warn(self, message: str) -> None:
        _print(self._progress, f"warning: {_one_line(message)}", "yellow")


class _LiveTask:
    """A line while it runs; a line that stays where it ends with a note."""

    def __init__(self, progress: Progress, ident: TaskID) -> None:
        self._progress = progress
        self._ident = ident
        self._ended = False
        self._mutex = threading.Lock()

    def advance(self, amount: int) -> None:
        with self._mutex:
            if not self._ended:
                self._progress.advance(self._ident, amount)

    def finish(self, note: str = "") -> None:
        with self._mutex:
            if self._ended:
                return
            self._ended = True
            row = next(task for task in self._progress.tasks if task.id == self._ident)
            self._progress.remove_task(self._ident)
        if note:
            _print(self._progress, f"{row.fields['phase']:6} {row.description}: {_one_line(note)}")


def _print(progress: Progress, text: str, style: str = "") -> None:
    progress.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _label(task: Row) -> Text:
    from rich.text import Text

    return Text(f"{task.fields['phase']:6} {task.description}", overflow="ellipsis", no_wrap=True)


def _state(task: Row) -> Text:
    from rich.text import Text

    unit = task.fields["unit"]
    if task.total is None and not task.completed:
        return Text("")
    text = amount(task.completed, unit)
    if task.total is not None:
        text += f" of {amount(task.total, unit)}"
    if unit == "B" and task.speed:
        text += f"  {amount(task.speed, 'B')}/s"
    if task.total is not None and task.time_remaining:
        text += f"  {task.time_remaining:.0f} s left"
    return Text(text, no_wrap=True)


def _one_line(text: str) -> str:
    """No control characters: names and notes may hold what a script printed."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split(" ")).rstrip()
