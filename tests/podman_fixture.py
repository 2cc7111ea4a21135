"""Podman, with images of its own that end with the tests, and settings that fit this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.engines.podman import PodmanEngine
from repromatrix.envs.podman import Podman
from repromatrix.project import Project
from repromatrix.spec.model import Matrix


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with images of its own; without one the test is skipped, or fails where REPROMATRIX_REQUIRE_ENGINE=1."""
    home = tmp_path_factory.mktemp("podman")
    settings = {"storage.conf": f'[storage]\ndriver = "overlay"\ngraphroot = "{home}/g"\nrunroot = "{home}/r"\n'}
    # crun does not run on hosts with both versions of cgroups.
    both = Path("/sys/fs/cgroup/unified").is_dir() and shutil.which("runc")
    settings["containers.conf"] = '[engine]\nruntime = "runc"\n' if both else ""
    for name, text in settings.items():
        (home / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid() == 0:
            patch.setenv("CONTAINERS_STORAGE_CONF", str(home / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(home / "containers.conf"))
        if why := PodmanEngine(Project(home, home), Matrix(home, (), "release")).unavailable():
            if os.environ.get("REPROMATRIX_REQUIRE_ENGINE") == "1":
                pytest.fail(f"REPROMATRIX_REQUIRE_ENGINE=1 and {why}")
            pytest.skip(why)
        yield Podman()
        if os.geteuid() == 0:
            subprocess.run(["podman", "rmi", "--all", "--force"], check=False, capture_output=True)
            for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
                if (place := line.split()[4]).startswith(str(home)):
                    subprocess.run(["umount", "-l", place], check=False)
