"""Lock files as they lie in a folder, whatever any matrix says of them now: which wheels they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.lockfile import read_wheels
from repromatrix.envs.model import Wheel, hash_of
from repromatrix.errors import InfraError, InputErrors, UserError

_PYTHON = re.compile(r"^# python: (\d+\.\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock, without the environment that it was made for.

    Attributes:
        python: Minor version the wheels are for.
        platform: uv's name.
    """

    path: Path
    python: str
    platform: str
    wheels: tuple[Wheel, ...]

    @property
    def hash(self) -> str:
        """What `Lock.hash` is."""
        return hash_of(self.python, self.platform, self.wheels)


def read_locks(folder: Path) -> tuple[LockFile, ...]:
    """Every `*.txt` in `folder`, by name; none where there is no such folder.

    Raises:
        InputErrors: With every mistake of every file: who asks which wheels are named must not miss one.
        InfraError: The folder may not be read, so nobody knows.
    """
    found: list[LockFile] = []
    errors: list[UserError] = []
    for path in _texts(folder):
        try:
            found.append(_read(path))
        except InputErrors as error:
            errors += error.errors
    if errors:
        raise InputErrors(errors)
    return tuple(found)


def lock_hash(path: Path) -> str:
    """What `Lock.hash` is of the lock in the file `path`; empty where it is none."""
    try:
        return _read(path).hash
    except InputErrors:
        return ""


def _texts(folder: Path) -> list[Path]:
    # Not `glob`: to it a folder of another user, which may not be read, is an empty one.
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".txt")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InfraError(f"the locks cannot be read: {error.strerror}", where=str(folder)) from error


def _read(path: Path) -> LockFile:
    """The lock in one file.

    Raises:
        InputErrors: With every mistake in it.
    """
    hint = f"restore it, or lock it again: uv run invoke lock --env {path.stem} --refresh"
    try:
        stated = _PYTHON.search(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputErrors([UserError(f"the lock cannot be read: {error}", where=str(path), hint=hint)]) from None
    if stated is None:
        raise InputErrors([UserError("the header names no Python", where=str(path), hint=hint)])
    content = read_wheels(path, stated[1], hint)
    errors = list(content.errors)
    if content.stated("wheels") != str(len(content.wheels)):
        told = f"the header does not tell of the {len(content.wheels)} wheels below it"
        errors.append(UserError(told, where=str(path), hint=hint))
    if errors:
        raise InputErrors(errors)
    return LockFile(path, stated[1], content.stated("platform"), content.wheels)
