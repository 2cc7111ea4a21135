"""Bisections that have it hard: no proof, Ctrl-C at a bad moment, two Pythons, two of them at once."""

# ruff: noqa: F811  # a test asks for the imported fixture by its name

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from repromatrix.envs.interpreter import find_python
from repromatrix.regressions.bisection import schema
from tests.test_regressions_bisect import BEGINS, NAMES, Case, case  # noqa: F401  # the last is a fixture

WITNESS = '{ output = ["it ran"] }'
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def told(said: str) -> str:
    return " ".join(said.split())


def until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


# ---- attempts that end well and prove nothing


def test_what_ends_well_without_its_witness_is_never_good(case: Case) -> None:
    """Three versions beside the edge prove nothing: it is not claimed across them without naming them."""
    case.repro("if not 5 <= number < 8: print('it ran')\nif number >= 8: raise KeyError('broken')", witness=WITNESS)
    said = case.bisect()
    assert said.code == 0, said.err
    silent = ["1.1.2", "1.2.0", "1.2.1"]
    assert case.edges == [("1.1.1", "1.2.2", True)]
    assert case.document["edges"][0]["between"] == silent
    assert {case.verdicts[name] for name in silent} == {"inconclusive"}
    path = {each["name"]: each for each in case.document["path"]}
    assert {path[name]["verdict"] for name in silent} == {"unknown"}
    assert {path[name]["why"] for name in silent} == {"inconclusive: exit 0, but the output lacks 'it ran'"}
    named = "it may be in between, where 1.1.2 to 1.2.1 (inconclusive) gave no verdict on it"
    assert named in told(said.out)
    assert "or between the two)" in told(said.out)
    assert named in told((case.checkout.root / "reports" / "bisect-since.md").read_text())


def test_they_are_gone_around_where_the_edge_is_elsewhere(case: Case) -> None:
    """One in the middle of the range, which a bisection asks first."""
    body = "if number == 8: sys.exit()\nprint('it ran')\nif number >= 5: raise KeyError('broken')"
    case.repro(body, witness=WITNESS)
    assert case.bisect("--sweep", "0").code == 0
    assert case.edges == [("1.1.1", "1.1.2", True)]
    assert case.document["edges"][0]["between"] == []
    assert case.verdicts["1.2.2"] == "inconclusive"
    assert Counter(case.tries)["1.2.2"] == 1


def test_there_is_no_edge_where_no_version_proves_that_it_is_good(case: Case) -> None:
    case.repro(BEGINS, witness=WITNESS)
    said = case.bisect()
    assert said.code != 0, said.out
    assert case.edges == []
    assert set(case.verdicts.values()) == {"inconclusive", "bad"}
    assert "last good" not in said.out


# ---- Ctrl-C while environments are made ready


