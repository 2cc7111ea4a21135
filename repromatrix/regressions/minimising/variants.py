"""Variants of a cell: with fewer of its flags and variables, with another value of a parameter.

A variant has an id of its own, so that its result is never taken for that of the cell it was made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from repromatrix.errors import UserError
from repromatrix.regressions.minimising.model import Item
from repromatrix.search.threshold import Number
from repromatrix.spec.attempt import variables
from repromatrix.spec.cells import expand
from repromatrix.spec.model import Cell, Matrix, Scalar

FLAGS = "XLA_FLAGS"


def flags_of(cell: Cell) -> tuple[Item, ...]:
    """The XLA flags of `cell` that the repro or the matrix gives, each once, in their order; not the tool's own."""
    own = _own(cell).get(FLAGS, "").split()
    given = dict.fromkeys(dict(cell.env).get(FLAGS, "").split())
    return tuple(Item(flag, "", flag) for flag in given if flag not in own)


def with_flags(cell: Cell, kept: Iterable[object]) -> Cell:
    """`cell` with those of its flags alone, and with the tool's own."""
    left = {item.name for item in flags_of(cell)} - set(kept)
    if not left:
        return cell
    env = dict(cell.env)
    env[FLAGS] = " ".join(flag for flag in env[FLAGS].split() if flag not in left)
    return _variant(cell, env)


def variables_of(cell: Cell) -> tuple[Item, ...]:
    """The variables that the repro or the matrix sets, but for the flags; not the tool's own, nor the parameters."""
    own, env = _own(cell), dict(cell.env)
    return tuple(
        Item(name, own.get(name, ""), value) for name, value in env.items() if name != FLAGS and own.get(name) != value
    )


def with_variables(cell: Cell, kept: Iterable[object]) -> Cell:
    """`cell` with those of its variables alone; of the others the tool's own value, where it has one."""
    left = {item.name for item in variables_of(cell)} - set(kept)
    if not left:
        return cell
    own = _own(cell)
    env = {name: own.get(name, "") if name in left else value for name, value in cell.env}
    return _variant(cell, {name: value for name, value in env.items() if name not in left or name in own})


def with_values(matrix: Matrix, cell: Cell, param: str, values: Sequence[Number], engine: str) -> dict[Number, Cell]:
    """`cell` with each of `values` for its parameter, by value; declared ones are the matrix's own cells.

    Raises:
        UserError: The repro has no such parameter.
    """
    declared = dict(cell.repro.params)
    if param not in declared:
        raise UserError(f"{cell.repro.name} has no parameter {param!r}", hint=f"known: {', '.join(declared) or 'none'}")
    wanted: dict[str, tuple[Scalar, ...]] = {name: (value,) for name, value in cell.params}
    # Its claims may speak of the declared values, which must be there to be compared with.
    wanted[param] = tuple(dict.fromkeys((*declared[param], *values)))
    params = tuple((name, tuple(dict.fromkeys((*declared[name], *wanted[name])))) for name in declared)
    repro = replace(cell.repro, params=params)
    found = {}
    for each in expand(replace(matrix, excludes=()), [repro], engine).cells:
        value = dict(each.params)[param]
        others = [pair for pair in each.params if pair[0] != param] == [p for p in cell.params if p[0] != param]
        same = others and each.target == cell.target and each.environment == cell.environment
        if same and isinstance(value, int | float) and value in values:
            made = replace(each, repro=cell.repro)
            found[value] = made if value in declared[param] else quiet(made)
    return found


def quiet(cell: Cell) -> Cell:
    """`cell` without a second run of each failure for its HLO, and without a claim: it is one of many tries."""
    return replace(cell, hlo="off" if cell.hlo == "failures" else cell.hlo, expect=None)


def marked(cell: Cell, mark: str) -> Cell:
    """`cell` under an id of its own, and quiet; the same attempts count for both where nothing else differs."""
    return quiet(replace(cell, repro=replace(cell.repro, name=f"{cell.repro.name}~{mark}")))


def _variant(cell: Cell, env: dict[str, str]) -> Cell:
    text = "\n".join(f"{name}={value}" for name, value in env.items())
    return marked(replace(cell, env=tuple(env.items())), hashlib.sha256(text.encode()).hexdigest()[:8])


def _own(cell: Cell) -> dict[str, str]:
    """The variables that every such cell has, whatever the repro and the matrix say."""
    return dict(variables({}, replace(cell.repro, env=()), cell.target, cell.params, cell.described))
