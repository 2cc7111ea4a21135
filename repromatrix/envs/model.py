"""Locked environments: the data between the locker, the store, the image builder and the venv builder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from repromatrix.spec.model import Environment


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of a lock.

    Attributes:
        name: Normalised project name (PEP 503), `ml-dtypes`.
        version: As published, with any local part.
        filename: Of the wheel.
        sha256: Of the file.
        size: Bytes; 0 where the index did not say.
        uploaded: RFC 3339 time of upload; empty where the index did not say.
    """

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    uploaded: str


def hash_of(python: str, platform: str, wheels: Iterable[Wheel]) -> str:
    """SHA-256 over python, platform and every wheel's hash."""
    lines = [python, platform, *sorted(f"{w.name}=={w.version} {w.sha256}" for w in wheels)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Locked(Protocol):
    """Fixed wheels for one Python and platform: a `Lock`, or the programs of `tools.py`."""

    @property
    def id(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def wheels(self) -> tuple[Wheel, ...]: ...


@dataclass(frozen=True, slots=True)
class Lock:
    """An environment with every wheel fixed: `containers/locks/<id>.txt`.

    Attributes:
        python: Minor version the wheels are for.
        platform: uv's platform name they are for, `x86_64-manylinux_2_28`.
        as_of: What was asked: `release`, `latest`, or a date.
        cutoff: RFC 3339 time before which every unpinned wheel was uploaded; empty for `latest`.
        wheels: Sorted by name.
    """

    environment: Environment
    python: str
    platform: str
    as_of: str
    cutoff: str
    wheels: tuple[Wheel, ...]

    @property
    def id(self) -> str:
        return self.environment.id

    @property
    def hash(self) -> str:
        """SHA-256 over python, platform and every wheel's hash: what decides the environment, and nothing else."""
        return hash_of(self.python, self.platform, self.wheels)

    def version(self, name: str) -> str | None:
        """Locked version of project `name`, or None."""
        return next((wheel.version for wheel in self.wheels if wheel.name == name), None)


@dataclass(frozen=True, slots=True)
class Impossible:
    """An environment that cannot exist, as the index's metadata tells: its cells are `skip` with this reason."""

    environment: Environment
    reason: str
