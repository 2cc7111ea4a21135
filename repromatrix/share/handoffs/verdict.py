"""Whether an attempt ended as the handed-over folder expects. Pure; runs in the folder too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from repromatrix.evidence.outcome import Grade
from repromatrix.results.judge import judge
from repromatrix.results.model import AttemptResult, HloFacts
from repromatrix.share.handoffs.expected import Expected
from repromatrix.spec.metrics import holds
from repromatrix.spec.model import Expect, Outcome

REPRODUCED, OTHERWISE, UNKNOWN = "REPRODUCED", "NOT REPRODUCED", "COULD NOT RUN"

BARE = re.compile(r"hang|signal SIG\w+")
"""Titles that say how it ended and nothing of where: all that is known without stacks where nothing was printed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is one of the three above; `why` says what came, or what is to be known of the match."""

    word: str
    why: str


def compare(expected: Expected, found: Grade, hlo: HloFacts | None = None) -> Verdict:
    """Hold one attempt against what is expected: the outcome, then the identity of the failure as the tool compares it.

    An attempt that proves nothing never counts as a reproduction, and what the machine did never as another result.
    The environment is the recorded one to the byte: a script that does not apply, memory that does not suffice, and a
    kill from outside are this machine's, where they were not recorded.

    Args:
        hlo: What the compiler did, where that is claimed.
    """
    if found.outcome is Outcome.INFRA:
        return Verdict(UNKNOWN, found.reason)
    if found.outcome is not expected.outcome:
        if found.outcome in expected.claimed:
            return Verdict(REPRODUCED, f"{told(found)}; by machine it is {_either(expected.claimed)}")
        return Verdict(UNKNOWN if _foreign(found) else OTHERWISE, told(found))
    if _foreign(found) and found.signal != expected.signal:
        return Verdict(UNKNOWN, told(found))
    if wrong := _numbers(expected, found) or _passes(expected, found, hlo):
        return Verdict(OTHERWISE, f"{told(found)}; {wrong}")
    if not found.outcome.failed:
        return Verdict(REPRODUCED, told(found))
    if found.signature is None:  # nothing was printed and no stack was read: what is left is how it ended
        same = not (expected.titles or expected.globs) and _ended(expected) == _ended(found)
        return Verdict(REPRODUCED if same else OTHERWISE, told(found))
    met = {title for title in found.signature.titles if title in expected.titles or _fit(expected.globs, title)}
    if met:
        less = "; no stack was read, so that no more than how it ended is compared"
        return Verdict(REPRODUCED, told(found) + less * all(map(BARE.fullmatch, met)))
    return Verdict(OTHERWISE, f"{told(found)}: a different failure")


def told(found: Grade) -> str:
    """How an attempt ended, in words: `crash SIGABRT "absl-fatal ..."`."""
    words = found.outcome.value
    if found.outcome.failed:
        words += f" {_ended(found)}" + (f' "{found.signature.title}"' if found.signature is not None else "")
    return words + (f" ({found.reason})" if found.reason else "")


def _ended(end: Expected | Grade) -> str:
    return end.signal or f"status {end.exit_status}"


def _foreign(found: Grade) -> bool:
    """Whether this machine alone can have ended it so; SIGILL is an instruction that this CPU lacks."""
    return found.outcome in (Outcome.SKIP, Outcome.OOM) or found.signal in ("SIGKILL", "SIGILL")


def _either(outcomes: tuple[Outcome, ...]) -> str:
    return " or ".join(outcome.value for outcome in outcomes)


def _numbers(expected: Expected, found: Grade) -> str:
    """What of the claimed numbers is otherwise; empty where all are as claimed."""
    values = dict(found.metrics)
    for name, condition in expected.metrics:
        if name not in values:
            return f"{name} was not found"
        if not holds(condition, values[name]):
            return f"{name} is {values[name]:g}, expected {condition}"
    return ""


def _passes(expected: Expected, found: Grade, hlo: HloFacts | None) -> str:
    """What of the claimed passes is otherwise or not known; empty where all is as claimed."""
    if not (expected.changed or expected.unchanged):
        return ""
    claim = Expect("", (found.outcome,), None, None, None, 0, (), expected.changed, expected.unchanged)
    attempt = AttemptResult(1, found.outcome, found.exit_status, found.signal, None, "", 0.0, "", "", hlo=hlo)
    judged = judge(claim, found.outcome, found.exit_status, found.signal, found.signature, [attempt])
    return "" if judged.kept else judged.why


def _fit(globs: Iterable[str], title: str) -> bool:
    return any(fnmatchcase(title, glob.replace("[", "[[]")) for glob in globs)
