"""The HLO evidence in an attempt's folder: `hlo.json` and the dumps in `hlo/`, written once, read with care."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
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

CAP = 64 << 20
"""Bytes that the compressed dumps of an attempt may have together."""

MOST_TEXT = 128 << 20
"""Characters of optimised modules in which a witness is looked for."""

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
    whole = hlo.whole and bool(told.modules) and not missing
    last = told.last if failed else None
    write_hlo(folder, replace(hlo, modules=told.modules, ran=told.ran, last=last, notes=tuple(notes), whole=whole))


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
    return dump is None or (dump.kind in ("before", "after", "pass") and not dump.proto and level == "passes")


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


def compiled(folder: Path, hlo: Hlo, *, texts: bool) -> Compiled:
    """What a witness is looked for in.

    Args:
        texts: Read the optimised modules too.
    """
    optimised: list[str] = []
    unread = 0
    room = MOST_TEXT
    for name in (file for module in hlo.modules for file in module.files) if texts else ():
        dump = parse_name(name)
        if dump is None or dump.kind != "after" or dump.proto:
            continue
        text = _readable(folder, name) if room > 0 else None
        if text is None or len(text) > room:
            unread += 1
        else:
            optimised.append(text)
            room -= len(text)
    return Compiled(tuple(optimised), unread, _ran(hlo), "; ".join(hlo.notes))


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
