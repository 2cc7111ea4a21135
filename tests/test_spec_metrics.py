"""Conditions on numbers: what they say, and what is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.spec.metrics import condition_error, holds


@pytest.mark.parametrize(
    ("condition", "met", "not_met"),
    [
        ("72", [72.0], [71.9, 73, math.nan]),
        ("== 72", [72], [73]),
        ("!= 0", [1, -1], [0.0]),
        (">= 20", [20, 1e9], [19.5]),
        ("<-1.5e3", [-1501], [-1500, 0]),
        ("> 0, <= .5", [0.1, 0.5], [0, 0.6]),
        ("0.1", [0.1], [0.1 + 1e-15]),
    ],
)
def test_conditions(condition: str, met: list[float], not_met: list[float]) -> None:
    assert condition_error(condition) == ""
    assert [value for value in met if not holds(condition, value)] == []
    assert [value for value in not_met if holds(condition, value)] == []


@pytest.mark.parametrize(
    "text", ["", " ", "x", ">=", "= 1", "1 2", "1,", ", 1", "~= 1", "nan", "inf", "1e999", "1_0", "\u0661"]
)
def test_what_is_no_condition(text: str) -> None:
    assert condition_error(text) == 'expected a number, or comparisons such as ">= 20" or "> 0, < 1"'


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53) + 1, 2**53 - 1))
def test_every_number_is_met_by_itself_alone(value: float) -> None:
    assert condition_error(repr(value)) == ""
    assert holds(repr(value), value)
    assert not holds(f"!= {value!r}", value)
    assert not holds(repr(value), math.nextafter(value, math.inf))
