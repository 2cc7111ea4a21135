"""The one cell that a history is made of: which repro, target, parameters and environment stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase

from packaging.version import InvalidVersion, Version

from repromatrix.compare import find_environment
from repromatrix.engines.choose import count_gpus
from repromatrix.errors import UserError
from repromatrix.events import Listener
from repromatrix.plan import Request, bars, choose
from repromatrix.spec.model import Cell, Environment, Matrix, Repro, Scalar, word
from repromatrix.spec.named import every
from repromatrix.spec.words import longer, nearest

Params = tuple[tuple[str, Scalar], ...]


def reference(
    matrix: Matrix,
    repros: tuple[Repro, ...],
    request: Request,
    engine: str,
    listener: Listener,
    axis: str = "jax",
    ends: Sequence[str] = (),
) -> Cell:
    """The one cell whose axis is varied; whatever was not said and had to be chosen is noted.

    The matrix's excludes do not count for what is asked for: they say what `invoke matrix` runs.

    Args:
        request: Its `repro`, `env`, `target` and `params` count. `env` may be an id, a glob, or a version of jax.
        engine: Name of the engine that will run it: claims may depend on it.
        axis: What will be varied.
        ends: Versions on that axis: along jax and jaxlib the newest environment between them is taken without `env`.

    Raises:
        UserError: No repro or several, no such environment, target or parameter, a parameter that must be said, or
            a target that this host cannot run.
    """
    everything = replace(request, env=every(matrix, request.env), target="", params=(), single=False, repeat=0)
    cells = choose(replace(matrix, excludes=()), repros, everything, engine).cells
    names = list(dict.fromkeys(cell.repro.name for cell in cells))
    if len(names) != 1:
        raise UserError(
            f"{request.repro or 'this'} means {len(names)} repros, and one is searched",
            hint=f"name one of: {', '.join(names)}"
            if names
            else "`uv run invoke cells` says why each cell is left out",
        )
    targets = _targets(cells, request)
    cells = tuple(cell for cell in cells if cell.target in targets)
    own = choose(matrix, repros, everything, engine).cells
    default = {cell.environment for cell in own if cell.target in targets}
    if request.env:
        there = list(dict.fromkeys(cell.environment for cell in cells))
        environment = find_environment(request.env, there, default, f" of {names[0]}", matrix.locked)
        cells = tuple(cell for cell in cells if cell.environment == environment)
    params = _params(cells, request)
    cells = _on_one_target(tuple(cell for cell in cells if cell.params == params), listener)
    if len(cells) > 1:
        cells = tuple(cell for cell in cells if cell.environment in default) or cells
        chosen = _newest(cells, ends if axis in ("jax", "jaxlib") else ())
        listener.note(f"all else is as in {chosen.environment.id}; --env names another environment")
        return chosen
    return cells[0]


def _params(cells: Iterable[Cell], request: Request) -> Params:
    """The combination of parameters that is asked for, or the only one."""
    there = list(dict.fromkeys(cell.params for cell in cells))
    known = dict.fromkeys(name for params in there for name, _ in params)
    for name, _ in request.params:
        if name not in known:
            advice = nearest(name, known) or f"known: {', '.join(known) or 'none'}"
            raise UserError(f"{request.repro} has no parameter {name!r}", hint=advice)
    wanted = dict(request.params)
    hits = [params for params in there if all(wanted.get(name, word(value)) == word(value) for name, value in params)]
    if len(hits) == 1:
        return hits[0]
    listed = "\n    ".join(" ".join(f"--param {name}={word(value)}" for name, value in each) for each in hits or there)
    if hits:
        raise UserError(
            f"{request.repro} has {len(hits)} combinations of parameters, and one is searched",
            hint=f"add one of:\n    {listed}",
        )
    said = ", ".join(f"{name}={value}" for name, value in request.params)
    raise UserError(f"{request.repro} has no cell with {said}", hint=f"there are:\n    {listed}")


def _targets(cells: Sequence[Cell], request: Request) -> set[str]:
    """The targets that are asked for, of those that the repro of `cells` has: what others have is no advice."""
    there = list(dict.fromkeys(cell.target for cell in cells))
    globs = [*filter(None, map(str.strip, request.target.split(",")))]
    for glob in globs:
        if not any(fnmatchcase(target, glob) for target in there):
            advice = longer(glob, there) or f"there {'are' if len(there) > 1 else 'is'}: {', '.join(there)}"
            raise UserError(f"{cells[0].repro.name} has no target {glob}", hint=advice)
    return {target for target in there if not globs or any(fnmatchcase(target, glob) for glob in globs)}


def _on_one_target(cells: tuple[Cell, ...], listener: Listener) -> tuple[Cell, ...]:
    """Of `cells`, which differ in target and environment alone, those of the first target that this host can run."""
    barred = bars(cells, count_gpus())
    able = tuple(cell for cell in cells if cell not in barred)
    if not able:
        reasons = dict.fromkeys(f"{cell.target}: {reason}" for cell, reason in barred.items())
        raise UserError(
            f"this host cannot run {cells[0].repro.name}",
            hint="; ".join(reasons) + "; --target may name another target of the repro",
        )
    order = cells[0].repro.targets
    target = min((cell.target for cell in able), key=order.index)
    others = [each for each in order if each != target and any(cell.target == each for cell in cells)]
    if others:
        listener.note(f"the target is {target}; --target can be {', '.join(others)} too")
    return tuple(cell for cell in able if cell.target == target)


def _newest(cells: Sequence[Cell], between: Sequence[str]) -> Cell:
    """The cell with the newest jax in the range `between`, else the nearest one below it, else the oldest above.

    Of several with the same jax, the first in the order of the matrix.
    """
    ends = []
    for end in between:
        with suppress(InvalidVersion):  # a date, or nothing
            ends.append(Version(end))
    newest_first = sorted(cells, key=lambda cell: _jax(cell.environment), reverse=True)  # stable: the matrix's order
    below = [cell for cell in newest_first if not ends or _jax(cell.environment) <= max(ends)]
    if below:
        return below[0]
    oldest = _jax(newest_first[-1].environment)
    return next(cell for cell in newest_first if _jax(cell.environment) == oldest)


def _jax(environment: Environment) -> Version:
    return Version(environment.jax)
