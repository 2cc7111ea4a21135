"""Cells and attempts as JSON objects and back: the form of the database and of `--json`."""

from __future__ import annotations

import math
from typing import Any

from repromatrix.evidence.model import RankResult, Signature
from repromatrix.results.combine import rates
from repromatrix.results.model import AttemptResult, CellResult, HloFacts, HloModule
from repromatrix.results.rates import Rate
from repromatrix.spec.model import Outcome, Scalar


def finite(value: Scalar) -> Scalar:
    """`value`, with the floats that JSON cannot write (a loss of NaN is a common metric) as `nan`, `inf`, `-inf`."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def signature_object(signature: Signature | None) -> dict[str, Any] | None:
    """A signature as `--json` has it."""
    if signature is None:
        return None
    return {"title": signature.title, "alternatives": list(signature.alternatives), "version": signature.version}


def rank_object(rank: RankResult) -> dict[str, Any]:
    """A rank as `--json` has it."""
    return {
        "rank": rank.rank,
        "outcome": rank.outcome.value,
        "exit_status": rank.exit_status,
        "signal": rank.signal,
        "signature": signature_object(rank.signature),
        "seconds": rank.seconds,
        "role": rank.role,
    }


def rate_object(rate: Rate) -> dict[str, Any]:
    """A rate as `--json` has it; the ends of the interval to four digits."""
    return {
        "outcome": rate.outcome.value,
        "title": rate.title,
        "count": rate.count,
        "of": rate.of,
        "low": round(rate.low, 4),
        "high": round(rate.high, 4),
    }


def hlo_object(hlo: HloFacts | None) -> dict[str, Any] | None:
    """What is known of the compiler's work, as `--json` has it."""
    if hlo is None:
        return None
    return {
        "level": hlo.level,
        "source": hlo.source,
        "modules": [
            {
                "name": module.name,
                "before": module.before,
                "after": module.after,
                "changed": list(module.changed),
                "size": module.size,
            }
            for module in hlo.modules
        ],
        "ran": list(hlo.ran),
        "last": hlo.last,
        "notes": list(hlo.notes),
        "whole": hlo.whole,
    }


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
        "device_memory": attempt.device_memory,
        "files": [{"label": label, "path": path} for label, path in attempt.files],
        "ranks": [rank_object(rank) for rank in attempt.ranks],
        "hlo": hlo_object(attempt.hlo),
    }


def cell_object(cell: CellResult) -> dict[str, Any]:
    """A cell as `--json` has it; `rates` follows from its attempts and is not read back."""
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
        "different_failure": cell.different_failure,
        "rates": [rate_object(rate) for rate in rates(cell.attempts)],
    }


def signature_from(stored: dict[str, Any] | None) -> Signature | None:
    """The inverse of `signature_object`."""
    if stored is None:
        return None
    return Signature(stored["title"], tuple(stored["alternatives"]), stored["version"])


def rank_from(stored: dict[str, Any]) -> RankResult:
    """The inverse of `rank_object`."""
    return RankResult(
        rank=stored["rank"],
        outcome=Outcome(stored["outcome"]),
        exit_status=stored["exit_status"],
        signal=stored["signal"],
        signature=signature_from(stored["signature"]),
        seconds=stored["seconds"],
        role=stored["role"],
    )


def hlo_from(stored: dict[str, Any] | None) -> HloFacts | None:
    """The inverse of `hlo_object`."""
    if stored is None:
        return None
    return HloFacts(
        level=stored["level"],
        source=stored["source"],
        modules=tuple(
            HloModule(m["name"], m["before"], m["after"], tuple(m["changed"]), m["size"]) for m in stored["modules"]
        ),
        ran=tuple(stored["ran"]),
        last=stored["last"],
        notes=tuple(stored["notes"]),
        whole=stored["whole"],
    )


def attempt_from(stored: dict[str, Any]) -> AttemptResult:
    """The inverse of `attempt_object`; an attempt stored by an earlier release lacks the last fields."""
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
        device_memory=stored.get("device_memory", 0),
        files=tuple((file["label"], file["path"]) for file in stored.get("files", ())),
        ranks=tuple(rank_from(rank) for rank in stored.get("ranks", ())),
        hlo=hlo_from(stored.get("hlo")),
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
        different_failure=stored.get("different_failure", False),
    )
