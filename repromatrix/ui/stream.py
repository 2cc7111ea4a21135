"""Shows what an attempt writes while it runs: its log files, followed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from repromatrix.output import discard


@contextmanager
def streaming(folder: Path, period: float = 0.1) -> Iterator[None]:
    """Copy `stdout` and `stderr` of the attempt in `folder` to ours while the block runs.

    Args:
        folder: The attempt's folder.
        period: Seconds between looks.
    """
    stop = threading.Event()
    pairs = ((folder / "stdout", sys.stdout), (folder / "stderr", sys.stderr))
    threads = [threading.Thread(target=_follow, args=(path, out, stop, period), daemon=True) for path, out in pairs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _follow(path: Path, stream: TextIO, stop: threading.Event, period: float) -> None:
    offset = 0
    while True:
        last = stop.is_set()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read()
        except OSError:
            chunk = b""  # the supervisor has not opened it yet, or the script moved it
        offset += len(chunk)
        try:
            stream.buffer.write(chunk)
            stream.flush()
        except OSError:  # nobody reads it any more, or it goes to a full disk: the attempt goes on
            discard(stream)
            return
        if last:
            return
        stop.wait(period)
