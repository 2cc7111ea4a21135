"""The job of `invoke archive`: fetch, build, gather, copy, and then say so in a new manifest.

The archive's folder stays locked throughout. A killed job leaves the archive as it was, and blobs that the next one
uses; nothing is removed before the manifest that no longer names it is on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from repromatrix import __version__
from repromatrix.axes.span import span
from repromatrix.carry import folder, parts
from repromatrix.carry.format import BLOBS, NAME, ROOTS, Carried, File, FormatError, Image, Manifest, SchemaError
from repromatrix.carry.trouble import Damaged, Refused
from repromatrix.envs.base import published, recorded
from repromatrix.envs.disk import no_room
from repromatrix.envs.model import Lock, Wheel
from repromatrix.errors import InfraError, ReproError, UserError
from repromatrix.events import Listener
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.results import carried
from repromatrix.share.archives import gather, layout
from repromatrix.share.archives.gather import Piece
from repromatrix.share.archives.imaging import Imaging
from repromatrix.share.archives.merge import EMPTY, Addition, merged
from repromatrix.share.archives.obtain import Obtaining
from repromatrix.share.archives.roots import roots

S = TypeVar("S")
T = TypeVar("T")

ROOM = 64 << 20
"""Bytes of disk that stay free."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the archive shall hold beside wheels, locks and the checkout.

    Attributes:
        everything: Images, bases, Debian packages too; what reads stacks is carried with every environment.
        results: Results and evidence too; never without `everything`.
        pythons: Python minor versions that the restored tool may run on.
        split_size: Bytes of a part, or 0 for none.
        oldest, newest: Ends of the range whose every version a later search can then try; both empty = none.
        axis: Of the range.
    """

    everything: bool = True
    results: bool = True
    pythons: tuple[str, ...] = ()
    split_size: int = 0
    oldest: str = ""
    newest: str = ""
    axis: str = "jax"


@dataclass(frozen=True, slots=True)
class Archived:
    """What was done.

    Attributes:
        added: Bytes of blobs that the archive did not hold.
        removed: Bytes of blobs that nothing names any more.
        lacking: What was asked for and could not be had, in words: the archive is good, and not whole.
        parts: Files of `PLACE.parts`.
    """

    manifest: Manifest
    added: int
    removed: int
    lacking: tuple[str, ...]
    parts: tuple[Path, ...]


def archive(
    project: Project, request: Request, place: Path, wanted: Wanted, listener: Listener, cancel: threading.Event
) -> Archived:
    """Make the archive in the folder `place`, or add to it.

    Raises:
        UserError: The files, the request or the place are wrong; nothing was written.
        InfraError: No disk, a damaged wheel in the store, another process writes into it. What was there is untouched.
        ReproError: The archive that is there is damaged.
    """
    if 0 < wanted.split_size < parts.SMALLEST:
        raise UserError(
            f"parts of {wanted.split_size} bytes are too small", hint="allow 1M or more, for example --split-size 60M"
        )
    matrix, repros = load(project)
    ranged = bool(wanted.oldest or wanted.newest)
    explicit = ranged or bool(request.env or request.repro)
    selection = choose(matrix, repros, request if explicit else replace(request, env="*"), "")
    _check_place(place, project)
    if ranged:
        fixed = (project, matrix, selection.cells, wanted.axis, wanted.oldest, wanted.newest)
        more = span(*fixed, listener, cancel, offline=request.offline)
        named = selection.cells if request.env else ()  # else they only said which kinds of environments there are
        selection = replace(selection, cells=(*named, *more))
    with _open(place) as old:
        obtaining = Obtaining(project, selection, old, request.offline, listener, cancel)
        work = _Work(obtaining, place, wanted)
        manifest, removed = work.finish(work.gathered(explicit=explicit))
        added = sum(blob.size for blob in set(manifest.blobs) - set(old.blobs))
        return Archived(manifest, added, removed, tuple(obtaining.lacking), work.split(manifest))


def _check_place(place: Path, project: Project) -> None:
    """Refuse a place where an archive would be part of what it holds, or that holds something else."""
    inside = place.resolve()
    for taken in (project.repros, project.containers, project.state, project.store):
        if inside.is_relative_to(taken.resolve()):
            raise UserError("an archive cannot lie there", where=str(place), hint=f"take a folder outside of {taken}")
    if place.exists() and not place.is_dir():
        raise UserError("is a file, and an archive is a folder", where=str(place), hint="name a new folder")
    known = {NAME, BLOBS.partition("/")[0], *ROOTS}
    other = [path.name for path in place.iterdir() if path.name not in known] if place.is_dir() else []
    if other := sorted(name for name in other if not name.endswith(folder.PART)):
        raise UserError(f"holds something else: {', '.join(other[:3])}", where=str(place), hint="name a new folder")


@contextmanager
def _open(place: Path) -> Iterator[Manifest]:
    """The archive at `place`, locked and swept; made if it is not there."""
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder.hold(place))
            try:
                old = folder.read_manifest(place)
            except FileNotFoundError:
                old = EMPTY
            folder.sweep(place)
            _drop_damaged(place, {blob.sha256 for blob in old.blobs})
        except SchemaError as error:
            raise UserError(f"a later release wrote it: {error}", where=str(place), hint="name a new folder") from None
        except FormatError as error:
            raise ReproError(
                f"the archive is damaged: {error}", where=str(place / NAME), hint="take a copy, or name a new folder"
            ) from None
        except folder.BusyError as error:
            raise InfraError(str(error.strerror), where=str(place), hint="wait until it has ended") from None
        except OSError as error:
            raise _trouble(error, place) from error
        yield old


def _drop_damaged(place: Path, named: set[str]) -> None:
    """Remove what a writer left that lost its power, not only its life: blobs whose content never came to the disk."""
    blobs = place / BLOBS
    for path in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        if path.name not in named and (not path.is_file() or folder.hash_of(path).sha256 != path.name):
            path.unlink()


def _trouble(error: OSError, place: Path) -> InfraError:
    return InfraError(
        f"the archive cannot be written: {error.strerror or error}",
        where=str(error.filename or place),
        hint="free some space, or name a folder on another disk; the same command goes on",
    )


@dataclass(slots=True)
class _Work:
    """One addition.

    Attributes:
        written: Bytes that were copied so far.
    """

    obtaining: Obtaining
    place: Path
    wanted: Wanted
    written: int = 0

    # ---- what goes in ----

    def gathered(self, *, explicit: bool) -> Addition:
        """Everything is in the archive's folder when this returns, and no manifest names it yet."""
        obtaining, store = self.obtaining, self.obtaining.store
        locks = [lock for lock in obtaining.locks(explicit=explicit) if obtaining.fetched(lock)]
        if not locks and not obtaining.old.environments:
            raise InfraError("no environment can be archived", hint="\n  ".join(obtaining.lacking))
        whole, pieces = obtaining.tool(self.wanted.pythons)
        selection = obtaining.selection
        pieces += gather.project_pieces(obtaining.project, selection.matrix, selection.repros, locks)
        pieces += gather.wheel_pieces([wheel for lock in locks for wheel in lock.wheels], store)
        pieces += [piece for lock in locks for piece in self.dockerfile(lock)]
        pieces += gather.wheel_pieces(obtaining.readers({lock.python for lock in locks}), store)
        environments, images = [_carried(lock, "", None) for lock in locks], list[Image]()
        if self.wanted.everything:
            pieces += gather.flag_pieces(locks, store.root)
            environments, images = self.imaged(locks)
            held = {each.python for each in environments if each.base}
            pieces += [piece for python in sorted(held) for piece in self.base_pieces(python)]
            if self.wanted.results:
                attempts, results = self.results({lock.id for lock in locks})
                whole |= attempts
                pieces += results
        files, notes = self.copied(pieces), tuple(obtaining.notes)
        return Addition(tuple(environments), files, tuple(images), frozenset(whole), notes)

    def imaged(self, locks: Sequence[Lock]) -> tuple[list[Carried], list[Image]]:
        """The environments with their bases and images, these saved, as far as an engine gives them."""
        obtaining = self.obtaining
        imaging = Imaging(
            obtaining.project,
            obtaining.selection.matrix,
            self.place,
            obtaining.old.images,
            obtaining.listener,
            obtaining.cancel,
        )
        bases = {
            python: self.tried(f"the base of Python {python}", imaging.base, python) or ""
            for python in sorted({lock.python for lock in locks})
        }
        environments, images = [], []
        for lock in locks:
            base = bases[lock.python]
            image = self.tried(f"the image of {lock.id}", imaging.image, lock) if base else None
            images += [image] if image is not None else []
            environments.append(_carried(lock, base, image))
        return environments, [*images, *imaging.bases]

    def tried(self, what: str, work: Callable[[S], T], of: S) -> T | None:
        """What `work` gives; None where the machine failed, which is told."""
        try:
            return work(of)
        except InfraError as error:
            if self.obtaining.cancel.is_set():
                raise
            self.obtaining.lack(f"{what}: {error.line}")
            return None

    def dockerfile(self, lock: Lock) -> list[Piece]:
        try:
            base = published(self.obtaining.selection.matrix, lock.python)
        except InfraError as error:  # a Python for venvs alone
            self.obtaining.listener.note(f"{lock.id}: no Dockerfile: {error.message}")
            return []
        return gather.rendered_pieces(lock, base, self.obtaining.project)

    def base_pieces(self, python: str) -> list[Piece]:
        store = self.obtaining.project.store
        base = recorded(self.obtaining.selection.matrix, python, store)
        if base is None:
            return []
        if found := gather.base_hash(base):
            self.obtaining.packages(found)
        return gather.base_pieces(base, store)

    def results(self, environments: set[str]) -> tuple[set[str], list[Piece]]:
        """Results of these environments, together with those that the archive has, and the folders of their evidence.

        Another machine may have made an attempt of the same key and number: its evidence goes with its result.
        """
        state = self.obtaining.project.state
        cells = carried.environments(state)
        rows = carried.export(state, {key for key, environment in cells.items() if environment in environments})
        folders = {f"results/evidence/{place}" for row in rows if (place := carried.evidence_of(row))}
        pieces, odd = gather.evidence_pieces(rows, state)
        self.obtaining.notes += odd
        path = "results/attempts.jsonl"
        before = next((file for file in self.obtaining.old.files if file.path == path), None)
        if before is not None:
            text = folder.blob_path(self.place, before.sha256).read_bytes()
            rows = carried.merge(carried.parse(text, path), rows)
        return folders, [Piece(path, carried.render(carried.merge((), rows))), *pieces]

    # ---- copying ----

    def copied(self, pieces: Sequence[Piece]) -> tuple[File, ...]:
        """Put every piece into the archive's folder."""
        sizes = [_size(piece) for piece in pieces]
        needed = sum(
            size
            for piece, size in zip(pieces, sizes, strict=True)
            if piece.blob is None or not folder.holds(self.place, piece.blob)
        )
        free = shutil.disk_usage(self.place).free
        if needed + ROOM > free:
            raise no_room(self.place, needed + ROOM, free)
        task = self.obtaining.listener.start("copy", self.place.name, sum(sizes), "B")
        files = {}
        try:
            for piece, size in zip(pieces, sizes, strict=True):
                files[piece.path] = self.add(piece)
                task.advance(size)
        finally:
            task.finish(f"{self.written / 1e6:.1f} MB new")
        return tuple(files.values())

    def add(self, piece: Piece) -> File:
        try:
            blob = folder.add(self.place, piece.source, piece.blob, self._wrote)
        except folder.ContentError as error:
            if piece.path.startswith(("store/wheels/", "tool/")) and piece.blob is not None:
                name = piece.path.rpartition("/")[2]
                self.obtaining.store.verify(Wheel("", "", name, piece.blob.sha256, piece.blob.size, ""))
            raise InfraError(f"changed while it was read: {error}", hint="run it again") from None
        except OSError as error:
            raise _trouble(error, self.place) from error
        return File(piece.path, blob.sha256, blob.size, piece.executable)

    def _wrote(self, amount: int) -> None:
        self.written += amount

    # ---- saying so ----

    def finish(self, new: Addition) -> tuple[Manifest, int]:
        """Write the manifest, and remove what it no longer names; nothing is written where nothing changed."""
        try:
            found = merged(self.obtaining.old, new, lambda image: layout.blobs_of(self.place, image), __version__)
            if lost := [blob.sha256 for blob in found.blobs if not folder.holds(self.place, blob)]:
                raise ReproError(
                    f"the archive is damaged: {len(lost)} blobs that it names are missing or cut, {lost[0]} first",
                    where=str(self.place),
                    hint="take a copy of it, or name a new folder; what was read now stays in it",
                )
            manifest, beside = self.dated(found, self.obtaining.old.created)
            if manifest != self.obtaining.old:
                manifest, beside = self.dated(found, _now())
            for name, content in beside.items():
                folder.write_root(self.place, name, content)
            if manifest != self.obtaining.old:
                folder.write_manifest(self.place, manifest)
            return manifest, folder.sweep(self.place, {blob.sha256 for blob in manifest.blobs})
        except FormatError as error:
            raise UserError(f"cannot be archived: {error}", where=str(self.place)) from None
        except OSError as error:
            raise _trouble(error, self.place) from error

    def dated(self, found: Manifest, created: str) -> tuple[Manifest, dict[str, bytes]]:
        """The manifest as of `created`, and the files beside it."""
        dated = replace(found, created=created)
        beside = roots(dated, self.place)
        return replace(dated, roots=tuple(_root(name, beside[name]) for name in sorted(beside))), beside

    def split(self, manifest: Manifest) -> tuple[Path, ...]:
        """The archive in parts, beside it, where that is wanted."""
        if not self.wanted.split_size:
            return ()
        into = self.place.with_name(f"{self.place.name}.parts")
        task = self.obtaining.listener.start("split", into.name, manifest.size, "B")
        try:
            return parts.write(self.place, manifest, into, self.place.name, self.wanted.split_size, task.advance)
        except Refused as error:
            raise UserError(error.message, where=str(into), hint=error.hint) from None
        except Damaged as error:
            raise ReproError(f"the archive is damaged: {error}", where=str(self.place)) from None
        except OSError as error:
            raise _trouble(error, into) from error
        finally:
            task.finish()


def _carried(lock: Lock, base: str, image: Image | None) -> Carried:
    wheels = tuple(sorted({wheel.sha256 for wheel in lock.wheels}))
    return Carried(lock.id, lock.hash, lock.python, lock.platform, wheels, base, image.id if image is not None else "")


def _size(piece: Piece) -> int:
    if piece.blob is not None:
        return piece.blob.size
    return len(piece.source) if isinstance(piece.source, bytes) else piece.source.stat().st_size


def _root(name: str, content: bytes) -> File:
    return File(name, hashlib.sha256(content).hexdigest(), len(content))


def _now() -> str:
    """RFC 3339; `SOURCE_DATE_EPOCH` fixes it, so that an archive can be made again bit for bit."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
