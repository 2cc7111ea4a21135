"""containers/stacks.py: cores of real crashes, made-up cores, and tools that misbehave."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "containers" / "stacks.py"
KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = util.spec_from_file_location("stacks_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- cores made by hand: what no kernel at hand would write ----


def note(kind: int, data: bytes) -> bytes:
    name = b"CORE\0\0\0\0"
    return struct.pack("<III", 5, len(data), kind) + name + data + b"\0" * (-len(data) % 4)


def prstatus(thread: int, number: int) -> bytes:
    data = bytearray(336)
    struct.pack_into("<h", data, 12, number)
    struct.pack_into("<i", data, 32, thread)
    return note(1, bytes(data))


def prpsinfo(pid: int, command: bytes) -> bytes:
    data = bytearray(136)
    struct.pack_into("<i", data, 24, pid)
    data[56 : 56 + len(command)] = command
    return note(3, bytes(data))


def make_core(path: Path, pid: int = 77, *, machine: int = 62, kind: int = 4, many: bool = False) -> Path:
    """An ELF core of a process with two threads, of which the second, 78, got SIGBUS; one segment of 4 KiB."""
    notes = prstatus(78, signal.SIGBUS) + prpsinfo(pid, b"python3 bug.py ") + prstatus(77, 0)
    at = 64 + 2 * 56
    rows = struct.pack("<IIQQQQQQ", 4, 0, at, 0, 0, len(notes), 0, 4)
    rows += struct.pack("<IIQQQQQQ", 1, 0, at + len(notes), 0, 0, 4 * KIBIBYTE, 4 * KIBIBYTE, 1)
    body = notes + bytes(4 * KIBIBYTE)
    sections = at + len(body) if many else 0
    header = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQ", kind, machine, 1, 0, 64, sections)
    header += struct.pack("<IHHHHHH", 0, 64, 56, 0xFFFF if many else 2, 64, int(many), 0)
    last = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 2, 0, 0) if many else b""
    path.write_bytes(header + rows + body + last)
    return path


def test_first_thread_of_the_notes_is_the_one_that_crashed(program: ModuleType, tmp_path: Path) -> None:
    dump = program.examine(str(make_core(tmp_path / "core")))
    assert (dump.pid, dump.thread, dump.signal, dump.command) == (77, 78, "SIGBUS", "python3 bug.py")
    assert dump.cut is False


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("lost", [1, 100, 4000])
def test_cut(program: ModuleType, tmp_path: Path, many: bool, lost: int) -> None:
    core = make_core(tmp_path / "core", many=many)
    assert program.examine(str(core)).cut is False
    os.truncate(core, core.stat().st_size - lost)
    dump = program.examine(str(core))
    assert (dump.pid, dump.cut) == (77, True)


def test_more_segments_than_the_header_can_count(program: ModuleType, tmp_path: Path) -> None:
    core = make_core(tmp_path / "core", many=True)
    fd = os.open(core, os.O_RDONLY)
    try:
        (offset, size), end = program.segments(fd, core.read_bytes()[:64])
    finally:
        os.close(fd)
    assert (offset, end) == (64 + 2 * 56, core.stat().st_size)
    assert size > 0


@pytest.mark.parametrize("text", [b"", b"\x7fELF", b"a text of the script that it calls core" * 9])
def test_what_is_no_core(program: ModuleType, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "core").write_bytes(text)
    assert program.examine(str(tmp_path / "core")) is None


def test_an_executable_is_no_core(program: ModuleType, tmp_path: Path) -> None:
    assert program.examine(str(make_core(tmp_path / "core", kind=2))) is None


def test_core_of_another_machine_is_said_to_be_one(program: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other than x86_64 and aarch64"):
        program.examine(str(make_core(tmp_path / "core", machine=243)))


def test_core_cut_within_its_notes(program: ModuleType, tmp_path: Path) -> None:
    os.truncate(make_core(tmp_path / "core"), 300)
    with pytest.raises(ValueError, match="before it says whose it is"):
        program.examine(str(tmp_path / "core"))


def test_a_pipe_that_is_called_core_does_not_block(program: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "core")
    assert program.examine(str(tmp_path / "core")) is None


def test_notes_of_any_bytes_end(program: ModuleType) -> None:
    for seed in range(200):
        with pytest.raises(ValueError, match="whose it is"):
            program.process(bytes((seed * i * i + 7 * i) % 256 for i in range(100)))


def test_a_sparse_copy_keeps_its_holes(program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(tmp_path / "core")
    os.truncate(core, 1 << 30)
    (tmp_path / "kept").mkdir()

    def other_disk(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(program.os, "rename", other_disk)
    dump = program.examine(str(core))
    assert program.move(dump, str(tmp_path / "kept"), False) == str(core)  # it will be deleted: no copy
    kept = Path(program.move(dump, str(tmp_path / "kept"), True))
    assert kept == tmp_path / "kept" / "core.77"
    assert kept.stat().st_size == 1 << 30
    assert kept.stat().st_blocks * 512 < MEBIBYTE
    assert not core.exists()


# ---- the program, run as the supervisor runs it ----


def call(mode: str, folder: Path, **request: object) -> dict[str, Any]:
    base: dict[str, object] = {"tools": None, "ranks": [77], "limit": 20, "pids": [], "cores": "stacks", "cap": None}
    base |= {"work": str(folder / "work"), "places": [], "since": time.time() - 60, "died": []}
    argv = [sys.executable, "-I", "-S", str(PROGRAM), mode, str(folder), json.dumps(base | request)]
    done = subprocess.run(argv, check=False, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    index: dict[str, Any] = json.loads((folder / "stacks.json").read_text())
    assert index["schema"] == 1
    return index


def plain_pattern() -> bool:
    return Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core"


only_plain = pytest.mark.skipif(not plain_pattern(), reason="core_pattern of this host is not `core`")
DIED = {"pid": 77, "signal": "SIGBUS", "core": True, "held": False}


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def fake_tools(folder: Path, pystack: str, py_spy: str = "exit 3") -> Path:
    """Tools that behave as said."""
    (folder / "pystack").mkdir(parents=True)
    (folder / "pystack" / "__init__.py").touch()
    (folder / "pystack" / "__main__.py").write_text(f"import os, sys, time\ndef main():\n    {pystack}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "py-spy").write_text(f"#!/bin/sh\n{py_spy}\n")
    (folder / "bin" / "py-spy").chmod(0o755)
    return folder


SAYS = "print('Traceback for thread 78 [] (most recent call last):', sys.argv[1:])"


@pytest.mark.parametrize("cores", ["stacks", "keep"])
def test_set_aside_core_is_read_then_deleted_or_kept(attempt: Path, cores: str) -> None:
    make_core(attempt / "core.77")
    tools = fake_tools(attempt / "tools", SAYS)
    index = call("core", attempt, tools=str(tools), cores=cores, died=[DIED])
    (stack,), (core,) = index["stacks"], index["cores"]
    assert stack == {
        "pid": 77,
        "rank": 0,
        "command": "python3 bug.py",
        "source": "core",
        "tool": "pystack",
        "thread": 78,
        "signal": "SIGBUS",
        "file": "stacks/77.txt",
        "trouble": "",
    }
    assert "'core', '--native-all', " in (attempt / "stacks" / "77.txt").read_text()
    assert core["file"] == ("core.77" if cores == "keep" else "")
    assert (core["pid"], core["signal"], core["cut"]) == (77, "SIGBUS", False)
    assert (attempt / "core.77").exists() == (cores == "keep")
    assert index["notes"] == []


@only_plain
def test_core_that_another_process_wrote_over_is_not_taken_for_the_ranks(attempt: Path) -> None:
    make_core(attempt / "core.77", pid=99)
    index = call("core", attempt, tools=str(fake_tools(attempt / "tools", SAYS)), cores="keep", died=[DIED])
    assert [core["file"] for core in index["cores"]] == ["core.99"]
    assert index["stacks"][0]["rank"] is None
    assert index["notes"][0].startswith("no core of process 77 (SIGBUS): the kernel wrote one, but it is not there")


@only_plain
def test_core_of_before_the_attempt_is_not_touched(attempt: Path) -> None:
    make_core(attempt / "work" / "core")
    index = call("core", attempt, since=time.time() + 10)
    assert (index["cores"], index["stacks"]) == ([], [])
    assert (attempt / "work" / "core").exists()


@only_plain
def test_at_most_four_cores_of_children_the_earliest(attempt: Path) -> None:
    now = time.time()
    for pid in range(101, 107):
        (attempt / "work" / f"d{pid}").mkdir()
        os.utime(make_core(attempt / "work" / f"d{pid}" / "core", pid=pid), (now, now - pid + 100))
    index = call("core", attempt, tools=str(fake_tools(attempt / "tools", SAYS)), cores="keep")
    assert [core["pid"] for core in index["cores"]] == [106, 105, 104, 103]
    assert index["notes"] == ["more than 4 child processes left cores: the later ones were deleted"]
    assert sorted(path.name for path in attempt.rglob("core*")) == [f"core.{pid}" for pid in range(103, 107)]


@only_plain
@pytest.mark.parametrize(
    ("lay", "why"),
    [
        ("pass", "no reason seen"),
        ("os.mkdir('core')", "something else lies at "),
        ("open('core', 'w'); os.link('core', 'twin')", "something else lies at "),
        ("os.rmdir(os.getcwd())", "there is no such folder"),
    ],
)
def test_why_a_core_is_missing(attempt: Path, lay: str, why: str) -> None:
    subprocess.run([sys.executable, "-c", f"import os\n{lay}"], check=True, cwd=attempt / "work")
    (note,) = call("core", attempt, died=[{**DIED, "core": False}])["notes"]
    assert note.startswith("no core of process 77 (SIGBUS): ")
    assert why in note


@only_plain
def test_core_of_a_rank_that_was_elsewhere(attempt: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("else [where]")
    make_core(place / "core")
    index = call("core", attempt, places=[str(place)], cores="keep", died=[DIED])
    assert ([core["file"] for core in index["cores"]], list(place.iterdir())) == (["core.77"], [])
    make_core(place / "core", pid=99)  # of a stranger
    assert call("core", attempt, places=[str(place)])["cores"] == [{**index["cores"][0], "file": ""}]
    assert (place / "core").exists()


def test_no_core_of_a_rank_that_died_while_anothers_was_written(attempt: Path) -> None:
    (note,) = call("core", attempt, died=[{**DIED, "core": False, "held": True}])["notes"]
    assert note.startswith("no core of process 77 (SIGBUS): none was written over that of another rank")


def test_a_core_with_offsets_beyond_any_file_costs_a_note(attempt: Path) -> None:
    head = struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, 1 << 63, 0, 0, 64, 56, 1, 0, 0, 0)
    (attempt / "core.1").write_bytes(b"\x7fELF\2\1\1" + bytes(9) + head)
    make_core(attempt / "core.77")
    index = call("core", attempt, tools=str(fake_tools(attempt / "tools", SAYS)), died=[DIED])
    assert ([core["pid"] for core in index["cores"]], len(index["notes"])) == ([77], 1)
    assert index["notes"][0].startswith(f"the core file {attempt}/core.1 ")


def test_missing_with_patterns_of_other_hosts(program: ModuleType, tmp_path: Path) -> None:
    handler = "|/usr/lib/systemd/systemd-coredump %P %u"
    assert program.missing(DIED, str(tmp_path), handler, handler) == (
        "this host hands cores to /usr/lib/systemd/systemd-coredump %P %u"
    )
    assert program.missing(DIED, str(tmp_path), "", "") == "core_pattern of this host is empty"
    gone = program.missing({**DIED, "core": False}, str(tmp_path), "/nowhere/at/all/core.%p", "*")
    assert gone == "core_pattern of this host is /nowhere/at/all/core.%p, and there is no such folder"


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "wild"),
    [
        ("core", "0", "core"),
        ("core", "1", "core.*"),
        ("core.%p", "1", "core.*"),
        ("/var/crash/%e-%p[%s]", "0", "/var/crash/*-*[[]*]"),
        ("100%%", "0", "100%"),
    ],
)
def test_names_of_cores(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, pattern: str, uses_pid: str, wild: str
) -> None:
    texts = {"/proc/sys/kernel/core_pattern": pattern + "\n", "/proc/sys/kernel/core_uses_pid": uses_pid + "\n"}
    monkeypatch.setattr(program, "read", texts.__getitem__)
    assert program.core_name() == (pattern, wild)


def test_a_core_in_a_shared_folder_is_taken_only_if_it_is_ours(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "crash").mkdir()
    (tmp_path / "attempt").mkdir()
    for pid in (77, 99):
        make_core(tmp_path / "crash" / f"core.{pid}", pid=pid)
    request = {"work": str(tmp_path / "attempt" / "work"), "places": [], "ranks": [77], "since": time.time() - 5}
    index = program.Index(str(tmp_path / "attempt"))
    found = program.find(index, request, f"{tmp_path}/crash/core.%p", f"{tmp_path}/crash/core.*")
    assert [dump.pid for dump in found] == [77]


@pytest.mark.parametrize(
    ("cores", "left", "words"),
    [("keep", ["core.77"], "kept as they are"), ("stacks", [], 'deleted unread; [run] cores = "keep" keeps them')],
)
def test_without_tools_a_core_is_not_left_unless_it_is_to_be_kept(
    attempt: Path, cores: str, left: list[str], words: str
) -> None:
    make_core(attempt / "core.77")
    index = call("core", attempt, died=[DIED], cores=cores)
    assert (index["stacks"], index["cores"][0]["file"]) == ([], "".join(left))
    assert [path.name for path in attempt.glob("core*")] == left
    assert index["notes"] == [f"the tools that read stacks are not there: cores are {words}"]
    assert call("live", attempt, pids=[os.getpid()])["notes"][-1].startswith("the tools that read stacks are not there")


@pytest.mark.parametrize(
    ("behaviour", "trouble"),
    [
        ("sys.exit(2)", "pystack: status 2"),
        ("raise KeyError('no such thread')", "pystack: KeyError: 'no such thread'"),
        ("print('💀 Engine error: not a core 💀', file=sys.stderr); sys.exit(1)", "pystack: Engine error: not a core"),
        ("os.kill(os.getpid(), 9)", "pystack: status -9"),
        ("pass", "pystack: it found no thread"),
    ],
)
def test_a_tool_that_fails_on_a_core(attempt: Path, behaviour: str, trouble: str) -> None:
    make_core(attempt / "core.77")
    index = call("core", attempt, tools=str(fake_tools(attempt / "tools", behaviour)), died=[DIED])
    (stack,) = index["stacks"]
    assert (stack["tool"], stack["file"], stack["trouble"]) == ("", "", trouble)
    assert index["notes"] == ['the core of process 77 could not be read and was deleted; [run] cores = "keep" keeps it']
    assert not list(attempt.glob("core*"))
    assert not list((attempt / "stacks").iterdir())


def test_a_tool_that_hangs_costs_its_time_and_no_more(attempt: Path) -> None:
    make_core(attempt / "core.77")
    began = time.monotonic()
    tools = fake_tools(attempt / "tools", "time.sleep(1000)")
    (stack,) = call("core", attempt, tools=str(tools), died=[DIED], limit=1)["stacks"]
    assert stack["trouble"] == "pystack: no answer within 1 s"
    assert time.monotonic() - began < 12


def test_a_tool_that_dies_half_way_leaves_what_it_had(attempt: Path) -> None:
    make_core(attempt / "core.77")
    tools = fake_tools(attempt / "tools", SAYS + "; sys.exit('lost the rest')")
    (stack,) = call("core", attempt, tools=str(tools), died=[DIED])["stacks"]
    assert (stack["file"], stack["trouble"]) == ("stacks/77.txt", "not whole: lost the rest")


def test_a_tool_that_talks_without_end(attempt: Path) -> None:
    make_core(attempt / "core.77")
    tools = fake_tools(attempt / "tools", SAYS + "\n    while True: print('x' * 1000000)")
    (stack,) = call("core", attempt, tools=str(tools), died=[DIED])["stacks"]
    assert stack["trouble"] == "not whole: OSError: [Errno 27] File too large"
    assert (attempt / "stacks" / "77.txt").stat().st_size == 16 * MEBIBYTE


def test_a_tool_that_wants_all_memory(attempt: Path) -> None:
    make_core(attempt / "core.77")
    tools = fake_tools(attempt / "tools", "bytearray(8 << 30)")
    (stack,) = call("core", attempt, tools=str(tools), died=[DIED])["stacks"]
    assert stack["trouble"] == "pystack: MemoryError"


def test_py_spy_where_pystack_cannot(attempt: Path) -> None:
    tools = fake_tools(attempt / "tools", "sys.exit('cannot')", "echo 'Thread 1 (idle): \"MainThread\"'")
    (stack,) = call("live", attempt, tools=str(tools), pids=[os.getpid()])["stacks"]
    assert (stack["tool"], stack["trouble"], stack["source"]) == ("py-spy", "", "live")
    assert stack["command"] == Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()[:200]


def test_neither_can(attempt: Path) -> None:
    tools = fake_tools(attempt / "tools", "sys.exit('cannot')", "echo 'Error: nor I' >&2; exit 1")
    (stack,) = call("live", attempt, tools=str(tools), pids=[os.getpid()])["stacks"]
    assert (stack["tool"], stack["trouble"]) == ("", "pystack: cannot; py-spy: Error: nor I")


def test_links_and_folders_of_a_script_are_not_followed(attempt: Path) -> None:
    make_core(attempt / "core.77")
    (attempt / "elsewhere").mkdir()
    (attempt / "stacks").symlink_to(attempt / "elsewhere")
    tools = fake_tools(attempt / "tools", SAYS)
    (stack,) = call("core", attempt, tools=str(tools), died=[DIED])["stacks"]
    assert (stack["file"], list((attempt / "elsewhere").iterdir())) == ("", [])
    assert "Not a directory" in stack["trouble"] or "symbolic links" in stack["trouble"]


@pytest.mark.parametrize("text", ["", "[]", '{"stacks": 3, "notes": []}', '{"stacks": [1], "notes": []}'])
def test_an_index_that_a_script_wrote_costs_nothing(attempt: Path, text: str) -> None:
    make_core(attempt / "core.77")
    (attempt / "stacks.json").write_text(text)
    index = call("core", attempt, tools=str(fake_tools(attempt / "tools", SAYS)), died=[DIED])
    assert [stack["file"] for stack in index["stacks"]] == ["stacks/77.txt"]


# ---- the real tools ----


@pytest.mark.network
def test_core_of_a_segmentation_fault(attempt: Path, tools: Path) -> None:
    if not plain_pattern():
        pytest.skip("core_pattern of this host is not `core`")
    script = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    script += "def here():\n    ctypes.string_at(0)\nhere()"
    (attempt / "work" / "bug.py").write_text(script)

    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)

    died = subprocess.Popen([sys.executable, "bug.py"], cwd=attempt / "work", preexec_fn=allow)  # noqa: PLW1509
    assert died.wait() == -signal.SIGSEGV
    index = call("core", attempt, tools=str(tools), ranks=[died.pid], died=[{**DIED, "pid": died.pid}])
    (stack,) = index["stacks"]
    assert (stack["thread"], stack["signal"], stack["trouble"]) == (died.pid, "SIGSEGV", "")
    text = (attempt / stack["file"]).read_text()
    assert 'bug.py", line 4, in here' in text
    assert "string_at" in text
    assert text.count("Traceback for thread") == 2


@pytest.mark.network
def test_a_process_that_ends_while_it_is_read(attempt: Path, tools: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    time.sleep(0.2)
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    began = time.monotonic()
    try:
        index = call("live", attempt, tools=str(tools), pids=[gone.pid, process.pid], ranks=[process.pid])
    finally:
        process.kill()
        process.wait()
    assert [stack["pid"] for stack in index["stacks"]] == [process.pid]
    assert "time_sleep" in (attempt / f"stacks/{process.pid}.txt").read_text()
    assert time.monotonic() - began < 20