def left_running(place: Path) -> list[str]:
    """Processes that have to do with this folder: by their command line, their variables, where they are."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if process.name != str(os.getpid()) and (
                os.fsencode(place) in words or (process / "cwd").resolve().is_relative_to(place)
            ):
                found.append(f"{process.name}: {(process / 'cmdline').read_bytes()!r}")
        except OSError:  # it ended meanwhile
            continue
    return found


def locked(place: Path) -> list[Path]:
    """Files that somebody holds locked."""
    found = []
    for path in place.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append(path)
    return found


def interrupted(case: Case, tool: subprocess.Popen[str]) -> str:
    """Ctrl-C, as a terminal sends it to all in the foreground; what it said on standard error."""
    os.killpg(tool.pid, signal.SIGINT)
    began = time.monotonic()
    _, said = tool.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert tool.returncode == 130, said
    assert "Traceback" not in said
    assert "same command continues" in said
    place = case.checkout.root.parent
    assert until(lambda: not left_running(place), 3), left_running(place)
    assert locked(place) == []
    return said


@pytest.mark.parametrize("who", ["uv", "tool"])
def test_ctrl_c_while_the_first_environment_is_made(case: Case, who: str) -> None:
    """While uv asks for metadata to lock it, and while a wheel of it comes down."""
    case.repro(BEGINS)
    files = {(who, item.path.name) for item in case.index.published if item.version == "1.3.2"}
    case.index.stalls |= files
    tool = case.checkout.start(*case.arguments("--confidence", "0"))
    assert until(lambda: bool(case.index.stalling))
    interrupted(case, tool)
    assert case.tries == []
    case.index.stalls -= files
    said = case.bisect("--confidence", "0")
    assert said.code == 0, said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert max(Counter(case.tries).values()) == 1


@pytest.mark.parametrize("who", ["uv", "tool"])
def test_ctrl_c_while_one_is_made_ready_ahead(case: Case, who: str) -> None:
    waiting = case.checkout.root / "waiting"
    slow = f"if number == 11 and turn == 1:\n    pathlib.Path({str(waiting)!r}).touch()\n    time.sleep(60)\n"
    case.repro(slow + BEGINS, timeout='"90s"')
    files = {(who, item.path.name) for item in case.index.published if item.version != "1.3.2"}
    case.index.stalls |= files
    tool = case.checkout.start(*case.arguments("--confidence", "0"))
    assert until(lambda: waiting.exists() and bool(case.index.stalling))
    interrupted(case, tool)
    case.read()
    assert case.document["answer"] == "interrupted"
    assert case.document["path"] == []
    case.index.stalls -= files
    said = case.bisect("--confidence", "0")
    assert said.code == 0, said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert {name: count for name, count in Counter(case.tries).items() if count > 1} == {"1.3.2": 2}


def slow_to_build(case: Case, version: str) -> None:
    """That release of jaxlib has sources whose bytecode takes a minute."""
    (item,) = (each for each in case.index.published if (each.name, each.version) == ("jaxlib", version))
    case.index.published.remove(item)
    many = {f"jaxlib/part{number}.py": "print(1, 2, 3)\n" * 20_000 for number in range(150)}
    case.index.add("jaxlib", version, {"jaxlib/__init__.py": "", **many}, uploaded=item.uploaded)


@pytest.mark.parametrize("ahead", [False, True])
def test_ctrl_c_while_bytecode_is_compiled(case: Case, ahead: bool) -> None:
    """Which a process of its own does."""
    waiting = case.checkout.root / "waiting"
    slow = f"if number == 11 and turn == 1:\n    pathlib.Path({str(waiting)!r}).touch()\n    time.sleep(60)\n"
    case.repro((slow if ahead else "") + BEGINS, timeout='"90s"')
    slow_to_build(case, "1.0.0" if ahead else "1.3.2")
    tool = case.checkout.start(*case.arguments("--confidence", "0"))
    place = case.checkout.root.parent
    assert until(lambda: waiting.exists() == ahead and any("--compile" in each for each in left_running(place)))
    interrupted(case, tool)


# ---- two Pythons along the range


def other_python() -> str:
    """A minor version that this machine has an interpreter of, and that is not the one that runs this; or none."""
    own = sys.version_info.minor
    near = sorted((minor for minor in range(9, 15) if minor != own), key=lambda minor: (abs(minor - own), -minor))
    return next((f"3.{minor}" for minor in near if find_python(f"3.{minor}")), "")


@pytest.mark.parametrize(("begins", "is_python_s"), [(6, True), (9, False)])
def test_a_change_of_python_is_told(case: Case, begins: int, is_python_s: bool) -> None:
    """The older half has wheels for this Python alone, the newer half for another one of the matrix."""
    if not (other := other_python()):
        pytest.skip("one Python alone can be had on this machine")
    for item in case.index.published:
        case.index.pythons[item.path.name] = f"=={MINOR if NAMES.index(item.version) < 6 else other}.*"
    matrix = case.checkout.root / "matrix.toml"
    text = matrix.read_text().replace(f'python = ["{MINOR}"]', f'python = ["{MINOR}", "{other}"]')
    matrix.write_text(f'{text}\n[bases."{other}"]\ndebian = "bookworm"\n')
    case.repro(f"print('Python', sys.version_info[1])\nif number >= {begins}: raise KeyError('broken')")
    said = case.bisect("--confidence", "0", "--sweep", "0")
    assert said.code == 0, said.err
    assert case.edges == [(NAMES[begins - 1], NAMES[begins], True)]
    places = {each["name"]: each["cell"]["axes"]["python"] for each in case.document["path"]}
    assert {*places.values()} == {MINOR, other}
    assert places == {name: MINOR if NAMES.index(name) < 6 else other for name in places}
    where = f"Python changes along the range: {MINOR} from 1.0.0 to 1.1.2, {other} from 1.2.0 to 1.3.2"
    (note,) = (note for note in case.document["notes"] if note.startswith("Python changes"))
    assert note.startswith(where)
    assert where in told(said.out)
    names = {change["name"] for change in case.document["edges"][0]["changes"]}
    assert {"jax", "jaxlib"} <= names
    sentence = f"Python changes here, too, from {MINOR} to {other}: the change may be Python's."
    for page in (said.out, (case.checkout.root / "reports" / "bisect-since.md").read_text()):
        assert (sentence in told(page)) == is_python_s, page


# ---- two at once


def test_two_bisections_at_once_are_both_right_and_tell_their_own_attempts(case: Case) -> None:
    case.repro(BEGINS)
    place = case.checkout.root
    sweeps = ("6", "0")
    whole = {sweep: case.arguments("--sweep", sweep) for sweep in sweeps}
    tools = [
        case.checkout.start(*(f"{sweep}.json" if word == "out.json" else word for word in whole[sweep]))
        for sweep in sweeps
    ]
    for tool in tools:
        _, said = tool.communicate(timeout=120)
        assert tool.returncode == 0, said
    own = []
    for sweep in sweeps:
        document = json.loads((place / f"{sweep}.json").read_text())
        jsonschema.Draft202012Validator(schema.schema()).validate(document)
        found = document["bisection"]
        assert [(edge["older"], edge["newer"]) for edge in found["edges"]] == [("1.2.0", "1.2.1")]
        assert found["edges"][0]["confidence"] >= 0.99
        own.append(sum(each["attempted"] for each in found["path"]))
        for each in found["path"]:
            assert 0 <= each["attempted"] <= len(each["cell"]["attempts"])
            assert (each["seconds"] > 0) == (each["attempted"] > 0)
    assert sum(own) == len(case.tries)
    assert all(own)
