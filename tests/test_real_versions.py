"""The shipped repros on real wheels: what the README's first command and the headline command must print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.docker_fixtures import engine  # noqa: F401  # a fixture
from tests.sample_cells import TRUTH

pytestmark = [pytest.mark.network, pytest.mark.slow]

# Measured with plain pip wheels, CPU, no container: (noop_change, silent_hlo_change).
HLO_PASS_CRASH = {**TRUTH, "0.10.0": ("crash", "ok"), "0.10.1": ("crash", "ok")}

# Flag -> versions that know it, of those in the table below.
ACCEPTED = {
    "xla_gpu_enable_pipelined_collectives": {"0.5.3"},
    "xla_gpu_run_post_layout_collective_pipeliner": set(),
    "xla_gpu_enable_pipelined_all_reduce": {"0.5.3", "0.6.2", "0.7.1", "0.10.2"},
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout with the shipped matrix, repros and locks, and no results. The store is the user's own."""
    for name in ("matrix.toml", "repros", "containers"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    return tmp_path


def run(clone: Path, *args: str) -> tuple[int, list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "matrix", "--json", "out.json", *args]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=1800, check=False, env=os.environ)
    path = clone / "out.json"
    assert path.is_file(), done.stderr
    return done.returncode, json.loads(path.read_text())["cells"], done.stdout


def check_pass_crash(clone: Path, which: str) -> None:
    code, cells, printed = run(clone, "--repro", "hlo_pass_crash", "--engine", which)
    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        found.setdefault(cell["axes"]["jax"], {})[cell["params"]["flag"]] = cell["outcome"]
    table = {jax: (row["noop_change"], row["silent_hlo_change"]) for jax, row in found.items()}
    assert table == HLO_PASS_CRASH
    assert code == 0, printed
    for cell in cells:
        assert cell["as_expected"] is True
        if cell["outcome"] == "crash":
            assert (cell["exit_status"], cell["signal"]) == (None, "SIGABRT")
        if cell["outcome"] == "skip":
            assert "does not know --xla_unsupported_crash_on_hlo_pass" in cell["reason"]
    # The same failure in 0.6.0 and 0.10.2, though another pass is at fault; never the same as the sister flag's.
    crashes = [cell for cell in cells if cell["outcome"] == "crash"]
    titles = {
        flag: [{cell["signature"]["title"], *cell["signature"]["alternatives"]} for cell in crashes
               if cell["params"]["flag"] == flag]
        for flag in ("noop_change", "silent_hlo_change")
    }  # fmt: skip
    assert all(titles["noop_change"][0] & other for other in titles["noop_change"])
    assert not set.union(*titles["noop_change"]) & set.union(*titles["silent_hlo_change"])


def check_acceptance(clone: Path, which: str) -> None:
    environments = ",".join(f"jax{jax}-cpu-py311" for jax in ("0.5.3", "0.6.2", "0.7.1", "0.10.2"))
    code, cells, printed = run(clone, "--repro", "xla_flag_acceptance", "--env", environments, "--engine", which)
    assert code == 0, printed
    assert len(cells) == 12
    for cell in cells:
        jax, flag = cell["axes"]["jax"], cell["params"]["flag"]
        accepted = jax in ACCEPTED[flag]
        assert cell["outcome"] == ("ok" if accepted else "error"), cell["id"]
        if not accepted:
            old = jax in ("0.5.3", "0.6.2", "0.7.1")
            (metrics,) = [attempt["metrics"] for attempt in cell["attempts"]]
            assert dict(metrics)["child_exit"] == (134 if old else 1), cell["id"]


def test_pass_crash_in_venvs(clone: Path) -> None:
    check_pass_crash(clone, "venv")


def test_flag_acceptance_in_venvs(clone: Path) -> None:
    check_acceptance(clone, "venv")


@pytest.mark.container
def test_pass_crash_in_containers(clone: Path, engine: object) -> None:  # noqa: F811  # the fixture
    check_pass_crash(clone, "docker")
    left = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", "label=org.repromatrix.attempt"],
        capture_output=True,
        check=True,
    )
    assert left.stdout == b""


@pytest.mark.container
def test_flag_acceptance_in_containers(clone: Path, engine: object) -> None:  # noqa: F811  # the fixture
    check_acceptance(clone, "docker")


def test_a_gpu_report_is_skipped_with_the_reason(clone: Path) -> None:
    if list(Path("/dev").glob("nvidia[0-9]")):
        pytest.skip("this host has a GPU")
    code, cells, _ = run(clone, "--repro", "windowed_einsum,collective_pipeliner", "--target", "gpu:2")
    assert code == 3  # nothing was tried: 0 would be taken for a verdict
    assert {(cell["outcome"], cell["reason"]) for cell in cells} == {("skip", "needs 2 NVIDIA GPUs, none here")}
