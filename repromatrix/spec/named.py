"""Environments that are asked for by their exact id: also those that are locked and that no matrix has."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from repromatrix.spec.cells import Expansion, in_environment
from repromatrix.spec.model import Cell, Environment, Excluded, Matrix, Repro


def with_named(
    expansion: Expansion,
    matrix: Matrix,
    repros: Iterable[Repro],
    repro: str | None,
    env: str | None,
    target: str | None,
    engine: str = "",
) -> Expansion:
    """`expansion`, and the cells in environments of `matrix.locked` that `env` names by their exact ids.

    Of a repro that `repro` names, too, they run whatever it says of jax, Python and CUDA and the matrix excludes; but
    where some of its cells in an environment run anyway, those are what is meant. Of other repros they run as if the
    environment were in the matrix.

    Args:
        repro, env, target: As in `select`, with no paths in `repro`.
        engine: As in `expand`.
    """
    asked = named(matrix, env)
    if not asked:
        return expansion
    cells, excluded = list(expansion.cells), list(expansion.excluded)
    running = {(cell.repro.name, cell.environment.id) for cell in cells if _matches(cell.target, target)}
    described = {(each.cell.repro.name, each.cell.environment.id) for each in excluded}
    for one in repros:
        if not _matches(one.name, repro):
            continue
        by_name = one.name in _parts(repro)
        for environment in asked:
            place = one.name, environment.id
            if place in running or (place in described and not by_name):
                continue
            found = in_environment(matrix, one, environment, engine, by_name=by_name)
            known = {cell.id for cell in cells}
            cells += (cell for cell in found.cells if cell.id not in known)
            excluded += found.excluded
    cells.sort(key=lambda cell: cell.repro.name)
    return Expansion(tuple(cells), _left_out(cells, excluded))


def named(matrix: Matrix, env: str | None) -> tuple[Environment, ...]:
    """The locked environments that `env`, globs separated by commas, names by their exact ids."""
    parts = _parts(env)
    return tuple(each for each in matrix.locked if each.id in parts)


def every(matrix: Matrix, *asked: str) -> str:
    """An `env` that means all environments of the matrix, and those that `asked` names by their exact ids."""
    locked = {each.id for each in matrix.locked}
    return ",".join(dict.fromkeys(["*", *(each for each in asked if each in locked)]))


def _left_out(cells: Iterable[Cell], excluded: Iterable[Excluded]) -> tuple[Excluded, ...]:
    run = {cell.id for cell in cells}
    return tuple({each.cell.id: each for each in excluded if each.cell.id not in run}.values())


def _matches(name: str, globs: str | None) -> bool:
    return globs is None or any(fnmatchcase(name, glob) for glob in _parts(globs))


def _parts(globs: str | None) -> set[str]:
    return {part.strip() for part in (globs or "").split(",")} - {""}
