"""An archive cut into numbered parts.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from repromatrix.carry import part as one
from repromatrix.carry.format import BLOBS, NAME, Manifest
from repromatrix.carry.part import Chunk, Part
from repromatrix.carry.place import CHUNK, Progress, need_room, no_progress, opened
from repromatrix.carry.trouble import Damaged, Problem, Refused

SMALLEST = 1_000_000
"""Bytes that a part must be allowed to have."""

_ROOM = 600
"""Bytes of `part.json` without its chunks, generously."""

_PER_CHUNK = 320
"""Bytes of `part.json` for a chunk, generously; measured: 196 to 250."""

_WORTH = 64 << 10
"""A file is begun in what is left of a part if that many bytes of it, or all of it, fit."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one file of the archive, before they are read."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Found:
    """What places lead to: the folder of an archive, or parts.

    Attributes:
        alone: Whether a single part was named, so that the others are not asked for.
    """

    archive: Path | None
    parts: tuple[Path, ...]
    alone: bool = False


def find(places: Iterable[Path]) -> Found:
    """Look at what the user names: one folder of an archive, or parts and folders of parts.

    Raises:
        Refused: Nothing of that kind is there, or both.
    """
    archives: list[Path] = []
    parts: list[Path] = []
    places = tuple(places)
    for place in places:
        if place.is_dir():
            inside = sorted(p for p in place.iterdir() if p.suffix == ".part" and not p.name.startswith("."))
            if (place / NAME).exists() or (place / BLOBS).exists() or not inside:
                archives.append(place)
            else:
                parts += inside
        elif place.exists():
            parts.append(place)
        else:
            raise Refused(f"{place}: there is no such file or folder")
    if len(archives) > 1 or (archives and parts):
        raise Refused("an archive's folder cannot be taken together with something else", "name it alone")
    return Found(archives[0] if archives else None, tuple(parts), alone=len(places) == 1 and places[0].is_file())


def cut(files: Iterable[tuple[str, int]], split_size: int) -> tuple[tuple[Piece, ...], ...]:
    """Which pieces of `files` (path, size in bytes; in order) each part of at most `split_size` bytes holds."""
    parts: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    empty = split_size - one.member_size(_ROOM) - one.BLOCK - len(one.END)  # the description grows by whole blocks
    room = empty
    for file, size in files:
        offset = 0
        while True:
            fits = (room - _PER_CHUNK - one.BLOCK) // one.BLOCK * one.BLOCK
            length = min(size - offset, fits, one.LARGEST_CHUNK)
            if length < min(size - offset, _WORTH):
                parts.append(tuple(pieces))
                pieces, room = [], empty
                continue
            pieces.append(Piece(file, offset, length))
            room -= _PER_CHUNK + one.member_size(length)
            offset += length
            if offset == size:
                break
    return (*parts, tuple(pieces))


