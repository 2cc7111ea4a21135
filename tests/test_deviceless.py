"""What the tool knows of compiling without a device, and that it says the same as the program that does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repromatrix.spec.deviceless import topology, unable, variables
from tests.conftest import ROOT

COMPILE = ROOT / "containers" / "compile.py"


@pytest.mark.parametrize("version", ["0.4.38", "0.5.3", "0.8.2", "0.10.2", "0.12.0.1", "0.11.0.dev20260701"])
def test_versions_that_can(version: str) -> None:
    assert unable(version) == ""


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.4.23", "No visible GPU devices"),
        ("0.4.30", "No visible GPU devices"),
        ("0.4.35", "Unknown backend: 'gpu' requested"),
        ("0.4.36", "registered platform"),
        ("0.4.37", "registered platform"),
    ],
)
def test_versions_that_cannot(version: str, why: str) -> None:
    said = unable(version)
    assert said.startswith(f"jax {version} cannot compile without a device")
    assert why in said
    assert "0.4.38 and later can" in said


def test_what_is_no_version_is_left_to_the_program() -> None:
    assert unable("main") == ""


def test_variables() -> None:
    assert dict(variables("--xla_a=1  --xla_b=2")) == {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": "--xla_a=1 --xla_b=2 --xla_gpu_autotune_level=0",
    }
    assert dict(variables())["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    assert dict(variables("--xla_gpu_autotune_level=0"))["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    both = "--xla_gpu_autotune_level=0 --xla_gpu_load_autotune_results_from=/tuned/results.txt"
    assert dict(variables("", "/tuned/results.txt"))["XLA_FLAGS"] == both


def test_topology() -> None:
    assert topology(8) == "1x1x8"
    with pytest.raises(ValueError, match="0 devices"):
        topology(0)


@pytest.mark.parametrize("flags", ["", "--xla_a=1 --xla_b=2"])
@pytest.mark.parametrize("tuned", ["", "tuned.txt"])
def test_the_program_sets_the_same_by_itself(flags: str, tuned: str, tmp_path: Path) -> None:
    """Facts that stand in two files, since the program runs alone in a sandbox."""
    show = (
        "import json, os, runpy, sys\n"
        "compile = runpy.run_path(sys.argv[1])\n"
        "compile['set_variables'](sys.argv[2] or None)\n"
        "print(json.dumps(dict(os.environ)))"
    )
    names = {name for name, _ in variables()}
    environ = {name: value for name, value in os.environ.items() if name not in names} | {"XLA_FLAGS": flags}
    printed = subprocess.check_output(
        [sys.executable, "-c", show, str(COMPILE), tuned], env=environ, cwd=tmp_path, text=True
    )
    found = json.loads(printed)
    expected = variables(flags, str(tmp_path / tuned) if tuned else "")
    assert {name: found[name] for name in names} == dict(expected)
