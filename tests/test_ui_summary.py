from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.results.model import INTERRUPTED
from repromatrix.ui.summary import summary
from tests.sample_cells import RUN, broken, deaths, matrix


def test_all_as_claimed() -> None:
    assert summary(matrix(), RUN, Path("reports")).splitlines() == [
        "22 cells: 9 ok, 9 crash, 4 skip; 22 as claimed",
        "22 attempts on venv in 31s; 0 cells known before",
        "report: reports/README.md",
    ]


def test_nothing_to_do() -> None:
    run = replace(RUN, attempted=0, reused=22)
    assert "nothing to do: 22 cells known" in summary(matrix(), run).splitlines()


def test_the_worst_news_first() -> None:
    run = replace(RUN, warnings=("the driver\nis old",))
    lines = summary(broken(), run).splitlines()
    assert lines[0] == "3 cells contradict what is claimed:"
    assert lines[1] == (
        "  hlo_pass_crash@jax0.8.3-cpu-py311@cpu@flag=silent_hlo_change on venv: hang, claimed ok: "
        "3 of 10 hang (11 % to 60 %), 7 ok"
    )
    assert lines[2] == (
        "  hlo_pass_crash@jax0.9.2-cpu-py311@cpu@flag=noop_change on venv: error, claimed crash SIGABRT"
    )
    assert lines[4] == "1 cell has no verdict: infrastructure failed:"
    assert lines[5] == "  hlo_pass_crash@jax0.7.2-cpu-py311@cpu@flag=noop_change on venv: infra: the disk is full"
    assert lines[-1] == "warning: the driver is old"


def test_another_failure_is_told() -> None:
    assert (
        "  hlo_pass_crash@jax0.7.2-cpu-py311@cpu@flag=noop_change on venv: crash, "
        'claimed crash SIGABRT "*hash of HLO was not updated*": a different failure'
    ) in summary(deaths(), RUN).splitlines()


def test_a_failed_machine_is_not_nothing_to_do() -> None:
    lost = [cell for cell in broken() if cell.outcome.value == "infra"]
    text = summary(lost, replace(RUN, attempted=0, reused=0))
    assert "nothing to do" not in text
    assert "the disk is full" in text


def test_an_interrupted_run_is_no_failed_machine() -> None:
    lost = [replace(cell, reason=INTERRUPTED) for cell in broken() if cell.outcome.value == "infra"]
    lines = summary(lost, replace(RUN, attempted=0, reused=0)).splitlines()
    assert lines[0] == "1 cell has no verdict yet: the run was interrupted"
    assert "infrastructure" not in " ".join(lines)
    assert "nothing could run" not in " ".join(lines)


def test_long_lists_are_cut_and_say_so() -> None:
    bad = [replace(cell, as_expected=False) for cell in matrix() + matrix()]
    lines = summary(bad, RUN).splitlines()
    assert lines[0] == "44 cells contradict what is claimed:"
    assert lines[21] == "  and 24 more"
