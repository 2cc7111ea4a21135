"""The explain run: a second run of an attempt that dumps its HLO, so that dumping never changes the first verdict.

A deviceless cell is compiled and not run, so there the first run dumps.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from repromatrix.attempts import lay_out
from repromatrix.collected import DUMP, keep_hlo, write_hlo
from repromatrix.engines.attempt import make_way, own_bytes
from repromatrix.engines.base import Attempt, Engine, Prepared, Raw
from repromatrix.engines.dumps import dropped, variables
from repromatrix.errors import ReproError
from repromatrix.evidence.hlo import Hlo
from repromatrix.graded import EXPLAIN, grade_attempt
from repromatrix.project import Project
from repromatrix.results.model import AttemptResult
from repromatrix.spec.model import Cell, Outcome, SignatureRule

_SEEN_FROM_WORK = f"../{DUMP}"
"""The same in every engine; both start the script in `work/`."""

_TOO_EARLY = ("py-exc ImportError", "py-exc ModuleNotFoundError", "py-exc SyntaxError", "flag ", "setup ")
"""How the titles begin of failures of the environment or of the script, before anything is compiled."""


def dumps(cell: Cell) -> bool:
    """Whether the first run of `cell` dumps."""
    return cell.described is not None and cell.hlo != "off"


def due(cell: Cell, found: AttemptResult) -> bool:
    """Whether an attempt of `cell` that ended as `found` says is to be explained by a second run."""
    if cell.described is not None or cell.hlo == "off":
        return False
    if cell.hlo != "failures":
        return found.outcome not in (Outcome.SKIP, Outcome.INFRA)
    if found.outcome not in (Outcome.ERROR, Outcome.CRASH, Outcome.OOM):
        return False  # a hang would take the whole deadline once more
    return found.signature is None or not found.signature.title.startswith(_TOO_EARLY)


def run_dumping(
    engine: Engine, prepared: Prepared, attempt: Attempt, cell: Cell, cancel: threading.Event
) -> tuple[Raw, Hlo]:
    """Run `attempt` with the variables that dump; returns how it ended, and what is known of its HLO so far.

    A flag for dumping that this version does not know is left out and told, and the attempt runs once more.

    Raises:
        InfraError: The engine is gone.
    """
    level = "text" if cell.hlo == "text" else "passes"
    without: frozenset[str] = frozenset()
    while True:
        env, notes = variables(level, _SEEN_FROM_WORK, attempt.env, without)
        raw = engine.run(prepared, replace(attempt, env=env), cancel)
        unknown = dropped(stderr_of(attempt.folder, raw)) - without
        if raw.infra or raw.exit_status == 0 or not unknown:
            break
        without |= unknown
        shutil.rmtree(attempt.folder / DUMP, ignore_errors=True)
    if without:
        notes += (f"this version does not know {', '.join(f'--{name}' for name in sorted(without))}",)
    if cell.repro.processes > 1:
        notes += ("all ranks dumped into one folder: a dump may be any rank's",)
    return raw, Hlo(notes=notes, level=level, whole=not notes)


def keep_own(folder: Path, raw: Raw, found: AttemptResult, hlo: Hlo) -> None:
    """Collect the HLO of an attempt that dumped itself.

    Raises:
        InfraError: The disk is full.
    """
    keep_hlo(folder, folder, stderr_of(folder, raw), hlo, failed=found.outcome.failed)


def explain(
    cell: Cell,
    rules: Sequence[SignatureRule],
    first: AttemptResult,
    attempt: Attempt,
    engine: Engine,
    prepared: Prepared,
    project: Project,
    cancel: threading.Event,
) -> bool:
    """Run `attempt`, which ended as `first` says, once more with dumps, in its subfolder `explain/`.

    Trouble of this run is a note in `hlo.json`; the verdict stays that of the first.

    Returns:
        Whether it came to an end: False where it was cancelled.

    Raises:
        InfraError: The disk is full.
    """
    folder, inner = attempt.folder, attempt.folder / EXPLAIN
    make_way(inner)
    hlo = Hlo()
    try:
        ident, devices = f"{attempt.id}-explain", attempt.devices
        again = lay_out(cell, ident, inner, devices, cores="off", tools=None, cuda=attempt.cuda)
        raw, hlo = run_dumping(engine, prepared, again, cell, cancel)
    except ReproError as error:
        raw = Raw(infra=error.line)
    if cancel.is_set() and raw.infra:
        return False
    hlo = replace(hlo, source="explain")
    if raw.infra:
        shutil.rmtree(inner / DUMP, ignore_errors=True)
        write_hlo(folder, replace(hlo, notes=(*hlo.notes, f"no HLO: the second run failed: {raw.infra}"), whole=False))
        return True
    second = grade_attempt(cell, rules, first.number, inner, raw, project)
    if difference := _difference(first, second):
        hlo = replace(hlo, notes=(*hlo.notes, difference), whole=False)
    keep_hlo(folder, inner, stderr_of(inner, raw), hlo, failed=second.outcome.failed)
    return True


def _difference(first: AttemptResult, second: AttemptResult) -> str:
    """How the second run ended otherwise than the first, in words; empty where it did not.

    Stacks are not read of the second run, so that titles of a crash may differ for that alone.
    """
    ends = [(one.outcome, one.exit_status, one.signal) for one in (first, second)]
    if ends[0] != ends[1]:
        words = [f"{outcome.value} ({signal or f'status {status}'})" for outcome, status, signal in ends]
        return f"the second run ended otherwise: {words[1]}, the first: {words[0]}"
    mine, other = first.signature, second.signature
    if first.outcome is Outcome.ERROR and mine and other and not set(mine.titles) & set(other.titles):
        return f'the second run failed otherwise: "{other.title}", the first: "{mine.title}"'
    return ""


def stderr_of(folder: Path, raw: Raw) -> str:
    """What a run wrote on stderr; of several ranks that of the first to fail, or of rank 0."""
    rank = next((end.rank for end in raw.ranks if end.pid == raw.pid), 0)
    try:
        return own_bytes(folder, f"stderr.{rank}" if raw.ranks else "stderr").decode("utf-8", "replace")
    except OSError:  # none was written, or the script put something else there
        return ""
