"""Bases: made from the machine's own package sources, identified by their packages, chosen once."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from repromatrix.envs import debian
from repromatrix.envs.base import BaseImage, declared, published, recorded, resolve_base, resolve_digests
from repromatrix.envs.command import run_command
from repromatrix.envs.daemon import Daemon, address, connect
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Base, Matrix
from tests.docker_fixtures import PYTHON, inspect

# No such registry: the name is reserved never to exist (RFC 2606).
NOWHERE = "registry.invalid/python:3.11@sha256:" + "1" * 64


def matrix_of(*bases: Base) -> Matrix:
    return Matrix(Path("matrix.toml"), (), "release", bases=bases)


def test_sources_of_another_release() -> None:
    targets = "\n".join(
        [
            "http://mirror.test/debian/|bookworm|main|Debian",
            "http://mirror.test/debian/|bookworm-updates|main|Debian",
            "http://mirror.test/security/|bookworm-security|main|$(ORIGIN)",
            "http://mirror.test/debian/|bookworm|contrib|Debian",
            "http://vendor.test/apt/|bookworm|main|Vendor",
            "http://vendor.test/apt/|nodistro|main|Debian",
            "http://mirror.test/ubuntu/|noble|main|Ubuntu",
        ]
    )
    assert debian.apt_lines("trixie", targets, Path("/k.gpg")) == [
        "deb [signed-by=/k.gpg] http://mirror.test/debian/ trixie main",
        "deb [signed-by=/k.gpg] http://mirror.test/debian/ trixie-updates main",
        "deb [signed-by=/k.gpg] http://mirror.test/security/ trixie-security main",
    ]
    assert debian.apt_lines("trixie", "http://mirror.test/ubuntu/|noble|main|Ubuntu", None) == []


def test_declared_and_published() -> None:
    official = Base("3.12", NOWHERE, None)
    matrix = matrix_of(official)
    assert declared(matrix, "3.12") == official
    assert declared(matrix, "3.13") == Base("3.13", None, "trixie")
    assert published(matrix, "3.12").reference == NOWHERE
    assert published(matrix, "3.13").reference == "repromatrix-base:trixie"
    with pytest.raises(InfraError, match=r"no base image is known for Python 3\.8") as caught:
        declared(matrix, "3.8")
    assert '[bases."3.8"]' in caught.value.hint


def test_mmdebstrap_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("REPROMATRIX_DEBIAN_SOURCE", "deb http://mirror.test/debian bookworm main")
    with pytest.raises(InfraError, match="mmdebstrap is not installed") as caught:
        debian.build("bookworm", tmp_path / "bases", Silent())
    assert "apt-get install mmdebstrap" in caught.value.hint


def test_no_debian_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "machine_targets", lambda: "http://mirror.test/ubuntu/|noble|main|Ubuntu\n")
    with pytest.raises(InfraError, match="name no Debian archive") as caught:
        debian.build("bookworm", tmp_path / "bases", Silent())
    assert "REPROMATRIX_DEBIAN_SOURCE" in caught.value.hint


def test_mmdebstrap_fails_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mmdebstrap = tmp_path / "bin" / "mmdebstrap"
    mmdebstrap.parent.mkdir()
    mmdebstrap.write_text("#!/bin/sh\necho 'E: mirror is gone' >&2\nexit 25\n")
    mmdebstrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{mmdebstrap.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("REPROMATRIX_DEBIAN_SOURCE", "deb http://mirror.test/debian bookworm main")
    with pytest.raises(InfraError, match="mirror is gone"):
        debian.build("bookworm", tmp_path / "bases", Silent())
    assert [path.name for path in (tmp_path / "bases").iterdir()] == ["bookworm.lock"]


# ---- commands of the host -------------------------------------------------------------------------------------------


def test_command_keeps_status_and_output() -> None:
    lines: list[str] = []
    status, output = run_command(["sh", "-c", "echo a; echo b >&2; exit 4"], timeout=10, on_line=lines.append)
    assert (status, output, lines) == (4, "a\nb\n", ["a", "b"])


def test_command_leaves_nothing_at_its_deadline(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/pid; sleep 300"
    with pytest.raises(InfraError, match="did not end within 1 s"):
        run_command(["sh", "-c", script], timeout=1)
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(int((tmp_path / "pid").read_text()))


def _wait_until_gone(pid: int) -> None:
    for _ in range(50):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.1)


# ---- with an engine -------------------------------------------------------------------------------------------------


@pytest.mark.container
def test_base_from_debian_packages(engine: Daemon, debian_base: BaseImage, docker_project: Project) -> None:
    packages = (docker_project.store / "bases" / f"{debian_base.id.removeprefix('sha256:')}.packages").read_text()
    names = {line.split("=")[0] for line in packages.splitlines()}
    assert {"python3.11", "libstdc++6", "zstd", "tini", "ca-certificates"} <= names
    assert "perl" not in names
    assert debian_base.zstd
    assert debian_base.description.startswith("Debian bookworm ")
    found = inspect(engine, debian_base.reference)
    assert found["Config"]["Labels"]["org.repromatrix.base"] == debian_base.id.removeprefix("sha256:")
    assert found["Size"] < 150e6
    argv = ["docker", "--host", engine.host, "run", "--rm", "--network=none", debian_base.reference]
    argv += ["python", "-c", "import sys, ssl, ctypes, sqlite3; print(*sys.version_info[:2])"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "3 11\n"


@pytest.mark.container
def test_the_choice_holds(
    engine: Daemon,
    debian_base: BaseImage,
    docker_project: Project,
    docker_matrix: Matrix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recorded(docker_matrix, PYTHON, docker_project.store) == debian_base
    monkeypatch.setenv("PATH", "")  # no mmdebstrap, no apt: it must come from the store
    engine.api.remove_image(debian_base.reference, force=True)
    assert resolve_base(docker_matrix, PYTHON, engine, docker_project.store, Silent()) == debian_base
    assert inspect(engine, debian_base.reference)["RepoTags"] == [debian_base.reference]


@pytest.mark.container
def test_a_registry_that_does_not_answer(
    engine: Daemon, debian_base: BaseImage, docker_project: Project, tmp_path: Path
) -> None:
    (tmp_path / "bases").mkdir()
    for path in (docker_project.store / "bases").iterdir():
        if not path.name.startswith("choice-"):
            (tmp_path / "bases" / path.name).symlink_to(path.resolve())
    said: list[str] = []

    class Notes(Silent):
        def note(self, message: str) -> None:
            said.append(message)

    began = time.monotonic()
    with pytest.raises(InfraError, match="cannot be had: the registry does not give it") as caught:
        resolve_base(matrix_of(Base(PYTHON, NOWHERE, None)), PYTHON, engine, tmp_path, Silent())
    assert "docker load" in caught.value.hint
    fallen = resolve_base(matrix_of(Base(PYTHON, NOWHERE, "bookworm")), PYTHON, engine, tmp_path, Notes())
    assert fallen == debian_base
    assert "comes from Debian bookworm packages instead" in said[0]
    with pytest.raises(InfraError, match=r"digest of registry\.invalid/python:3\.11 cannot be had"):
        resolve_digests(matrix_of(Base(PYTHON, NOWHERE, None)), engine.host)
    assert time.monotonic() - began < 40


@pytest.mark.container
def test_a_damaged_archive_is_named(engine: Daemon, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.zst"
    archive.write_bytes(b"\x28\xb5\x2f\xfdnot what it says")
    with pytest.raises(InfraError) as caught:
        debian.import_image(debian.DebianBase("bookworm", "0" * 64, archive), engine)
    assert "damaged" in caught.value.message
    assert "delete it" in caught.value.hint


@pytest.mark.container
@pytest.mark.slow
@pytest.mark.network
def test_the_same_base_twice(engine: Daemon, tmp_path: Path) -> None:
    """The same packages make the same files, whenever they are unpacked."""
    first = debian.build("trixie", tmp_path / "a", Silent())
    second = debian.build("trixie", tmp_path / "b", Silent())
    assert first.hash == second.hash
    assert first.archive.read_bytes() == second.archive.read_bytes()


def test_nobody_listens() -> None:
    with pytest.raises(InfraError, match="no Docker daemon answers"):
        connect("unix:///nonexistent/docker.sock")


def test_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    assert address() == "tcp://10.0.0.1:2375"
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert address().startswith("unix://")


@pytest.mark.container
def test_an_image_of_a_registry_is_pulled_by_its_digest(
    registry: str,
    engine: Daemon,
    debian_base: BaseImage,
    tmp_path: Path,
) -> None:
    name = f"{registry}/python"
    engine.api.tag(debian_base.reference, name, tag="3.11-slim")
    try:
        events = list(engine.api.push(name, tag="3.11-slim", stream=True, decode=True))
        assert not [event for event in events if "error" in event]
        # The reference that `lock --bases` finds is the one that a build then pulls, though the tag may move on.
        stale = f"{name}:3.11-slim@sha256:{'1' * 64}"
        (reference,) = resolve_digests(matrix_of(Base("3.11", stale, None)), engine.host).values()
        assert reference.startswith(f"{name}:3.11-slim@sha256:")
        assert reference != stale
        engine.api.remove_image(f"{name}:3.11-slim")
        chosen = resolve_base(matrix_of(Base("3.11", reference, None)), "3.11", engine, tmp_path / "store", Silent())
        assert (chosen.reference, chosen.description) == (reference, reference)
        assert reference.replace(":3.11-slim", "") in inspect(engine, reference)["RepoDigests"]
        with pytest.raises(InfraError, match="cannot be had"):
            resolve_base(matrix_of(Base("3.11", stale, None)), "3.11", engine, tmp_path / "store", Silent())
    finally:
        for left in engine.api.images(name):
            for tag in (left["RepoTags"] or []) + (left["RepoDigests"] or []):
                if tag.startswith(registry):
                    engine.api.remove_image(tag, force=True)
