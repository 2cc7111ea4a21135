"""The supervisor under real scripts that end in every way a script can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.test_stacks_program import SAYS, fake_tools, only_plain

SUPERVISE = Path(__file__).parents[1] / "containers" / "supervise.py"
STACKS = SUPERVISE.with_name("stacks.py")


def lay(folder: Path, script: str, **spec: object) -> Path:
    (folder / "work").mkdir()
    (folder / "work" / "script.py").write_text(script)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONFAULTHANDLER": "1", "TAG": str(folder)}
    document = {"id": "a1", "argv": [sys.executable, "script.py"], "env": env, "timeout": 60, "grace": 1} | spec
    (folder / "spec.json").write_text(json.dumps(document))
    return folder


def start(folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", SUPERVISE, folder], stderr=subprocess.PIPE, **options)


def supervise(folder: Path, script: str, **spec: object) -> dict[str, Any]:
    process = start(lay(folder, script, **spec))
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, said) == (0, b"")
    assert survivors(folder) == []
    assert not (folder / "result.json.part").exists()
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["id"] == "a1"
    return result


def survivors(folder: Path) -> list[int]:
    """Processes that still carry the attempt's mark in their environment."""
    mark = f"TAG={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def eventually_none(folder: Path, seconds: float = 5) -> list[int]:
    limit = time.monotonic() + seconds
    while survivors(folder) and time.monotonic() < limit:
        time.sleep(0.02)
    return survivors(folder)


@pytest.mark.parametrize("status", [0, 3, 125, 255])
def test_exit_status(tmp_path: Path, status: int) -> None:
    result = supervise(tmp_path, f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({status})")
    assert (result["exit_status"], result["signal"], result["infra"]) == (status, None, "")
    assert (tmp_path / "stdout").read_text() == "out\n"
    assert (tmp_path / "stderr").read_text() == "err\n"
    assert (result["stdout_bytes"], result["stderr_bytes"], result["notes"]) == (4, 4, [])
    assert 0 < result["seconds"] < 10
    assert not result["timed_out"]
    assert not result["cancelled"]


def test_exception(tmp_path: Path) -> None:
    result = supervise(tmp_path, "raise KeyError('x')")
    assert result["exit_status"] == 1
    assert (tmp_path / "stderr").read_text().endswith("KeyError: 'x'\n")


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)", f"SIG{signal.SIGRTMIN + 3}"),
    ],
)
def test_signal(tmp_path: Path, script: str, name: str) -> None:
    result = supervise(tmp_path, script, cores="keep", stacks=str(STACKS))
    assert (result["exit_status"], result["signal"], result["timed_out"]) == (None, name, False)
    assert (result["oom_kills"], result["notes"], result["ranks"]) == (0, [], [])
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core":
        assert result["core"] == (name in ("SIGABRT", "SIGSEGV"))
        assert [path.name for path in tmp_path.rglob("core*")] == [f"core.{result['pid']}"] * result["core"]


@pytest.mark.parametrize("spec", [{}, {"cores": "off", "stacks": str(STACKS)}, {"cores": "keep", "stacks": None}])
def test_no_core_unless_asked_for(tmp_path: Path, spec: dict[str, object]) -> None:
    result = supervise(tmp_path, "import os; os.abort()", **spec)
    assert (result["signal"], result["core"]) == ("SIGABRT", False)
    assert not list(tmp_path.rglob("core*"))
    assert not (tmp_path / "stacks.json").exists()


def test_a_child_that_dies_by_a_signal_is_not_the_script(tmp_path: Path) -> None:
    result = supervise(tmp_path, "", argv=["/bin/sh", "-c", f"{sys.executable} -c 'import os; os.abort()'; exit $?"])
    assert (result["exit_status"], result["signal"]) == (134, None)


def test_hang_in_python_leaves_its_stack(tmp_path: Path) -> None:
    began = time.monotonic()
    result = supervise(tmp_path, "import time\ndef stuck():\n    time.sleep(1000)\nstuck()", timeout=0.8)
    assert (result["timed_out"], result["signal"]) == (True, "SIGABRT")
    assert "in stuck" in (tmp_path / "stderr").read_text()
    assert "script.py" in (tmp_path / "threads").read_text()
    assert time.monotonic() - began < 5


HANG_IN_C = "import ctypes\nlibc = ctypes.PyDLL(None)\nwhile True: libc.sleep(1000)"


def test_hang_in_c_that_holds_the_interpreter(tmp_path: Path) -> None:
    result = supervise(tmp_path, HANG_IN_C, timeout=0.8)
    assert (result["timed_out"], result["signal"]) == (True, "SIGABRT")
    assert "script.py" in (tmp_path / "stderr").read_text()


