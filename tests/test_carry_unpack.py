"""The tool's venv out of an archive: wheels unpacked with care, and Python 3.9 alone is enough."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from repromatrix.carry import folder
from repromatrix.carry.trouble import Damaged, Refused
from repromatrix.carry.unpack import pythons, this_python, unpack
from repromatrix.carry.verify import read, verify
from repromatrix.envs.interpreter import find_python
from repromatrix.share.archives.roots import restore_program
from tests.archive_factory import FILES, make, parts_of, tree
from tests.conftest import ROOT
from tests.wheel_factory import wheel_bytes

PYTHON = this_python()
GREETER = wheel_bytes(
    "greeter",
    {
        "greeter/__init__.py": "import sys\n\n\ndef main():\n    print('hi from', sys.prefix)\n    return 7\n",
        "greeter-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeter:main\n[other]\nx = y\n",
        "greeter-1.0.data/scripts/greet-too": "#!python\nimport greeter\ngreeter.main()\n",
        "greeter-1.0.data/data/share/greeter.txt": "hello",
        "greeter-1.0.data/scripts/binary": b"\x7fELF not a text",
    },
)


def with_wheel(tmp_path: Path, wheel: bytes, python: str = PYTHON) -> Path:
    root = tmp_path / "archive"
    root.mkdir()
    make(root, {**FILES, f"tool/{python}/greeter-1.0-py3-none-any.whl": wheel})
    return root


@pytest.mark.parametrize("name", ["new", "a new folder", "long" * 40, "it's"])
def test_programs_run_where_the_venv_lies_in_the_end(tmp_path: Path, name: str) -> None:
    root, into = with_wheel(tmp_path, GREETER), tmp_path / name
    unpack(root, verify(root), into, PYTHON)
    for program, status in (("greet", 7), ("greet-too", 0)):
        done = subprocess.run([into / f".venv/bin/{program}"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, f"hi from {into}/.venv\n"), done.stderr
        assert os.access(into / f".venv/bin/{program}", os.X_OK)
    assert (into / ".venv/share/greeter.txt").read_text() == "hello"
    assert (into / ".venv/bin/binary").read_bytes() == b"\x7fELF not a text"
    shell = f". {shlex.quote(str(into))}/.venv/bin/activate && command -v greet"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout == f"{into}/.venv/bin/greet\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def spoiled(entries: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> bytes:
    return wheel_bytes("greeter", entries, modes)


def bomb() -> bytes:
    """A member that holds more than its header says."""
    data = bytearray(wheel_bytes("greeter", {"greeter/zeros": b"\0" * 1_000_000}))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(signature)
        data[at + offset : at + offset + 4] = (1000).to_bytes(4, "little")
    return bytes(data)


def twice() -> bytes:
    out = io.BytesIO(GREETER)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(out, "a") as archive:
        archive.writestr("greeter/__init__.py", "other")
    return out.getvalue()


HOSTILE = {
    "above": spoiled({"../outside": b"x"}),
    "deep above": spoiled({"greeter/../../../../../../outside": b"x"}),
    "absolute": spoiled({"/tmp/outside": b"x"}),
    "backslash": spoiled({"a\\..\\outside": b"x"}),
    "data above": spoiled({"greeter-1.0.data/data/../../../outside": b"x"}),
    "no place": spoiled({"greeter-1.0.data/elsewhere/x": b"x"}),
    "link": spoiled({"greeter/link": b"/etc/passwd"}, {"greeter/link": 0o120777}),
    "pipe": spoiled({"greeter/pipe": b""}, {"greeter/pipe": 0o010644}),
    "python": spoiled({"greeter-1.0.data/scripts/python": b"#!/bin/sh\n"}),
    "program above": spoiled({"greeter-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../../x = a:b\n"}),
    "program of code": spoiled({"greeter-1.0.dist-info/entry_points.txt": b"[console_scripts]\nx = a:b(); evil\n"}),
    "no ini": spoiled({"greeter-1.0.dist-info/entry_points.txt": b"[console_scripts\nx"}),
    "not a zip": b"Dear all",
    "half": GREETER[: len(GREETER) // 2],
    "bomb": bomb(),
}


@pytest.mark.parametrize("wheel", list(HOSTILE.values()), ids=list(HOSTILE))
def test_wheels_that_are_not_installed(tmp_path: Path, wheel: bytes) -> None:
    root = with_wheel(tmp_path, wheel)
    manifest, before = verify(root), tree(tmp_path)
    with pytest.raises(Damaged, match="wheel"):
        unpack(root, manifest, tmp_path / "new", PYTHON)
    assert tree(tmp_path) == before


def test_a_member_that_is_there_twice(tmp_path: Path) -> None:
    root = with_wheel(tmp_path, twice())
    manifest, before = verify(root), tree(tmp_path)
    with pytest.raises(Damaged, match="cannot be installed"):
        unpack(root, manifest, tmp_path / "new", PYTHON)
    assert tree(tmp_path) == before


def test_another_python(tmp_path: Path) -> None:
    root = with_wheel(tmp_path, GREETER, "3.99")
    manifest = verify(root)
    assert pythons(manifest) == ["3.99"]
    with pytest.raises(Refused, match=r"holds what the tool needs for Python 3\.99"):
        unpack(root, manifest, tmp_path / "new", PYTHON)
    assert not (tmp_path / "new").exists()


def test_places_where_something_is(tmp_path: Path) -> None:
    root = with_wheel(tmp_path, GREETER)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    manifest, before = verify(root), tree(tmp_path)
    for place in ("file", "full", "link", "no/such/folder"):
        with pytest.raises(Refused):
            unpack(root, manifest, tmp_path / place, PYTHON)
    assert tree(tmp_path) == before


# --- restore.pyz ------------------------------------------------------------------------------------------------------


def pyz(folder: Path) -> Path:
    path = folder / "restore.pyz"
    path.write_bytes(restore_program(ROOT / "repromatrix"))
    return path


def test_the_oldest_python_verifies_and_takes_parts(tmp_path: Path) -> None:
    python = find_python("3.9")
    if python is None:
        pytest.skip("no Python 3.9 on this host")
    root = with_wheel(tmp_path, GREETER, "3.9")
    manifest, restorer = verify(root), pyz(tmp_path)
    parts_of(root, manifest, tmp_path / "parts")
    # No `invoke` among the wheels: the last step fails, when the checkout and its venv are there.
    for place, args, status in (
        ("archive", ["--verify"], 0),
        ("parts", ["--verify"], 0),
        ("parts", ["--into", "new", "--incoming", "incoming"], 1),
    ):
        done = subprocess.run(
            [python, restorer, place, *args], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert manifest.id in done.stdout
    assert "No module named invoke" in done.stderr
    assert "continue with: cd new" in done.stderr
    assert (tmp_path / "new/repros/one.py").read_bytes() == FILES["project/repros/one.py"]
    assert (tmp_path / "new/.venv/lib/python3.9/site-packages/greeter/__init__.py").is_file()


@pytest.mark.parametrize("after", [0.05, 0.3, 0.6])
def test_interrupted_it_leaves_nothing_half(tmp_path: Path, after: float) -> None:
    root = with_wheel(tmp_path, GREETER)
    running = subprocess.Popen(
        [sys.executable, pyz(tmp_path), root, "--into", tmp_path / "new"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(after)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    if (tmp_path / "new").exists():
        assert (tmp_path / "new/.venv/bin/greet").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "new") == ["archive", "restore.pyz"]


SLOW_TOOL = wheel_bytes(
    "invoke",
    {
        "invoke/__init__.py": "",
        "invoke/__main__.py": """
