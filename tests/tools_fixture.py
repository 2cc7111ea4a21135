"""The programs that read stacks, as a run gets them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from repromatrix.envs.tools import tools as stack_readers
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Matrix


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pystack and py-spy. Tests that use it ask the index, so they are marked `network`."""
    return readers(tmp_path_factory.mktemp("tools"), f"{sys.version_info.major}.{sys.version_info.minor}")


def readers(root: Path, python: str) -> Path:
    """The same for any Python; in `$REPROMATRIX_STORE`, so that a machine fetches 10 MB once, else in `root`."""
    project = Project(root, Path(os.environ.get("REPROMATRIX_STORE") or root / "store"))
    matrix = Matrix(project.matrix_toml, (), "release")
    found = stack_readers(python, matrix, project, Silent(), threading.Event(), offline=False)
    assert found is not None, f"no lock of stack readers for Python {python}"
    return found
