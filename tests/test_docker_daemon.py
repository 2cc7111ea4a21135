"""A daemon that dies in the middle, and one whose disk is full: a second dockerd that the test may break."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from repromatrix.engines.base import Attempt, Prepared
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs import debian
from repromatrix.envs.base import BaseImage
from repromatrix.envs.daemon import connect
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.project import Project
from repromatrix.spec.model import Matrix

pytestmark = pytest.mark.container


@dataclass(frozen=True, slots=True)
class OwnDaemon:
    host: str
    home: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def own_daemon(request: pytest.FixtureRequest) -> Iterator[OwnDaemon]:
    """A dockerd with its own data; parametrised indirectly with the size of its disk in MB, 0 = no limit."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        if os.environ.get("REPROMATRIX_REQUIRE_ENGINE") == "1":
            pytest.fail("needs root and dockerd")
        pytest.skip("needs root and dockerd")
    home = Path(tempfile.mkdtemp(prefix="rd-"))  # short: a Unix socket's path holds 107 bytes
    data = home / "data"
    data.mkdir()
    size = int(getattr(request, "param", 0))
    if size:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(data)], check=True)
    host = f"unix://{home}/s"
    settings: dict[str, object] = {
        "hosts": [host],
        "data-root": str(data),
        "exec-root": str(home / "exec"),
        "pidfile": str(home / "pid"),
    }
    settings |= {"bridge": "none", "iptables": False, "ip6tables": False}
    (home / "daemon.json").write_text(json.dumps(settings))
    with (home / "log").open("wb") as log:
        argv = ["dockerd", "--config-file", str(home / "daemon.json")]
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    daemon = OwnDaemon(host, home, process)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                connect(host, timeout=5)
                break
            except InfraError:
                assert process.poll() is None, (home / "log").read_text()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield daemon
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in _processes_of(home):
            os.kill(pid, signal.SIGKILL)
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            if (place := line.split()[4]).startswith(str(home)):
                subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(home, ignore_errors=True)


def _processes_of(home: Path) -> list[int]:
    """containerd and its shims: they name their folder on their command line and outlive a killed dockerd."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(home).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def _archive(debian_base: BaseImage, project: Project) -> debian.DebianBase:
    identity = debian_base.id.removeprefix("sha256:")
    return debian.DebianBase("bookworm", identity, project.store / "bases" / f"{identity}.tar.zst")


def test_the_daemon_dies_in_the_middle(
    own_daemon: OwnDaemon,
    debian_base: BaseImage,
    docker_project: Project,
    docker_matrix: Matrix,
    tiny_lock: Lock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", own_daemon.host)
    reference = debian.import_image(_archive(debian_base, docker_project), connect(own_daemon.host))
    # The base's own interpreter is enough here.
    monkeypatch.setattr("repromatrix.engines.docker.PYTHON", "/usr/bin/python3")
    docker = DockerEngine(docker_project, docker_matrix)
    assert docker.unavailable() == ""
    prepared = Prepared(tiny_lock, "docker", reference, "", reference)
    work = tmp_path / "a" / "work"
    work.mkdir(parents=True)
    (work / "script.py").write_text("import time\nopen('began', 'w').close()\ntime.sleep(600)\n")
    attempt = Attempt("a", tmp_path / "a", "script.py", (), (), 8.0)

    def kill_when_running() -> None:
        deadline = time.monotonic() + 30
        while not (work / "began").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        own_daemon.kill()

    killer = threading.Thread(target=kill_when_running)
    killer.start()
    began = time.monotonic()
    with pytest.raises(InfraError, match="no Docker daemon answers"):
        docker.run(prepared, attempt, threading.Event())
    killer.join()
    assert (work / "began").exists()
    assert time.monotonic() - began < 20
    assert "no Docker daemon answers" in docker.unavailable()
    with pytest.raises(InfraError, match="no Docker daemon answers"):
        docker.run(prepared, attempt, threading.Event())


@pytest.mark.parametrize("own_daemon", [90], indirect=True)
def test_the_daemons_disk_is_full(own_daemon: OwnDaemon, debian_base: BaseImage, docker_project: Project) -> None:
    with pytest.raises(InfraError, match="disk is full") as caught:
        debian.import_image(_archive(debian_base, docker_project), connect(own_daemon.host))
    assert "docker system df" in caught.value.hint
