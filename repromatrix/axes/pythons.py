"""The Python that each version along a history is tried with."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from packaging.version import Version

from repromatrix.engines.base import Engine
from repromatrix.envs.lockfile import nccl_package
from repromatrix.envs.releases import fitting
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.spec.model import Cell, Matrix
from repromatrix.spec.when import matches


@dataclass(slots=True)
class Pythons:
    """Chooses a Python per version: the reference's where it has wheels, else the nearest of the matrix that has.

    Another Python is chosen along `jax` and `jaxlib` alone, where a long range leaves no choice; along any other axis
    jax stays, and so does its Python. The choice depends on the version, not on the range: two searches over different
    ranges meet in the same environments.

    Attributes:
        axis: What is varied.
        engine: That will run them; None = any Python can be had.
    """

    matrix: Matrix
    reference: Cell
    axis: str
    engine: Engine | None
    listener: Listener
    cancel: threading.Event
    _spans: dict[tuple[str, bool], tuple[Version, Version] | None] = field(default_factory=dict)
    _usable: dict[str, bool] = field(default_factory=dict)

    @property
    def unusable(self) -> tuple[str, ...]:
        """Pythons that have wheels, and of which no interpreter can be had here."""
        return tuple(python for python, usable in self._usable.items() if not usable)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The reference's Python, then the others of the matrix that the repro allows, the nearest first."""
        own = self.reference.environment.python
        if self.axis not in ("jax", "jaxlib"):
            return (own,)
        named = {base.python for base in self.matrix.bases} | {*dict(self.matrix.axes)["python"]}
        others = [each for each in named if each != own and self._allowed(each)]
        return (own, *sorted(others, key=lambda each: (abs(_minor(each) - _minor(own)), -_minor(each))))

    def of(self, version: str) -> str:
        """The Python for `version`; empty where none has a wheel of it.

        Raises:
            InfraError: The index does not answer.
        """
        if self.axis == "date":
            return self.reference.environment.python
        for python in self.candidates:
            if self._in_span(Version(version), python) and self._has_interpreter(python):
                return python
        for python in self.candidates:  # withdrawn releases are served where they are asked for alone
            if self._is_served(version, python) and self._has_interpreter(python):
                return python
        return ""

    def why_not(self) -> str:
        """Why there is none for a version."""
        wanting = [python for python in self.candidates if python not in self.unusable]
        why = f"it has no wheel for Python {', '.join(wanting)}"
        return why + (f", and Python {', '.join(self.unusable)} cannot be had here" if self.unusable else "")

    def _allowed(self, python: str) -> bool:
        choice = self.reference.repro.python
        if choice is None:
            return True
        if choice.values:
            return python in choice.values
        return choice.specifier is None or matches(choice.specifier, python)

    def _has_interpreter(self, python: str) -> bool:
        if self.engine is None or python == self.reference.environment.python:
            return True
        if python not in self._usable:
            try:
                self.engine.basis(python, self.listener)
                self._usable[python] = True
            except InfraError as error:
                self.listener.warn(f"Python {python} is not used: {error.line}")
                self._usable[python] = False
        return self._usable[python]

    @property
    def _package(self) -> str:
        return nccl_package(self.reference.environment.cuda) if self.axis == "nccl" else self.axis

    def _in_span(self, version: Version, python: str) -> bool:
        """Whether it lies between the oldest and the newest version with wheels for `python`.

        Wheels of jax are for any Python: that one is too old for it stands in its metadata, that one is too new shows
        in the wheels of jaxlib.
        """
        nightly = version.is_devrelease
        if (python, nightly) not in self._spans:
            built = "jaxlib" if self.axis == "jax" else self._package
            first = fitting(built, python, self.matrix, self.cancel, oldest=True, nightly=nightly)
            last = fitting(self._package, python, self.matrix, self.cancel, nightly=nightly)
            self._spans[python, nightly] = (first, last) if first and last else None
        span = self._spans[python, nightly]
        return span is not None and span[0] <= version <= span[1]

    def _is_served(self, version: str, python: str) -> bool:
        nightly = Version(version).is_devrelease
        return fitting(f"{self._package}=={version}", python, self.matrix, self.cancel, nightly=nightly) is not None


def _minor(python: str) -> int:
    return int(python.partition(".")[2])
