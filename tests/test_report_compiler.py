from __future__ import annotations

import re
from dataclasses import replace

import pytest

from repromatrix.report.about import about, docstring
from repromatrix.report.compared import cell_hlo, columns, hlo_of
from repromatrix.report.compiler import compiled_only, what_the_compiler_did
from repromatrix.report.escape import paragraph
from repromatrix.report.fit import LIMIT, Section
from repromatrix.report.markdown import repro_page
from repromatrix.report.probes import what_was_found
from repromatrix.report.table import render_table
from repromatrix.results.model import CellResult, HloFacts, HloModule
from repromatrix.spec.model import Expect, Outcome
from tests.sample_cells import COMMON, PIPELINER, PROBE, REPRO, RUN, compiled, matrix, probed
from tests.test_report_markdown import HOSTILE, golden, split_row, table_rows


def text_of(*sections: Section) -> str:
    return "\n".join(line for s in sections for line in (*s.head, *(text for _, text in s.lines), *s.tail))


def explained(cell: CellResult, **facts: object) -> CellResult:
    """`cell` with HLO of a second run."""
    hlo = HloFacts(**{"level": "passes", "source": "explain", **facts})  # type: ignore[arg-type]
    return replace(cell, attempts=tuple(replace(attempt, hlo=hlo) for attempt in cell.attempts))


def test_page_of_cells_compiled_without_a_device() -> None:
    golden("compiled.md", repro_page(PIPELINER, compiled(), RUN))


def test_page_of_a_probe() -> None:
    golden("probe.md", repro_page(PROBE, probed(), RUN))


def test_pages_without_hlo_have_no_such_section() -> None:
    assert what_the_compiler_did(REPRO, matrix()) == ()
    assert what_was_found(REPRO, matrix()) == ()
    assert compiled_only(matrix()) == Section()
    assert cell_hlo(matrix()) == [None] * 22


def test_the_reference_is_the_newest_that_is_ok() -> None:
    tp, dp = columns(compiled())
    assert tp.reference is not None
    assert tp.reference.cell.id == "collective_pipeliner@jax0.10.2-cuda12local-py311@h100:8@model=tp_mlp"
    assert (tp.module, tp.without, dp.without) == ("jit_forward", 0, 1)
    same = {one.cell.axes[0][1]: (one.same_before, one.same_after) for one in tp.cells}
    assert same == {"0.10.2": (True, True), "0.10.1": (True, None), "0.8.0": (True, False), "0.4.38": (False, False)}
    failed = [cell for cell in compiled() if cell.outcome is Outcome.ERROR]
    assert columns(failed)[0].reference is not None  # none is ok


def test_a_cell_of_the_document_tells_what_it_was_compared_with() -> None:
    found = cell_hlo(compiled())
    assert found[1] == {
        "module": "jit_forward",
        "reference": "collective_pipeliner@jax0.10.2-cuda12local-py311@h100:8@model=tp_mlp",
        "before": "a" * 64,
        "after": "c" * 64,
        "same_before": True,
        "same_after": False,
    }
    assert found[5] is None


def test_the_hlo_of_a_flaky_cell_is_that_of_an_attempt_that_ended_like_it() -> None:
    failed = compiled()[2]
    well = replace(failed.attempts[0], outcome=Outcome.OK, hlo=HloFacts("text", "run"))
    assert hlo_of(replace(failed, attempts=(well, failed.attempts[0]))) is failed.attempts[0].hlo
    assert hlo_of(replace(failed, attempts=(well,))) is well.hlo
    assert hlo_of(replace(failed, attempts=())) is None


def test_the_largest_module_is_compared_wherever_it_stands() -> None:
    main, helper = HloModule("jit_f", "a", "b", (), 900), HloModule("jit_iota", "a", "b", ("dce",), 90)
    for modules in ((main, helper), (helper, main)):
        assert columns([explained(matrix()[3], modules=modules)])[0].module == "jit_f"


def test_letters_are_per_program_and_a_is_the_reference() -> None:
    tp = what_the_compiler_did(PIPELINER, compiled())[1]
    rows = [split_row(text) for _, text in tp.lines]
    assert [(row[-2], row[-1]) for row in rows] == [("A", "A"), ("A", "–"), ("A", "B"), ("B", "C")]
    assert rows[1][-3] == "`collective-pipeliner-forward`"


