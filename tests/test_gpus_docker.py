"""GPUs in containers: a daemon that reads CDI, and device nodes that stand for GPUs where there is none."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.engines import built
from repromatrix.engines.attempt import owner
from repromatrix.engines.base import Attempt, Prepared, Raw
from repromatrix.engines.cdi import specification
from repromatrix.engines.docker import DockerEngine
from repromatrix.engines.local_cuda import find_libraries
from repromatrix.envs.base import BaseImage
from repromatrix.envs.daemon import connect
from repromatrix.envs.model import Lock
from repromatrix.project import Project
from repromatrix.spec.model import Environment, Matrix
from tests.docker_fixtures import import_base
from tests.gpu_nodes import GPU_SCRIPT, ZLIB, host_with_gpus
from tests.own_dockerd import own_dockerd

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def daemon_with_cdi() -> Iterator[tuple[str, Path]]:
    """(address, home) of a dockerd that reads CDI specifications in `home/cdi`."""
    cdi = {"features": {"cdi": True}, "cdi-spec-dirs": ["{home}/cdi"]}
    with own_dockerd(cdi, lacking="" if ZLIB.exists() else "zlib") as daemon:
        yield daemon.host, daemon.home


@pytest.fixture(scope="module")
def host_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two device nodes (of /dev/null), a driver's folder and a site-packages with a CUDA 13 and a jax."""
    return host_with_gpus(tmp_path_factory.mktemp("host"))


@pytest.fixture
def prepared(
    daemon_with_cdi: tuple[str, Path],
    debian_base: BaseImage,
    docker_project: Project,
    tiny_lock: Lock,
    monkeypatch: pytest.MonkeyPatch,
) -> Prepared:
    """The base image in the daemon with CDI; its own interpreter is enough here."""
    host, _ = daemon_with_cdi
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr("repromatrix.engines.in_container.PYTHON", "/usr/bin/python3")
    monkeypatch.setattr("repromatrix.engines.container.PYTHON", "/usr/bin/python3")
    reference = import_base(debian_base, docker_project, host)
    axes = dict(tiny_lock.environment.axes) | {"cuda": "13-local"}
    lock = Lock(Environment(tuple(axes.items())), tiny_lock.python, tiny_lock.platform, "release", "", tiny_lock.wheels)
    return Prepared(lock, "docker", reference, "", reference)


def attempt_of(folder: Path, nodes: list[str], libraries: list[str], site_packages: Path | None = None) -> Attempt:
    (folder / "work").mkdir(parents=True)
    text = f"NODES = {nodes!r}\nLIBRARIES = {libraries!r}\n{GPU_SCRIPT}"
    (folder / "work" / "script.py").write_text(text)
    cuda = None if site_packages is None else find_libraries(str(site_packages))
    return Attempt(folder.name, folder, "script.py", (), (), 30.0, gpus=2, devices=(0, 1), cuda=cuda)


def run(docker: DockerEngine, prepared: Prepared, attempt: Attempt) -> Raw:
    return docker.run(prepared, attempt, threading.Event())


