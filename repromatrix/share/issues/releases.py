"""When the versions of an environment were released, and from which commit they were built."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import UserError
from repromatrix.project import Project
from repromatrix.spec.model import Environment

_HASH = re.compile(r"^_git_hash: str(?: \| None)? = '([0-9a-f]{40})'", re.MULTILINE)
"""In version.py of jaxlib 0.4.30 to 0.5.3 and from 0.8.1, of jax from 0.8.1; 0.6.0 to 0.8.0 say None (read there)."""
_MOST = 1 << 20
"""Bytes of a version.py at most; it has 5 kB."""
JAX = "https://github.com/jax-ml/jax"


@dataclass(frozen=True, slots=True)
class Release:
    """The release that an environment holds.

    Attributes:
        versions: (project, version, day of its upload or empty) of jax, jaxlib and the packages that are axes.
        commit: Of the repository of jax that its wheels were built from; empty where they do not say.
    """

    versions: tuple[tuple[str, str, str], ...]
    commit: str

    @property
    def jax(self) -> str:
        return next((version for name, version, _ in self.versions if name == "jax"), "")

    @property
    def reference(self) -> str:
        """What its source is called in the repository of jax: the release's tag, else the commit, else empty."""
        if self.jax and not Version(self.jax).is_devrelease:
            return f"jax-v{self.jax}"
        return self.commit

    @property
    def words(self) -> str:
        """`jax 0.7.1 (2025-08-20)`, and jaxlib beside it where it is another version."""
        told = [pair for pair in self.versions if pair[0] != "jaxlib" or pair[1] != self.jax]
        return ", ".join(f"{name} {version}" + (f" ({day})" if day else "") for name, version, day in told)


def release(environment: Environment, project: Project) -> Release:
    """The release in `environment`, from its lock, and from its wheels where they are in the store."""
    try:
        lock = read_lock(project.locks / f"{environment.id}.txt", environment)
    except UserError:  # the lock has gone or was changed by hand: the versions asked for are still known
        return Release(tuple((name, value, "") for name, value in environment.axes if name in ("jax", "jaxlib")), "")
    return release_of(lock, project)


def release_of(lock: Lock, project: Project) -> Release:
    """The release that is locked, and the commit in its wheels where they are in the store."""
    names = ["jax", "jaxlib", *(name for name, _ in lock.environment.axes if name not in ("jax", "jaxlib"))]
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    told = [wheels[name] for name in names if name in wheels]
    return Release(tuple((each.name, each.version, each.uploaded[:10]) for each in told), _commit(lock, project))


def source_range(old: Release, new: Release) -> tuple[str, str] | None:
    """What the sources of two releases are called in the repository of jax; None where that is not known.

    Where the same jax was run with two releases of jaxlib, the commits that jaxlib was built from tell them apart.
    """
    for names in ((old.reference, new.reference), (old.commit, new.commit)):
        if all(names) and names[0] != names[1]:
            return names
    return None


def _commit(lock: Lock, project: Project) -> str:
    store = WheelStore(project.store)
    return next(filter(None, (_hash_in(wheel, store) for wheel in _built(lock.wheels))), "")


def _built(wheels: Iterable[Wheel]) -> list[Wheel]:
    return [wheel for name in ("jaxlib", "jax") for wheel in wheels if wheel.name == name]


def _hash_in(wheel: Wheel, store: WheelStore) -> str:
    path = store.path(wheel)
    if path is None:
        return ""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{wheel.name}/version.py") as file:
            found = _HASH.search(file.read(_MOST).decode("utf-8", "replace"))
    except (KeyError, OSError, zipfile.BadZipFile):  # a damaged wheel is found where it is unpacked
        return ""
    return found[1] if found else ""
