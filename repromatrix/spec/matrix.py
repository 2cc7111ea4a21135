"""Read matrix.toml."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

from packaging.utils import canonicalize_name

from repromatrix.errors import UserError
from repromatrix.spec.deviceless import topology as topology_of
from repromatrix.spec.matrix_file import MatrixFile, OverrideTable, TargetTable
from repromatrix.spec.mistakes import Mistakes, dotted, inside, shown_path
from repromatrix.spec.model import Base, Matrix, Override, Rule, RunSettings, SignatureRule, TargetSpec
from repromatrix.spec.words import AXES, nearest, shown

CELL_NAMES = ("repro", "target")
"""What an exclude may name besides axes."""


def load_matrix(path: Path) -> Matrix:
    """Read and check matrix.toml.

    Raises:
        UserError: It cannot be read.
        InputErrors: It is wrong; holds every mistake.
    """
    where = shown_path(path)
    try:
        content = path.read_bytes()
        text = content.decode()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError("not UTF-8", where=f"{where}:{line}", hint="save the file as UTF-8") from error
    mistakes = Mistakes(path, text)
    data = mistakes.parse()
    file = mistakes.validate(MatrixFile, data) if data is not None else None
    hashes: dict[tuple[str, str], str] = {}
    if data is not None:
        _check_axes(data, mistakes)
        hashes = _check_targets(data, path.resolve().parent, mistakes)
        _check_tables(data, mistakes)
    mistakes.stop()
    assert file is not None
    assert data is not None
    targets = tuple(_target(name, table, hashes) for name, table in file.targets.items())
    return _matrix(path.resolve(), file, data, targets, mistakes)


def _target(name: str, table: TargetTable, hashes: dict[tuple[str, str], str]) -> TargetSpec:
    topology, count = table.topology, name.partition(":")[2]
    if table.describe is not None and topology is None and count:
        topology = topology_of(int(count))
    return TargetSpec(
        name,
        table.describe,
        topology,
        table.cuda_libraries,
        table.autotune,
        hashes.get((name, "describe"), ""),
        hashes.get((name, "autotune"), ""),
        tuple(table.env.items()),
    )


def _matrix(
    path: Path,
    file: MatrixFile,
    data: dict[str, dict[str, object]],
    targets: tuple[TargetSpec, ...],
    mistakes: Mistakes,
) -> Matrix:
    axes = {**{name: None for name in data["matrix"] if name != "as_of"}, **dict.fromkeys(("cuda", "python", "nccl"))}
    extra = file.matrix.__pydantic_extra__
    return Matrix(
        path=path,
        axes=tuple((_axis(name), tuple(extra[name] if name in extra else getattr(file.matrix, name))) for name in axes),
        as_of=file.matrix.as_of,
        excludes=tuple(
            Rule(
                tuple((_axis(name), condition) for name, condition in rule.__pydantic_extra__.items()),
                rule.reason,
                mistakes.line(("exclude", number)),
            )
            for number, rule in enumerate(file.exclude)
        ),
        overrides=tuple(
            Override(
                each.select,
                each.python,
                each.as_of,
                None if each.packages is None else tuple(each.packages),
                None if each.env is None else tuple(each.env.items()),
                each.timeout,
                each.inherit,
                mistakes.line(("override", number)),
            )
            for number, each in enumerate(file.override)
        ),
        bases=tuple(Base(python, base.image, base.debian) for python, base in file.bases.items()),
        targets=targets,
        indexes=tuple(file.indexes.items()),
        signatures=tuple(SignatureRule(each.match, each.title) for each in file.signature),
        run=RunSettings(
            engine=file.run.engine,
            timeout=file.run.timeout,
            repeat=file.run.repeat,
            jobs=file.run.jobs,
            memory=file.run.memory,
            cores=file.run.cores,
            env=tuple(file.run.env.items()),
            default=tuple(file.run.default),
            hlo=file.run.hlo,
        ),
    )


def _axis(name: str) -> str:
    return canonicalize_name(name)


def _check_axes(data: dict[str, object], mistakes: Mistakes) -> None:
    """Names of axes, and of the axes that excludes speak of.

    A name without a meaning of its own is a package. A bare one that is nearly a known axis (`pyton`) is refused as a
    misspelling; in quotes it is taken at its word.
    """
    table = data.get("matrix")
    if not isinstance(table, dict):
        return
    names: dict[str, str] = {}
    for name in table:
        path = ("matrix", name)
        known = nearest(name, (*AXES, "as_of"), 0.75)
        if name == "as_of" or name in AXES:
            pass
        elif not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            mistakes.add(path, "this is neither an axis nor the name of a package")
        elif _axis(name) in AXES or re.fullmatch(r"nvidia-nccl-cu\d+", _axis(name)):
            right = _axis(name) if _axis(name) in AXES else "nccl"
            mistakes.add(path, f"this axis is called {right}", f'did you mean "{right}"?')
        elif known and path not in mistakes.places.quoted:
            mistakes.add(path, "unknown axis", f"{known} A package of this name is written in quotes.")
        elif _axis(name) in names:
            mistakes.add(path, f"this is the axis {dotted([names[_axis(name)]])} again")
        names.setdefault(_axis(name), name)
    axes = [name for name in dict.fromkeys((*names, *AXES)) if name in names or name != "jaxlib"]
    rules = data.get("exclude")
    for number, rule in enumerate(rules if isinstance(rules, list) else []):
        named = [name for name in rule if name != "reason"] if isinstance(rule, dict) else ["?"]
        if not named:
            mistakes.add(
                ("exclude", number), "expected a condition on an axis", "without one it would match every cell"
            )
        for name in named if isinstance(rule, dict) else []:
            known_names = [each for each in (*axes, *CELL_NAMES) if each != "as_of"]
            if _axis(name) not in known_names:
                advice = nearest(name, (*known_names, "reason")) or f"axes here: {', '.join(known_names)}"
                mistakes.add(("exclude", number, name), "unknown axis", advice)


def _check_targets(data: dict[str, object], root: Path, mistakes: Mistakes) -> dict[tuple[str, str], str]:
    """The targets and the files that they name; returns the hash of each file's content, by target and key."""
    targets = data.get("targets")
    hashes: dict[tuple[str, str], str] = {}
    for name, table in targets.items() if isinstance(targets, dict) else ():
        path = ("targets", name)
        if not isinstance(table, dict):
            continue
        found = re.fullmatch(r"([a-z][a-z0-9_]*)(?::([1-9]\d*))?", name)
        if not found or found[1] in ("cpu", "wheels"):
            mistakes.add(path, 'expected a target such as "h100", "h100:8" or "gpu"')
            continue
        topology = table.get("topology")
        if found[1] == "gpu":
            for key in {"describe", "topology", "autotune"} & table.keys():
                mistakes.add(
                    (*path, key), "a real GPU needs no description; only cuda_libraries and env have a meaning here"
                )
            continue
        words = {"cuda_libraries": "CUDA libraries", "env": "variables of real GPUs; [run] env holds everywhere"}
        for key in words.keys() & table.keys():
            mistakes.add((*path, key), f"compiling without a device needs no {words[key]}")
        if "describe" not in table:
            mistakes.add(path, "`describe` is missing: the file that describes this target")
        for key in ("describe", "autotune"):
            if isinstance(file := table.get(key), str) and file:
                hashes[name, key], error = _content(root, file, text=key == "describe")
                if error:
                    mistakes.add((*path, key), error)
        if isinstance(topology, str) and re.fullmatch(r"\d+x\d+x\d+", topology):
            devices = math.prod(int(part) for part in topology.split("x"))
            if found[2] is None:
                mistakes.add((*path, "topology"), f"a target with a topology has a size: {name}:{devices}")
            elif devices != int(found[2]):
                mistakes.add((*path, "topology"), f"expected {found[2]} devices, found {topology} = {devices}")
    return hashes


