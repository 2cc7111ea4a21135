from dataclasses import replace
from typing import Any

import pytest

from repromatrix.evidence.model import Signature
from repromatrix.results.judge import claim, judge
from repromatrix.results.model import AttemptResult, HloFacts, HloModule
from repromatrix.spec.model import Expect, Outcome

NOOP = Signature(
    "SIGABRT hlo_pass_pipeline.cc Pass * reported that it changed the HLO but f32[8] was not updated",
    ("xla::HloPassPipeline::RunPassesInternal",),
)
DIFFERENT = f'a different failure: "{NOOP.title}"'


def expect(
    *outcomes: str, signature: str | None = None, signal: str | None = None, status: int | None = None
) -> Expect:
    return Expect("", tuple(map(Outcome, outcomes)), signal, status, signature, 1)


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        (None, ""),
        (expect("ok"), "ok"),
        (expect("crash", "hang"), "crash or hang"),
        (expect("crash", signal="SIGABRT"), "crash SIGABRT"),
        (expect("error", status=2, signature="FAILED *"), 'error 2 "FAILED *"'),
    ],
)
def test_claim_in_words(claimed: Expect | None, words: str) -> None:
    assert claim(claimed) == words


@pytest.mark.parametrize(
    ("claimed", "outcome", "holds", "words"),
    [
        (None, "crash", None, ""),
        (expect("ok"), "ok", True, ""),
        (expect("ok"), "crash", False, "claimed ok, was crash"),
        (expect("crash"), "ok", False, "claimed crash, was ok"),
        (expect("crash", "hang"), "hang", True, ""),
        (expect("ok"), "skip", None, "skip neither keeps nor breaks the claim"),
        (expect("crash"), "skip", None, "skip neither keeps nor breaks the claim"),
        (expect("ok"), "inconclusive", None, "inconclusive neither keeps nor breaks the claim"),
        (expect("skip"), "skip", True, ""),
        (expect("inconclusive"), "inconclusive", True, ""),
        (expect("skip"), "ok", False, "claimed skip, was ok"),
        (expect("ok"), "infra", None, "infrastructure failed, so the claim was not tested"),
        (expect("crash", signal="SIGABRT"), "crash", True, ""),
        (expect("crash", signal="SIGSEGV"), "crash", False, "claimed SIGSEGV, ended by SIGABRT"),
        (expect("crash", "hang", signal="SIGSEGV"), "hang", True, ""),
        (expect("crash", "hang", signal="SIGSEGV"), "crash", False, "claimed SIGSEGV, ended by SIGABRT"),
        (expect("crash", status=2), "crash", False, "claimed status 2, ended by SIGABRT"),
        (expect("crash", signature="*was not updated"), "crash", True, ""),
        (expect("crash", signature="*HloPassPipeline::Run*"), "crash", True, ""),
        (expect("crash", signature="*f32[8]*"), "crash", True, ""),
        (expect("crash", signature="*SIGABRT"), "crash", False, DIFFERENT),
        (expect("crash", signature="*F32[8]*"), "crash", False, DIFFERENT),
        (expect("ok", "crash", signature="nothing"), "ok", True, ""),
    ],
)  # fmt: skip
def test_judge(claimed: Expect | None, outcome: str, holds: bool | None, words: str) -> None:
    assert judge(claimed, Outcome(outcome), None, "SIGABRT", NOOP)[:2] == (holds, words)


@pytest.mark.parametrize(
    ("claimed", "outcome", "different"),
    [
        (expect("crash", signature="*SIGABRT"), "crash", True),
        (expect("crash", signal="SIGSEGV"), "crash", True),
        (expect("crash", status=2), "crash", True),
        (expect("crash", "hang", signature="nothing"), "hang", True),
        (expect("crash", signature="*was not updated"), "crash", False),
        (expect("error", signature="*SIGABRT"), "crash", False),
        (expect("ok", status=3), "ok", False),
        (expect("crash"), "skip", False),
        (None, "crash", False),
    ],
)
def test_a_different_failure_is_told_from_another_outcome(
    claimed: Expect | None, outcome: str, different: bool
) -> None:
    judgement = judge(claimed, Outcome(outcome), None, "SIGABRT", NOOP)
    assert judgement.different is different
    assert not (different and judgement.kept is not False)


