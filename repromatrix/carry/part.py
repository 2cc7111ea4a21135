"""One part of an archive: a tar whose every byte follows from its first member and its content.

    part.json                                 what the part holds, and the hash of that
    <path in the archive>+<offset>            a chunk: a piece of one file of the archive
    ...

A reader does not interpret the tar: it reads `part.json` and computes what each following header must be. So nothing
can be hidden in one: no foreign member, no link, no sparse file, no second entry. And `tar -xf` still unpacks it.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from repromatrix.carry.format import BLOBS, LARGEST, NAME, ROOTS
from repromatrix.carry.place import CHUNK, Progress, no_progress
from repromatrix.carry.trouble import Damaged, Problem, Refused

SCHEMA = 1
HEADER = "part.json"
BLOCK = 512
END = b"\0" * (2 * BLOCK)
"""How a tar ends."""

MTIME = 315532800
"""1980-01-01, of every member: the same archive gives the same parts."""

LARGEST_CHUNK = 1 << 30
"""Bytes; a header of the plain format can state 8 GiB."""

LARGEST_HEADER = 1 << 28
MOST = 99_999
"""Parts of one archive."""

NAMED = re.compile(r"(?P<name>.+)\.(?P<number>\d{4,5})-of-(?P<count>\d{4,5})\.part")
"""How a part's file is called; nothing depends on it but what a damaged one is taken for."""

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Chunk:
    """A piece of one file of the archive.

    Attributes:
        file: Its path in the archive's folder.
        offset: Where in the file it begins, bytes.
        length: Bytes.
        sha256: Of the piece, hex.
    """

    file: str
    offset: int
    length: int
    sha256: str

    @property
    def member(self) -> str:
        """Name in the tar: sorted, the pieces of a file follow one another."""
        return f"{self.file}+{self.offset:013d}"


