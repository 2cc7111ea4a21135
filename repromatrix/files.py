"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Make `text` (UTF-8) the content of `path`: a reader sees the old content or the new one, never a part.

    Raises:
        OSError: The disk is full or the folder cannot be written; `path` is as it was.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
