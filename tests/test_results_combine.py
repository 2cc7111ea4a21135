import pytest

from repromatrix.evidence.model import Signature
from repromatrix.results.combine import combine, counts, rates, tally
from repromatrix.results.model import AttemptResult
from repromatrix.results.rates import interval
from repromatrix.spec.model import Outcome


def attempt(
    outcome: str,
    title: str = "",
    *alternatives: str,
    status: int | None = None,
    signal: str | None = None,
    **more: object,
) -> AttemptResult:
    return AttemptResult(
        number=1,
        outcome=Outcome(outcome),
        exit_status=status,
        signal=signal,
        signature=Signature(title, alternatives) if title else None,
        reason=str(more.get("reason", "")),
        seconds=float(str(more.get("seconds", 1.0))),
        started="2026-11-30T00:00:00Z",
        evidence="",
    )


OK = attempt("ok", status=0)
HANG = attempt("hang", signal="SIGABRT", seconds=60.0)


def test_one_attempt_is_itself() -> None:
    crash = attempt("crash", "t", signal="SIGSEGV", seconds=2.5, reason="why")
    result = combine([crash])
    assert (result.outcome, result.signal, result.signature, result.seconds) == (
        Outcome.CRASH,
        "SIGSEGV",
        Signature("t"),
        2.5,
    )
    assert result.reason == "why"


def test_a_rare_failure_counts() -> None:
    result = combine([OK, HANG, OK, OK, HANG, OK, OK, HANG, OK, OK])
    assert result.outcome is Outcome.HANG
    assert result.reason == "3 of 10 hang (11 % to 60 %), 7 ok"
    assert result.seconds == 60.0
    assert combine([OK] * 99 + [HANG]).outcome is Outcome.HANG


def test_most_frequent_failure_with_counts_per_signature() -> None:
    a, b = attempt("crash", "first", signal="SIGSEGV"), attempt("crash", "second", signal="SIGABRT")
    result = combine([a, b, OK, b])
    assert result.signature == Signature("second")
    assert result.reason == '2 of 4 crash "second" (15 % to 85 %), 1 crash "first" (5 % to 70 %), 1 ok'


def test_equally_frequent_failures_take_the_earliest() -> None:
    a, b = attempt("error", "a", status=1), attempt("error", "b", status=1)
    assert combine([b, a]).signature == Signature("b")
    assert combine([a, b]).signature == Signature("a")


def test_signatures_that_meet_are_one_way_to_end() -> None:
    a, b, bridge = attempt("crash", "a"), attempt("crash", "b"), attempt("crash", "c", "a", "b")
    assert [len(group) for group in tally([a, b])] == [1, 1]
    assert [len(group) for group in tally([a, b, bridge])] == [3]
    assert combine([a, b, bridge]).reason == ""


def test_same_signature_other_signal_is_told() -> None:
    result = combine([attempt("crash", "a", signal="SIGABRT")] * 2 + [attempt("crash", "a", signal="SIGSEGV")])
    assert result.signal == "SIGABRT"
    assert result.reason == "ended by SIGABRT 2x, SIGSEGV 1x"


def test_without_signature_the_status_tells_failures_apart() -> None:
    result = combine([attempt("error", status=1), attempt("error", status=2), attempt("error", status=2)])
    assert result.exit_status == 2
    assert result.reason == "2 of 3 error (21 % to 94 %), 1 error (6 % to 79 %)"
    assert combine([HANG, attempt("hang", signal="SIGKILL")]).reason == ""


def test_without_failures_the_least_claim_counts() -> None:
    assert combine([OK] * 9 + [attempt("inconclusive", status=0)]).outcome is Outcome.INCONCLUSIVE
    result = combine([OK, OK, attempt("skip", status=125)])
    assert result.outcome is Outcome.SKIP
    assert result.reason == "2 of 3 ok, 1 skip (6 % to 79 %)"


def test_infra_counts_only_alone() -> None:
    infra = attempt("infra", reason="engine gone")
    assert combine([infra, infra]).outcome is Outcome.INFRA
    assert combine([infra, infra]).reason == "engine gone"
    mixed = combine([infra, OK, infra])
    assert mixed.outcome is Outcome.OK
    assert mixed.reason == "2 more attempts ended as infra and did not count"


def test_rates_of_each_way_to_end() -> None:
    found = rates([HANG, OK, attempt("crash", "t", "u", signal="SIGSEGV"), OK, attempt("infra"), OK])
    assert [(rate.outcome.value, rate.title, rate.count, rate.of) for rate in found] == [
        ("ok", "", 3, 5),
        ("hang", "", 1, 5),
        ("crash", "t", 1, 5),
    ]
    assert (found[0].low, found[0].high) == interval(3, 5)
    assert rates([]) == ()
    assert [(rate.outcome.value, rate.of) for rate in rates([attempt("infra"), attempt("infra")])] == [("infra", 2)]


def test_brief_counts_have_no_titles_and_no_rates() -> None:
    groups = tally([OK, attempt("crash", "t"), HANG, HANG])
    assert counts(groups, brief=True) == "2 of 4 hang, 1 crash, 1 ok"
    assert counts(groups) == '2 of 4 hang (15 % to 85 %), 1 crash "t" (5 % to 70 %), 1 ok'


def test_no_attempts_no_outcome() -> None:
    with pytest.raises(ValueError, match="without attempts"):
        combine([])