def test_gpus_by_cdi_and_the_hosts_cuda(
    daemon_with_cdi: tuple[str, Path],
    prepared: Prepared,
    host_files: Path,
    docker_project: Project,
    docker_matrix: Matrix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cdi = daemon_with_cdi[1] / "cdi" / "nvidia.json"
    cdi.write_text(json.dumps(specification(host_files / "driver", host_files / "dev")))
    nodes = [str(host_files / "dev" / name) for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")]
    docker = DockerEngine(docker_project, docker_matrix)
    reach = docker.gpu_access()
    assert (reach.how, reach.devices) == ("cdi", ("nvidia.com/gpu=all",))
    assert reach.why == f"CDI: no NVIDIA runtime in the daemon, and {cdi} describes 0, 1, all"

    attempt = attempt_of(tmp_path / "a", nodes, ["libcuda.so.1", "libcudart.so.13"], host_files / "site-packages")
    raw = run(docker, prepared, attempt)
    assert (raw.exit_status, raw.infra) == (0, ""), (attempt.folder / "stderr").read_text()
    seen = json.loads((attempt.folder / "stdout").read_text())
    inside = "/opt/repromatrix/cuda/0/cu13"
    assert seen == {
        "LD_LIBRARY_PATH": f"{inside}/lib:/usr/local/nvidia/lib64",
        "CUDA_ROOT": inside,
        "PATH": f"/opt/env/bin:{inside}/bin:/usr/local/bin:/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "nodes": nodes,
    }
    content = dict(find_libraries(str(host_files / "site-packages")).files)["libcudart.so.13"]
    loaded = f"loaded: cudart {content} of the host"
    assert raw.notes[-2:] == (f"GPUs by {reach.why}", loaded)

    command = docker.command(prepared, attempt)
    assert "--device=nvidia.com/gpu=all" in command
    assert "--gpus" not in command
    assert (
        f"source={(host_files / 'site-packages/nvidia').resolve()},target=/opt/repromatrix/cuda/0,readonly" in command
    )
    by_hand = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert by_hand.returncode == 0, (command, by_hand.stderr)
    assert json.loads(by_hand.stdout) == seen

    # What looks like NVIDIA's hook and is none: the daemon refuses, and CDI takes its place.
    monkeypatch.setattr("repromatrix.engines.docker.hook_installed", lambda: True)
    docker = DockerEngine(docker_project, docker_matrix)
    assert docker.gpu_access().how == "runtime"
    attempt = attempt_of(tmp_path / "b", nodes, ["libcuda.so.1"])
    raw = run(docker, prepared, attempt)
    assert (raw.exit_status, raw.infra) == (0, ""), (attempt.folder / "stderr").read_text()
    assert json.loads((attempt.folder / "stdout").read_text())["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert f"GPUs by CDI: the daemon refused --gpus all, and {cdi} describes 0, 1, all" in raw.notes


def test_without_any_way_it_is_infra(
    daemon_with_cdi: tuple[str, Path],
    prepared: Prepared,
    docker_project: Project,
    docker_matrix: Matrix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (daemon_with_cdi[1] / "cdi" / "nvidia.json").unlink(missing_ok=True)
    docker = DockerEngine(docker_project, docker_matrix)
    raw = run(docker, prepared, attempt_of(tmp_path / "a", [], []))
    assert raw.infra.startswith("no NVIDIA runtime in the daemon, and there is no CDI specification of GPUs: install")
    assert "invoke doctor --write-cdi" in raw.infra
    monkeypatch.setattr("repromatrix.engines.docker.hook_installed", lambda: True)
    raw = run(DockerEngine(docker_project, docker_matrix), prepared, attempt_of(tmp_path / "b", [], []))
    assert "the daemon refused --gpus all, and there is no CDI specification of GPUs: install" in raw.infra


def test_a_specification_whose_files_have_gone_is_infra(
    daemon_with_cdi: tuple[str, Path],
    prepared: Prepared,
    docker_project: Project,
    docker_matrix: Matrix,
    host_files: Path,
    tmp_path: Path,
) -> None:
    described = specification(host_files / "driver", host_files / "dev")
    described["containerEdits"]["mounts"][0]["hostPath"] = "/no/such/libcuda.so.535.104.05"
    (daemon_with_cdi[1] / "cdi" / "nvidia.json").write_text(json.dumps(described))
    raw = run(DockerEngine(docker_project, docker_matrix), prepared, attempt_of(tmp_path / "a", [], []))
    assert "libcuda.so.535.104.05" in raw.infra


def test_what_an_image_was_built_with(
    daemon_with_cdi: tuple[str, Path], prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, python = daemon_with_cdi[0], "/usr/bin/python3"
    daemon = connect(host)
    assert built.in_image(daemon, host, prepared.location, python, owner()) == ""  # no CUDA plugin in a base
    monkeypatch.setattr(built, "CODE", """print('{"cuda": 13000, "cudnn": 91200, "nccl": []}')""")
    said = built.in_image(daemon, host, prepared.location, python, owner())
    assert said == "built with CUDA 13.0 and cuDNN 9.12.0"
    assert daemon.api.containers(all=True) == []
    gone = built.in_image(daemon, host, "sha256:" + "0" * 64, python, owner())
    assert gone.startswith("what it was built with could not be asked: ")
