"""A folder that is handed over, on a machine with podman in Docker's place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.envs.base import resolve_base
from repromatrix.envs.podman import Podman, own_limits
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Matrix
from tests.docker_fixtures import PYTHON
from tests.handed_over import Case, case_of, change, last, machine

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with case_of(tmp_path_factory.mktemp("case")) as made:
        yield made


def test_podman_in_dockers_place(
    podman: Podman,
    case: Case,
    docker_project: Project,
    docker_matrix: Matrix,
    tmp_path: Path,
) -> None:
    base = resolve_base(docker_matrix, PYTHON, podman, docker_project.store, Silent())
    folder = shutil.copytree(case.failing, tmp_path / "folder")
    change(folder, "reproduce.sh", "\nstacks=yes\n", "\nstacks=no\n")  # the index of these tests lacks them
    # In a sandbox podman asks for more than there is; reproduce.sh leaves that to its settings.
    limits = ", ".join(f'"{name}={value}:{value}"' for name, value in own_limits().items())
    settings = Path(os.environ["CONTAINERS_CONF"]).read_text()
    (tmp_path / "containers.conf").write_text(f"{settings}[containers]\ndefault_ulimits = [{limits}]\n")
    lonely = machine(tmp_path / "machine", ["podman"])
    environ = {"DOCKER": "podman", "PIP_INDEX_URL": case.index.url}
    environ |= {name: value for name, value in os.environ.items() if name.startswith(("CONTAINERS_", "XDG_RUNTIME"))}
    environ["CONTAINERS_CONF"] = str(tmp_path / "containers.conf")

    said = lonely.run(folder, "--base", base.reference, "--network", "host", **environ)
    assert (said.code, last(said).partition(":")[0]) == (0, "REPRODUCED"), said.out + said.err
    left = subprocess.run(["podman", "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert left.stdout == ""
