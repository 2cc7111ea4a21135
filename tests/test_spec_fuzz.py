"""Whatever a file holds, a user sees an error of ours with a line in the file, never a traceback."""

from __future__ import annotations

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repromatrix.errors import UserError
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.repro import load_repro

MATRIX = """\
exclude = [{jax = "<0.8", reason = "x"}]
override = [{select = "*", python = "3.11", as_of = "latest", packages = ["a"], env = {A = "1"}, timeout = "1m"}]
signature = [{match = "a", title = "b"}]
[matrix]
jax = ["0.8.0", "0.10.2"]
python = ["3.11"]
cuda = ["none", "12"]
nccl = ["locked"]
numpy = ["2.0"]
as_of = "2026-01-31"
[bases."3.11"]
debian = "bookworm"
[targets.gpu]
cuda_libraries = "/lib"
[indexes]
nightly = "https://example.org"
[run]
engine = "venv"
memory = "8GiB"
hlo = "text"
default = ["*"]
"""
REPRO = """\
title = "x"
targets = ["cpu", "gpu:2"]
timeout = 5
env = { A = "{n}" }
params = { n = [1, 2], flag = ["a"] }
witness = { output = ["x"] }
packages = ["a==1"]
jax = ">=0.6"
cuda = ["12"]
files = []
expect = [{ when = "n > 1", outcome = "crash", signal = "SIGSEGV" }, \
{ outcome = ["ok", "error"], exit_status = 1, metrics = { a = 1, b = "> 2" }, changed = ["x"], unchanged = ["y"] }]
hlo = "passes"
"""

values = st.recursive(
    st.one_of(
        st.integers(-2, 300),
        st.booleans(),
        st.floats(),
        st.sampled_from(["", "*", "0.8", "cpu:8", "<0.8", "ok", "3.11", "{n}", "n > 1", "a b", "x\u2028\ny", "../x"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["jax", "select", "when", "outcome", "x y", "", "3.11", "gpu"]), inner, max_size=2
        ),
    ),
    max_leaves=4,
)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def changed(data: st.DataObject, text: str) -> str:
    """The file with one value, table or key anywhere in it replaced."""
    document: dict[str, Any] = tomllib.loads(text)
    here: Any = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys)) if keys else "new"
        inner = here[key] if keys else None
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        here = inner
    if isinstance(here, dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(["jax", "cuda", "reason", "x", "jaxx", "3.12", "", "h100:8", "when"]))
    if isinstance(here, dict) or keys:
        here[key] = data.draw(values)
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items())


def lines_named(error: UserError) -> list[int]:
    errors = getattr(error, "errors", (error,))
    return [int(each.where.rpartition(":")[2]) for each in errors]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_matrix(data: st.DataObject) -> None:
    text = changed(data, MATRIX)
    lines = [1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matrix.toml"
        path.write_text(text)
        try:
            assert load_matrix(path).axes
        except UserError as error:
            lines = lines_named(error)
    assert lines == sorted(lines)
    assert all(1 <= line <= text.count("\n") for line in lines)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_repro(data: st.DataObject) -> None:
    text = changed(data, REPRO)
    lines = [2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bug.py"
        path.write_text("# /// repro\n" + "".join(f"# {line}\n" for line in text.splitlines()) + "# ///\nprint(1)\n")
        try:
            assert load_repro(path).name == "bug"
        except UserError as error:
            lines = lines_named(error)
    assert lines == sorted(lines)
    assert all(1 < line <= text.count("\n") + 3 for line in lines)
