"""What a bug report says, from results built by hand: `share/issues/`."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from repromatrix.envs.lockfile import write_lock
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.evidence.model import Signature
from repromatrix.kept import to_show
from repromatrix.project import Project
from repromatrix.report.fit import LIMIT
from repromatrix.report.layout import Notes
from repromatrix.results.model import CellResult, HloFacts
from repromatrix.share.issues.env_block import EnvironmentInfo, without_processes
from repromatrix.share.issues.history import histories
from repromatrix.share.issues.issue import issue_text, issue_title
from repromatrix.share.issues.material import Material, by_hand, deciding, fit_to_leave, logs, nothing_fails
from repromatrix.share.issues.releases import Release, release, source_range
from repromatrix.share.privacy.private import Private
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.model import Cell, Environment, Outcome
from tests.sample_cells import ATTEMPT, NOOP, REPRO, RUN, TRUTH, cell, matrix
from tests.test_report_markdown import golden

NOBODY = Redactor.of(Private())
LAB = Redactor.of(Private(places=(("/srv/lab/mx", "<project>"),), users=("asmith42",), hosts=("dgxnode17",)))
DAYS = dict(zip(TRUTH, (f"2025-{month:02}-15" for month in range(1, 13)), strict=False))
SCRIPT = '''\
# /// repro
# title = "XLA aborts when a pass lies about having changed the HLO"
# ///
"""Two debugging flags of XLA turn the compiler's own bookkeeping errors into aborts."""
import jax

