"""What is told of a bisection: its edges as facts, the terminal's text, the page for an issue, the document."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.project import Project
from repromatrix.regressions import model
from repromatrix.regressions.bisection import schema
from repromatrix.regressions.bisection.document import answer, document, exit_code
from repromatrix.regressions.bisection.found import found_edges
from repromatrix.regressions.bisection.report import markdown, text
from repromatrix.regressions.bisection.triage import triage
from repromatrix.regressions.bisection.words import answers, commits, doubts, marks
from repromatrix.regressions.model import Bisection, FoundEdge
from repromatrix.report.fit import LIMIT
from repromatrix.report.schema import text as schema_text
from repromatrix.results.model import HloFacts, HloModule
from repromatrix.search.model import Answer, Edge, Rules, Verdict
from repromatrix.spec.model import Described, Outcome
from tests.conftest import ROOT
from tests.sample_bisection import EDGES, bisection, path, repeated, result_of, series, tried, with_attempts
from tests.test_report_markdown import HOSTILE, golden, split_row, table_rows

OK, CRASH = Outcome.OK, Outcome.CRASH
BEGINS = (EDGES[1],)


def edge_of(older: model.Tested, newer: model.Tested, store: Path, confidence: float = 0.995) -> FoundEdge:
    """The edge between two versions, as a search of these two alone gives it."""
    found = Edge(0, 1, newer.verdict, (), confidence)
    tested = {0: older, 1: newer}
    answer = Answer((found,), {place: each.verdict for place, each in tested.items()})
    return found_edges(Project(ROOT, store), answer, tested)[0]


# ---- edges as facts


def test_an_edge_has_what_changed_from_the_older_to_the_newer(tmp_path: Path) -> None:
    ends, begins = bisection(tmp_path).edges
    assert (ends.begins, ends.older.name, ends.newer.name) == (False, "0.6.0", "0.6.1")
    assert (ends.good.name, ends.bad.name) == ("0.6.1", "0.6.0")
    assert (begins.begins, begins.older.name, begins.newer.name) == (True, "0.7.0", "0.7.1")
    assert (begins.good.name, begins.bad.name) == ("0.7.0", "0.7.1")
    assert begins.source == ("jax-v0.7.0", "jax-v0.7.1")
    told = {change.name: change for change in begins.changes}
    assert list(told) == ["jax", "jaxlib", "ml-dtypes", "numpy", "scipy"]
    assert [wheel and wheel.version for wheel in (told["numpy"].first, told["numpy"].second)] == ["2.3.1", "2.3.2"]
    assert [release.words for release in begins.releases] == ["jax 0.7.0 (2025-07-22)", "jax 0.7.1 (2025-08-20)"]
    assert begins.suspect == ""


def test_versions_between_that_say_nothing_are_named(tmp_path: Path) -> None:
    tested = path()
    tested[5] = replace(tried("0.7.0", "skip", "bisect"), why="skip: no wheel")
    found = bisection(tmp_path, tested, (Edge(4, 6, Verdict.BAD, (5,), 0.99),))
    assert [each.name for each in found.edges[0].between] == ["0.7.0"]
    assert answers(found) == (
        "begins in jax 0.7.1 (2025-08-20); last good 0.6.2 (2025-06-17);"
        " it may be in between, where 0.6.5 (left out), 0.7.0 (skip) gave no verdict on it",
    )
    assert "sure, or between the two)" in text(found)


def test_versions_between_that_are_alike_are_one_run(tmp_path: Path) -> None:
    tested = path()
    for place, name in ((3, "0.6.1"), (4, "0.6.2"), (5, "0.7.0")):
        tested[place] = replace(tried(name, "skip", "bisect"), why="skip: no wheel")
    found = bisection(tmp_path, tested, (Edge(2, 6, Verdict.BAD, (3, 4, 5), 0.99),))
    assert "where 0.6.1 to 0.6.2 (skip), 0.6.5 (left out), 0.7.0 (skip) gave no verdict" in answers(found)[0]


def with_commit(tested: model.Tested, commit: str, store: Path, beside: Lock | None = None) -> model.Tested:
    """The same, with a jaxlib in the store that says from which commit it was built; with that of `beside`, if any."""
    assert tested.lock is not None
    others = [wheel for wheel in (beside or tested.lock).wheels if wheel.name == "jaxlib"]
    wheels = tuple(
        replace(wheel, size=0) for wheel in (*(each for each in tested.lock.wheels if each.name != "jaxlib"), *others)
    )
    place = WheelStore(store).place(next(wheel for wheel in wheels if wheel.name == "jaxlib"))
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("jaxlib/version.py", f"_git_hash: str | None = {commit!r}\n")
    return replace(tested, lock=replace(tested.lock, wheels=wheels))


def test_commits_come_from_the_wheels(tmp_path: Path) -> None:
    good, bad = tried("0.9.2", "ok", "end"), tried("0.10.2", "crash", "end")
    one = edge_of(with_commit(good, "a659757d" * 5, tmp_path), bad, tmp_path)
    assert [release.commit for release in one.releases] == ["a659757d" * 5, ""]
    assert commits(one)[:2] == (
        f"The wheels of 0.9.2 were built from jax's commit {'a659757d' * 5}.",
        "No commit of jax was found in the wheels of 0.10.2.",
    )
    both = edge_of(one.older, with_commit(bad, "990e6a0b" * 5, tmp_path), tmp_path)
    assert both.source == ("jax-v0.9.2", "jax-v0.10.2")
    how = triage(both, series("0.9.2", "0.10.2").versions[0].cell)
    assert f"jax:{'990e6a0b' * 5},xla:XLA_AT_jax-v0.10.2" in how.command
    assert "JAX_AT" not in "".join((how.command, *how.fill_in))


def test_two_releases_that_share_a_jaxlib_have_not_its_commit(tmp_path: Path) -> None:
    """As 0.4.36 and 0.4.37 do: the commit is that of the older one alone."""
    good, bad = tried("0.7.0", "ok", "end"), tried("0.7.1", "crash", "end")
    commit = "259194a6" * 5
    edge = edge_of(with_commit(good, commit, tmp_path), with_commit(bad, commit, tmp_path, good.lock), tmp_path)
    assert edge.source == ("jax-v0.7.0", "jax-v0.7.1")
    assert [release.commit for release in edge.releases] == [commit, ""]
    assert commits(edge)[:3] == (
        f"The wheels of 0.7.0 were built from jax's commit {commit}.",
        "No commit of jax was found in the wheels of 0.7.1.",
        "The jaxlib of 0.7.1 is 0.7.0: the commit that it was built from (259194a62591) is not that of jax 0.7.1.",
    )
    how = triage(edge, series("0.7.0", "0.7.1").versions[0].cell)
    words = as_jax_toolbox_reads_it(how.command)
    assert words.passing_versions == f"jax:{commit},xla:XLA_AT_jax-v0.7.0"
    assert words.failing_versions == "jax:JAX_AT_jax-v0.7.1,xla:XLA_AT_jax-v0.7.0"
    assert "JAX_AT_jax-v0.7.1: `git rev-list -n 1 TAG`" in how.fill_in[0]
    assert how.fill_in[0].count("XLA_AT_jax-v0.7.0") == 1


def test_along_jaxlib_the_commits_are_those_of_jaxlib(tmp_path: Path) -> None:
    good, bad = tried("0.7.0", "ok", "end"), tried("0.7.1", "crash", "end")
    old, new = "a" * 40, "b" * 40
    older = replace(with_commit(bad, old, tmp_path, good.lock), name="0.7.0", verdict=Verdict.GOOD)
    edge = edge_of(older, with_commit(bad, new, tmp_path), tmp_path)
    assert edge.source == (old, new)
    assert commits(edge)[:2] == (
        f"jaxlib 0.7.0 was built from jax's commit {old}.",
        f"jaxlib 0.7.1 was built from jax's commit {new}.",
    )
    how = triage(edge, series("0.7.0", "0.7.1").versions[0].cell)
    words = as_jax_toolbox_reads_it(how.command)
    assert words.passing_versions == f"jax:{old},xla:XLA_AT_aaaaaaaaaaaa"
    assert words.failing_versions == f"jax:{new},xla:XLA_AT_bbbbbbbbbbbb"
    assert "those that jaxlib was built from" in how.fill_in[1]
    assert "stayed 0.7.1" in how.fill_in[1]


def test_where_only_another_package_changes_there_is_no_range(tmp_path: Path) -> None:
    bad = with_commit(tried("0.7.1", "crash", "end"), "b" * 40, tmp_path)
    assert bad.lock is not None
    numpy = tuple(replace(wheel, version="2.3.1") if wheel.name == "numpy" else wheel for wheel in bad.lock.wheels)
    older = replace(bad, name="2.3.1", verdict=Verdict.GOOD, lock=replace(bad.lock, wheels=numpy))
    edge = edge_of(older, bad, tmp_path)
    assert edge.source is None
    assert commits(edge) == ("jax and jaxlib are the same on both sides: what to look at are the wheels that changed.",)
    assert triage(edge, series("0.7.0", "0.7.1").versions[0].cell).command == ""


# ---- two that cannot differ

COLLECTED = HloFacts("text", "run", (HloModule("jit_f", "b" * 64, "a" * 64), HloModule("jit_g", "d" * 64, "c" * 64)))


def compiled(tested: model.Tested, *facts: HloFacts | None) -> model.Tested:
    """The same, with an attempt for each of `facts`."""
    attempt = result_of(tested).attempts[0]
    return with_attempts(tested, *(replace(attempt, number=n, hlo=hlo) for n, hlo in enumerate(facts, 1)))


def suspicion(good: Sequence[HloFacts | None], bad: Sequence[HloFacts | None], store: Path) -> str:
    older, newer = tried("0.7.0", "ok", "end"), tried("0.7.1", "crash", "end")
    return edge_of(compiled(older, *good), compiled(newer, *bad), store).suspect


def test_the_same_lock_cannot_be_good_and_bad(tmp_path: Path) -> None:
    older = tried("0.7.0", "ok", "end")
    found = edge_of(older, replace(tried("0.7.1", "crash", "end"), lock=older.lock), tmp_path)
    assert found.suspect.startswith("0.7.0 and 0.7.1 have the same lock, wheel for wheel")
    assert found.changes == ()
    assert found.source is None


def test_the_same_optimised_hlo_is_suspect(tmp_path: Path) -> None:
    other_names = tuple(replace(module, name=f"{module.name}_", before="") for module in COLLECTED.modules[::-1])
    said = suspicion([COLLECTED], [replace(COLLECTED, modules=other_names), None], tmp_path)
    assert said.startswith("the optimised HLO of all 2 modules is the same in 0.7.0 and 0.7.1")
    one = replace(COLLECTED, modules=COLLECTED.modules[:1])
    assert "HLO of the one module is" in suspicion([one], [one], tmp_path)


def test_both_at_once_are_both_said(tmp_path: Path) -> None:
    older = compiled(tried("0.7.0", "ok", "end"), COLLECTED)
    newer = compiled(replace(tried("0.7.1", "crash", "end"), lock=older.lock), COLLECTED)
    said = edge_of(older, newer, tmp_path).suspect
    assert "same lock" in said
    assert "optimised HLO" in said


FIRST, SECOND = COLLECTED.modules


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ([None], [None]),
        ([COLLECTED], [None]),
        ([COLLECTED], [replace(COLLECTED, whole=False)]),
        ([COLLECTED], [replace(COLLECTED, modules=())]),
        ([COLLECTED], [replace(COLLECTED, modules=(FIRST,))]),
        ([COLLECTED], [replace(COLLECTED, modules=(FIRST, replace(SECOND, after="e" * 64)))]),
        ([COLLECTED], [replace(COLLECTED, modules=(FIRST, replace(SECOND, after="")))]),  # its compilation failed
        ([replace(COLLECTED, modules=())] * 2, [replace(COLLECTED, modules=())]),
        # attempts of one version that differ: the compiler itself is not the same each time
        ([COLLECTED], [COLLECTED, replace(COLLECTED, modules=(FIRST, replace(SECOND, after="e" * 64)))]),
    ],
)
def test_hlo_that_differs_or_was_not_seen_as_a_whole_proves_nothing(
    tmp_path: Path, good: list[HloFacts | None], bad: list[HloFacts | None]
) -> None:
    assert suspicion(good, bad, tmp_path) == ""


def on_gpu(tested: model.Tested, versions: dict[str, str], *notes: str) -> model.Tested:
    """With wheels of CUDA's libraries, and attempts that tell what they had in memory."""
    wheels = tuple(
        Wheel(name, version, f"{name}.whl", f"{name} {version}", 1, "") for name, version in versions.items()
    )
    assert tested.lock is not None
    attempt = result_of(tested).attempts[0]
    made = with_attempts(
        tested, *(replace(attempt, number=n, notes=("other", note)) for n, note in enumerate(notes, 1))
    )
    return replace(made, lock=replace(tested.lock, wheels=wheels))


