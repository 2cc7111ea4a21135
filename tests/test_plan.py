"""Which cells this host, or the version of jax, cannot run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.plan import bars
from repromatrix.spec.model import Cell, Described, Environment, Repro

REPRO = Repro("bug", Path("repros/bug.py"), "", "c" * 64)
GPUS = Described(Path("h100.txtpb"), "d" * 64, "1x1x8")


def cell(jax: str, cuda: str, target: str, repro: Repro = REPRO) -> Cell:
    axes = (("jax", jax), ("cuda", cuda), ("python", "3.11"), ("nccl", "locked"))
    return Cell(Environment(axes), repro, (), target, described=GPUS if target == "h100:8" else None)


def test_only_versions_that_cannot_compile_without_a_device_are_barred() -> None:
    cells = [cell(jax, "12-local", "h100:8") for jax in ("0.4.30", "0.4.35", "0.4.36", "0.4.38", "0.10.2")]
    barred = bars(cells, 0)
    assert [each.environment.jax for each in barred] == ["0.4.30", "0.4.35", "0.4.36"]
    assert "No visible GPU devices" in barred[cells[0]]
    assert "Unknown backend" in barred[cells[1]]
    assert "registered platform" in barred[cells[2]]
    assert bars(cells, 8) == barred, "a GPU that is here does not help"


def test_a_probe_needs_no_gpu() -> None:
    probe = replace(REPRO, probe=True, targets=("wheels",))
    assert bars([cell("0.4.30", cuda, "wheels", probe) for cuda in ("none", "12", "12-local")], 0) == {}


def test_gpus_and_cpus_that_are_not_here() -> None:
    one, two = cell("0.10.2", "12", "gpu"), cell("0.10.2", "12", "gpu:2")
    assert bars([one, two], 0) == {
        one: "needs 1 NVIDIA GPU, none here",
        two: "needs 2 NVIDIA GPUs, none here",
    }
    assert bars([one, two], 1) == {two: "needs 2 NVIDIA GPUs, 1 here"}
    (reason,) = bars([cell("0.10.2", "none", "cpu", replace(REPRO, cpus=100_000))], 0).values()
    assert reason.startswith("needs 100000 CPUs, ")
