"""Compilers of real wheels on a machine without a GPU: probes, passes, witnesses and failures, through `invoke matrix`.

Two versions run by default, two more behind `slow`; REPROMATRIX_ALL_VERSIONS=1 adds every one that is locked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.deviceless_wheels import ALL, CHOSEN, VERSIONS
from tests.docker_fixtures import engine  # noqa: F401  # a fixture

pytestmark = pytest.mark.network

REPROS = "collective_pipeliner*,windowed_einsum,deviceless_*"
QUICK = ("0.6.2", "0.10.2")
EVERY = pytest.mark.parametrize(
    "jax", [pytest.param(jax, marks=() if jax in QUICK else pytest.mark.slow) for jax in VERSIONS]
)

FORWARD, BACKWARD = "collective-pipeliner-forward", "collective-pipeliner-backward"
CHANGED: dict[str, set[str]] = {"tp_mlp": set(), "dp_grad": {FORWARD}, "fsdp_grad": {FORWARD, BACKWARD}}
"""Passes of the collective pipeliner that change each model, in every version."""

SYMBOLS = {"0.4.38": 72, "0.6.0": 72, "0.6.2": 27, "0.8.0": 19, "0.10.0": 20, "0.10.1": 20, "0.10.2": 20}
"""Names with CollectivePipeliner in the full symbol table of the plugin, as `nm` counts them."""

FLAGS = {
    "xla_gpu_enable_pipelined_all_reduce": set(SYMBOLS),
    "xla_gpu_enable_pipelined_all_gather": set(SYMBOLS),
    "xla_gpu_enable_pipelined_reduce_scatter": set(SYMBOLS),
    "xla_gpu_enable_pipelined_p2p": set(SYMBOLS),
    "xla_gpu_enable_pipelined_collectives": {"0.4.38"},
    "xla_gpu_run_post_layout_collective_pipeliner": set(),
}
"""Versions that accept each flag."""

FAILURES: dict[tuple[str, str], tuple[str, set[str], str]] = {
    ("deviceless_scf_if", "rows=100"): ("error", {"0.10.2"}, "*'scf.if' op along control flow edge*"),
    ("deviceless_inverse_permutation", "x64=true"): (
        "error",
        {"0.8.2", "0.10.0"},
        "*permutation_sort_simplifier*Reduction function's accumulator shape*",
    ),
    ("deviceless_dot_bf16_x9", "algorithm=BF16_BF16_F32_X9"): (
        "crash",
        {"0.8.0", "0.10.0", "0.10.1", "0.10.2"},
        "*",
    ),
}
"""How a program fails at compile time, in which versions, and a title of the failure."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished `invoke matrix`: exit status, the document's cells and run, and what was printed."""

    code: int
    cells: list[dict[str, Any]]
    run: dict[str, Any]
    printed: str
    root: Path

    def of(self, repro: str) -> list[dict[str, Any]]:
        return [cell for cell in self.cells if cell["repro"] == repro]


def invoke(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1500, check=False, env=os.environ)


def matrix(root: Path, *words: str) -> Done:
    done = invoke(root, "matrix", "--json", "out.json", *words)
    path = root / "out.json"
    assert path.is_file(), done.stderr
    document = json.loads(path.read_text())
    return Done(done.returncode, document["cells"], document["run"], done.stdout + done.stderr, root)


def checkout(root: Path) -> Path:
    """A checkout with the shipped matrix, repros and locks, and no results. The store is the user's own."""
    for name in ("matrix.toml", "repros", "containers"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
    return root


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Done]:
    """Every cell of one version that needs no device, run once for all tests."""
    known: dict[str, Done] = {}

    def of(jax: str) -> Done:
        if not ALL and jax not in CHOSEN:
            pytest.skip(f"jax {jax} with REPROMATRIX_ALL_VERSIONS=1 alone")
        if jax not in known:
            root = checkout(tmp_path_factory.mktemp("checkout"))
            only = ("--env", f"jax{jax}-cuda12local-py311", "--target", "h100:8,wheels", "--engine", "venv")
            known[jax] = matrix(root, "--repro", REPROS, *only)
        return known[jax]

    return of


def hlo(cell: dict[str, Any]) -> dict[str, Any]:
    (attempt,) = cell["attempts"]
    assert isinstance(attempt["hlo"], dict), cell["id"]
    return attempt["hlo"]


def changed(cell: dict[str, Any], glob: str) -> set[str]:
    """Passes named like `glob` that changed a module."""
    return {name for module in hlo(cell)["modules"] for name in module["changed"] if fnmatchcase(name, glob)}


def metrics(cell: dict[str, Any]) -> dict[str, float]:
    (attempt,) = cell["attempts"]
    return dict(attempt["metrics"])


@EVERY
def test_every_claim_is_kept(jax: str, ran: Callable[[str], Done]) -> None:
    done = ran(jax)
    assert {cell["id"]: cell["reason"] for cell in done.cells if cell["as_expected"] is not True} == {}
    assert done.code == 0, done.printed


