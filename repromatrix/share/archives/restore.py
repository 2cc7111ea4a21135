"""An archive brought to this machine: its wheels and bases to the store, its project files, images and results.

Nothing is written before every byte of the archive was read and is right, and before it is known that nothing which
lies here would have to give way. What `carry/` raises becomes this tool's errors here.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repromatrix.carry import verify
from repromatrix.carry.folder import blob_path
from repromatrix.carry.format import File, Manifest
from repromatrix.carry.incoming import Incoming, collect, read_set
from repromatrix.carry.parts import Found
from repromatrix.carry.place import copy, folder, need_room
from repromatrix.carry.trouble import Damaged, Problem, Refused, listed, shown
from repromatrix.carry.unpack import area, pythons, this_python, unpack, write_project
from repromatrix.envs.daemon import Daemon, address, connect
from repromatrix.envs.disk import write_text
from repromatrix.errors import InfraError, ReproError, UserError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.results.carried import Row, parse, take_in
from repromatrix.share.archives.held import compare, refuse
from repromatrix.share.upkeep.locks import lock_hash

ROWS = "results/attempts.jsonl"

OWN = re.compile(r"store/(bases/[^/]+\.(json|tar\.zst)|flags/.+)")
"""Files of the store that say what this machine chose, found or packed: where they differ, this machine's stay.

A base is named after its packages; two releases of zstd pack the same base into other bytes.
"""


class DamagedArchive(ReproError):
    """An archive or a part of one is not what it states; nothing of it was used.

    Attributes:
        problems: What is wrong, all of it.
    """

    def __init__(self, problems: Iterable[Problem], *, where: str = "") -> None:
        self.problems = tuple(problems)
        some = f"{len(self.problems)} thing{'s' * (len(self.problems) != 1)} wrong, nothing of it was used"
        super().__init__(
            f"{some}\n{listed(self.problems)}", where=where, hint="ask for the archive, or for the part, again"
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"problems": [{"where": problem.where, "what": problem.what} for problem in self.problems]}


class IncompleteArchive(ReproError):
    """Parts are still to come; those that came are kept.

    Attributes:
        archive: Id of the archive.
        missing: Numbers of the parts.
    """

    def __init__(self, come: Incoming, missing: Sequence[int]) -> None:
        self.archive, self.missing = come.id, tuple(missing)
        here = len(come.taken())
        super().__init__(
            f"{here} of {here + len(missing)} parts of the archive {come.id} are here; "
            f"missing: {', '.join(map(str, missing))}",
            where=str(come.root),
            hint="run it again with the missing parts: those that came are kept there",
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"archive": self.archive, "missing_parts": list(self.missing)}


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of which every byte was read and is right.

    Attributes:
        root: Its folder.
        rows: Its results, see `results/carried.py`.
        come: Where it was put together, if it came in parts.
    """

    root: Path
    manifest: Manifest
    rows: tuple[Row, ...]
    come: Incoming | None = None


@dataclass(slots=True)
class Restored:
    """What a restore brought.

    Attributes:
        project: Project files that were written, relative to the checkout.
        store: Files that the store lacked.
        stored: Their bytes.
        images: What the engine calls each image, by the reference.
        results: Attempts that were taken over.
        left_out: What the archive holds and was not brought, and why.
    """

    project: tuple[str, ...] = ()
    store: int = 0
    stored: int = 0
    images: dict[str, str] = field(default_factory=dict)
    results: int = 0
    left_out: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "project": list(self.project),
            "store": {"files": self.store, "bytes": self.stored},
            "images": self.images,
            "results": self.results,
            "left_out": self.left_out,
        }

    def text(self, root: Path) -> str:
        """For people; `root` is the checkout."""
        brought = [
            f"{len(self.project)} project files to {root}",
            f"{self.store} files ({self.stored / 1e6:.1f} MB) to the store",
            f"{len(self.images)} images to the engine",
            f"{self.results} results",
        ]
        return "\n".join([f"brought {', '.join(brought)}", *(f"left out: {shown(each)}" for each in self.left_out)])


@contextmanager
def plain_errors(where: Path) -> Iterator[None]:
    """Raise what `carry/` raises about the archive at `where` as this tool's errors."""
    try:
        yield
    except Damaged as error:
        raise DamagedArchive(error.problems, where=str(where)) from None
    except Refused as error:
        raise UserError(shown(error.message), hint=error.hint) from None


