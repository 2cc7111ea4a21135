"""Places of TOML keys: fixed texts, and generated ones whose lines are known."""

from __future__ import annotations

import json
import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.spec.locate import Path, locate

TEXT = '''\
title = "a # no comment"   # a comment
[matrix]
jax = [
  0.10,  # first
  "0.8", [1, 2],
]
"nvidia-cudnn-cu12" = ['9.1']
[bases."3.11"]
image.name = "x"
[[expect]]
when = """
a = 1
"quoted"""""
[[expect]]
  env = { A = "1", "b.c" = { d = 2 } }
  day = 2026-01-31 10:00:00
[expect.deep]
key = \'\'\'
[not.a.table]
\'\'\'
[last]
x = 1
'''


def test_lines_of_every_kind_of_key() -> None:
    places = locate(TEXT)
    tomllib.loads(TEXT)
    assert places.lines == {
        ("title",): 1,
        ("matrix",): 2,
        ("matrix", "jax"): 3,
        ("matrix", "jax", 0): 4,
        ("matrix", "jax", 1): 5,
        ("matrix", "jax", 2): 5,
        ("matrix", "jax", 2, 0): 5,
        ("matrix", "jax", 2, 1): 5,
        ("matrix", "nvidia-cudnn-cu12"): 7,
        ("matrix", "nvidia-cudnn-cu12", 0): 7,
        ("bases",): 8,
        ("bases", "3.11"): 8,
        ("bases", "3.11", "image"): 9,
        ("bases", "3.11", "image", "name"): 9,
        ("expect",): 10,
        ("expect", 0): 10,
        ("expect", 0, "when"): 11,
        ("expect", 1): 14,
        ("expect", 1, "env"): 15,
        ("expect", 1, "env", "A"): 15,
        ("expect", 1, "env", "b.c"): 15,
        ("expect", 1, "env", "b.c", "d"): 15,
        ("expect", 1, "day"): 16,
        ("expect", 1, "deep"): 17,
        ("expect", 1, "deep", "key"): 18,
        ("last",): 21,
        ("last", "x"): 22,
    }
    assert places.raw["matrix", "jax", 0] == "0.10"
    assert places.raw["expect", 1, "day"] == "2026-01-31 10:00:00"
    assert places.quoted == {("matrix", "nvidia-cudnn-cu12"), ("bases", "3.11"), ("expect", 1, "env", "b.c")}


def test_an_unknown_path_has_the_line_of_what_is_around_it() -> None:
    places = locate(TEXT)
    assert places.line(("expect", 1, "outcome")) == 14
    assert places.line(("matrix", "jax", 7, "x")) == 3
    assert places.line(("nothing",)) == 1
    assert places.line(()) == 1


def test_windows_newlines_and_an_escaped_key() -> None:
    places = locate('[a]\r\n"x\\u0041" = 1\r\n\r\nb = [1,\r\n2]\r\n')
    assert places.lines == {("a",): 1, ("a", "xA"): 2, ("a", "b"): 4, ("a", "b", 0): 4, ("a", "b", 1): 5}


keys = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4),
)
scalars = st.one_of(
    st.integers(-999, 999),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.floats(-1e9, 1e9),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)
documents = st.dictionaries(keys, values, max_size=5)


class Writer:
    """Writes data as TOML and notes the line of every path it writes."""

    def __init__(self) -> None:
        self.text = ""
        self.lines: dict[Path, int] = {}

    def note(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def value(self, path: Path, value: object) -> None:
        if isinstance(value, list):
            self.text += "["
            for index, each in enumerate(value):
                self.text += "\n  # [x]\n" if index % 2 == 0 else " "
                self.note((*path, index))
                self.value((*path, index), each)
                self.text += ","
            self.text += "]"
        elif isinstance(value, dict):
            self.text += "{"
            for index, (key, each) in enumerate(value.items()):
                self.text += ", " if index else " "
                self.note((*path, key))
                self.text += f"{json.dumps(key, ensure_ascii=False)} = "
                self.value((*path, key), each)
            self.text += "}"
        elif isinstance(value, str) and len(value) % 2 and "'" not in value:
            self.text += f"'''\n{value}'''"
        else:
            self.text += json.dumps(value, ensure_ascii=False)

    def table(self, path: Path, table: dict[str, object]) -> None:
        for key, value in table.items():
            self.note((*path, key))
            self.text += f"{json.dumps(key, ensure_ascii=False)} = "
            self.value((*path, key), value)
            self.text += "  # = [[no]]\n\n"


@settings(max_examples=800, deadline=None)
@given(documents, st.lists(documents, max_size=3), documents)
def test_generated_documents(
    root: dict[str, object], elements: list[dict[str, object]], table: dict[str, object]
) -> None:
    writer = Writer()
    writer.table((), {f"root {key}": value for key, value in root.items()})
    for index, element in enumerate(elements):
        writer.note(("each",))
        writer.lines["each", index] = writer.text.count("\n") + 1
        writer.text += " [[ each ]]\n"
        writer.table(("each", index), element)
    writer.note(("a",))
    writer.note(("a", "b.c"))
    writer.text += "[a . 'b.c']\n"
    writer.table(("a", "b.c"), table)
    tomllib.loads(writer.text)  # else the test itself is wrong
    assert locate(writer.text).lines == writer.lines


@given(st.text("[]{}='\"\\,.#\n ab1", max_size=40))
def test_it_ends_on_any_text(text: str) -> None:
    places = locate(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in places.lines.values())
