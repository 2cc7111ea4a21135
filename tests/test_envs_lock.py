"""Locks: what uv is asked, what the file holds, what a damaged one gets; and real environments from the real index."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from repromatrix.envs.index import PLATFORM, File, Package, addresses, parse_pylock
from repromatrix.envs.lock import Drift, check, lock_all
from repromatrix.envs.lockfile import read_impossible, read_lock, render_lock, supported_tags, write_lock
from repromatrix.envs.model import Impossible, Lock, Wheel
from repromatrix.envs.resolve import best_wheel, request_of, resolve
from repromatrix.errors import InfraError, InputErrors, UserError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Environment, Matrix
from tests.fake_index import FakeIndex, serve

MATRIX = Matrix(Path("matrix.toml"), (), "release")


class Ear(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def env(
    jax: str,
    cuda: str = "none",
    python: str = "3.11",
    nccl: str = "locked",
    *,
    jaxlib: str = "",
    as_of: str = "release",
    packages: tuple[str, ...] = (),
    more: tuple[tuple[str, str], ...] = (),
) -> Environment:
    lib = (("jaxlib", jaxlib),) if jaxlib else ()
    return Environment((("jax", jax), *lib, ("cuda", cuda), ("python", python), ("nccl", nccl), *more), as_of, packages)


def wheel(name: str, version: str, tags: str = "py3-none-any", digest: str = "a") -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-{tags}.whl"
    return Wheel(name, version, filename, digest * 64, 10, "2025-06-17T23:10:25Z")


def small(environment: Environment | None = None) -> Lock:
    wheels = (
        wheel("jax", "0.6.2", digest="a"),
        wheel("jaxlib", "0.6.2", "cp311-cp311-manylinux2014_x86_64", "b"),
        replace(wheel("ml-dtypes", "0.5.1", "cp311-cp311-manylinux_2_17_x86_64", "c"), size=0, uploaded=""),
    )
    return Lock(environment or env("0.6.2"), "3.11", PLATFORM, "release", "2025-06-17T23:59:59Z", wheels)


def locked(environment: Environment, tmp_path: Path, ear: Silent | None = None, matrix: Matrix = MATRIX) -> Lock:
    found = resolve(environment, matrix, tmp_path / "store", ear or Silent())
    assert isinstance(found, Lock), found
    return found


def refused(environment: Environment, tmp_path: Path) -> str:
    found = resolve(environment, MATRIX, tmp_path / "store", Silent())
    assert isinstance(found, Impossible), found
    return found.reason


def versions(lock: Lock) -> dict[str, str]:
    return {w.name: w.version for w in lock.wheels}


# --- what uv is asked -------------------------------------------------------------------------------------------------


def test_axes_become_requirements() -> None:
    asked = request_of(
        env(
            "0.10.2",
            "12",
            nccl="2.28.9",
            jaxlib="0.10.2",
            packages=("equinox==0.11.7", "optax>=0.2"),
            more=(("nvidia-cudnn-cu12", "9.12.0.46"),),
        )
    )
    assert asked.requirements == (
        "jax[cuda12]==0.10.2",
        "jaxlib==0.10.2",
        "nvidia-cudnn-cu12==9.12.0.46",
        "equinox==0.11.7",
        "optax>=0.2",
    )
    assert asked.overrides == ("nvidia-nccl-cu12==2.28.9",)
    assert set(asked.exempt) == {
        "jax",
        "jaxlib",
        "jax-cuda12-plugin",
        "jax-cuda12-pjrt",
        "nvidia-cudnn-cu12",
        "nvidia-nccl-cu12",
        "equinox",
    }
    assert asked.prerelease == ()


def test_cpu_local_cuda_and_development_versions() -> None:
    assert request_of(env("0.6.2")).requirements == ("jax==0.6.2",)
    assert request_of(env("0.10.2", "12-local")).requirements == ("jax[cuda12-local]==0.10.2", "nvidia-cuda-nvcc-cu12")
    assert request_of(env("0.10.2", "13-local")).requirements == ("jax[cuda13-local]==0.10.2",)
    assert request_of(env("0.10.2", "13", nccl="2.28.9")).overrides == ("nvidia-nccl-cu13==2.28.9",)
    assert request_of(env("0.11.0.dev20260701", "12-local")).prerelease == (
        "jax",
        "jaxlib",
        "jax-cuda12-plugin",
        "jax-cuda12-pjrt",
    )


@pytest.mark.parametrize("text", ["this is bad", "x @ https://files.example/x-1.0-py3-none-any.whl", "-r other.txt"])
def test_requirements_that_cannot_be_locked(text: str) -> None:
    with pytest.raises(UserError) as error:
        request_of(env("0.6.2", packages=(text,)))
    assert error.value.exit_code == 2


def test_no_network_is_asked_where_the_axes_contradict_themselves() -> None:
    found = resolve(env("0.6.2", nccl="2.28.9"), MATRIX, None, Silent())
    assert found == Impossible(env("0.6.2", nccl="2.28.9"), "NCCL 2.28.9 is asked for, and CPU wheels have no NCCL")
    with pytest.raises(UserError, match="development version"):
        resolve(env("0.11.0.dev20260701"), MATRIX, None, Silent())


def test_the_best_wheel_is_chosen() -> None:
    def file(tags: str) -> File:
        return File("", f"x-1.0-{tags}.whl", "", 0, "")

    names = (
        "py3-none-any",
        "cp311-cp311-manylinux2014_x86_64",
        "1-cp311-cp311-manylinux_2_28_x86_64",
        "2-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
        "cp311-cp311-manylinux_2_31_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp311-cp311-musllinux_1_2_x86_64",
        "cp311-cp311-manylinux_2_28_aarch64",
    )
    files = tuple(file(name) for name in names)
    best = best_wheel(Package("x", "1.0", files), "3.11")
    assert best == files[3]
    assert best_wheel(Package("x", "1.0", files[4:]), "3.11") is None
    free_threaded = Package("x", "1.0", (file("cp313-cp313t-manylinux_2_28_x86_64"),))
    assert best_wheel(free_threaded, "3.13") is None
    assert str(supported_tags("3.11", PLATFORM)[0]) == "cp311-cp311-manylinux_2_28_x86_64"


def test_recorded_answer_of_uv() -> None:
    """jax 0.6.2 on its release day, as uv 0.13.9 wrote it (hosts replaced)."""
    text = (Path(__file__).parent / "data" / "uv" / "jax0.6.2-cpu-py311.pylock.toml").read_text()
    packages = parse_pylock(text, {})
    assert {p.name: p.version for p in packages} == {
        "jax": "0.6.2",
        "jaxlib": "0.6.2",
        "ml-dtypes": "0.5.1",
        "numpy": "2.3.0",
        "opt-einsum": "3.4.0",
        "scipy": "1.15.3",
    }
    assert tomllib.loads(text)["created-by"] == "uv"
    jaxlib = best_wheel(packages[1], "3.11")
    assert jaxlib is not None
    assert (jaxlib.size, jaxlib.uploaded) == (89920354, "2025-06-17T23:11:03Z")
    assert jaxlib.filename == "jaxlib-0.6.2-cp311-cp311-manylinux2014_x86_64.whl"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_lock_reads_as_it_was_written(tmp_path: Path) -> None:
    lock = small()
    path = write_lock(lock, tmp_path / "locks")
    assert path.name == "jax0.6.2-cpu-py311.txt"
    assert read_lock(path, lock.environment) == lock
    assert path.read_text().splitlines()[-1] == (
        f"ml-dtypes==0.5.1 --hash=sha256:{'c' * 64}  # ml_dtypes-0.5.1-cp311-cp311-manylinux_2_17_x86_64.whl 0 -"
    )
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert "://" not in path.read_text()


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("sha256:" + "a" * 64, "sha256:" + "a" * 63, 11, "not a locked wheel"),
        ("sha256:" + "a" * 64, "sha256:" + "A" * 64, 11, "not a locked wheel"),
        ("jax==0.6.2 ", "jax>=0.6.2 ", 11, "not a locked wheel"),
        ("jax==0.6.2 ", "<<<<<<< HEAD\njax==0.6.2 ", 11, "not a locked wheel"),
        ("jaxlib==0.6.2 ", "jaxlib==0.6.1 ", 12, "is no wheel of jaxlib 0.6.1"),
        ("jaxlib-0.6.2-cp311-cp311", "jaxlib-0.6.2-cp312-cp312", 12, "does not fit this Python and platform"),
        ("manylinux2014_x86_64.whl", "macosx_11_0_arm64.whl", 12, "does not fit this Python and platform"),
        ("jaxlib-0.6.2-cp311-cp311-manylinux2014_x86_64.whl", "jaxlib.whl", 12, "Invalid wheel filename"),
        ("jaxlib==0.6.2 ", "jax==0.6.2 ", 12, "jax is locked twice"),
        (" 10 2025", " ten 2025", 11, "not a locked wheel"),
        ("# wheels: 3", "# wheels: 4", None, "states 'wheels: 4'"),
        ("# axis: python = 3.11", "# axis: python = 3.12", None, "states 'axis: python = 3.12'"),
        ("# as_of: release", "# as_of: latest", None, "lacks 'as_of: release'"),
        ("# cutoff: 2025-06-17T23:59:59Z", "# cutoff: -", None, "names no cutoff"),
        ("# platform: x86_64-manylinux_2_28\n", "", None, "names no platform"),
    ],
)
def test_a_damaged_lock_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, line: int | None, says: str
) -> None:
    lock = small()
    path = write_lock(lock, tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputErrors) as error:
        read_lock(path, lock.environment)
    told = [e for e in error.value.errors if says in e.message]
    assert told, str(error.value)
    assert told[0].where == (f"{path}:{line}" if line else str(path))
    assert "delete it: whatever needs it locks it again" in told[0].hint
    assert error.value.exit_code == 2


def test_a_truncated_lock_is_refused(tmp_path: Path) -> None:
    path = write_lock(small(), tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputErrors) as error:
        read_lock(path, small().environment)
    assert "wheels: 3" in str(error.value)


def test_a_lock_of_another_environment_is_refused(tmp_path: Path) -> None:
    path = write_lock(small(), tmp_path)
    with pytest.raises(InputErrors) as error:
        read_lock(path, env("0.6.2", packages=("equinox==0.11.7",)))
    assert "package: equinox==0.11.7" in str(error.value)
    with pytest.raises(InputErrors):
        read_lock(path, env("0.6.1"))


def test_wheels_must_be_those_that_the_axes_name(tmp_path: Path) -> None:
    """A consistent file whose wheels are not what its environment promises."""
    wrong = replace(small(), wheels=(wheel("jax", "0.6.1"), wheel("numpy", "2.3.0", digest="b")))
    path = write_lock(wrong, tmp_path)
    with pytest.raises(InputErrors) as error:
        read_lock(path, wrong.environment)
    assert [e.message for e in error.value.errors] == [
        "jax 0.6.2 is asked for and 0.6.1 is locked",
        "no jaxlib is locked",
    ]


def test_a_lock_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file where the folder should be")
    with pytest.raises(InfraError, match="cannot write"):
        write_lock(small(), tmp_path / "locks")


# --- many, on an index of this machine --------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """Two releases of a small jax, whose dependency moved on after the first."""
    with serve(tmp_path / "index") as made:
        monkeypatch.setenv("UV_DEFAULT_INDEX", made.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("UV_NO_CACHE", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        for version, day in (("1.0.0", "2025-01-10"), ("1.1.0", "2025-03-10")):
            # jaxlib comes a day after jax, as it did in real releases: the family is exempt from the cutoff.
            made.add("jax", version, {}, requires=[f"jaxlib=={version}", "numpy>=1"], uploaded=f"{day}T22:00:00Z")
            made.add("jaxlib", version, {}, uploaded=f"{day[:-1]}1T01:00:00Z")
        made.add("numpy", "1.0", {}, uploaded="2025-01-01T00:00:00Z")
        made.add("numpy", "1.1", {}, uploaded="2025-01-10T23:00:00Z")
        made.add("numpy", "2.0", {}, uploaded="2025-01-11T00:00:01Z")
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "checkout", tmp_path / "store")


def test_an_index_that_lists_nothing_proves_nothing(index: FakeIndex, project: Project) -> None:
    index.published = []
    index.empty = {"jax"}
    (found,) = lock_all([env("1.0.0")], MATRIX, project, Ear()).values()
    assert isinstance(found, InfraError)
    assert found.message == "the index answers and lists no version of jax at all"
    assert not (project.locks / "impossible.json").exists()


def test_lock_all_writes_what_it_can_and_asks_once(index: FakeIndex, project: Project) -> None:
    ear = Ear()
    wanted = [env("1.1.0"), env("9.9.9"), env("1.0.0"), env("1.0.0", packages=("nosuch>=1",))]
    found = lock_all(wanted, MATRIX, project, ear)
    assert list(found) == wanted
    old = found[env("1.0.0")]
    assert isinstance(old, Lock)
    assert versions(old) == {"jax": "1.0.0", "jaxlib": "1.0.0", "numpy": "1.1"}
    assert old.cutoff == "2025-01-10T23:59:59Z"
    assert old.wheels[1].uploaded == "2025-01-11T01:00:00Z"
    new = found[env("1.1.0")]
    assert isinstance(new, Lock)
    assert versions(new)["numpy"] == "2.0"
    assert found[env("9.9.9")] == Impossible(env("9.9.9"), "the index has no jax 9.9.9")
    trouble = found[wanted[3]]
    assert isinstance(trouble, InfraError)
    assert trouble.message == "the index has no package nosuch"
    names = sorted(path.name for path in project.locks.iterdir())
    assert names == ["impossible.json", "jax1.0.0-cpu-py311.txt", "jax1.1.0-cpu-py311.txt"]
    assert json.loads((project.locks / "impossible.json").read_text()) == {
        "jax9.9.9-cpu-py311": "the index has no jax 9.9.9"
    }
    asked = len(index.requests)
    again = lock_all(wanted[:3], MATRIX, project, ear)
    assert len(index.requests) == asked
    assert again == {key: found[key] for key in wanted[:3]}
    offline = lock_all([*wanted[:3], env("1.0.0", as_of="latest")], MATRIX, project, ear, offline=True)
    assert len(index.requests) == asked
    assert isinstance(offline[env("1.0.0", as_of="latest")], InfraError)
    assert {key: offline[key] for key in wanted[:3]} == again


def test_as_of(index: FakeIndex, tmp_path: Path) -> None:
    assert versions(locked(env("1.0.0", as_of="latest"), tmp_path))["numpy"] == "2.0"
    assert versions(locked(env("1.0.0", as_of="2025-01-09"), tmp_path))["numpy"] == "1.0"
    pinned = locked(env("1.0.0", as_of="2025-01-09", packages=("numpy==2.0",)), tmp_path)
    assert versions(pinned)["numpy"] == "2.0"
    assert locked(env("1.0.0", as_of="latest"), tmp_path).cutoff == ""
    assert refused(env("1.0.0", packages=("numpy>=2",)), tmp_path).startswith("no numpy >=2 was published by ")


def test_a_development_version_takes_the_family_alone_from_the_nightly_index(index: FakeIndex, tmp_path: Path) -> None:
    with serve(tmp_path / "nightly") as nightly:
        dev = "1.2.0.dev20250501"
        nightly.add("jax", dev, {}, requires=["jaxlib>=1.2.0.dev1", "numpy>=1"], uploaded="2025-05-02T00:00:00Z")
        nightly.add("jaxlib", dev, {}, uploaded="2025-05-02T00:00:00Z")
        index.add("numpy", "2.1.0.dev3", {}, uploaded="2025-03-01T00:00:00Z")
        matrix = replace(MATRIX, indexes=(("nightly", nightly.url),))
        lock = locked(env(dev), tmp_path, matrix=matrix)
        assert versions(lock) == {"jax": dev, "jaxlib": dev, "numpy": "2.0"}
        assert lock.cutoff == "2025-05-01T23:59:59Z"
        assert set(addresses(lock, matrix)) == {w.sha256 for w in lock.wheels}
        asked = len(nightly.requests)
        locked(env("1.1.0"), tmp_path, matrix=matrix)
        assert len(nightly.requests) == asked


def test_refresh_and_what_became_possible(index: FakeIndex, project: Project) -> None:
    ear = Ear()
    lock_all([env("1.0.0"), env("1.2.0")], MATRIX, project, ear)
    assert set(read_impossible(project.locks)) == {"jax1.2.0-cpu-py311"}
    index.add("jax", "1.2.0", {}, requires=["jaxlib==1.2.0"], uploaded="2025-05-10T00:00:00Z")
    index.add("jaxlib", "1.2.0", {}, uploaded="2025-05-10T00:00:00Z")
    kept = lock_all([env("1.2.0")], MATRIX, project, ear)
    assert isinstance(kept[env("1.2.0")], Impossible)
    made = lock_all([env("1.2.0")], MATRIX, project, ear, refresh=True)
    assert isinstance(made[env("1.2.0")], Lock)
    assert read_impossible(project.locks) == {}
    # A release that vanished keeps its lock: store and archives may hold the wheels.
    index.published = [item for item in index.published if (item.name, item.version) != ("jaxlib", "1.0.0")]
    still = lock_all([env("1.0.0")], MATRIX, project, ear, refresh=True)
    assert isinstance(still[env("1.0.0")], Lock)
    assert any("its lock is kept" in warning for warning in ear.warnings)


def test_damaged_locks_are_all_told_before_anything_is_asked(index: FakeIndex, project: Project) -> None:
    lock_all([env("1.0.0"), env("1.1.0")], MATRIX, project, Ear())
    for name in ("jax1.0.0-cpu-py311.txt", "jax1.1.0-cpu-py311.txt"):
        (project.locks / name).write_text("nonsense\n")
    asked = len(index.requests)
    with pytest.raises(InputErrors) as error:
        lock_all([env("1.0.0"), env("1.1.0"), env("9.9.9")], MATRIX, project, Ear())
    assert len(index.requests) == asked
    assert {e.where.rpartition("/")[2] for e in error.value.errors} >= {
        "jax1.0.0-cpu-py311.txt:1",
        "jax1.1.0-cpu-py311.txt:1",
    }
    (project.locks / "impossible.json").write_text("[]")
    with pytest.raises(UserError, match="expected an object"):
        lock_all([env("9.9.9")], MATRIX, project, Ear())


def test_check_tells_every_kind_of_drift(index: FakeIndex, project: Project) -> None:
    here = [env("1.0.0"), env("1.1.0")]
    lock_all([*here, env("9.9.9")], MATRIX, project, Ear())
    before = {path.name: path.read_bytes() for path in project.locks.iterdir()}
    assert check([*here, env("9.9.9")], MATRIX, project, Ear()) == []
    index.add("numpy", "2.1", {}, uploaded="2025-02-01T00:00:00Z")  # appears late, dated before the second cutoff
    index.published = [item for item in index.published if (item.name, item.version) != ("numpy", "1.1")]
    found = check([*here, env("1.1.0", as_of="latest")], MATRIX, project, Ear())
    assert found == [
        Drift(
            "jax1.0.0-cpu-py311",
            "vanished",
            "the index no longer serves numpy-1.1-py3-none-any.whl; it is not in the store",
        ),
        Drift("jax1.0.0-cpu-py311", "differs", "numpy 1.1 -> 1.0"),
        Drift("jax1.1.0-cpu-py311", "differs", "numpy 2.0 -> 2.1"),
        Drift("jax1.1.0-cpu-py311-latest", "missing", "run invoke lock --env jax1.1.0-cpu-py311-latest"),
        Drift("jax9.9.9-cpu-py311", "stale", "no environment of the matrix has this id"),
    ]
    assert [drift.serious for drift in found] == [True, True, True, True, False]
    assert {path.name: path.read_bytes() for path in project.locks.iterdir()} == before


def test_trouble_with_the_index_is_no_drift(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lock(small(), project.locks)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    with pytest.raises(InfraError, match="cannot be asked"):
        check([env("0.6.2")], MATRIX, project, Ear())
    found = lock_all([env("0.6.1")], MATRIX, project, Ear())
    assert isinstance(found[env("0.6.1")], InfraError)
    assert not (project.locks / "impossible.json").exists()


def test_installers_take_the_file_as_it_is_and_check_the_hashes(index: FakeIndex, tmp_path: Path) -> None:
    lock = locked(env("1.0.0"), tmp_path)
    path = write_lock(lock, tmp_path)

    def install() -> subprocess.CompletedProcess[str]:
        command = [uv.find_uv_bin(), "pip", "install", "--require-hashes", "-r", str(path), "--python-version", "3.11"]
        command += ["--target", str(tmp_path / "target")]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = install()
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "target").glob("*.dist-info")) == [
        "jax-1.0.0.dist-info",
        "jaxlib-1.0.0.dist-info",
        "numpy-1.1.dist-info",
    ]
    path.write_text(path.read_text().replace(lock.wheels[2].sha256, "0" * 64))
    shutil.rmtree(tmp_path / "target")
    done = install()
    assert done.returncode != 0
    assert "Hash mismatch for `numpy==1.1`" in done.stderr


# --- the real index ---------------------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize(
    ("jax", "expected", "cutoff"),
    [
        (
            "0.4.30",
            {"jaxlib": "0.4.30", "ml-dtypes": "0.4.0", "numpy": "2.0.0", "opt-einsum": "3.3.0", "scipy": "1.13.1"},
            "2024-06-18T23:59:59Z",
        ),
        (
            "0.6.2",
            {"jaxlib": "0.6.2", "ml-dtypes": "0.5.1", "numpy": "2.3.0", "opt-einsum": "3.4.0", "scipy": "1.15.3"},
            "2025-06-17T23:59:59Z",
        ),
        (
            "0.10.2",
            {"jaxlib": "0.10.2", "ml-dtypes": "0.5.4", "numpy": "2.4.6", "opt-einsum": "3.4.0", "scipy": "1.17.1"},
            "2026-06-17T23:59:59Z",
        ),
        (  # plain `jax` of that time does not require jaxlib
            "0.4.20",
            {"jaxlib": "0.4.20", "ml-dtypes": "0.3.1", "numpy": "1.26.1", "opt-einsum": "3.3.0", "scipy": "1.11.3"},
            "2023-11-02T23:59:59Z",
        ),
    ],
)
def test_real_cpu_environments(jax: str, expected: dict[str, str], cutoff: str, tmp_path: Path) -> None:
    lock = locked(env(jax), tmp_path)
    assert versions(lock) == {"jax": jax, **expected}
    assert lock.cutoff == cutoff
    exempt = ("jax", "jaxlib")
    assert all(w.uploaded <= cutoff for w in lock.wheels if w.name not in exempt)
    assert render_lock(locked(env(jax), tmp_path)) == render_lock(lock)
    assert set(addresses(lock)) == {w.sha256 for w in lock.wheels}
    path = write_lock(lock, tmp_path)
    assert read_lock(path, lock.environment) == lock
    assert "://" not in path.read_text()


@pytest.mark.network
def test_real_cuda_environments(tmp_path: Path) -> None:
    plain = locked(env("0.10.2", "12"), tmp_path)
    assert len(plain.wheels) == 21
    assert plain.version("nvidia-nccl-cu12") == "2.30.7"
    assert plain.version("nvidia-cudnn-cu12") == "9.23.2.1"
    other = locked(env("0.10.2", "12", nccl="2.28.9"), tmp_path)
    assert versions(other) == versions(plain) | {"nvidia-nccl-cu12": "2.28.9"}
    young = locked(env("0.10.2", "12", nccl="2.32.3"), tmp_path)  # younger than jax 0.10.2: asked for, so exempt
    assert young.version("nvidia-nccl-cu12") == "2.32.3"
    local = locked(env("0.10.2", "12-local"), tmp_path)
    assert set(versions(local)) == {
        "jax",
        "jax-cuda12-pjrt",
        "jax-cuda12-plugin",
        "jaxlib",
        "ml-dtypes",
        "numpy",
        "opt-einsum",
        "scipy",
        "nvidia-cuda-nvcc-cu12",
    }
    thirteen = locked(env("0.10.2", "13", "3.12", "2.28.9"), tmp_path)
    assert thirteen.version("nvidia-nccl-cu13") == "2.28.9"
    assert thirteen.version("nvidia-cublas") == "13.5.1.27"
    assert read_lock(write_lock(thirteen, tmp_path), thirteen.environment) == thirteen


@pytest.mark.network
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (env("0.11.2"), "jax 0.11.2 needs Python >=3.12, and this environment has Python 3.11"),
        (env("0.4.30", "13"), "jax 0.4.30 has no extra cuda13"),
        (
            env("0.4.30", jaxlib="0.4.38"),
            "jax 0.4.30 needs jaxlib >=0.4.27,<=0.4.30, and jaxlib 0.4.38 is asked for",
        ),
        (env("9.9.9"), "the index has no jax 9.9.9"),
        (
            env("0.4.30", python="3.13"),
            "jaxlib >=0.4.27,<=0.4.30 has no wheel for Python 3.13 (only for cp39, cp310, cp311, cp312)",
        ),
        (env("0.4.15"), "jax 0.4.15 has no wheel for Python 3.11 on this platform, and nothing is built from source"),
        (
            env("0.10.2", "12-local", nccl="2.28.9"),
            "nvidia-nccl-cu12 2.28.9 is asked for and not locked: "
            "jax[cuda12-local]==0.10.2, nvidia-cuda-nvcc-cu12 does not install it",
        ),
    ],
    ids=lambda value: value.id if isinstance(value, Environment) else "",
)
def test_real_impossible_environments(environment: Environment, reason: str, tmp_path: Path) -> None:
    assert refused(environment, tmp_path) == reason


@pytest.mark.network
def test_a_withdrawn_release_is_locked_with_a_warning(tmp_path: Path) -> None:
    ear = Ear()
    lock = locked(env("0.4.32"), tmp_path, ear)
    assert lock.version("jaxlib") == "0.4.32"
    assert any("jaxlib 0.4.32 was withdrawn" in warning for warning in ear.warnings)
    assert set(addresses(lock)) == {w.sha256 for w in lock.wheels}
