"""Folders that are handed over, on a machine with nothing but Docker's client and the socket of an engine."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.engines.cdi import specification
from repromatrix.engines.local_cuda import NEEDED
from repromatrix.envs.base import BaseImage
from repromatrix.envs.daemon import LABEL, Daemon
from repromatrix.project import Project
from tests.conftest import Said
from tests.docker_fixtures import import_base
from tests.gpu_nodes import ZLIB, host_with_gpus
from tests.handed_over import Case, case_of, change, hand_over, last, machine, unshare
from tests.own_dockerd import own_dockerd

pytestmark = pytest.mark.container

PLUGINS = ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, engine: Daemon) -> Iterator[Case]:
    """A failure, recorded without Docker; the images of its folders are removed."""
    with case_of(tmp_path_factory.mktemp("case")) as made:
        yield made
        for folder in (made.failing, made.well):
            found = re.search(r"(?m)^image=(\S+)", (folder / "reproduce.sh").read_text())
            assert found is not None
            subprocess.run(
                ["docker", "--host", engine.host, "rmi", "--force", found[1]], capture_output=True, check=False
            )


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    return without_stacks(shutil.copytree(case.failing, tmp_path / "folder"))


def without_stacks(folder: Path) -> Path:
    """No programs that read stacks: the index of these tests lacks them, and finding that out takes time."""
    change(folder, "reproduce.sh", "\nstacks=yes\n", "\nstacks=no\n")
    return folder


def options(base: BaseImage) -> list[str]:
    """The base as the engine has it: no registry is asked. The test engine has no bridge; the index is on this host."""
    return ["--base", base.reference, "--network", "host"]


@pytest.fixture
def clean(engine: Daemon, debian_base: BaseImage, tmp_path: Path, case: Case) -> Iterator[list[str]]:
    """A container with a shell, Docker's client with buildx, and the engine's socket: the start of a command in it."""
    socket, client = engine.host.removeprefix("unix://"), shutil.which("docker")
    plugins = next((place for place in PLUGINS if (Path(place) / "docker-buildx").exists()), None)
    if plugins is None or client is None or not engine.host.startswith("unix://"):
        pytest.skip("no local engine with buildx")
    started = subprocess.run(
        [
            *("docker", "--host", engine.host, "run", "--detach", "--network=none", "--workdir=/folder"),
            *("--volume", f"{socket}:{socket}", "--volume", f"{client}:/usr/local/bin/docker:ro"),
            *("--volume", f"{Path(plugins).resolve()}:/usr/local/lib/docker/cli-plugins:ro"),
            *("--env", f"DOCKER_HOST={engine.host}", "--env", f"PIP_INDEX_URL={case.index.url}"),
            *(debian_base.reference, "sleep", "600"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    container = started.stdout.strip()
    inside = ["docker", "--host", engine.host, "exec", container]
    try:
        subprocess.run([*inside, "sh", "-c", "rm -rf /usr/bin/python3* /usr/lib/python3*"], check=True)
        yield inside
    finally:
        engine.api.remove_container(container, force=True)


def in_container(inside: list[str], folder: Path, *given: str) -> Said:
    """Run reproduce.sh in the container, on a copy of `folder`."""
    subprocess.run([*inside, "rm", "-rf", "/folder/case"], check=True)
    subprocess.run([*inside[:3], "cp", str(folder), f"{inside[-1]}:/folder/case"], capture_output=True, check=True)
    argv = [*inside, "sh", "/folder/case/reproduce.sh", *given]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def test_nothing_but_docker(clean: list[str], debian_base: BaseImage, case: Case, folder: Path) -> None:
    assert subprocess.run([*clean, "sh", "-c", "command -v python3 uv"], check=False).returncode, "nothing but Docker"
    said = in_container(clean, case.failing, *options(debian_base))
    assert (said.code, last(said)) == (
        0,
        'REPRODUCED: error status 1 "py-exc ArithmeticError: the sum of N values is wrong"',
    ), said.err
    assert "the programs that read stacks cannot be had" in said.err, "the index of this test lacks them"
    change(folder, "work/wrong_sum.py", "the sum of 3 values is wrong", "the shape is wrong")
    said = in_container(clean, folder, *options(debian_base))
    assert (said.code, "a different failure" in last(said)) == (1, True), said.err
    for name in ("Dockerfile", "requirements.txt", "lock.txt"):  # the environment of a cell that is well
        shutil.copy(case.well / name, folder)
    said = in_container(clean, folder, *options(debian_base))
    assert (said.code, last(said)) == (1, "NOT REPRODUCED: ok"), said.err


def test_the_attempt_sees_no_network_and_no_rights(
    clean: list[str], debian_base: BaseImage, folder: Path, engine: Daemon
) -> None:
    told = "import os, jax\nprint(os.getuid(), sorted(os.listdir('/sys/class/net')))\n"
    told += "print([line for line in open('/proc/self/status') if line.startswith(('CapBnd', 'NoNewPrivs'))])\n"
    change(folder, "work/wrong_sum.py", "import jax\n", told)
    subprocess.run([*clean, "rm", "-rf", "/kept"], check=True)
    said = in_container(clean, folder, *options(debian_base), "--keep", "/kept")
    assert said.code == 0, said.err
    done = subprocess.run([*clean, "cat", "/kept/1/stdout"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1000 ['lo']")
    assert "CapBnd:\\t0000000000000000" in done.stdout
    assert "NoNewPrivs:\\t1" in done.stdout
    mine = engine.api.containers(all=True, filters={"ancestor": image_of(folder)})
    assert mine == [], "its container is gone"


def image_of(folder: Path) -> str:
    found = re.search(r"(?m)^image=(\S+)", (folder / "reproduce.sh").read_text())
    assert found is not None
    return found[1]


def test_what_is_the_machines_fault(clean: list[str], debian_base: BaseImage, folder: Path) -> None:
    said = in_container(clean, folder, "--base", "repromatrix-base:nobody-has-this", "--network", "host")
    assert (said.code, last(said).partition(";")[0]) == (3, "COULD NOT RUN: the image was not built"), said.err
    change(folder, "requirements.txt", "jax==1.1.0 --hash=sha256:", "jax==1.1.0 --hash=sha256:0")
    said = in_container(clean, folder, *options(debian_base))
    assert (said.code, last(said).partition(";")[0]) == (3, "COULD NOT RUN: the image was not built"), said.err


@pytest.mark.parametrize("given", [[], ["--gpus"], ["--cdi"]])
def test_no_gpu_here(clean: list[str], debian_base: BaseImage, folder: Path, given: list[str]) -> None:
    change(folder, "reproduce.sh", "\ngpus=0\n", "\ngpus=1\n")
    change(folder, "expected.json", '"gpus": 0', '"gpus": 1')
    if shutil.which("nvidia-smi"):
        pytest.skip("there may be GPUs here")
    said = in_container(clean, folder, *options(debian_base), *given)
    assert (said.code, last(said).startswith("COULD NOT RUN: ")) == (3, True), said.out + said.err
    assert re.search(r"device driver|CDI|nvidia", last(said)), said.out


def test_gpus_are_given_as_the_daemon_can(
    tmp_path: Path, debian_base: BaseImage, docker_project: Project, case: Case, folder: Path
) -> None:
    """Docker before 28 does not list what CDI describes. Seen on a real H200 without NVIDIA's runtime."""
    change(folder, "reproduce.sh", "\ngpus=0\n", "\ngpus=1\n")
    change(folder, "expected.json", '"gpus": 0', '"gpus": 1')
    lonely = machine(tmp_path / "machine", ["docker"])
    cdi = {"features": {"cdi": True}, "cdi-spec-dirs": ["{home}/cdi"]}
    with own_dockerd(cdi, lacking="" if ZLIB.exists() else "zlib") as daemon:
        given = ["--base", import_base(debian_base, docker_project, daemon.host), "--network", "host"]
        environ = {"DOCKER_HOST": daemon.host, "PIP_INDEX_URL": case.index.url}
        said = lonely.run(folder, *given, **environ)
        assert (said.code, "Docker cannot give GPUs to a container here" in last(said)) == (3, True), said.err
        host = host_with_gpus(tmp_path / "host")
        (daemon.home / "cdi" / "nvidia.json").write_text(json.dumps(specification(host / "driver", host / "dev")))
        said = lonely.run(folder, *given, **environ)
        # The container has started, and finds that a node of /dev/null is no GPU.
        assert (said.code, bool(re.search(r"can be seen here|jax sees", last(said)))) == (3, True), said.out + said.err


