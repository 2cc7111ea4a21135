"""The data of a history along one axis."""

from __future__ import annotations

from dataclasses import dataclass

from repromatrix.spec.model import Cell


@dataclass(frozen=True, slots=True)
class Version:
    """One place of the history.

    Attributes:
        name: `0.10.2`, or a date.
        cell: That tries it.
        number: Its place among all versions of the axis, oldest first, whatever range is asked for.
    """

    name: str
    cell: Cell
    number: int


@dataclass(frozen=True, slots=True)
class Series:
    """The versions along one axis, all else equal.

    Attributes:
        axis: `jax`, `jaxlib`, `nccl`, `date`, or a package.
        versions: Oldest first.
        left_out: (version, reason) of versions in the range that no cell can try.
        meant: (words, version) of what was asked for by a day or in another spelling.
        notes: What the reader must know of the range, a sentence each.
    """

    axis: str
    versions: tuple[Version, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    meant: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
