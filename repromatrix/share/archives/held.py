"""What lies already where an archive's files belong: nothing of it gives way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repromatrix.carry.format import File
from repromatrix.carry.place import fault, folder
from repromatrix.carry.trouble import Problem, listed
from repromatrix.errors import UserError
from repromatrix.events import Listener


@dataclass(frozen=True, slots=True)
class Compared:
    """Files that a folder lacks, and those that lie there and are others, with what they are."""

    absent: tuple[File, ...]
    others: tuple[Problem, ...]


def compare(files: Sequence[File], base: Path, listener: Listener) -> Compared:
    """Hold `files` against what lies below `base`, each where it belongs there; every content is hashed.

    Raises:
        OSError: A file may not be read, so nobody knows.
    """
    absent, others = [], []
    task = listener.start("verify", f"what is in {base}", len(files))
    try:
        for file in files:
            what = _there(base, file)
            if what is None:
                absent.append(file)
            elif what:
                others.append(Problem(file.path, what))
            task.advance(1)
    finally:
        task.finish()
    return Compared(tuple(absent), tuple(others))


def _there(base: Path, file: File) -> str | None:
    """What is wrong with the file that lies at the place of `file`: empty if it is the same, None if there is none."""
    *above, name = file.path.split("/")[1:]
    try:
        with folder(base, *above) as there:
            os.stat(name, dir_fd=there, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return "a link or a file lies where its folder should be"
    what = fault(base.joinpath(*above, name), file.sha256, file.size)
    return f"here lies another: {what}" if what else ""


def refuse(others: Sequence[Problem], where: Path, hint: str) -> None:
    """Give way nowhere.

    Raises:
        UserError: There are `others`.
    """
    if others:
        which = "1 file is another" if len(others) == 1 else f"{len(others)} files are others"
        text = f"{which} than the archive's; nothing was written\n{listed(others)}"
        raise UserError(text, where=str(where), hint=hint)
