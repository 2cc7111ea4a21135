"""The `--json` document of a minimisation, and the exit code that goes with it."""

from __future__ import annotations

from typing import Any

from repromatrix.regressions.document import common, tried
from repromatrix.regressions.minimising.model import Minimised, Smallest, Threshold, Tried
from repromatrix.regressions.minimising.words import ambiguous, sentence
from repromatrix.report.compared import cell_hlo
from repromatrix.results.codec import cell_object

SCHEMA = 1
"""Of this document; raised when a reader of the old one would be misled."""


def document(found: Minimised) -> dict[str, Any]:
    """All that is known, as one JSON object; `schemas/minimisation.schema.json` describes it."""
    return {
        "schema": SCHEMA,
        "minimised": {
            "answer": answer(found),
            **common(found),
            "cell": found.cell,
            "environment": found.environment,
            "outcome": found.outcome.value,
            "failure": found.failure,
            "parts": [_part(part) for part in found.parts],
            "hints": list(found.hints),
        },
    }


def answer(found: Minimised) -> str:
    """In a word: `found`, `ambiguous`, `nothing` (nothing that was tried flips the verdict), or `interrupted`."""
    if found.interrupted:
        return "interrupted"
    if any(map(ambiguous, found.parts)):
        return "ambiguous"
    return "found" if any(_found(part) for part in found.parts) else "nothing"


def exit_code(found: Minimised) -> int:
    """0 found, 1 nothing flips it or it is ambiguous, 130 interrupted."""
    return {"found": 0, "interrupted": 130}.get(answer(found), 1)


def _part(part: Smallest | Threshold) -> dict[str, Any]:
    said = {"what": part.what if isinstance(part, Smallest) else "threshold", "sentence": sentence(part)}
    if isinstance(part, Threshold):
        return {
            **said,
            "param": part.param,
            "low": part.low,
            "high": part.high,
            "boundaries": [
                {
                    "below": one.below,
                    "above": one.above,
                    "fails": "above" if one.fails_above else "below",
                    "between": list(one.between),
                    "confidence": confidence,
                }
                for one, confidence in zip(part.boundaries, part.confidence, strict=True)
            ],
            "rows": [{"value": value, **_tried(one)} for value, one in part.rows],
            "trouble": part.trouble,
        }
    return {
        **said,
        "good": part.good,
        "items": [{"name": item.name, "without": item.without, "with": item.with_it} for item in part.items],
        "needed": list(part.needed),
        "without": {name: _tried(one) for name, one in part.without.items()},
        "confidence": dict(part.confidence),
        "contradictions": list(part.contradictions),
        "path": [{"changed": list(one.changed), **_tried(one)} for one in part.path],
        "trouble": part.trouble,
    }


def _tried(one: Tried) -> dict[str, Any]:
    return {**tried(one), "cell": {**cell_object(one.result), "hlo": cell_hlo([one.result])[0]}}


def _found(part: Smallest | Threshold) -> bool:
    return bool(part.needed if isinstance(part, Smallest) else part.boundaries)
