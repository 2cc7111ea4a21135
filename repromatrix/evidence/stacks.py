"""The stacks and cores that an attempt left: what `containers/stacks.py` wrote, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from repromatrix.evidence.frames import stack_frames

INDEX = "stacks.json"
"""File in the attempt's folder that says what was taken; the stacks themselves are `stacks/<pid>.txt`."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The stacks of one process.

    Attributes:
        rank: Of the process, where it is a rank's own; None for its children.
        command: Its command line, cut to 200 characters.
        source: `live` (taken at the deadline) or `core`.
        tool: `pystack` or `py-spy`; empty where none of them could read it.
        thread: The thread that crashed (first NT_PRSTATUS of the core); None where the process was alive.
        signal: Name of the signal in the core, or empty.
        file: Path within the attempt's folder; empty where there is no text.
        trouble: Why there is no text, or why it is not whole; else empty.
    """

    pid: int
    rank: int | None
    command: str
    source: str
    tool: str
    thread: int | None
    signal: str
    file: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Core:
    """A core file that was found.

    Attributes:
        file: Path within the attempt's folder, empty where it was deleted after reading.
        size: Bytes, holes included.
        allocated: Bytes on the disk.
        cut: It ends before its last segment: the size cap or a full disk cut it.
    """

    pid: int
    signal: str
    file: str
    size: int
    allocated: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Stacks:
    """Everything that `stacks.json` says.

    Attributes:
        notes: Findings: a core that was expected and is missing and why, who took it instead, a tool that failed.
    """

    stacks: tuple[Stack, ...] = ()
    cores: tuple[Core, ...] = ()
    notes: tuple[str, ...] = ()


_THREAD = re.compile(r"^Traceback for thread (\d+) ", re.MULTILINE)


def thread_first(text: str, thread: int | None) -> str:
    """A text of pystack with the stack of `thread` before those of the others, which mostly wait for work."""
    starts = [*_THREAD.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=False):  # without any start there is one end
        if start[1] == str(thread):
            head, own, rest = text[: starts[0].start()], text[start.start() : end], text[end:]
            return "".join([head, own.rstrip("\n"), "\n\n", text[starts[0].start() : start.start()], rest])
    return text


def frames_for(stacks: Stacks, texts: Mapping[str, str], pid: int) -> tuple[str, ...]:
    """Frames, innermost first, of the thread that matters of the process `pid`; empty where nothing was read.

    The core comes before what was read of the living process. Whoever was alive at the deadline did not crash: of it
    the main thread counts, as it is what the script waits in. Where the script's own process left nothing and exactly
    one of its children did, that child is what failed behind a shell. Never raises.

    Args:
        texts: What stands in the files of `Stack.file`.
        pid: Of the script or of a rank, as in `Raw.pid` and `RankEnd.pid`.
    """
    hung = {stack.pid for stack in stacks.stacks if stack.source == "live"}
    for wanted in ({pid}, {stack.pid for stack in stacks.stacks if stack.rank is None} - {pid}):
        for source in ("core", "live"):
            read: dict[int, tuple[str, ...]] = {}
            for stack in stacks.stacks:
                if stack.pid in wanted and stack.source == source and (text := texts.get(stack.file, "")):
                    frames = _frames(text, stack.pid if stack.pid in hung else stack.thread)
                    if frames:
                        read.setdefault(stack.pid, frames)
            if len(read) == 1:
                return next(iter(read.values()))
            if read:
                return ()  # of several children nobody knows which one counts
    return ()


def _frames(text: str, thread: int | None) -> tuple[str, ...]:
    return (stack_frames(text, thread) if thread is not None else ()) or stack_frames(text)


T = TypeVar("T")
_STACK_FILE = re.compile(r"(?:stacks/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_CORE_FILE = re.compile(r"(?:core\.[\w.-]+)?", re.ASCII)
_TEXT = 1000
_MOST = 10_000


class _Wrong(Exception):
    """A field that the supervisor would not have written."""


def parse_index(text: str) -> Stacks:
    """What `stacks.json` says. Never raises: where anything in it is wrong, a note says so and nothing is believed.

    A script can write to the folder that it lies in. So every type is checked, and every path must be one that the
    supervisor makes: `stacks/...` or `core....`, without folders in between.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Stacks(notes=(f"{INDEX} cannot be read: {type(error).__name__}: {error}"[:_TEXT],))
    try:
        if not isinstance(found, dict) or found.get("schema") != 1:
            raise _Wrong("schema")
        return Stacks(
            _list(found, "stacks", _stack),
            _list(found, "cores", _core),
            _list(found, "notes", _string),
        )
    except _Wrong as wrong:
        return Stacks(notes=(f"{INDEX} is not as the supervisor writes it: {wrong}",))


def _list(found: dict[str, object], key: str, make: Callable[[object, str], T]) -> tuple[T, ...]:
    entries = found.get(key, [])
    if not isinstance(entries, list) or len(entries) > _MOST:
        raise _Wrong(key)
    return tuple(make(entry, f"{key}[{place}]") for place, entry in enumerate(entries))


def _stack(entry: object, where: str) -> Stack:
    if not isinstance(entry, dict):
        raise _Wrong(where)
    source, tool = _string(entry.get("source"), f"{where}.source"), _string(entry.get("tool"), f"{where}.tool")
    if source not in ("live", "core") or tool not in ("pystack", "py-spy", ""):
        raise _Wrong(f"{where}.source or .tool")
    return Stack(
        pid=_count(entry.get("pid"), f"{where}.pid"),
        rank=_maybe(entry.get("rank"), f"{where}.rank"),
        command=_string(entry.get("command"), f"{where}.command"),
        source=source,
        tool=tool,
        thread=_maybe(entry.get("thread"), f"{where}.thread"),
        signal=_string(entry.get("signal"), f"{where}.signal"),
        file=_path(entry.get("file"), _STACK_FILE, f"{where}.file"),
        trouble=_string(entry.get("trouble"), f"{where}.trouble"),
    )


def _core(entry: object, where: str) -> Core:
    if not isinstance(entry, dict) or not isinstance(cut := entry.get("cut"), bool):
        raise _Wrong(where)
    return Core(
        pid=_count(entry.get("pid"), f"{where}.pid"),
        signal=_string(entry.get("signal"), f"{where}.signal"),
        file=_path(entry.get("file"), _CORE_FILE, f"{where}.file"),
        size=_count(entry.get("size"), f"{where}.size"),
        allocated=_count(entry.get("allocated"), f"{where}.allocated"),
        cut=cut,
    )


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(where)
    return value[:_TEXT].encode("utf-8", "replace").decode()  # a lone surrogate can be in JSON and in no file


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise _Wrong(where)
    return value


def _maybe(value: object, where: str) -> int | None:
    return None if value is None else _count(value, where)


def _path(value: object, pattern: re.Pattern[str], where: str) -> str:
    path = _string(value, where)
    if not pattern.fullmatch(path):
        raise _Wrong(f"{where}: {path[:100]!r}")
    return path
