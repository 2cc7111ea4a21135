"""The pass log of seven versions, of crashes, of parallel compilations and of a GPU compiled for without one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.evidence.pass_diff import PassChange, pipeline_diff
from repromatrix.evidence.passes import LastPass, ModulePasses, PassLog, Step, pass_log, without_log

DATA = Path(__file__).parent / "data" / "hlo"
VERSIONS = ("0.4.30", "0.5.3", "0.6.2", "0.7.2", "0.9.2", "0.10.2")
WRAPPER = "async-stream-attribute-wrapper"
THROUGH = "HLO passes through layout assignment"


def text(name: str) -> str:
    return (DATA / f"passlog-{name}.txt").read_text()


def log(name: str) -> PassLog:
    return pass_log(text(name))


def my_fn(version: str) -> ModulePasses:
    return next(one for one in log(version).modules if one.module == "jit_my_fn")


def flat(steps: Iterable[Step]) -> list[str]:
    return [name for step in steps for name in (step.name, *flat(step.inner))]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_pass_that_ran_is_there(version: str) -> None:
    """As many as the log says, the repeats of fixed-point pipelines taken together."""
    module = my_fn(version)
    lines = text(version).splitlines()
    begin = next(place for place, line in enumerate(lines) if "on module jit_my_fn" in line)
    started = [line.partition("]   HLO pass ")[2] for line in lines[begin:] if "]   HLO pass " in line]
    assert started

    def count(steps: Iterable[Step]) -> int:
        return sum(step.times * (1 if not step.inner else count(step.inner)) for step in steps)

    heads = {line.rpartition(": ")[2] for line in lines[begin:] if "Running HLO pass pipeline" in line}
    passes = [name for name in started if name not in heads]
    leaves = [name for name in flat(module.pipelines) if name not in heads]
    assert set(leaves) == set(passes)
    assert len(leaves) <= len(passes) <= count(module.pipelines)


@pytest.mark.parametrize(("version", "times"), list(zip(VERSIONS, (4, 4, 2, 2, 2, 2), strict=True)))
def test_a_fixed_point_is_counted(version: str, times: int) -> None:
    through = next(step for step in my_fn(version).pipelines if step.name == THROUGH)
    (simplification,) = [step for step in through.inner if step.name == "simplification"]
    assert simplification.times == times
    assert [step.name for step in simplification.inner][:2] == ["algsimp", "simplify-sorts"]
    assert simplification.inner[-1].name == "simplify-conditional"
    assert simplification.inner.count(Step("dce")) == 2
    assert through.inner[-1].name in ("sub-byte-size-setter", "literal-canonicalizer")


def test_nesting_is_told_where_the_log_tells() -> None:
    """0.9.2 says when a pass ends. 0.5.3 does not: a pipeline that ran once there stands before its passes."""
    timed, untimed = my_fn("0.9.2"), my_fn("0.5.3")
    inside = {step.name: step.inner for pipeline in timed.pipelines for step in pipeline.inner}
    assert [step.name for step in inside["simplification after layout assignment"]] == ["algsimp", "dce", "cse"]
    after = next(one.inner for one in untimed.pipelines if one.name == "HLO passes after layout assignment")
    place = after.index(Step("simplification after layout assignment"))
    assert [step.name for step in after[place + 1 : place + 4]] == ["algsimp", "dce", "cse"]


def test_pipelines_of_the_top() -> None:
    assert [step.name for step in my_fn("0.10.2").pipelines] == [
        *("async-collective", "pre-spmd-partitioner", "sharding-removal", "SubbytePacker pipeline", THROUGH),
        *("hlo normalization", "dot-library-passes", "HLO passes after layout assignment"),
        "HLO passes after scheduling",
    ]


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.6.0", "flatten-call-graph"), ("0.7.1", "layout-assignment"), ("0.10.2", "layout-assignment")],
)
def test_the_last_pass_is_the_one_the_crash_names(version: str, name: str) -> None:
    found = log(f"crash-{version}")
    assert found.last == found.blamed == LastPass("jit_convert_element_type", THROUGH, name)
    assert found.modules[-1].last == found.last


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_blamed_without_a_crash(version: str) -> None:
    assert log(version).blamed is None
    assert log(version).last == my_fn(version).last


def test_threads_are_kept_apart() -> None:
    """Two functions compiled at once by 0.10.2; their lines alternate."""
    found = log("threads-0.10.2")
    own = {module.module: module for module in found.modules}
    assert {"jit_left", "jit_right"} <= set(own)
    left, right = own["jit_left"], own["jit_right"]
    assert left.thread != right.thread
    assert set(flat(left.pipelines)) == set(flat(right.pipelines))
    assert len(left.pipelines) == len(right.pipelines) == 9
    assert pipeline_diff(left, right) == ()


def test_the_thread_of_the_crash_counts() -> None:
    lines = text("threads-0.10.2").splitlines()
    threads = {one.module: one.thread for one in log("threads-0.10.2").modules}
    stop = max(place for place, line in enumerate(lines) if f" {threads['jit_left']} hlo_pass_pipeline" in line)
    fatal = f"F1130 07:21:00.000000 {threads['jit_right']:>7} x.cc:1] Check failed: x"
    found = pass_log("\n".join([*lines[: stop + 1], fatal]))
    assert found.last is not None
    assert found.last.module == "jit_right"


def test_an_open_pass_is_the_last_one() -> None:
    """A segmentation fault writes no line: the pass that has not ended is it, whatever another thread wrote later."""
    lines = [
        "I1130 07:21:00.000001       1 hlo_pass_pipeline.cc:303] Running HLO pass pipeline on module a: p",
        "I1130 07:21:00.000002       1 hlo_pass_pipeline.cc:181]   HLO pass bad",
        "I1130 07:21:00.000003       2 hlo_pass_pipeline.cc:303] Running HLO pass pipeline on module b: p",
        "I1130 07:21:00.000004       2 hlo_pass_pipeline.cc:181]   HLO pass good",
        "I1130 07:21:00.000005       2 hlo_pass_pipeline.cc:176] HLO pass: good time: 3 us (3 us) (cumulative: 3 us)",
    ]
    assert pass_log("\n".join(lines)).last == LastPass("a", "p", "bad")


def test_a_module_compiled_again_comes_again() -> None:
    once = text("0.10.2")
    assert [module.module for module in pass_log(once + once).modules].count("jit_my_fn") == 2


def test_a_cut_log_is_said() -> None:
    lines = text("0.10.2").splitlines()
    cut = pass_log("\n".join([*lines[:9], f"[... {123:>15} bytes left out ...]", *lines[100:]]))
    assert cut.cut
    assert not log("0.10.2").cut
    assert cut.last == log("0.10.2").last


def test_what_moved_between_two_versions() -> None:
    """The autotuner of 0.10.1 runs before async-stream-attribute-wrapper, that of 0.10.2 after it."""
    (a,), (b,) = (log(f"h100-{version}").modules for version in ("0.10.1", "0.10.2"))
    changes = pipeline_diff(a, b)
    moved = {change.name: change for change in changes if change.kind == "moved"}
    assert set(moved) == {"autotuner", "convert_triton_gemm_config"}
    assert moved["autotuner"].pipeline == "autotuner"
    assert (
        moved["autotuner"].against("async-stream-attribute-wrapper")
        == "autotuner: after async-stream-attribute-wrapper, was before it"
    )
    assert moved["autotuner"].against("algsimp") == ""
    assert moved["autotuner"].words == (
        "autotuner: after collectives-schedule-linearizer, explicit-collectives-group-async-wrapper, "
        "explicit-stream-annotation-async-wrapper, async-stream-attribute-wrapper and 18 more, was before them"
    )
    added = [change for change in changes if change.kind == "added"]
    assert "sort-rewriter: in optimization, after permutation_sort_simplifier" in [change.words for change in added]
    removed = {change.name for change in changes if change.kind == "removed"}
    assert {"estimate-cub-sort-scratch-size", "autotune-fusion-emitters"} <= removed
    back = {change.name: change for change in pipeline_diff(b, a) if change.kind == "moved"}
    assert back["autotuner"].against(WRAPPER) == f"autotuner: before {WRAPPER}, was after it"


def test_what_changed_between_neighbours() -> None:
    assert [(change.kind, change.words) for change in pipeline_diff(my_fn("0.5.3"), my_fn("0.6.2"))] == [
        ("added", "flatten-call-graph: first in sharding-removal"),
        ("added", f"batched_gather_scatter_normalizer: first in {THROUGH}"),
        ("removed", f"gather_scatter_normalizer: first in {THROUGH}"),
        ("removed", f"scatter_expander: in {THROUGH}, after scatter_simplifier"),
    ]


def test_spelling_is_no_difference() -> None:
    names = {change.name for change in pipeline_diff(my_fn("0.4.30"), my_fn("0.5.3"))}
    assert not names & {"CallInliner", "call-inliner"}


def passes(names: list[str]) -> ModulePasses:
    return ModulePasses("m", 0, (Step("p", 1, tuple(map(Step, names))),), None)


NAMES = st.lists(st.sampled_from("abcdefgh"), max_size=12)


@given(NAMES, NAMES)
def test_changes_add_up(a: list[str], b: list[str]) -> None:
    """What is in `b` is what is in `a`, less what was removed, and with what was added."""
    changes = pipeline_diff(passes(a), passes(b))

    def names(kind: str) -> list[str]:
        return [change.name for change in changes if change.kind == kind]

    assert sorted(a + names("added")) == sorted(b + names("removed"))
    assert len(names("moved")) <= min(len(a), len(b))
    assert (changes == ()) == (a == b)


@given(NAMES)
def test_one_pass_taken_out(names: list[str]) -> None:
    assert pipeline_diff(passes(names), passes([*names, "z"]))[-1:] == (
        PassChange("added", "z", "p", f"in p, after {names[-1]}" if names else "first in p"),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_run_would_have_written_nothing(version: str) -> None:
    assert without_log(text(version)) == ""


def test_the_rest_stays() -> None:
    left = without_log(text("crash-0.10.2")).splitlines()
    assert left[0].startswith("F1130 ")
    assert left[1].startswith("HloModule jit_convert_element_type")
    assert not [line for line in left if " HLO pass " in line]
    whole = "loss 1.5\n  HLO pass of mine\nW1130 07:02:36.960644    7133 other.cc:1] careful\n"
    assert without_log(whole) == whole
    assert (
        without_log("half a line I1130 07:02:36.9    71 hlo_pass_pipeline.cc:1]   HLO pass dce\nmore")
        == "half a line more"
    )


@given(
    st.text() | st.lists(st.sampled_from(text("crash-0.10.2").splitlines() + text("0.6.2").splitlines())).map("\n".join)
)
def test_any_text_gives_an_answer(whole: str) -> None:
    found = pass_log(whole)
    assert (found.last is None) == (not any(module.last for module in found.modules)) or found.blamed
    assert not [line for line in without_log(whole).splitlines() if ": I external" in line]
