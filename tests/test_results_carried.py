"""Results that travel: out of one checkout, into another, however far the last attempt at it came."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.errors import UserError
from repromatrix.results.carried import Row, environments, evidence_of, export, merge, parse, render, take_in
from repromatrix.results.codec import attempt_object
from repromatrix.results.model import AttemptResult
from repromatrix.results.store import Results
from repromatrix.spec.model import Outcome
from tests.sample_cells import ATTEMPT
from tests.test_results_store import CELL

KEYS = ("ab" * 32, "cd" * 32)


def run(state: Path, key: str, outcomes: tuple[Outcome, ...], words: str = "ran") -> None:
    """As the main job does: attempts with evidence, and the cell that they are of."""
    with Results(state) as results:
        made = []
        for outcome in outcomes:
            number, folder = results.new_attempt(key)
            (folder / "stdout").write_text(f"{words} {number}")
            evidence = f".repromatrix/evidence/{key[:2]}/{key}/{number}"
            made.append(replace(ATTEMPT, number=number, outcome=outcome, evidence=evidence, files=(("log", "stdout"),)))
            results.add(key, made[-1], {"cell": f"cell of {key[:2]}"})
        evidence = f".repromatrix/evidence/{key[:2]}/{key}"
        results.save_cells(
            [
                replace(
                    CELL, id=f"cell {key[:2]}", key=key, attempts=tuple(made), evidence=evidence, outcome=outcomes[-1]
                )
            ]
        )


def staged(state: Path, rows: list[Row], into: Path) -> Path:
    """The evidence of `rows` as a restore lays it out."""
    for row in rows:
        if place := evidence_of(row):
            shutil.copytree(state / "evidence" / place, into / place, dirs_exist_ok=True)
    return into


def answers(state: Path) -> dict[str, tuple[AttemptResult, ...]]:
    with Results(state) as results:
        return results.many(KEYS)


def logs(state: Path) -> dict[str, str]:
    return {str(path.relative_to(state)): path.read_text() for path in sorted((state / "evidence").rglob("stdout"))}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The results of another checkout: an ok, and a crash that was seen twice."""
    state = tmp_path / "there" / ".repromatrix"
    run(state, KEYS[0], (Outcome.OK,))
    run(state, KEYS[1], (Outcome.CRASH, Outcome.CRASH))
    return state


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here" / ".repromatrix"


def test_results_arrive_as_they_were(there: Path, here: Path, tmp_path: Path) -> None:
    rows = parse(render(export(there)))
    assert take_in(here, rows, staged(there, rows, tmp_path / "staged")) == 3
    assert answers(here) == answers(there)
    assert logs(here) == logs(there)
    assert len(logs(here)) == 3
    with Results(here) as mine, Results(there) as theirs:
        assert mine.latest_cells() == theirs.latest_cells()
        assert mine.recover() == ()
    assert export(here) == export(there)
    assert take_in(here, rows, tmp_path / "empty") == 0
    assert environments(here) == dict.fromkeys(KEYS, CELL.environment)


