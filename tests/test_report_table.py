from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.report.layout import duration, totals
from repromatrix.report.table import render_table
from tests.sample_cells import broken, deaths, matrix
from tests.test_report_markdown import golden, many


def test_table_of_a_repro_that_holds() -> None:
    golden("table.txt", render_table(matrix(), 120) + "\n")


def test_table_with_every_trouble() -> None:
    golden("table_broken.txt", render_table(broken(), 120) + "\n")


def test_table_of_ways_to_die() -> None:
    text = render_table(deaths(), 120)
    golden("table_deaths.txt", text + "\n")
    assert "crash SIGABRT [4] 2.3s, a DIFFERENT failure" in text
    assert "heartbeat" not in text  # of a rank that only followed: the page has it


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_fits_the_width(width: int) -> None:
    text = render_table(many(60, 6), width)
    assert max(map(len, text.splitlines())) <= width
    for column in range(6):
        assert re.search(rf"cpu n={column}\b", text)


def test_colour_changes_no_text() -> None:
    plain = render_table(broken(), 120)
    coloured = render_table(broken(), 120, colour=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert "\x1b[31mcrash" not in coloured
    assert "\x1b[31merror 1 [" in coloured


def test_hostile_text_does_not_reach_the_terminal() -> None:
    one = replace(matrix()[0], reason="\x1b]0;title\x07 \r gone", params=(("flag", "\x1b[2J"),))
    text = render_table([one], 100)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_no_cells() -> None:
    assert render_table([], 80) == ""


def test_totals() -> None:
    assert totals(matrix()) == "22 cells: 9 ok, 9 crash, 4 skip; 22 as claimed"
    assert totals(broken()) == (
        "25 cells: 10 ok, 1 error, 7 crash, 1 hang, 5 skip, 1 infra; "
        "20 as claimed, 3 not as claimed, 2 without a verdict on the claim"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (60, "60s"), (3600, "60m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_golden_files_are_read() -> None:
    assert {path.name for path in (Path(__file__).parent / "golden").iterdir()} >= {"table.txt", "hlo_pass_crash.md"}