def test_ran_and_changed_are_told_apart() -> None:
    page = what_the_compiler_did(PIPELINER, compiled())
    column = page[3].head[4:]
    assert split_row(column[0])[1:3] == ["`collective-pipeliner-forward`", "`collective-pipeliner-backward`"]
    by_env = {split_row(text)[0]: split_row(text)[1:3] for _, text in page[3].lines}
    assert by_env == {
        "`jax0.10.2-cuda12local-py311`": ["**changed a module**", "ran, changed nothing"],
        "`jax0.10.1-cuda12local-py311`": ["ran, changed nothing", "ran, changed nothing"],
        "`jax0.4.38-cuda12local-py311`": ["**changed a module**", "**changed a module**"],
    }


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "changed nothing; no log of what ran"),
        ({"ran": ("dce",)}, "did not run"),
        ({"ran": ("dce",), "whole": False}, "was not seen to run, but not all was collected"),
        ({"ran": ("p",), "whole": False}, "ran, no change was seen, but not all was collected"),
        ({"ran": ("p",), "level": "text"}, "ran, what it changed was not collected"),
        ({"ran": ("p",)}, "ran, changed nothing"),
    ],
)
def test_what_is_not_known_of_a_pass_is_not_claimed(facts: dict[str, object], said: str) -> None:
    repro = replace(REPRO, expect=(Expect("", (Outcome.OK,), None, None, None, 1, unchanged=("p",)),))
    one = explained(matrix()[0], modules=(HloModule("jit_f", "a", "b"),), **facts)
    assert split_row(what_the_compiler_did(repro, [one])[1].lines[0][1])[1] == said


def test_nothing_compiled_and_a_second_run_are_said() -> None:
    one = explained(matrix()[4], notes=("no module was compiled",))
    text = text_of(*what_the_compiler_did(REPRO, [one]))
    assert "No module was compiled." in text
    assert "- no module was compiled: `jax0.6.0-cpu-py311`" in text
    assert "*explained*" in text
    page = repro_page(REPRO, [explained(matrix()[4], modules=(HloModule("jit_f", "a", ""),), last="dce")], RUN)
    assert "[dumps](../.repromatrix/evidence/ab/ab060n/1/hlo)" in page
    assert "| `dce` " in page


def test_long_lists_of_passes_stand_folded_below_the_table_and_once() -> None:
    _, _, _, found, lists = what_the_compiler_did(PIPELINER, compiled())
    cells = {split_row(text)[0]: split_row(text)[3] for _, text in found.lines}
    assert cells == {
        "`jax0.10.2-cuda12local-py311`": "7 passes",
        "`jax0.10.1-cuda12local-py311`": "6 passes; only in the reference: `collective-pipeliner-forward`",
        "`jax0.4.38-cuda12local-py311`": "8 passes; not in the reference: `collective-pipeliner-backward`",
    }
    assert lists.head[0] == "<details><summary>Passes that changed it, in order</summary>"
    assert lists.lines[1][1] == (
        "- `jax0.10.1-cuda12local-py311`: `call-inliner`, `dot_decomposer`, `algsimp`, `fusion`, `dce`, "
        "`layout-assignment`"
    )
    again = replace(compiled()[7], environment="jax0.10.2-cuda12local-py312")
    _, found, lists = what_the_compiler_did(PIPELINER, [compiled()[7], again])
    assert "the same 7 as in the reference" in found.lines[1][1]
    assert len(lists.lines) == 1


def test_a_list_that_is_not_whole_lacks_nothing() -> None:
    """What is missing of the evidence is not missing in the compiler."""
    reference, other = compiled()[7], compiled()[6]
    cut = explained(other, modules=(HloModule("jit_forward", "a", "b", COMMON),), whole=False)
    assert "| 6 passes " in what_the_compiler_did(PIPELINER, [reference, cut])[1].lines[1][1]


