"""Dockerfiles: what they say; images: built offline, reproducible, shared, and the same as from the network."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.envs import image
from repromatrix.envs.base import BaseImage
from repromatrix.envs.daemon import Daemon, trouble
from repromatrix.envs.image import build, known, layers, recipe, render, requirements, tag, write_rendered
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.project import Project
from tests.docker_fixtures import inspect, lock_of, stored
from tests.fake_index import FakeIndex, make_wheel

GOLDEN = Path(__file__).parent / "golden" / "Dockerfile"

OFFICIAL = "python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"


def wheel(name: str, version: str, size: int, uploaded: str) -> Wheel:
    module = name.replace("-", "_")
    return Wheel(name, version, f"{module}-{version}-cp311-cp311-linux_x86_64.whl", f"{size:064x}", size, uploaded)


LOCK = lock_of(
    wheel("jax", "0.6.0", 2_300_000, "2025-04-16T21:00:00Z"),
    wheel("jaxlib", "0.6.0", 87_000_000, "2025-04-16T20:00:00Z"),
    wheel("scipy", "1.15.2", 37_000_000, "2025-02-17T00:00:00Z"),
    wheel("numpy", "2.2.4", 16_000_000, "2025-03-16T00:00:00Z"),
    wheel("nvidia-cudnn-cu12", "9.5.1.17", 571_000_000, "2024-10-25T00:00:00Z"),
    wheel("ml-dtypes", "0.5.1", 2_900_000, "2025-01-07T00:00:00Z"),
    wheel("opt-einsum", "3.4.0", 72_000, "2024-09-26T00:00:00Z"),
    jax="0.6.0",
)
BASE = BaseImage(OFFICIAL.rpartition("@")[2], OFFICIAL, OFFICIAL, "3.11")


def test_layers_oldest_first_and_jax_last() -> None:
    assert [[wheel.name for wheel in layer.wheels] for layer in layers(LOCK)] == [
        ["nvidia-cudnn-cu12"],
        ["scipy"],
        ["numpy"],
        ["opt-einsum", "ml-dtypes"],
        ["jaxlib"],
        ["jax"],
    ]


def test_golden() -> None:
    # The recipe is a hash over the template, so that every change of a comment would change it here too.
    assert render(LOCK, BASE).replace(recipe(LOCK), "RECIPE") == GOLDEN.read_text()


def test_no_frontend_is_fetched() -> None:
    assert "syntax=" not in render(LOCK, BASE)


def test_requirements_are_what_pip_takes() -> None:
    assert requirements(LOCK).splitlines()[0] == f"jax==0.6.0 --hash=sha256:{2_300_000:064x}"
    assert len(requirements(LOCK).splitlines()) == 7


def test_write_rendered_leaves_what_is_right(tmp_path: Path) -> None:
    folder = write_rendered(LOCK, BASE, Project(tmp_path, tmp_path / "store"))
    assert folder == tmp_path / "containers" / "rendered" / "jax0.6.0-cpu-py311"
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "pack_core.py", "requirements.txt"]
    (folder / "requirements.txt").write_text("changed by hand\n")
    before = (folder / "Dockerfile").stat().st_mtime_ns
    write_rendered(LOCK, BASE, Project(tmp_path, tmp_path / "store"))
    assert (folder / "Dockerfile").stat().st_mtime_ns == before
    assert (folder / "requirements.txt").read_text() == requirements(LOCK)


def test_tag_is_a_valid_reference() -> None:
    environment = replace(LOCK.environment, axes=(("jax", "0.6.0"), ("cuda", "none"), ("python", "3.11"), ("x", "1+a")))
    assert tag(replace(LOCK, environment=environment)) == "repromatrix:jax0.6.0-cpu-py311-x1_a"


def test_daemon_disk_full_says_what_to_free() -> None:
    said = "write /var/lib/docker/tmp/x: no space left on device"
    assert "docker system df" in trouble(said, "build x", "unix:///x").hint


# ---- with an engine -------------------------------------------------------------------------------------------------


def rootfs(engine: Daemon, reference: str) -> list[str]:
    return list(inspect(engine, reference)["RootFS"]["Layers"])


@pytest.fixture(scope="module")
def store(docker_project: Project) -> WheelStore:
    return WheelStore(docker_project.store)


@pytest.fixture(scope="module")
def built(engine: Daemon, debian_base: BaseImage, tiny_lock: Lock, store: WheelStore) -> str:
    # An earlier session's image has another id where the base was imported anew since: the time is in its history.
    while (old := known(tiny_lock, debian_base, engine)) is not None:
        engine.api.remove_image(old, force=True)
    return build(tiny_lock, debian_base, store, engine, Silent())


@pytest.mark.container
def test_image_runs_as_anyone_and_says_what_it_is(
    engine: Daemon, built: str, tiny_lock: Lock, debian_base: BaseImage
) -> None:
    script = (
        "import greeter, json, os, sys; "
        "print(json.dumps([greeter.greet('x'), greeter.__cached__, sys.path[1:], os.getuid(), sys.executable]))"
    )
    argv = ["docker", "--host", engine.host, "run", "--rm", "--network=none", built, "python", "-c", script]
    said = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    site = "/opt/env/lib/python3.11/site-packages"
    assert said[0] == "hi x"
    assert said[1] == f"{site}/greeter/__pycache__/__init__.cpython-311.pyc"
    assert said[2][-1] == site
    assert not [place for place in said[2] if "dist-packages" in place]
    assert said[3:] == [1000, "/opt/env/bin/python"]
    labels = inspect(engine, built)["Config"]["Labels"]
    assert labels["org.repromatrix.environment"] == "jax0.0.1-cpu-py311"
    assert labels["org.repromatrix.lock"] == tiny_lock.hash
    assert labels["org.repromatrix.base"] == debian_base.reference
    assert labels["org.repromatrix.as_of"] == "release"


@pytest.mark.container
def test_known_needs_lock_base_and_recipe(
    engine: Daemon, built: str, tiny_lock: Lock, debian_base: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    assert known(tiny_lock, debian_base, engine) == built
    assert time.monotonic() - began < 2
    assert known(tiny_lock, replace(debian_base, reference="another"), engine) is None
    assert known(LOCK, debian_base, engine) is None
    monkeypatch.setattr(image, "UNPACK", "true")
    assert known(tiny_lock, debian_base, engine) is None


@pytest.mark.container
def test_the_same_image_whenever_it_is_built(
    engine: Daemon, built: str, tiny_lock: Lock, debian_base: BaseImage, store: WheelStore
) -> None:
    engine.api.remove_image(built, force=True)
    assert known(tiny_lock, debian_base, engine) is None
    steps = ("venv --without-pip /opt/env", image.UNPACK)
    cache = engine.api.df()["BuildCache"]
    ids = [entry["ID"] for entry in cache if any(step in entry["Description"] for step in steps)]
    assert len(ids) >= 2
    engine.api.prune_builds(filters={"id": f'"^({"|".join(ids)})$"'}, all=True)  # type: ignore[arg-type]  # narrow stubs
    assert build(tiny_lock, debian_base, store, engine, Silent()) == built


@pytest.mark.container
def test_packs_for_a_base_without_zstd(
    engine: Daemon, built: str, tiny_lock: Lock, debian_base: BaseImage, store: WheelStore
) -> None:
    assert build(tiny_lock, replace(debian_base, zstd=False), store, engine, Silent()) == built


@pytest.mark.container
def test_wheels_compiled_in_the_base(
    engine: Daemon,
    built: str,
    tiny_lock: Lock,
    debian_base: BaseImage,
    store: WheelStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("repromatrix.envs.pack.find_python", lambda python: None)
    assert build(tiny_lock, debian_base, store, engine, Silent()) == built


@pytest.mark.container
def test_environments_share_layers(
    engine: Daemon, debian_base: BaseImage, store: WheelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "LARGE", 1000)
    big = stored(store, make_wheel(tmp_path, "big", "1.0", {"big/data.py": repr("x" * 1000) + "\n" * 9}), "2024-01-01")
    big = replace(big, uploaded="2024-01-01T00:00:00Z")
    monkeypatch.setattr(image, "LARGE", big.size)
    chains = []
    for version in ("0.0.2", "0.0.3"):
        jax = make_wheel(tmp_path, "jax", version, {"jax/__init__.py": f"__version__ = {version!r}\n"})
        lock = lock_of(big, stored(store, jax, "2025-04-16T00:00:00Z"), jax=version)
        chains.append(rootfs(engine, build(lock, debian_base, store, engine, Silent())))
    first, second = chains
    assert first[:3] == second[:3]  # base, venv, big
    assert first[3] != second[3]


@pytest.mark.container
def test_an_image_that_buildkit_names_otherwise_is_found(
    engine: Daemon, built: str, debian_base: BaseImage, tiny_lock: Lock
) -> None:
    """Seen with containerd's image store: BuildKit's id of an image is one that the engine does not know."""
    assert image.called(built, tiny_lock, debian_base, engine) == built
    assert image.called(f"sha256:{'0' * 64}", tiny_lock, debian_base, engine) == built
    with pytest.raises(InfraError, match="does not know the image"):
        image.called(f"sha256:{'0' * 64}", tiny_lock, replace(debian_base, reference="other:1"), engine)


@pytest.mark.container
def test_the_copy_of_the_packs_is_dropped(engine: Daemon, built: str) -> None:
    kept = [entry["Description"] for entry in engine.api.df()["BuildCache"] or []]
    assert "local source for wheels" not in kept


@pytest.mark.container
def test_from_the_network_the_same_layers(
    engine: Daemon, built: str, debian_base: BaseImage, tiny_lock: Lock, tmp_path: Path, index: FakeIndex
) -> None:
    """`--network=host`: the index of this test listens on the loopback, and the test engine has no bridge."""
    greeter = {"greeter/__init__.py": "def greet(name):\n    return 'hi ' + name\n"}
    index.published.clear()
    index.add("greeter", "1.0", greeter)
    index.add("jax", "0.0.1", {"jax/__init__.py": "__version__ = '0.0.1'\n"})
    assert {item.sha256 for item in index.published} == {wheel.sha256 for wheel in tiny_lock.wheels}
    folder = write_rendered(tiny_lock, debian_base, Project(tmp_path, tmp_path / "store"))
    argv = ["docker", "--host", engine.host, "buildx", "build", "--builder=default", "--network=host", "--quiet"]
    argv += ["--provenance=false", f"--build-arg=PIP_INDEX_URL={index.url}", "--no-cache", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = done.stdout.strip()
    try:
        assert rootfs(engine, made) == rootfs(engine, built)
    finally:
        engine.api.remove_image(made, force=True)
    index.broken.add("greeter-1.0-py3-none-any.whl")
    argv.remove("--quiet")
    done = subprocess.run([*argv, "--progress=plain"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.container
def test_a_wheel_that_is_not_there(engine: Daemon, debian_base: BaseImage, tmp_path: Path) -> None:
    store = WheelStore(tmp_path / "store")
    with pytest.raises(InfraError, match="greeter"):
        build(lock_of(wheel("greeter", "1.0", 5, "")), debian_base, store, engine, Silent())
    assert list(store.tmp.glob("*.room")) == []


@pytest.mark.container
def test_a_build_that_fails_shows_its_output(
    engine: Daemon, debian_base: BaseImage, tiny_lock: Lock, store: WheelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "UNPACK", "echo so it goes; exit 3")
    with pytest.raises(InfraError) as caught:
        build(tiny_lock, debian_base, store, engine, Silent())
    assert "so it goes" in caught.value.message
    assert "exit code: 3" in caught.value.message


@pytest.mark.container
def test_cancel_kills_the_build(
    engine: Daemon, debian_base: BaseImage, tiny_lock: Lock, store: WheelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "UNPACK", "sleep 300")
    cancel = threading.Event()
    threading.Timer(2, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(InfraError, match="cancelled"):
        build(tiny_lock, debian_base, store, engine, Silent(), cancel)
    assert time.monotonic() - began < 20
    assert list(store.tmp.glob("*.room")) == []


@pytest.mark.container
def test_no_buildx(
    engine: Daemon,
    debian_base: BaseImage,
    tiny_lock: Lock,
    store: WheelStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfraError, match="docker is not installed") as caught:
        build(tiny_lock, debian_base, store, engine, Silent())
    assert "buildx" in caught.value.hint
