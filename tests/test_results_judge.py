import pytest

from repromatrix.evidence.model import Signature
from repromatrix.results.judge import claim, judge
from repromatrix.spec.model import Expect, Outcome

NOOP = Signature(
    "SIGABRT hlo_pass_pipeline.cc Pass * reported that it changed the HLO but f32[8] was not updated",
    ("xla::HloPassPipeline::RunPassesInternal",),
)
DIFFERENT = 'a different failure: claimed "{}", was "' + NOOP.title + '"'


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
        (expect("crash", signature="*SIGABRT"), "crash", False, DIFFERENT.format("*SIGABRT")),
        (expect("crash", signature="*F32[8]*"), "crash", False, DIFFERENT.format("*F32[8]*")),
        (expect("ok", "crash", signature="nothing"), "ok", True, ""),
    ],
)  # fmt: skip
def test_judge(claimed: Expect | None, outcome: str, holds: bool | None, words: str) -> None:
    assert judge(claimed, Outcome(outcome), None, "SIGABRT", NOOP) == (holds, words)


def test_a_failure_without_signature_does_not_keep_a_claim_of_one() -> None:
    holds, words = judge(expect("error", signature="*"), Outcome.ERROR, 1, None, None)
    assert holds is False
    assert words == 'claimed "*", and the failure left nothing to compare with it'


def test_exit_status() -> None:
    assert judge(expect("error", status=2), Outcome.ERROR, 2, None, None) == (True, "")
    assert judge(expect("error", status=2), Outcome.ERROR, 1, None, None)[0] is False
    assert judge(expect("error", "crash", status=2), Outcome.CRASH, None, "SIGSEGV", None) == (True, "")
