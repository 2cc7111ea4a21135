"""Writes `reports/`: a page for each repro with kept results, and the index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repromatrix.errors import InfraError
from repromatrix.files import write_atomically
from repromatrix.project import Project
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.spec.model import Repro


def out_of_date(project: Project, repros: Iterable[str]) -> bool:
    """Whether a page of these repros, or the index, is missing or older than what pages are made from."""
    sources = [project.matrix_toml, project.repros, *project.repros.iterdir(), project.state / "results.db"]
    pages = [project.reports / f"{name}.md" for name in {*repros, "README"}]
    try:
        return max(_changed(path) for path in sources) >= min(_changed(path) for path in pages)
    except FileNotFoundError:
        return True


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def write_reports(
    project: Project, repros: Iterable[Repro], cells: Iterable[CellResult], run: RunInfo
) -> tuple[Path, ...]:
    """Write the pages from what is known of every cell; each page is replaced as a whole or not at all.

    Raises:
        InfraError: The folder cannot be written to.
    """
    from repromatrix.report.markdown import index_page, repro_page

    known: dict[str, list[CellResult]] = {}
    for cell in cells:
        known.setdefault(cell.repro, []).append(cell)
    shown = tuple(repro for repro in repros if repro.name in known)
    pages = {f"{repro.name}.md": repro_page(repro, tuple(known[repro.name]), run) for repro in shown}
    every = tuple(cell for repro in shown for cell in known[repro.name])
    pages["README.md"] = index_page(shown, every, run)
    try:
        project.reports.mkdir(exist_ok=True)
        for name, text in pages.items():
            write_atomically(project.reports / name, text)
    except OSError as error:
        raise InfraError(
            f"cannot write the reports: {error.strerror}",
            where=str(project.reports),
            hint="the results are kept: make room, then `uv run invoke report`",
        ) from None
    return tuple(project.reports / name for name in pages)
