"""Which wheels the index no longer serves, serves with other bytes, or has withdrawn: asked through uv, fetching none.

A wheel alone is enough to ask for: its file name tells the Python and the platform, so that the wheels of locks and
those of an archive are asked for alike.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from repromatrix.envs.compat import yanked
from repromatrix.envs.index import PLATFORM, Resolution, pinned
from repromatrix.envs.lockfile import supported_tags
from repromatrix.envs.model import Wheel
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.spec.model import Matrix

THREADS = 4
"""Questions at once: 122 wheels of 31 locks take 6 s on two cores, a question alone 0.5 s."""

GLIBC = 40
"""Newest glibc 2.x that uv 0.13.9 has a name for (`manylinux_2_40`): a wheel for an older one fits it too."""

ANY_PYTHON = "3.99"
"""Asked for where every wheel is pure Python: uv takes an upper bound of `Requires-Python` for no bound."""


KINDS = ("vanished", "replaced", "yanked")


@dataclass(frozen=True, slots=True)
class Loss:
    """A wheel that the index no longer offers as it was locked.

    Attributes:
        kind: Of `KINDS`: no file of this name, this name with other bytes, withdrawn (PEP 592: it still installs where
            it is pinned).
        reason: What its authors said, the hash of the file that took its place, or empty.
    """

    wheel: Wheel
    kind: str
    reason: str = ""

    def __str__(self) -> str:
        name = self.wheel.filename
        if self.kind == "yanked":
            return f"its authors have withdrawn {name}" + (f": {self.reason}" if self.reason else "")
        if self.kind == "replaced":
            return f"the index serves another file as {name} (sha256 {self.reason})"
        return f"the index no longer serves {name}"


@dataclass(frozen=True, slots=True)
class _Question:
    """Wheels of one Python and platform, no project in two versions: what uv can be asked at once."""

    python: str
    platform: str
    wheels: tuple[Wheel, ...]


def losses(
    wheels: Iterable[Wheel], matrix: Matrix | None, listener: Listener, cancel: threading.Event
) -> tuple[Loss, ...]:
    """Ask the index for each of `wheels` (by hash, each once), past every cache; sorted by file name.

    uv tells of withdrawn releases, not files: where only some files of a release are yanked, the file that uv would
    take decides for all of them.

    Args:
        matrix: Whose extra indexes count too; None = those of uv's and pip's settings alone.

    Raises:
        InfraError: The index does not answer, gives no hashes, or has not one of these wheels; uv cannot be asked for
            a wheel of this platform: nothing can be said.
    """
    unique = {wheel.sha256: wheel for wheel in wheels}
    pythons = _pythons(unique.values())
    for wheel in unique.values():
        if not any(_fits(wheel, python) for python in pythons):
            raise InfraError(f"uv cannot be asked for {wheel.filename}: it is for no Linux and CPython that it knows")
    served: set[str] = set()
    named: dict[str, str] = {}
    withdrawn: dict[tuple[str, str], str] = {}
    task = listener.start("lock", "upstream", len(unique))
    try:
        for python in pythons:
            left = [wheel for wheel in unique.values() if wheel.sha256 not in served]
            for answer in _ask_all(list(_questions(left, python)), matrix, cancel):
                withdrawn |= {(name, version): reason for name, version, reason in yanked(answer.stderr)}
                for file in (file for package in answer.packages for file in package.files):
                    if not file.sha256:
                        raise InfraError(
                            f"the index gives no SHA-256 of {file.filename}, so nothing can be said of it",
                            hint="use an index that gives hashes (PEP 503)",
                        )
                    named[file.filename] = file.sha256
                    if file.sha256 in unique and file.sha256 not in served:
                        served.add(file.sha256)
                        task.advance(1)
    except BaseException:
        task.finish("failed")
        raise
    task.finish(f"{len(served)} of {len(unique)} wheels are served")
    if unique and not served:
        # A login page, or a mirror of other packages: that proves nothing of any wheel.
        raise InfraError(
            f"the index has none of the {len(unique)} wheels",
            hint="set UV_DEFAULT_INDEX (or PIP_INDEX_URL) to the index that they came from",
        )
    found = (_loss(wheel, served, named, withdrawn) for wheel in unique.values())
    return tuple(sorted((loss for loss in found if loss is not None), key=lambda loss: loss.wheel.filename))


def _loss(
    wheel: Wheel, served: Collection[str], named: Mapping[str, str], withdrawn: Mapping[tuple[str, str], str]
) -> Loss | None:
    if wheel.sha256 not in served:
        other = named.get(wheel.filename, "")
        return Loss(wheel, "replaced" if other else "vanished", other)
    reason = withdrawn.get((wheel.name, wheel.version))
    return None if reason is None else Loss(wheel, "yanked", reason)


def _pythons(wheels: Iterable[Wheel]) -> list[str]:
    """Minor versions to ask for, newest first: a pure wheel of an archive may need the newest of its Pythons."""
    minors = {
        int(tag.interpreter[3:])
        for wheel in wheels
        for tag in _tags(wheel)
        if tag.interpreter == tag.abi and re.fullmatch(r"cp3\d+", tag.abi)
    }
    return [f"3.{minor}" for minor in sorted(minors, reverse=True)] or [ANY_PYTHON]


def _tags(wheel: Wheel) -> frozenset[Tag]:
    return parse_wheel_filename(wheel.filename)[3]


def _fits(wheel: Wheel, python: str) -> bool:
    return not _tags(wheel).isdisjoint(_supported(python, _platform(wheel)))


@cache
def _supported(python: str, platform: str) -> frozenset[Tag]:
    return frozenset(supported_tags(python, platform))


def _questions(wheels: Iterable[Wheel], python: str) -> Iterator[_Question]:
    """The fewest questions that name every one of `wheels` that fits `python`."""
    releases: dict[tuple[str, bool, str], dict[str, list[Wheel]]] = {}
    for wheel in wheels:
        platform = _platform(wheel)
        if _fits(wheel, python):
            # The nightly index is for development versions alone, and uv searches it first for all that it is asked.
            group = (platform, ".dev" in wheel.version, wheel.name)
            releases.setdefault(group, {}).setdefault(wheel.version, []).append(wheel)
    rounds: dict[tuple[str, bool, int], list[Wheel]] = {}
    for (platform, dev, _), versions in releases.items():
        for turn, version in enumerate(sorted(versions, key=Version, reverse=True)):
            rounds.setdefault((platform, dev, turn), []).extend(versions[version])
    for (platform, _, _), together in rounds.items():
        yield _Question(python, platform, tuple(together))


def _platform(wheel: Wheel) -> str:
    """uv's name of the platform, as new as uv knows, that `wheel` is for."""
    for tag in _tags(wheel):
        if match := re.fullmatch(r"(?:many)?linux(?:_\d+_\d+|\d+)?_(.+)", tag.platform):
            return f"{match[1]}-manylinux_2_{GLIBC}"
    return f"{PLATFORM.partition('-')[0]}-manylinux_2_{GLIBC}"


def _ask_all(questions: list[_Question], matrix: Matrix | None, cancel: threading.Event) -> list[Resolution]:
    def ask(question: _Question) -> Resolution:
        return pinned(question.wheels, question.python, question.platform, matrix, cancel, fresh=True)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="upstream") as pool:
        try:
            return list(pool.map(ask, questions))
        except BaseException:  # Ctrl-C, or no index: the pool waits for its threads, and these for uv
            cancel.set()
            raise
