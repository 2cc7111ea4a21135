"""Writing to the disk, and what its errors mean to whoever reads them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from repromatrix.errors import InfraError
from repromatrix.files import write_atomically

_HINT = "free some space, or set REPROMATRIX_STORE to a folder on a larger disk"


def write_text(path: Path, text: str) -> None:
    """Write `path` atomically; its folder is made where it is missing.

    Raises:
        InfraError: The disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InfraError(
            f"cannot write: {error.strerror or error}", where=str(path), hint="free space or rights"
        ) from error


def no_room(folder: Path, needed: int, free: int) -> InfraError:
    """The disk of `folder` is, or would be, full; amounts in bytes."""
    return InfraError(
        f"not enough room: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free", where=str(folder), hint=_HINT
    )


def disk_error(error: OSError, folder: Path, needed: int = 0) -> InfraError:
    """What `error`, raised while writing under `folder`, means; `needed` bytes were to be written, 0 = unknown."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder).free
        if needed:
            return no_room(folder, needed, free)
        return InfraError(
            f"the disk is full: {os.strerror(error.errno)}, {free / 1e6:.1f} MB free", where=str(folder), hint=_HINT
        )
    return InfraError(
        f"cannot write in the store: {error.strerror or error}",
        where=str(error.filename or folder),
        hint="set REPROMATRIX_STORE to a folder that you may write in",
    )
