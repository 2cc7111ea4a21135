"""Fixtures for tests that need a real Docker engine: the engine, a base image, and environments of hand-made wheels."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from repromatrix.envs import debian
from repromatrix.envs.base import BaseImage, resolve_base
from repromatrix.envs.daemon import Daemon, address, connect
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Base, Environment, Matrix
from tests.fake_index import make_wheel

PYTHON = "3.11"


@pytest.fixture(scope="session")
def engine() -> Daemon:
    """The Docker daemon that answers; without one the test is skipped, or fails where REPROMATRIX_REQUIRE_ENGINE=1."""
    try:
        return connect(address(), timeout=120)
    except InfraError as error:
        if os.environ.get("REPROMATRIX_REQUIRE_ENGINE") == "1":
            pytest.fail(f"REPROMATRIX_REQUIRE_ENGINE=1 and {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def docker_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An empty checkout with a store; `$REPROMATRIX_TEST_BASES` keeps its bases, which take 20 s each to build."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "matrix.toml").write_text("")
    store = root / "store"
    store.mkdir()
    if kept := os.environ.get("REPROMATRIX_TEST_BASES"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        (store / "bases").symlink_to(kept)
    return Project(root, store)


@pytest.fixture(scope="session")
def docker_matrix(docker_project: Project) -> Matrix:
    """One base: Debian bookworm for Python 3.11."""
    return Matrix(docker_project.matrix_toml, (), "release", bases=(Base(PYTHON, None, "bookworm"),))


@pytest.fixture(scope="session")
def debian_base(engine: Daemon, docker_project: Project, docker_matrix: Matrix) -> BaseImage:
    """A base image with Python 3.11, built from Debian packages and imported."""
    return resolve_base(docker_matrix, PYTHON, engine, docker_project.store, Silent())


def inspect(engine: Daemon, reference: str) -> dict[str, Any]:
    """What the engine says of an image."""
    found: dict[str, Any] = engine.api.inspect_image(reference)  # type: ignore[no-untyped-call]  # the stubs leave it bare
    return found


def stored(store: WheelStore, made: Path, uploaded: str) -> Wheel:
    """Put a hand-made wheel into the store."""
    name, version = made.name.split("-")[:2]
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    wheel = Wheel(name.replace("_", "-"), version, made.name, digest, made.stat().st_size, uploaded)
    place = store.place(wheel)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(made.read_bytes())
    return wheel


def lock_of(*wheels: Wheel, jax: str = "0.0.1") -> Lock:
    """A lock for Python 3.11 with exactly these wheels."""
    environment = Environment((("jax", jax), ("cuda", "none"), ("python", PYTHON), ("nccl", "locked")))
    ordered = tuple(sorted(wheels, key=lambda wheel: wheel.name))
    return Lock(environment, PYTHON, "x86_64-manylinux_2_28", "release", "2025-04-16T00:00:00Z", ordered)


@pytest.fixture(scope="session")
def tiny_lock(docker_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Lock:
    """An environment of two small wheels whose bytes never change; in the store."""
    folder = tmp_path_factory.mktemp("wheels")
    store = WheelStore(docker_project.store)
    greeter = make_wheel(
        folder, "greeter", "1.0", {"greeter/__init__.py": "def greet(name):\n    return 'hi ' + name\n"}
    )
    jax = make_wheel(folder, "jax", "0.0.1", {"jax/__init__.py": "__version__ = '0.0.1'\n"})
    return lock_of(stored(store, greeter, "2024-05-01T00:00:00Z"), stored(store, jax, "2025-04-16T00:00:00Z"))


def import_base(base: BaseImage, project: Project, host: str) -> str:
    """Bring `base`, whose archive `project` has, to another daemon; its reference there."""
    identity = base.id.removeprefix("sha256:")
    archive = debian.DebianBase("bookworm", identity, project.store / "bases" / f"{identity}.tar.zst")
    return debian.import_image(archive, connect(host))
