"""The venv engine: real processes in a venv made from an empty lock, so that no wheel is needed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from repromatrix.engines.attempt import AFTERMATH, CANCELLED, GRACE, SUPERVISOR, abandoned, owner, read_raw
from repromatrix.engines.base import Attempt, Prepared, RankEnd, Raw
from repromatrix.engines.cores import store
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.spec.model import Environment

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
NEVER = threading.Event()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> VenvEngine:
    return VenvEngine(WheelStore(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def lock() -> Lock:
    axes = (("jax", "0.0.0"), ("cuda", "none"), ("python", MINOR), ("nccl", "locked"))
    return Lock(Environment(axes), MINOR, "x86_64-manylinux_2_28", "latest", "", ())


@pytest.fixture(scope="module")
def prepared(engine: VenvEngine, lock: Lock) -> Prepared:
    return engine.prepare(lock, Silent())


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Attempt]:
    def make(script: str, **changes: object) -> Attempt:
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "script.py").write_text(script)
        plain = Attempt(f"test-{tmp_path.name}", tmp_path, "script.py", (), (), 60.0)
        return replace(plain, **changes)  # type: ignore[arg-type]  # each test names fields of Attempt

    return make


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came to be"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_prepared_and_known(engine: VenvEngine, lock: Lock, prepared: Prepared) -> None:
    assert engine.unavailable() == ""
    assert engine.known(lock) == prepared
    assert prepared.identity == lock.hash
    assert prepared.base == engine.basis(MINOR, Silent())
    assert prepared.base.startswith(f"CPython {MINOR}.")


def test_runs_in_the_venv(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    script = "import os, sys\nprint(sys.prefix, sys.argv[1:], os.environ['A'], os.getcwd())\nsys.exit(3)"
    one = attempt(script, arguments=("--n", "a b"), env=(("A", "x y"),))
    raw = engine.run(prepared, one, NEVER)
    assert (raw.exit_status, raw.signal, raw.infra, raw.notes) == (3, None, "", ())
    assert raw.peak_memory > 1 << 20
    assert raw.started.endswith("Z")
    text = (one.folder / "stdout").read_text()
    assert text == f"{prepared.location} ['--n', 'a b'] x y {one.folder / 'work'}\n"
    assert raw.stdout_bytes == len(text)


def test_nothing_of_the_calling_shell_leaks_in(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "XLA_FLAGS", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "HOME", "FOO"):
        monkeypatch.setenv(name, "/leaked")
    one = attempt("import json, os; print(json.dumps(dict(os.environ)))")
    assert engine.run(prepared, one, NEVER).exit_status == 0
    seen = json.loads((one.folder / "stdout").read_text())
    assert [name for name, value in seen.items() if "leaked" in value] == []
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["HOME"] == str(one.folder / "work")
    assert seen["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert Path(seen["TMPDIR"]).resolve() == Path(seen["TMPDIR"]) or len(seen["TMPDIR"]) < 60


def test_gpus_granted_are_the_gpus_seen(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]
) -> None:
    one = attempt("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", gpus=2, devices=(1, 3))
    engine.run(prepared, one, NEVER)
    assert (one.folder / "stdout").read_text() == "1,3\n"


def test_sockets_fit_below_tmpdir(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one = attempt("from multiprocessing import Manager\nif __name__ == '__main__':\n    print(Manager().list([1]))")
    deep = one.folder / ("d" * 90)
    (one.folder / "work").rename(one.folder / "moved")
    deep.mkdir()
    (one.folder / "moved").rename(deep / "work")
    one = replace(one, folder=deep)
    assert engine.run(prepared, one, NEVER).exit_status == 0, (deep / "stderr").read_text()
    assert (deep / "stdout").read_text() == "[1]\n"
    assert list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f"repromatrix-{os.getpid()}-*")) == []


def test_cancel(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one, cancel, found = (
        attempt("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)"),
        threading.Event(),
        [],
    )
    runner = threading.Thread(target=lambda: found.append(engine.run(prepared, one, cancel)))
    runner.start()
    wait_for(lambda: (one.folder / "stdout").exists() and (one.folder / "stdout").read_text())
    cancel.set()
    runner.join(10)
    assert [raw.infra for raw in found] == [CANCELLED]
    assert not alive(int((one.folder / "stdout").read_text()))


def test_script_missing_is_not_a_verdict(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]
) -> None:
    raw = engine.run(prepared, replace(attempt(""), script="other.py"), NEVER)
    assert "other.py is not in the attempt's folder" in raw.infra


def test_environment_that_has_gone(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    raw = engine.run(replace(prepared, location="/nowhere"), attempt(""), NEVER)
    assert raw.infra.startswith("cannot start the supervisor: ")


def test_script_that_kills_its_supervisor(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]
) -> None:
    script = (
        "import os, signal, subprocess\n"
        "p = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open('pid', 'w').write(str(p.pid))\nos.kill(os.getppid(), signal.SIGKILL)"
    )
    one = attempt(script)
    raw = engine.run(prepared, one, NEVER)
    assert raw.infra == "the supervisor ended with status -9 and no verdict"
    assert not alive(int((one.folder / "work" / "pid").read_text()))


def test_command_repeats_the_attempt(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one = attempt(
        "import os, sys\nprint(sys.argv[1:], os.environ['A'])\nos.abort()", arguments=("it's",), env=(("A", "$x"),)
    )
    assert engine.run(prepared, one, NEVER).signal == "SIGABRT"
    line = engine.command(prepared, one)
    again = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert again.stdout == (one.folder / "stdout").read_text() == '["it\'s"] $x\n'
    assert again.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT)
    assert "REPROMATRIX" not in line


TOOL = """
import sys, threading
from pathlib import Path
from repromatrix.engines.base import Attempt, Prepared
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.wheels import WheelStore
folder = Path(sys.argv[1])
engine = VenvEngine(WheelStore(folder / "store"))
attempt = Attempt("orphan-" + folder.name, folder, "script.py", (), (), 60.0)
engine.run(Prepared(None, "venv", "", "", sys.argv[2]), attempt, threading.Event())
"""

DAEMON = """
import os, subprocess, time
print(os.getppid(), subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
time.sleep(1000)
"""


def start_tool(one: Attempt, prepared: Prepared) -> tuple[subprocess.Popen[bytes], int, int]:
    """A tool that runs `one`; its process, its supervisor, and a daemon that the script started."""
    root = Path(__file__).parents[1]
    tool = subprocess.Popen([sys.executable, "-c", TOOL, one.folder, prepared.location], cwd=root)
    wait_for(lambda: (one.folder / "stdout").exists() and (one.folder / "stdout").read_text().endswith("\n"))
    supervisor, daemon = map(int, (one.folder / "stdout").read_text().split())
    return tool, supervisor, daemon


def test_kill_9_of_the_tool_ends_everything(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]
) -> None:
    one = attempt(DAEMON)
    tool, supervisor, daemon = start_tool(one, prepared)
    tool.kill()
    tool.wait()
    wait_for(lambda: not alive(supervisor) and not alive(daemon))
    assert read_raw(one.folder).infra == "the supervisor was stopped from outside (the tool has ended)"


def test_reap_ends_only_what_dead_owners_left(
    engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]
) -> None:
    one = attempt(DAEMON)
    tool, supervisor, daemon = start_tool(one, prepared)
    try:
        assert not [line for line in engine.reap() if one.folder.name in line]
        assert alive(daemon)
        for pid in (supervisor, tool.pid):  # at the same moment, so that neither can clean up after the other
            os.kill(pid, signal.SIGSTOP)
        for pid in (supervisor, tool.pid):
            os.kill(pid, signal.SIGKILL)
        tool.wait()
        assert alive(daemon)
        assert [line for line in engine.reap() if f"process {daemon} of attempt orphan-{one.folder.name}" in line]
        wait_for(lambda: not alive(daemon))
    finally:
        tool.kill()
        tool.wait()


def test_owner() -> None:
    here = owner()
    assert not abandoned(here)
    where, pid, start = here.rsplit(" ", 2)
    machine, boot, space = where.split(" ")
    assert abandoned(f"{where} {pid} {int(start) - 1}")
    assert abandoned(f"{machine} another-boot {space} {pid} {start}")
    assert not abandoned(f"another-machine {boot} {space} {pid} 1")
    assert not abandoned(f"{machine} {boot} another-space {pid} 1")
    assert not abandoned("nonsense")
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert abandoned(f"{where} {ended.pid} 1")


GOOD = {
    "schema": 1, "id": "a", "exit_status": 1, "signal": None, "timed_out": False, "core": False, "oom_kills": 0,
    "peak_memory": 1, "seconds": 0.5, "started": "2026-01-01T00:00:00Z", "stdout_bytes": 0, "stderr_bytes": 0,
    "infra": "", "cancelled": "", "disk_full": False, "notes": [],
}  # fmt: skip


def raw_of(folder: Path, text: str) -> Raw:
    (folder / "result.json").write_text(text)
    return read_raw(folder, "a")


def test_result_as_written(tmp_path: Path) -> None:
    assert raw_of(tmp_path, json.dumps(GOOD)) == Raw(1, peak_memory=1, seconds=0.5, started="2026-01-01T00:00:00Z")


RANK = {
    "rank": 1, "pid": 8, "exit_status": None, "signal": "SIGABRT", "core": True, "seconds": 2.5, "stopped": True,
    "cpu_seconds": 1.0,
}  # fmt: skip


def test_what_earlier_versions_did_not_write(tmp_path: Path) -> None:
    now = GOOD | {"pid": 7, "over_limit": True, "ranks": [RANK]}
    raw = raw_of(tmp_path, json.dumps(now))
    assert (raw.pid, raw.over_limit) == (7, True)
    assert raw.ranks == (RankEnd(1, 8, None, "SIGABRT", True, 2.5, True),)


def test_the_host_outwaits_the_supervisor() -> None:
    """Its limits lie in a file that runs alone; here they meet."""
    source = ast.parse(SUPERVISOR.read_text())
    limits = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    seconds = [limits[name] for name in ("DUMP", "LIVE", "DUMP", "UNKILLABLE", "READ", "DRAIN", "DRAIN", "LINGER")]
    assert sum(seconds) + GRACE < AFTERMATH


def test_what_the_supervisor_is_told(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one = attempt("", cores="keep", tools=Path("/some/tools"), processes=2)
    engine.run(prepared, one, NEVER)
    spec = json.loads((one.folder / "spec.json").read_text())
    assert (spec["cores"], spec["tools"]) == ("keep", "/some/tools")
    assert Path(spec["stacks"]).read_text().startswith('"""Reads the stacks')
    assert 0 < spec["core_cap"] <= min(16 << 30, shutil.disk_usage(one.folder).free // 4 + (1 << 30))
    plain = attempt("")
    engine.run(prepared, plain, NEVER)
    spec = json.loads((plain.folder / "spec.json").read_text())
    assert (spec["cores"], spec["tools"]) == ("off", None)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text()[:1] in "|/", reason="this host takes the cores for itself"
)
def test_a_kept_core(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one = attempt("import ctypes; ctypes.string_at(0)", cores="keep")
    raw = engine.run(prepared, one, NEVER)
    assert (raw.signal, raw.core, raw.infra) == ("SIGSEGV", True, "")
    core = one.folder / f"core.{raw.pid}"
    content = core.read_bytes()
    assert content[:4] == b"\x7fELF"
    assert store(one.folder, NEVER) == ()
    packed = one.folder / f"core.{raw.pid}.zst"
    assert not core.exists()
    assert packed.stat().st_size < len(content) / 2
    with packed.open("rb") as file:
        assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read() == content


@pytest.mark.parametrize(
    ("text", "infra"),
    [
        ("", "cannot be read"),
        (json.dumps(GOOD)[:100], "cannot be read"),
        ("[]", "not a verdict"),
        (json.dumps(GOOD | {"schema": 2}), "not a verdict"),
        (json.dumps(GOOD | {"id": "b"}), "another attempt (b)"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "signal"}), "incomplete: KeyError('signal')"),
        (json.dumps(GOOD | {"exit_status": "0"}), "incomplete: TypeError"),
        (json.dumps(GOOD | {"exit_status": None}), "could not be killed"),
        (json.dumps(GOOD | {"ranks": [{"rank": 0}]}), "incomplete: KeyError('pid')"),
        (json.dumps(GOOD | {"ranks": ["0"]}), "incomplete: TypeError"),
        (json.dumps(GOOD | {"pid": "0"}), "incomplete: TypeError"),
        (json.dumps(GOOD | {"cancelled": "SIGTERM"}), "stopped from outside (SIGTERM)"),
        (json.dumps(GOOD | {"disk_full": True}), "the disk was full"),
    ],
)
def test_no_verdict(tmp_path: Path, text: str, infra: str) -> None:
    assert infra in raw_of(tmp_path, text).infra


