"""What only the matrix and the repros together can tell: targets, and the names and words of conditions."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import Version

from repromatrix.errors import UserError
from repromatrix.spec.mistakes import shown_path
from repromatrix.spec.model import Matrix, Repro
from repromatrix.spec.repro import line_of
from repromatrix.spec.when import Kind, misuse, parse_when
from repromatrix.spec.words import AXES, ENGINES, nearest


def check(matrix: Matrix, repros: Iterable[Repro]) -> list[UserError]:
    """The mistakes of `repros` that show against `matrix`."""
    errors: list[UserError] = []
    declared = [target.name for target in matrix.targets]
    for repro in repros:
        file = shown_path(repro.path)
        for number, target in enumerate(repro.targets):
            name = target.partition(":")[0]
            if name not in ("cpu", "gpu", "wheels") and target not in declared and name not in declared:
                where = f"{file}:{line_of(repro, 'targets', number)}"
                advice = nearest(target, (*declared, "cpu", "gpu")) or f'describe it: [targets."{target}"]'
                errors.append(UserError(f'{matrix.path.name} has no target "{target}"', where=where, hint=advice))
        axes = {name for name, _ in matrix.axes} - set(AXES)
        for name in [name for name, _ in repro.params if name in axes]:
            where = f"{file}:{line_of(repro, 'params', name)}"
            errors.append(UserError(f"params.{name}: `{name}` is an axis of {matrix.path.name}", where=where))
        kinds = _kinds(matrix, repro)
        for number, expect in enumerate(repro.expect):
            for error in misuse(expect.when, parse_when(expect.when), kinds):
                where = f"{file}:{line_of(repro, 'expect', number, 'when')}"
                errors.append(UserError(f"expect[{number}].when: {error.message}", where=where, hint=error.hint))
    return errors


def _kinds(matrix: Matrix, repro: Repro) -> dict[str, Kind]:
    """What each name of a condition stands for."""
    kinds = {name: Kind(frozenset({Version})) for name, _ in matrix.axes}
    kinds["cuda"] = Kind(frozenset({str}))
    kinds["nccl"] = Kind(frozenset({Version, str}))  # "locked", or a version
    for name, values in repro.params:
        types = frozenset({type(value) if isinstance(value, bool | str) else float for value in values})
        kinds[name] = Kind(types, tuple(value for value in values if isinstance(value, str)))
    kinds["target"] = Kind(frozenset({str}), repro.targets)
    kinds["engine"] = Kind(frozenset({str}), ENGINES)
    return kinds
