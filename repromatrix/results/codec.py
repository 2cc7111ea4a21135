"""Cells and attempts as JSON objects and back: the form of the database and of `--json`."""

from __future__ import annotations

import math
from typing import Any

from repromatrix.evidence.model import Signature
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.spec.model import Outcome, Scalar


def finite(value: Scalar) -> Scalar:
    """`value`, with the floats that JSON cannot write (a loss of NaN is a common metric) as `nan`, `inf`, `-inf`."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def signature_object(signature: Signature | None) -> dict[str, Any] | None:
    """A signature as `--json` has it."""
    if signature is None:
        return None
    return {"title": signature.title, "alternatives": list(signature.alternatives), "version": signature.version}


def attempt_object(attempt: AttemptResult) -> dict[str, Any]:
    """An attempt as `--json` has it; metrics stay pairs, since a script may print one name several times."""
    return {
        "number": attempt.number,
        "outcome": attempt.outcome.value,
        "exit_status": attempt.exit_status,
        "signal": attempt.signal,
        "signature": signature_object(attempt.signature),
        "reason": attempt.reason,
        "seconds": attempt.seconds,
        "started": attempt.started,
        "evidence": attempt.evidence,
        "metrics": [[name, finite(value)] for name, value in attempt.metrics],
        "peak_memory": attempt.peak_memory,
        "notes": list(attempt.notes),
    }


def cell_object(cell: CellResult) -> dict[str, Any]:
    """A cell as `--json` has it."""
    return {
        "id": cell.id,
        "key": cell.key,
        "repro": cell.repro,
        "environment": cell.environment,
        "axes": dict(cell.axes),
        "target": cell.target,
        "params": {name: finite(value) for name, value in cell.params},
        "engine": cell.engine,
        "base": cell.base,
        "identity": cell.identity,
        "outcome": cell.outcome.value,
        "exit_status": cell.exit_status,
        "signal": cell.signal,
        "signature": signature_object(cell.signature),
        "expected": cell.expected,
        "as_expected": cell.as_expected,
        "reason": cell.reason,
        "seconds": cell.seconds,
        "attempts": [attempt_object(attempt) for attempt in cell.attempts],
        "evidence": cell.evidence,
        "command": cell.command,
        "facts": dict(cell.facts),
        "script": cell.script,
    }


def signature_from(stored: dict[str, Any] | None) -> Signature | None:
    """The inverse of `signature_object`."""
    if stored is None:
        return None
    return Signature(stored["title"], tuple(stored["alternatives"]), stored["version"])


def attempt_from(stored: dict[str, Any]) -> AttemptResult:
    """The inverse of `attempt_object`."""
    return AttemptResult(
        number=stored["number"],
        outcome=Outcome(stored["outcome"]),
        exit_status=stored["exit_status"],
        signal=stored["signal"],
        signature=signature_from(stored["signature"]),
        reason=stored["reason"],
        seconds=stored["seconds"],
        started=stored["started"],
        evidence=stored["evidence"],
        metrics=tuple((name, float(value)) for name, value in stored["metrics"]),
        peak_memory=stored["peak_memory"],
        notes=tuple(stored["notes"]),
    )


def cell_from(stored: dict[str, Any]) -> CellResult:
    """The inverse of `cell_object`, but for parameters that are not finite: these come back as text."""
    return CellResult(
        id=stored["id"],
        key=stored["key"],
        repro=stored["repro"],
        environment=stored["environment"],
        axes=tuple(stored["axes"].items()),
        target=stored["target"],
        params=tuple(stored["params"].items()),
        engine=stored["engine"],
        base=stored["base"],
        identity=stored["identity"],
        outcome=Outcome(stored["outcome"]),
        exit_status=stored["exit_status"],
        signal=stored["signal"],
        signature=signature_from(stored["signature"]),
        expected=stored["expected"],
        as_expected=stored["as_expected"],
        reason=stored["reason"],
        seconds=stored["seconds"],
        attempts=tuple(attempt_from(attempt) for attempt in stored["attempts"]),
        evidence=stored["evidence"],
        command=stored["command"],
        facts=tuple(stored["facts"].items()),
        script=stored["script"],
    )
