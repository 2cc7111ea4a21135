"""The HLO evidence in an attempt's folder: `hlo.json` and the dumps in `hlo/`, written once, read with care."""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from repromatrix.engines.attempt import make_way, own_bytes
from repromatrix.engines.dumps import Collected, collect
from repromatrix.envs.disk import write_text
from repromatrix.evidence.hlo import Hlo, describe, parse_name
from repromatrix.evidence.passes import Step, pass_log
from repromatrix.evidence.witness import Compiled
from repromatrix.results.model import HloFacts, HloModule

HLO = "hlo.json"
FOLDER = "hlo"
DUMP = "dump"
"""Folder beside `work/` that a run dumps into."""

OTHERWISE = ("the second run ended otherwise", "the second run failed otherwise")
"""How the note begins that says that the run which dumped did not end as the attempt did."""

CAP = 64 << 20
"""Bytes that the compressed dumps of an attempt may have together."""

MOST_TEXT = 128 << 20
"""Characters of optimised modules in which a witness is looked for."""

_OURS = re.compile(r"p?(?:jit|map)_(?!.*-clone)")
"""Names of JAX's modules. XLA compiles more of its own inside a pass (`jit_f-clone`), and dumps none of them."""

_INDEX_SIZE = 32 << 20


def keep_hlo(folder: Path, run: Path, stderr: str, hlo: Hlo, *, failed: bool) -> None:
    """Collect what a run dumped, and write `hlo.json`.

    Args:
        folder: Of the attempt.
        run: Folder of the run that dumped: the attempt's, or that of its second run.
        stderr: Its stderr, with the log of passes.
        hlo: What is known before: level, source, notes, and whether that run is as good as the first.
        failed: Whether that run failed: then the last pass that began is worth telling.

    Raises:
        InfraError: The disk is full.
    """
    make_way(folder / FOLDER)
    found = collect(run / DUMP, folder / FOLDER, cap=CAP)
    log = pass_log(stderr)
    notes = [*hlo.notes, *_left_out(found)]
    if log.cut:
        notes.append("the log of passes is cut: it is longer than what is kept of stderr")
    told = describe((one.name for one in found.kept), lambda name: hlo_text(folder, name), log, ())
    if not told.modules and not any("no HLO" in note for note in notes):
        unseen = "passes ran, but nothing was dumped where it was asked for: does the script set XLA_FLAGS itself?"
        notes.append(unseen if told.ran else "no module was compiled")
    missing = any(_matters(name, hlo.level) for name, _ in found.left_out)
    lost = list(undumped(told, hlo.level)) if told.modules else []
    notes += lost
    whole = hlo.whole and bool(told.modules) and not (missing or lost or log.cut)
    last = told.last if failed else None
    write_hlo(folder, replace(hlo, modules=told.modules, ran=told.ran, last=last, notes=tuple(notes), whole=whole))


def undumped(told: Hlo, level: str) -> Iterator[str]:
    """Notes on what the log of passes tells of and the dumps do not.

    The script may have left its folder, to which the dump folder is relative, or filter dumps by flags of its own.
    """
    if not told.ran:
        yield "no log of passes was seen, so that it is not known whether every module was dumped"
        return
    ran = Counter(_plain(one.module) for one in told.ran if _OURS.match(one.module))
    dumped = Counter(_plain(one.name) for one in told.modules)
    if lost := list(ran - dumped):
        more = f" and {len(lost) - 1} more" if lost[1:] else ""
        yield f"passes ran on {lost[0]}{more} without dumps: does the script change its folder, or set dump flags?"
    bare = [one.name for one in told.modules if not one.changes]
    if level == "passes" and bare and not lost:
        yield f"no pass of {bare[0]} was dumped: does the script set --xla_dump_hlo_pass_re?"


def _plain(name: str) -> str:
    """`jit_f` of `jit_f#2`."""
    return name.partition("#")[0]


def write_hlo(folder: Path, hlo: Hlo) -> None:
    """Write `hlo.json`, whatever a script put there.

    Raises:
        InfraError: The disk is full.
    """
    make_way(folder / HLO)
    write_text(folder / HLO, hlo.to_json())