import os, pathlib, sys, time
first = not pathlib.Path("began").exists()
pathlib.Path("began").write_text(str(os.getpid()))
if first:
    try:
        time.sleep(100)
    finally:
        time.sleep(1)  # longer than subprocess.run waits for it
        pathlib.Path("cleaned").touch()
print("brought", sys.argv[1:])
""",
    },
)
"""In the place of the tool: interrupted the first time, and then well."""


@pytest.mark.parametrize("told", ["all", "one"])
@pytest.mark.parametrize("kind", ["archive", "parts"])
def test_the_same_command_goes_on_after_an_interrupt(tmp_path: Path, kind: str, told: str) -> None:
    """A terminal tells the restorer and the tool that it started, a `kill` the restorer alone."""
    root, new = with_wheel(tmp_path, SLOW_TOOL), tmp_path / "a new one"
    manifest = verify(root)
    if kind == "parts":
        parts_of(root, manifest, tmp_path / "parts")
    command: list[str | Path] = [
        sys.executable,
        pyz(tmp_path),
        tmp_path / kind,
        "--into",
        new.name,
        "--incoming",
        "waiting",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        until = time.monotonic() + 60
        while not (new / "began").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        (os.killpg if told == "all" else os.kill)(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert (running.returncode, "the same command continues" in said) == (130, True), said
    assert (new / "cleaned").exists() == (told == "all")  # SIGTERM ends this tool at once
    assert not Path(f"/proc/{(new / 'began').read_text()}").exists()
    (new / "notes.txt").write_text("mine")
    before = tree(new)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    place = root if kind == "archive" else next(tmp_path.glob("waiting/*/archive"), None)
    assert f"brought ['restore', '{place}', '--expect', '{manifest.id}']" in done.stdout
    assert {**tree(new), "began": ""} == {**before, "began": ""}


def _edited(new: Path) -> None:
    (new / "repros/one.py").write_text("mine")


def _linked(new: Path) -> None:
    (new / "repros").rename(new / "mine")
    (new / "repros").symlink_to("mine")


def _deleted(new: Path) -> None:
    (new / "repros/empty.py").unlink()


def _without_its_tool(new: Path) -> None:
    (new / ".venv").rename(new / "old-venv")


@pytest.mark.parametrize("spoil", [_edited, _linked, _deleted, _without_its_tool])
def test_it_does_not_go_on_with_another_checkout(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    root, new = with_wheel(tmp_path, SLOW_TOOL), tmp_path / "new"
    unpack(root, verify(root), new, PYTHON)
    spoil(new)
    program, before = pyz(tmp_path), tree(tmp_path)
    done = subprocess.run(
        [sys.executable, program, root, "--into", new], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "exists already" in done.stderr) == (2, True), done.stderr
    assert "name a new folder" in done.stderr
    assert tree(tmp_path) == before


def test_what_a_killed_call_left_goes_and_what_a_living_one_makes_stays(tmp_path: Path) -> None:
    root = with_wheel(tmp_path, GREETER)
    for name in (".new.7.part", ".new.8.part", ".new.mine.part", ".news.7.part"):
        (tmp_path / name / "repros").mkdir(parents=True)
    with folder.hold(tmp_path / ".new.8.part"):
        unpack(root, read(root), tmp_path / "new", None)
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".new.8.part", ".new.mine.part", ".news.7.part"]


def test_output_into_a_closed_pipe(tmp_path: Path) -> None:
    root = with_wheel(tmp_path, GREETER)
    command = f"{sys.executable} {pyz(tmp_path)} {root} --verify | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
