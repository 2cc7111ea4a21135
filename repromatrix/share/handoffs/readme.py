"""What a handed-over folder says: its README.md, and the words of reproduce.sh."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from repromatrix import __version__
from repromatrix.engines.attempt import SUPERVISOR
from repromatrix.engines.container import PIDS, SHM
from repromatrix.envs.base import BaseImage
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.plan import gpus_wanted
from repromatrix.report.escape import clean, code, prose
from repromatrix.report.layout import duration, size
from repromatrix.report.system_info import MACHINE
from repromatrix.results.model import CellResult
from repromatrix.share.handoffs.expected import Expected, Handoff
from repromatrix.spec.model import Cell, Matrix

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = SUPERVISOR.parent / "handoff"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

HOSTED = " of the host"
"""Ending of the facts that tell the versions of CUDA's libraries of the host."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is handed over: a cell, its result and its environment.

    Attributes:
        bundled: Where CUDA's libraries are the host's, the id of the same cell with NVIDIA's wheels; else empty.
    """

    cell: Cell
    result: CellResult
    lock: Lock
    matrix: Matrix
    bundled: str = ""


def told(case: Case, handoff: Handoff, base: BaseImage, *, private: bool) -> tuple[str, str]:
    """README.md and reproduce.sh.

    Args:
        base: That the Dockerfile names.
        private: Whether something private was replaced in what was printed.

    Raises:
        InfraError: The wheels are of a machine for which there are no images.
    """
    values = _values(case, handoff, base, private=private)
    readme, script = (_templates().get_template(f"{name}.j2").render(values) for name in ("README.md", "reproduce.sh"))
    return readme, script


def hosted_cuda(cell: Cell) -> str:
    """Major version of CUDA whose libraries `cell` takes from the host that it runs on; empty where none."""
    major, _, local = cell.environment.cuda.partition("-")
    return major if local and gpus_wanted(cell.target) else ""


def host_setup(matrix: Matrix, cell: Cell) -> tuple[tuple[str, str], ...]:
    """The variables of `cell` that are there for the reporter's GPUs alone: `[targets.gpu] env`."""
    if not gpus_wanted(cell.target):
        return ()
    set_up = {pair for target in matrix.targets if target.name == "gpu" for pair in target.env}
    return tuple(pair for pair in cell.env if pair in set_up)


def _values(case: Case, handoff: Handoff, base: BaseImage, *, private: bool) -> dict[str, object]:
    """What the templates show."""
    cell, result, lock, start, expected = case.cell, case.result, case.lock, handoff.start, handoff.expected
    machine = lock.platform.partition("-")[0]
    if machine not in _MACHINES:
        raise InfraError(f"no image can be built for {lock.platform}", where=lock.id)
    ending = expected.signal or (f"status {expected.exit_status}" if expected.exit_status is not None else "")
    ended = f"{result.outcome.value} {ending}" if result.outcome.failed and ending else result.outcome.value
    flaky = ""
    if expected.failed < expected.of:
        flaky = f"It ended so in {expected.failed} of {expected.of} attempts: up to {expected.repeat} are made."
    also = ""
    if start.script != cell.repro.path.name:
        gpus = ", with a description of the GPUs that it is compiled for" if cell.described else ""
        also = f"; `{start.script}` is the tool's, and runs in its place{gpus}"
    hosted = [f"{name.removesuffix(HOSTED)} {value}" for name, value in result.facts if name.endswith(HOSTED)]
    setup = [f"{name}={value}" for name, value in host_setup(case.matrix, cell)]
    official = base.reference == result.base
    note = "" if official else f"It was recorded on another base: {clean(result.base)}."
    return {
        "title": cell.repro.title or cell.repro.name,
        "what": f"`{cell.repro.name}` with JAX {cell.environment.jax}, {_target(cell)}."
        + (f" Reported as {' '.join(cell.repro.issue.split())}." if cell.repro.issue else ""),
        "cell": cell.id,
        "lock_hash": lock.hash,
        "python": lock.python,
        "machine": machine,
        "docker_platform": f"linux/{_MACHINES[machine]}",
        "gpus": start.gpus,
        "cuda": start.cuda,
        "hosted": ", ".join(hosted) or "which ones is not recorded",
        "jax": cell.environment.jax,
        "bundled": case.bundled,
        "setup": " ".join(setup),
        "setup_many": len(setup) > 1,
        "memory": start.memory,
        "processes": start.processes,
        "pids": PIDS,
        "shm": SHM,
        "size": size(sum(wheel.size for wheel in lock.wheels)),
        "seconds": duration(expected.seconds),
        "limit": duration(start.timeout),
        "expected": _sentence(expected, ended),
        "ended": ended,
        "signature": expected.signature.title if expected.signature is not None else "",
        "reason": result.reason,
        "attempts": f"{expected.failed} of {expected.of} ended so",
        "flaky": flaky,
        "image": f"repromatrix-handoff:{lock.hash[:12]}",
        "env": [shlex.quote(f"{name}={value}") for name, value in start.env],
        "command": shlex.join(["python", start.script, *start.arguments]),
        "versions": ", ".join(
            f"{name} {value}"
            for name, value in result.facts
            if name not in ("lock", "cutoff", *MACHINE) and not name.endswith(HOSTED)
        ),
        "base": base.reference,
        "where": expected.where,
        "private": private,
        "note": note,
        "also": also,
        "version": __version__,
    }


def _target(cell: Cell) -> str:
    kind, _, count = cell.target.partition(":")
    if cell.repro.probe:
        return "whose wheels are looked into"
    if cell.described is not None:
        return f"compiled for {cell.target} without such a device"
    if kind == "cpu":
        return f"on the CPU as {count} devices" if count else "on the CPU"
    return f"on {count or 1} NVIDIA GPU{'s' * (count not in ('', '1'))}"


def _sentence(expected: Expected, ended: str) -> str:
    """What REPRODUCED means."""
    if not expected.outcome.failed:
        numbers = ", with the numbers that are claimed" if expected.metrics else ""
        passes = ", and passes changed what they are claimed to" if expected.changed or expected.unchanged else ""
        return f"it ended well, and showed that it did what it is about{numbers}{passes}"
    if expected.claimed:
        words = " or ".join(outcome.value for outcome in expected.claimed)
        return f"it failed as {words}; if as {ended}, then with the same signature"
    return f"{ended}, with the same signature" if expected.titles or expected.globs else ended


@cache
def _templates() -> Environment:
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    templates = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    templates.filters |= {"clean": clean, "code": code, "prose": prose}
    return templates