def checked(found: Found, expect: str, incoming: Path, listener: Listener) -> Archive:
    """The archive that `carry.parts.find` found, with every byte read.

    Args:
        expect: The id that it must have; empty = any.
        incoming: Folder where parts wait for one another.

    Raises:
        DamagedArchive: It is damaged, or not the expected one.
        IncompleteArchive: Parts are missing.
        UserError: It is no archive, or parts of two.
        OSError: It cannot be read, or the disk is full.
    """
    where = found.archive or found.parts[0].parent
    with plain_errors(where):
        if found.archive is not None:
            manifest = verify.read(found.archive)
            verify.check_id(manifest.id, expect)
            _verified(found.archive, manifest, listener)
            return Archive(found.archive, manifest, _rows(found.archive, manifest))
        size = sum(part.content for _, part in read_set(found.parts))
        task = listener.start("fetch", f"{len(found.parts)} parts", size, "B")
        try:
            come, lacking = collect(found.parts, expect, incoming, task.advance)
        finally:
            task.finish()
        if lacking:
            raise IncompleteArchive(come, lacking)
        task = listener.start("verify", come.id[:12], sum(part.content for part in come.taken().values()), "B")
        try:
            manifest = come.complete(task.advance)
        finally:
            task.finish()
        return Archive(come.archive, manifest, _rows(come.archive, manifest), come)


def _verified(root: Path, manifest: Manifest, listener: Listener) -> None:
    task = listener.start("verify", root.name or str(root), manifest.size, "B")
    note = "failed"
    try:
        if problems := verify.problems(root, manifest, task.advance):
            note = "damaged"
            raise Damaged(problems)
        note = ""
    finally:
        task.finish(note)


def _rows(root: Path, manifest: Manifest) -> tuple[Row, ...]:
    """The results that the archive holds, read before anything is written: they may be damaged in their own way."""
    for file in manifest.files:
        if file.path == ROWS:
            try:
                return tuple(parse(blob_path(root, file.sha256).read_bytes(), ROWS))
            except UserError as error:
                raise Damaged([Problem(error.where, error.message)]) from None
    return ()


def restore(
    archive: Archive,
    project: Project,
    listener: Listener,
    cancel: threading.Event,
    *,
    new: bool = False,
    images: bool = True,
    results: bool = True,
    store_only: bool = False,
) -> Restored:
    """Bring what `project` and its store lack; what is there already, whole and equal, is left alone.

    Args:
        new: Make the folder of `project`, with the tool where the archive holds it for this Python.
        images: Load the images into the engine, if one answers.
        results: Take over results and evidence where this checkout has none.
        store_only: Bring wheels, bases and images alone; the checkout is neither compared nor changed.

    Raises:
        UserError: A file of the checkout or of the store is another than the archive's, or lies behind a link; or the
            new folder exists. Nothing was written.
        DamagedArchive: The archive changed while it was read.
        InfraError: The engine or the database failed; what came before that stays, and the same call goes on.
        OSError: The disk is full, or may not be written.
    """
    done = Restored()
    manifest = archive.manifest
    results = results and not store_only
    files = [] if store_only else area(manifest, "project")
    project.store.mkdir(parents=True, exist_ok=True)
    theirs = compare(area(manifest, "store"), project.store, listener)
    others = [problem for problem in theirs.others if not OWN.fullmatch(problem.where)]
    refuse(others, project.store, "delete what is damaged, or set REPROMATRIX_STORE to another folder")
    done.left_out += [f"{problem}; this machine's stays" for problem in theirs.others if problem not in others]
    evidence = area(manifest, "results") if results else []
    _need_room(project, theirs.absent, [*files, *evidence])
    if store_only:
        done.left_out.append(f"{len(area(manifest, 'project'))} project files: not asked for")
    elif new:
        done.project = _new_checkout(archive, project.root, listener)
    else:
        done.project = _complete_checkout(archive, project.root, listener)
    task = listener.start("fetch", "store", sum(file.size for file in theirs.absent), "B")
    try:
        with plain_errors(archive.root):
            for file in theirs.absent:
                _put(archive.root, file, project.store, task.advance)
                done.store += 1
                done.stored += file.size
    finally:
        task.finish()
    if not store_only:
        done.left_out += _keep_locks(archive, project.store)
    if images and manifest.images:
        done.images = _load(archive, done.left_out.append, listener, cancel)
    elif manifest.images:
        done.left_out.append(f"{len(manifest.images)} images: not asked for")
    if results:
        done.results = _take_results(archive, project, listener)
    elif archive.rows:
        attempts = sum("attempt" in row for row in archive.rows)
        done.left_out.append(f"{attempts} results: not asked for")
    return done


