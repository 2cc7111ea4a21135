"""Work in the background that is probably needed next, the likeliest first; what is asked for later replaces it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_PATIENCE = 2.0
"""Seconds that the end waits for work under way. What is cut off then is as after a kill: the store is fit for that."""


class Prefetch(Generic[T]):
    """Does `work` for whatever is asked for, each once, on threads of its own that start when they are needed.

    Args:
        work: Gets the thing, and a signal to stop. What it raises is dropped: whoever needs the thing meets the same
            trouble and tells it.
        at_once: Threads.
    """

    def __init__(self, work: Callable[[T, threading.Event], object], at_once: int = 2) -> None:
        self._work = work
        self._at_once = at_once
        self._wanted: deque[T] = deque()
        self._under_way: dict[T, threading.Event] = {}
        self._done: set[T] = set()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._closed = False

    def ask(self, things: Iterable[T], keep: Collection[T] = ()) -> None:
        """Do these, in this order, instead of what was asked for before.

        Args:
            keep: Things that are needed now: what is under way for them goes on.
        """
        with self._changed:
            if self._closed:
                return
            asked = list(things)
            for thing, stop in self._under_way.items():
                if thing not in asked and thing not in keep:
                    stop.set()
            self._wanted = deque(thing for thing in asked if thing not in self._done and thing not in self._under_way)
            if self._wanted and not self._threads:
                names = (f"prefetch {number}" for number in range(self._at_once))
                self._threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in names]
                for thread in self._threads:
                    thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Begin nothing more, stop what is under way, and wait a little for it."""
        with self._changed:
            self._closed = True
            for stop in self._under_way.values():
                stop.set()
            self._changed.notify_all()
        until = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        while (begun := self._next()) is not None:
            thing, stop = begun
            with suppress(Exception):
                self._work(thing, stop)
            with self._changed:
                del self._under_way[thing]
                if not stop.is_set():
                    self._done.add(thing)

    def _next(self) -> tuple[T, threading.Event] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted)
            if self._closed:
                return None
            thing, stop = self._wanted.popleft(), threading.Event()
            self._under_way[thing] = stop
            return thing, stop
