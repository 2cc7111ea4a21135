"""Kept cores, compressed: `core.12` becomes `core.12.zst`, which `zstd -d --sparse core.12.zst` opens again,
with its holes (without `--sparse` zstd 1.5.7 fills them).

A core of a process with a GPU is mostly holes (8.8 GB were seen). They are neither read nor compressed: the file system
says where they are (SEEK_HOLE in lseek(2)), and in the compressed file a hole is a frame of zeros, made once and
repeated. So the file is a row of zstd frames, as RFC 8878 allows.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import Event
from typing import BinaryIO

from repromatrix.engines.attempt import make_way

LEVEL = 3
"""Of zstd. A higher one is slower for little, and attempts wait for the disk and the CPU."""

HOLE = 16 << 20
"""Bytes that one frame of zeros stands for; shorter holes are written out as zeros."""

CHUNK = 1 << 20

_NAME = re.compile(r"core\.\d+(\.\d+)?")
"""What the supervisor calls a core: by its process, and by the time where a process left several."""


def store(folder: Path, cancel: Event) -> tuple[str, ...]:
    """Compress the cores that lie in `folder`; a core is deleted once its compressed form is safely on the disk.

    Args:
        folder: Of the attempt, which has ended. Its script may have put anything there.
        cancel: Once it is set, what is not compressed yet stays as it is.

    Returns:
        Notes on what could not be compressed and stays as it is.
    """
    notes: list[str] = []
    for name in sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)):
        try:
            # Opening a pipe waits, and a link leads elsewhere.
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb", buffering=0):
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink == 1:
                    _replace(descriptor, status.st_size, folder / name, cancel)
                else:
                    notes.append(f"{name} is no core that a process of this attempt left: not compressed")
        except OSError as error:
            notes.append(f"{name} stays uncompressed: {error.strerror}")
    return tuple(notes)


def _replace(source: int, size: int, core: Path, cancel: Event) -> None:
    packed = core.with_name(f"{core.name}.zst")
    part = core.with_name(f"{core.name}.zst.part")
    make_way(part)
    try:
        with part.open("xb") as target:
            _compress(source, size, target, cancel)
            target.flush()
            os.fsync(target.fileno())
        make_way(packed)
        part.rename(packed)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(core.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    core.unlink()


def _compress(source: int, size: int, target: BinaryIO, cancel: Event) -> None:
    from zstandard import FLUSH_FRAME, ZstdCompressor

    at = 0
    with ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(target, closefd=False) as frame:
        for begin, end in (*_data(source, size), (size, size)):
            holes, rest = divmod(begin - at, HOLE)
            if holes:
                frame.flush(FLUSH_FRAME)
                for _ in range(holes):
                    target.write(_zeros())
            frame.write(bytes(rest))
            at = begin
            while at < end:
                if cancel.is_set():
                    raise OSError(errno.ECANCELED, "the run was interrupted")
                chunk = os.pread(source, min(CHUNK, end - at), at)
                if not chunk:
                    raise OSError(errno.EIO, "it became shorter while it was read")
                frame.write(chunk)
                at += len(chunk)


def _data(source: int, size: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is no hole, in order."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        at = min(os.lseek(source, begin, os.SEEK_HOLE), size)
        yield begin, at


@cache
def _zeros() -> bytes:
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=LEVEL, write_checksum=True).compress(bytes(HOLE))