def test_ignoring_sigterm_and_sigabrt_does_not_help(tmp_path: Path) -> None:
    script = (
        "import signal, time, faulthandler\nfaulthandler.disable()\n"
        "for s in (signal.SIGTERM, signal.SIGABRT, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
        "while True: time.sleep(1)"
    )
    result = supervise(tmp_path, script, timeout=0.8, grace=0.5)
    assert (result["timed_out"], result["signal"]) == (True, "SIGKILL")
    assert result["oom_kills"] == 0


def test_stopping_itself_is_a_hang(tmp_path: Path) -> None:
    result = supervise(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout=0.8)
    assert (result["timed_out"], result["signal"]) == (True, "SIGABRT")


def test_a_grandchild_that_holds_the_output_costs_little(tmp_path: Path) -> None:
    script = "import subprocess, sys\nsubprocess.Popen(['sleep', '1000'])\nprint('done')\nsys.exit(4)"
    began = time.monotonic()
    result = supervise(tmp_path, script)
    assert time.monotonic() - began < 4
    assert (result["exit_status"], result["left_behind"]) == (4, 1)
    assert result["notes"] == ["left 1 processes behind: sleep"]
    assert result["seconds"] < 1.5
    assert (tmp_path / "stdout").read_text() == "done\n"


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(null, fd)
        open("daemon", "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists("daemon"): time.sleep(0.01)
"""


def test_a_daemon_that_detached_itself_is_found_and_ended(tmp_path: Path) -> None:
    result = supervise(tmp_path, DAEMON)
    assert (result["exit_status"], result["left_behind"]) == (0, 1)
    assert not Path("/proc", (tmp_path / "work" / "daemon").read_text()).exists()


def test_a_daemon_is_ended_at_the_deadline_too(tmp_path: Path) -> None:
    result = supervise(tmp_path, DAEMON + "time.sleep(1000)", timeout=1)
    assert result["timed_out"]
    assert not Path("/proc", (tmp_path / "work" / "daemon").read_text()).exists()


def test_a_chain_of_forks_is_caught(tmp_path: Path) -> None:
    script = "import os, time\nfor _ in range(10**6):\n    if os.fork(): os._exit(0)\n    time.sleep(0.001)"
    result = supervise(tmp_path, script)
    assert result["exit_status"] == 0
    assert result["left_behind"] >= 1


def test_five_hundred_children(tmp_path: Path) -> None:
    script = "import os, time\nfor _ in range(500):\n    if os.fork() == 0: time.sleep(1000)\nos._exit(7)"
    result = supervise(tmp_path, script)
    assert (result["exit_status"], result["left_behind"]) == (7, 500)


def test_helpers_of_multiprocessing_are_not_left_behind(tmp_path: Path) -> None:
    script = (
        "import multiprocessing as m\n"
        "if __name__ == '__main__':\n"
        "    c = m.get_context('spawn')\n    q = c.Queue()\n    p = c.Process(target=q.put, args=(1,))\n"
        "    p.start(); print(q.get()); p.join()"
    )
    result = supervise(tmp_path, script)
    assert (result["exit_status"], result["left_behind"], result["notes"]) == (0, 0, [])


def test_closing_its_own_output(tmp_path: Path) -> None:
    result = supervise(
        tmp_path, "import os, time\nprint('a', flush=True)\nos.close(1); os.close(2)\ntime.sleep(0.3)\nos._exit(5)"
    )
    assert result["exit_status"] == 5
    assert sorted(result["notes"]) == ["closed its stderr", "closed its stdout"]
    assert (tmp_path / "stdout").read_text() == "a\n"


def flood(megabytes: int) -> str:
    return (
        "import os\nblock = b''.join(b'%015d\\n' % i for i in range(65536))\n"
        f"for i in range({megabytes}): os.write(1, block) == len(block) or 1 / 0\nos.write(1, b'the end')"
    )


def check_flood(folder: Path, megabytes: int) -> float:
    result = supervise(folder, flood(megabytes), head_cap=1 << 20, tail_cap=2 << 20)
    total = (megabytes << 20) + 7
    assert (result["exit_status"], result["stdout_bytes"]) == (0, total)
    kept = (folder / "stdout").read_bytes()
    assert len(kept) == 3 << 20
    assert kept.startswith(b"000000000000000\n000000000000001\n")
    head, mark, tail = kept[: 1 << 20], *kept[1 << 20 :].lstrip(b"\n").split(b"\n", 1)
    assert head.endswith(b"000000000065535\n")
    assert mark.split()[2:] == b"bytes left out ...]".split()
    assert int(mark.split()[1]) == total - len(head) - len(tail)
    assert tail.endswith(b"000000000065534\n000000000065535\nthe end")
    return float(result["seconds"])


def test_three_hundred_megabytes_of_output(tmp_path: Path) -> None:
    check_flood(tmp_path, 300)


@pytest.mark.slow
def test_two_gigabytes_of_output_at_100_megabytes_a_second(tmp_path: Path) -> None:
    assert check_flood(tmp_path, 2000) < 20


def test_memory_stays_constant_while_output_floods(tmp_path: Path) -> None:
    process = start(lay(tmp_path, flood(300)))
    # Not ru_maxrss: a child inherits what the test runner had at the fork.
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))])
    assert process.returncode == 0
    assert 1024 < peak < 80 * 1024  # KiB; 26 MiB of it are for putting the tail in order


@pytest.mark.parametrize(
    "what",
    ["shutil.rmtree(pathlib.Path.cwd().parent)", "[p.unlink() for p in pathlib.Path('..').iterdir() if p.is_file()]"],
)
def test_removing_its_own_evidence(tmp_path: Path, what: str) -> None:
    script = f"import pathlib, shutil\nprint('before', flush=True)\n{what}\nprint('after')\nraise SystemExit(9)"
    result = supervise(tmp_path, script)
    assert result["exit_status"] == 9
    assert (tmp_path / "stdout").read_text() == "before\nafter\n"
    assert result["notes"] == ["the script removed its logs, which were written again"]


@pytest.mark.parametrize(
    "what",
    [
        "os.mkdir('../result.json'); open('../result.json/x', 'w')",
        "os.unlink('../result.json.part'); os.mkdir('../result.json.part'); open('../result.json.part/x', 'w')",
        "os.unlink('../stdout'); os.mkdir('../stdout'); open('../stdout/x', 'w')",
        "os.chmod('..', 0)",
    ],
)
def test_what_a_script_puts_in_the_way_costs_no_verdict(tmp_path: Path, what: str) -> None:
    result = supervise(tmp_path, f"import os\nprint('said', flush=True)\n{what}\nraise SystemExit(9)")
    assert result["exit_status"] == 9
    assert (tmp_path / "stdout").read_text() == "said\n"


def test_links_of_a_script_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    links = "".join(
        f"os.path.lexists('../{name}') and os.unlink('../{name}'); os.symlink({str(victim)!r}, '../{name}')\n"
        for name in ("result.json", "result.json.part", "stdout", "stdout.part")
    )
    result = supervise(tmp_path, f"import os\nprint('said', flush=True)\n{links}raise SystemExit(9)")
    assert result["exit_status"] == 9
    assert victim.read_text() == "mine"
    assert not (tmp_path / "result.json").is_symlink()
    assert (tmp_path / "stdout").read_text() == "said\n"


def test_using_more_memory_than_allowed(tmp_path: Path) -> None:
    script = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(b'x' * (20 << 20)))\n    time.sleep(0.02)"
    result = supervise(tmp_path, script, memory=200 << 20)
    assert (result["signal"], result["oom_kills"], result["timed_out"]) == ("SIGKILL", 1, False)
    assert result["over_limit"]
    assert 200 << 20 < result["peak_memory"] < 600 << 20
    assert "of the 200 MiB allowed" in result["notes"][0]


def test_memory_of_children_counts_once_where_shared(tmp_path: Path) -> None:
    script = (
        "import os, time\nkept = bytearray(b'x' * (100 << 20))\n"
        "for _ in range(5):\n    if os.fork() == 0: time.sleep(0.6); os._exit(0)\n"
        "for _ in range(5): os.wait()"
    )
    result = supervise(tmp_path, script, memory=250 << 20)
    assert (result["exit_status"], result["oom_kills"]) == (0, 0)


def test_memory_of_children_counts(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "for _ in range(5):\n    if os.fork() == 0: kept = bytearray(b'x' * (80 << 20)); time.sleep(60)\n"
        "os.wait()"
    )
    result = supervise(tmp_path, script, memory=250 << 20)
    assert (result["signal"], result["oom_kills"]) == ("SIGKILL", 1)


def test_peak_memory(tmp_path: Path) -> None:
    result = supervise(tmp_path, "kept = bytearray(b'x' * (150 << 20))")
    assert 150 << 20 < result["peak_memory"] < 400 << 20


# MAP_NORESERVE, as XLA's allocators use it; the mmap module names it only from Python 3.13 on.
RESERVE = """
import mmap, time
kept = mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
time.sleep(0.3)
"""


def test_reserved_addresses_are_not_memory(tmp_path: Path) -> None:
    result = supervise(tmp_path, RESERVE, memory=200 << 20)
    assert (result["exit_status"], result["oom_kills"]) == (0, 0)


def test_cpus(tmp_path: Path) -> None:
    supervise(tmp_path, "import os; print(len(os.sched_getaffinity(0)))", cpus=1)
    assert (tmp_path / "stdout").read_text() == "1\n"


def test_environment_is_exactly_what_the_spec_says(tmp_path: Path) -> None:
    supervise(tmp_path, "import os; print(sorted(os.environ), os.getcwd())", env={"TAG": str(tmp_path), "A": "1"})
    assert (tmp_path / "stdout").read_text() == f"['A', 'LC_CTYPE', 'TAG'] {tmp_path / 'work'}\n"


def test_signals_reach_the_script_with_their_defaults(tmp_path: Path) -> None:
    script = (
        "import signal\n"
        "print([signal.getsignal(s).name for s in (signal.SIGHUP, signal.SIGTERM)], signal.pthread_sigmask(0, ()))"
    )
    supervise(tmp_path, script)
    assert (tmp_path / "stdout").read_text() == "['SIG_DFL', 'SIG_DFL'] set()\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cancelled_from_outside(tmp_path: Path, number: signal.Signals) -> None:
    process = start(lay(tmp_path, DAEMON + "print('up', flush=True)\ntime.sleep(1000)"))
    while not (tmp_path / "stdout").exists() or not (tmp_path / "stdout").stat().st_size:
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=5) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["cancelled"], result["timed_out"]) == (number.name, False)
    assert survivors(tmp_path) == []


TOOL = """
import subprocess, sys
p = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE)
print("up", flush=True)
p.wait()
"""


@pytest.mark.parametrize("script", [DAEMON + "time.sleep(1000)", "import time\nwhile True: print('x' * 1000)"])
def test_kill_9_of_the_tool_leaves_nothing(tmp_path: Path, script: str) -> None:
    lay(tmp_path, script, watch_stdin=True)
    tool = subprocess.Popen([sys.executable, "-c", TOOL, SUPERVISE, tmp_path], stdout=subprocess.PIPE)
    while not survivors(tmp_path):
        time.sleep(0.01)
    time.sleep(0.3)
    tool.kill()
    tool.wait()
    assert eventually_none(tmp_path) == []
    limit = time.monotonic() + 5
    while not (tmp_path / "result.json").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert json.loads((tmp_path / "result.json").read_text())["cancelled"] == "the tool has ended"


def test_kill_9_of_the_supervisor_takes_the_script_with_it(tmp_path: Path) -> None:
    process = start(lay(tmp_path, "import time; time.sleep(1000)"))
    while not survivors(tmp_path):
        time.sleep(0.01)
    time.sleep(0.1)
    process.kill()
    process.wait()
    assert eventually_none(tmp_path) == []
    assert not (tmp_path / "result.json").exists()


def test_full_disk_costs_output_and_not_the_verdict(tmp_path: Path) -> None:
    # A limit on the size of files refuses writes as a full disk does, without needing a disk to fill.
    lay(tmp_path, "import os\nfor _ in range(100): os.write(1, b'x' * 65536)\nos._exit(6)")
    limited = f"ulimit -f 64; exec {sys.executable} -I -S {SUPERVISE} {tmp_path}"
    done = subprocess.run(["/bin/bash", "-c", limited], check=False, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["exit_status"], result["disk_full"], result["stdout_bytes"]) == (6, True, 6553600)
    assert result["notes"] == [f"the disk refused {6553600 - 65536} bytes of output"]
    assert (tmp_path / "stdout").stat().st_size == 65536


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_tmpfs(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False).returncode != 0:
        pytest.skip("this sandbox does not mount")
    try:
        script = (
            "import os\ntry:\n    open('big', 'wb').write(b'x' * (4 << 20))\nexcept OSError as e: print(e)\n"
            "os.write(1, b'x' * 9000)\nos._exit(6)"
        )
        result = supervise(disk, script)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert (result["exit_status"], result["disk_full"]) == (6, True)


def test_program_that_cannot_be_started(tmp_path: Path) -> None:
    result = supervise(tmp_path, "", argv=["/nowhere/python", "script.py"])
    assert result["infra"].startswith("cannot start /nowhere/python in ")
    assert (result["exit_status"], result["signal"]) == (None, None)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot start" in supervise(tmp_path, "", cwd="elsewhere")["infra"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": "a", "argv": []}'])
def test_wrong_spec(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    process = start(tmp_path)
    said = process.communicate(timeout=10)[1]
    assert process.returncode == 2
    assert said.startswith(b"supervise: wrong spec.json in ")
    assert b"Traceback" not in said


RANKS = """
import os, sys, time
rank, world = int(os.environ["REPRO_RANK"]), int(os.environ["REPRO_WORLD"])
print("rank", rank, "of", world, os.environ["REPRO_COORDINATOR"].split(":")[0])
"""


def test_ranks(tmp_path: Path) -> None:
    result = supervise(tmp_path, RANKS, processes=3)
    assert result["exit_status"] == 0
    texts = [(tmp_path / f"stdout.{rank}").read_text() for rank in range(3)]
    assert texts == [f"rank {rank} of 3 127.0.0.1\n" for rank in range(3)]


def test_first_rank_to_fail_counts(tmp_path: Path) -> None:
    script = (
        RANKS
        + "if rank == 1: time.sleep(0.3); sys.exit(3)\nif rank == 2: time.sleep(1000)\ntime.sleep(0.6); sys.exit(4)"
    )
    result = supervise(tmp_path, script, processes=3, grace=1)
    assert (result["exit_status"], result["signal"], result["timed_out"]) == (3, None, False)
    # Ranks that had to be stopped are no processes left behind.
    assert (result["left_behind"], result["notes"]) == (0, [])
    ends = [(rank["rank"], rank["exit_status"], rank["signal"], rank["stopped"]) for rank in result["ranks"]]
    assert ends == [(0, 4, None, False), (1, 3, None, False), (2, None, "SIGKILL", True)]
    assert result["ranks"][1]["pid"] == result["pid"]
    assert result["ranks"][1]["seconds"] < result["ranks"][0]["seconds"] < result["ranks"][2]["seconds"] < 3


# ---- stacks and cores: what stacks.py does on its own is tested in test_stacks_program.py ----

CRASH = "import ctypes\ndef here():\n    ctypes.string_at(0)\nhere()"
HANG = "import time\ndef stuck():\n    time.sleep(1000)\nstuck()"


def taken(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / "stacks.json").read_text())
    return index


def reading(folder: Path, pystack: str = SAYS, cores: str = "stacks") -> dict[str, object]:
    return {"cores": cores, "stacks": str(STACKS), "tools": str(fake_tools(folder / "tools", pystack))}


@only_plain
@pytest.mark.parametrize("cores", ["stacks", "keep"])
def test_core_of_a_crash(tmp_path: Path, cores: str) -> None:
    result = supervise(tmp_path, CRASH, **reading(tmp_path, cores=cores))
    assert (result["signal"], result["core"], result["notes"]) == ("SIGSEGV", True, [])
    index = taken(tmp_path)
    (stack,), (core,) = index["stacks"], index["cores"]
    assert (stack["pid"], stack["thread"], stack["rank"], stack["signal"]) == (*[result["pid"]] * 2, 0, "SIGSEGV")
    assert (tmp_path / stack["file"]).stat().st_size > 0
    assert (core["cut"], index["notes"]) == (False, [])
    left = list(tmp_path.rglob("core*"))
    assert left == ([tmp_path / f"core.{result['pid']}"] if cores == "keep" else [])
    assert [path.stat().st_mode & 0o777 for path in left] == [0o600] * len(left)


def test_an_attempt_that_ends_well_starts_no_reader(tmp_path: Path) -> None:
    result = supervise(tmp_path, "print(1)", cores="keep", stacks="/nowhere/stacks.py", tools="/nowhere")
    assert (result["exit_status"], result["notes"]) == (0, [])
    assert not (tmp_path / "stacks.json").exists()


@only_plain
@pytest.mark.parametrize("status", [0, 134])
def test_core_of_a_child(tmp_path: Path, status: int) -> None:
    script = f"{sys.executable} -c 'import os; os.abort()'; exit {status}"
    result = supervise(tmp_path, "", argv=["/bin/sh", "-c", script], **reading(tmp_path))
    assert (result["exit_status"], result["core"]) == (status, False)
    (stack,) = taken(tmp_path)["stacks"]
    assert (stack["rank"], stack["signal"], stack["source"]) == (None, "SIGABRT", "core")
    assert "os.abort()" in stack["command"]


@only_plain
@pytest.mark.parametrize("ignore", ["", "faulthandler.disable(); signal.signal(signal.SIGABRT, signal.SIG_IGN)"])
def test_core_of_a_child_whose_parent_then_hangs(tmp_path: Path, ignore: str) -> None:
    script = "import faulthandler, os, signal\nif os.fork() == 0: os.abort()\nos.wait()\n" + ignore + "\n" + HANG
    result = supervise(tmp_path, script, timeout=0.8, grace=0.3, **reading(tmp_path))
    assert (result["timed_out"], result["signal"]) == (True, "SIGKILL" if ignore else "SIGABRT")
    live, core = taken(tmp_path)["stacks"]
    assert (live["source"], live["pid"]) == ("live", result["pid"])
    assert (core["source"], core["rank"], core["signal"]) == ("core", None, "SIGABRT")
    assert core["pid"] != result["pid"]
    assert not list(tmp_path.rglob("core*"))


@only_plain
def test_core_that_reaches_the_cap(tmp_path: Path) -> None:
    script = "kept = b'x' * (30 << 20)\n" + CRASH
    result = supervise(tmp_path, script, core_cap=2 << 20, **reading(tmp_path, cores="keep"))
    (core,) = taken(tmp_path)["cores"]
    assert core["cut"]
    assert 1 << 20 < (tmp_path / f"core.{result['pid']}").stat().st_blocks * 512 < 3 << 20
    whose = f"the core of process {result['pid']} is cut after"
    assert taken(tmp_path)["notes"][0].startswith(whose)
    assert taken(tmp_path)["notes"][0].endswith("MiB: the limit for cores")


@only_plain
def test_cores_of_ranks_do_not_write_over_each_other(tmp_path: Path) -> None:
    script = "import os, time\ntime.sleep(0.15 * int(os.environ['REPRO_RANK']))\nos.abort()"
    result = supervise(tmp_path, script, processes=3, grace=5, **reading(tmp_path, cores="keep"))
    pids = [rank["pid"] for rank in result["ranks"]]
    index = taken(tmp_path)
    assert [(stack["pid"], stack["rank"]) for stack in index["stacks"]] == list(zip(pids, range(3), strict=True))
    assert [core["file"] for core in index["cores"]] == [f"core.{pid}" for pid in pids]
    assert index["notes"] == []


@only_plain
def test_hanging_ranks_are_read_then_aborted_one_by_one(tmp_path: Path) -> None:
    result = supervise(tmp_path, HANG, processes=3, timeout=0.8, **reading(tmp_path, cores="keep"))
    assert [(r["signal"], r["core"], r["stopped"]) for r in result["ranks"]] == [("SIGABRT", True, True)] * 3
    assert (result["timed_out"], result["seconds"]) == (True, pytest.approx(0.8, abs=0.2))
    index = taken(tmp_path)
    assert [(stack["rank"], stack["source"], stack["thread"]) for stack in index["stacks"]] == [
        (rank, "live", None) for rank in range(3)
    ]
    assert sorted(core["pid"] for core in index["cores"]) == [rank["pid"] for rank in result["ranks"]]


def test_hang_with_children_is_read_before_it_is_ended(tmp_path: Path) -> None:
    script = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n" + HANG
    result = supervise(tmp_path, script, timeout=0.8, **reading(tmp_path))
    stacks = taken(tmp_path)["stacks"]
    assert [(stack["rank"], stack["command"].split()[-2:]) for stack in stacks] == [
        (0, [sys.executable, "script.py"]),
        (None, ["sleep", "1000"]),
    ]
    assert f"remote', '--native-all', '{result['pid']}']" in (tmp_path / stacks[0]["file"]).read_text()
    assert not list(tmp_path.rglob("core*"))


def test_stacks_of_a_hang_are_taken_with_cores_off(tmp_path: Path) -> None:
    result = supervise(tmp_path, HANG, timeout=0.8, **reading(tmp_path, cores="off"))
    assert (result["timed_out"], result["core"], len(taken(tmp_path)["stacks"])) == (True, False, 1)


@only_plain
def test_core_of_a_hang_is_read_where_the_living_process_could_not_be(tmp_path: Path) -> None:
    only_cores = f"sys.argv[1] == 'core' or sys.exit('may not trace'); {SAYS}"
    result = supervise(tmp_path, HANG, timeout=0.8, **reading(tmp_path, only_cores))
    live, core = taken(tmp_path)["stacks"]
    assert (live["source"], live["file"], live["trouble"]) == ("live", "", "pystack: may not trace; py-spy: status 3")
    assert (core["source"], core["pid"], core["signal"]) == ("core", result["pid"], "SIGABRT")


@only_plain
def test_a_crash_whose_core_is_written_past_the_deadline_is_no_hang(tmp_path: Path) -> None:
    script = (
        "import ctypes, os, time\nkept = b'x' * (300 << 20)\n"
        "time.sleep(os.stat('../spec.json').st_mtime + 1.4 - time.time())\nctypes.string_at(0)"
    )
    result = supervise(tmp_path, script, timeout=1.5, **reading(tmp_path))
    assert (result["signal"], result["core"], result["timed_out"]) == ("SIGSEGV", True, False)
    assert taken(tmp_path)["cores"][0]["cut"] is False


def test_a_reader_is_not_counted_as_the_attempt(tmp_path: Path) -> None:
    greedy = "kept = b'x' * (400 << 20); " + SAYS
    result = supervise(tmp_path, HANG, timeout=0.8, memory=200 << 20, own_cgroup=True, **reading(tmp_path, greedy))
    assert (result["timed_out"], result["over_limit"], result["oom_kills"], result["left_behind"]) == (
        True,
        False,
        0,
        0,
    )
    assert result["peak_memory"] < 200 << 20
    assert taken(tmp_path)["stacks"][0]["tool"] == "pystack"


@pytest.mark.parametrize(
    ("behaviour", "note"),
    [
        ("sys.exit(7)", "stacks could not be recorded: the program failed"),
        ("raise KeyError", "stacks could not be recorded: the program failed"),
        ("sys.exit(128)", "stacks could not be recorded: No space left on device"),
        ("os.kill(os.getpid(), 9)", "reading stacks was ended before it was done"),
        ("os.fork(); time.sleep(1000)", "reading stacks was ended before it was done"),
    ],
)
def test_a_reader_that_fails_costs_a_note(tmp_path: Path, behaviour: str, note: str) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(f"import os, sys, time\n{behaviour}")
    impatient = tmp_path / "supervise.py"
    impatient.write_text(SUPERVISE.read_text().replace("LIVE = 22.0", "LIVE = 0.5"))
    lay(tmp_path, HANG, timeout=0.5, stacks=str(reader), cores="off")
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", impatient, tmp_path], check=True, timeout=30)
    assert time.monotonic() - began < 4
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["signal"], result["timed_out"], result["notes"]) == ("SIGABRT", True, [note])
    command = f"{reader}\0".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert command not in entry.read_bytes()


def test_cancelled_while_stacks_are_read(tmp_path: Path) -> None:
    spec = reading(tmp_path, "open(sys.argv[0] and os.environ['PATH'] and '/dev/null'); time.sleep(1000)")
    process = start(lay(tmp_path, HANG, timeout=0.3, **spec))
    limit = time.monotonic() + 20
    while not list(tmp_path.glob("stacks/*.txt")) and time.monotonic() < limit:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=5) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["timed_out"], result["notes"]) == (True, ["reading stacks was ended with the attempt"])
    assert result["cancelled"] == "SIGTERM"  # the stacks are part of the verdict: it is not to be kept
    assert survivors(tmp_path) == []


@only_plain
def test_cancelled_while_a_core_is_read(tmp_path: Path) -> None:
    process = start(lay(tmp_path, CRASH, **reading(tmp_path, "time.sleep(1000)")))
    limit = time.monotonic() + 20
    while not list(tmp_path.glob("stacks/*.txt")) and time.monotonic() < limit:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=5) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["signal"], result["cancelled"]) == ("SIGSEGV", "SIGTERM")


def test_the_memory_limit_holds_while_stacks_are_read(tmp_path: Path) -> None:
    script = (
        "import time\ntime.sleep(1.2)\nkept = []\nwhile True:\n    kept.append(b'x' * (20 << 20)); time.sleep(0.02)"
    )
    spec = reading(tmp_path, "time.sleep(1.5); " + SAYS)
    result = supervise(tmp_path, script, timeout=0.7, memory=150 << 20, **spec)
    assert (result["timed_out"], result["signal"], result["over_limit"]) == (True, "SIGKILL", False)
    assert [note for note in result["notes"] if note.endswith("MiB of the 150 MiB allowed: killed")] != []
    assert 150 << 20 < result["peak_memory"] < 500 << 20


def test_a_pipe_where_the_threads_go(tmp_path: Path) -> None:
    result = supervise(tmp_path, "import os\nos.mkfifo('../threads')\n" + HANG, timeout=0.8)
    assert result["timed_out"]
    assert "script.py" in (tmp_path / "threads").read_text()


def test_a_log_that_the_script_made_unreadable(tmp_path: Path) -> None:
    supervise(tmp_path, "import os\nprint('said', flush=True)\nos.chmod('../stdout', 0)")
    assert (tmp_path / "stdout").stat().st_mode & 0o777 == 0o644


@only_plain
def test_core_of_a_child_in_a_subfolder(tmp_path: Path) -> None:
    script = f"mkdir sub; cd sub; {sys.executable} -c 'import os; os.abort()'; exit 4"
    result = supervise(tmp_path, "", argv=["/bin/sh", "-c", script], **reading(tmp_path))
    (stack,) = taken(tmp_path)["stacks"]
    assert (result["exit_status"], stack["signal"]) == (4, "SIGABRT")
    assert not list(tmp_path.rglob("core"))


@only_plain
def test_core_outside_the_attempts_folder(tmp_path: Path) -> None:
    folder, place = tmp_path / "attempt", tmp_path / "elsewhere"
    folder.mkdir()
    place.mkdir()
    script = f"import os, time\nos.chdir({str(place)!r})\ntime.sleep(0.4)\n{CRASH}"
    result = supervise(folder, script, **reading(tmp_path))
    (stack,) = taken(folder)["stacks"]
    assert (stack["pid"], stack["signal"], list(place.iterdir())) == (result["pid"], "SIGSEGV", [])


@only_plain
def test_the_first_rank_to_die_is_the_first_to_dump(tmp_path: Path) -> None:
    """Its core takes longer than the whole end of the other, which must not write its own over it."""
    script = (
        "import ctypes, os, time\n"
        "if os.environ['REPRO_RANK'] == '0':\n"
        "    kept = b'x' * (900 << 20)\n    open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'gone')\n"
        "    ctypes.string_at(0)\n"
        "while not os.path.exists('gone'): time.sleep(0.01)\n"
        "status = '/proc/%s/status' % open('gone').read()\n"
        "while 'CoreDumping:\\t1' not in open(status).read(): pass\n"
        "time.sleep(0.2)\nos.abort()"
    )
    result = supervise(tmp_path, script, processes=2, **reading(tmp_path))
    first, second = result["ranks"]
    assert (result["signal"], first["signal"], second["signal"]) == ("SIGSEGV", "SIGSEGV", "SIGABRT")
    assert first["seconds"] < second["seconds"]
    index = taken(tmp_path)
    assert [(core["pid"], core["cut"]) for core in index["cores"]] == [(first["pid"], False)]
    assert index["notes"] == [
        f"no core of process {second['pid']} (SIGABRT): none was written over that of another rank, "
        "which was being written"
    ]


@only_plain
def test_a_crash_whose_core_takes_too_long_is_no_hang(tmp_path: Path) -> None:
    impatient, program = tmp_path / "supervise.py", SUPERVISE.read_text()
    for name, seconds in (("DUMP", "30.0"), ("DRAIN", "1.0"), ("LINGER", "0.2")):
        assert f"\n{name} = {seconds}" in program
        program = program.replace(f"\n{name} = {seconds}", f"\n{name} = 0.0")
    impatient.write_text(program)
    script = (
        "import ctypes, os, time\nkept = b'x' * (900 << 20)\n"
        "time.sleep(os.stat('../spec.json').st_mtime + 1.9 - time.time())\nctypes.string_at(0)"
    )
    lay(tmp_path, script, timeout=2, **reading(tmp_path))
    subprocess.run([sys.executable, "-I", "-S", impatient, tmp_path], check=True, timeout=30)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["timed_out"], result["stopped"]) == (False, False)
    assert result["notes"] == [f"process {result['pid']} was killed while its core was being written"]


@only_plain
def test_what_a_script_puts_where_stacks_go(tmp_path: Path) -> None:
    script = "import os\nos.mkdir('../stacks.json')\nopen('../stacks', 'w').write('mine')\nos.chmod('..', 0)\n" + CRASH
    result = supervise(tmp_path, script, **reading(tmp_path))
    (stack,) = taken(tmp_path)["stacks"]
    assert (stack["file"], stack["trouble"]) == (f"stacks/{result['pid']}.txt", "")


@only_plain
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("cores", ["stacks", "keep"])
def test_core_that_fills_the_disk(tmp_path: Path, cores: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], check=False).returncode != 0:
        pytest.skip("this sandbox does not mount")
    try:
        spec = reading(tmp_path, cores=cores)
        result = supervise(disk, "kept = b'x' * (30 << 20)\n" + CRASH, **spec)
        index = taken(disk) if (disk / "stacks.json").exists() else None
    finally:
        subprocess.run(["umount", disk], check=True)
    assert (result["signal"], result["core"]) == ("SIGSEGV", True)
    if cores == "keep" and (index is None or not index["cores"]):
        assert "stacks could not be recorded: No space left on device" in result["notes"]
    else:
        assert index is not None
        assert index["cores"][0]["cut"]
        assert index["notes"][0].endswith("a full disk, or it took too long")


@pytest.mark.network
def test_stacks_of_a_hang_by_the_real_tools(tmp_path: Path, tools: Path) -> None:
    began = time.monotonic()
    result = supervise(tmp_path, HANG, timeout=0.8, cores="stacks", stacks=str(STACKS), tools=str(tools))
    assert time.monotonic() - began < 6
    index = taken(tmp_path)
    (stack,) = index["stacks"]
    assert (stack["pid"], stack["tool"], stack["trouble"]) == (result["pid"], "pystack", "")
    text = (tmp_path / stack["file"]).read_text()
    assert 'script.py", line 3, in stuck' in text
    assert "time_sleep" in text
    assert (result["timed_out"], result["signal"], index["notes"]) == (True, "SIGABRT", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of its own needs root")
def test_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    script = (
        "import os, subprocess\nfor _ in range(3): subprocess.run(['sh', '-c', 'sleep 1000 &'])\n"
        "print(os.getppid(), flush=True)\nos.abort()"
    )
    lay(tmp_path, script)
    first: list[str | Path] = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        sys.executable,
        "-I",
        "-S",
        SUPERVISE,
        tmp_path,
    ]
    done = subprocess.run(first, capture_output=True, check=False, timeout=30)
    if b"unshare failed" in done.stderr:
        pytest.skip("this sandbox has no pid namespaces")
    assert (done.returncode, done.stderr) == (0, b"")
    result = json.loads((tmp_path / "result.json").read_text())
    # As the first process itself the script would have got 139 for an abort.
    assert (result["signal"], result["left_behind"]) == ("SIGABRT", 3)
    assert (tmp_path / "stdout").read_text() == "1\n"
