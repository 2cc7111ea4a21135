"""Results and evidence that travel: written as rows, and taken in again where nothing is known yet.

A row is an object with one entry, `attempt` or `cell`, as the database of `store.py` keeps it. Rows are trusted no
more than the archive that brought them: each is read strictly, and its evidence has one place where it may lie.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repromatrix.errors import InfraError, UserError
from repromatrix.results.codec import attempt_from, cell_from
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.results.store import Results
from repromatrix.spec.model import Outcome

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Row = dict[str, Any]
T = TypeVar("T", AttemptResult, CellResult)

_KEY = re.compile(r"[0-9a-f]{64}")
_MOST = 1_000_000
"""Attempts that one key may claim to have."""


def export(state: Path, keys: Collection[str] | None = None) -> list[Row]:
    """What answers in the results of `state`: attempts with a verdict that count, and the cells that they are of.

    Args:
        state: Folder of the results; nothing in it is changed.
        keys: Of the results that are wanted; None = all.

    Returns:
        Sorted; the same results give the same rows.

    Raises:
        InfraError: The database cannot be read.
    """
    if not (state / "results.db").is_file():
        return []
    with Results(state) as results:  # of an earlier version: brought up to date
        cells = [cell for cell in results.latest_cells() if cell.key]
    attempts = _read(
        state,
        "SELECT key, number, body, context FROM attempts"
        " WHERE body IS NOT NULL AND superseded = 0 AND outcome != 'infra' ORDER BY key, number",
    )
    rows: list[Row] = []
    for key, number, body, context in attempts:
        if keys is None or key in keys:
            row = {"key": key, "number": number, "body": json.loads(body), "context": json.loads(context)}
            rows.append({"attempt": row})
    held = {row["attempt"]["key"] for row in rows}
    bodies = {(ident, engine): body for ident, engine, body in _read(state, "SELECT id, engine, body FROM cells")}
    known = [cell for cell in cells if cell.key in held and cell.outcome is not Outcome.INFRA]
    return [*rows, *({"cell": json.loads(bodies[cell.id, cell.engine])} for cell in known)]


def environments(state: Path) -> dict[str, str]:
    """The environment of every known cell by the key of its result.

    Raises:
        InfraError: The database cannot be read.
    """
    if not (state / "results.db").is_file():
        return {}
    with Results(state) as results:
        return {cell.key: cell.environment for cell in results.latest_cells() if cell.key}


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All rows of both, each thing once; where both know it, as `new` has it."""
    found: dict[tuple[str, ...], Row] = {}
    for row in (*old, *new):
        if "attempt" in row:
            found["attempt", row["attempt"]["key"], f"{row['attempt']['number']:09}"] = row
        else:
            found["cell", row["cell"]["id"], row["cell"]["engine"]] = row
    return [found[place] for place in sorted(found)]


def render(rows: Iterable[Row]) -> bytes:
    """Rows as text, one a line. Entries keep their order: that of axes and parameters is shown in reports."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parse(text: bytes, where: str = "") -> list[Row]:
    """The rows in a text that `render` wrote, read strictly.

    Raises:
        UserError: A line is no row; `where` and its number say which.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            _check(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"not a result: {error!r}", where=f"{where}:{number}", hint="ask for the archive again"
            ) from None
        rows.append(row)
    return rows


def evidence_of(row: Row) -> str:
    """Where the evidence of an attempt lies, below the folder of all evidence; empty for a cell."""
    if "attempt" not in row:
        return ""
    key, number = row["attempt"]["key"], row["attempt"]["number"]
    return f"{key[:2]}/{key}/{number}"


