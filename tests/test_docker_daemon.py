"""A daemon that dies in the middle, and one whose disk is full: a second dockerd that the test may break."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.engines.base import Attempt, Prepared
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs.base import BaseImage
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.project import Project
from repromatrix.spec.model import Matrix
from tests.docker_fixtures import import_base
from tests.own_dockerd import OwnDaemon, own_dockerd

pytestmark = pytest.mark.container


@pytest.fixture
def own_daemon(request: pytest.FixtureRequest) -> Iterator[OwnDaemon]:
    """A dockerd with its own data; parametrised indirectly with the size of its disk in MB, 0 = no limit."""
    with own_dockerd({}, disk=int(getattr(request, "param", 0))) as daemon:
        yield daemon


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
    reference = import_base(debian_base, docker_project, own_daemon.host)
    # The base's own interpreter is enough here.
    monkeypatch.setattr("repromatrix.engines.in_container.PYTHON", "/usr/bin/python3")
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
        import_base(debian_base, docker_project, own_daemon.host)
    assert "docker system df" in caught.value.hint
