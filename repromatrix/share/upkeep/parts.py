"""The store, measured: its parts with their sizes, what holds what, and which of them must stay."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from repromatrix.envs.content import MARKER
from repromatrix.events import Listener
from repromatrix.share.upkeep.gc import GONE, Part
from repromatrix.share.upkeep.references import References

DAY = 86400.0
"""Seconds after which nobody continues an unfinished download or build."""

MONTH = 30 * DAY
"""Seconds after which nobody brings the next part of an archive: parts are carried by hand, one by one."""

NOTES = ("checkouts", "flags", "gc.lock", "index", "locks", "tool", "users")
"""What the store has found out, and who uses it."""

_OURS = re.compile(r"[0-9a-f]{32}")
"""How the name of every wheel, pack, tree, venv and folder of tools begins."""

_CHEAP = "small notes"
_FOREIGN = "not of this tool"
_KNOWN = ("trees", "packs", "venvs", "tools", "wheels", "bases", "debs", "incoming", "tmp")


def measure(store: Path, refers: References, now: float, listener: Listener) -> tuple[Part, ...]:
    """The parts of the store at `store`, by name; changes nothing.

    When a part was last used is its time of last access, as the file system keeps it: `relatime` to a day, `noatime`
    not at all, and then the time it was made counts.

    Args:
        now: Seconds since 1970.

    Raises:
        OSError: The store cannot be read.
    """
    task = listener.start("gc", f"measure {store}")
    ruler = _Ruler()
    found: list[Part] = []
    try:
        for part in _parts(store, refers, now):
            size = sum(ruler.size(store / path, part.name) for path in part.paths)
            found.append(replace(part, size=size))
            task.advance(1)
    finally:
        task.finish()
    held = (replace(part, holders=frozenset(ruler.holders.get(part.name, ()))) for part in found)
    return tuple(sorted(held, key=lambda part: part.name))


@dataclass(slots=True)
class _Ruler:
    """Measures files, each inode once.

    Attributes:
        owners: Which part counts an inode that has several names.
        holders: Per part, which others hold some of its inodes.
    """

    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)

    def size(self, path: Path, name: str) -> int:
        """Bytes on the disk of `path` and all below it that no part measured before counts; 0 where it is gone."""
        total = 0
        for state in _states(path):
            if state.st_nlink > 1 and not stat.S_ISDIR(state.st_mode):
                owner = self.owners.setdefault((state.st_dev, state.st_ino), name)
                if owner != name:
                    self.holders.setdefault(owner, set()).add(name)
                    continue
            total += state.st_blocks * 512
        return total


def _states(path: Path) -> Iterator[os.stat_result]:
    with suppress(FileNotFoundError, NotADirectoryError):  # another process removed it meanwhile
        state = path.lstat()
        yield state
        if stat.S_ISDIR(state.st_mode):
            for below in _entries(path):
                yield from _states(below)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _parts(store: Path, refers: References, now: float) -> Iterator[Part]:
    """Every part, not yet measured; trees before what is linked from them, so that they count the bytes."""
    for path in _ours(store / "trees"):
        tree = path.with_name(path.name.removesuffix(".sum"))
        if path == tree:
            yield Part("trees", (f"trees/{path.name}", f"trees/{path.name}.sum"), 0, _used(path, f"../{path.name}.sum"))
        elif not tree.exists():
            yield Part("trees", (f"trees/{path.name}",), 0, _used(path))
    for path in _ours(store / "packs"):
        yield Part("packs", (f"packs/{path.name}",), 0, _used(path))
    for kind in ("venvs", "tools"):
        for path in _ours(store / kind):
            yield Part(kind, (f"{kind}/{path.name}",), 0, _used(path, MARKER))
    for path in _ours(store / "wheels"):
        why = "a lock, a result or the tool names it" if path.name in refers.wheels else ""
        yield Part("wheels", (f"wheels/{path.name}",), 0, _made(path), kept=why or _uncertain(refers))
    yield from _bases(store, refers, now)
    for path in _entries(store / "incoming"):
        last = max(_made(path), _made(path / "parts"))  # each part that comes leaves a note there
        why = "parts of an unfinished restore, not a month old" if now - last < MONTH else ""
        yield Part("incoming", (f"incoming/{path.name}",), 0, last, kept=why)
    for path in _entries(store / "tmp"):
        yield _scratch(f"tmp/{path.name}", path, now)
    for kind in ("trees", "packs", "venvs", "tools", "wheels"):
        foreign = set(_entries(store / kind)) - set(_ours(store / kind))
        for path in sorted(foreign):
            yield Part("other", (f"{kind}/{path.name}",), 0, 0.0, kept=_FOREIGN)
    for path in _entries(store):
        if path.name not in _KNOWN:
            noted = path.name in NOTES
            yield Part("notes" if noted else "other", (path.name,), 0, 0.0, kept=_CHEAP if noted else _FOREIGN)


def _ours(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if _OURS.match(path.name)]


def _bases(store: Path, refers: References, now: float) -> Iterator[Part]:
    """Bases from Debian packages, each with its list, and the packages that they were made of."""
    mine: dict[str, list[str]] = {}
    for path in _entries(store / "bases"):
        name = f"bases/{path.name}"
        if match := re.fullmatch(r"([0-9a-f]{64})\.(?:tar\.zst|packages)", path.name):
            mine.setdefault(match[1], []).append(name)
        elif path.suffix in (".json", ".lock"):
            yield Part("notes", (name,), 0, 0.0, kept=_CHEAP)
        else:
            yield _scratch(name, path, now)
    why = "it was chosen for a Python"
    for base, names in mine.items():
        last = max(_made(store / name) for name in names)
        # The archive first: without its list it would still be taken for whole.
        yield Part("bases", tuple(sorted(names, reverse=True)), 0, last, kept=why if base in refers.bases else "")
    for path in _entries(store / "debs"):
        yield Part("debs", (f"debs/{path.name}",), 0, _made(path), kept=why if path.name in refers.bases else "")


def _scratch(name: str, path: Path, now: float) -> Part:
    if path.name.endswith(".lock"):
        return Part("notes", (name,), 0, 0.0, kept=_CHEAP)
    begun = path.name.startswith(GONE)
    why = "" if begun or now - _made(path) > DAY else "unfinished, not a day old"
    return Part("scratch", (name,), 0, 0.0 if begun else _made(path), kept=why)


def _uncertain(refers: References) -> str:
    return "a result may need it whose lock no file names any more" if refers.unknown else ""


def _used(path: Path, mark: str = "") -> float:
    """When `path` was last used: its file `mark`, which every use reads, was read or made."""
    for place in (path / mark, path):
        with suppress(FileNotFoundError, NotADirectoryError):
            state = place.lstat()
            return max(state.st_atime, state.st_mtime)
    return 0.0


def _made(path: Path) -> float:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat().st_mtime
    return 0.0
