"""An attempt's evidence, graded: what lies in its folder, read with care, and what it means."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repromatrix.collected import HLO, compiled, hlo_facts, read_hlo
from repromatrix.engines.attempt import make_way, own_bytes, read_raw
from repromatrix.engines.base import Raw
from repromatrix.envs.disk import write_text
from repromatrix.evidence.hlo import Hlo
from repromatrix.evidence.probe import FILE as PROBED
from repromatrix.evidence.stacks import INDEX, Stacks
from repromatrix.evidence.witness import Compiled
from repromatrix.project import Project
from repromatrix.results.model import AttemptResult
from repromatrix.spec.model import Cell, SignatureRule

HOST = "host.json"
"""What the supervisor cannot know, beside its result.json: the engine's notes, what became of the GPUs."""

EXPLAIN = "explain"
"""Folder, within an attempt's, of the second run that collects the HLO."""

INDEX_SIZE = 4 << 20
TEXT_SIZE = 1 << 20
TEXTS = 16
"""Stacks read of one attempt, and bytes of each: those of JAX with 300 threads have 200 kB."""


def record(folder: Path, raw: Raw) -> None:
    """Put what the host found on record beside result.json, so that `recall` gives `raw` again.

    Raises:
        InfraError: The disk is full.
    """
    make_way(folder / HOST)
    found: dict[str, object] = {"schema": 1, "notes": list(raw.notes), "device_memory": raw.device_memory}
    if raw.gpus_idle:
        found["gpus_idle"] = True
    if raw.infra:
        found["infra"] = raw.infra
    write_text(folder / HOST, json.dumps(found, indent=1) + "\n")


def recall(folder: Path) -> Raw:
    """How a kept attempt ended; evidence of earlier versions has no word of the host."""
    raw = read_raw(folder)
    try:
        found = json.loads(own_bytes(folder, HOST, INDEX_SIZE))
        return replace(
            raw,
            notes=tuple(map(str, found["notes"])),
            device_memory=int(found["device_memory"]),
            gpus_idle=bool(found.get("gpus_idle")),
            infra=str(found.get("infra", raw.infra)),
        )
    except FileNotFoundError:
        return raw
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Raw(infra=f"{HOST} cannot be read: {error!r}")


def grade_attempt(
    cell: Cell, rules: Sequence[SignatureRule], number: int, folder: Path, raw: Raw, project: Project
) -> AttemptResult:
    """What one attempt means, from the supervisor's record, the logs, the stacks and the HLO in `folder`.

    Raises:
        UserError: A signature rule of the project is wrong.
    """
    from repromatrix.evidence.outcome import GradeContext
    from repromatrix.evidence.passes import without_log
    from repromatrix.evidence.ranks import grade_all
    from repromatrix.evidence.stacks import frames_for, parse_index

    index = _text(folder, INDEX, INDEX_SIZE)
    stacks = parse_index(index) if index else Stacks()
    texts = _texts(folder, stacks)
    ends = raw.ranks or (raw,)
    # Evidence of earlier versions has logs of ranks, but not how each ended: then they are read as one.
    suffixes = [[f".{end.rank}"] for end in raw.ranks] or [_suffixes(cell.repro.processes)]
    logs = [(_log(folder, "stdout", of), _log(folder, "stderr", of)) for of in suffixes]
    if cell.described is not None or folder.name == EXPLAIN:  # it logged its passes: no part of what the script said
        logs = [(stdout, without_log(stderr)) for stdout, stderr in logs]
    hlo = read_hlo(folder)
    context = replace(GradeContext.of(cell, tuple(rules)), compiled=_compiled(cell, folder, hlo))
    frames = [frames_for(stacks, texts, end.pid) for end in ends]
    found, ranks = grade_all(raw, logs, context, frames)
    troubles = (f"stacks of process {s.pid}: {s.trouble}" for s in stacks.stacks if s.trouble and s.rank is not None)
    return AttemptResult(
        number=number,
        outcome=found.outcome,
        exit_status=found.exit_status,
        signal=found.signal,
        signature=found.signature,
        reason=found.reason,
        seconds=raw.seconds,
        started=raw.started,
        evidence=str(folder.relative_to(project.root)),
        metrics=found.metrics,
        peak_memory=raw.peak_memory,
        notes=(*raw.notes, *stacks.notes, *troubles, *_unread(folder, suffixes), *found.notes),
        device_memory=raw.device_memory,
        files=tuple(_files(folder, stacks, cell.repro.processes)),
        ranks=ranks.ranks,
        hlo=hlo_facts(hlo) if hlo is not None else None,
    )


