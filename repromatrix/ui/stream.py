"""Shows what an attempt writes while it runs: its log files, followed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from repromatrix.output import discard


@contextmanager
def streaming(
    folder: Path, processes: int = 1, told: Callable[[str], str] | None = None, period: float = 0.1
) -> Iterator[None]:
    """Copy `stdout` and `stderr` of the attempt in `folder` to ours while the block runs.

    Args:
        folder: The attempt's folder.
        processes: Ranks of the attempt; of several, each line begins with the rank, `[0] `.
        told: What of the lines on stderr is shown; None = all.
        period: Seconds between looks.
    """
    stop = threading.Event()
    ranks = [("", b"")] if processes == 1 else [(f".{rank}", b"[%d] " % rank) for rank in range(processes)]
    sources = [
        (folder / (name + suffix), stream, mark, shown)
        for suffix, mark in ranks
        for name, stream, shown in (("stdout", sys.stdout, None), ("stderr", sys.stderr, told))
    ]
    threads = [threading.Thread(target=_follow, args=(*source, stop, period), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _follow(
    path: Path,
    stream: TextIO,
    mark: bytes,
    told: Callable[[str], str] | None,
    stop: threading.Event,
    period: float,
) -> None:
    offset, begun = 0, b""
    while True:
        last = stop.is_set()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read()
        except OSError:
            chunk = b""  # the supervisor has not opened it yet, or the script moved it
        offset += len(chunk)
        if mark or told:  # whole lines only: those of several ranks alternate
            lines, newline, begun = (begun + chunk).rpartition(b"\n")
            if last and begun:
                lines, newline, begun = lines + newline + begun, b"\n", b""
            if told and newline:
                lines = told((lines + newline).decode("utf-8", "replace")).encode()
                lines, newline = lines.removesuffix(b"\n"), lines[-1:]
            chunk = b"".join(mark + line + b"\n" for line in lines.split(b"\n")) if newline else b""
        try:
            stream.buffer.write(chunk)
            stream.flush()
        except OSError:  # nobody reads it any more, or it goes to a full disk: the attempt goes on
            discard(stream)
            return
        if last:
            return
        stop.wait(period)
