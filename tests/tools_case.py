"""Stack readers of hand-made wheels: a lock, an index on the loopback and a store of their own."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from repromatrix.envs.index import PLATFORM
from repromatrix.envs.lockfile import render_wheels
from repromatrix.envs.model import Wheel
from repromatrix.envs.tools import StackReaders, header, tools
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Matrix
from tests.fake_index import FakeIndex, Published, serve
from tests.wheel_factory import wheel_bytes

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

PYSTACK = wheel_bytes("pystack", {"pystack/__init__.py": "", "pystack/__main__.py": "def main(): print('read')\n"})
PY_SPY = wheel_bytes(
    "py_spy",
    {"py_spy-1.0.data/scripts/py-spy": "#!/bin/sh\necho spied\n"},
    {"py_spy-1.0.data/scripts/py-spy": 0o100755},
)
WHEELS = {"py-spy": PY_SPY, "pystack": PYSTACK}


def file_name(name: str) -> str:
    return f"{name.replace('-', '_')}-1.0-py3-none-any.whl"


class Heard(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)

    def warn(self, message: str) -> None:
        self.said.append(message)


@dataclass(slots=True)
class ToolsCase:
    """What `tools` is called with; nothing is published yet."""

    project: Project
    index: FakeIndex
    locks: Path
    heard: Heard = field(default_factory=Heard)
    cancel: threading.Event = field(default_factory=threading.Event)

    def publish(self, *names: str) -> None:
        self.index.folder.mkdir(exist_ok=True)
        for name in names:
            path = self.index.folder / file_name(name)
            path.write_bytes(WHEELS[name])
            digest = hashlib.sha256(WHEELS[name]).hexdigest()
            self.index.published.append(Published(name, "1.0", path, digest, "2025-01-01T12:00:00Z"))

    def tools(self, python: str = PYTHON, *, offline: bool = False) -> Path | None:
        matrix = Matrix(self.project.matrix_toml, (), "release")
        return tools(python, matrix, self.project, self.heard, self.cancel, offline=offline, locks=self.locks)


def lock_tools(folder: Path, python: str) -> None:
    """Write a lock of the two wheels for `python`."""
    wheels = [
        Wheel(name, "1.0", file_name(name), hashlib.sha256(data).hexdigest(), len(data), "")
        for name, data in WHEELS.items()
    ]
    folder.mkdir(exist_ok=True)
    facts = ["a title", *header(StackReaders(python, PLATFORM, tuple(wheels)))]
    (folder / f"py{python.replace('.', '')}.txt").write_text(render_wheels(facts, wheels))


@pytest.fixture
def tools_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolsCase]:
    """A lock for the running Python, and an index that serves nothing."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    lock_tools(tmp_path / "locks", PYTHON)
    with serve(tmp_path / "index") as index:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        yield ToolsCase(Project(tmp_path, tmp_path / "store"), index, tmp_path / "locks")