def _compiled(cell: Cell, folder: Path, own: Hlo | None) -> Compiled | None:
    """What the witness of `cell` is looked for in: of several attempts of a cell one alone may have collected it."""
    witness = cell.repro.witness
    if witness is None or not (witness.hlo or witness.passes):
        return None
    place, hlo = folder, own
    if hlo is None:
        numbers = sorted(int(one.name) for one in folder.parent.glob("*") if one.name.isdigit())
        found = [(one, hlo) for n in numbers if (hlo := read_hlo(one := folder.parent / str(n))) is not None]
        if not found:
            return None
        place, hlo = next((pair for pair in found if pair[1].modules), found[0])
    return compiled(place, hlo, texts=bool(witness.hlo))


def _suffixes(processes: int) -> list[str]:
    """Of the logs: several ranks write `stdout.0`, `stdout.1`..."""
    return [""] if processes == 1 else [f".{rank}" for rank in range(processes)]


def _log(folder: Path, name: str, suffixes: Sequence[str]) -> str:
    return "".join(_text(folder, name + suffix) for suffix in suffixes)


def _unread(folder: Path, suffixes: Sequence[Sequence[str]]) -> Iterator[str]:
    """A note for each log that counts as empty, though something lies there."""
    for name in (name + suffix for of in suffixes for suffix in of for name in ("stdout", "stderr")):
        if os.path.lexists(folder / name) and _own(folder, name, 0) is None:
            yield f"{name} is no file that can be read: it counts as empty"


def _texts(folder: Path, stacks: Stacks) -> Mapping[str, str]:
    """The texts of the stacks by their file, those of ranks before those of their children."""
    files = [stack.file for stack in sorted(stacks.stacks, key=lambda stack: stack.rank is None) if stack.file]
    return {file: _text(folder, file, TEXT_SIZE) for file in files[:TEXTS]}


def _files(folder: Path, stacks: Stacks, processes: int) -> Iterator[tuple[str, str]]:
    """(label, path) of what is there."""
    logs = [(name, suffix) for suffix in _suffixes(processes) for name in ("stdout", "stderr")]
    named = [(f"{name} of rank {suffix[1:]}" if suffix else name, name + suffix) for name, suffix in logs]
    named += [(f"stacks of {stack.pid} {_short(stack.command)}".strip(), stack.file) for stack in stacks.stacks]
    for core in stacks.cores:
        label = f"core of {core.pid} {core.signal}".strip()
        named += [(label, f"{core.file}.zst"), (label, core.file)] if core.file else []
    named += [("threads", "threads"), ("HLO", HLO), ("probe", f"work/{PROBED}")]
    named += [(f"{label} of the second run", f"{EXPLAIN}/{path}") for label, path in named[: len(logs)]]
    yield from ((label, path) for label, path in named if path and _own(folder, path, 0) is not None)


def _short(command: str) -> str:
    """Without the folder of the program: that of a venv's interpreter is longer than all the rest. Empty where it was
    cut within that: a core holds 79 characters."""
    program, space, arguments = command.partition(" ")
    if not space and len(command) >= 79:
        return ""
    return f"{program.rpartition('/')[2]}{space}{arguments}"[:80]


def _text(folder: Path, name: str, limit: int = -1) -> str:
    """A file's text, undecodable bytes as U+FFFD; empty where there is none."""
    return (_own(folder, name, limit) or b"").decode("utf-8", "replace")


def _own(folder: Path, name: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a file that the supervisor made; a script may have put a link or a folder there."""
    try:
        return own_bytes(folder, name, limit)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO, errno.EACCES):
            raise
        return None
