"""`invoke cells`: a line per cell that would run, and few lines for those that would not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.report.listing import listing, listing_document
from repromatrix.spec.model import Cell, Described, Environment, Excluded, Repro

REPRO = Repro("bug", Path("repros/bug.py"), "", "c" * 64)
GPUS = Described(Path("h100.txtpb"), "d" * 64, "1x1x8")


def cell(jax: str, cuda: str, target: str, **params: int) -> Cell:
    axes = (("jax", jax), ("cuda", cuda), ("python", "3.11"), ("nccl", "locked"))
    described = GPUS if target == "h100:8" else None
    level = "passes" if described else "failures"
    return Cell(Environment(axes), REPRO, tuple(params.items()), target, hlo=level, described=described)


def test_cells_that_do_not_run_are_folded_by_repro_and_reason() -> None:
    old, new = cell("0.4.30", "12-local", "h100:8"), cell("0.10.2", "12-local", "h100:8")
    wheels = replace(cell("0.10.2", "none", "wheels"), repro=replace(REPRO, name="probe"))
    real = [cell("0.10.2", "12", "gpu:2", n=n) for n in (1, 2)]
    wrong = [Excluded(cell(f"0.{minor}.0", "12", "h100:8", n=n), "misplaced") for minor in range(5, 10) for n in (1, 2)]
    barred = {old: "too old", **dict.fromkeys(real, "needs 2 NVIDIA GPUs, none here")}
    assert listing([old, new, wheels, *real], barred, wrong, 7).splitlines() == [
        "bug@jax0.10.2-cuda12local-py311@h100:8",
        "probe@jax0.10.2-cpu-py311@wheels",
        "skip      bug@jax0.4.30-cuda12local-py311@h100:8: too old",
        "skip      bug, 2 cells on jax0.10.2-cuda12-py311@gpu:2: needs 2 NVIDIA GPUs, none here",
        "excluded  bug, 10 cells on jax0.5.0-cuda12-py311@h100:8, jax0.6.0-cuda12-py311@h100:8, "
        "jax0.7.0-cuda12-py311@h100:8 and 2 more: misplaced",
        "2 cells would run, 3 would be skipped, 10 are excluded; 2 more are not selected",
    ]
    assert listing([new], {}, [], 1).splitlines()[-1] == (
        "1 cell would run, 0 would be skipped, 0 are excluded; 0 more are not selected"
    )


def test_the_document_names_every_cell() -> None:
    compiled, real = cell("0.10.2", "12-local", "h100:8"), cell("0.10.2", "12", "gpu:2", n=1)
    document = listing_document([compiled, real], {real: "no GPU"}, [Excluded(replace(real, target="h100:8"), "no")])
    first, second = document["cells"]
    assert (first["target"], first["hlo"], first["skip"]) == ("h100:8", "passes", None)
    assert first["deviceless"] == {"description": "d" * 64, "topology": "1x1x8"}
    assert (second["params"], second["deviceless"], second["skip"]) == ({"n": 1}, None, "no GPU")
    assert [(each["id"], each["reason"]) for each in document["excluded"]] == [
        ("bug@jax0.10.2-cuda12-py311@h100:8@n=1", "no")
    ]