def test_cuda_of_the_machine(tmp_path: Path, engine: Daemon, debian_base: BaseImage, case: Case, folder: Path) -> None:
    """As the folder of a `13-local` environment, with files in the place of its libraries: there are no GPUs here."""
    change(folder, "reproduce.sh", "\ncuda_major=\n", "\ncuda_major=13\n")
    change(folder, "expected.json", '"cuda": ""', '"cuda": "13"')
    lonely = machine(tmp_path / "machine", ["docker"])
    given = options(debian_base)
    environ = {"DOCKER_HOST": engine.host, "PIP_INDEX_URL": case.index.url}
    said = lonely.run(folder, *given, **environ)
    assert (said.code, "it takes the libraries of CUDA 13 from this machine" in last(said)) == (3, True), said.err
    toolkit = tmp_path / "a toolkit"
    (toolkit / "lib64").mkdir(parents=True)
    for name in NEEDED["13"].values():
        (toolkit / "lib64" / name).write_bytes(b"\x7fELF")
    said = lonely.run(folder, *given, "--cuda", "../a toolkit", **environ)
    assert (said.code, last(said).partition(":")[0]) == (0, "REPRODUCED"), said.err
    (toolkit / "lib64" / "libcudnn.so.9").unlink()
    said = lonely.run(folder, *given, REPROMATRIX_CUDA_LIBRARIES=str(toolkit), **environ)
    assert (said.code, "lack libcudnn.so.9" in last(said)) == (3, True), said.out