@dataclass(frozen=True)
class Part:
    """What a part holds.

    Attributes:
        archive: Id of the archive.
        number: From 1 to `count`.
        chunks: In the archive's order: its manifest, the files beside it, its blobs.
    """

    archive: str
    number: int
    count: int
    chunks: tuple[Chunk, ...]

    @property
    def name(self) -> str:
        return f"part {self.number} of {self.count}"

    @property
    def content(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return member_size(len(render(self))) + sum(member_size(chunk.length) for chunk in self.chunks) + len(END)


def member_size(length: int) -> int:
    """Bytes that a member takes in a tar."""
    return BLOCK + length + padding(length)


def padding(length: int) -> int:
    """Zeros after a member's content."""
    return -length % BLOCK


def entry(name: str, length: int) -> bytes:
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = length, MTIME, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def render(part: Part) -> bytes:
    """The text of `part.json`: the hash of the rest, then the rest. One text for one part."""
    body = json.dumps({"schema": SCHEMA, **asdict(part)}, indent=1, sort_keys=True).encode()
    return b'{"sha256": "%s", "part":\n%s}\n' % (hashlib.sha256(body).hexdigest().encode(), body)


def parse(text: bytes) -> Part:
    """The part that `text` states.

    Raises:
        ValueError: It is not the very text that `render` writes, or names what a part must not hold.
    """
    try:
        body = json.loads(text)["part"]
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']!r}; this version reads {SCHEMA}")
        chunks = tuple(Chunk(each["file"], each["offset"], each["length"], each["sha256"]) for each in body["chunks"])
        part = Part(body["archive"], body["number"], body["count"], chunks)
        _check(part)
        same = render(part) == text
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the description of a part ({type(error).__name__})") from None
    if not same:
        raise ValueError("not the text whose hash it states")
    return part


def _check(part: Part) -> None:
    numbers = [part.number, part.count, *(n for chunk in part.chunks for n in (chunk.offset, chunk.length))]
    if any(type(number) is not int for number in numbers) or not _HASH.fullmatch(part.archive):
        raise ValueError("not the description of a part")
    if not 1 <= part.number <= part.count <= MOST:
        raise ValueError(f"number {part.number} of {part.count}")
    reached = (-1, "", 0)
    for chunk in part.chunks:
        here = (rank(chunk.file), chunk.file, chunk.offset)
        if not (0 <= chunk.length <= LARGEST_CHUNK and 0 <= chunk.offset <= LARGEST and _HASH.fullmatch(chunk.sha256)):
            raise ValueError(f"{chunk.file}: {chunk.length} bytes at {chunk.offset}")
        if here < reached or here == (*reached[:2], 0):
            raise ValueError(f"{chunk.file}: out of order, or there twice")
        reached = (*here[:2], max(chunk.offset + chunk.length, 1))


def rank(file: str) -> int:
    """Where `file` comes in the order of an archive: manifest, files beside it, blobs.

    Raises:
        ValueError: No archive has such a file.
    """
    if file == NAME:
        return 0
    if file in ROOTS:
        return 1
    above, _, name = file.rpartition("/")
    if above == BLOBS and _HASH.fullmatch(name):
        return 2
    raise ValueError(f"{file!r} is no file of an archive")


def read(path: Path) -> Part:
    """What the part in the file `path` says it holds; its content is not read.

    Raises:
        Refused: It is no part.
        Damaged: It is one, and damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return _header(file, path)


Write = Callable[[Chunk, int, bytes], None]
"""Gets a chunk, the offset in the archive's file, and the data that belongs there."""


def check(path: Path, progress: Progress = no_progress, write: Write | None = None) -> Part:
    """Read the whole part in the file `path`; it stands alone, no other part is asked.

    Args:
        write: Gets the content, in order, before its hash is known to be right; of an empty chunk no bytes, once.

    Raises:
        Refused: It is no part.
        Damaged: Some byte is not as it was written.
        OSError: It cannot be read, or `write` failed.
    """
    found: list[Problem] = []
    with path.open("rb") as file:
        part = _header(file, path)
        for chunk in part.chunks:
            header = file.read(BLOCK)
            digest, left = hashlib.sha256(), chunk.length
            if not left and write is not None:
                write(chunk, chunk.offset, b"")
            while left and (data := file.read(min(CHUNK, left))):
                digest.update(data)
                if write is not None:
                    write(chunk, chunk.offset + chunk.length - left, data)
                left -= len(data)
                progress(len(data))
            if left or len(header) < BLOCK:
                raise Damaged([*found, Problem(path.name, "truncated")])
            zeros = padding(chunk.length)
            if header != entry(chunk.member, chunk.length) or file.read(zeros) != b"\0" * zeros:
                found.append(Problem(path.name, f"the tar around {chunk.member} is damaged"))
            if digest.hexdigest() != chunk.sha256:
                found.append(Problem(path.name, f"{chunk.member}: other content than its hash says"))
        if file.read(len(END)) != END or file.read(1):
            found.append(Problem(path.name, "it does not end where it should"))
    if found:
        raise Damaged(found)
    return part


def _header(file: BinaryIO, path: Path) -> Part:
    """The part's description, from the start of its file; leaves the file at the first chunk."""
    try:
        start = file.read(BLOCK)
    except OSError as error:
        if error.errno == errno.EIO:
            raise Damaged([Problem(path.name, "cannot be read from its medium (input/output error)")]) from None
        raise
    length = _stated(start)
    if start[: len(HEADER) + 1] != HEADER.encode() + b"\0" and not NAMED.fullmatch(path.name):
        raise Refused(f"{path} is neither an archive nor a part of one", "give the folder of an archive, or its parts")
    if length is None or start != entry(HEADER, length):
        raise Damaged([Problem(path.name, "its first block is damaged")])
    text = file.read(min(length, os.fstat(file.fileno()).st_size))
    try:
        part = parse(text)
        if part.size != os.fstat(file.fileno()).st_size:
            raise ValueError(f"{os.fstat(file.fileno()).st_size} bytes, expected {part.size}")
    except ValueError as error:
        raise Damaged([Problem(path.name, str(error))]) from None
    if file.read(padding(length)) != b"\0" * padding(length):
        raise Damaged([Problem(path.name, f"the tar around {HEADER} is damaged")])
    return part


def _stated(start: bytes) -> int | None:
    """The size that the first header states, or None where it states none."""
    digits = start[124:135]
    if len(start) != BLOCK or not re.fullmatch(rb"[0-7]{11}", digits):
        return None
    length = int(digits, 8)
    return length if 0 < length <= LARGEST_HEADER else None


def missing(parts: Any) -> list[int]:
    """Numbers that are lacking of the set that `parts`, not empty, belong to."""
    every = list(parts)
    return sorted(set(range(1, every[0].count + 1)) - {part.number for part in every})
