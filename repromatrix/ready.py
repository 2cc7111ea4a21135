"""Environments made ready: their wheels fetched, then built by the engine; each once, whoever asks.

A run asks for what its cells need, a search also for what it will probably need next, at the same time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from repromatrix.engines.base import Engine, Prepared
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.model import Matrix


class Ready:
    """Environments of one engine. Whoever asks for one that another thread is at work on waits for that one's end."""

    def __init__(
        self,
        project: Project,
        matrix: Matrix,
        engine: Engine,
        listener: Listener,
        cancel: threading.Event,
        *,
        offline: bool = False,
    ) -> None:
        self.project = project
        self.matrix = matrix
        self.engine = engine
        self.listener = listener
        self.cancel = cancel
        self.offline = offline
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._first: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def first(self, locks: Iterable[Lock]) -> Iterator[None]:
        """Give these the right of way: until they are ready, or this ends, `give_way` waits."""
        with self._changed:
            self._first = {lock.hash for lock in locks}
        try:
            yield
        finally:
            with self._changed:
                self._first.clear()
                self._changed.notify_all()

    def give_way(self, lock: Lock, cancel: threading.Event) -> bool:
        """Wait until work on `lock` delays nothing that goes first; False where `cancel` was set before."""
        with self._changed:
            while self._first and lock.hash not in self._first and not cancel.is_set():
                self._changed.wait(0.1)  # nobody is told when `cancel` is set
        return not cancel.is_set()

    @contextmanager
    def _turn(self, lock: Lock, *, last: bool) -> Iterator[None]:
        """The only one at work on `lock`, which no longer goes first after its last turn, or one that failed."""
        with self._changed:
            turn = self._turns[lock.hash]
        try:
            with turn:
                yield
        except BaseException:
            last = True
            raise
        finally:
            if last:
                with self._changed:
                    self._first.discard(lock.hash)
                    self._changed.notify_all()

    def fetch(self, lock: Lock, cancel: threading.Event | None = None) -> None:
        """Download what is missing; nothing where the engine has the environment.

        Args:
            cancel: Of this work alone.

        Raises:
            InfraError: See `fetch_missing`.
        """
        with self._turn(lock, last=False):
            if self.engine.known(lock) is None:
                store = WheelStore(self.project.store)
                fetch_missing(lock, self.matrix, store, self.listener, cancel or self.cancel, offline=self.offline)

    def prepare(self, lock: Lock, cancel: threading.Event | None = None) -> Prepared:
        """Build the environment of fetched wheels.

        Args:
            cancel: Of this work alone.

        Raises:
            InfraError: It cannot be built.
        """
        with self._turn(lock, last=True):
            return self.engine.known(lock) or self.engine.prepare(lock, self.listener, cancel or self.cancel)


def fetch_missing(
    lock: Lock, matrix: Matrix, store: WheelStore, listener: Listener, cancel: threading.Event, *, offline: bool = False
) -> tuple[Wheel, ...]:
    """Download what the store lacks of `lock`; returns what that was.

    Raises:
        InfraError: A wheel cannot be had, or is missing and `offline` forbids to fetch it.
    """
    from repromatrix.envs.index import addresses

    missing = store.missing(lock.wheels)
    if missing and offline:
        raise InfraError(
            f"{len(missing)} wheels of {lock.id} are not in the store and --offline forbids fetching them",
            where=str(store.root),
            hint="run once without --offline",
        )
    if missing:
        store.fetch(missing, addresses(lock, matrix, cancel), listener, cancel)
    return missing
