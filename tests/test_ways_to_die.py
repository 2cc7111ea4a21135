"""Every way to die, on both engines: real scripts, graded as a run of the tool grades them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.engines.docker import DockerEngine
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.evidence.stacks import Stacks
from repromatrix.project import Project
from repromatrix.spec.model import Environment, Matrix, Outcome
from tests.deaths import DEATHS, ON_A_SMALL_DISK, SOON, Death
from tests.dying import (
    ENGINES,
    Place,
    cell_of,
    check,
    cores_in,
    die,
    needs_cores,
    on_both,
    read_again,
    reading,
    stacks_of,
)
from tests.tools_fixture import readers

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def empty_lock(python: str) -> Lock:
    axes = (("jax", "0.0.0"), ("cuda", "none"), ("python", python), ("nccl", "locked"))
    return Lock(Environment(axes), python, "x86_64-manylinux_2_28", "latest", "", ())


@pytest.fixture(scope="session")
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    return {}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, places: dict[str, Place]) -> Place:
    """The engine that the test's parameter names, with an environment that holds nothing but Python."""
    name: str = request.param
    if name not in places:
        root = tmp_path_factory.mktemp(name)
        if name == "venv":
            engine = VenvEngine(WheelStore(root / "store"))
            places[name] = Place(engine, engine.prepare(empty_lock(MINOR), Silent()), root)
        else:
            request.getfixturevalue("debian_base")
            project: Project = request.getfixturevalue("docker_project")
            matrix: Matrix = request.getfixturevalue("docker_matrix")
            docker = DockerEngine(project, matrix)
            places[name] = Place(docker, docker.prepare(request.getfixturevalue("tiny_lock"), Silent()), root)
    return places[name]


def each(deaths: Sequence[Death]) -> pytest.MarkDecorator:
    rows = [
        pytest.param(name, death, id=f"{name}-{death.name}", marks=marks)
        for name, marks in ENGINES.items()
        for death in deaths
        if name in death.engines
    ]
    return pytest.mark.parametrize(("place", "death"), rows, indirect=["place"])


@each(DEATHS)
def test_it_is_told_how_it_died(place: Place, death: Death, tmp_path: Path) -> None:
    check(die(place, cell_of(place, tmp_path, death.name, death.script, *death.metadata)), death)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=False).returncode != 0:
        pytest.skip("this sandbox does not mount")
    yield disk
    subprocess.run(["umount", disk], check=True)


@each(ON_A_SMALL_DISK)
def test_a_full_disk_is_no_verdict_on_a_version(place: Place, death: Death, tmp_path: Path, small_disk: Path) -> None:
    cell = cell_of(place, tmp_path, death.name, death.script, *death.metadata)
    check(die(replace(place, root=small_disk), cell), death)


SEGFAULT = "import ctypes\ndef peek():\n    ctypes.string_at(0)\n"
"""Without a traceback of faulthandler: what is known then comes from the core alone."""


