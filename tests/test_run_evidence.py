"""What a run leaves of its attempts, through the command line: stack readers, cores, ranks; and grading it again."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Checkout
from tests.fake_index import FakeIndex

OWN_CORES = pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text()[:1] in "|/", reason="this host takes the cores for itself"
)


def settings(checkout: Checkout, text: str) -> None:
    """Add lines to `[run]`, which the file ends with, and leave one version."""
    path = checkout.root / "matrix.toml"
    path.write_text(path.read_text().replace('"1.0.0", "1.1.0", ', "") + text)


def only_cell(checkout: Checkout) -> dict[str, Any]:
    (cell,) = json.loads((checkout.root / "out.json").read_text())["cells"]
    assert isinstance(cell, dict)
    return cell


def test_no_stack_readers_is_one_warning_and_no_failure(checkout: Checkout) -> None:
    """The index of these tests has none; the attempts run all the same."""
    checkout.repro("fine", "import jax")
    said = checkout.invoke("matrix", "--repeat", "2", "--json", "out.json")
    assert said.code == 0, said.err
    warnings = [line for line in said.err.splitlines() if line.startswith("warning:")]
    assert [line for line in warnings if "stacks" in line] == warnings
    assert len(warnings) == 1
    again = checkout.invoke("matrix", "--json", "out.json")
    assert (again.code, "warning" in again.err) == (0, False)  # with nothing to do nothing is fetched


def test_offline_nobody_is_asked(checkout: Checkout, index: FakeIndex) -> None:
    checkout.repro("fine", "import jax")
    assert checkout.invoke("fetch").code == 0
    asked = len(index.requests)
    said = checkout.invoke("matrix", "--offline", "--json", "out.json")
    assert said.code == 0, said.err
    assert "--offline forbids" in said.err
    assert len(index.requests) == asked


@OWN_CORES
def test_a_kept_core_lies_in_the_evidence(checkout: Checkout) -> None:
    settings(checkout, 'cores = "keep"\n')
    checkout.repro("dies", "import ctypes, jax\nctypes.string_at(0)")
    said = checkout.invoke("matrix", "--json", "out.json")
    assert said.code == 1, said.err
    (attempt,) = only_cell(checkout)["attempts"]
    (packed,) = (file for file in attempt["files"] if file["label"].startswith("core"))
    assert re.fullmatch(r"core of \d+ SIGSEGV", packed["label"])
    assert re.fullmatch(r"core\.\d+\.zst", packed["path"])
    assert (checkout.root / attempt["evidence"] / packed["path"]).stat().st_size > 10_000
    assert [path.name for path in (checkout.root / attempt["evidence"]).glob("core*")] == [packed["path"]]


@OWN_CORES
def test_grading_again_changes_nothing(checkout: Checkout) -> None:
    settings(checkout, 'cores = "keep"\n')
    checkout.repro("dies", "import os, pathlib, jax\npathlib.Path('../core.1').symlink_to('/etc/hostname')\nos.abort()")
    assert checkout.invoke("matrix", "--json", "out.json").code == 1
    (before,) = only_cell(checkout)["attempts"]
    assert any("core.1 stays uncompressed" in note for note in before["notes"])
    said = checkout.invoke("regrade", "--json", "again.json")
    assert said.code == 0, said.err
    assert json.loads((checkout.root / "again.json").read_text()) == {"schema": 1, "attempts": 1, "changed": []}
    assert checkout.invoke("matrix", "--json", "out.json").code == 1
    assert only_cell(checkout)["attempts"] == [before]


RANKS = """\
import os, pathlib, sys, time, jax
rank, run = int(os.environ["REPRO_RANK"]), os.getppid()
print("rank", rank, "of", os.environ["REPRO_WORLD"])
up, pid = pathlib.Path(f"up.{run}"), pathlib.Path(f"pid.{run}")
if rank == 1:
    while not up.exists():
        time.sleep(0.01)
    pid.write_text(str(os.getpid()))
    print("no newline", end="")
    sys.exit("rank 1 gives up")
up.touch()
while True:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        sys.exit(3)
    except (OSError, ValueError):
        pass
    time.sleep(0.01)
"""
"""Rank 0 is there before rank 1 fails, and ends once the supervisor has seen that. With a sleep instead, a host under
load has both ends in one look, or starts rank 1 later than that, and then rank 0 is the first to fail."""


def test_ranks_are_told_apart(checkout: Checkout) -> None:
    settings(checkout, "")
    checkout.repro("two", RANKS, processes="2")
    said = checkout.invoke("run", "two", "--env", "*", "--json", "out.json")
    assert said.code == 1, said.err
    assert {"[0] rank 0 of 2", "[1] rank 1 of 2", "[1] no newline"} <= set(said.out.splitlines())
    assert "[1] rank 1 gives up" in said.err.splitlines()
    (attempt,) = only_cell(checkout)["attempts"]
    assert [(rank["rank"], rank["role"], rank["exit_status"], rank["signal"]) for rank in attempt["ranks"]] == [
        (0, "followed", 3, None),
        (1, "first", 1, None),
    ]
    assert attempt["exit_status"] == 1
    command = (checkout.root / attempt["evidence"] / "command").read_text()
    (checkout.root / attempt["evidence"] / "result.json").write_text("kept")
    shell = ["/bin/sh", "-c", command]
    with subprocess.Popen(
        shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as again:  # as from a terminal
        assert again.stdout is not None
        copy = again.stdout.read().strip()
        assert again.wait(60) == 0
    result = json.loads((Path(copy) / "result.json").read_text())
    assert [rank["exit_status"] for rank in result["ranks"]] == [3, 1]
    assert (checkout.root / attempt["evidence"] / "result.json").read_text() == "kept"