def _content(root: Path, name: str, *, text: bool) -> tuple[str, str]:
    """SHA-256 of the file `name` below `root`, or what is wrong with it: ("", error)."""
    path, error = inside(root, root, name)
    if path is None:
        return "", error
    try:
        content = path.read_bytes()
    except OSError as failure:
        return "", f"{shown(name)} cannot be read: {failure.strerror}"
    if not content.strip():
        return "", f"{shown(name)} is empty"
    if text:
        try:
            plain = "\0" not in content.decode()
        except UnicodeDecodeError:
            plain = False
        if not plain:
            return "", f"{shown(name)} is no text; expected the description of a GPU as a text proto"
    return hashlib.sha256(content).hexdigest(), ""


def _check_tables(data: dict[str, object], mistakes: Mistakes) -> None:
    bases = data.get("bases")
    for python, table in bases.items() if isinstance(bases, dict) else ():
        if isinstance(table, dict) and not table:
            mistakes.add(("bases", python), "expected `image`, `debian` or both")
    overrides = data.get("override")
    for number, table in enumerate(overrides if isinstance(overrides, list) else []):
        if isinstance(table, dict) and table.keys() <= {"select", "inherit"}:
            keys = ", ".join(name for name in OverrideTable.model_fields if name not in ("select", "inherit"))
            mistakes.add(("override", number), f"this changes nothing; expected one of {keys}")
