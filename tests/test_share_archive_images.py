"""Archives with what only a network or an engine can give: the wheels of this tool, images, bases."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.carry.folder import blob_path
from repromatrix.carry.verify import verify
from repromatrix.envs.daemon import Daemon
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.share.archives.tool import HERE, pythons, tool_wheels
from repromatrix.spec.model import Matrix
from tests.conftest import MATRIX, ROOT, Checkout
from tests.docker_fixtures import inspect

# --- this tool --------------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_what_this_tool_needs_is_what_it_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, matrix = Project(tmp_path, tmp_path / "store"), Matrix(tmp_path / "matrix.toml", (), "release")
    found = tool_wheels(HERE, matrix, project, Silent(), threading.Event(), offline=False)
    pinned = (ROOT / "requirements.lock").read_text()
    for wheel in found.wheels:
        assert f"{wheel.name}=={wheel.version}" in pinned
        assert f"sha256:{wheel.sha256}" in pinned
        assert WheelStore(project.store).path(wheel) is not None
    names = {wheel.name for wheel in found.wheels}
    assert {"invoke", "uv", "docker", "pydantic", "pydantic-core", "zstandard", "requests"} <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "pywin32", "colorama"}
    # Installed elsewhere with nothing else, it starts.
    (tmp_path / "site").mkdir()
    for wheel in found.wheels:
        shutil.unpack_archive(WheelStore(project.store).verify(wheel), tmp_path / "site", "zip")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path / 'site')!r}]\n"
         "import invoke, httpx, rich, jinja2, tabulate, pydantic, zstandard, docker, packaging\n"
         "import repromatrix.flow, repromatrix.share.archives.archive"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Known once, it is not asked for again.
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert tool_wheels(HERE, matrix, project, Silent(), threading.Event(), offline=True) == found
    shutil.rmtree(project.store / "wheels" / found.wheels[0].sha256)
    with pytest.raises(InfraError, match=r"1 wheels of this tool .* --offline forbids"):
        tool_wheels(HERE, matrix, project, Silent(), threading.Event(), offline=True)


def test_which_wheels_it_needs_must_be_known_offline(tmp_path: Path) -> None:
    project, matrix = Project(tmp_path, tmp_path / "store"), Matrix(tmp_path / "matrix.toml", (), "release")
    with pytest.raises(InfraError, match="is not known yet"):
        tool_wheels(HERE, matrix, project, Silent(), threading.Event(), offline=True)


def test_pythons_of_the_tool() -> None:
    assert pythons("") == (HERE,)
    assert pythons("none") == ()
    assert pythons("3.11, 3.13,3.11") == ("3.11", "3.13")
    for wrong in ("3.10", "3", "four", "3.11.2", "2.7", "3.11 3.12"):
        with pytest.raises(UserError, match="not a Python that this tool runs on"):
            pythons(wrong)


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def imaged(checkout: Checkout, engine: Daemon, docker_project: Project) -> Iterator[Checkout]:
    """A checkout on Docker whose store has the bases of the tests; its images go again."""
    (checkout.root / "matrix.toml").write_text(MATRIX.replace('engine = "venv"', 'engine = "docker"'))
    checkout.repro("says", "import jax\nprint('ran', jax.__version__)", expect='[[expect]]\noutcome = "ok"')
    store = Path(checkout.environ["REPROMATRIX_STORE"])
    store.mkdir()
    (store / "bases").symlink_to((docker_project.store / "bases").resolve())
    yield checkout
    for locked in (checkout.root / "containers" / "locks").glob("*.txt"):
        subprocess.run(
            ["docker", "--host", engine.host, "rmi", "--force", f"repromatrix:{locked.stem}"],
            capture_output=True,
            check=False,
        )


@pytest.mark.container
@pytest.mark.skipif(HERE != "3.11", reason="the base of the tests has Python 3.11")
@pytest.mark.usefixtures("debian_base")
def test_images_are_archived_with_their_base(imaged: Checkout, engine: Daemon, tmp_path: Path) -> None:
    assert imaged.invoke("fetch", "--env", "*").code == 0
    place = tmp_path / "archive"
    command = ("archive", str(place), "--tool-python", "none", "--offline", "--env")
    said = imaged.invoke(*command, "jax1.0.0-*")
    assert said.code == 0, said.err
    first = verify(place)
    (environment,) = first.environments
    (image,) = first.images
    assert environment.image == image.id
    about = inspect(engine, "repromatrix:jax1.0.0-cpu-py311")
    assert about["Id"] == f"sha256:{image.id}"
    assert re.fullmatch("[0-9a-f]{64}", environment.base)
    assert about["Config"]["Labels"]["org.repromatrix.base"] == f"repromatrix-base:{environment.base}"
    bases = {file.path.rpartition("/")[2]: file for file in first.files if file.path.startswith("store/bases/")}
    assert {f"{environment.base}.tar.zst", f"{environment.base}.packages", "bookworm.json"} <= set(bases)
    assert [name for name in bases if name.startswith("choice-3.11-")]
    packages = blob_path(place, bases[f"{environment.base}.packages"].sha256).read_text()
    assert packages.count("\n") > 50
    sbom = (place / "sbom.cdx.json").read_text()
    for line in packages.splitlines()[1:]:
        assert f'"pkg:deb/debian/{line.partition("=")[0].replace("+", "%2B")}@' in sbom

    said = imaged.invoke(*command, "jax1.1.0-*")
    assert said.code == 0, said.err
    second = verify(place)
    assert [each.reference for each in second.images] == [f"repromatrix:jax1.{n}.0-cpu-py311" for n in (0, 1)]
    fresh = {blob.sha256: blob.size for blob in second.blobs} | {blob.sha256: 0 for blob in first.blobs}
    assert 0 < sum(fresh.values()) < 1_000_000  # the base's layers, 40 MB, are there already

    said = imaged.invoke(*command, "jax1.*")
    assert said.code == 0, said.err
    assert len(verify(place).images) == 3
    said = imaged.invoke("archive", str(place), "--tool-python", "none", "--offline", "--wheels-only")
    assert said.code == 0
    assert "0.0 MB of them new" in said.out
    assert len(verify(place).images) == 3  # what was there stays


@pytest.mark.container
@pytest.mark.usefixtures("debian_base")
def test_an_engine_that_is_not_there_costs_the_images_alone(imaged: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    nobody = f"unix://{tmp_path}/nobody.sock"
    assert imaged.invoke("fetch", "--env", "jax1.0.0-*").code == 0
    command = ("archive", str(place), "--tool-python", "none", "--offline", "--env", "jax1.0.0-*")
    said = imaged.invoke(*command, DOCKER_HOST=nobody)
    assert said.code == 0, said.err
    assert "no images are archived" in said.err
    manifest = verify(place)
    assert manifest.images == ()
    assert [note for note in manifest.notes if note.startswith("no image of jax1.0.0-cpu-py311")]
