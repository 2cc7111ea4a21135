"""Which of the free GPUs an attempt is granted, and whether they are fit to test on: looked at before and after it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from repromatrix.engines.gpus import Gpu, Inventory, inventory

PATIENCE = 10.0
"""Seconds in which a GPU's memory must become free: the driver takes a moment to clean up after an attempt."""

_KNOWN = 0.5
"""The same where a stranger was there already: each job that waits for him would wait as long again."""

STUCK = 10.0
"""Seconds for NVML's answer: a driver that has lost its GPU may never give one."""

_PERIOD = 0.25
_MOST_SETS = 20_000
"""Sets of GPUs that are compared for a grant: all of 16 (12,870 of 8). A host with more has them behind switches."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """What speaks against some GPUs, by index.

    Attributes:
        broken: What is wrong with the GPU itself: it stays out for the rest of the run.
        taken: Who else works on it now.
    """

    broken: Mapping[int, str] = field(default_factory=dict)
    taken: Mapping[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.broken or self.taken)

    def words(self) -> str:
        """`GPU 0: why; GPU 3: why`; empty where nothing does."""
        return "; ".join(f"GPU {index}: {why}" for index, why in sorted({**self.taken, **self.broken}.items()))


def choose(free: Iterable[int], count: int, joined: Iterable[tuple[int, int]] = ()) -> tuple[int, ...]:
    """The `count` GPUs of `free` that NVLink joins best; of equals those that leave the best rest, then the lowest.

    Args:
        joined: Pairs of GPUs with NVLink between them, the lower index first.
    """
    left = sorted(free)
    pairs = {pair for pair in joined if set(pair) <= set(left)}
    if len(pairs) in (0, len(left) * (len(left) - 1) // 2):  # none is better than another
        return tuple(left[:count])

    def worth(chosen: tuple[int, ...]) -> tuple[int, int]:
        rest = [gpu for gpu in left if gpu not in chosen]
        return _joined(chosen, pairs), _joined(rest, pairs)

    return max(islice(combinations(left, count), _MOST_SETS), key=worth)  # the first of equals, which are in order


def _joined(gpus: Sequence[int], pairs: set[tuple[int, int]]) -> int:
    return sum(pair in pairs for pair in combinations(gpus, 2))


def look_now(gpus: Sequence[int]) -> Inventory:
    """These GPUs as NVML sees them now."""
    return inventory(only=gpus)


class Fitness:
    """The GPUs of a run. Its methods may be called from several threads at once.

    Args:
        seen: All GPUs as the run began: only what is new since then takes one out, since a GPU may work on for years
            after an error. Where NVML told nothing, nobody is looked at, and all are taken for fit.
        look: Gives the state of some of them now.
        tell: Hears, once each, of GPUs that are left out.
        patience: See `PATIENCE`.
    """

    def __init__(
        self,
        seen: Inventory = Inventory(),  # noqa: B008
        look: Callable[[Sequence[int]], Inventory] = look_now,
        tell: Callable[[str], object] = lambda words: None,
        patience: float = PATIENCE,
    ) -> None:
        self._before = {gpu.index: gpu for gpu in seen.gpus}
        self._joined = tuple((first, second) for first, second, how in seen.links if how.startswith("NVLink"))
        self._marked = {gpu.index for gpu in seen.gpus if gpu.broken()}
        self._ask, self._tell, self._patience = look, tell, patience
        self._taken: set[int] = set()
        self._told: set[tuple[int, str]] = set()
        self._mutex = threading.Lock()
        for gpu in seen.gpus:
            if not gpu.lost and (why := gpu.broken()):
                tell(f"GPU {gpu.index}: {why}: used only where the others do not suffice")

    def choose(self, free: Iterable[int], count: int) -> tuple[int, ...]:
        """`count` of the `free`, those without old errors first; see `choose`."""
        candidates = sorted(free)
        clean = [gpu for gpu in candidates if gpu not in self._marked]
        return choose(clean if len(clean) >= count else candidates, count, self._joined)

    def settled(self, gpus: Sequence[int], cancel: threading.Event) -> Unfit:
        """What speaks against `gpus` before an attempt; waits for memory that is about to become free."""
        began = time.monotonic()
        while (found := self.look(gpus)).taken and not found.broken:
            patience = self._patience if found.taken.keys() - self._taken else min(_KNOWN, self._patience)
            if time.monotonic() >= began + patience or cancel.wait(_PERIOD):
                break
        with self._mutex:
            self._taken = (self._taken - set(gpus)) | found.taken.keys()
        if not cancel.is_set():
            self._say(found)
        return found

    def look(self, gpus: Sequence[int]) -> Unfit:
        """What speaks against `gpus` now; nothing where NVML told nothing of GPUs."""
        if not gpus or not self._before:
            return Unfit()
        now = self._now(gpus)
        broken = {index: why for index in gpus if (why := now[index].broken(self._before.get(index)))}
        taken = {index: why for index in gpus if index not in broken and (why := now[index].taken())}
        self._say(Unfit(broken))
        return Unfit(broken, taken)

    def broken(self, gpus: Sequence[int]) -> str:
        """Why an attempt that had `gpus` says nothing of a version; empty where they are as they were before."""
        words = Unfit(self.look(gpus).broken).words()
        return f"{words}: what was run on it says nothing of a version" if words else ""

    def _now(self, gpus: Sequence[int]) -> dict[int, Gpu]:
        answers: queue.SimpleQueue[Inventory] = queue.SimpleQueue()
        threading.Thread(target=lambda: answers.put(self._ask(gpus)), name="look at GPUs", daemon=True).start()
        try:
            seen = answers.get(timeout=STUCK)
        except queue.Empty:
            seen = Inventory(trouble=f"NVML gave no answer within {STUCK:g} s")
        told = {gpu.index: gpu for gpu in seen.gpus}
        silent = seen.trouble or "NVML does not list it"
        return {index: told.get(index) or Gpu(index, "", "", lost=silent) for index in gpus}

    def _say(self, found: Unfit) -> None:
        for index, why in {**found.broken, **found.taken}.items():
            with self._mutex:
                known = (index, why if index in found.broken else "taken") in self._told
                self._told.add((index, why if index in found.broken else "taken"))
            if not known:
                until = "for the rest of this run" if index in found.broken else "while that lasts"
                self._tell(f"GPU {index} is left out {until}: {why}")
