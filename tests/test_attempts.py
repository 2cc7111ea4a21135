"""What is laid out for an attempt: the script alone, what compiles it for a GPU that is not there, or what probes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.attempts import lay_out
from repromatrix.engines.base import Attempt
from repromatrix.errors import UserError
from repromatrix.spec.model import Cell, Described, Environment
from repromatrix.spec.repro import load_repro
from tests.conftest import ROOT

AXES = (("jax", "0.10.2"), ("cuda", "12-local"), ("python", "3.11"), ("nccl", "locked"))


def cell_of(folder: Path, name: str, *metadata: str, body: str = "def program(devices, rows):\n    ...\n") -> Cell:
    lines = ["# /// repro", '# title = "A test"', *(f"# {line}" for line in metadata), "# ///", body]
    path = folder / f"{name}.py"
    path.write_text("\n".join(lines))
    return Cell(Environment(AXES), load_repro(path), (("rows", 100), ("fast", True)), "cpu")


def described(folder: Path, *, tuned: bool = False) -> Described:
    (folder / "h100.txtpb").write_text("gpu_device_info {}")
    (folder / "tuned.pbtxt").write_text("version: 3")
    hashes = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("h100.txtpb", "tuned.pbtxt")]
    autotune = (folder / "tuned.pbtxt", hashes[1]) if tuned else (None, "")
    return Described(folder / "h100.txtpb", hashes[0], "1x1x8", *autotune)


def laid(cell: Cell, folder: Path) -> Attempt:
    return lay_out(cell, "a", folder, (), cores="off", tools=None)


def names(attempt: Attempt) -> list[str]:
    return sorted(path.name for path in (attempt.folder / "work").iterdir())


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    attempt = laid(cell_of(tmp_path, "bug", 'targets = ["cpu"]'), tmp_path / "1")
    assert (attempt.script, attempt.arguments) == ("bug.py", ("--rows", "100", "--fast", "true"))
    assert names(attempt) == ["bug.py"]


@pytest.mark.parametrize("tuned", [False, True])
def test_a_deviceless_cell_is_compiled(tmp_path: Path, tuned: bool) -> None:
    cell = replace(cell_of(tmp_path, "bug", 'targets = ["h100:8"]'), described=described(tmp_path, tuned=tuned))
    attempt = laid(cell, tmp_path / "1")
    assert attempt.script == "compile.py"
    extra = ("--autotune", "autotune_results.txt") if tuned else ()
    told = ("bug.py", "h100.txtpb", "--topology", "1x1x8", *extra, "--", "--rows", "100", "--fast", "true")
    assert attempt.arguments == told
    assert names(attempt) == sorted(["bug.py", "compile.py", "h100.txtpb", *["autotune_results.txt"] * tuned])
    work = attempt.folder / "work"
    assert (work / "compile.py").read_bytes() == (ROOT / "containers" / "compile.py").read_bytes()


def test_a_description_that_changed_is_not_compiled_for(tmp_path: Path) -> None:
    cell = replace(cell_of(tmp_path, "bug", 'targets = ["h100:8"]'), described=described(tmp_path))
    (tmp_path / "h100.txtpb").write_text("another")
    with pytest.raises(UserError, match="changed during the run") as raised:
        laid(cell, tmp_path / "1")
    assert raised.value.where.endswith("h100.txtpb")


def test_a_script_with_the_name_of_the_tools_program(tmp_path: Path) -> None:
    cell = replace(cell_of(tmp_path, "compile", 'targets = ["h100:8"]'), described=described(tmp_path))
    with pytest.raises(UserError, match=r"called compile\.py"):
        laid(cell, tmp_path / "1")


def test_a_probe_looks_up_what_the_repro_names(tmp_path: Path) -> None:
    metadata = (
        "probe = true",
        'strings = ["--starts with a dash"]',
        'symbols = ["CollectivePipeliner"]',
        'flags = ["--xla_gpu_a", "xla_b=1"]',
        'libraries = ["jaxlib"]',
    )
    attempt = laid(replace(cell_of(tmp_path, "probe", *metadata, body=""), params=()), tmp_path / "1")
    assert attempt.script == "probe.py"
    assert attempt.arguments == (
        "--package=jaxlib",
        "--string=--starts with a dash",
        "--symbol=CollectivePipeliner",
        "--flag=--xla_gpu_a",
        "--flag=xla_b=1",
    )
    assert names(attempt) == ["probe.py"]
    assert (attempt.folder / "work" / "probe.py").read_bytes() == (ROOT / "containers" / "probe.py").read_bytes()