@EVERY
def test_what_the_wheels_hold_of_the_collective_pipeliner(jax: str, ran: Callable[[str], Done]) -> None:
    cells = ran(jax).of("collective_pipeliner_probe")
    assert len(cells) == (jax in SYMBOLS)
    for cell in cells:
        found = metrics(cell)
        assert (cell["outcome"], cell["target"]) == ("ok", "wheels")
        assert (found["symtab/CollectivePipeliner"], found["dynsym/CollectivePipeliner"]) == (SYMBOLS[jax], 0)
        assert (found[f"strings/{FORWARD}"], found[f"strings/{BACKWARD}"]) == (2, 1)
        assert {flag for flag in FLAGS if found[f"flag/{flag}"]} == {flag for flag in FLAGS if jax in FLAGS[flag]}
        assert (ran(jax).root / cell["attempts"][0]["evidence"] / "work" / "probe.json").is_file()


@EVERY
def test_the_collective_pipeliner_runs_and_changes_what_it_can(jax: str, ran: Callable[[str], Done]) -> None:
    cells = ran(jax).of("collective_pipeliner")
    assert len(cells) == (0 if jax in ("0.6.0", "0.8.2") else 3)
    for cell in cells:
        assert cell["outcome"] == "ok"
        assert {FORWARD, BACKWARD} <= set(hlo(cell)["ran"])
        assert changed(cell, "collective-pipeliner-*") == CHANGED[cell["params"]["model"]]
        assert hlo(cell)["source"] == "run"


@EVERY
def test_the_windowed_loop_decides_whether_an_ok_counts(jax: str, ran: Callable[[str], Done]) -> None:
    """From 0.7.2 on the loop is never made without a device: such a compilation must never be called ok.

    Some of these versions are not in the repro's header. It and the environment are named, so that they run anyway.
    """
    cells = ran(jax).of("windowed_einsum")
    makes_it = jax in ("0.4.38", "0.6.0", "0.6.2")
    assert len(cells) == 2
    for cell in cells:
        assert cell["outcome"] == ("ok" if makes_it else "inconclusive")
        if not makes_it:
            assert "'while', 'collective-permute'" in cell["reason"]
            assert cell["exit_status"] == 0


@EVERY
def test_failures_at_compile_time(jax: str, ran: Callable[[str], Done]) -> None:
    cells = [cell for cell in ran(jax).cells if cell["repro"].startswith("deviceless_")]
    for cell in cells:
        (column,) = [f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                     for name, value in cell["params"].items()]  # fmt: skip
        outcome, versions, title = FAILURES.get((cell["repro"], column), ("", set(), ""))
        if jax not in versions:
            assert cell["outcome"] == "ok", cell["id"]
            continue
        assert cell["outcome"] == outcome, cell["id"]
        assert any(
            fnmatchcase(each, title) for each in (cell["signature"]["title"], *cell["signature"]["alternatives"])
        )
        assert cell["signal"] == ("SIGSEGV" if outcome == "crash" else None)
        assert hlo(cell)["last"], "which pass was the last before the failure"


@EVERY
def test_a_compilation_costs_little(jax: str, ran: Callable[[str], Done]) -> None:
    """With dumps and pass log: 1 to 6 s and 250 to 410 MB. Time has a loose bound: other tests run beside it."""
    for cell in ran(jax).cells:
        (attempt,) = cell["attempts"]
        if cell["target"] == "h100:8" and cell["outcome"] == "ok":
            # Not `peak_memory`: from 0.10.1 on XLA forks, and for a moment two processes share what counts twice there.
            assert 100 < metrics(cell)["peak_mebibytes"] < 650, cell["id"]
            assert attempt["seconds"] < 30, cell["id"]


def test_what_is_kept_gives_the_same_again(ran: Callable[[str], Done]) -> None:
    """Neither another run nor `regrade` needs the compiler for it."""
    first = ran("0.10.2")
    facts = {cell["id"]: (cell["outcome"], cell["signature"], cell["attempts"][0]["hlo"]) for cell in first.cells}
    regraded = invoke(first.root, "regrade")
    assert regraded.returncode == 0, regraded.stderr
    only = ("--env", "jax0.10.2-cuda12local-py311", "--target", "h100:8,wheels", "--engine", "venv")
    again = matrix(first.root, "--repro", REPROS, *only)
    assert (again.run["attempted"], again.run["reused"]) == (0, len(first.cells))
    assert {c["id"]: (c["outcome"], c["signature"], c["attempts"][0]["hlo"]) for c in again.cells} == facts


@pytest.mark.slow
@pytest.mark.container
def test_containers_say_the_same(tmp_path: Path, engine: object, ran: Callable[[str], Done]) -> None:  # noqa: F811  # the fixture
    only = ("--env", "jax0.10.2-cuda12local-py311", "--target", "h100:8,wheels", "--engine", "docker")
    done = matrix(checkout(tmp_path), "--repro", REPROS, *only)
    assert done.code == 0, done.printed

    def facts(cells: list[dict[str, Any]]) -> dict[str, object]:
        return {
            cell["id"]: (
                cell["outcome"],
                cell["signature"] and cell["signature"]["title"],
                [
                    (module["name"], module["before"], module["after"], module["changed"])
                    for module in hlo(cell)["modules"]
                ]
                if cell["target"] == "h100:8"
                else metrics(cell),
            )
            for cell in cells
        }

    assert facts(done.cells) == facts(ran("0.10.2").cells)