def write(
    root: Path, manifest: Manifest, into: Path, name: str, split_size: int, progress: Progress = no_progress
) -> tuple[Path, ...]:
    """Write the archive in `root` as parts `<name>.0001-of-0012.part`, with `<name>.sha256` and `restore.pyz` beside.

    The same archive and size give the same bytes. What is written is hashed against the manifest, so that a damaged
    archive is found before it is carried away.

    Args:
        into: Folder of the parts; parts that it holds are replaced when all new ones are complete.
        split_size: Bytes that no part exceeds.
        progress: Told every byte of the archive once.

    Raises:
        Refused: `split_size` is too small, or `into` holds something else than parts.
        Damaged: The archive is not as its manifest states.
        OSError: It cannot be read or written.
    """
    if split_size < SMALLEST:
        raise Refused(f"parts of {split_size} bytes are too small", "allow at least 1M, for example --split-size 60M")
    files = list(_stream(root, manifest))
    plan = cut([(path, size) for path, size, _ in files], split_size)
    if len(plan) > one.MOST:
        raise Refused(f"{len(plan)} parts are too many", f"allow more than {split_size} bytes a part")
    foreign = [p.name for p in into.iterdir() if not _ours(p)] if into.is_dir() else []
    if foreign or (into.exists() and not into.is_dir()):
        raise Refused(f"{into} holds something else than parts: {', '.join(foreign[:3]) or 'a file'}", "name another")
    scratch = into.with_name(f".{into.name}.{os.getpid()}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        need_room(scratch, sum(size for _, size, _ in files))
        whole = Whole({path: (sha256, size) for path, size, sha256 in files})
        names, sums = [], []
        for number, pieces in enumerate(plan, 1):
            file = scratch / f"{name}.{number:04d}-of-{len(plan):04d}.part"
            sums.append(
                f"{_write_one(root, file, manifest.id, number, len(plan), pieces, whole, progress)}  {file.name}"
            )
            names.append(file.name)
        if found := whole.end():
            raise Damaged(found)
        for root_file in manifest.roots:
            if root_file.path == "restore.pyz":
                shutil.copyfile(root / root_file.path, scratch / root_file.path)
                sums.append(f"{root_file.sha256}  {root_file.path}")
        (scratch / f"{name}.sha256").write_text("\n".join(sums) + "\n", encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        scratch.replace(into)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return tuple(into / each for each in names)


def _ours(path: Path) -> bool:
    return path.suffix in (".part", ".sha256") or path.name == "restore.pyz"


def _stream(root: Path, manifest: Manifest) -> Iterator[tuple[str, int, str]]:
    """(path, size, sha256) of every file of an archive, in the order of its parts."""
    with opened(root / NAME) as file:
        text = file.read()
    yield NAME, len(text), hashlib.sha256(text).hexdigest()
    for beside in manifest.roots:
        yield beside.path, beside.size, beside.sha256
    for blob in manifest.blobs:
        yield f"{BLOBS}/{blob.sha256}", blob.size, blob.sha256


def _write_one(
    root: Path,
    path: Path,
    archive: str,
    number: int,
    count: int,
    pieces: Sequence[Piece],
    whole: Whole,
    progress: Progress,
) -> str:
    """Write a part; returns its SHA-256. Its description, written last, has the length of one with other hashes."""
    chunks = tuple(Chunk(piece.file, piece.offset, piece.length, "0" * 64) for piece in pieces)
    room = one.member_size(len(one.render(Part(archive, number, count, chunks))))
    known = []
    with path.open("w+b") as out:
        out.seek(room)
        for chunk in chunks:
            out.write(one.entry(chunk.member, chunk.length))
            digest = hashlib.sha256()
            for at, data in _data(root, chunk):
                out.write(data)
                digest.update(data)
                whole.feed(chunk, at, data)
                progress(len(data))
            out.write(b"\0" * one.padding(chunk.length))
            known.append(Chunk(chunk.file, chunk.offset, chunk.length, digest.hexdigest()))
        out.write(one.END)
        text = one.render(Part(archive, number, count, tuple(known)))
        out.seek(0)
        out.write(one.entry(one.HEADER, len(text)) + text + b"\0" * one.padding(len(text)))
        out.flush()
        os.fsync(out.fileno())
        out.seek(0)
        digest = hashlib.sha256()
        while data := out.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _data(root: Path, chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """The content of a chunk with its offsets; of an empty one no bytes, once."""
    try:
        with opened(root / chunk.file) as file:
            at, end = chunk.offset, chunk.offset + chunk.length
            file.seek(at)
            if at == end:
                yield at, b""
            while at < end and (data := file.read(min(CHUNK, end - at))):
                yield at, data
                at += len(data)
            if at < end:
                raise Damaged([Problem(chunk.file, "shorter than the manifest states")])
    except FileNotFoundError:
        raise Damaged([Problem(chunk.file, "missing")]) from None


class Whole:
    """Hashes the files of an archive while their pieces come by, in order.

    Args:
        files: (sha256, size) by path.
    """

    def __init__(self, files: dict[str, tuple[str, int]]) -> None:
        self.files = dict(files)
        self.file, self.digest, self.at = "", hashlib.sha256(), 0
        self.found: list[Problem] = []

    def feed(self, chunk: Chunk, at: int, data: bytes) -> None:
        if chunk.file != self.file:
            self._close()
            self.file, self.digest, self.at = chunk.file, hashlib.sha256(), 0
        if at == self.at:
            self.digest.update(data)
            self.at += len(data)

    def end(self) -> list[Problem]:
        """What is wrong, once all has come by."""
        self._close()
        return self.found + [Problem(file, "in none of the parts") for file in self.files]

    def _close(self) -> None:
        if not self.file:
            return
        if self.files.pop(self.file, None) != (self.digest.hexdigest(), self.at):
            self.found.append(Problem(self.file, "other content than the manifest states"))
