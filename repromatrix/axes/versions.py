"""The history along one axis: which versions there are, and the cell that tries each, all else equal."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isqrt

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version as Number

from repromatrix.axes.history import History, around, days, released, require_nightly
from repromatrix.axes.model import Series, Version
from repromatrix.axes.pythons import Pythons
from repromatrix.engines.base import Engine
from repromatrix.envs.index import NoSuchPackage
from repromatrix.envs.lockfile import nccl_package, read_impossible
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.cells import environments, in_environment
from repromatrix.spec.model import Cell, Matrix
from repromatrix.spec.words import AXES, nearest


def series(
    project: Project,
    matrix: Matrix,
    reference: Cell,
    axis: str,
    low: str,
    high: str,
    engine: Engine | None,
    listener: Listener,
    cancel: threading.Event,
    *,
    offline: bool = False,
    nightly: bool = False,
) -> Series:
    """The versions of `axis` from `low` to `high`, in either order and both included, each with its cell.

    All else is as in `reference`: repro, target, parameters, and every axis but this one. Overrides of the matrix count
    for each version, its excludes do not. Where jax or jaxlib has no wheels for the reference's Python, another one of
    the matrix is taken, and that is noted.

    Args:
        axis: `jax` (jaxlib goes with it), `jaxlib` (jax stays), `nccl`, `date` (of everything that nothing pins), or
            a package, whose pin in the repro it replaces.
        low, high: Versions, or days: the newest release, or the nightly build nearest to it, of that day. Empty for
            `jax`: the oldest and the newest of the matrix.
        engine: That will run them; None = whichever, here or elsewhere.
        offline: Of the versions that the index was last seen to have, those that are locked.
        nightly: The builds of the index called nightly too, and of the releases those from `low` to `high`.

    Raises:
        UserError: No such axis, package or version; the ends are one version, or cannot be tried.
        InfraError: The index does not answer, or cannot be asked and what it has is not known.
    """
    name = _axis(axis, matrix, reference)
    if nightly:
        require_nightly(matrix, name)
    if name == "date":
        history = days(low, high)
    else:
        task = listener.start("lock", f"which {name} there are")
        try:
            package = nccl_package(reference.environment.cuda) if name == "nccl" else name
            history = released(package, project, matrix, low, high, cancel, offline=offline, nightly=nightly)
        except NoSuchPackage as error:
            if name in AXES:
                raise
            advice = f"did you mean one of jax, jaxlib, nccl, date? Otherwise {error.hint}"
            raise UserError(f"--axis {axis}: {error.message}", hint=advice) from None
        finally:
            task.finish()
    for asked, version in history.meant:
        listener.note(f"{asked} is {name} {version}")
    for note in history.notes:
        listener.note(note)
    found = _cells(project, matrix, reference, name, history, engine, listener, cancel, offline=offline)
    versions = tuple(
        Version(version, cell, number)
        for version, number in zip(history.names, history.numbers, strict=True)
        if isinstance(cell := found[version], Cell)
    )
    left_out = {version: cell for version, cell in found.items() if isinstance(cell, str)}
    _tell_pythons(versions, listener)
    return Series(name, versions, tuple(left_out.items()), history.meant, history.notes)


def _axis(axis: str, matrix: Matrix, reference: Cell) -> str:
    """The axis as environments call it."""
    cuda = reference.environment.cuda
    if axis in ("python", "cuda"):
        raise UserError(f"{axis} has no history to search", hint="name the environments of `invoke diff` instead")
    if axis in ("jax", "jaxlib", "date"):
        return axis
    if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", axis, re.ASCII):
        raise UserError(f"{axis!r} is no axis", hint="jax, jaxlib, nccl, date, or the name of a package")
    name = canonicalize_name(axis)
    if name == "nccl" or (cuda != "none" and name == nccl_package(cuda)):
        if cuda == "none" or cuda.endswith("-local"):
            brought = "has no NCCL" if cuda == "none" else "takes NCCL from the host"
            raise UserError(
                f"{reference.environment.id} {brought}", hint='--env names an environment with cuda = "12" or "13"'
            )
        return "nccl"
    return next((known for known, _ in matrix.axes if canonicalize_name(known) == name), name)


# --- the cells --------------------------------------------------------------------------------------------------------


def _cells(
    project: Project,
    matrix: Matrix,
    reference: Cell,
    name: str,
    history: History,
    engine: Engine | None,
    listener: Listener,
    cancel: threading.Event,
    *,
    offline: bool,
) -> dict[str, Cell | str]:
    """The cell of each version, or why there is none.

    Raises:
        UserError, InfraError: There is none for an end.
    """
    impossible = read_impossible(project.locks) if offline else {}

    def kept(cell: Cell | str) -> bool:
        """Whether it is known what this environment is, or that there is none."""
        if isinstance(cell, str):
            return False
        return (project.locks / f"{cell.environment.id}.txt").is_file() or cell.environment.id in impossible

    pythons, runs = Pythons(matrix, reference, name, engine, listener, cancel), engine.name if engine else ""
    found: dict[str, Cell | str] = {}
    for version in history.names:
        if offline:
            there = (cell_of(matrix, reference, name, version, each, runs) for each in pythons.candidates)
            found[version] = next(filter(kept, there), "it is not locked, and asking the index is forbidden")
        elif python := pythons.of(version):
            found[version] = cell_of(matrix, reference, name, version, python, runs)
        else:
            found[version] = pythons.why_not()
    for end in (history.names[0], history.names[-1]):
        if isinstance(why := found[end], str):
            kind = InfraError if offline or pythons.unusable else UserError
            raise kind(f"{name} {end} cannot be tried: {why}", hint="name another end of the range")
    return found


def cell_of(matrix: Matrix, reference: Cell, axis: str, version: str, python: str, engine: str) -> Cell | str:
    """`reference` with another version on `axis`, and its Python; or why the files make no such cell.

    Args:
        engine: Name of the engine that will run it; empty = the matrix's.
    """
    repro, environment = reference.repro, reference.environment
    own = dict(environment.axes)
    values = {name: known[0] for name, known in matrix.axes} | own | {"python": python}
    as_of, overrides = environment.as_of, matrix.overrides
    if axis == "date":
        as_of, overrides = version, tuple(replace(each, as_of=None) for each in overrides)
    else:
        values[axis] = version
        as_of = matrix.as_of
    further = {axis, *own} - ({name for name, _ in matrix.axes} - {axis})  # of a reference that no matrix has
    overrides = tuple(
        each if each.packages is None else replace(each, packages=_without(further, each.packages))
        for each in overrides
    )
    one = replace(
        matrix, axes=tuple((name, (value,)) for name, value in values.items()), as_of=as_of, excludes=(),
        overrides=overrides,
    )  # fmt: skip
    free = replace(repro, packages=_without({axis, *own}, repro.packages), jax=None, python=None, cuda=None)
    (found,) = environments(one, free)
    made = in_environment(matrix, repro, found, engine)  # as for whoever names it later
    wanted = reference.target, reference.params
    for cell in made.cells:
        if (cell.target, cell.params) == wanted:
            return cell
    return next(each.reason for each in made.excluded if (each.cell.target, each.cell.params) == wanted)


def _without(axes: Iterable[str], packages: Iterable[str]) -> tuple[str, ...]:
    """`packages` without what is said of the projects that are axes."""
    names = {canonicalize_name(axis) for axis in axes}
    return tuple(each for each in packages if canonicalize_name(Requirement(each).name) not in names)


def _tell_pythons(versions: Sequence[Version], listener: Listener) -> None:
    """Say where the Python changes along the history: what changes there may be its doing."""
    parts: list[tuple[str, str, str]] = []
    for version in versions:
        python = version.cell.environment.python
        if parts and parts[-1][0] == python:
            parts[-1] = (python, parts[-1][1], version.name)
        else:
            parts.append((python, version.name, version.name))
    if len(parts) > 1:
        told = ", ".join((f"{a} to {b}" if a != b else a) + f" with Python {python}" for python, a, b in parts)
        listener.note(f"not all are tried with the same Python: {told}")


# --- places -----------------------------------------------------------------------------------------------------------


def place(series: Series, name: str) -> int:
    """The place of the version called `name`, in its own spelling, another one, or by the day it was asked for.

    Raises:
        UserError: It is not among them.
    """
    name = dict(series.meant).get(name, name)
    names = [version.name for version in series.versions]
    if name in names:
        return names.index(name)
    for left, reason in series.left_out:
        if left == name:
            raise UserError(f"{series.axis} {name} cannot be tried: {reason}", hint="name another version")
    hint = f"it goes from {names[0]} to {names[-1]}"
    if series.axis != "date":
        try:
            wanted = Number(name)
        except InvalidVersion:
            hint = nearest(name, names) or hint
        else:
            for number, each in enumerate(names):
                if Number(each) == wanted:
                    return number
            hint = f"the nearest are {around(wanted, names)}"
    raise UserError(f"{series.axis} {name} is not in this range", hint=hint)


def coarse(series: Series, sweep: str) -> tuple[int, ...]:
    """The places to look at first, between the ends.

    Args:
        sweep: `minor`: the last of each minor release, or about as many as the square root of all where none ends in
            between (days, nightly builds); `all`; or a number of places, evenly spread.

    Raises:
        UserError: Another word.
    """
    size = len(series.versions)
    if sweep == "all":
        return tuple(range(1, size - 1))
    if sweep == "minor":
        last: dict[tuple[int, ...], int] = {}
        if series.axis != "date":
            last = {Number(each.name).release[:2]: number for number, each in enumerate(series.versions)}
        inside = tuple(number for number in sorted(last.values()) if 0 < number < size - 1)
        return inside or _even(size, isqrt(size))
    if not re.fullmatch(r"\d+", sweep, re.ASCII):
        raise UserError(f"--sweep {sweep!r} is not minor, all, or a number", hint="for example --sweep 8")
    return _even(size, int(sweep))


def _even(size: int, count: int) -> tuple[int, ...]:
    """So many places between the first and the last of `size`, evenly spread; all where there are no more."""
    count = min(count, size - 2)
    return tuple(round(turn * (size - 1) / (count + 1)) for turn in range(1, count + 1))
