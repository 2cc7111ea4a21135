"""Which parts of the store go so that it fits under a cap, and how they go.

First scratch that nobody continues, then what can be made again from a wheel (packs, trees, venvs, tools), then wheels
and bases that nothing refers to. An archive is a copy: nothing here touches one, and none is a reason to keep anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.disk import disk_error
from repromatrix.errors import InfraError
from repromatrix.events import Listener

STAGES = {
    "scratch": 0,
    "packs": 1,
    "trees": 1,
    "venvs": 1,
    "tools": 1,
    "wheels": 2,
    "debs": 3,
    "bases": 3,
    "incoming": 3,
}
"""Kinds of parts that may go, and when: what costs a download again goes last, what may not be had again at the end."""

GONE = "gone-"
"""Beginning of the name, in `tmp/`, of what is being removed: the next `gc` ends what one that was killed began."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the store that goes as a whole or stays.

    Attributes:
        kind: Of `STAGES`, or `notes` and `other`, which always stay.
        paths: Below the store's root; the first is its name.
        size: Bytes on the disk, without those that another part counts.
        used: When it was last used, or made, in seconds since 1970.
        holders: Names of parts that hold some of its bytes by hard links: while they stay, little is won.
        kept: Why it must stay; empty where it may go.
    """

    kind: str
    paths: tuple[str, ...]
    size: int
    used: float
    holders: frozenset[str] = frozenset()
    kept: str = ""

    @property
    def name(self) -> str:
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes.

    Attributes:
        parts: In the order in which they go.
        before, after: Bytes of the store.
        cap: Bytes that it may have.
    """

    parts: tuple[Part, ...]
    before: int
    after: int
    cap: int

    @property
    def over(self) -> int:
        """Bytes by which the cap is not kept, since what is left must stay; 0 where it is."""
        return max(0, self.after - self.cap)


def plan(parts: Iterable[Part], cap: int) -> Plan:
    """The first parts, in the order of `STAGES` and then least recently used first, that bring the store under `cap`.

    With a part go those that hold its bytes, which are of the same stage; it is as recently used as any of them. A
    part that one holds which must stay, stays too.
    """
    everything = {part.name: part for part in parts}
    before = after = sum(part.size for part in everything.values())
    going: dict[str, Part] = {}
    for part in sorted(
        everything.values(), key=lambda part: (STAGES.get(part.kind, 9), _used(part, everything), part.name)
    ):
        if after <= cap:
            break
        together = [everything[name] for name in sorted(part.holders)] + [part]
        if any(each.kept for each in together):
            continue
        for each in together:
            if each.name not in going:
                going[each.name] = each
                after -= each.size
    return Plan(tuple(going.values()), before, after, cap)


def _used(part: Part, everything: dict[str, Part]) -> float:
    return max([part.used, *(everything[name].used for name in part.holders)])


def staying(parts: Iterable[Part], done: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """Number and bytes of the parts that stay, by kind and by why they must."""
    going = {part.name for part in done.parts}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for part in parts:
        if part.name not in going:
            count, size = found.get((part.kind, part.kept), (0, 0))
            found[part.kind, part.kept] = count + 1, size + part.size
    return found


def remove(parts: Sequence[Part], store: Path, listener: Listener) -> None:
    """Remove `parts`, each out of its place by one rename first: whatever has its final name stays complete.

    Raises:
        InfraError: Something cannot be removed; what was removed before is gone, the rest as it was.
    """
    task = listener.start("gc", str(store), sum(part.size for part in parts), "B")
    try:
        (store / "tmp").mkdir(exist_ok=True)
        for number, part in enumerate(parts):
            for path in part.paths:
                _remove(store / path, store / "tmp" / f"{GONE}{os.getpid()}-{number}-{Path(path).name}")
            task.advance(part.size)
    except OSError as error:
        raise disk_error(error, store) from error
    finally:
        task.finish()


def _remove(path: Path, aside: Path) -> None:
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


def finish(store: Path) -> None:
    """Remove what a `gc` that was killed had begun to remove.

    Raises:
        InfraError: It cannot be removed.
    """
    for path in sorted((store / "tmp").glob(f"{GONE}*")):
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise InfraError(f"cannot remove it: {error.strerror}", where=str(path)) from error