def test_a_failure_without_signature_does_not_keep_a_claim_of_one() -> None:
    holds, words, different = judge(expect("error", signature="*"), Outcome.ERROR, 1, None, None)
    assert (holds, different) == (False, False)
    assert words == 'claimed "*", and the failure left nothing to compare with it'


def test_exit_status() -> None:
    assert judge(expect("error", status=2), Outcome.ERROR, 2, None, None).kept is True
    assert judge(expect("error", status=2), Outcome.ERROR, 1, None, None)[0] is False
    assert judge(expect("error", "crash", status=2), Outcome.CRASH, None, "SIGSEGV", None).kept is True


def attempt(*changed: str, whole: bool = True, level: str = "passes", hlo: bool = True, n: float = 3) -> AttemptResult:
    notes = () if whole else ("dumps left out",)
    facts = HloFacts(level, "explain", (HloModule("jit_f", "a", "b", changed),), notes=notes, whole=whole)
    end = (Outcome.OK, 0, None, None, "", 1.0, "", "")
    return AttemptResult(1, *end, metrics=(("n", n),), hlo=facts if hlo else None)


@pytest.mark.parametrize(
    ("claims", "attempts", "kept", "words"),
    [
        ({"metrics": (("n", ">= 3"),)}, [attempt()], True, ""),
        ({"metrics": (("n", "4"),)}, [attempt(n=4), attempt(n=3)], False, "claimed n 4, was 3"),
        ({"metrics": (("m", "4"),)}, [attempt()], None, "the claim on m has no verdict: no such number was found"),
        ({"metrics": (("m", "4"), ("n", "4"))}, [attempt()], False, "claimed n 4, was 3"),
        ({"changed": ("*forward",), "unchanged": ("dce",)}, [attempt("pipeliner-forward")], True, ""),
        ({"changed": ("dce",)}, [attempt("algsimp")], False, "claimed that dce changed a module, it changed none"),
        ({"unchanged": ("alg*",)}, [attempt("algsimp")], False, "claimed that alg* changed no module, algsimp did"),
        # One attempt of several has the HLO, and that is enough.
        ({"unchanged": ("dce",)}, [attempt("algsimp"), attempt(hlo=False)], True, ""),
        (
            {"unchanged": ("dce",)},
            [attempt(hlo=False)],
            None,
            "claimed that dce changed no module, not known: the HLO was not collected",
        ),
        # What is missing proves nothing; what is there does.
        (
            {"unchanged": ("dce",)},
            [attempt("algsimp", whole=False)],
            None,
            "claimed that dce changed no module, not known: dumps left out",
        ),
        (
            {"changed": ("dce",)},
            [attempt(whole=False)],
            None,
            "claimed that dce changed a module, not known: dumps left out",
        ),
        ({"changed": ("algsimp",)}, [attempt("algsimp", whole=False)], True, ""),
    ],
)
def test_claims_on_what_the_attempts_found(
    claims: dict[str, Any], attempts: list[AttemptResult], kept: bool | None, words: str
) -> None:
    claimed = replace(expect("ok"), **claims)
    assert judge(claimed, Outcome.OK, 0, None, None, attempts) == (kept, words, False)


def test_a_claim_on_findings_in_words() -> None:
    claimed = replace(expect("ok"), metrics=(("symtab/X", ">= 20"),), changed=("a", "b"), unchanged=("c*",))
    assert claim(claimed) == "ok; symtab/X >= 20; changed by a, b; unchanged by c*"
