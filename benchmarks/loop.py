"""A five-version, four-repro matrix against the shell loop that people write today."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import FIVE, Table, seconds, warm
from repromatrix.engines.docker import DockerEngine

ROOT = Path(__file__).resolve().parent.parent
REPROS = ("hlo_pass_crash", "cpu_sum_of_products", "cpu_jit_wrong_sum", "xla_flag_acceptance")


def run() -> list[Table]:
    project, selection, _ = warm()
    environments = ",".join(f"jax{version}-cpu-py311" for version in FIVE)
    chosen = [cell for cell in selection.cells if cell.repro.name in REPROS]

    def loop() -> None:
        for cell in chosen:
            arguments = [part for name, value in cell.params for part in (f"--{name}", str(value))]
            subprocess.run(
                ["uv", "run", "--no-project", "--isolated", "--python", "3.11",
                 "--with", f"jax=={cell.environment.jax}", "python", str(cell.repro.path), *arguments],
                env={**os.environ, **dict(cell.env)},
                capture_output=True,
                check=False,
            )  # fmt: skip

    def matrix(engine: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "invoke", "matrix", "--rerun", "--engine", engine, "--env", environments,
             "--repro", ",".join(REPROS)],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )  # fmt: skip

    loop()  # fills uv's cache
    plain = seconds(loop)
    rows = [("shell loop of `uv run --isolated --with jax==X`, warm cache", f"{plain:.1f}", "1")]
    for engine in ("venv", "docker"):
        if engine == "docker" and (why := DockerEngine(project, selection.matrix).unavailable()):
            rows.append((f"`invoke matrix --engine {engine}`", f"not measured: {why}", ""))
            continue
        matrix(engine)
        took = seconds(partial(matrix, engine))
        rows.append((f"`invoke matrix --engine {engine}`, warm", f"{took:.1f}", f"{took / plain:.2f}"))
    return [
        Table(
            "A matrix against a shell loop",
            f"Five versions, four repros, {len(chosen)} cells, on this machine's {len(os.sched_getaffinity(0))} CPUs.",
            ("", "seconds", "ratio"),
            tuple(rows),
        )
    ]
