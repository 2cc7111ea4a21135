"""How long the reports' cells take on eight GPUs: the scheduler runs them on a host that is simulated.

Every cell, its order and its demand are the real ones (docs/eight-gpus.md), and so is the scheduler; an attempt sleeps
for the seconds that it took on two H200s (reports/h200), a hundred times faster.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import Table
from repromatrix.engines.schedule import Grant, Job, Scheduler
from repromatrix.explain import due
from repromatrix.plan import gpus_wanted
from repromatrix.results.model import AttemptResult
from repromatrix.spec.cells import expand, select
from repromatrix.spec.host import anywhere
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Cell, Outcome
from repromatrix.spec.repro import load_repros

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "eight-gpus.sh"
ALL = ("windowed_einsum*,collective_pipeliner", "jax*-cuda13local-py312", "gpu:8,gpu:4,gpu:2")
"""Repros, environments and targets of the one command that does it all."""
GPUS, CPUS = 8, 128
FASTER = 100

SECONDS = {Outcome.OK: 6.5, Outcome.ERROR: 5.0, Outcome.CRASH: 28.0}
"""Of an attempt on two H200s: the median of the ok ones (5.5 to 7.9), the errors (4.3 to 5.3), with a core (28)."""
SECOND_RUN = {Outcome.OK: 7.0, Outcome.ERROR: 5.5, Outcome.CRASH: 8.0}
"""Of the run that dumps HLO after it; no core is kept of that."""
AROUND = 1.5
"""Of looking at the GPUs and of grading, each attempt; so a cell with both runs took 15."""
EACH_GPU = 0.5
"""More for each GPU beyond two: contexts, NCCL, a larger program. Not measured: no host with eight was there."""
PREPARE = 15.0
"""To lay out an environment's venv from packed wheels."""


def parts() -> list[tuple[str, str, str]]:
    """Repros, environments and targets of each part of the script."""
    found = [shlex.split(line)[1:] for line in SCRIPT.read_text().splitlines() if line.startswith("part ")]
    return [(repro, env, target) for repro, env, target in found]


def cells(repro: str, env: str, target: str) -> tuple[Cell, ...]:
    """In the order in which `invoke matrix` starts them."""
    matrix = anywhere(load_matrix(ROOT / "matrix.toml"))
    return select(expand(matrix, load_repros(ROOT / "repros")), repro=repro, env=env, target=target).cells


def ending(cell: Cell) -> Outcome:
    """The slowest that is to be expected: 0.8.0 crashed on two GPUs wherever it made the loop, whatever was claimed."""
    if cell.environment.jax == "0.8.0" and cell.repro.name.startswith("windowed_einsum"):
        return Outcome.CRASH
    assert cell.expect is not None
    return cell.expect.outcome[0]


def seconds(cell: Cell) -> float:
    """Of `cell` on its GPUs, with its second run where it has one."""
    found = ending(cell)
    first = AttemptResult(1, found, None, None, None, "", 0.0, "", "")
    runs = [SECONDS[found], *([SECOND_RUN[found]] if due(cell, first) else [])]
    return sum(run + EACH_GPU * (gpus_wanted(cell.target) - 2) for run in runs) + AROUND


def makespan(asked: Sequence[Cell]) -> float:
    """Seconds from the first job to the last, as the scheduler packs them."""

    environments = dict.fromkeys(cell.environment for cell in asked)
    jobs = [Job(each.id, frozenset(), {"build": 1}, _sleeping(PREPARE)) for each in environments]
    for cell in asked:
        tokens = {"cpu": 1, "gpu": gpus_wanted(cell.target)}
        jobs.append(Job(cell.id, frozenset({cell.environment.id}), tokens, _sleeping(seconds(cell))))
    began = time.monotonic()
    ended = Scheduler({"build": 2, "cpu": CPUS // 2, "gpu": GPUS}).run(jobs, lambda _: None, threading.Event())
    assert all(done.ok for done in ended.values())
    return (time.monotonic() - began) * FASTER


def _sleeping(amount: float) -> Callable[[Grant], None]:
    def run(_: Grant) -> None:
        time.sleep(amount / FASTER)

    return run


def run() -> list[Table]:
    rows = []
    for part in (*parts(), ALL):
        asked = cells(*part)
        count = Counter(map(ending, asked))
        ends = (count[each] for each in SECONDS)
        rows.append((*part, len(asked), *ends, round(makespan(asked))))
    return [
        Table(
            "The reports on eight GPUs",
            "Seconds that the scheduler needs on a simulated host, with attempts as long as on two H200s.",
            ("repros", "environments", "targets", "cells", "ok", "error", "crash", "seconds"),
            tuple(rows),
        )
    ]
