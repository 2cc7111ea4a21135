"""Runs with nothing to do, reports of many results, and the start of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.common import Table
from repromatrix.project import find_project
from repromatrix.report.markdown import repro_page
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.results.store import Results
from repromatrix.spec.model import Outcome

ROOT = Path(__file__).resolve().parent.parent
MATRIX = """\
[matrix]
jax    = ["0.7.1"]
cuda   = ["none"]
python = ["3.11"]
[run]
engine = "venv"
"""
SCRIPT = """\
# /// repro
# title = "Many cells"
# params = { n = [%s] }
# ///
print("fine")
"""


def run() -> list[Table]:
    listed = _best(["-m", "invoke", "--list"], ROOT)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "repros").mkdir()
        (root / "matrix.toml").write_text(MATRIX)
        (root / "repros" / "many.py").write_text(SCRIPT % ", ".join(map(str, range(1000))))
        locks = root / "containers" / "locks"
        locks.mkdir(parents=True)
        name = "jax0.7.1-cpu-py311.txt"
        (locks / name).write_bytes((ROOT / "containers" / "locks" / name).read_bytes())
        command = ["-m", "invoke", "--search-root", str(ROOT), "matrix"]
        subprocess.run([sys.executable, *command, "--jobs", "2"], cwd=root, check=True, capture_output=True)
        idle = _best(command, root)
        with Results(find_project(root).state) as results:
            (first, *_) = results.latest_cells()
    many = _many(first, 10_000)
    info = RunInfo("benchmark", "2026-01-01T00:00:00Z", 0.0, "0", "venv", "", 0, len(many))
    from repromatrix.spec.repro import load_repro

    repro = load_repro(ROOT / "repros" / "hlo_pass_crash.py")
    began = time.perf_counter()
    repro_page(repro, many, info)
    page = time.perf_counter() - began
    return [
        Table(
            "With nothing to run",
            "Best of five whole processes; the page is one call.",
            ("", "seconds"),
            (
                ("`invoke --list`", f"{listed:.2f}"),
                ("`invoke matrix`, 1,000 known cells", f"{idle:.2f}"),
                ("report page of 10,000 results", f"{page:.2f}"),
            ),
        )
    ]


def _best(argv: list[str], folder: Path) -> float:
    found = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *argv], cwd=folder, check=True, capture_output=True, env=dict(os.environ))
        found.append(time.perf_counter() - began)
    return min(found)


def _many(cell: CellResult, count: int) -> tuple[CellResult, ...]:
    ways = (Outcome.OK, Outcome.ERROR, Outcome.CRASH, Outcome.SKIP)
    return tuple(
        replace(
            cell,
            id=f"{cell.id}{number}",
            environment=f"jax0.{number // 10}.0-cpu-py311",
            axes=(("jax", f"0.{number // 10}.0"), ("cuda", "none"), ("python", "3.11")),
            params=(("n", number % 10),),
            outcome=ways[number % 4],
        )
        for number in range(count)
    )
