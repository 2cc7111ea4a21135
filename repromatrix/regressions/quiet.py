"""A listener for many small runs: it passes on what a reader of a search wants to know of each, and no more."""

from __future__ import annotations

import re
import threading
import time

from repromatrix.events import Listener, Silent, Task

_PATIENCE = 1.0
"""Seconds that a reader waits without asking what for."""


class Quiet:
    """Passes on each warning once, each note once whatever its numbers are, and the work that the search waits for.

    This is what goes on for longer than `patience` while no attempt runs: environments locked, fetched, unpacked,
    built. What is made ready ahead stays unseen beside an attempt. Single attempts are not passed on, since the search
    tells them itself, but measured.

    Args:
        cancel: Once it is set, nothing more is shown: what is cut off then is waited for by nobody.
        patience: Seconds.
    """

    def __init__(self, listener: Listener, cancel: threading.Event, patience: float = _PATIENCE) -> None:
        self._listener = listener
        self._cancel = cancel
        self._patience = patience
        self._mutex = threading.Lock()
        self._told: set[str] = set()
        self._under_way = 0
        self._since = time.monotonic()
        self._seconds = 0.0
        self._unseen: set[_Work] = set()

    @property
    def running(self) -> float:
        """Seconds in which at least one attempt ran."""
        with self._mutex:
            return self._seconds + (time.monotonic() - self._since if self._under_way else 0.0)

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        if phase == "run":
            if name != "attempts":
                return _Attempt(self)
            several = (total or 0) > 1
            return self._listener.start(phase, name, total) if several else Silent().start(phase, name)
        work = _Work(self, phase, name, total, unit)
        with self._mutex:
            self._unseen.add(work)
        self._look_later()
        return work

    def note(self, message: str) -> None:
        if self._new(re.sub(r"[\d.]+", "#", message)):
            self._listener.note(message)

    def warn(self, message: str) -> None:
        if self._new(message):
            self._listener.warn(message)

    def _new(self, message: str) -> bool:
        with self._mutex:
            new = message not in self._told
            self._told.add(message)
        return new

    def count(self, change: int) -> None:
        """An attempt began (1) or ended (-1)."""
        with self._mutex:
            now = time.monotonic()
            if self._under_way:
                self._seconds += now - self._since
            self._since = now
            self._under_way += change
        if not self._under_way:
            self._look_later()

    def _look_later(self) -> None:
        timer = threading.Timer(self._patience, self._look)
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        """Show what the search has been waiting for."""
        with self._mutex:
            before = time.monotonic() - self._patience
            if self._cancel.is_set() or self._under_way or self._since > before:
                return
            due = {work for work in self._unseen if work.began <= before}
            self._unseen -= due
        for work in sorted(due, key=lambda work: work.began):
            work.show(self._listener)

    def forget(self, work: _Work) -> None:
        """It ended."""
        with self._mutex:
            self._unseen.discard(work)


class _Attempt:
    def __init__(self, quiet: Quiet) -> None:
        self._quiet: Quiet | None = quiet
        quiet.count(1)

    def advance(self, amount: int) -> None:
        pass

    def finish(self, note: str = "") -> None:
        if self._quiet is not None:
            self._quiet.count(-1)
            self._quiet = None


class _Work:
    """Work on environments. While it is unseen it is counted, so that what is shown is the rest of it."""

    def __init__(self, quiet: Quiet, phase: str, name: str, total: int | None, unit: str) -> None:
        self.began = time.monotonic()
        self._quiet = quiet
        self._what = phase, name, total, unit
        self._done = 0
        self._shown: Task | None = None
        self._ended = False
        self._mutex = threading.Lock()

    def show(self, listener: Listener) -> None:
        phase, name, total, unit = self._what
        with self._mutex:
            if not self._ended:
                self._shown = listener.start(phase, name, None if total is None else max(0, total - self._done), unit)

    def advance(self, amount: int) -> None:
        with self._mutex:
            if self._shown is None:
                self._done += amount
            else:
                self._shown.advance(amount)

    def finish(self, note: str = "") -> None:
        with self._mutex:
            self._ended = True
            if self._shown is not None:
                self._shown.finish(note)
        self._quiet.forget(self)
