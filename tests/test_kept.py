"""Results that are known without running: those of other machines count as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.kept import known_cells
from repromatrix.plan import load
from repromatrix.project import Project
from repromatrix.results.store import Results
from repromatrix.spec.model import Outcome
from tests.conftest import Checkout
from tests.sample_cells import cell

MATRIX = """\
[matrix]
jax = ["0.10.2"]
cuda = ["13-local"]
python = ["3.12"]
"""


def test_a_result_from_a_host_with_cuda_is_shown_where_there_is_none(tmp_path: Path, checkout: Checkout) -> None:
    """`invoke report` on a laptop had dropped the pages of cells that were restored from a machine with GPUs."""
    (checkout.root / "matrix.toml").write_text(MATRIX)
    checkout.repro("gemm", "print(1)", targets='["gpu:2"]')
    project = Project(checkout.root, tmp_path / "store")
    name = "jax0.10.2-cuda13local-py312"
    ran = replace(
        cell("0.10.2", "noop_change", "crash"),
        id=f"gemm@{name}@gpu:2",
        repro="gemm",
        environment=name,
        target="gpu:2",
        params=(),
        engine="venv",
        outcome=Outcome.CRASH,
        script="",
        attempts=(),
    )
    with Results(project.state) as results:
        results.save_cells([ran])
    matrix, repros = load(project)
    (found,) = known_cells(project, matrix, repros)
    assert (found.id, found.outcome, found.signal) == (ran.id, Outcome.CRASH, ran.signal)
    assert checkout.invoke("report").code == 1  # it failed, and nothing was claimed
    assert "1 cell: 1 crash" in (checkout.root / "reports" / "gemm.md").read_text()
