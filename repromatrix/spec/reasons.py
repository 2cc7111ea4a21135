"""Why a cell that the files describe does not run, whatever the machine: reasons in words."""

from __future__ import annotations

import re

from repromatrix.spec.model import AxisChoice, Environment, Matrix, Repro
from repromatrix.spec.when import matches


def unasked(repro: Repro, environment: Environment, moved: int) -> str:
    """The repro's own narrowing.

    Args:
        moved: Line of the override that chose the environment's Python, or 0.
    """
    choices: tuple[tuple[str, AxisChoice | None], ...]
    choices = (("jax", repro.jax), ("python", repro.python), ("cuda", repro.cuda))
    for name, choice in choices:
        value = environment.axis(name) or ""
        if choice is None:
            continue
        if choice.specifier is not None and not matches(choice.specifier, value):
            return f"the repro asks for {name} {choice.specifier}"
        if choice.values and value not in choice.values:
            wanted = ", ".join(choice.values)
            if not moved:
                return f"the repro asks for {name} {wanted}"
            return f"the override at line {moved} moves it to Python {value}, the repro asks for {wanted}"
    return ""


def impossible(environment: Environment) -> str:
    """Values of axes that contradict each other, whatever the index holds."""
    cuda = environment.cuda
    for name, value in environment.axes:
        if name == "nccl" and value != "locked":
            if cuda == "none":
                return "CPU wheels have no NCCL to replace"
            if cuda.endswith("-local"):
                return f"cuda {cuda} takes NCCL from the host"
        if (found := re.fullmatch(r"nvidia-.+-cu(\d+)", name)) and cuda != found[1]:
            return f"{name} belongs to the wheels of CUDA {found[1]}, not to cuda = {cuda}"
    return ""


def ruled_out(matrix: Matrix, repro: Repro, environment: Environment, target: str) -> str:
    """The first exclude that matches."""
    names = {**dict(environment.axes), "repro": repro.name, "target": target}
    for rule in matrix.excludes:
        if all(name in names and matches(condition, names[name]) for name, condition in rule.conditions):
            said = ", ".join(f"{name} = {condition}" for name, condition in rule.conditions)
            return rule.reason or f"excluded by {matrix.path.name}:{rule.line} ({said})"
    return ""


def misplaced(matrix: Matrix, cuda: str, target: str) -> str:
    """A target runs in one kind of environment: cpu in CPU wheels, gpu in CUDA wheels, a described one in `-local`.

    The plugin alone finds CUDA's libraries only where the project says that the host has them: without that word a
    repro that asks for both kinds of wheels would run on a GPU in both, and fail in the second. Wheels can be looked
    into anywhere.
    """
    kind = target.partition(":")[0]
    local = cuda.endswith("-local")
    if kind == "wheels":
        return ""
    if kind == "cpu":
        return "" if cuda == "none" else "a cpu target runs with the CPU wheels alone (cuda = none)"
    if kind != "gpu":
        return (
            "" if local else "a target without its device is compiled with the plugin alone (cuda = 12-local, 13-local)"
        )
    if cuda == "none":
        return "CPU wheels have no GPU"
    hosts = {each.name for each in matrix.targets if each.cuda_libraries is not None}
    if local and not hosts & {target, kind}:
        own = "[targets.gpu] cuda_libraries for those of the host"
        return f"cuda {cuda} brings no CUDA libraries: a GPU needs cuda = {cuda.removesuffix('-local')}, or {own}"
    return ""
