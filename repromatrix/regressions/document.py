"""What the `--json` documents of a bisection and of a minimisation have in common; `schema.py` describes it."""

from __future__ import annotations

from typing import Any

from repromatrix.regressions.minimising.model import Minimised, Tried
from repromatrix.regressions.model import Bisection, Tested
from repromatrix.results.codec import finite, rate_object


def common(found: Bisection | Minimised) -> dict[str, Any]:
    """What was asked for and how, what it took, and on which machine."""
    return {
        "command": found.command,
        "repro": found.repro,
        "target": found.target,
        "params": {name: finite(value) for name, value in found.params},
        "engine": found.engine,
        "rules": {
            "confidence": found.rules.confidence,
            "rate": found.rules.rate,
            "attempts": found.rules.most,
            "symmetric": found.rules.symmetric,
        },
        "rate": {"low": found.rate[0], "high": found.rate[1]},
        "spent": {"total": found.spent.total, "running": found.spent.running, "waiting": found.spent.waiting},
        "facts": dict(found.facts),
    }


def tried(one: Tested | Tried) -> dict[str, Any]:
    """What the attempts of one version, or of one variant, say together."""
    return {
        "verdict": one.verdict.value,
        "why": one.why,
        "attempted": one.attempted,
        "seconds": one.seconds,
        "rates": [rate_object(rate) for rate in one.rates],
    }
