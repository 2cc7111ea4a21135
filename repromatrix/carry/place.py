"""Files read and written so that no link leads elsewhere, neither in an archive nor where it is restored.

Every step of a path is opened by itself, relative to the one before and without following links: what somebody changes
meanwhile cannot redirect a write.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from repromatrix.carry.trouble import Damaged, Problem

CHUNK = 1 << 20
"""Bytes read at once: SHA-256 needs 0.7 ms for them, so progress moves and an interrupt is heard."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Progress = Callable[[int], None]
"""Told bytes that are done, from any thread."""


def no_progress(_: int) -> None:
    """Say nothing."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The plain file at `path`, open for reading.

    Raises:
        OSError: `ELOOP` for a link, `EINVAL` for what is no plain file, and whatever opening raises.
    """
    _plain(path.lstat(), path)  # before it is opened: opening a device may already do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    with file:
        _plain(os.fstat(file.fileno()), path)
        yield file


def _plain(state: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(state.st_mode):
        raise OSError(errno.ELOOP, "a link", str(path))
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def fault(path: Path, sha256: str, size: int, progress: Progress = no_progress) -> str:
    """What is wrong with the content of the file at `path`, in words; empty where nothing is.

    Raises:
        OSError: It may not be read, so nobody knows. A medium's error (`EIO`) is a fault.
    """
    try:
        with opened(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                return f"{found} bytes, expected {size}"
            digest, buffer = hashlib.sha256(), bytearray(CHUNK)
            view, read = memoryview(buffer), 0
            while count := file.readinto(buffer):  # type: ignore[attr-defined]  # unbuffered: it has it
                digest.update(view[:count])
                read += count
                progress(count)
                if read > size:
                    break
            if read != size or digest.hexdigest() != sha256:
                return "other content than its hash says"
    except FileNotFoundError:
        return "missing"
    except NotADirectoryError:
        return "missing: a file lies where its folder should be"
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            return error.strerror or "not a plain file"
        if error.errno == errno.EIO:
            return "cannot be read from its medium (input/output error)"
        raise
    return ""


def enter(root: int, *names: str, make: bool = False) -> int:
    """Open the folder `names` below the open folder `root`; the caller closes it.

    Args:
        make: Make folders that are missing.

    Raises:
        OSError: `FileNotFoundError`; `NotADirectoryError` for a link or a file on the way.
    """
    here = os.dup(root)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=here)
            there = os.open(name, _FOLDER, dir_fd=here)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotADirectoryError(
                    errno.ENOTDIR, "a link or a file lies where a folder should be", name
                ) from None
            raise
        finally:
            os.close(here)
        here = there
    return here


@contextmanager
def folder(path: Path, *names: str, make: bool = False) -> Iterator[int]:
    """The open folder `path`, which may be reached through links, or one below it, which may not; see `enter`."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = enter(root, *names, make=make)
    finally:
        os.close(root)
    try:
        yield found
    finally:
        os.close(found)


def copy(source: Path, where: str, sha256: str, size: int, into: int, name: str, mode: int, progress: Progress) -> None:
    """Write the content of `source` to the new file `name` in the open folder `into`, hashed while it is copied.

    Args:
        where: What to call it in a problem.
        mode: Rights of the new file, whatever the umask.

    Raises:
        Damaged: It is not what `sha256` and `size` say; nothing is left.
        FileExistsError: Something has this name.
        OSError: It cannot be read or written; nothing is left.
    """
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=into)
    try:
        with os.fdopen(target, "wb", buffering=0) as out, opened(source) as file:
            digest, left = hashlib.sha256(), size
            while data := file.read(min(CHUNK, left + 1)):  # one more than stated, to see that there is more
                left -= len(data)
                if left < 0:
                    break
                digest.update(data)
                write_all(out.fileno(), data)
                progress(len(data))
            if left or digest.hexdigest() != sha256:
                raise Damaged([Problem(where, "changed while it was copied")])
            os.fchmod(out.fileno(), mode)
    except BaseException:
        os.unlink(name, dir_fd=into)
        raise


def write_all(target: int, data: bytes) -> None:
    """Write all of `data`: one call may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def need_room(path: Path, needed: int) -> None:
    """Refuse to begin what the disk of `path`, a folder, cannot hold.

    Raises:
        OSError: `ENOSPC`, with the amounts.
    """
    free = shutil.disk_usage(path).free
    if needed > free:
        text = f"not enough room: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free"
        raise OSError(errno.ENOSPC, text, str(path))