def test_a_full_disk_does_not_spoil_success(tmp_path: Path) -> None:
    assert raw_of(tmp_path, json.dumps(GOOD | {"disk_full": True, "exit_status": 0})).infra == ""


def test_kept_evidence_does_not_depend_on_the_disk_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "result.json").write_text(json.dumps(GOOD))
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("repromatrix.engines.attempt.shutil.disk_usage", lambda _: full)
    assert "the disk was full" in read_raw(tmp_path, "a").infra
    assert read_raw(tmp_path) == Raw(1, peak_memory=1, seconds=0.5, started="2026-01-01T00:00:00Z")


def test_a_link_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(GOOD))
    (tmp_path / "result.json").symlink_to("elsewhere")
    assert "cannot be read" in read_raw(tmp_path, "a").infra


def test_no_result(tmp_path: Path) -> None:
    assert read_raw(tmp_path).infra == "the supervisor ended without a verdict (no result.json)"


def test_an_attempt_costs_little(engine: VenvEngine, prepared: Prepared, attempt: Callable[..., Attempt]) -> None:
    one = attempt("pass")

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        return min(times)

    bare = best(lambda: subprocess.run([f"{prepared.location}/bin/python", one.folder / "work/script.py"], check=True))
    ours = best(lambda: engine.run(prepared, one, NEVER))
    assert ours - bare < 0.2
    print(f"cost of an attempt: {ours - bare:.3f} s")
