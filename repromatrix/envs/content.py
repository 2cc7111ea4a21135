"""Whether a folder of the store still holds what was put there: reads no content, so it costs milliseconds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

MARKER = "repromatrix.json"
"""File directly in a folder that `seal` has closed."""


def fingerprint(folder: Path, leave_out: Collection[str] = ()) -> str:
    """SHA-256 over path, size and time of change of every file below `folder`; empty where it cannot be read.

    It tells files that were removed, replaced or edited, by a cleaner of caches or by `pip install` into a venv. Two
    thousand files take 20 ms. Against intent it is no help: times can be set.

    Args:
        leave_out: Names of files directly in `folder` that do not count.
    """
    found = hashlib.sha256()
    pending = [""]
    try:
        while pending:
            below = pending.pop()
            with os.scandir(folder / below) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    path = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{path}/")
                    elif path not in leave_out:
                        state = entry.stat(follow_symlinks=False)
                        found.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    except OSError:
        return ""
    return found.hexdigest()


def seal(folder: Path, facts: Mapping[str, str]) -> None:
    """Note in `folder` what it holds and how it was made; afterwards `intact` tells whether it is still so.

    Raises:
        OSError: It cannot be written.
    """
    content = {"content": fingerprint(folder, (MARKER,)), **facts}
    (folder / MARKER).write_text(json.dumps(content, indent=2) + "\n")


def intact(folder: Path) -> bool:
    """Whether `folder` is as it was sealed: what somebody removed or installed there would be blamed on a version."""
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("content") == fingerprint(folder, (MARKER,))
