"""The programs that read stacks: their locks, their folder, refusals of an index, and that they work."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repromatrix.envs.index import PLATFORM
from repromatrix.envs.tools import LOCKS, known, read_tools
from repromatrix.errors import InfraError, InputErrors
from repromatrix.project import Project
from tests.tools_case import PYTHON, ToolsCase, lock_tools

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def use(folder: Path) -> str:
    """What the hand-made programs print, started as the supervisor starts the real ones."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pystack.__main__ import main; main()"
    read = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True)
    spied = subprocess.run([folder / "bin" / "py-spy"], capture_output=True, text=True, check=True)
    return read.stdout + spied.stdout


def everything(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


# --- the committed locks ----------------------------------------------------------------------------------------------


def test_every_python_has_both_programs_locked() -> None:
    assert sorted(path.name for path in LOCKS.iterdir()) == sorted(f"py{p.replace('.', '')}.txt" for p in PYTHONS)
    for python in PYTHONS:
        found = read_tools(python)
        assert found is not None
        assert [wheel.name for wheel in found.wheels] == ["py-spy", "pystack"]
        assert found.platform == PLATFORM
        assert all(wheel.size and wheel.uploaded for wheel in found.wheels)
        assert "://" not in (LOCKS / f"py{python.replace('.', '')}.txt").read_text()


def test_a_damaged_lock_is_told_with_its_line(tools_case: ToolsCase) -> None:
    path = tools_case.locks / f"py{PYTHON.replace('.', '')}.txt"
    path.write_text(path.read_text().replace("sha256:", "sha1:", 1))
    with pytest.raises(InputErrors) as caught:
        tools_case.tools()
    assert f"{path}:5: not a locked wheel" in str(caught.value)
    lock_tools(tools_case.locks, "3.9")
    path.write_text((tools_case.locks / "py39.txt").read_text())
    with pytest.raises(InputErrors, match=f"header does not fit Python {re.escape(PYTHON)}"):
        tools_case.tools()


@pytest.mark.network
def test_locking_again_gives_the_committed_bytes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "relock.py"), "--stack-readers", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for path in LOCKS.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


# --- the folder -------------------------------------------------------------------------------------------------------