HOSTS = "loaded: cublas 12.9.1.4, cudnn as libcudnn.so.9, of the system, nccl 2.26.2 of the host"


@pytest.mark.parametrize(
    ("old", "new", "suspect"),
    [
        (("nvidia-nccl-cu12", [HOSTS]), ("nvidia-nccl-cu12", [HOSTS, HOSTS]), True),
        (("nvidia-nccl-cu12", ["loaded: nccl 2.26.2"]), ("nvidia-nccl-cu12", ["loaded: nccl 2.28.9"]), False),
        (("nvidia-nccl-cu12", [HOSTS]), ("nvidia-nccl-cu12", [HOSTS, "loaded: cublas 12.9.1.4"]), False),
        (("nvidia-nccl-cu12", [HOSTS]), ("nvidia-nccl-cu12", [""]), False),
        # libcudnn.so.9 may be the system's while the engines that it opens are the wheel's
        (("nvidia-cudnn-cu12", [HOSTS]), ("nvidia-cudnn-cu12", [HOSTS]), False),
        (("jaxlib", [HOSTS]), ("jaxlib", [HOSTS]), False),
    ],
)
def test_a_wheel_that_was_not_loaded_cannot_matter(
    tmp_path: Path, old: tuple[str, list[str]], new: tuple[str, list[str]], suspect: bool
) -> None:
    older = on_gpu(tried("0.7.0", "ok", "end"), {"jax": "1", old[0]: "2.26.2"}, *old[1])
    newer = on_gpu(tried("0.7.1", "crash", "end"), {"jax": "1", new[0]: "2.28.9"}, *new[1])
    said = edge_of(older, newer, tmp_path).suspect
    nccl = "only nvidia-nccl-cu12 changed, and both had the same in memory (nccl 2.26.2 of the host)"
    assert said == (nccl if suspect else "")


