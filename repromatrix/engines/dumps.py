"""The compiler's dumps: the variables that ask for them, and their collection into the evidence.

Facts, measured with 0.4.30 to 0.10.2: all of these know the dump flags used here; a version that lacks one says
`Unknown flag in XLA_FLAGS: --xla_x=1` and aborts. `--xla_dump_hlo_pass_re=.*` dumps after passes that changed the
module only; which passes ran is said by the pass log alone. A folder with blanks may stand in quotes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PER_FILE = 64 << 20
"""Bytes of a dump file that is kept at most. Texts elide large constants, so that a larger one is hardly ever text; the
identity of 10 MB of text takes 2 s."""

MOST_FILES = 20_000
"""Files looked at. A large GPU module leaves about 600."""

LEVEL = 3
"""Of zstd, as for cores."""

_CHUNK = 1 << 20
_FLAGS = {
    "text": ("--xla_dump_hlo_as_text", "--xla_dump_hlo_as_proto", "--xla_dump_disable_metadata"),
    "passes": (
        *("--xla_dump_hlo_as_text", "--xla_dump_hlo_as_proto", "--xla_dump_disable_metadata"),
        "--xla_dump_hlo_pass_re=.*",
    ),
}
_DUMP_FLAG = re.compile(r"""(?:^|\s+)--xla_dump_\w+(?:=(?:"[^"]*"|'[^']*'|\S*))?(?=\s|$)""")
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_FIRST = re.compile(r"(?:before|after)_optimizations\.(?:txt|hlo\.pb(?:\.gz)?)$")
_PASS = re.compile(r"\.\d{4,}\.[^/]*\.(?:txt|hlo\.pb(?:\.gz)?)$")

Env = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A dump file in the evidence.

    Attributes:
        name: Relative to the dump folder, `/` between folders; stored as `<name>.zst`.
        size, stored: Bytes before and after compression.
    """

    name: str
    size: int
    stored: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of a dump folder: files kept, and (name, why) of those left out."""

    kept: tuple[Kept, ...]
    left_out: tuple[tuple[str, str], ...]


def flags(kind: str, folder: str, without: frozenset[str] = frozenset()) -> str:
    """Flags for XLA_FLAGS that dump into `folder`, as the script sees it.

    Args:
        kind: `text` (before and after optimisation) or `passes` (also after each pass that changed the module).
        without: Names of flags to leave out: those that `dropped` found.
    """
    quoted = f"'{folder}'" if re.search(r"\s", folder) else folder
    wanted = (f"--xla_dump_to={quoted}", *_FLAGS[kind])
    return " ".join(flag for flag in wanted if _name(flag) not in without)


def variables(kind: str, folder: str, env: Env, without: frozenset[str] = frozenset()) -> tuple[Env, tuple[str, ...]]:
    """`env` of an explain run: with the flags of `flags` after those of the script's own, and with the pass log on.

    Returns:
        The variables, and notes: an XLA_FLAGS that names a file (XLA reads one where the value does not begin with a
        dash) cannot be added to, so that such a run leaves no dumps, only the pass log.
    """
    values, notes = dict(env), []
    own = values.get("XLA_FLAGS", "").strip()
    if own and not own.startswith("-"):
        notes.append("no HLO: XLA_FLAGS names a file, dump flags cannot be added to it")
    else:
        # Its own dump flags would change what is dumped: a script that dumps does so in the plain run.
        theirs = _DUMP_FLAG.sub("", own).strip()
        values["XLA_FLAGS"] = f"{theirs} {flags(kind, folder, without)}".strip()
    levels = [one for one in values.get("TF_CPP_VMODULE", "").split(",") if one.strip()]
    levels = [one for one in levels if one.partition("=")[0].strip() != "hlo_pass_pipeline"]
    values["TF_CPP_VMODULE"] = ",".join([*levels, "hlo_pass_pipeline=1"])
    values["TF_CPP_MIN_LOG_LEVEL"] = "0"
    return tuple(values.items()), tuple(notes)