def test_no_daemon(tmp_path: Path, folder: Path) -> None:
    said = machine(tmp_path / "machine", ["docker"]).run(folder, DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
    assert (said.code, last(said).startswith("COULD NOT RUN: Docker does not answer: ")) == (3, True)


def test_without_a_network_from_carried_wheels(
    tmp_path: Path, engine: Daemon, debian_base: BaseImage, case: Case, folder: Path
) -> None:
    carried = tmp_path / "carried"
    carried.mkdir()
    for one in case.index.published:
        shutil.copy(one.path, carried)
    lonely = machine(tmp_path / "machine", ["docker"])
    given = ["--wheels", str(carried), "--base", debian_base.reference]
    said = lonely.run(folder, *given, wrap=unshare(), DOCKER_HOST=engine.host)
    assert (said.code, last(said).partition(":")[0]) == (0, "REPRODUCED"), said.err
    wheel = next(carried.glob("jaxlib-1.1.0-*"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    said = lonely.run(folder, *given, wrap=unshare(), DOCKER_HOST=engine.host)
    assert (said.code, "DO NOT MATCH THE HASHES" in said.err) == (3, True), said.err


def test_a_stopped_run_leaves_no_container(tmp_path: Path, engine: Daemon, debian_base: BaseImage, case: Case) -> None:
    case.checkout.repro("sleeper", "import time\ntime.sleep(600)", timeout='"1s"')
    folder = without_stacks(hand_over(case.checkout, "sleeper", "--cell", "*1.1.0*"))
    change(folder, "expected.json", '"timeout": 1.0', '"timeout": 500.0')
    lonely = machine(tmp_path / "machine", ["docker"])
    environ = {
        "PATH": str(lonely.path),
        "HOME": str(lonely.home),
        "TMPDIR": str(lonely.home),
        "DOCKER_HOST": engine.host,
    }
    with subprocess.Popen(
        ["sh", "reproduce.sh", *options(debian_base)],
        cwd=folder,
        env={**environ, "PIP_INDEX_URL": case.index.url},
        stderr=subprocess.DEVNULL,
    ) as process:
        until = time.monotonic() + 120
        while not (found := attempts(engine)) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        assert found
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert not [one for one in attempts(engine) if one in found]
    assert not list(lonely.home.glob("reproduce.*"))


def attempts(engine: Daemon) -> list[str]:
    """Running containers of reproduce.sh."""
    return [one["Id"] for one in engine.api.containers() if "/folder/reproduce.pyz" in one["Command"]]


def test_memory_is_bounded_as_it_was(clean: list[str], debian_base: BaseImage, case: Case) -> None:
    case.checkout.repro("hungry", "held = bytearray(1 << 30)\nheld[:] = b'x' * len(held)\n", memory='"200MiB"')
    folder = without_stacks(hand_over(case.checkout, "hungry", "--cell", "*1.1.0*"))
    assert json.loads((folder / "expected.json").read_text())["expected"]["outcome"] == "oom"
    said = in_container(clean, folder, *options(debian_base))
    assert (said.code, last(said).partition(":")[0]) == (0, "REPRODUCED"), said.out + said.err


def test_the_image_is_not_taken_for_the_engines(engine: Daemon, case: Case) -> None:
    """It holds more than the environment: an engine that looks for that must not find it."""
    found = engine.api.images(filters={"reference": image_of(case.failing)})
    assert [one["Labels"][f"{LABEL}recipe"] for one in found] in ([], ["handoff"])
