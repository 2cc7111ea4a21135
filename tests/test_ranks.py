"""Verdicts on attempts of several ranks; the recordings are of two ranks that talk through gloo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.engines.base import RankEnd, Raw
from repromatrix.evidence.frames import stack_frames
from repromatrix.evidence.model import Signature
from repromatrix.evidence.outcome import GradeContext, grade
from repromatrix.evidence.ranks import RankGrades, grade_all
from repromatrix.evidence.signature import VERSION
from repromatrix.spec.model import Outcome, SignatureRule, Witness

DATA = Path(__file__).parent / "data" / "evidence"
VERSIONS = pytest.mark.parametrize("version", ["0.6.2", "0.10.2"])
CONTEXT = GradeContext(timeout=15)
FAULT = "py-exc ValueError: rank N is at fault"
SEGV = "signal SIGSEGV at __init__.py string_at from r.py <module>"
FOLLOWER = (
    "F1130 01:42:11.240836   23732 client.h:82] Terminating process because the JAX distributed service detected fatal "
    "errors. This most likely indicates that another task died; see the other task logs for more details.\n"
)


def text(name: str) -> str:
    path = DATA / "ranks" / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def logs(recording: str) -> list[tuple[str, str]]:
    return [(text(f"{recording}.{rank}.out"), text(f"{recording}.{rank}.err")) for rank in (0, 1)]


def stacks(recording: str, tool: str = "stack") -> list[tuple[str, ...]]:
    return [stack_frames(text(f"{recording}.{rank}.{tool}")) for rank in (0, 1)]


def end(rank: int, ended: int | str | None, seconds: float = 1.0, *, stopped: bool = False) -> RankEnd:
    status, signal = (ended, None) if isinstance(ended, int) else (None, ended)
    return RankEnd(rank, 100 + rank, status, signal, False, seconds, stopped)


def attempt(*ends: RankEnd, timed_out: bool = False, over_limit: bool = False, oom_kills: int = 0) -> Raw:
    return Raw(ends[0].exit_status, ends[0].signal, timed_out, over_limit=over_limit, oom_kills=oom_kills, ranks=ends)


def raised(message: str) -> str:
    return f'Traceback (most recent call last):\n  File "/w/r.py", line 3, in <module>\n    f()\n{message}\n'


def roles(grades: RankGrades) -> list[str]:
    return [rank.role for rank in grades.ranks]


# ---- recorded --------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("tool", ["stack", "pyspy"])
def test_a_deadlock_is_the_hang_of_rank_0_and_meets_that_of_the_other(version: str, tool: str) -> None:
    raw = attempt(end(0, "SIGABRT", 15, stopped=True), end(1, "SIGABRT", 15, stopped=True), timed_out=True)
    found, grades = grade_all(raw, logs(f"{version}.hang"), CONTEXT, stacks(f"{version}.hang", tool))
    assert (found.outcome, found.reason) == (Outcome.HANG, "still running at the deadline of 15 s: all ranks")
    assert found.signature == Signature("hang at r.py step", ("hang from r.py step", "hang at r.py alone"), VERSION)
    assert [rank.signature for rank in grades.ranks] == [
        Signature("hang at r.py step", ("hang from r.py step",), VERSION),
        Signature("hang at r.py alone", ("hang from r.py alone",), VERSION),
    ]
    assert [rank.outcome for rank in grades.ranks] == [Outcome.HANG, Outcome.HANG]
    assert (grades.first, roles(grades)) == (0, ["first", "stopped"])
    turned = grade_all(raw, logs(f"{version}.hang")[::-1], CONTEXT, stacks(f"{version}.hang", tool)[::-1])[0].signature
    assert turned is not None
    assert turned.titles & found.signature.titles


@VERSIONS
def test_a_rank_that_raised_and_waits_for_the_others_at_exit_is_first(version: str) -> None:
    """`jax.distributed` waits at exit for all ranks, and they wait in their collective for the one that raised."""
    raw = attempt(end(0, "SIGABRT", 15, stopped=True), end(1, "SIGABRT", 15, stopped=True), timed_out=True)
    found, grades = grade_all(raw, logs(f"{version}.raise"), CONTEXT, stacks(f"{version}.raise"))
    assert found.outcome is Outcome.HANG
    assert found.reason == (
        "still running at the deadline of 15 s: all ranks; rank 1 had failed before: ValueError: rank 1 is at fault"
    )
    assert found.signature is not None
    assert found.signature.title == "hang at distributed.py shutdown"
    assert FAULT in found.signature.alternatives  # as it ends where nobody waits
    assert (grades.first, roles(grades)) == (1, ["stopped", "first"])


@VERSIONS
def test_the_crash_of_one_rank_is_the_attempts_and_the_other_had_to_be_stopped(version: str) -> None:
    raw = attempt(end(0, "SIGABRT", 6.8, stopped=True), end(1, "SIGSEGV", 1.8))
    found, grades = grade_all(raw, logs(f"{version}.segv"), CONTEXT, stacks(f"{version}.segv"))
    assert (found.outcome, found.exit_status, found.signal) == (Outcome.CRASH, None, "SIGSEGV")
    assert found.reason == "rank 1 was first; rank 0 had to be stopped"
    assert found.signature == Signature(SEGV, (), VERSION)
    assert (grades.first, roles(grades)) == (1, ["stopped", "first"])
    assert (grades.ranks[0].outcome, grades.ranks[0].signature) == (Outcome.INCONCLUSIVE, None)
    assert (grades.ranks[1].outcome, grades.ranks[1].seconds) == (Outcome.CRASH, 1.8)


@VERSIONS
def test_a_lost_connection_says_that_another_was_first_even_of_one_that_ended_before_it(version: str) -> None:
    """A large core delays the death of the rank that crashed; the other may be gone by then."""
    raw = attempt(end(0, 1, 1.8), end(1, "SIGSEGV", 9.0))
    (out, err), crashed = logs(f"{version}.segv")
    own = err.partition("Fatal Python error: ")[0]  # what follows came of the signal that ended the recording
    found, grades = grade_all(raw, [(out, own), crashed], CONTEXT)
    assert (found.outcome, found.reason) == (Outcome.CRASH, "rank 1 was first; rank 0 followed")
    assert roles(grades) == ["followed", "first"]
    lost = grades.ranks[0].signature
    assert lost is not None
    assert lost.title.startswith("xla-status UNKNOWN pair.cc: Gloo all-reduce failed: Connection closed by peer")


def test_of_two_that_end_differently_the_follower_gives_way() -> None:
    out, err = ((DATA / f"r40831@0.11.1.{name}").read_text(encoding="utf-8") for name in ("out", "err"))
    raw = attempt(end(0, 1, 30.2), end(1, "SIGABRT", 30.1))
    found, grades = grade_all(raw, [(out, ""), ("", err)], CONTEXT)
    assert (found.outcome, found.exit_status, found.signal) == (Outcome.ERROR, 1, None)
    assert found.signature is not None
    assert found.signature.title == "xla-status UNKNOWN buffer.cc: Gloo ReduceScatter failed: Read timeout [<ip>]:N"
    assert roles(grades) == ["first", "followed"]
    assert grades.ranks[1].outcome is Outcome.CRASH


# ---- who was first ---------------------------------------------------------------------------------------------------


def test_the_earliest_failure_counts_in_whatever_order_the_ranks_are() -> None:
    raw = attempt(end(0, 1, 3.0), end(1, 1, 2.0), end(2, 0, 1.0))
    outputs = [("", raised("ValueError: zero")), ("", raised("KeyError: 'one'")), ("", "")]
    found, grades = grade_all(raw, outputs, CONTEXT)
    assert found.signature == Signature("py-exc KeyError: 'one'", (), VERSION)
    assert found.reason == "rank 1 was first; rank 0 followed; rank 2 ended well"
    assert (grades.first, roles(grades)) == (1, ["followed", "first", ""])


def test_where_all_say_that_another_was_first_the_earliest_counts() -> None:
    raw = attempt(end(0, "SIGABRT", 3.0), end(1, "SIGABRT", 2.0))
    found, grades = grade_all(raw, [("", FOLLOWER), ("", FOLLOWER)], CONTEXT)
    assert (found.outcome, grades.first) == (Outcome.CRASH, 1)


def test_one_that_waited_in_vain_gives_way_to_one_that_failed_by_itself() -> None:
    waited = raised(
        "ValueError: UNKNOWN: Gloo all-reduce failed: [external/gloo/tcp/buffer.cc:72] Read timeout [::1]:9"
    )
    raw = attempt(end(0, 1, 30.0), end(1, 1, 30.5))
    found, grades = grade_all(raw, [("", waited), ("", raised("ValueError: the cause"))], CONTEXT)
    assert (found.signature, grades.first) == (Signature("py-exc ValueError: the cause", (), VERSION), 1)
    assert grade_all(raw, [("", waited), ("", waited)], CONTEXT)[1].first == 0


def test_a_rank_that_had_raised_when_another_failed_is_first_though_it_had_to_be_stopped() -> None:
    waited = raised(
        "ValueError: UNKNOWN: Gloo all-reduce failed: [external/gloo/tcp/buffer.cc:72] Read timeout [::1]:9"
    )
    raw = attempt(end(0, 1, 30.0), end(1, "SIGKILL", 35.0, stopped=True))
    found, grades = grade_all(raw, [("", waited), ("", raised("ValueError: the cause"))], CONTEXT)
    assert (found.outcome, found.signal) == (Outcome.ERROR, "SIGKILL")
    assert found.signature == Signature("py-exc ValueError: the cause", (), VERSION)
    assert roles(grades) == ["followed", "first"]
    # What the supervisor's own signal makes a rank say is no failure.
    said = 'Fatal Python error: Aborted\n\nCurrent thread 0x07 (most recent call first):\n  File "r.py", line 3 in f\n'
    assert grade_all(raw, [("", waited), ("", said)], CONTEXT)[1].first == 0


def test_one_that_ended_well_while_the_others_hang_is_told() -> None:
    raw = attempt(
        end(0, 0, 3.14),
        end(1, "SIGABRT", 15, stopped=True),
        end(2, "SIGABRT", 15, stopped=True),
        timed_out=True,
    )
    found, grades = grade_all(raw, [("", "")] * 3, CONTEXT, [(), ("r.py f", "r.py <module>"), ()])
    assert found.outcome is Outcome.HANG
    assert found.reason == ("still running at the deadline of 15 s: ranks 1 and 2; rank 0 had ended with 0 after 3.1 s")
    assert found.signature == Signature("hang at r.py f", ("hang from r.py f",), VERSION)
    assert ([rank.outcome for rank in grades.ranks], roles(grades)) == (
        [Outcome.OK, Outcome.HANG, Outcome.HANG],
        ["", "first", "stopped"],
    )


def test_the_stuck_rank_whose_place_is_known_names_the_hang() -> None:
    raw = attempt(end(0, "SIGKILL", 9, stopped=True), end(1, "SIGKILL", 9, stopped=True), timed_out=True)
    found, grades = grade_all(raw, [("", "")] * 2, CONTEXT, [(), ("r.py f", "r.py <module>")])
    assert grades.first == 1
    assert found.signature == Signature("hang at r.py f", ("hang from r.py f",), VERSION)
    bare, grades = grade_all(raw, [("", "")] * 2, CONTEXT)
    assert (bare.signature, grades.first) == (Signature("hang", (), VERSION), 0)


def test_a_deadlock_of_many_ranks_has_few_titles() -> None:
    raw = attempt(*(end(rank, "SIGKILL", 9, stopped=True) for rank in range(64)), timed_out=True)
    places = [(f"r.py f{rank}", "r.py <module>") for rank in range(64)]
    signature = grade_all(raw, [("", "")] * 64, CONTEXT, places)[0].signature
    assert signature is not None
    assert signature.title == "hang at r.py f0"
    assert len(signature.alternatives) == 9


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_a_kernel_kill_is_that_of_the_rank_that_it_ended() -> None:
    raw = attempt(end(0, "SIGABRT", 3), end(1, "SIGKILL", 2), oom_kills=1)
    found, grades = grade_all(raw, [("", FOLLOWER), ("", "")], CONTEXT)
    assert (found.outcome, found.signature) == (Outcome.OOM, Signature("oom-kill", ("oom host memory",), VERSION))
    assert found.reason == (
        "rank 1 was first: 1 process killed by the kernel for memory, ended by SIGKILL; rank 0 followed"
    )
    assert [rank.outcome for rank in grades.ranks] == [Outcome.CRASH, Outcome.OOM]


def test_the_limit_ends_all_ranks_at_once() -> None:
    raw = attempt(end(0, "SIGKILL", 3, stopped=True), end(1, "SIGKILL", 3, stopped=True), over_limit=True, oom_kills=1)
    found, grades = grade_all(raw, [("", raised("ValueError: x")), ("", "")], replace(CONTEXT, memory=4 << 30))
    assert (found.outcome, found.reason) == (Outcome.OOM, "killed at the limit of 4 GiB, ended by SIGKILL")
    assert [rank.outcome for rank in grades.ranks] == [Outcome.OOM, Outcome.OOM]
    assert roles(grades) == ["first", "stopped"]


# ---- no failure ------------------------------------------------------------------------------------------------------


def test_all_well_is_well_if_the_witness_was_seen_by_any() -> None:
    raw = attempt(end(0, 0), end(1, 0))
    context = replace(CONTEXT, witness=Witness(output=("passed",)))
    outputs = [("REPRO_METRIC a=1\nnothing", ""), ("passed\nREPRO_METRIC b=2\n", "")]
    found, grades = grade_all(raw, outputs, context)
    assert (found.outcome, found.metrics) == (Outcome.OK, (("a", 1.0), ("b", 2.0)))
    assert (grades.first, roles(grades)) == (None, ["", ""])
    halves, grades = grade_all(raw, [("pas", ""), ("sed", "")], context)
    assert halves.outcome is Outcome.INCONCLUSIVE
    assert [rank.outcome for rank in grades.ranks] == [Outcome.OK, Outcome.OK]


def test_a_rank_that_does_not_apply_skips_the_attempt() -> None:
    found, grades = grade_all(attempt(end(0, 125), end(1, 125)), [("", "")] * 2, CONTEXT)
    assert (found.outcome, grades.first) == (Outcome.SKIP, 0)


def test_stopped_ranks_alone_are_no_verdict_and_never_well() -> None:
    found, grades = grade_all(attempt(end(0, 0), end(1, "SIGKILL", stopped=True)), [("", "")] * 2, CONTEXT)
    assert (found.outcome, found.reason) == (Outcome.INFRA, "ranks were stopped though none had failed")
    assert grades.first is None


def test_one_process_has_no_ranks() -> None:
    raw = Raw(exit_status=3)
    assert grade_all(raw, [("REPRO_METRIC a=1\n", "")], CONTEXT) == (
        grade(raw, "REPRO_METRIC a=1\n", "", CONTEXT),
        RankGrades(),
    )
    segv = grade_all(Raw(signal="SIGSEGV"), [("", "")], CONTEXT, [("xla::A::Run",)])[0]
    assert segv.signature is not None
    assert segv.signature.title == "signal SIGSEGV in xla::A::Run"
    gone = replace(attempt(end(0, 0), end(1, 0)), infra="the engine is gone")
    assert grade_all(gone, [("", "")] * 2, CONTEXT)[0].outcome is Outcome.INFRA


def test_the_projects_rules_name_the_attempt_and_its_ranks() -> None:
    rule = SignatureRule("r.py step", "stuck in the collective")
    raw = attempt(end(0, "SIGABRT", 15, stopped=True), end(1, "SIGABRT", 15, stopped=True), timed_out=True)
    context = replace(CONTEXT, rules=(rule,))
    found, grades = grade_all(raw, logs("0.10.2.hang"), context, stacks("0.10.2.hang"))
    assert found.signature == grades.ranks[0].signature == Signature("stuck in the collective", (), VERSION)
    assert grades.ranks[1].signature == Signature("hang at r.py alone", ("hang from r.py alone",), VERSION)


ENDS = st.builds(
    RankEnd,
    st.integers(0, 3),
    st.integers(0, 3),
    st.none() | st.sampled_from([0, 1, 125, 134, 137]),
    st.none() | st.sampled_from(["SIGABRT", "SIGSEGV", "SIGKILL"]),
    st.booleans(),
    st.floats(0, 10),
    st.booleans(),
)
RAWS = st.builds(
    Raw,
    exit_status=st.none() | st.integers(0, 1),
    timed_out=st.booleans(),
    over_limit=st.booleans(),
    oom_kills=st.integers(0, 2),
    infra=st.sampled_from(["", "", "gone"]),
    ranks=st.lists(ENDS, max_size=3).map(tuple),
)
OUTPUTS = st.lists(
    st.tuples(st.text(), st.sampled_from([FOLLOWER, raised("ValueError: x"), ""]) | st.text()), max_size=3
)


@given(RAWS, OUTPUTS, st.lists(st.lists(st.text(), max_size=2), max_size=3))
def test_any_end_of_any_ranks_has_a_verdict(raw: Raw, outputs: list[tuple[str, str]], frames: list[list[str]]) -> None:
    found, grades = grade_all(raw, outputs, CONTEXT, frames)
    assert (found.signature is not None) or not found.outcome.failed
    if raw.ranks and not raw.infra:
        assert len(grades.ranks) == len(raw.ranks)
        assert (found.outcome is Outcome.OK) <= all(end.exit_status == 0 for end in raw.ranks)
        assert (grades.first is not None) == ("first" in roles(grades))
        assert roles(grades).count("first") <= 1