def test_the_folder_is_made_once_and_works(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    assert known(PYTHON, tools_case.project, tools_case.locks) is None
    folder = tools_case.tools()
    assert folder is not None
    assert use(folder) == "read\nspied\n"
    assert known(PYTHON, tools_case.project, tools_case.locks) == folder
    asked = len(tools_case.index.requests)
    before = everything(folder)
    assert tools_case.tools(offline=True) == folder
    assert len(tools_case.index.requests) == asked
    assert everything(folder) == before
    assert tools_case.heard.said == []


def test_using_it_writes_nothing(tools_case: ToolsCase) -> None:
    """The test may run as root, whom read-only files do not stop: bytecode that is there already does."""
    tools_case.publish("pystack", "py-spy")
    folder = tools_case.tools()
    assert folder is not None
    before = everything(folder)
    use(folder)
    assert everything(folder) == before


def test_another_user_may_use_it(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    old = os.umask(0o077)
    try:
        folder = tools_case.tools()
    finally:
        os.umask(old)
    assert folder is not None
    for path in [folder, *folder.rglob("*")]:
        if path.name != "repromatrix.json":  # the store's own note
            wanted = 0o755 if path.is_dir() else 0o555 if path.name == "py-spy" else 0o444
            assert (path, path.stat().st_mode & 0o777) == (path, wanted)


def test_what_was_changed_is_laid_out_again(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    folder = tools_case.tools()
    assert folder is not None
    (folder / "bin" / "py-spy").unlink()
    assert known(PYTHON, tools_case.project, tools_case.locks) is None
    assert tools_case.tools(offline=True) == folder
    assert use(folder) == "read\nspied\n"
    assert [said for said in tools_case.heard.said if "changed or removed" in said] == tools_case.heard.said != []


def test_threads_and_processes_make_it_once(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    code = (
        "import sys, threading; from pathlib import Path; from repromatrix.envs.tools import tools\n"
        "from repromatrix.events import Silent; from repromatrix.project import Project\n"
        "from repromatrix.spec.model import Matrix\n"
        "root = Path(sys.argv[1]); project = Project(root, root / 'store')\n"
        "print(tools(sys.argv[2], Matrix(project.matrix_toml, (), 'release'), project, Silent(), threading.Event(),\n"
        "            offline=False, locks=root / 'locks'))\n"
    )
    command = [sys.executable, "-c", code, str(tools_case.project.root), PYTHON]
    others = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        found = {str(folder) for folder in pool.map(lambda _: tools_case.tools(), range(4))}
    for other in others:
        out, _ = other.communicate(timeout=60)
        assert other.returncode == 0
        found.add(out.strip())
    (only,) = found
    assert use(Path(only)) == "read\nspied\n"
    assert [path.name for path in (tools_case.project.store / "tools").iterdir()] == [Path(only).name]
    assert sum(path.startswith("/files/") and path.endswith(".whl") for path in tools_case.index.requests) <= 2 * 3


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_python_without_wheels_has_none_and_it_is_said_once(tools_case: ToolsCase) -> None:
    assert tools_case.tools("3.8") is None
    assert tools_case.tools("3.8") is None
    assert tools_case.heard.said == [
        "there is no pystack for Python 3.8: a crash or a hang is recorded without native stacks"
    ]


def refusal(tools_case: ToolsCase, python: str = PYTHON) -> InfraError:
    with pytest.raises(InfraError) as caught:
        tools_case.tools(python)
    return caught.value


def test_an_index_that_lacks_both_is_asked_once_for_all(tools_case: ToolsCase) -> None:
    lock_tools(tools_case.locks, "3.9")
    began = time.monotonic()
    first = refusal(tools_case)
    assert time.monotonic() - began < 30
    assert first.message == (
        "no stacks can be read: the index has none of the packages of the stack readers (py-spy 1.0, pystack 1.0); "
        "a crash or a hang is recorded without native stacks"
    )
    assert "UV_DEFAULT_INDEX" in first.hint
    asked = len(tools_case.index.requests)
    assert asked
    assert str(refusal(tools_case)) == str(refusal(tools_case, "3.9")) == str(first)
    assert len(tools_case.index.requests) == asked


def test_an_index_that_lacks_one_is_asked_once_for_this_python(tools_case: ToolsCase) -> None:
    tools_case.publish("py-spy")
    first = refusal(tools_case)
    assert "the index does not serve pystack-1.0-py3-none-any.whl" in first.message
    assert first.hint.startswith("let your mirror carry it")
    asked = len(tools_case.index.requests)
    assert str(refusal(tools_case)) == str(first)
    assert len(tools_case.index.requests) == asked
    assert not any(path.endswith(".whl") for path in tools_case.index.requests)


def test_an_index_that_never_answers_costs_a_limited_time(
    tools_case: ToolsCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repromatrix.envs.tools.PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        began = time.monotonic()
        said = refusal(tools_case)
        assert 1 < time.monotonic() - began < 20
        assert "the index did not say within 1 s where the stack readers (py-spy 1.0, pystack 1.0) are" in said.message
        began = time.monotonic()
        assert str(refusal(tools_case)) == str(said)
        assert time.monotonic() - began < 0.9


def test_other_bytes_than_locked_are_refused(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    tools_case.index.broken.add("pystack-1.0-py3-none-any.whl")
    with pytest.raises(InfraError, match="not the file of the lock"):
        tools_case.tools()
    assert known(PYTHON, tools_case.project, tools_case.locks) is None


def test_offline_says_what_to_do_and_asks_nobody(tools_case: ToolsCase) -> None:
    with pytest.raises(InfraError) as caught:
        tools_case.tools(offline=True)
    assert caught.value.hint == "run once without --offline"
    assert tools_case.index.requests == []


def test_cancelling_is_no_refusal(tools_case: ToolsCase) -> None:
    tools_case.publish("pystack", "py-spy")
    tools_case.cancel.set()
    with pytest.raises(InfraError):
        tools_case.tools()
    tools_case.cancel.clear()
    assert tools_case.tools() is not None


def test_a_store_that_cannot_be_written(tools_case: ToolsCase, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the store should be")
    tools_case.publish("pystack", "py-spy")
    tools_case.project = Project(tmp_path, blocked / "store")
    with pytest.raises(InfraError, match="cannot write in the store"):
        tools_case.tools()


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_the_real_programs_read_a_living_process(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder: Path = request.getfixturevalue("tools")
    before = everything(folder)
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import time\ndef wait_for_ever():\n    print('up', flush=True)\n    time.sleep(100)\nwait_for_ever()\n"
    )
    sleeper = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"up\n"
        code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pystack.__main__ import main; main()"
        argv = [sys.executable, "-I", "-S", "-c", code, str(folder), "remote", "--native-all", str(sleeper.pid)]
        read = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        spied = subprocess.run(
            [folder / "bin" / "py-spy", "dump", "--pid", str(sleeper.pid)], capture_output=True, text=True, check=True
        ).stdout
    finally:
        sleeper.kill()
        sleeper.wait()
    assert "wait_for_ever" in read
    assert re.search(r"\(C\) File .*nanosleep|\(C\) .*time_sleep", read)
    assert "wait_for_ever (sleeper.py:4)" in spied
    assert everything(folder) == before