def _left_out(found: Collected) -> Iterator[str]:
    """A note for each reason for which files were left out."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in found.left_out:
        by_reason[why].append(name)
    for why, names in by_reason.items():
        yield f"dumps left out: {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "") + f": {why}"


def _matters(name: str, level: str) -> bool:
    dump = parse_name(name)
    kinds = ("before", "after", "pass") if level == "passes" else ("before", "after")
    return dump is None or (dump.kind in kinds and not dump.proto)


def read_hlo(folder: Path) -> Hlo | None:
    """What `hlo.json` says; None where none was written."""
    try:
        return Hlo.from_json(own_bytes(folder, HLO, _INDEX_SIZE).decode("utf-8", "replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return Hlo(notes=(f"no HLO: {HLO} cannot be read: {error}"[:500],), whole=False)


def hlo_text(folder: Path, name: str, limit: int = -1) -> str:
    """Text of the dump file `name` that is kept of the attempt in `folder`; undecodable bytes as U+FFFD.

    Args:
        limit: Bytes read at most, -1 = all.

    Raises:
        OSError: There is none, or it cannot be read.
        zstandard.ZstdError: It is no such file.
    """
    from zstandard import ZstdDecompressor

    packed = own_bytes(folder, f"{FOLDER}/{name}.zst")
    with ZstdDecompressor().stream_reader(io.BytesIO(packed)) as stream:
        return stream.read(limit).decode("utf-8", "replace")


def hlo_facts(hlo: Hlo) -> HloFacts:
    """What results keep of `hlo.json`."""
    modules = tuple(
        HloModule(one.name, one.before, one.after, _changed(one.changed_by), one.size) for one in hlo.modules
    )
    last = hlo.last.name if hlo.last is not None else ""
    return HloFacts(hlo.level, hlo.source, modules, _ran(hlo), last, hlo.notes, hlo.whole)


def compiled(folder: Path, hlo: Hlo, *, texts: bool, read: Callable[[Path, str], str | None] | None = None) -> Compiled:
    """What a witness is looked for in.

    Args:
        texts: Read the optimised modules too.
        read: Gives the text of a dump, None where it cannot be read; without it, from the evidence.
    """
    read = read or _readable
    if other := next((note for note in hlo.notes if note.startswith(OTHERWISE)), ""):
        return Compiled(trouble=other)  # what that run compiled says nothing of the first, whose verdict this is
    optimised: list[str] = []
    unread = 0
    room = MOST_TEXT
    for name in (file for module in hlo.modules for file in module.files) if texts else ():
        dump = parse_name(name)
        if dump is None or dump.kind != "after" or dump.proto:
            continue
        text = read(folder, name) if room > 0 else None
        if text is None or len(text) > room:
            unread += 1
        else:
            optimised.append(_nameless(text))
            room -= len(text)
    return Compiled(tuple(optimised), unread, _ran(hlo), "; ".join(hlo.notes))


_NAMES = re.compile(
    r"(?m)^HloModule [^\s,]+|^(\s*(?:ROOT )?)%?[\w.\-]+ = |^(?:ENTRY )?%?[\w.\-]+ \(.*\{$|%[\w.\-]+"
    r"|, metadata=\{[^}]*\}"
)


def _nameless(text: str) -> str:
    """A module without the names that the program gave: a function called `while_loop` is no `while`."""
    return _NAMES.sub(lambda match: match[1] or "", text)


def _readable(folder: Path, name: str) -> str | None:
    from zstandard import ZstdError

    try:
        return hlo_text(folder, name)
    except (OSError, ZstdError):  # deleted by hand: it counts as not read
        return None


def _changed(changed_by: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.partition(": ")[2] for one in changed_by))


def _ran(hlo: Hlo) -> tuple[str, ...]:
    """Names of the passes, also of pipelines that are passes of others; each once."""
    return tuple(dict.fromkeys(name for one in hlo.ran for pipeline in one.pipelines for name in _inner(pipeline)))


def _inner(step: Step) -> Iterator[str]:
    for one in step.inner:
        yield one.name
        yield from _inner(one)
