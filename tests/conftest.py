"""Shared fixtures: a checkout of its own, a store of its own, an index on the loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docker_fixtures import debian_base, docker_matrix, docker_project, engine, tiny_lock  # noqa: F401  # fixtures
from tests.fake_index import FakeIndex, publish_jax, serve
from tests.podman_fixture import podman  # noqa: F401  # a fixture
from tests.registry_fixture import registry  # noqa: F401  # a fixture
from tests.tools_case import tools_case  # noqa: F401  # a fixture
from tests.tools_fixture import tools  # noqa: F401  # a fixture

ROOT = Path(__file__).resolve().parent.parent

# A shell starts background jobs with SIGINT ignored, which children inherit: the tests of Ctrl-C need it back.
signal.signal(signal.SIGINT, signal.default_int_handler)

RELEASES = {"1.0.0": "2025-01-10", "1.1.0": "2025-02-10", "1.2.0": "2025-03-10"}

MATRIX = f"""\
[matrix]
jax    = ["1.0.0", "1.1.0", "1.2.0"]
cuda   = ["none"]
python = ["{sys.version_info.major}.{sys.version_info.minor}"]
as_of  = "release"

[bases."{sys.version_info.major}.{sys.version_info.minor}"]
debian = "bookworm"

[run]
engine = "venv"
timeout = "20s"
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Checkout:
    """A project of its own in a temporary folder, driven through the command line as a user would.

    Attributes:
        environ: Variables of its commands; no index but the loopback's is reachable through them.
    """

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def repro(self, name: str, body: str, **metadata: str) -> Path:
        """Write a repro; metadata values are TOML text."""
        block = {"title": '"A test"', "targets": '["cpu"]', **metadata}
        lines = ["# /// repro", *(f"# {key} = {value}" for key, value in block.items() if key != "expect")]
        if "expect" in block:
            lines += [f"# {line}" for line in block["expect"].splitlines()]
        path = self.root / "repros" / f"{name}.py"
        path.write_text("\n".join([*lines, "# ///", body, ""]))
        return path

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *args]

    def invoke(self, *args: str, **environ: str) -> Said:
        """Run `invoke ARGS` in this checkout."""
        done = subprocess.run(
            self.command(*args),
            cwd=self.root,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """`invoke ARGS` in this checkout, in the background, alone in its process group."""
        return subprocess.Popen(
            self.command(*args),
            cwd=self.root,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FakeIndex]:
    """A loopback index that has jax 1.0.0, 1.1.0 and 1.2.0."""
    with serve(tmp_path / "index") as running:
        publish_jax(running, RELEASES)
        yield running


def plain_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that choose an index or a proxy."""
    chosen = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(chosen)}, "PIP_CONFIG_FILE": os.devnull, **extra}


@pytest.fixture
def checkout(tmp_path: Path, index: FakeIndex) -> Checkout:
    """An empty checkout whose index is the loopback's and whose store is its own."""
    return new_checkout(tmp_path, index)


def new_checkout(place: Path, index: FakeIndex) -> Checkout:
    """As `checkout`, in `place`."""
    root = place / "checkout"
    (root / "repros").mkdir(parents=True)
    (root / "matrix.toml").write_text(MATRIX)
    environ = plain_environment(
        {
            "UV_DEFAULT_INDEX": index.url,
            "UV_CACHE_DIR": str(place / "uv-cache"),
            "REPROMATRIX_STORE": str(place / "store"),
            "NO_COLOR": "1",
        }
    )
    return Checkout(root, environ)
