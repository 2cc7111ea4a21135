"""The `--json` document, and the exit code that goes with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repromatrix.errors import InfraError, UserError
from repromatrix.files import write_atomically
from repromatrix.output import say
from repromatrix.report.compared import cell_hlo
from repromatrix.report.layout import contradicts
from repromatrix.results.codec import cell_object
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.spec.model import Outcome

SCHEMA = 1


def document(cells: Sequence[CellResult], run: RunInfo) -> dict[str, Any]:
    """All that is known of `cells`, as one JSON object."""
    info = {
        "command": run.command,
        "started": run.started,
        "seconds": run.seconds,
        "tool_version": run.tool_version,
        "engine": run.engine,
        "isolation": run.isolation,
        "attempted": run.attempted,
        "reused": run.reused,
        "facts": dict(run.facts),
        "warnings": list(run.warnings),
    }
    compared = zip(cells, cell_hlo(cells), strict=True)
    return {"schema": SCHEMA, "run": info, "cells": [{**cell_object(cell), "hlo": hlo} for cell, hlo in compared]}


def check_path(path: Path | str) -> None:
    """Refuse a path that `write_json` cannot write to, before hours of work go by.

    Raises:
        UserError: It is a folder, or its folder is not there or may not be written to.
    """
    target = Path(path)
    if str(path) == "-" or (target.exists() and not target.is_dir()):
        return
    why = ""
    if target.is_dir():
        why = "it is a folder"
    elif not target.parent.is_dir():
        why = "there is no such folder"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        why = "its folder may not be written to"
    if why:
        raise UserError(f"cannot write the document: {why}", where=str(target), hint="give another path")


def write_json(path: Path | str, doc: Mapping[str, Any]) -> None:
    """Write `doc` to `path` as a whole or not at all; `-` is standard output.

    Raises:
        UserError: There is no such folder, or it may not be written to.
        InfraError: The disk failed or is full.
        ValueError: `doc` holds a number that JSON does not know.
    """
    # ASCII, since text from a script may hold half characters, which no encoding takes.
    text = json.dumps(doc, indent=2, allow_nan=False) + "\n"
    if str(path) == "-":
        say(text.rstrip("\n"))
        return
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a pipe, /dev/stdout; a folder fails by itself
            target.write_text(text, encoding="utf-8")
        else:
            write_atomically(target, text)
    except OSError as error:
        wrong_path = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError)
        raise (UserError if wrong_path else InfraError)(
            f"cannot write the document: {error.strerror}",
            where=str(target),
            hint="the results are kept: `uv run invoke report --json PATH` writes it again",
        ) from error


def exit_code(cells: Sequence[CellResult]) -> int:
    """1 if a cell contradicts its claim or, with nothing claimed, failed; else 3 if one is infra or none ran; else 0.

    1 before 3: a broken machine elsewhere must not hide a contradiction that was found. Where nothing ran at all, 0
    would be taken for a verdict.
    """
    if any(contradicts(cell) for cell in cells):
        return 1
    idle = bool(cells) and all(not cell.attempts and cell.as_expected is None for cell in cells)
    return 3 if idle or any(cell.outcome is Outcome.INFRA for cell in cells) else 0
