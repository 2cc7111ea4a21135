"""What a later search may try: one cell per version of an axis, for each kind of environment among some cells."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from packaging.version import Version

from repromatrix.axes.versions import series
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.model import Cell, Environment, Matrix


def span(
    project: Project,
    matrix: Matrix,
    cells: Iterable[Cell],
    axis: str,
    low: str,
    high: str,
    listener: Listener,
    cancel: threading.Event,
    *,
    offline: bool = False,
) -> tuple[Cell, ...]:
    """The cells of `series` from `low` to `high`, once for all `cells` whose environments differ in the version alone.

    Any Python of the matrix counts, whether or not this host has it.

    Raises:
        UserError, InfraError: As `series`.
    """
    kinds: dict[object, Cell] = {}
    for cell in sorted(cells, key=lambda cell: Version(cell.environment.jax)):
        kinds[_kind(cell.environment, axis)] = cell
    found = [
        series(project, matrix, cell, axis, low, high, None, listener, cancel, offline=offline)
        for cell in kinds.values()
    ]
    return tuple(version.cell for each in found for version in each.versions)


def _kind(environment: Environment, axis: str) -> object:
    """All of it but the version, and what follows from the version."""
    varied = {"jax", "jaxlib", axis}
    return environment.packages, tuple(pair for pair in environment.axes if pair[0] not in varied)
