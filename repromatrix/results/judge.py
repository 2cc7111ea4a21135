"""Whether a claim holds."""

from __future__ import annotations

from fnmatch import fnmatchcase

from repromatrix.evidence.model import Signature
from repromatrix.results.combine import clip
from repromatrix.spec.model import Expect, Outcome


def claim(expect: Expect | None) -> str:
    """A claim in words: `error 2 "FAILED_PRECONDITION *"`, `crash SIGABRT`, `crash or hang`; empty for none."""
    if expect is None:
        return ""
    words = " or ".join(outcome.value for outcome in expect.outcome)
    if expect.exit_status is not None:
        words += f" {expect.exit_status}"
    if expect.signal is not None:
        words += f" {expect.signal}"
    return f'{words} "{expect.signature}"' if expect.signature is not None else words


def judge(
    expect: Expect | None,
    outcome: Outcome,
    exit_status: int | None,
    signal: str | None,
    signature: Signature | None,
) -> tuple[bool | None, str]:
    """Whether the claim holds, and why not in words (empty where it holds or where there is none).

    None where nothing was learnt of the claim: no claim, `infra`, or a `skip` or `inconclusive` that was not claimed.
    A failure with another signature than the claimed one is a different failure, so the claim does not hold.

    Where several outcomes are claimed, `signal` speaks of the crash and `exit_status` of the error among them: a hang
    is ended by our own signal.
    """
    if expect is None:
        return None, ""
    if outcome is Outcome.INFRA:
        return None, "infrastructure failed, so the claim was not tested"
    if outcome not in expect.outcome:
        if outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE):
            return None, f"{outcome.value} neither keeps nor breaks the claim"
        return False, f"claimed {claim(expect)}, was {outcome.value}"
    alone = len(expect.outcome) == 1
    if expect.signal is not None and expect.signal != signal and (alone or outcome is Outcome.CRASH):
        return False, f"claimed {expect.signal}, ended by {signal or f'status {exit_status}'}"
    if expect.exit_status is not None and expect.exit_status != exit_status and (alone or outcome is Outcome.ERROR):
        return False, f"claimed status {expect.exit_status}, ended by {signal or f'status {exit_status}'}"
    if expect.signature is not None and outcome.failed:
        if signature is None:
            return False, f'claimed "{expect.signature}", and the failure left nothing to compare with it'
        if not matches(expect.signature, signature):
            return False, f'a different failure: claimed "{expect.signature}", was "{clip(signature.title, 200)}"'
    return True, ""


def matches(glob: str, signature: Signature) -> bool:
    """Whether `glob` matches one of the titles, whole and case-sensitive; its kind word (`py-exc`) may be left out.

    `*` stands for any text. Brackets stand for themselves, unlike in file globs: titles are full of `f32[8]`.
    """
    pattern = glob.replace("[", "[[]")
    titles = {text for title in signature.titles for text in (title, title.partition(" ")[2])}
    return any(fnmatchcase(title, pattern) for title in titles)
