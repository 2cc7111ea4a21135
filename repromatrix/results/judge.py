"""Whether a claim holds."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple

from repromatrix.evidence.model import Signature
from repromatrix.results.combine import clip
from repromatrix.results.model import AttemptResult
from repromatrix.spec.metrics import holds
from repromatrix.spec.model import Expect, Outcome


class Judgement(NamedTuple):
    """Whether a claim holds.

    Attributes:
        kept: None where nothing was learnt of the claim.
        why: Why it does not hold, in words; empty where it does or where there is none.
        different: It failed as claimed, but it is another failure: another signature, signal or exit status.
    """

    kept: bool | None
    why: str
    different: bool = False


def claim(expect: Expect | None) -> str:
    """A claim in words: `error 2 "FAILED_PRECONDITION *"`, `crash or hang`, `ok; symtab/X >= 20`; empty for none."""
    if expect is None:
        return ""
    words = " or ".join(outcome.value for outcome in expect.outcome)
    if expect.exit_status is not None:
        words += f" {expect.exit_status}"
    if expect.signal is not None:
        words += f" {expect.signal}"
    if expect.signature is not None:
        words += f' "{expect.signature}"'
    found = [f"{name} {condition}" for name, condition in expect.metrics]
    found += [f"changed by {', '.join(globs)}" for globs in (expect.changed,) if globs]
    found += [f"unchanged by {', '.join(globs)}" for globs in (expect.unchanged,) if globs]
    return "; ".join([words, *found])


def judge(
    expect: Expect | None,
    outcome: Outcome,
    exit_status: int | None,
    signal: str | None,
    signature: Signature | None,
    attempts: Sequence[AttemptResult] = (),
) -> Judgement:
    """Hold an outcome against a claim.

    Nothing is learnt where there is no claim, from `infra`, and from a `skip` or `inconclusive` that was not claimed.
    A failure with another signature than the claimed one is a different failure, so the claim does not hold.

    Where several outcomes are claimed, `signal` speaks of the crash and `exit_status` of the error among them: a hang
    is ended by our own signal.

    Args:
        attempts: Of the cell: a claim on numbers or passes is held against what each of them found.
    """
    if expect is None:
        return Judgement(None, "")
    if outcome is Outcome.INFRA:
        return Judgement(None, "infrastructure failed, so the claim was not tested")
    if outcome not in expect.outcome:
        if outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE):
            return Judgement(None, f"{outcome.value} neither keeps nor breaks the claim")
        return Judgement(False, f"claimed {claim(expect)}, was {outcome.value}")
    alone = len(expect.outcome) == 1
    ended = signal or f"status {exit_status}"
    if expect.signal is not None and expect.signal != signal and (alone or outcome is Outcome.CRASH):
        return Judgement(False, f"claimed {expect.signal}, ended by {ended}", outcome.failed)
    if expect.exit_status is not None and expect.exit_status != exit_status and (alone or outcome is Outcome.ERROR):
        return Judgement(False, f"claimed status {expect.exit_status}, ended by {ended}", outcome.failed)
    if expect.signature is not None and outcome.failed:
        if signature is None:  # not known to be another failure
            return Judgement(False, f'claimed "{expect.signature}", and the failure left nothing to compare with it')
        if not matches(expect.signature, signature):
            return Judgement(False, different(signature), True)
    return _found(expect, [one for one in attempts if one.outcome in expect.outcome])


def _found(expect: Expect, attempts: Sequence[AttemptResult]) -> Judgement:
    """Whether what the attempts found is as claimed: numbers, and passes that changed a module or none."""
    wrong: list[str] = []
    unknown: list[str] = []
    for name, condition in expect.metrics:
        values = [value for one in attempts for metric, value in one.metrics if metric == name]
        wrong += [f"claimed {name} {condition}, was {value:g}" for value in values if not holds(condition, value)][:1]
        if not values:
            unknown.append(f"the claim on {name} has no verdict: no such number was found")
    if expect.changed or expect.unchanged:
        hlo = [one.hlo for one in attempts if one.hlo is not None]
        changed = {name for facts in hlo for module in facts.modules for name in module.changed}
        # What is not among the changes proves something only where nothing is missing among them.
        whole = bool(hlo) and all(facts.whole and facts.level == "passes" for facts in hlo)
        why = "the HLO was not collected" if not hlo else "; ".join(dict.fromkeys(n for h in hlo for n in h.notes))
        for glob in expect.changed:
            if not fnmatch.filter(changed, glob):
                claimed = f"claimed that {glob} changed a module"
                (wrong if whole else unknown).append(
                    claimed + (", it changed none" if whole else f", not known: {why}")
                )
        for glob in expect.unchanged:
            if names := sorted(fnmatch.filter(changed, glob)):
                wrong.append(f"claimed that {glob} changed no module, {', '.join(names)} did")
            elif not whole:
                unknown.append(f"claimed that {glob} changed no module, not known: {why}")
    if wrong:
        return Judgement(False, "; ".join(wrong))
    return Judgement(None, "; ".join(unknown)) if unknown else Judgement(True, "")


def different(signature: Signature | None) -> str:
    """`a different failure: "FAILED_PRECONDITION: no such pass"`; without the title where none is given."""
    return "a different failure" + (f': "{clip(signature.title, 200)}"' if signature is not None else "")


def matches(glob: str, signature: Signature) -> bool:
    """Whether `glob` matches one of the titles, whole and case-sensitive; its kind word (`py-exc`) may be left out.

    `*` stands for any text. Brackets stand for themselves, unlike in file globs: titles are full of `f32[8]`.
    """
    pattern = glob.replace("[", "[[]")
    titles = {text for title in signature.titles for text in (title, title.partition(" ")[2])}
    return any(fnmatch.fnmatchcase(title, pattern) for title in titles)
