"""The Docker engine against a real daemon: how attempts end, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from docker.errors import APIError

from repromatrix.engines.attempt import CANCELLED, owner, read_raw
from repromatrix.engines.base import Attempt, Prepared, Raw
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs.base import BaseImage
from repromatrix.envs.daemon import LABEL, Daemon
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Matrix

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def docker(engine: Daemon, docker_project: Project, docker_matrix: Matrix, debian_base: BaseImage) -> DockerEngine:
    return DockerEngine(docker_project, docker_matrix)


@pytest.fixture(scope="module")
def prepared(docker: DockerEngine, tiny_lock: Lock) -> Prepared:
    return docker.prepare(tiny_lock, Silent())


@pytest.fixture(autouse=True)
def nothing_left(engine: Daemon) -> Iterator[None]:
    """No test leaves a container of its own behind."""
    before = containers(engine)
    yield
    assert containers(engine) <= before


def containers(engine: Daemon) -> set[str]:
    """Of this process: others may use the same engine."""
    return {found["Id"] for found in engine.api.containers(all=True, filters={"label": f"{LABEL}owner={owner()}"})}


def attempt_of(
    folder: Path, script: str, *arguments: str, timeout: float = 60, memory: int | None = None, name: str = "a"
) -> Attempt:
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "script.py").write_text(textwrap.dedent(script))
    return Attempt(name, folder, "script.py", arguments, (("GREETING", "hello"),), timeout, memory)


def run(docker: DockerEngine, prepared: Prepared, attempt: Attempt) -> Raw:
    return docker.run(prepared, attempt, threading.Event())


def test_answers(docker: DockerEngine) -> None:
    assert docker.unavailable() == ""


def test_prepared_twice_is_known(docker: DockerEngine, prepared: Prepared, tiny_lock: Lock) -> None:
    began = time.monotonic()
    assert docker.known(tiny_lock) == prepared
    assert time.monotonic() - began < 2
    assert docker.prepare(tiny_lock, Silent()) == prepared
    assert prepared.location.startswith("sha256:")
    assert prepared.base.startswith("Debian bookworm ")
    assert docker.basis("3.11", Silent()) == prepared.base


def test_exit_status_output_and_surroundings(docker: DockerEngine, prepared: Prepared, tmp_path: Path) -> None:
    attempt = attempt_of(
        tmp_path / "a",
        """
        import greeter, json, os, socket, sys
        facts = {"greet": greeter.greet(os.environ["GREETING"]), "argv": sys.argv[1:]}
        facts["uid"], facts["cwd"] = os.getuid(), os.getcwd()
        facts["prefix"], facts["pid1"] = sys.prefix, open("/proc/1/comm").read().strip()
        facts["interfaces"] = [name for _, name in socket.if_nameindex()]
        facts["caps"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")][0]
        facts["shm"] = os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks
        open("here", "w").close()
        print(json.dumps(facts))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """,
        "--n",
        "3",
    )
    raw = run(docker, prepared, attempt)
    assert (raw.exit_status, raw.signal, raw.timed_out, raw.infra) == (7, None, False, "")
    facts = json.loads((attempt.folder / "stdout").read_text())
    assert facts["greet"] == "hi hello"
    assert facts["argv"] == ["--n", "3"]
    assert (facts["uid"], facts["cwd"], facts["prefix"]) == (os.getuid(), "/attempt/work", "/opt/env")
    assert facts["interfaces"] == ["lo"]
    assert int(facts["caps"], 16) == 0
    assert facts["shm"] == 2 << 30
    assert facts["pid1"] in ("docker-init", "tini")
    assert (attempt.folder / "stderr").read_text() == "to stderr\n"
    assert (attempt.folder / "work" / "here").stat().st_uid == os.getuid()


def test_success(docker: DockerEngine, prepared: Prepared, tmp_path: Path) -> None:
    raw = run(docker, prepared, attempt_of(tmp_path / "a", "print('fine')"))
    assert (raw.exit_status, raw.signal, raw.infra, raw.stdout_bytes) == (0, None, "", 5)


def test_no_docker_init(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_refused", {*docker._refused, "docker-init"})
    raw = run(docker, prepared, attempt_of(tmp_path / "a", "import os; os.abort()"))
    assert (raw.signal, raw.infra) == ("SIGABRT", "")
    assert "the daemon has no docker-init: the supervisor was PID 1" in raw.notes


def test_first_attempts_started_together(
    docker_project: Project, docker_matrix: Matrix, prepared: Prepared, tmp_path: Path
) -> None:
    """What a daemon refuses is learnt by several attempts at once, and none of them is lost for it."""
    fresh = DockerEngine(docker_project, docker_matrix)
    attempts = [attempt_of(tmp_path / str(number), "print('ran')") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda attempt: run(fresh, prepared, attempt), attempts))
    assert [(raw.exit_status, raw.infra) for raw in found] == [(0, "")] * 4


def test_a_lost_supervisor_is_ended_from_outside(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repromatrix.engines.in_container.AFTERMATH", -13.0)
    script = """
        import os, signal, time
        parent = os.getppid()
        os.kill(parent, signal.SIGSTOP)
        time.sleep(600)
        """
    began = time.monotonic()
    raw = run(docker, prepared, attempt_of(tmp_path / "a", script, timeout=1))
    assert "killed from outside" in raw.infra
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_a_forged_verdict_is_not_believed(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: str
) -> None:
    monkeypatch.setattr("repromatrix.engines.in_container.AFTERMATH", -13.0)
    script = f"""
        import json, os, signal, time
        verdict = dict(
            schema=1, id=json.load(open("../spec.json"))["id"], infra="", cancelled="", timed_out=False, oom_kills=0,
            peak_memory=1, seconds=1.0, started="x", stdout_bytes=0, stderr_bytes=0, disk_full=False, notes=[],
            exit_status=0, signal=None, core=False,
        )
        json.dump(verdict, open("../result.json", "w"))
        os.kill(os.getppid(), signal.{blow})
        time.sleep(60)
        """
    raw = run(docker, prepared, attempt_of(tmp_path / "a", script, timeout=1))
    assert raw.exit_status is None
    assert "status 137" in raw.infra


def test_cancel_ends_it_at_once(docker: DockerEngine, prepared: Prepared, tmp_path: Path, engine: Daemon) -> None:
    cancel = threading.Event()
    before = containers(engine)
    threading.Timer(1.5, cancel.set).start()
    began = time.monotonic()
    raw = docker.run(prepared, attempt_of(tmp_path / "a", "import time; time.sleep(600)"), cancel)
    assert raw.infra == CANCELLED
    assert 1.4 < time.monotonic() - began < 10
    assert containers(engine) == before


def test_reap_ends_what_a_killed_owner_left(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, engine: Daemon, docker_project: Project
) -> None:
    attempt = attempt_of(tmp_path / "a", "import time; time.sleep(600)", name="orphan")
    code = f"""
import sys, threading
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from repromatrix.engines.base import Attempt, Prepared
from repromatrix.engines.docker import DockerEngine
from repromatrix.project import Project
from repromatrix.spec.model import Matrix
root = Path({str(docker_project.root)!r})
engine = DockerEngine(Project(root, root / "store"), Matrix(root / "matrix.toml", (), "release"))
prepared = Prepared(None, "docker", {prepared.identity!r}, "", {prepared.location!r})
attempt = Attempt("orphan", Path({str(attempt.folder)!r}), "script.py", (), (), 600.0)
engine.run(prepared, attempt, threading.Event())
"""
    other = subprocess.Popen([sys.executable, "-c", code])
    mine = {"label": f"{LABEL}attempt=orphan"}
    deadline = time.monotonic() + 30
    while not any(found["State"] == "running" for found in engine.api.containers(filters=mine)):
        assert time.monotonic() < deadline
        assert other.poll() is None
        time.sleep(0.1)
    assert [said for said in docker.reap() if "orphan" in said] == []  # its owner lives
    other.kill()
    other.wait()
    (said,) = (said for said in docker.reap() if "repromatrix-orphan-" in said)
    assert "its owner is dead" in said
    assert engine.api.containers(all=True, filters=mine) == []


def test_reap_ends_what_is_past_its_deadline(docker: DockerEngine, prepared: Prepared, engine: Daemon) -> None:
    labels = {f"{LABEL}attempt": "late", f"{LABEL}owner": "another machine 0 0 0", f"{LABEL}deadline": "1000"}
    made = engine.api.create_container(prepared.location, command=["sleep", "600"], labels=labels)
    engine.api.start(made["Id"])
    assert any("its deadline has passed" in said for said in docker.reap())
    assert engine.api.containers(all=True, filters={"id": made["Id"]}) == []


def test_a_folder_that_the_daemon_does_not_see(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repromatrix.engines.container.SUPERVISOR", tmp_path / "not there")
    raw = run(docker, prepared, attempt_of(tmp_path / "a", "print(1)"))
    assert "bind source path does not exist" in raw.infra


def test_an_image_that_is_gone(docker: DockerEngine, prepared: Prepared, tmp_path: Path) -> None:
    gone = Prepared(prepared.lock, "docker", "sha256:" + "0" * 64, "", "sha256:" + "0" * 64)
    raw = run(docker, gone, attempt_of(tmp_path / "a", "print(1)"))
    assert "No such image" in raw.infra


def test_command_repeats_the_attempt(docker: DockerEngine, prepared: Prepared, tmp_path: Path) -> None:
    attempt = attempt_of(
        tmp_path / "a", "import os, sys; print(os.environ['GREETING'], sys.argv[1:]); sys.exit(5)", "it's"
    )
    command = docker.command(prepared, attempt)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, 'hello ["it\'s"]\n')
    assert prepared.location in command


def test_command_repeats_the_ranks(docker: DockerEngine, prepared: Prepared, tmp_path: Path) -> None:
    script = "import os, sys; sys.exit(3 + int(os.environ['REPRO_RANK']))"
    attempt = replace(attempt_of(tmp_path / "a", script), processes=2)
    assert [end.exit_status for end in run(docker, prepared, attempt).ranks] == [3, 4]
    (attempt.folder / "result.json").write_text("kept")
    said = subprocess.run(docker.command(prepared, attempt), shell=True, check=True, stdout=subprocess.PIPE, text=True)
    assert [end.exit_status for end in read_raw(Path(said.stdout.strip())).ranks] == [3, 4]
    assert (attempt.folder / "result.json").read_text() == "kept"


def test_what_reads_stacks_is_there_and_cannot_be_changed(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path
) -> None:
    script = """
        import json, os
        found = {}
        for name in ("supervise.py", "stacks.py", "tools", "tools/pystack"):
            path = f"/opt/repromatrix/{name}"
            found[name] = os.path.exists(path), bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        print(json.dumps([found, {k: json.load(open("../spec.json"))[k] for k in ("stacks", "tools")}]))
        """
    tools = tmp_path / "tools"
    (tools / "pystack").mkdir(parents=True)
    attempt = replace(attempt_of(tmp_path / "a", script), tools=tools)
    assert run(docker, prepared, attempt).exit_status == 0
    found, spec = json.loads((attempt.folder / "stdout").read_text())
    assert found == {name: [True, True] for name in ("supervise.py", "stacks.py", "tools", "tools/pystack")}
    assert spec == {"stacks": "/opt/repromatrix/stacks.py", "tools": "/opt/repromatrix/tools"}


@pytest.mark.network
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the readers are those of the Python that runs the tests")
def test_the_stacks_of_a_hang(docker: DockerEngine, prepared: Prepared, tmp_path: Path, tools: Path) -> None:
    script = "import time\ndef stuck_here():\n    time.sleep(600)\nstuck_here()"
    attempt = replace(attempt_of(tmp_path / "a", script, timeout=1), tools=tools, cores="stacks")
    raw = run(docker, prepared, attempt)
    assert (raw.timed_out, raw.infra) == (True, "")
    assert "stuck_here" in (attempt.folder / "stacks" / f"{raw.pid}.txt").read_text()


def test_overhead_over_bare_docker_run(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, engine: Daemon
) -> None:
    bare, ours = [], []
    for number in range(5):
        attempt = attempt_of(tmp_path / str(number), "print(1)")
        began = time.monotonic()
        assert run(docker, prepared, attempt).exit_status == 0
        ours.append(time.monotonic() - began)
        began = time.monotonic()
        argv = [
            "docker",
            "--host",
            engine.host,
            "run",
            "--rm",
            "--network=none",
            prepared.location,
            "python",
            "-c",
            "print(1)",
        ]
        subprocess.run(argv, check=True, capture_output=True)
        bare.append(time.monotonic() - began)
    print(f"bare {sorted(bare)[2]:.3f} s, ours {sorted(ours)[2]:.3f} s")
    # Twice the budget (docs/performance.md has the measurement): a busy machine must not fail the suite.
    assert sorted(ours)[2] - sorted(bare)[2] < 0.6


def test_nothing_listens(
    docker_project: Project, docker_matrix: Matrix, tiny_lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    dead = DockerEngine(docker_project, docker_matrix)
    assert "no Docker daemon answers" in dead.unavailable()
    with pytest.raises(InfraError, match="no Docker daemon answers") as caught:
        dead.prepare(tiny_lock, Silent())
    assert "venv" in caught.value.hint


def test_another_machine(docker_project: Project, docker_matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu-host")
    assert "another machine" in DockerEngine(docker_project, docker_matrix).unavailable()


def test_a_container_that_was_lost_before_anything_ran_is_started_once_more(
    docker: DockerEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = docker._daemon().api
    start, lost = api.start, iter([True])

    def start_or_lose(container: str) -> None:
        if next(lost, False):
            raise APIError(
                "runc create failed: waiting for init preliminary setup: read init-p: connection reset by peer"
            )
        start(container)

    monkeypatch.setattr(api, "start", start_or_lose)
    raw = run(docker, prepared, attempt_of(tmp_path / "a", "print('here')"))
    assert (raw.exit_status, raw.infra) == (0, "")
    assert "the container did not start at first (runc lost its first process): it was made again" in raw.notes