print(float(jax.jit(lambda x: x + 1)(1.0)))
'''
INFO = """\
jax:    0.10.2
jaxlib: 0.10.2
device info: cpu-1, 1 local devices"
platform: uname_result(system='Linux', node='dgxnode17', release='6.1.0', machine='x86_64')"""
STDERR = "\n".join(
    [
        "F0000 00:00:1733 hlo_pass_pipeline.cc:234] Pass 'layout-assignment' lied",
        *(f"    @     0x55d0c0ffee{n:02x}  xla::HloPassPipeline::Run{n}()" for n in range(4)),
        'File "/home/asmith42/x.py", line 3 of /srv/lab/mx/repros on dgxnode17',
    ]
)


def known(cells: Sequence[CellResult]) -> tuple[tuple[str, Release], ...]:
    made = {}
    for one in cells:
        version = dict(one.axes)["jax"]
        jaxlib = dict(one.axes).get("jaxlib", version)
        day = DAYS.get(version, "")
        made[one.environment] = Release((("jax", version, day), ("jaxlib", jaxlib, day)), "")
    return tuple(made.items())


def material(cells: tuple[CellResult, ...] | None = None, redactor: Redactor = LAB, source: str = SCRIPT) -> Material:
    """What `gather` makes of sample cells."""
    clean = redactor.all(cells or tuple(matrix()))
    shown = to_show(clean)
    found = Material(
        repro=replace(REPRO, source=source),
        cells=clean,
        run=RUN,
        tool="0.1.0 (commit 477e816a5c3f)",
        histories=histories(clean, Notes(clean)),
        releases=known(clean),
    )
    if shown is not None:
        hlo = HloFacts("passes", "explain", last="layout-assignment")
        found = replace(
            found,
            shown=shown,
            attempt=replace(shown.attempts[0], hlo=hlo),
            info=EnvironmentInfo(INFO),
            by_hand="python3.11 -m venv venv &&\nvenv/bin/pip install --no-deps jax==0.10.2 &&\nvenv/bin/python x.py",
            handoff="uv run invoke handoff hlo_pass_crash --cell x",
            logs=(("stderr", STDERR),),
        )
    return fit_to_leave(found, redactor)


def edges(cells: tuple[CellResult, ...]) -> list[tuple[str, str, str, str, int]]:
    """(axis, `good` or `bad` first, older version, newer version, cells between) of every edge."""
    found = []
    for series in histories(cells, Notes(cells)):
        for edge in series.edges:
            good, bad = dict(edge.good.axes)[series.axis], dict(edge.bad.axes)[series.axis]
            ends = (good, bad) if edge.begins else (bad, good)
            found.append((series.axis, "good" if edge.begins else "bad", *ends, len(edge.between)))
    return found


# ---- first bad and last good


def test_every_edge_of_a_failure_that_comes_and_goes() -> None:
    assert edges(tuple(matrix())) == [
        ("jax", "bad", "0.6.0", "0.6.1", 0),
        ("jax", "good", "0.7.0", "0.7.1", 0),
        ("jax", "good", "0.6.0", "0.6.1", 0),
        ("jax", "bad", "0.7.0", "0.7.1", 0),
    ]


def test_versions_are_ordered_as_versions_whatever_the_order_of_the_cells() -> None:
    assert sorted(edges(tuple(reversed(matrix())))) == sorted(edges(tuple(matrix())))


def test_what_says_nothing_lies_between() -> None:
    """A skip, an inconclusive, an infra, and a failure of another kind are neither good nor bad."""
    versions = {"0.6.1": "ok", "0.6.2": "skip", "0.7.0": "ok", "0.7.1": "crash", "0.7.2": "ok", "0.8.3": "crash"}
    cells = [cell(version, "noop_change", outcome) for version, outcome in versions.items()]
    cells[2] = replace(cells[2], outcome=Outcome.INCONCLUSIVE)
    cells[3] = replace(cells[3], signature=Signature("another"))
    cells[4] = replace(cells[4], outcome=Outcome.INFRA)
    found = histories(tuple(cells), Notes(cells))
    assert [(each.failure, len(each.bad), len(each.good)) for each in found] == [(1, 1, 1), (2, 1, 1)]
    assert edges(tuple(cells)) == [
        ("jax", "good", "0.6.1", "0.7.1", 2),
        ("jax", "good", "0.6.1", "0.8.3", 4),
    ]


def test_failures_without_a_signature_are_told_apart_by_how_they_ended() -> None:
    made = [cell("0.6.1", "noop_change", "ok"), *(cell(one, "noop_change", "crash") for one in ("0.7.0", "0.7.1"))]
    cells = tuple(replace(one, signature=None) for one in made)
    cells = (cells[0], replace(cells[1], outcome=Outcome.HANG, signal="SIGABRT"), replace(cells[2], signal="SIGSEGV"))
    assert edges(cells) == [("jax", "good", "0.6.1", "0.7.0", 0), ("jax", "good", "0.6.1", "0.7.1", 1)]


def with_axis(version: str, outcome: str, **axes: str) -> CellResult:
    one = cell(version, "noop_change", outcome)
    changed = {**dict(one.axes), **axes}
    return replace(one, axes=tuple(changed.items()), environment="-".join([version, *axes.values()]))


def test_old_pythons_and_new_ones_are_one_series() -> None:
    cells = (with_axis("0.7.0", "ok", python="3.11"), with_axis("0.12.0", "crash", python="3.13"))
    assert edges(cells) == [("jax", "good", "0.7.0", "0.12.0", 0)]


def test_a_version_with_several_pythons_makes_a_series_for_each() -> None:
    cells = tuple(
        with_axis(version, "crash" if version == "0.7.1" and python == "3.12" else "ok", python=python)
        for version in ("0.7.0", "0.7.1")
        for python in ("3.11", "3.12")
    )
    found = histories(cells, Notes(cells))
    assert [(dict(each.bad[0].axes)["python"], len(each.edges)) for each in found] == [("3.12", 1)]


def test_other_axes_have_edges_of_their_own() -> None:
    cells = (with_axis("0.7.1", "ok", jaxlib="0.7.0"), with_axis("0.7.1", "crash", jaxlib="0.7.1"))
    assert edges(cells) == [("jaxlib", "good", "0.7.0", "0.7.1", 0)]
    cells = (with_axis("0.7.1", "ok", nccl="locked"), with_axis("0.7.1", "crash", nccl="2.28.9"))
    assert edges(cells) == []  # `locked` has no place in an order


@given(st.lists(st.sampled_from(["ok", "crash", "skip"]), min_size=1, max_size=12))
def test_edges_are_where_the_verdict_changes(outcomes: list[str]) -> None:
    cells = tuple(cell(f"0.{minor}.0", "noop_change", outcome) for minor, outcome in enumerate(outcomes, 1))
    told = [outcome for outcome in outcomes if outcome != "skip"]
    changes = sum(a != b for a, b in pairwise(told))
    assert len(edges(cells)) == changes
    lost = sum(edge[4] for edge in edges(cells))
    assert lost <= outcomes.count("skip")


# ---- releases

ENVIRONMENT = Environment((("jax", "0.8.1"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")))
COMMIT = "8fc84ad2edc63fb3ac99abd56cae33653c8dc86e"


def locked(tmp_path: Path, version_py: str, jax_py: str = "_git_hash: str | None = None", beside: str = "") -> Project:
    """A checkout with a lock of jax 0.8.1, and its jaxlib in the store: of the version `beside`, or the same."""
    project = Project(tmp_path, tmp_path / "store")
    tmp_path.mkdir(exist_ok=True)
    versions = {"jax": "0.8.1", "jaxlib": beside or "0.8.1"}
    tags = {"jax": "py3-none-any", "jaxlib": "cp311-cp311-manylinux_2_27_x86_64"}
    wheels = []
    for number, (name, version) in enumerate(versions.items()):
        filename = f"{name}-{version}-{tags[name]}.whl"
        path = tmp_path / filename
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}/version.py", version_py if name == "jaxlib" else jax_py)
        size, day = path.stat().st_size, f"2025-11-1{number}T20:00:00Z"
        wheels.append(Wheel(name, version, filename, str(number) * 64, size, day))
        place = WheelStore(project.store).place(wheels[-1])
        place.parent.mkdir(parents=True)
        path.rename(place)
    lock = Lock(ENVIRONMENT, "3.11", "x86_64-manylinux_2_28", "release", "2025-11-11T23:59:59Z", tuple(wheels))
    write_lock(lock, project.locks)
    return project


@pytest.mark.parametrize(
    ("version_py", "commit"),
    [
        (f"_git_hash: str = '{COMMIT}'\n", COMMIT),
        ("_git_hash: str | None = None\n", ""),
        ("# Copyright\n_version = '0.8.1'\n", ""),
    ],
)
def test_a_release_has_days_and_the_commit_of_its_wheel(tmp_path: Path, version_py: str, commit: str) -> None:
    found = release(ENVIRONMENT, locked(tmp_path, version_py))
    assert found == Release((("jax", "0.8.1", "2025-11-10"), ("jaxlib", "0.8.1", "2025-11-11")), commit, commit)
    assert found.words == "jax 0.8.1 (2025-11-10)"
    assert found.reference == "jax-v0.8.1"


def test_the_commit_of_a_jaxlib_of_another_release_is_not_that_of_jax(tmp_path: Path) -> None:
    """jax 0.4.37 has the jaxlib of 0.4.36, and 0.5.2 that of 0.5.1."""
    shared = release(ENVIRONMENT, locked(tmp_path / "shared", f"_git_hash: str = '{COMMIT}'\n", beside="0.8.0"))
    assert (shared.version("jaxlib"), shared.commit, shared.jaxlib_commit) == ("0.8.0", "", COMMIT)
    own = f"_git_hash: str = '{'5' * 40}'\n"
    for beside in ("0.8.0", "0.8.1"):
        found = release(ENVIRONMENT, locked(tmp_path / beside, f"_git_hash: str = '{COMMIT}'\n", own, beside))
        assert (found.commit, found.jaxlib_commit) == ("5" * 40, COMMIT)


def test_a_release_without_a_lock_or_with_a_damaged_wheel_is_still_a_version(tmp_path: Path) -> None:
    assert release(ENVIRONMENT, Project(tmp_path, tmp_path)).words == "jax 0.8.1"
    project = locked(tmp_path, f"_git_hash: str = '{COMMIT}'\n")
    for path in (project.store / "wheels").rglob("jaxlib*.whl"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert release(ENVIRONMENT, project).commit == ""


def test_ranges_are_tags_of_releases_and_commits_of_nightlies() -> None:
    old, new = (Release((("jax", version, ""),), commit) for version, commit in (("0.7.0", "a"), ("0.7.1", "b")))
    assert source_range(old, new) == ("jax-v0.7.0", "jax-v0.7.1")
    nightly = Release((("jax", "0.11.0.dev20260701", ""),), "c0ffee")
    assert source_range(new, nightly) == ("jax-v0.7.1", "c0ffee")
    assert source_range(new, replace(nightly, commit="")) is None
    nightlies = [replace(nightly, versions=(("jax", f"0.11.0.dev2026070{day}", ""),), commit="") for day in (1, 2)]
    assert source_range(*(replace(each, jaxlib_commit=str(n)) for n, each in enumerate(nightlies))) is None


def beside(jaxlib: str, commit: str = "", jaxlib_commit: str = "", jax: str = "0.7.1", numpy: str = "2.3.1") -> Release:
    return Release((("jax", jax, ""), ("jaxlib", jaxlib, ""), ("numpy", numpy, "")), commit, jaxlib_commit)


def test_one_jax_with_two_releases_of_jaxlib_has_a_range_of_the_commits_of_jaxlib() -> None:
    assert source_range(beside("0.7.0", "", "a"), beside("0.7.1", "b", "b")) == ("a", "b")
    assert source_range(beside("0.7.0", "c", "a"), beside("0.7.1", "c", "b")) == ("a", "b")
    assert source_range(beside("0.7.0", "a"), beside("0.7.1", "b", "b")) is None  # of one jaxlib nothing is known
    assert source_range(beside("0.7.1", "b", "b"), beside("0.7.1", "b", "b", numpy="2.3.2")) is None


def told_of_edge(good: Release, bad: Release, axis: str) -> str:
    """The line of a report on an edge between the two, along `axis`."""
    cells = tuple(
        with_axis(each.jax, outcome, **{axis: each.version(axis)}) for each, outcome in ((good, "ok"), (bad, "crash"))
    )
    releases = tuple(zip((one.environment for one in cells), (good, bad), strict=True))
    text = issue_text(replace(material(cells), releases=releases), NOBODY)
    return next(line for line in text.splitlines() if "**first bad**" in line)


def test_commits_are_told_where_they_are_known_to_be_those_of_the_range() -> None:
    a, b = "a" * 40, "b" * 40
    line = told_of_edge(beside("0.7.0", a, a, jax="0.7.0"), beside("0.7.1", b, b), "jax")
    assert "compare/jax-v0.7.0...jax-v0.7.1), commits `aaaaaaaaaaaa` to `bbbbbbbbbbbb`" in line
    shared = told_of_edge(beside("0.7.0", a, a, jax="0.7.0"), beside("0.7.0", "", a), "jax")
    assert shared.endswith("compare/jax-v0.7.0...jax-v0.7.1).")
    line = told_of_edge(beside("0.7.0", "", a), beside("0.7.1", b, b), "jaxlib")
    assert line.endswith(f"compare/{a}...{b}), the commits that jaxlib was built from.")
    line = told_of_edge(beside("0.7.1", b, b), beside("0.7.1", b, b, numpy="2.3.2"), "numpy")
    assert not re.search("range|commit|compare|bbbb", line)


# ---- the text


def test_golden() -> None:
    golden("issue.md", issue_text(material(), LAB))


def test_golden_where_nothing_fails() -> None:
    cells = tuple(one for one in matrix() if not one.outcome.failed)
    found = material(cells)
    assert found.shown is None
    golden("issue_nothing_fails.md", issue_text(found, LAB))


def test_the_text_fits_the_template() -> None:
    text = issue_text(material(), LAB)
    headings = re.findall(r"^###+ .*", text, re.MULTILINE)
    assert headings[0] == "### Description"
    assert "### System info (python version, jaxlib version, accelerator, etc.)" in headings
    assert len(re.findall(r"^<details>", text, re.MULTILINE)) == len(re.findall(r"^</details>", text, re.MULTILINE))
    assert SCRIPT in text
    assert "tar -xzf hlo_pass_crash.tgz && sh hlo_pass_crash/reproduce.sh\n" in text


def test_the_title_says_where_it_began() -> None:
    assert issue_title(material()) == f"{REPRO.title} (jax 0.7.1 to 0.10.2, ok in 0.7.0)"
    long = replace(material(), repro=replace(REPRO, title="long " * 100))
    assert len(issue_title(long)) <= 256


def test_no_version_is_good_that_nothing_proves() -> None:
    cells = tuple(replace(one, outcome=Outcome.INCONCLUSIVE) for one in matrix() if one.outcome is Outcome.OK)
    assert (
        nothing_fails(cells) == "Nothing is known to fail: 0 cells are ok, and of 9 nothing is known (9 inconclusive)."
    )
    failing = tuple(one for one in matrix() if one.outcome is Outcome.CRASH and one.params[0][1] == "noop_change")
    text = issue_text(material((*cells, *failing)), LAB)
    assert "last good" not in text.replace("#### First bad and last good", "")
    assert "**no good version is known**" in text


def test_a_flaky_failure_is_said_to_be_one() -> None:
    bad, good = cell("0.7.1", "noop_change", "crash"), cell("0.7.0", "noop_change", "ok")
    ok = good.attempts[0]
    bad = replace(bad, attempts=(bad.attempts[0], ok, ok))
    text = issue_text(material((good, bad)), LAB)
    assert "the bad one fails in 1 of 3 attempts, the good one in none of 1" in text
    assert "1 of 3 attempts failed" in text


def test_the_cell_that_is_shown_is_a_claimed_failure_of_the_newest_version() -> None:
    cells = tuple(matrix())
    shown = to_show(cells)
    assert shown is not None
    assert (dict(shown.axes)["jax"], shown.outcome) == ("0.10.2", Outcome.CRASH)
    unclaimed = tuple(replace(one, as_expected=False) if dict(one.axes)["jax"] == "0.10.2" else one for one in cells)
    shown = to_show(unclaimed)
    assert shown is not None
    assert dict(shown.axes)["jax"] == "0.9.2"
    assert to_show(tuple(one for one in cells if one.outcome is Outcome.OK)) is None


@example(script=2_000, log=1_000, wide=20_000, ticks=4, versions=60)
@example(script=700, log=0, wide=1, ticks=0, versions=31)
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    script=st.integers(0, 2_000),
    log=st.integers(0, 1_000),
    wide=st.integers(1, 20_000),
    ticks=st.integers(0, 9),
    versions=st.integers(1, 60),
)
def test_any_report_fits_and_keeps_what_is_essential(
    script: int, log: int, wide: int, ticks: int, versions: int
) -> None:
    cells = tuple(
        cell(f"0.{minor}.0", "noop_change", "ok" if minor < 3 else "crash") for minor in range(1, versions + 1)
    )
    line = "`" * ticks + "x" * wide
    source = SCRIPT + "".join(f"x{n} = {n}  # /home/asmith42/{n} {'y' * 60}\n" for n in range(script))
    found = material(cells, source=source)
    text = issue_text(replace(found, logs=(("stderr", f"{line}\n" * log), ("stacks", STDERR * log))), LAB)
    assert len(text) <= LIMIT
    assert "asmith42" not in text
    assert "### System info" in text
    assert "### Description" in text
    if versions >= 3:
        assert NOOP.title in text
        assert "**first bad**" in text
        assert "sh hlo_pass_crash/reproduce.sh" in text
        assert INFO.splitlines()[0] in text


def test_a_long_script_is_folded_and_cut_with_a_mark() -> None:
    source = SCRIPT + "".join(f"x{n} = {n}  # {'y' * 60}\n" for n in range(2_000))
    text = issue_text(material(source=source), LAB)
    assert "<details><summary>2007 lines</summary>" in text
    assert re.search(r"Left out to fit 65,536 characters: \d+ lines of the script", text)
    assert "x0 = 0" in text


def test_hostile_text_breaks_nothing() -> None:
    bad = cell("0.7.1", "noop_change", "crash")
    hostile = "</details> ``` @octocat #1 <script>\n\x1b[31m | \udc80"
    bad = replace(bad, signature=Signature(hostile), attempts=(replace(bad.attempts[0], signature=Signature(hostile)),))
    found = replace(material((bad,)), logs=(("std | err </summary>", f"{hostile}\n````\n"),))
    text = issue_text(found, LAB)
    text.encode()
    outside = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "@octocat" not in re.sub(r"`[^`]*`", "", outside)
    assert "<script>" not in re.sub(r"`[^`]*`", "", outside)


# ---- nothing private


def test_nothing_private_is_left_and_the_script_says_that_it_was_changed() -> None:
    bad = cell("0.7.1", "noop_change", "crash")
    told = Signature("error at /home/asmith42/x.py by asmith42@dgxnode17.example.org", ("in /srv/lab/mx/x.cc",))
    bad = replace(
        bad,
        signature=told,
        reason="see /srv/lab/mx/log of a_b@example.com",
        attempts=(replace(bad.attempts[0], signature=told, notes=("wrote /home/asmith42/core",)),),
    )
    found = material((bad, cell("0.7.0", "noop_change", "ok")), source=SCRIPT + "# data: /home/asmith42/data\n")
    assert found.altered == ("hlo_pass_crash.py",)
    text = issue_text(found, LAB)
    for word in ("asmith42", "dgxnode17", "/srv/lab", "a_b", "/home/"):
        assert word not in text
    assert "Private words in `hlo_pass_crash.py` were replaced" in text
    assert "# data: <home>/data" in text
    assert material().altered == ()


def test_the_command_by_hand_has_all_that_decides() -> None:
    one = Cell(
        Environment((("jax", "0.7.1"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked"))),
        REPRO,
        (("flag", "noop change"), ("deep", True)),
        "cpu",
        env=(("XLA_FLAGS", "--a --b"),),
    )
    lines = by_hand(one, ["jax==0.7.1", "jaxlib==0.7.1"]).splitlines()
    assert lines == [
        "python3.11 -m venv venv &&",
        "venv/bin/pip install --no-deps jax==0.7.1 jaxlib==0.7.1 &&",
        "XLA_FLAGS='--a --b' venv/bin/python hlo_pass_crash.py --flag 'noop change' --deep true",
    ]
    assert by_hand(one, []) == ""
    assert by_hand(replace(one, repro=replace(REPRO, processes=2)), ["jax==0.7.1"]) == ""


def test_no_process_of_anybody_is_named() -> None:
    table = [
        "+-----+",
        "| Processes:      |",
        "|  GPU   PID   Type   Process name |",
        "|=====|",
        "|    0   25352      C   ...jdoe/secret/bin/python        548MiB |",
        "+-----+",
    ]
    gpus = ["$ nvidia-smi", "+-----+", "| NVIDIA-SMI 580.159.04 |", "+-----+"]
    assert without_processes("\n".join([*gpus, "", *table])) == "\n".join(gpus)
    assert without_processes(INFO) == INFO


# ---- what is gathered


def test_what_tells_most_comes_first_and_no_link_is_followed(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "store")
    names = ("stdout.0", "stderr.0", "stdout.1", "stderr.1", "stacks/7.txt", "hlo.json", "explain/stderr", "stderr.2")
    folder = tmp_path / "evidence" / "1"
    (folder / "stacks").mkdir(parents=True)
    (folder / "explain").mkdir()
    for name in names[:-1]:
        (folder / name).write_text(f'{name}: File "{folder}/work/x.py"\n')
    (folder / "stderr.2").symlink_to("/etc/hostname")
    ranks = tuple(replace(rank, role="first" if rank.rank == 1 else "followed") for rank in ATTEMPT.ranks)
    attempt = replace(ATTEMPT, evidence="evidence/1", files=tuple((name, name) for name in names), ranks=ranks)
    found = tuple(logs(project, attempt))
    assert [what for what, _ in found] == ["stderr.1", "stderr.0", "stacks/7.txt", "stdout.1", "stdout.0"]
    assert found[0][1] == 'stderr.1: File "x.py"\n'
    old = replace(attempt, files=(), ranks=())
    (folder / "stderr").write_text("it broke")
    assert tuple(logs(project, old)) == (("stderr", "it broke"),)


def test_the_attempt_that_is_shown_ended_as_the_cell_did() -> None:
    bad = cell("0.7.1", "noop_change", "crash")
    good, other = cell("0.7.0", "noop_change", "ok").attempts[0], replace(bad.attempts[0], signature=Signature("other"))
    assert deciding(replace(bad, attempts=(good, other, bad.attempts[0]))) == 2
    assert deciding(replace(bad, attempts=(good, other))) == 1


def test_files_beside_the_script_are_shown_or_named() -> None:
    found = replace(material(), others=(("helper.py", "def help(): ...\n"), ("weights.npz", "")))
    text = issue_text(found, LAB)
    assert "helper.py, which it needs beside it</summary>" in text
    assert "def help(): ..." in text
    assert "It needs `weights.npz` beside it." in text