def test_only_what_answers_travels(there: Path, tmp_path: Path) -> None:
    with Results(there) as results:
        results.forget([KEYS[0]])
        results.new_attempt(KEYS[0])  # under way
        number, _ = results.new_attempt(KEYS[1])
        results.add(KEYS[1], replace(ATTEMPT, number=number, outcome=Outcome.INFRA), {})
    rows = export(there)
    assert [(row["attempt"]["key"], row["attempt"]["number"]) for row in rows if "attempt" in row] == [
        (KEYS[1], 1),
        (KEYS[1], 2),
    ]
    assert [row["cell"]["id"] for row in rows if "cell" in row] == ["cell cd"]
    assert export(there, [KEYS[0]]) == []
    assert export(tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()


def test_own_results_stay_as_they_are(there: Path, here: Path, tmp_path: Path) -> None:
    run(here, KEYS[1], (Outcome.OK,), words="mine")
    rows = export(there)
    assert take_in(here, rows, staged(there, rows, tmp_path / "staged")) == 1
    assert [attempt.outcome for attempt in answers(here)[KEYS[1]]] == [Outcome.OK]
    assert [text for path, text in logs(here).items() if "/cd/" in path] == ["mine 1"]
    assert answers(here)[KEYS[0]] == answers(there)[KEYS[0]]
    with Results(here) as mine:
        assert {cell.id: cell.outcome for cell in mine.latest_cells()} == {"cell ab": Outcome.OK, "cell cd": Outcome.OK}


def test_a_killed_call_is_finished_by_the_next(there: Path, here: Path, tmp_path: Path) -> None:
    rows = export(there)
    folder = staged(there, rows, tmp_path / "staged")
    # What a kill leaves: the first attempt of a key on record, the evidence of the second moved and not on record.
    first = [row for row in rows if "attempt" in row and row["attempt"]["number"] == 1]
    assert take_in(here, first, folder) == 2
    shutil.copytree(folder / "cd" / KEYS[1] / "2", here / "evidence" / "cd" / KEYS[1] / "2")
    (here / "evidence" / "cd" / KEYS[1] / "2" / "stdout").write_text("half")
    assert take_in(here, rows, folder) == 1
    assert answers(here) == answers(there)
    assert logs(here) == logs(there)


def test_another_run_is_not_disturbed(there: Path, here: Path, tmp_path: Path) -> None:
    rows = export(there)
    with Results(here) as results, results.writing(), pytest.raises(UserError, match="is running cells"):
        take_in(here, rows, tmp_path)
    assert answers(here) == {}


def test_rows_meet_and_the_newer_one_counts(there: Path, tmp_path: Path) -> None:
    old = export(there)
    newer = copy.deepcopy(old)
    newer[-1]["cell"]["reason"] = "newer"
    other = tmp_path / "other" / ".repromatrix"
    run(other, "ef" * 32, (Outcome.HANG,))
    both = merge(merge((), old), [*newer, *export(other)])
    assert len(both) == len(old) + 2
    assert sum(row.get("cell", {}).get("reason") == "newer" for row in both) == 1
    assert merge(both, both) == both
    assert parse(render(both)) == both


HOSTILE: dict[str, Callable[[Any], object]] = {
    "a key that leaves the folder": lambda row: row["attempt"].update(key="../../../../etc"),
    "a short key": lambda row: row["attempt"].update(key="ab"),
    "another number": lambda row: row["attempt"].update(number=7),
    "a number that is text": lambda row: row["attempt"].update(number="../7"),
    "a number that is true": lambda row: (
        row["attempt"].update(number=True),
        row["attempt"]["body"].update(number=True),
    ),
    "a number below 1": lambda row: (row["attempt"].update(number=0), row["attempt"]["body"].update(number=0)),
    "evidence elsewhere": lambda row: row["attempt"]["body"].update(evidence="/etc"),
    "evidence above": lambda row: row["attempt"]["body"].update(evidence="../.repromatrix"),
    "a file elsewhere": lambda row: row["attempt"]["body"].update(files=[{"label": "x", "path": "/etc/passwd"}]),
    "a file above": lambda row: row["attempt"]["body"].update(files=[{"label": "x", "path": "a/../../b"}]),
    "no outcome": lambda row: row["attempt"]["body"].update(outcome="fine"),
    "seconds that are text": lambda row: row["attempt"]["body"].update(seconds="1.5"),
    "a reason that is a list": lambda row: row["attempt"]["body"].update(reason=["x"]),
    "metrics that are none": lambda row: row["attempt"]["body"].update(metrics=[["x", [1]]]),
    "no body": lambda row: row["attempt"].pop("body"),
    "more than there is": lambda row: row["attempt"].update(more=1),
    "a context that is none": lambda row: row["attempt"].update(context=[]),
    "two things": lambda row: row.update(cell={}),
    "nothing": lambda row: row.clear(),
    "something else": lambda row: row.update(other=row.pop("attempt")),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_row_is_refused_and_nothing_is_taken(
    there: Path, here: Path, tmp_path: Path, spoil: Callable[[Any], object]
) -> None:
    rows = export(there)
    spoil(rows[0])
    with pytest.raises(UserError, match="not a result"):
        parse(render(rows), "results/attempts.jsonl")
    with pytest.raises(UserError, match="not a result"):
        take_in(here, rows, staged(there, rows[1:3], tmp_path / "staged"))
    assert not here.exists()


ROW = {
    "attempt": {
        "key": KEYS[0],
        "number": 1,
        "context": {},
        "body": attempt_object(replace(ATTEMPT, number=1, evidence="")),
    }
}


@given(st.data())
def test_spoiled_text_gives_an_error_or_rows_that_are_sound(data: st.DataObject) -> None:
    text = render([ROW])
    assert parse(text) == [ROW]
    place = data.draw(st.integers(0, len(text) - 1))
    spoiled = text[:place] + data.draw(st.binary(max_size=3)) + text[place + 1 :]
    try:
        rows = parse(spoiled)
    except UserError:
        return
    assert parse(render(rows)) == rows
    assert all(re.fullmatch(r"[0-9a-f]{2}/[0-9a-f]{64}/[1-9][0-9]*", evidence_of(row)) for row in rows)