def test_less_sure_than_was_asked_for_is_suspect(tmp_path: Path) -> None:
    found = bisection(tmp_path, rules=Rules(confidence=0.999))
    said = "the change is here with a probability of 99.2 % only, and 99.9 % were asked for"
    assert [doubts(found, edge) for edge in found.edges] == [(said,), (said,)]
    assert (answer(found), exit_code(found)) == ("suspect", 1)
    assert text(found, width=200).count(f"SUSPECT: {said}") == 2
    assert markdown(found).count(f"**Suspect:** {said}.") == 2
    certain = replace(found, edges=(replace(found.edges[0], confidence=0.9999), found.edges[1]))
    assert (answer(certain), exit_code(certain)) == ("found", 0)


# ---- the way on to one commit


def as_jax_toolbox_reads_it(command: str) -> argparse.Namespace:
    """The options that its triage had in 2026, as `argparse` takes them there."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--container-runtime", "--failing-container", "--passing-versions", "--failing-versions"):
        parser.add_argument(option)
    parser.add_argument("-v", "--container-mount", action="append")
    parser.add_argument("test_command", nargs="+")
    name, *words = shlex.split(command)
    assert name == "jax-toolbox-triage"
    return parser.parse_args(words)


def test_the_command_for_triage(tmp_path: Path) -> None:
    found = bisection(tmp_path)
    cell = found.series.versions[0].cell
    begins = as_jax_toolbox_reads_it(triage(found.edges[1], cell).command)
    assert begins.container_runtime == "docker"
    assert begins.passing_versions == "jax:JAX_AT_jax-v0.7.0,xla:XLA_AT_jax-v0.7.0"
    assert begins.failing_versions == "jax:JAX_AT_jax-v0.7.1,xla:XLA_AT_jax-v0.7.1"
    assert begins.container_mount == ["$PWD/repros:/repros"]
    flag = "XLA_FLAGS=--xla_unsupported_crash_on_hlo_pass_noop_change=true"
    run = ["env", flag, "python3", "/repros/hlo_pass_crash.py", "--flag", "noop_change"]
    assert begins.test_command == run
    ends = triage(found.edges[0], cell)
    assert as_jax_toolbox_reads_it(ends.command).test_command == ["sh", "-c", f"! {shlex.join(run)}"]
    assert "turned round" in ends.fill_in[-1]


@pytest.mark.parametrize("status", [0, 1])
def test_the_test_of_a_fix_is_turned_round(tmp_path: Path, status: int) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\n[ "$XLA_FLAGS" = "--a={chr(39)}b c{chr(39)}" ] && exit {status}\nexit {status ^ 1}\n'
    )
    python.chmod(0o755)
    found = bisection(tmp_path)
    cell = replace(found.series.versions[0].cell, env=(("XLA_FLAGS", "--a='b c'"),))
    words = as_jax_toolbox_reads_it(triage(found.edges[0], cell).command).test_command
    ran = subprocess.run(words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert ran.returncode == status ^ 1


@pytest.mark.parametrize(("status", "edge", "passes"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, False)])
def test_a_failure_that_comes_and_goes_is_run_often(tmp_path: Path, status: int, edge: int, passes: bool) -> None:
    """Edge 0 is where it ends, so that its test passes where the script fails."""
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho x >> {tmp_path}/runs\nexit {status}\n")
    python.chmod(0o755)
    found = bisection(tmp_path)
    words = as_jax_toolbox_reads_it(triage(found.edges[edge], found.series.versions[0].cell, 3).command).test_command
    ran = subprocess.run(words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert (ran.returncode == 0) == passes
    assert (tmp_path / "runs").read_text().count("x") == (1 if status else 3)


def test_no_command_for_a_metric(tmp_path: Path) -> None:
    found = bisection(tmp_path)
    assert "jax-toolbox-triage --" in markdown(found)
    noisy = replace(found, rules=replace(found.rules, symmetric=True))
    assert "jax-toolbox-triage --" not in markdown(noisy)
    assert "goes by exit statuses" in markdown(noisy)
    assert "goes by exit statuses" in text(noisy)


def test_no_command_where_a_plain_script_cannot_show_it(tmp_path: Path) -> None:
    found = bisection(tmp_path)
    cell = found.series.versions[0].cell
    gpus = Described(Path("h100.txtpb"), "0" * 64, "1x1x8")
    for other in (replace(cell, described=gpus), replace(cell, repro=replace(cell.repro, processes=2))):
        how = triage(found.edges[0], other)
        assert how.command == ""
        assert "there is no command line" in how.fill_in[0]
    assert triage(replace(found.edges[0], source=None), cell).fill_in == ()


# ---- the text and the page


def troubled(store: Path) -> Bisection:
    """A failure that comes and goes, a version that stays open, and one that cannot exist."""
    tested = path()
    tested[5] = repeated(tested[5], *[OK] * 40)
    tested[6] = repeated(tested[6], *[OK, CRASH] * 5)
    tested[4] = replace(repeated(tested[4], *[OK] * 50), verdict=Verdict.AMBIGUOUS)
    why = "skip: no wheel of jaxlib for Python 3.11"
    tested[1] = replace(tested[1], result=None, lock=None, rates=(), why=why, attempted=0, seconds=0.0)
    return replace(bisection(store, tested, BEGINS), rate=(0.13, 0.81), notes=(), others=())


def measured(store: Path) -> Bisection:
    """A search by a number, which stays open for one version."""
    numbers = {"0.6.2": 1.5, "0.7.0": 1.625, "0.7.1": 4.0, "0.7.2": 2.5}
    tested = {
        place: replace(repeated(each, OK, OK), verdict=Verdict.GOOD if numbers[each.name] < 2 else Verdict.BAD)
        for place, each in path().items()
        if each.name in numbers
    }
    tested = {place: replace(each, metric=numbers[each.name]) for place, each in tested.items()}
    tested[7] = replace(tested[7], verdict=Verdict.AMBIGUOUS)
    return replace(bisection(store, tested, BEGINS, Rules(symmetric=True)), failure="loss > 2")


def test_golden_text(tmp_path: Path) -> None:
    golden("bisection.txt", text(bisection(tmp_path), width=120) + "\n")


def test_golden_page(tmp_path: Path) -> None:
    golden("bisection.md", markdown(bisection(tmp_path)))


def test_golden_text_with_trouble(tmp_path: Path) -> None:
    golden("bisection_troubled.txt", text(troubled(tmp_path), width=120) + "\n")


def test_golden_page_with_trouble(tmp_path: Path) -> None:
    golden("bisection_troubled.md", markdown(troubled(tmp_path)))


def test_a_number_stands_in_the_path(tmp_path: Path) -> None:
    found = measured(tmp_path)
    page = text(found, width=200)
    assert page.startswith("hlo_pass_crash on cpu flag=noop_change: loss > 2 begins in jax 0.7.1")
    row = next(line for line in page.splitlines() if line.startswith("0.7.1  "))
    assert row.split()[-4:] == ["2", "4", "bisection", "4.0s"]
    still_open = (
        "0.7.2 (2 times ok). What would settle it: more than 50 attempts (`--attempts`), or a lower `--confidence`."
    )
    assert f"AMBIGUOUS at a confidence of 99 %: {still_open}" in page
    assert is_valid(found)


def test_one_edge_is_one_line(tmp_path: Path) -> None:
    found = replace(bisection(tmp_path, edges=BEGINS), failure="crash SIGABRT")
    assert text(found, width=200).splitlines()[0] == (
        "hlo_pass_crash on cpu flag=noop_change: crash SIGABRT begins in jax 0.7.1 (2025-08-20); "
        "last good 0.7.0 (2025-07-22)"
    )


def test_the_axis_may_be_a_date(tmp_path: Path) -> None:
    found = bisection(tmp_path, edges=BEGINS)
    days = [
        replace(each, name=day)
        for each, day in ((found.edges[0].good, "2025-07-22"), (found.edges[0].bad, "2025-08-20"))
    ]
    edge = replace(found.edges[0], good=days[0], bad=days[1])
    dated = replace(found, series=replace(found.series, axis="date"), edges=(edge,))
    assert answers(dated) == ("begins on 2025-08-20; last good 2025-07-22",)
    assert "released" not in text(dated)


def ended(store: Path, outcomes: dict[str, str], **changes: object) -> Bisection:
    """A search without edges, of versions that ended so."""
    order = [name for name in ("0.5.3", "0.6.0", "0.7.0", "0.7.1") if name in outcomes]
    tested = {place: tried(name, outcomes[name], "end") for place, name in enumerate(order)}
    return replace(bisection(store, tested, ()), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (
            {"0.7.0": "ok", "0.7.1": "ok"},
            "no change found: good in all 2 versions with a verdict, from 0.7.0 (2025-07-22) to 0.7.1 (2025-08-20)",
        ),
        (
            {"0.5.3": "skip", "0.7.1": "crash"},
            "no change found: bad in the one version with a verdict, 0.7.1 (2025-08-20); no good version is known",
        ),
        ({"0.5.3": "skip"}, "nothing can be said: no version that was tried has a verdict"),
        (
            {"0.6.0": "crash", "0.7.0": "ok"},
            "no change of the kind that was looked for: it ends between 0.6.0 and 0.7.0, as far as is known",
        ),
    ],
)
def test_no_change(tmp_path: Path, outcomes: dict[str, str], said: str) -> None:
    found = ended(tmp_path, outcomes)
    assert answers(found) == (said,)
    assert (answer(found), exit_code(found)) == ("no change", 1)


def test_a_refused_search_says_why(tmp_path: Path) -> None:
    found = ended(tmp_path, {"0.7.0": "ok", "0.7.1": "ok"}, refused="0.7.1 is said to be bad and is good")
    assert answers(found) == ("no search: 0.7.1 is said to be bad and is good",)
    assert (answer(found), exit_code(found)) == ("refused", 2)


def test_an_interrupted_search_says_what_is_known(tmp_path: Path) -> None:
    found = ended(tmp_path, {"0.6.0": "crash", "0.7.0": "ok", "0.7.1": "crash"}, interrupted=True)
    assert answers(found) == (
        "ends between 0.6.0 and 0.7.0, as far as is known",
        "begins between 0.7.0 and 0.7.1, as far as is known",
        "interrupted: what was run is kept, and the same command goes on from there",
    )
    assert (answer(found), exit_code(found)) == ("interrupted", 130)
    early = ended(tmp_path, {}, interrupted=True, failure="")
    last = "interrupted: what was run is kept, and the same command goes on from there"
    assert text(early).splitlines()[0] == f"hlo_pass_crash on cpu flag=noop_change: {last}"
    assert "| jax" not in markdown(early)


def test_an_ambiguous_version_is_no_success(tmp_path: Path) -> None:
    found = troubled(tmp_path)
    assert (answer(found), exit_code(found)) == ("ambiguous", 1)
    assert ("0.6.2", "AMBIGUOUS") in marks(found)
    assert exit_code(bisection(tmp_path)) == 0


def test_where_nothing_is_known_to_be_good_it_is_open(tmp_path: Path) -> None:
    tested = {place: each for place, each in path().items() if each.name in ("0.7.0", "0.7.1")}
    tested[5] = replace(tested[5], verdict=Verdict.AMBIGUOUS)
    found = bisection(tmp_path, tested, ())
    said = "AMBIGUOUS: bad: 0.7.1; whether others are good the attempts that are allowed do not tell"
    assert answers(found) == (said,)
    assert answer(found) == "ambiguous"


def test_marks_stand_in_the_order_of_the_versions(tmp_path: Path) -> None:
    found = bisection(tmp_path)
    assert [name for name, _ in marks(found)] == [version.name for version in found.series.versions]
    other = replace(found.path[0], result=replace(result_of(found.path[0]), outcome=Outcome.ERROR))
    assert dict(marks(replace(found, path=(other,)))) == {"0.4.30": "other failure"}


@pytest.mark.parametrize("width", [40, 80])
def test_sentences_fit_the_terminal(tmp_path: Path, width: int) -> None:
    page = text(troubled(tmp_path), width=width)
    tables = (
        "jax ",
        "0.",
        "---",
        "change",
        "  jax-toolbox-triage",
        "Again: ",
        "For a maintainer: ",
        "Commits to look at: http",
    )
    prose = [line for line in page.splitlines() if " " in line.strip() and not line.startswith(tables)]
    assert [line for line in prose if len(line) > width] == []  # one long word stays whole, to be copied


def test_colours_add_nothing_but_colours(tmp_path: Path) -> None:
    found = troubled(tmp_path)
    plain, painted = text(found, width=100), text(found, colour=True, width=100)
    assert "\x1b" not in plain
    assert "\x1b[31mbad\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d*m", "", painted) == plain


NORMAL = bisection(Path("no-store"))


def hostile(words: str) -> Bisection:
    return replace(
        NORMAL,
        failure=words,
        others=((words, ("0.7.2",)),),
        notes=(words,),
        refused="",
        path=tuple(replace(each, why=words) for each in NORMAL.path),
        edges=tuple(replace(edge, suspect=words) for edge in NORMAL.edges),
        command=words,
        facts=(("cpu", words),),
        series=replace(NORMAL.series, left_out=(("0.6.5", words),)),
    )


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_nothing_breaks_out_of_the_page(words: str) -> None:
    for told in (words, HOSTILE):
        page = markdown(hostile(told))
        page.encode()
        page = re.sub(r"(?ms)^(`{3,})sh$.*?^\1$", "", page)  # in a fence all is harmless
        assert {len(split_row(row)) for row in table_rows(page)} == {4, 7}
        assert "<script>" not in re.sub(r"`[^`\n]*`", "", page)
        text(hostile(told)).encode()
        json.dumps(document(hostile(told)), allow_nan=False)


def test_a_page_too_long_keeps_the_answer(tmp_path: Path) -> None:
    found = bisection(tmp_path)
    many = tuple(replace(found.path[n % 11], name=f"0.7.{n}", why=f"{n} " + "word " * 100) for n in range(900))
    edges = tuple(replace(edge, changes=edge.changes * 20) for edge in found.edges)
    page = markdown(replace(found, path=many, edges=edges))
    assert len(page) <= LIMIT
    assert "**begins in jax 0.7.1 (2025-08-20); last good 0.7.0 (2025-07-22)**" in page
    assert "compare/jax-v0.7.0...jax-v0.7.1" in page
    assert found.command in page
    assert page.count("<details>") == page.count("</details>") == 3
    assert "870 more reasons in `--json`." in page


# ---- the document


def is_valid(found: Bisection) -> bool:
    made = json.loads(json.dumps(document(found), allow_nan=False))
    jsonschema.Draft202012Validator(schema.schema()).validate(made)
    return True


def test_the_document_is_as_its_schema_says(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    assert is_valid(bisection(tmp_path))
    assert is_valid(troubled(tmp_path))
    assert is_valid(ended(tmp_path, {}, interrupted=True))
    odd = ended(tmp_path, {"0.7.0": "ok"})
    assert is_valid(replace(odd, path=(replace(odd.path[0], metric=float("nan")),)))


def test_the_schema_is_checked_in() -> None:
    kept = (ROOT / "schemas" / schema.NAME).read_text()
    assert kept == schema_text(schema.schema()), "run: python -m repromatrix.regressions.bisection.schema"


def test_the_document_says_it_all(tmp_path: Path) -> None:
    made = document(bisection(tmp_path))
    assert made["schema"] == 1
    told = made["bisection"]
    assert told["answer"] == "found"
    assert [(edge["older"], edge["newer"], edge["begins"]) for edge in told["edges"]] == [
        ("0.6.0", "0.6.1", False),
        ("0.7.0", "0.7.1", True),
    ]
    assert told["edges"][1]["compare"].endswith("/compare/jax-v0.7.0...jax-v0.7.1")
    assert [each["name"] for each in told["path"]][:2] == ["0.4.30", "0.10.2"]
    first = told["path"][0]
    assert (first["verdict"], first["mark"], first["released"]) == ("unknown", "skip", "2024-06-18")
    assert first["cell"]["id"] == "hlo_pass_crash@jax0.4.30-cpu-py311@cpu@flag=noop_change"
    assert len(told["path"][6]["cell"]["attempts"]) == 5
    lock: Lock | None = bisection(tmp_path).path[0].lock
    assert lock is not None
    assert first["lock"] == lock.hash
