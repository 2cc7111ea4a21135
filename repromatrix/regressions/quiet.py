"""A listener for many small runs: it passes on what a reader of a search wants to know of each, and no more."""

from __future__ import annotations

import re
import threading
import time

from repromatrix.events import Listener, Silent, Task

_LARGE = 20_000_000
"""Bytes of a download that is worth its own line."""


class Quiet:
    """Passes on large downloads, builds, and each warning once, and each note once whatever its numbers are.

    Single attempts are not passed on, since the search tells them itself, but measured.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._mutex = threading.Lock()
        self._told: set[str] = set()
        self._under_way = 0
        self._since = 0.0
        self._seconds = 0.0

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
        if phase in ("build", "base") or (unit == "B" and (total or 0) >= _LARGE):
            return self._listener.start(phase, name, total, unit)
        return Silent().start(phase, name)

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
