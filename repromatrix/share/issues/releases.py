"""When the versions of an environment were released, and from which commit they were built."""

from __future__ import annotations

import re
import zipfile
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
        commit: Of the repository of jax, that jax was built from; empty where that is not known. Two releases of jax
            may share a jaxlib (0.4.36 and 0.4.37, 0.5.1 and 0.5.2), whose commit says nothing of the newer one.
        jaxlib_commit: Of the same repository, that jaxlib was built from; empty where its wheel does not say.
    """

    versions: tuple[tuple[str, str, str], ...]
    commit: str
    jaxlib_commit: str = ""

    def version(self, name: str) -> str:
        """Of the package `name`; empty where it is not told."""
        return next((version for known, version, _ in self.versions if known == name), "")

    @property
    def jax(self) -> str:
        return self.version("jax")

    @property
    def reference(self) -> str:
        """What its source is called in the repository of jax: the release's tag, else the commit, else empty."""
        return tag(self.jax) or self.commit

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
    told = tuple((each.name, each.version, each.uploaded[:10]) for each in (wheels[n] for n in names if n in wheels))
    store = WheelStore(project.store)
    jax, jaxlib = wheels.get("jax"), wheels.get("jaxlib")
    own, beside = _hash_in(jax, store), _hash_in(jaxlib, store)
    if not own and jax is not None and jaxlib is not None and jax.version == jaxlib.version:
        own = beside
    return Release(told, own, beside)


def tag(version: str) -> str:
    """What the release `version` of jax or jaxlib is called in the repository of jax; empty where it has no tag."""
    return f"jax-v{version}" if version and not Version(version).is_devrelease else ""


def told_apart_by(old: Release, new: Release) -> str:
    """`jax`, or where that is the same `jaxlib`, if that differs: whose source to look at; empty where neither does."""
    return next((name for name in ("jax", "jaxlib") if old.version(name) != new.version(name)), "")


def source_range(old: Release, new: Release) -> tuple[str, str] | None:
    """What the sources of two releases are called in the repository of jax; None where there is no range, or it is not
    known.

    Where the same jax was run with two releases of jaxlib, the commits that jaxlib was built from tell them apart.
    """
    names = {
        "jax": (old.reference, new.reference),
        "jaxlib": (old.jaxlib_commit, new.jaxlib_commit),
    }.get(told_apart_by(old, new), ("", ""))
    return names if all(names) and names[0] != names[1] else None


def _hash_in(wheel: Wheel | None, store: WheelStore) -> str:
    path = store.path(wheel) if wheel is not None else None
    if wheel is None or path is None:
        return ""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{wheel.name}/version.py") as file:
            found = _HASH.search(file.read(_MOST).decode("utf-8", "replace"))
    except (KeyError, OSError, zipfile.BadZipFile):  # a damaged wheel is found where it is unpacked
        return ""
    return found[1] if found else ""