@pytest.mark.parametrize("place", ["module", "pass", "last", "note", "glob", "about", "docstring", "string", "flag"])
def test_hostile_text_stays_text(place: str) -> None:
    repro, cells = PIPELINER, list(compiled())
    module = HloModule(HOSTILE if place == "module" else "f", "a", "b", (HOSTILE if place == "pass" else "p",), 1)
    failed = cells[2]
    cells[2] = explained(
        failed,
        modules=(module,),
        last=HOSTILE if place == "last" else "p",
        notes=(HOSTILE if place == "note" else "n",),
    )
    if place == "glob":
        repro = replace(repro, expect=(Expect("", (Outcome.OK,), None, None, None, 1, changed=(HOSTILE,)),))
    elif place == "about":
        repro = replace(repro, about=f"{HOSTILE}\n\n{HOSTILE}")
    elif place == "docstring":
        repro = replace(repro, source=repr(HOSTILE.replace("\udc80", "")))
    elif place in ("string", "flag"):
        field = {"string": "strings", "flag": "flags"}[place]
        repro, cells = replace(PROBE, **{field: (HOSTILE,)}), list(probed())  # type: ignore[arg-type]
    page = repro_page(repro, cells, RUN)
    page.encode("utf-8")
    assert "\x1b" not in page
    outside = re.sub(r"`[^`\n]+`", "", page)
    assert "<script" not in outside
    assert "@octocat" not in outside
    assert "\n# head" not in page
    for rows in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({len(split_row(row)) for row in table_rows(rows)}) == 1


def test_about_wins_over_the_docstring() -> None:
    said = about(PIPELINER)
    assert said.head == ("## About this script",)
    texts = [text for _, text in said.lines if text]
    assert texts == [
        "Compile a scan with all flags and look for the pass `collective-pipeliner`.",
        "No such file means \\*unchanged\\*, not absent &#124; &lt;b&gt;.",
    ]
    assert "".join(text for _, text in about(replace(PIPELINER, about="A\nb.\n\nC\n\nD")).lines) == "A b.CD"
    assert about(REPRO) == Section()
    assert docstring("print 1") == ""
    assert docstring("\0") == ""


def test_paragraphs_keep_code() -> None:
    assert paragraph("see `a_b|c` and ``x`` and `half_ *") == (
        "see <code>a&#95;b&#124;c</code> and `x` and \\`half\\_ \\*"
    )
    assert paragraph("`a` `b`") == "`a` `b`"


def test_a_probe_with_many_lookups_has_a_row_for_each() -> None:
    repro = replace(PROBE, flags=tuple(f"xla_{n}" for n in range(30)))
    found, meant = what_was_found(repro, probed())
    assert len(found.lines) == 33
    assert split_row(found.head[4])[0] == "looked up"
    assert "no answer" in found.lines[5][1]
    assert len(meant.lines) == 4


def test_a_probe_says_where_there_is_no_table_and_no_answer() -> None:
    found, _ = what_was_found(PROBE, probed())
    rows = {split_row(text)[0]: split_row(text)[1:] for _, text in found.lines}
    assert rows["`jax0.10.2-cuda12local-py311`"] == ["1", "no such table", "0", "accepted", "no answer"]
    assert rows["`jax0.6.2-cuda12local-py311`"] == ["1", "27", "0", "accepted", "refused"]
    lost = replace(probed()[0], outcome=Outcome.HANG, attempts=(replace(probed()[0].attempts[0], metrics=()),))
    assert split_row(what_was_found(PROBE, [lost])[0].lines[0][1])[1:] == ["hang"] * 5


def test_many_cells_with_hlo_fit_and_keep_the_worst_news() -> None:
    changed = tuple(f"pass-number-{n}" for n in range(60))
    cells = []
    for number in range(400):
        one = compiled()[3]
        hlo = HloFacts("passes", "run", (HloModule("f", "a", str(number), changed[number % 9 :]),), changed)
        cells.append(
            replace(
                one,
                environment=f"jax0.{number}.0-cuda12local-py311",
                axes=(("jax", f"0.{number}.0"),),
                params=(("n", number % 40),),
                outcome=Outcome.ERROR if number == 17 else Outcome.OK,
                as_expected=number != 17,
                reason="claimed ok, was error" if number == 17 else "",
                attempts=(replace(one.attempts[0], hlo=hlo),),
            )
        )
    for limit in (1_000, 8_000):
        assert len(repro_page(PIPELINER, cells, RUN, limit)) <= limit
    page = repro_page(PIPELINER, cells, RUN)
    assert len(page) <= LIMIT
    assert "28 more columns are left out" in page
    assert "### `h100:8 n=17`" in page


def test_a_claim_without_a_verdict_says_why() -> None:
    table = render_table(probed(), 120)
    assert "ok [a] 1.4s, no verdict on the claim" in table
    assert "[a] the claim on symtab/CollectivePipeliner has no verdict: no such number was found" in table
    skipped = replace(matrix()[0], as_expected=None)
    assert "no verdict" not in render_table([skipped], 120)  # a skip could not have given one
