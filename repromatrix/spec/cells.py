"""From the files to cells: expand, override, exclude; and the selection of some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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


def environments(matrix: Matrix, repro: Repro) -> tuple[Environment, ...]:
    """The environments that the files make for `repro`, whether or not anything runs in them."""
    return tuple(place.environment for place in _places(matrix, repro))


def in_environment(
    matrix: Matrix, repro: Repro, environment: Environment, engine: str = "", *, by_name: bool = True
) -> Expansion:
    """The cells of `repro` in `environment`, which need not be one of the matrix; none where it cannot be the repro's.

    It is the repro's if it has every axis of the matrix, and the packages that the repro and the overrides ask for, but
    for those that its own axes stand for.

    Args:
        engine: As in `expand`.
        by_name: It was asked for by its name, and by that of the repro: what the repro says of jax, Python and CUDA and
            what the matrix excludes is no reason then. Both narrow what `invoke matrix` runs.
    """
    place = _place_of(matrix, repro, environment)
    if place is None:
        return Expansion((), ())
    found = list(_at(matrix, repro, place, engine or matrix.run.engine, by_name=by_name))
    return Expansion(
        tuple(cell for cell, reason in found if not reason),
        tuple(Excluded(cell, reason) for cell, reason in found if reason),
    )


def select(
    expansion: Expansion,
    repro: str | None = None,
    env: str | None = None,
    target: str | None = None,
    default: tuple[str, ...] = (),
    locked: Collection[str] = (),
) -> Expansion:
    """The cells that every given word matches; others are dropped, not excluded.

    Args:
        repro: Globs of repro names, or paths of their files, separated by commas.
        env: Globs of environment ids, separated by commas.
        target: Globs of targets, separated by commas.
        default: Globs of environment ids that count where neither `repro` nor `env` is given; empty = all.
        locked: Ids of further environments, which no glob means; told where a glob of `env` matches nothing else.

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
                beside = besides(glob, locked) if asked == "--env" else ""
                advice = longer(glob, known) or beside or nearest(glob, known) or f"there are: {listed(known)}"
                errors.append(UserError(f'{asked} "{glob}" matches nothing', hint=advice))
            found.update(hits)
        return found

    repros = wanted(
        names(repro, (cell.repro for cell in everything)), "--repro", (cell.repro.name for cell in everything)
    )
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


def names(globs: str | None, repros: Iterable[Repro]) -> str | None:
    """`globs` of repros with their names in the place of paths of their files."""
    if globs is None:
        return None
    paths = {str(repro.path): repro.name for repro in repros}
    parts = [part.strip() for part in globs.split(",")]
    return ",".join(paths.get(str(Path(part).resolve()), part) if part.endswith(".py") else part for part in parts)


def _ids(cells: Iterable[Cell]) -> list[str]:
    return [environment.id for environment in dict.fromkeys(cell.environment for cell in cells)]


def besides(asked: str, locked: Collection[str]) -> str:
    """Which of the `locked` ids somebody may have meant by `asked`, which no environment of the matrix matches."""
    found = [name for name in locked if name != asked and (fnmatchcase(name, asked) or name.startswith(asked))]
    told = f"locked, though not in the matrix: {listed(found)}; name one by its exact id" if found else ""
    if asked in locked:
        own = "it is locked, and not for this repro, whose packages and axes are others"
        return f"{own}; {told}" if told else own
    return told