def dropped(stderr: str) -> frozenset[str]:
    """Names of our own dump flags that XLA says it does not know, for a run without them; empty where there is none."""
    ours = {_name(flag) for flag in ("--xla_dump_to", *_FLAGS["passes"])}
    named = (_name(flag) for match in _UNKNOWN.finditer(stderr) for flag in match[1].split())
    return frozenset(name for name in named if name in ours)


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


def collect(dump: Path, into: Path, *, cap: int) -> Collected:
    """Move the files of the dump folder into `into`, compressed, and free the folder.

    Modules before and after optimisation come first, then passes in their order, then the rest, each by name. The first
    file that would go over `cap` ends it, so that the passes that are kept have no holes. Links are not followed, and
    what is no regular file is left out: a script may have put anything there.

    Args:
        dump: Of an attempt that has ended; need not exist.
        into: Made where it is missing.
        cap: Bytes that the compressed files may have together.

    Returns:
        What was kept, and what was left out and why; a full disk is such a reason too. Nothing is raised for what the
        script left there.
    """
    if dump.is_symlink() or (dump.exists() and not dump.is_dir()):
        dump.unlink()
        return Collected((), ((dump.name, "it is no folder"),))
    kept: list[Kept] = []
    left_out: list[tuple[str, str]] = []
    try:
        names = sorted(_files(dump, left_out), key=_rank)
        left_out += [(name, f"only {MOST_FILES} files are looked at") for name in names[MOST_FILES:]]
        end = ""  # why no further file is kept
        for name in names[:MOST_FILES]:
            if not end:
                try:
                    kept.append(_store(dump, name, into, cap - sum(one.stored for one in kept)))
                    continue
                except _TooLarge as error:
                    left_out.append((name, str(error)))
                    continue
                except _Full:
                    end = f"over the {cap / 1e6:g} MB that all may have together"
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        left_out.append((name, error.strerror or str(error)))
                        continue
                    end = f"the disk is full: {error.strerror}"
            left_out.append((name, end))
    finally:
        shutil.rmtree(dump, ignore_errors=True)
    return Collected(tuple(kept), tuple((name, why) for name, why in left_out))


class _TooLarge(Exception):
    """This file is over what one may have."""


class _Full(Exception):
    """With this file all would be over what they may have together."""


def _files(dump: Path, left_out: list[tuple[str, str]]) -> Iterator[str]:
    """Names of the regular files in `dump`, relative to it; adds what is none to `left_out`."""
    folders = [""]
    while folders:
        inside = folders.pop()
        try:
            entries = sorted(os.scandir(dump / inside), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out.append((_readable(inside), error.strerror or str(error)))
            continue
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif _readable(name) != name:
                left_out.append((_readable(name), "its name is no text"))
            elif entry.is_file(follow_symlinks=False):
                yield name
            else:
                left_out.append((name, "it is a link" if entry.is_symlink() else "it is no regular file"))


def _readable(name: str) -> str:
    return "".join(one if one.isprintable() else f"\\x{ord(one) & 0xFF:02x}" for one in name)


def _rank(name: str) -> tuple[int, str]:
    return (0 if _FIRST.search(name) else 1 if _PASS.search(name) else 2, name)


def _store(dump: Path, name: str, into: Path, room: int) -> Kept:
    """Compress one file.

    Raises:
        _TooLarge, _Full: Over `PER_FILE`, or over `room` bytes compressed.
        OSError: It cannot be read or written.
    """
    from zstandard import ZstdCompressor

    target = into / f"{name}.zst"
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name[:200]}.part")
    descriptor = os.open(dump / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with os.fdopen(descriptor, "rb") as source, part.open("wb") as packed:
            size = os.fstat(descriptor).st_size
            if size > PER_FILE:
                raise _TooLarge(f"{size / 1e6:.0f} MB, over the {PER_FILE >> 20} MiB that one file may have")
            with ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(packed, closefd=False) as stream:
                while chunk := source.read(_CHUNK):
                    stream.write(chunk)
            stored = packed.tell()
        if stored > room:
            raise _Full
        part.rename(target)
        return Kept(name, size, stored)
    finally:
        part.unlink(missing_ok=True)
