from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.evidence.model import RankResult, Signature
from repromatrix.report.escape import code, fence, prose
from repromatrix.report.fit import LIMIT
from repromatrix.report.layout import Notes, grids, newest_first
from repromatrix.report.markdown import index_page, repro_page
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome, Repro
from tests.sample_cells import ATTEMPT, MISSING, NOOP, REPRO, RUN, SEGFAULT, broken, cell, deaths, matrix

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = (
    "a | b ``` `x` \n# head <script>alert(1)</script> [l](http://x) **b** @octocat #1 \\ \x1b[31m \udc80 ~~s~~ _u_"
)


def golden(name: str, text: str) -> None:
    """Compare with tests/golden/`name`; to renew it, delete the file and run the test twice."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{name} was missing and has been written: read it, then run again")
    assert text == path.read_text(encoding="utf-8")


def table_rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|")]


def split_row(line: str) -> list[str]:
    return [part.strip() for part in line.strip("|").split("|")]


def test_page_of_a_repro_that_holds() -> None:
    golden("hlo_pass_crash.md", repro_page(REPRO, matrix(), RUN))


def test_page_with_every_trouble() -> None:
    golden("hlo_pass_crash_broken.md", repro_page(REPRO, broken(), RUN))


def test_page_of_ways_to_die() -> None:
    golden("deaths.md", repro_page(REPRO, deaths(), RUN))


def test_index() -> None:
    other = Repro("unrun", Path("repros/unrun.py"), "", "0" * 64, title="Never run")
    golden("index.md", index_page([REPRO, other], broken(), RUN))


def test_one_failure_has_one_number_even_through_a_third() -> None:
    a, b = Signature("a"), Signature("b")
    bridge = Signature("c", ("a", "b"))
    cells = [replace(matrix()[4], id=str(n), signature=s) for n, s in enumerate((a, NOOP, b, bridge))]
    notes = Notes(cells)
    assert [notes.number(cell) for cell in cells] == [1, 2, 1, 1]
    assert [(failure.title, failure.cells) for failure in notes.failures] == [("a", 3), (NOOP.title, 1)]
    assert notes.failures[0].titles == {"a", "b", "c"}


def test_a_refused_flag_is_no_failure() -> None:
    refused = replace(matrix()[0], signature=Signature("flag --xla_x"))
    page = repro_page(REPRO, [refused], RUN)
    assert "skip [a], as claimed" in page
    assert "## Failures" not in page


def test_newest_first_by_version_not_by_text() -> None:
    rows = newest_first(matrix())
    assert rows[:3] == ("jax0.10.2-cpu-py311", "jax0.9.2-cpu-py311", "jax0.8.3-cpu-py311")
    assert rows[-1] == "jax0.4.30-cpu-py311"
    cuda = [
        replace(cell("0.6.0", "f", "ok"), environment=value, axes=(("jax", "0.6.0"), ("cuda", value)))
        for value in ("13", "none", "12")
    ]
    assert newest_first(cuda) == ("none", "12", "13")


def test_a_cell_that_no_engine_ran_stands_in_every_table() -> None:
    tables = grids(broken())
    assert [grid.engine for grid in tables] == ["docker", "venv"]
    assert all(grid.cells["jax0.10.2-cpu-py311", "gpu:2 flag=noop_change"].engine == "" for grid in tables)


@pytest.mark.parametrize("place", ["title", "issue", "signature", "reason", "param", "fact", "command", "note", "file"])
def test_hostile_text_stays_text(place: str) -> None:
    repro, one = REPRO, matrix()[4]
    if place == "title":
        repro = replace(REPRO, title=HOSTILE)
    elif place == "issue":
        repro = replace(REPRO, issue=HOSTILE)
    elif place == "signature":
        one = replace(one, signature=Signature(HOSTILE), as_expected=False)
    elif place == "reason":
        one = replace(one, outcome=Outcome.SKIP, signature=None, reason=HOSTILE)
    elif place == "param":
        one = replace(one, params=(("flag", HOSTILE),))
    elif place == "fact":
        one = replace(one, facts=(("jax", HOSTILE),), base=HOSTILE)
    elif place == "note":
        one = replace(one, attempts=(replace(ATTEMPT, notes=(HOSTILE,)),))
    elif place == "file":
        one = replace(one, attempts=(replace(ATTEMPT, files=((HOSTILE, HOSTILE.replace("\udc80", "")),)),))
    else:
        one = replace(one, command=HOSTILE)
    page = repro_page(repro, [one], RUN)
    page.encode("utf-8")
    assert "\x1b" not in page
    outside = page if place not in ("command", "fact") else page[: page.index("<details>")]
    assert "<script" not in re.sub(r"`[^`\n]+`", "", outside)
    assert "@octocat" not in re.sub(r"`[^`\n]+`", "", outside)
    assert not re.search(r"(?<![&\w])#1\b", re.sub(r"`[^`\n]+`", "", outside))
    assert "\n# head" not in outside
    tables = [split_row(row) for row in table_rows(page)]
    assert {len(row) for row in tables[:3]} == {2}
    if place == "command":
        assert "\n````sh\n" in page
        assert page.count("\n````\n") == 1


def test_escapes() -> None:
    assert code("flag=noop_change") == "`flag=noop_change`"
    assert code("f32[8] <b> * \\") == "`f32[8] <b> * \\`"
    assert code("a|b") == "<code>a&#124;b</code>"
    assert code("a`b\nc") == "<code>a&#96;b c</code>"
    assert code("") == ""
    assert prose("no --xla_flag_x=1 <b> a|b") == "no --xla_flag_x=1 &lt;b&gt; a&#124;b"
    assert prose("_x_ *y* `z` [a](b)") == r"\_x\_ \*y\* \`z\` \[a\](b)"
    assert prose("by @user in #12, mail a@b") == "by <code>@</code>user in <code>#</code>12, mail a<code>@</code>b"
    assert fence(["a ```` b"], "sh") == ("`````sh", "`````")


def test_issue_links() -> None:
    assert "[openxla/xla 12345](https://github.com/openxla/xla/issues/12345)" in repro_page(REPRO, matrix(), RUN)
    odd = replace(REPRO, issue="https://example.org/a b>?x=1")
    assert "<https://example.org/a%20b%3E?x=1>" in repro_page(odd, matrix(), RUN)


def test_nothing_claimed() -> None:
    free = replace(matrix()[4], expected="", as_expected=None)
    page = repro_page(replace(REPRO, expect=()), [free], RUN)
    assert "1 cell: 1 crash; 1 failed with nothing claimed." in page
    assert "\n## Failed, and nothing was claimed\n" in page
    assert f"\n- `{free.environment}` `{free.column}` on `venv`: `crash SIGABRT` `absl-fatal" in page
    assert "ot as claimed" not in page
    index = index_page([replace(REPRO, expect=())], [free], RUN)
    assert "**1 failed, nothing claimed**" in index
    assert "ot as claimed" not in index
    both = repro_page(REPRO, [free, replace(matrix()[5], as_expected=False)], RUN)
    assert both.index("## Not as claimed") < both.index("## Failed, and nothing was claimed")


def test_a_finding_stands_once_with_its_cells() -> None:
    page = repro_page(REPRO, deaths(), RUN)
    assert page.count(MISSING.format("N")) == 1
    line = next(line for line in page.splitlines() if MISSING.format("N") in line)
    assert line.endswith(
        "`jax0.8.3-cpu-py311` `cpu flag=noop_change` venv, `jax0.9.2-cpu-py311` `cpu flag=noop_change` venv"
    )
    assert MISSING.format(12) in repro_page(REPRO, [one for one in deaths() if "0.9.2" in one.id], RUN)
    noted = [replace(one, attempts=(replace(one.attempts[0], notes=("same",)),)) for one in matrix()]
    assert "- same: all 22 cells\n" in repro_page(REPRO, noted, RUN)
    assert repro_page(REPRO, [*noted[:12], *matrix()[12:]], RUN).count("venv, 4 more\n") == 1


def test_memory_is_shown_where_it_ran_out_or_is_limited() -> None:
    assert "attempt 1, oom 1.4s, peak 7.9 GiB, 310 MiB on its GPUs: [folder]" in repro_page(REPRO, deaths(), RUN)
    one = replace(matrix()[1], attempts=(replace(matrix()[1].attempts[0], peak_memory=3 << 20),))
    assert "peak" not in repro_page(REPRO, [one], RUN)
    assert "skip 1.1s, peak 3.0 MiB: [folder]" in repro_page(replace(REPRO, memory=1 << 30), [one], RUN)


def test_ranks_share_the_numbers_of_failures() -> None:
    cells = [cell for cell in deaths() if cell.signature == SEGFAULT]
    page = repro_page(REPRO, cells, RUN)
    assert "- **[1]** `signal SIGSEGV in ncclKernel_AllReduce`; also" in page
    assert (
        ", attempt 2\n  - rank 0: error 1 [2] 12s, followed\n  - rank 1: crash SIGSEGV [1] 2.5s, first\n"
        "  - rank 2: inconclusive 14s, stopped\n  - rank 3: ok 1.5s\n"
    ) in page
    assert page.count("all 4 ranks ok") == 2


def test_what_repeats_do_not_exclude() -> None:
    page = repro_page(REPRO, deaths(), RUN)
    assert "0 of 10 failed in each of 2 cells: a failure rate up to 28 % is not excluded (95 %).\n" in page
    assert "0 of 3 failed in 1 cell: a failure rate up to 56 % is not excluded (95 %).\n" in page
    assert "not excluded" not in repro_page(REPRO, matrix(), RUN)


def test_long_lists_of_ranks_and_findings_are_cut() -> None:
    ranks = tuple(RankResult(n, Outcome.ERROR, 1, None, None, 1.0, "followed") for n in range(64))
    cells = [
        replace(one, attempts=(replace(one.attempts[0], ranks=ranks, notes=tuple(f"{one.id} {n}" for n in range(20))),))
        for one in many(200, 10)
        if one.attempts
    ]
    page = repro_page(REPRO, cells, RUN)
    assert len(page) <= LIMIT
    assert re.search(r"Left out to fit 65,536 characters: \d+ attempts with several ranks", page)
    for line in re.findall(r"^- .*attempt \d+\n(?:  - .*\n)*", page, re.MULTILINE):
        assert line.count("  - rank ") == 64


def many(count: int, columns: int = 20) -> tuple[CellResult, ...]:
    base = matrix()[4]
    return tuple(
        replace(
            base,
            id=f"c{n}",
            environment=f"jax0.{n // columns}.0-cpu-py311",
            axes=(("jax", f"0.{n // columns}.0"),),
            params=(("n", n % columns),),
            outcome=Outcome.OK if n % 7 else Outcome.CRASH,
            signature=None if n % 7 else Signature(f"crash {n % 91} " + "x" * 100),
            as_expected=n % 997 != 5,
            command=f"uv run invoke run hlo_pass_crash --env jax0.{n // columns}.0-cpu-py311 --param n={n % columns}",
        )
        for n in range(count)
    )


@pytest.mark.parametrize(("count", "columns"), [(300, 10), (2_000, 20), (10_000, 20), (10_000, 1), (10_000, 5_000)])
def test_pages_fit_github_and_keep_the_worst_news(count: int, columns: int) -> None:
    cells = many(count, columns)
    page = repro_page(REPRO, cells, RUN)
    assert len(page) <= LIMIT
    assert "`--json` has everything" in page
    bad = [cell for cell in cells if cell.as_expected is False]
    for one in bad:
        assert f"- `{one.environment}` `{one.column}` on `venv`: claimed `crash SIGABRT`" in page
    assert page.count("**not as claimed**") >= len(bad) > 0
    assert f"{count} cells: " in page


def test_a_tiny_limit_still_holds() -> None:
    assert len(repro_page(REPRO, matrix(), RUN, limit=500)) <= 500


def test_ten_thousand_results_take_no_minutes() -> None:
    cells = many(10_000)
    began = time.process_time()
    page, index = repro_page(REPRO, cells, RUN), index_page([REPRO], cells, RUN)
    assert time.process_time() - began < 30
    assert len(page) > LIMIT * 0.9
    assert len(index) <= LIMIT