def listed(names: Iterable[str]) -> str:
    """The first of many names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"


# --- environments -----------------------------------------------------------------------------------------------------


def _places(matrix: Matrix, repro: Repro) -> list[_Place]:
    """The environments of `repro`, overrides applied; two that an override makes the same are one."""
    choices = {"jax": repro.jax, "python": repro.python, "cuda": repro.cuda}
    crossed = _crossed(matrix, repro)
    lists = [choice.values if (choice := choices.get(name)) and choice.values else values for name, values in crossed]
    places: dict[Environment, _Place] = {}
    for values in product(*lists):
        axes = dict(zip((name for name, _ in crossed), values, strict=True))
        place = _place(matrix, repro, axes)
        same = places.setdefault(place.environment, place)
        if same.moved and not place.moved:  # what is said of an environment itself counts before what was moved there
            places[place.environment] = place
    return list(places.values())


def _crossed(matrix: Matrix, repro: Repro) -> list[tuple[str, tuple[str, ...]]]:
    """The axes of `repro`: a package that it pins itself is none for it, as its script needs that version."""
    own = {canonicalize_name(Requirement(package).name) for package in repro.packages}
    return [(name, values) for name, values in matrix.axes if name not in own]


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


def _place_of(matrix: Matrix, repro: Repro, environment: Environment) -> _Place | None:
    """`environment` as a place of `repro`: the matrix's own, else what its axes become; None where it is another's."""
    for place in _places(matrix, repro):
        if place.environment == environment:
            return place
    if {name for name, _ in _crossed(matrix, repro)} - {name for name, _ in environment.axes}:
        return None
    stood_for = {canonicalize_name(name) for name, _ in environment.axes}

    def asked(packages: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            each
            for each in packages
            if each in environment.packages or canonicalize_name(Requirement(each).name) not in stood_for
        )

    own = replace(repro, packages=asked(repro.packages))
    overrides = tuple(
        each if each.packages is None else replace(each, packages=asked(each.packages)) for each in matrix.overrides
    )
    # As in the matrix, what is said of an environment itself counts before what was moved there.
    of_matrix = sorted(dict(matrix.axes)["python"], key=lambda python: python != environment.python)
    pythons = dict.fromkeys((*of_matrix, environment.python, *(base.python for base in matrix.bases)))
    # What overrides say of the day and the Python made it what it is, or was passed by: a search along days, a lock
    # that is older than the override.
    for moving in (True, False):
        for as_of in (matrix.as_of, None):
            applied = tuple(
                replace(each, as_of=each.as_of if as_of else None, python=each.python if moving else None)
                for each in overrides
            )
            there = replace(matrix, as_of=as_of or environment.as_of, overrides=applied)
            for python in pythons if moving else (environment.python,):
                place = _place(there, own, {**dict(environment.axes), "python": python})
                if place.environment == environment:
                    return place
    return None


def _overrides(matrix: Matrix, environment: Environment) -> list[Override]:
    return [each for each in matrix.overrides if fnmatchcase(environment.id, each.select)]


def _ordered(axes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    known = [name for name in AXES if name in axes]
    return tuple((name, axes[name]) for name in (*known, *sorted(axes.keys() - set(known))))


# --- cells ------------------------------------------------------------------------------------------------------------


def _cells(matrix: Matrix, repro: Repro, engine: str) -> Iterator[tuple[Cell, str]]:
    """Every cell of `repro`, with the reason why it does not run or an empty string."""
    for place in _places(matrix, repro):
        yield from _at(matrix, repro, place, engine, by_name=False)


def _at(matrix: Matrix, repro: Repro, place: _Place, engine: str, *, by_name: bool) -> Iterator[tuple[Cell, str]]:
    """The cells of `repro` in one environment, as `_cells`; `by_name` as in `in_environment`."""
    claims = [_Claim(expect, parse_when(expect.when)) for expect in repro.expect]
    combinations = [
        tuple(zip((name for name, _ in repro.params), values, strict=True))
        for values in product(*(values for _, values in repro.params))
    ]
    environment = place.environment
    facts: dict[str, Fact] = {name: _fact(name, value) for name, value in environment.axes}
    facts["engine"] = engine
    unfit = ("" if by_name else unasked(repro, environment, place.moved)) or impossible(environment)
    for target in repro.targets:
        facts["target"] = target
        reason = unfit or ("" if by_name else ruled_out(matrix, repro, environment, target))
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
