"""The supervisor under real scripts that end in every way a script can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SUPERVISE = Path(__file__).parents[1] / "containers" / "supervise.py"


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
    result = supervise(tmp_path, script, cores=True)
    assert (result["exit_status"], result["signal"], result["timed_out"]) == (None, name, False)
    assert result["oom_kills"] == 0
    dumped = list((tmp_path / "work").glob("core*"))
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core":
        assert result["core"] == bool(dumped)


def test_no_core_unless_asked_for(tmp_path: Path) -> None:
    result = supervise(tmp_path, "import os; os.abort()")
    assert (result["signal"], result["core"]) == ("SIGABRT", False)
    assert not list(tmp_path.rglob("core*"))


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
