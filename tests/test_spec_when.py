"""The language of conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from repromatrix.spec.when import Always, Fact, Kind, WhenError, condition_error, matches, misuse, parse_when

FACTS: dict[str, Fact] = {
    "jax": Version("0.10.2"),
    "python": Version("3.11"),
    "cuda": "12-local",
    "nccl": "locked",
    "nvidia-cudnn-cu12": Version("9.10.2.21"),
    "target": "cpu:8",
    "engine": "venv",
    "per_dev": 2048,
    "rate": 0.5,
    "on": True,
    "flag": "noop_change",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("jax == 0.10.2", True),
        ('jax == "0.10.2"', True),
        ("jax == 0.10.2.0", True),
        ("jax > 0.9", True),  # as text, 0.10 sorts below 0.9
        ("jax >= 0.6.1 and jax < 0.7.1", False),
        ("jax < 0.10.2", False),
        ("jax < 0.11.0.dev20260701", True),
        ("jax != 0.10.2", False),
        ('jax in ("0.6.1", "0.10.2")', True),
        ("jax in (0.6.1, 0.6.2)", False),
        ("jax not in (0.6.1, 0.6.2,)", True),
        ("per_dev > 1024", True),
        ("per_dev == 2048.0", True),
        ("per_dev < -1", False),
        ("rate <= 5e-1", True),
        ("on == true", True),
        ("on != true", False),
        ('target == "cpu:8"', True),
        ("flag == 'noop_change'", True),
        ('flag == "x" or jax == 0.10.2 and per_dev > 4096', False),
        ('(flag == "x" or jax == 0.10.2) and per_dev > 4096', False),
        ('flag == "noop_change" or jax == 0.10.2 and per_dev > 4096', True),
        ('not flag == "x" and not (on == false or per_dev < 3)', True),
        ("nvidia-cudnn-cu12 >= 9.10", True),
        ('nccl == "locked"', True),
        ("nccl >= 2.28", False),
        ("nccl < 2.28", False),
        ('cuda in ("12", "12-local")', True),
        ('engine == "docker"', False),
    ],
)
def test_holds(text: str, holds: bool) -> None:
    assert parse_when(text).holds(FACTS) is holds


@pytest.mark.parametrize(
    ("text", "column", "message", "advice"),
    [
        ("jax = 1", 5, "expected ==, !=, <, <=, >, >= or in, found `=`", "write `==`"),
        ("a == 1 && b == 2", 8, "expected `and`, `or` or the end, found `&&`", "write `and`"),
        ("a == 1 || b == 2", 8, "expected `and`, `or` or the end, found `||`", "write `or`"),
        ("a == 1 b", 8, "expected `and`, `or` or the end, found `b`", ""),
        ("! a == 1", 1, "expected a name, found `!`", "write `not`"),
        (
            "0.6 < jax < 0.8",
            1,
            "expected a name, found `0.6`",
            "a comparison starts with a name: `jax >= 0.6 and jax < 0.8`",
        ),
        ("jax > 0.6 < 0.8", 11, "expected `and`, `or` or the end, found `<`", ""),
        ("target == cpu", 11, "expected a value, found `cpu`", 'words stand in quotes: "cpu"'),
        ("jax ==", 7, "expected a value, found the end", ""),
        ("jax == and", 8, "expected a value, found `and`", ""),
        ("jax", 4, "expected ==, !=, <, <=, >, >= or in, found the end", ""),
        ("jax not 1", 9, "expected `in`, found `1`", ""),
        ("jax in 1", 8, "expected `(`, found `1`", ""),
        ("jax in ()", 9, "expected a value, found `)`", ""),
        ("jax in (1 2)", 11, "expected `,` or `)`, found `2`", ""),
        ("((a == 1)", 10, "expected `)`, found the end", ""),
        ("and", 1, "expected a name, found `and`", ""),
        ('a == "x', 6, "expected a name, a value or an operator, found a string that does not end", ""),
        ("a == $", 6, "expected a name, a value or an operator, found `$`", ""),
        ("(" * 60 + "a == 1", 51, "nested deeper than 50", ""),
        ("not " * 60 + "a == 1", 201, "nested deeper than 50", ""),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, message: str, advice: str) -> None:
    with pytest.raises(WhenError) as caught:
        parse_when(text)
    pointer = f"{text}\n  {' ' * (column - 1)}^"
    assert caught.value.column == column
    assert caught.value.message == f"column {column}: {message}"
    assert caught.value.hint == (f"{pointer}\n  {advice}" if advice else pointer)


KINDS = {
    "jax": Kind(frozenset({Version})),
    "nccl": Kind(frozenset({Version, str})),
    "target": Kind(frozenset({str}), ("cpu", "cpu:8")),
    "flag": Kind(frozenset({str}), ("noop_change", "silent_hlo_change")),
    "per_dev": Kind(frozenset({float})),
    "on": Kind(frozenset({bool})),
}


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ('jax == 0.8 and nccl == "locked" and nccl >= 2.28 and target == "cpu" and per_dev > 1 and on == true', []),
        ("jxa == 0.8", ["column 1: unknown name `jxa`"]),
        ("jax == 0.8 or jaxx == 1 or zz == 1", ["column 15: unknown name `jaxx`", "column 28: unknown name `zz`"]),
        ('jax == "0.8.*"', ['column 8: `jax` is compared with a version, found "0.8.*"']),
        ("jax in (0.8, true)", ["column 14: `jax` is compared with a version, found true"]),
        ('per_dev > "big"', ['column 11: `per_dev` is compared with a number, found "big"']),
        ("on == 1", ["column 7: `on` is compared with true or false, found 1"]),
        ('flag < "x"', ["column 1: `flag` is a word and has no order; use ==, != or in"]),
        ('flag == "noop_chang"', ['column 9: `flag` is never "noop_chang"']),
        ('target == "cpu:9"', ['column 11: `target` is never "cpu:9"']),
    ],
)
def test_misuse(text: str, messages: list[str]) -> None:
    assert [error.message for error in misuse(text, parse_when(text), KINDS)] == messages


def test_misuse_names_the_nearest() -> None:
    (error,) = misuse("jaxx == 1", parse_when("jaxx == 1"), KINDS)
    assert error.hint == 'jaxx == 1\n  ^\n  did you mean "jax"?'
    (error,) = misuse("zz == 1", parse_when("zz == 1"), KINDS)
    assert error.hint == "zz == 1\n  ^\n  names here: jax, nccl, target, flag, per_dev, on"
    text = 'flag == "noop_chang"'
    (error,) = misuse(text, parse_when(text), KINDS)
    assert error.hint == f'{text}\n          ^\n  did you mean "noop_change"?'


names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}(-[a-z0-9]{1,3})?", fullmatch=True).filter(
    lambda name: name not in ("and", "or", "not", "in", "true", "false")
)
strings = st.text(max_size=6).map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
literals = st.one_of(strings, st.sampled_from(["0.10.2", "1", "-1.5", "1e-3", "0.11.0.dev1", "9.10.2.21+cu12", "true"]))
comparisons = st.one_of(
    st.builds("{} {} {}".format, names, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), literals),
    st.builds(
        lambda name, word, values: f"{name} {word} ({', '.join(values)})",
        names,
        st.sampled_from(["in", "not in"]),
        st.lists(literals, min_size=1, max_size=3),
    ),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({}) and {}".format, inner, inner),
        st.builds("{} or ({})".format, inner, inner),
        st.builds("{} and {}".format, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=8,
)


@given(conditions)
def test_the_text_of_a_condition_parses_to_it(text: str) -> None:
    when = parse_when(text)
    again = parse_when(str(when))
    assert again == when
    assert str(again) == str(when)


@given(conditions, st.integers(0, 3))
def test_the_text_of_a_condition_holds_when_it_does(text: str, number: int) -> None:
    when = parse_when(text)
    facts: list[Fact] = [Version("0.10.2"), "0.10.2", 1, True]
    chosen = {
        name: facts[(index + number) % 4]
        for index, name in enumerate(sorted({part.name for part in when.comparisons()}))
    }
    assert parse_when(str(when)).holds(chosen) is when.holds(chosen)


@given(st.one_of(st.text(max_size=30), st.text("ab 01.\"'()=<>!-+,not inandortrue\\", max_size=40)))
def test_any_other_text_gives_a_condition_or_its_error(text: str) -> None:
    column = 1
    try:
        when = parse_when(text)
    except WhenError as error:
        column = error.column
    else:
        assert parse_when(str(when)) == when
        assert isinstance(when, Always) == (not text.strip())
    assert 1 <= column <= len(text) + 1


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("<0.8", "0.7.2", True),
        ("<0.8", "0.10.0", False),
        (">=0.6,<0.7", "0.6.2", True),
        ("!=0.6.2", "0.6.2", False),
        ("~=0.6.1", "0.6.9", True),
        (">=0.6", "0.11.0.dev20260701", True),
        ("==0.6.*", "0.6.2", True),
        ("0.8", "0.8.0", True),
        ("0.8", "0.8.1", False),
        ("0.8.*", "0.8.1", True),
        ("12*", "12-local", True),
        ("12", "12-local", False),
        (">=12", "12-local", True),
        (">=13", "12-local", False),
        (">=12", "none", False),
        ("<13", "none", False),
        ("none", "none", True),
        (">=2", "locked", False),
        ("*", "locked", True),
    ],
)
def test_matches(condition: str, value: str, expected: bool) -> None:
    assert matches(condition, value) is expected


def test_condition_error() -> None:
    assert condition_error("<0.8") == ""
    assert condition_error("jax*") == ""
    assert condition_error("<<0.8") == (
        'expected a version specifier (`<0.8`, `>=0.6,<0.7`) or a glob (`12*`), found "<<0.8"'
    )
    assert condition_error(" ") == "expected a version specifier (`<0.8`) or a glob (`12*`), found nothing"