@pytest.fixture
def tools(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What reads stacks, for the Python of `place`."""
    return readers(tmp_path_factory.mktemp("tools"), place.prepared.lock.python)


@needs_cores
@pytest.mark.network
@on_both
def test_a_crash_is_read_from_its_core(place: Place, tools: Path, tmp_path: Path) -> None:
    script = SEGFAULT + "import faulthandler\nfaulthandler.disable()\npeek()"
    cell = cell_of(place, tmp_path, "peeks", script)
    ended = die(place, cell, cores="stacks", tools=tools)
    assert (ended.result.outcome, ended.result.signal, ended.raw.core) == (Outcome.CRASH, "SIGSEGV", True)
    found = stacks_of(ended)
    (stack,) = found.stacks
    pid = ended.raw.pid
    assert (stack.pid, stack.rank, stack.source, stack.tool) == (pid, 0, "core", "pystack")
    assert (stack.thread, stack.signal, stack.file, stack.trouble) == (pid, "SIGSEGV", f"stacks/{pid}.txt", "")
    assert stack.command.endswith(f"/bin/python {cell.repro.path.name}")
    assert re.search(r'\(Python\) File ".*peeks.py", line \d+, in peek', ended.text(stack.file))
    assert "(C) File" in ended.text(stack.file)
    assert ended.result.signature is not None
    assert ended.result.signature.title == "signal SIGSEGV at __init__.py string_at from peeks.py peek"
    (core,) = found.cores
    assert (core.pid, core.signal, core.file, core.cut) == (pid, "SIGSEGV", "", False)
    assert core.size >= core.allocated > 1 << 20
    assert cores_in(ended) == []
    assert (f"stacks of {pid} python peeks.py", stack.file) in ended.result.files
    assert ended.result.notes == ()


@needs_cores
@pytest.mark.network
@on_both
def test_a_kept_core_can_be_read_again(place: Place, tools: Path, tmp_path: Path) -> None:
    ended = die(place, cell_of(place, tmp_path, "peeks", SEGFAULT + "peek()"), cores="keep", tools=tools)
    (core,) = stacks_of(ended).cores
    assert core.file == f"core.{ended.raw.pid}"
    assert cores_in(ended) == [f"{core.file}.zst"]
    assert (f"core of {core.pid} SIGSEGV", f"{core.file}.zst") in ended.result.files
    assert re.search(r"peeks.py.*in peek", read_again(place, tools, ended, tmp_path))


@pytest.mark.network
@on_both
def test_no_core_where_none_is_wanted(place: Place, tools: Path, tmp_path: Path) -> None:
    ended = die(place, cell_of(place, tmp_path, "peeks", SEGFAULT + "peek()"), cores="off", tools=tools)
    assert (ended.result.signal, ended.raw.core) == ("SIGSEGV", False)
    assert cores_in(ended) == []
    assert stacks_of(ended) == Stacks()
    assert [label for label, _ in ended.result.files] == ["stdout", "stderr"]


@needs_cores
@pytest.mark.network
@on_both
def test_a_child_that_crashes_behind_a_shell_is_named(place: Place, tools: Path, tmp_path: Path) -> None:
    child = SEGFAULT + "peek()"
    script = (
        f"import pathlib, subprocess, sys\npathlib.Path('child.py').write_text({child!r})\n"
        "sys.exit(subprocess.run(['sh', '-c', sys.executable + ' -X faulthandler=0 child.py; exit $?'],"
        " env={}).returncode)"
    )
    ended = die(place, cell_of(place, tmp_path, "launches", script), cores="stacks", tools=tools)
    assert (ended.result.outcome, ended.result.exit_status, ended.result.signal) == (Outcome.ERROR, 139, None)
    (stack,) = stacks_of(ended).stacks
    assert (stack.rank, stack.signal) == (None, "SIGSEGV")
    assert stack.pid not in (0, ended.raw.pid)
    assert ended.result.signature is not None
    assert ended.result.signature.title == "signal SIGSEGV at __init__.py string_at from child.py peek"
    assert cores_in(ended) == []


@needs_cores
@pytest.mark.network
@on_both
def test_a_crash_that_python_cannot_report(place: Place, tools: Path, tmp_path: Path) -> None:
    death = next(death for death in DEATHS if death.name == "stack_overflow_in_a_thread")
    ended = die(place, cell_of(place, tmp_path, death.name, death.script), cores="stacks", tools=tools)
    assert ended.text("stderr") == ""
    (stack,) = stacks_of(ended).stacks
    assert stack.thread not in (None, ended.raw.pid)
    assert ended.result.signature is not None
    assert "stack_overflow_in_a_thread.py down" in " ".join(ended.result.signature.titles)


@pytest.mark.network
@on_both
@pytest.mark.parametrize(
    ("body", "native"),
    [
        ("import time\nwhile True: time.sleep(1000)", "nanosleep"),
        ("while True: pass", ""),
        ("import ctypes\nwhile True: ctypes.CDLL(None).sleep(1000)", "sleep"),
        ("import ctypes\nwhile True: ctypes.PyDLL(None).sleep(1000)", "sleep"),
        ("import os, signal\nwhile True: os.kill(os.getpid(), signal.SIGSTOP)", "kill"),
    ],
    ids=["python", "busy", "c", "c-with-the-gil", "stopped"],
)
def test_a_hang_is_read_before_it_is_ended(place: Place, tools: Path, tmp_path: Path, body: str, native: str) -> None:
    script = "def stuck():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "stuck()"
    ended = die(place, cell_of(place, tmp_path, "hangs", script, *SOON), cores="stacks", tools=tools)
    assert (ended.result.outcome, ended.result.signal) == (Outcome.HANG, "SIGABRT"), ended.result
    stack = stacks_of(ended).stacks[0]
    assert (stack.pid, stack.rank, stack.source, stack.tool, stack.trouble) == (ended.raw.pid, 0, "live", "pystack", "")
    assert re.search(r'\(Python\) File ".*hangs.py", line \d+, in stuck', ended.text(stack.file))
    assert native in ended.text(stack.file)
    assert ended.result.signature is not None
    assert ended.result.signature.title == "hang at hangs.py stuck"
    assert cores_in(ended) == []
    assert reading(ended) < 10


@pytest.mark.network
@on_both
def test_every_process_of_a_hang_is_read(place: Place, tools: Path, tmp_path: Path) -> None:
    child = "import time\ndef below():\n    time.sleep(1000)\nbelow()"
    script = (
        f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "def above():\n    child.wait()\nabove()"
    )
    ended = die(place, cell_of(place, tmp_path, "waits", script, *SOON), cores="off", tools=tools)
    stacks = stacks_of(ended).stacks
    assert [(stack.rank, stack.source, stack.tool) for stack in stacks] == [
        (0, "live", "pystack"),
        (None, "live", "pystack"),
    ]
    assert "in above" in ended.text(stacks[0].file)
    assert "in below" in ended.text(stacks[1].file)
    assert ended.wall < 1.5 + 8 + reading(ended)  # containers start slowly on a busy machine
    assert ended.result.signature is not None
    assert ended.result.signature.title == "hang at subprocess.py _try_wait from waits.py above"
