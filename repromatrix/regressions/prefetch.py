"""Work in the background that is probably needed next, the likeliest first; what is asked for later replaces it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_PATIENCE = 2.0
"""Seconds that the end waits for work under way. What is cut off then is as after a kill: the store is fit for that."""


class Prefetch(Generic[T]):
    """Takes whatever is asked for through some stages, each on a thread of its own that starts when it is needed.

    A stage works on one thing at a time: of two that share a link, or a processor, both come late. So the first thing
    is unpacked while the second is downloaded.

    Args:
        stages: Each gets the thing, and a signal to stop. What one raises is dropped and the thing goes no further:
            whoever needs it meets the same trouble and tells it.
    """

    def __init__(self, *stages: Callable[[T, threading.Event], object]) -> None:
        self._stages = stages
        self._wanted: list[T] = []
        self._reached: dict[T, int] = {}
        """Stages that a thing has behind it."""
        self._under_way: dict[T, threading.Event] = {}
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
            self._wanted = list(things)
            for thing, stop in self._under_way.items():
                if thing not in self._wanted and thing not in keep:
                    stop.set()
            if self._wanted and not self._threads:
                numbers = range(len(self._stages))
                self._threads = [threading.Thread(target=self._serve, args=(stage,), daemon=True) for stage in numbers]
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

    def _serve(self, stage: int) -> None:
        while (thing := self._next(stage)) is not None:
            stop, reached = self._under_way[thing], len(self._stages)
            with suppress(Exception):
                self._stages[stage](thing, stop)
                reached = stage + 1
            with self._changed:
                del self._under_way[thing]
                if not stop.is_set():
                    self._reached[thing] = reached
                self._changed.notify_all()

    def _next(self, stage: int) -> T | None:
        """The first thing that this stage is to do, once there is one; None at the end."""

        def first() -> T | None:
            due = (each for each in self._wanted if self._reached.get(each, 0) == stage)
            return next((each for each in due if each not in self._under_way), None)

        with self._changed:
            self._changed.wait_for(lambda: self._closed or first() is not None)
            thing = None if self._closed else first()
            if thing is not None:
                self._under_way[thing] = threading.Event()
            return thing
