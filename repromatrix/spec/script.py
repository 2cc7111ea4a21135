"""Mistakes in a script that show without running it: it does nothing, or it lacks what its targets need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from repromatrix.spec.block import Block
from repromatrix.spec.mistakes import Mistakes

HOSTED = ("cpu", "gpu")
"""Kinds of targets that the script itself runs on; any other is one that its `program` is compiled for."""

_FOR_SCRIPTS = ("params", "env", "files", "processes", "witness", "hlo")
"""Keys that say something of a script, which a probe does not have."""


def check_script(data: Mapping[str, object], source: str, block: Block, mistakes: Mistakes) -> None:
    """Note what is wrong with the code for what the metadata `data` says of it."""
    lookups = [name for name in ("strings", "symbols", "flags", "libraries") if name in data]
    code = _code(source)
    if data.get("probe") is True:
        if not any(data[name] for name in lookups if name != "libraries"):
            mistakes.add(("probe",), "a probe looks something up: expected strings, symbols or flags")
        if "targets" in data:
            hint = "leave `targets` out; `cuda` and `jax` say in which environments it looks"
            mistakes.add(("targets",), 'a probe looks into wheels: its only target is "wheels", set by itself', hint)
        for name in _FOR_SCRIPTS:
            if name in data:
                mistakes.add((name,), "a probe has no script, so this has no meaning here")
        if code:
            mistakes.at_line(code - block.first, "a probe has no script; this code would never run")
        return
    for name in lookups:
        mistakes.add((name,), "only a probe looks things up in the wheels", "add probe = true")
    if not code:
        hint = "it would end well everywhere and prove nothing"
        mistakes.at_line(block.last - block.first, "the script has no code", hint)
    else:
        _check_program(data, source, mistakes)


def _check_program(data: Mapping[str, object], source: str, mistakes: Mistakes) -> None:
    """What compiling without a device asks of the script, as `containers/compile.py` will."""
    targets, params = data.get("targets"), data.get("params")
    names = [*params] if isinstance(params, dict) else []
    described = [
        (number, target)
        for number, target in enumerate(targets if isinstance(targets, list) else [])
        if isinstance(target, str) and re.fullmatch(r"[a-z][a-z0-9_]*:[1-9][0-9]*", target)
        if target.partition(":")[0] not in HOSTED
    ]
    if not described:
        return
    number, target = described[0]
    found = _program(source)
    if found is None:
        add = f"add `def program({', '.join(['devices', *names])})`; it returns (jitted, args): docs/repros.md"
        mistakes.add(("targets", number), f"{target} compiles the script's `program`, and there is none", add)
    elif found.takes is not None:
        for name in names:
            if name not in found.takes:
                mistakes.add(("params", name), f"program() at line {found.line} does not take it")
    processes = data.get("processes")
    if isinstance(processes, int) and processes > 1:
        mistakes.add(("processes",), f"{target} is compiled by one process for all its devices")


@dataclass(frozen=True, slots=True)
class _Program:
    """Attributes:
    takes: Names of the parameters beside the devices; None = any, or not to be told from the text.
    """

    line: int
    takes: frozenset[str] | None


def _program(source: str) -> _Program | None:
    """The function `program` of a script, or what it is bound to by an assignment or an import."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it may be for another Python
        found = re.search(r"^def program\b", source, re.MULTILINE)
        return _Program(source.count("\n", 0, found.start()) + 1, None) if found else None
    bound = None
    for node in _module_level(tree):
        match node:
            case ast.FunctionDef(name="program", args=args):
                named = frozenset(arg.arg for arg in [*args.posonlyargs, *args.args][1:] + args.kwonlyargs)
                return _Program(node.lineno, None if args.kwarg else named)
            case ast.Name(id="program", ctx=ast.Store()) | ast.alias(asname="program"):
                bound = _Program(node.lineno, None)
            case ast.alias(name="program", asname=None):
                bound = _Program(node.lineno, None)
    return bound


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below `node` but for the insides of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _module_level(child)


def _code(source: str) -> int:
    """Line of the first statement that is no docstring; 0 where there is none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return next((n for n, line in enumerate(source.split("\n"), 1) if line.strip() and line.lstrip()[0] != "#"), 0)
    documented = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    statements = body[1:] if documented else body
    return statements[0].lineno if statements else 0
