"""What the benchmarks share: the checkout's environments, timing, Markdown."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.index import addresses
from repromatrix.envs.lock import lock_all
from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.plan import Request, Selection, read
from repromatrix.project import Project, find_project

FIVE = ("0.6.0", "0.6.1", "0.6.2", "0.7.0", "0.7.1")
"""The five versions of the image and matrix benchmarks."""


@dataclass(frozen=True, slots=True)
class Table:
    """One measurement: a heading, a sentence, rows."""

    title: str
    method: str
    headers: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def markdown(self) -> str:
        from tabulate import tabulate

        return f"## {self.title}\n\n{self.method}\n\n{tabulate(self.rows, self.headers, tablefmt='github')}\n"


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(first: Callable[[], object], second: Callable[[], object], times: int) -> tuple[float, float]:
    """Medians of two pieces of work done in turn, so that a slower machine slows both."""
    pairs = [(seconds(first), seconds(second)) for _ in range(times)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def warm(versions: Sequence[str] = FIVE) -> tuple[Project, Selection, list[Lock]]:
    """The CPU environments of these versions: locked, fetched and packed."""
    project = find_project(Path(__file__).parent)
    selection = read(project, Request(env=",".join(f"jax{version}-cpu-py311" for version in versions)))
    environments = list(dict.fromkeys(cell.environment for cell in selection.cells))
    locks = [
        lock for lock in lock_all(environments, selection.matrix, project, Silent()).values() if isinstance(lock, Lock)
    ]
    assert len(locks) == len(versions), [lock.id for lock in locks]
    store = WheelStore(project.store)
    for lock in locks:
        if missing := store.missing(lock.wheels):
            store.fetch(missing, addresses(lock, selection.matrix), Silent(), threading.Event())
        for wheel in lock.wheels:
            store.pack(wheel, lock.python, Silent())
    return project, selection, locks
