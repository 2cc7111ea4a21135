"""What a search says to its user, at the edges: one of a thing, and ends that are called the wrong way round."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.regressions.bisection.asked import turned
from repromatrix.regressions.bisection.report import markdown, text
from repromatrix.regressions.bisection.words import ambiguous
from repromatrix.regressions.model import Wanted
from repromatrix.search.bisect import search
from repromatrix.search.model import History, Rules, Sample, Verdict
from tests.sample_bisection import bisection, path, repeated, series

ONE_OF_MANY = re.compile(r"\b(?<![\d.])1 (?:further |more |newer )?[a-z]{3,}s\b(?<!was)(?<!this)")


def test_there_is_one_of_a_thing(tmp_path: Path) -> None:
    tested = path()
    place, last = max(tested.items())
    assert last.result is not None
    open_one = replace(repeated(last, last.result.outcome), verdict=Verdict.AMBIGUOUS, attempted=1)
    whole = bisection(tmp_path, {place: open_one}, (), Rules(most=1))
    found = replace(whole, series=series("0.10.2"))
    assert "(1 time " in ambiguous(found)
    assert "more than 1 attempt (`--attempts`)" in ambiguous(found)
    for page in (text(found), markdown(found)):
        assert not ONE_OF_MANY.findall(page)
    assert "The path of the search: 1 version, in the order" in markdown(found)


@pytest.mark.parametrize("claim", [Verdict.GOOD, Verdict.BAD])
def test_one_attempt_that_refutes_an_end(claim: Verdict) -> None:
    shows = Sample.BAD if claim is Verdict.GOOD else Sample.GOOD
    tried: list[int] = []

    def attempt(number: int) -> Sample:
        tried.append(number)
        return shows

    answer = search(History(9, (2, 4, 6), (claim, None)), attempt, Rules(confidence=0))
    how = "failed" if claim is Verdict.GOOD else "was ok"
    assert answer.refused == f"is said to be {claim.value} and {how} in 1 of 1 attempt"
    assert tried == [0]  # the end of which something is said comes first


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted(oldest="1.2", newest="1.0"), "--oldest 1.2 and --newest 1.0"),
        (Wanted(oldest="1.2"), "--oldest 1.2"),
        (Wanted(good="1.2", newest="1.0"), "--newest 1.0"),
        (Wanted(oldest="1.0", newest="1.2"), ""),
        (Wanted(newest="1.2"), ""),
        (Wanted(oldest="1.0", bad="1.2"), ""),
        (Wanted(good="1.2", bad="1.0"), ""),
        (Wanted(), ""),
    ],
)
def test_ends_that_are_called_the_wrong_way_round(wanted: Wanted, told: str) -> None:
    said = turned(wanted, series("1.0", "1.1", "1.2"))
    assert said == ((f"{told}: taken the other way round, from 1.0 to 1.2",) if told else ())
