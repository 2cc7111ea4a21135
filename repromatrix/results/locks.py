"""Locks that the kernel drops when their holder dies, by whatever means."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from repromatrix.errors import InfraError


class Owner:
    """A process with attempts under way: a file that it keeps locked, so that its death shows, however it died.

    A process id would not do: ids are used again, and mean something else in another container.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.name = path.name
        self._path = path
        self._file = file

    @classmethod
    def take(cls, folder: Path, note: str = "") -> Owner:
        """A new owner of this process in `folder`; its file says `note`."""
        folder.mkdir(exist_ok=True)
        while True:
            path = folder / uuid.uuid4().hex
            file = path.open("x", encoding="utf-8")
            # Between open and flock a `sweep` elsewhere may have taken the file for a dead one's and removed it.
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():
                file.write(note)
                file.flush()
                return cls(path, file)
            file.close()

    @classmethod
    def sweep(cls, folder: Path) -> list[str]:
        """Names of the living owners; the files of the dead are removed."""
        alive = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                with path.open("r+", encoding="utf-8") as file:
                    if try_lock(file):
                        path.unlink()
                    else:
                        alive.append(path.name)
            except FileNotFoundError:  # its owner closed it meanwhile
                continue
        return alive

    def release(self) -> None:
        """End it as an orderly process does."""
        self._path.unlink(missing_ok=True)
        self._file.close()


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[IO[str]]:
    """`path` opened for `try_lock`, made if missing; closed, and so unlocked, at the end."""
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise InfraError(f"cannot open the lock file: {error.strerror}", where=str(path)) from error
    with file:
        yield file


def try_lock(file: IO[str]) -> bool:
    """Lock `file` if nobody holds it; whether that worked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold `folder` itself locked, waiting for whoever holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