def _new_checkout(archive: Archive, into: Path, listener: Listener) -> tuple[str, ...]:
    """Unpack the project into a new folder; see `carry.unpack`."""
    python = this_python() if this_python() in pythons(archive.manifest) else None
    size = sum(file.size for file in [*area(archive.manifest, "project"), *area(archive.manifest, f"tool/{python}")])
    task = listener.start("unpack", str(into), size, "B")
    try:
        with plain_errors(archive.root):
            return unpack(archive.root, archive.manifest, into, python, task.advance)
    finally:
        task.finish()


def _need_room(project: Project, stored: Iterable[File], kept: Iterable[File]) -> None:
    """Refuse to begin what the disks of the store and of the checkout cannot hold.

    Raises:
        OSError: `ENOSPC`, with the amounts.
    """
    above = project.root if project.root.exists() else project.root.parent
    to_store, to_checkout = sum(file.size for file in stored), sum(file.size for file in kept)
    if project.store.stat().st_dev == above.stat().st_dev:
        to_store += to_checkout
    need_room(project.store, to_store)
    need_room(above, to_checkout)


def _complete_checkout(archive: Archive, into: Path, listener: Listener) -> tuple[str, ...]:
    """Write the project files that an existing checkout lacks."""
    ours = compare(area(archive.manifest, "project"), into, listener)
    hint = "give --into NEW, a new folder for the archive's checkout; or --store-only: wheels, bases and images alone"
    refuse(ours.others, into, hint)
    with plain_errors(archive.root):
        for file in ours.absent:
            write_project(archive.root, file, into)
    return tuple(file.path.partition("/")[2] for file in ours.absent)


def _put(root: Path, file: File, store: Path, progress: Callable[[int], None]) -> None:
    """Write a file of the area `store` to its place, whole or not at all."""
    *above, name = file.path.split("/")[1:]
    part = f"restore-{uuid.uuid4().hex}"  # not the process id: in a container it is the same after every kill
    with folder(store, "tmp", make=True) as tmp, folder(store, *above, make=True) as there:
        copy(blob_path(root, file.sha256), file.path, file.sha256, file.size, tmp, part, 0o644, progress)
        os.rename(part, name, src_dir_fd=tmp, dst_dir_fd=there)


def _keep_locks(archive: Archive, store: Path) -> list[str]:
    """Note in the store which wheels the archive's environments have: results from it refer to their locks (`gc`).

    Returns:
        Environments whose lock the archive does not hold as it states it, in words.
    """
    paths = {file.path: file for file in archive.manifest.files}
    odd = []
    for environment in archive.manifest.environments:
        file = paths.get(f"project/containers/locks/{environment.id}.txt")
        content = blob_path(archive.root, file.sha256) if file is not None else None
        if content is None or lock_hash(content) != environment.lock:
            odd.append(f"{environment.id}: the archive does not hold the lock that its wheels are of")
            continue
        place = store / "locks" / f"{environment.lock}.txt"
        if not place.is_file():
            write_text(place, content.read_text(encoding="utf-8"))
    return odd


def _load(
    archive: Archive, left_out: Callable[[str], None], listener: Listener, cancel: threading.Event
) -> dict[str, str]:
    """Load every image; what the engine calls them, by reference."""
    from repromatrix.share.archives.images import load

    try:
        daemon: Daemon = connect(address())
    except InfraError as error:
        left_out(f"{len(archive.manifest.images)} images: {error.line}; run it again where an engine answers")
        return {}
    return {image.reference: load(daemon, archive.root, image, listener, cancel) for image in archive.manifest.images}


def _take_results(archive: Archive, project: Project, listener: Listener) -> int:
    """Take over results; the evidence is laid out beside the database first, and moved from there."""
    if not archive.rows:
        return 0
    files = [file for file in area(archive.manifest, "results") if file.path != ROWS]
    size = sum(file.size for file in files)
    project.state.mkdir(parents=True, exist_ok=True)
    room = project.state / "incoming"
    shutil.rmtree(room, ignore_errors=True)  # of a killed run
    room.mkdir()
    task = listener.start("fetch", "results", size, "B")
    try:
        with plain_errors(archive.root):
            for file in files:
                *above, name = file.path.split("/")[1:]
                with folder(room, *above, make=True) as there:
                    source = blob_path(archive.root, file.sha256)
                    copy(source, file.path, file.sha256, file.size, there, name, 0o644, task.advance)
        return take_in(project.state, archive.rows, room / "evidence")
    finally:
        task.finish()
        shutil.rmtree(room, ignore_errors=True)
