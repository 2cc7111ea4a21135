"""What an archive takes, and what one more release adds."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import FIVE, Table, seconds
from repromatrix.carry.folder import read_manifest
from repromatrix.carry.verify import verify
from repromatrix.envs.lockfile import read_wheels
from repromatrix.envs.model import Wheel
from repromatrix.events import Silent
from repromatrix.plan import Request
from repromatrix.project import Project, find_project
from repromatrix.share.archives.archive import Archived, Wanted, archive
from repromatrix.share.archives.tool import HERE

SEVEN = ("0.4.38", "0.6.0", "0.6.2", "0.8.0", "0.8.2", "0.10.0", "0.10.1")
"""Whose environments with `cuda = "12-local"` are archived; then comes 0.10.2."""


def run() -> list[Table]:
    project = find_project(Path(__file__).parent)
    cuda = [f"jax{version}-cuda12local-py311" for version in (*SEVEN, "0.10.2")]
    cpu = [f"jax{version}-cpu-py311" for version in (*FIVE, "0.7.2")]
    with tempfile.TemporaryDirectory(dir=project.store.parent) as folder:  # no archive lies in a store
        return [
            _table("seven CUDA environments, --wheels-only", project, Path(folder) / "cuda", cuda, images=False),
            _table("five CPU environments with their images", project, Path(folder) / "cpu", cpu, images=True),
        ]


def _table(title: str, project: Project, place: Path, idents: list[str], *, images: bool) -> Table:
    wanted = Wanted(everything=images, results=False, pythons=(HERE,))
    first, more = idents[:-1], idents[-1]
    wheels = [wheel for ident in first for wheel in _wheels(project, ident)]
    naive, unique = _size(wheels), _size(set(wheels))
    missing = _size(set(_wheels(project, more)) - set(wheels))
    _add(project, place, idents, wanted)  # images are built now, if they were not, and the files are read once
    shutil.rmtree(place)
    took = seconds(lambda: _add(project, place, first, wanted))
    made = read_manifest(place)
    content = sum({file.sha256: file.size for file in made.files}.values())
    layers = made.size - content
    whole = _bytes(place)
    read = seconds(lambda: verify(place))
    before = {path.name for path in place.rglob("*")}
    new = _add(project, place, [more], wanted).manifest
    fresh = sum(path.stat().st_size for path in place.glob("blobs/*/*") if path.name not in before)
    shutil.rmtree(place)
    grown = sum({file.sha256: file.size for file in new.files}.values()) - content
    rows = [
        ("wheels of all, each by itself", naive, f"{naive / unique:.2f}"),
        ("wheels, each once", unique, "1"),
        ("files, each once: wheels, this tool, the checkout, bases", content, f"{content / unique:.3f}"),
        ("layers of images, each once", layers, f"{layers / unique:.3f}"),
        ("the archive's folder", whole, f"{whole / unique:.3f}"),
        (f"{more} added: wheels that were not there", missing, ""),
        ("files that were written for it", grown, ""),
        ("all bytes that were written for it", fresh, ""),
    ]
    return Table(
        f"An archive of {title}",
        f"{', '.join(first)}. Written in {took:.0f} s and verified in {read:.1f} s ({whole / read / 1e6:.0f} MB/s), "
        f"with the files in the page cache; {len(made.images)} images.",
        ("", "MB", "over wheels, each once"),
        tuple((what, f"{size / 1e6:.1f}", over) for what, size, over in rows),
    )


def _add(project: Project, place: Path, idents: Sequence[str], wanted: Wanted) -> Archived:
    done = archive(project, Request(env=",".join(idents)), place, wanted, Silent(), threading.Event())
    assert not done.lacking, done.lacking
    return done


def _wheels(project: Project, ident: str) -> tuple[Wheel, ...]:
    return read_wheels(project.locks / f"{ident}.txt", "3.11", "").wheels


def _size(wheels: list[Wheel] | set[Wheel]) -> int:
    return sum(wheel.size for wheel in wheels)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
