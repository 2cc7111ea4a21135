"""From the files to cells: expand, override, exclude; and the selection of some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec.attempt import described, hlo_level, of_target, variables
from repromatrix.spec.check import check
from repromatrix.spec.model import Cell, Environment, Excluded, Expect, Matrix, Override, Repro
from repromatrix.spec.reasons import impossible, misplaced, ruled_out, unasked
from repromatrix.spec.when import Fact, When, parse_when
from repromatrix.spec.words import AXES, longer, nearest


@dataclass(frozen=True, slots=True)
class Expansion:
    """Every cell the files describe: those that run, and those that do not with the reason."""

    cells: tuple[Cell, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """An environment with what `[run]` and the overrides say of its attempts."""

    environment: Environment
    env: tuple[tuple[str, str], ...]
    timeout: float
    moved: int  # line of the override that chose the Python, or 0


@dataclass(frozen=True, slots=True)
class _Claim:
    expect: Expect
    when: When


def expand(matrix: Matrix, repros: Iterable[Repro], engine: str = "") -> Expansion:
    """All cells, ordered by repro, then environment in the order of the matrix, then target and parameters.

    Args:
        engine: What `engine` means in conditions; empty = as `[run]` says. Pass the engine that will run: `auto` is
            equal to none.

    Raises:
        InputErrors: A repro asks for a target, or compares with a name or value, that matrix.toml does not have.
    """
    repros = sorted(repros, key=lambda repro: repro.name)
    if errors := check(matrix, repros):
        raise InputErrors(errors)
    cells: dict[str, Cell] = {}
    excluded: dict[str, Excluded] = {}
    for repro in repros:
        for cell, reason in _cells(matrix, repro, engine or matrix.run.engine):
            if reason:
                excluded.setdefault(cell.id, Excluded(cell, reason))
            else:
                cells.setdefault(cell.id, cell)
    left_out = tuple(each for name, each in excluded.items() if name not in cells)
    return Expansion(tuple(cells.values()), left_out)


def select(
    expansion: Expansion,
    repro: str | None = None,
    env: str | None = None,
    target: str | None = None,
    default: tuple[str, ...] = (),
) -> Expansion:
    """The cells that every given word matches; others are dropped, not excluded.

    Args:
        repro: Globs of repro names, or paths of their files, separated by commas.
        env: Globs of environment ids, separated by commas.
        target: Globs of targets, separated by commas.
        default: Globs of environment ids that count where neither `repro` nor `env` is given; empty = all.

    Raises:
        UserError: A glob matches nothing, or nothing matches all of them.
    """
    everything = [*expansion.cells, *(each.cell for each in expansion.excluded)]
    errors: list[UserError] = []

    def wanted(globs: str | Iterable[str] | None, asked: str, names: Iterable[str]) -> set[str]:
        known = dict.fromkeys(names)
        if globs is None:
            return set(known)
        found: set[str] = set()
        for glob in filter(None, map(str.strip, globs.split(",") if isinstance(globs, str) else globs)):
            hits = [name for name in known if fnmatchcase(name, glob)]
            if not hits:
                advice = longer(glob, known) or nearest(glob, known) or f"there are: {_listed(known)}"
                errors.append(UserError(f'{asked} "{glob}" matches nothing', hint=advice))
            found.update(hits)
        return found

    paths = {str(cell.repro.path): cell.repro.name for cell in everything}
    repros = wanted(_names(repro, paths), "--repro", paths.values())
    if env is None and repro is None and default:
        environments = wanted(default, "[run] default", _ids(everything))
    else:
        environments = wanted(env, "--env", _ids(everything))
    targets = wanted(target, "--target", (cell.target for cell in everything))
    if errors:
        raise errors[0] if len(errors) == 1 else InputErrors(errors)

    ids = {cell.environment: cell.environment.id for cell in everything}

    def kept(cell: Cell) -> bool:
        return cell.repro.name in repros and ids[cell.environment] in environments and cell.target in targets

    chosen = Expansion(
        tuple(cell for cell in expansion.cells if kept(cell)),
        tuple(each for each in expansion.excluded if kept(each.cell)),
    )
    if everything and not chosen.cells and not chosen.excluded:
        asked = {"--repro": repro, "--env": env, "--target": target}
        words = " ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        raise UserError(f"no cell matches all of {words}", hint="`invoke cells` lists every cell")
    return chosen


def _names(repro: str | None, paths: Mapping[str, str]) -> str | None:
    """Paths of repros in a list of globs, as names."""
    if repro is None:
        return None
    parts = [part.strip() for part in repro.split(",")]
    return ",".join(paths.get(str(Path(part).resolve()), part) if part.endswith(".py") else part for part in parts)


def _ids(cells: Iterable[Cell]) -> list[str]:
    return [environment.id for environment in dict.fromkeys(cell.environment for cell in cells)]


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"


# --- environments -----------------------------------------------------------------------------------------------------


def _places(matrix: Matrix, repro: Repro) -> list[_Place]:
    """The environments of `repro`, overrides applied; two that an override makes the same are one."""
    choices = {"jax": repro.jax, "python": repro.python, "cuda": repro.cuda}
    # A package that the repro itself pins is no axis for it: its script needs that version.
    own = {canonicalize_name(Requirement(package).name) for package in repro.packages}
    crossed = [(name, values) for name, values in matrix.axes if name not in own]
    lists = [choice.values if (choice := choices.get(name)) and choice.values else values for name, values in crossed]
    places: dict[Environment, _Place] = {}
    for values in product(*lists):
        axes = dict(zip((name for name, _ in crossed), values, strict=True))
        place = _place(matrix, repro, axes)
        same = places.setdefault(place.environment, place)
        if same.moved and not place.moved:  # what is said of an environment itself counts before what was moved there
            places[place.environment] = place
    return list(places.values())


def _place(matrix: Matrix, repro: Repro, axes: dict[str, str]) -> _Place:
    """Overrides look at the id before any override and without packages, so that none decides what another matches."""
    asked = Environment(_ordered(axes), matrix.as_of)
    as_of, timeout, moved = matrix.as_of, matrix.run.timeout, 0
    packages: tuple[str, ...] = ()
    env = matrix.run.env
    for override in _overrides(matrix, asked):
        append = override.inherit == "append"
        if override.python is not None:
            axes, moved = {**axes, "python": override.python}, override.line
        as_of = override.as_of or as_of
        timeout = timeout if override.timeout is None else override.timeout
        if override.packages is not None:
            packages = (*packages, *override.packages) if append else override.packages
        if override.env is not None:
            env = tuple({**dict(env), **dict(override.env)}.items()) if append else override.env
    packages = tuple(sorted({*packages, *repro.packages}))
    timeout = timeout if repro.timeout is None else repro.timeout
    return _Place(Environment(_ordered(axes), as_of, packages), env, timeout, moved)


def _overrides(matrix: Matrix, environment: Environment) -> list[Override]:
    return [each for each in matrix.overrides if fnmatchcase(environment.id, each.select)]


def _ordered(axes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    known = [name for name in AXES if name in axes]
    return tuple((name, axes[name]) for name in (*known, *sorted(axes.keys() - set(known))))


# --- cells ------------------------------------------------------------------------------------------------------------


def _cells(matrix: Matrix, repro: Repro, engine: str) -> Iterator[tuple[Cell, str]]:
    """Every cell of `repro`, with the reason why it does not run or an empty string."""
    claims = [_Claim(expect, parse_when(expect.when)) for expect in repro.expect]
    combinations = [
        tuple(zip((name for name, _ in repro.params), values, strict=True))
        for values in product(*(values for _, values in repro.params))
    ]
    for place in _places(matrix, repro):
        environment = place.environment
        facts: dict[str, Fact] = {name: _fact(name, value) for name, value in environment.axes}
        facts["engine"] = engine
        unfit = unasked(repro, environment, place.moved) or impossible(environment)
        for target in repro.targets:
            facts["target"] = target
            reason = unfit or ruled_out(matrix, repro, environment, target)
            reason = reason or misplaced(matrix, environment.cuda, target)
            gpus, level = described(matrix, target), hlo_level(matrix, repro, target)
            for params in combinations:
                facts |= dict(params)
                cell = Cell(
                    environment=environment,
                    repro=repro,
                    params=params,
                    target=target,
                    env=variables({**dict(place.env), **of_target(matrix, target)}, repro, target, params, gpus),
                    timeout=place.timeout,
                    memory=matrix.run.memory if repro.memory is None else repro.memory,
                    repeat=matrix.run.repeat if repro.repeat is None else repro.repeat,
                    expect=next((claim.expect for claim in claims if claim.when.holds(facts)), None),
                    hlo=level,
                    described=gpus,
                )
                yield cell, reason


def _fact(name: str, value: str) -> Fact:
    if name == "cuda":
        return value
    try:
        return Version(value)
    except InvalidVersion:
        return value  # nccl's "locked"