def take_in(state: Path, rows: Iterable[Row], evidence_folder: Path) -> int:
    """Add results to those of `state`; what is known there already stays as it is.

    A key is taken whole, or not at all where this checkout has attempts of its own under it. Evidence is moved first
    and put on record then, so that a killed call is finished by the next.

    Args:
        evidence_folder: Holds `<2 hex>/<key>/<number>/`; what is taken is moved out of it.

    Returns:
        How many attempts were added.

    Raises:
        UserError: A row is no result; or another run writes results of this checkout. Nothing was added.
        InfraError: The disk or the database failed; what was added stays, and the same call goes on.
    """
    rows = list(rows)
    for row in rows:
        try:
            _check(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a result: {error!r}", hint="ask for the archive again") from None
    brought: dict[str, dict[int, tuple[AttemptResult, Mapping[str, object]]]] = {}
    for row in rows:
        if "attempt" in row:
            found = row["attempt"]
            brought.setdefault(found["key"], {})[found["number"]] = (attempt_from(found["body"]), found["context"])
    added = 0
    with Results(state) as results, results.writing(wait=False):
        here = _attempts_of(state, brought)
        taken = set()
        for key, attempts in brought.items():
            known = here.get(key, {})
            # Some of them may be here, from a call that was killed; anything else under this key is this checkout's.
            if any(number not in attempts or body != attempts[number][0] for number, body in known.items()):
                continue
            taken.add(key)
            for number, (attempt, context) in attempts.items():
                if number not in known:
                    _move(evidence_folder / key[:2] / key / str(number), results.folder(key, number), state)
                    results.add(key, attempt, context)
                    added += 1
        present = {(cell.id, cell.engine) for cell in results.latest_cells()}
        cells = [cell_from(row["cell"]) for row in rows if "cell" in row]
        results.save_cells([cell for cell in cells if cell.key in taken and (cell.id, cell.engine) not in present])
    return added


def _move(source: Path, place: Path, state: Path) -> None:
    """Make the folder `source`, if there is one, the evidence at `place`."""
    try:
        if place.exists():
            # No attempt on record speaks of it: that of a killed call, or of a database that was moved away.
            aside = state / "unfinished" / f"{place.parent.name[:16]}-{place.name}-{uuid.uuid4().hex[:8]}"
            aside.parent.mkdir(exist_ok=True)
            place.rename(aside)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.move(source, place)
        else:
            place.mkdir()
    except OSError as error:
        raise InfraError(f"cannot keep the evidence: {error.strerror}", where=str(place), hint="free space") from error


def _attempts_of(state: Path, keys: Collection[str]) -> dict[str, dict[int, AttemptResult | None]]:
    """Every attempt on record under these keys, superseded or not; None for one that is under way."""
    found: dict[str, dict[int, AttemptResult | None]] = {}
    for key, number, body in _read(state, "SELECT key, number, body FROM attempts"):
        if key in keys:
            found.setdefault(key, {})[number] = attempt_from(json.loads(body)) if body is not None else None
    return found


def _read(state: Path, query: str) -> Iterator[tuple[Any, ...]]:
    path = state / "results.db"
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            yield from database.execute(query)
        finally:
            database.close()
    except sqlite3.DatabaseError as error:
        raise InfraError(f"the results cannot be read: {error}", where=str(path)) from error


def _check(row: Row) -> None:
    """Refuse what is no row, or what speaks of evidence elsewhere.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It is none.
    """
    (kind,) = row
    if kind == "cell":
        cell = _typed(cell_from(row["cell"]))
        if not _KEY.fullmatch(cell.key):
            raise ValueError(f"key {cell.key!r}")
        _inside(cell.evidence, f".repromatrix/evidence/{cell.key[:2]}/{cell.key}")
        for attempt in cell.attempts:
            _check_attempt(attempt, cell.key)
        return
    if kind != "attempt":
        raise ValueError(f"{kind!r} is neither an attempt nor a cell")
    found = row["attempt"]
    if set(found) != {"key", "number", "body", "context"} or not isinstance(found["context"], dict):
        raise ValueError(f"fields {sorted(found)}")
    key, number, attempt = found["key"], found["number"], _typed(attempt_from(found["body"]))
    if not _KEY.fullmatch(key):
        raise ValueError(f"key {key!r}")
    if type(number) is not int or number != attempt.number:
        raise ValueError(f"number {number!r} of attempt {attempt.number!r}")
    _check_attempt(attempt, key)


def _typed(found: T) -> T:
    """`found` if every field of the dataclass, however deep, has its type: reports would fail later.

    Raises:
        ValueError: One has another.
    """
    adapter, fields = _adapter(isinstance(found, CellResult)), asdict(found)
    if adapter.validate_python(fields) != found:  # `"1"` was taken for a number
        raise ValueError("a field has another type")
    return found


@cache
def _adapter(cell: bool) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(CellResult if cell else AttemptResult)


def _check_attempt(attempt: AttemptResult, key: str) -> None:
    if type(attempt.number) is not int or not 0 < attempt.number <= _MOST:
        raise ValueError(f"number {attempt.number!r}")
    _inside(attempt.evidence, f".repromatrix/evidence/{key[:2]}/{key}/{attempt.number}")
    for _, path in attempt.files:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"file {path!r}")


def _inside(evidence: str, place: str) -> None:
    if evidence not in ("", place):
        raise ValueError(f"evidence {evidence!r} lies elsewhere than {place!r}")
