"""Which versions the index has: asked through uv, of a fake index and of the real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from repromatrix.envs.index import PLATFORM, NoSuchPackage, Unsatisfiable, compile_requirements
from repromatrix.envs.releases import _told, built_on, fitting, releases
from repromatrix.errors import InfraError
from repromatrix.spec.model import Matrix
from tests.conftest import plain_environment
from tests.fake_index import FakeIndex, serve

MATRIX = Matrix(Path("matrix.toml"), (("jax", ("0.6.2",)),), "release")

REAL = [
    *("0.5.3", "0.6.0", "0.6.1", "0.6.2", "0.7.0", "0.7.1", "0.7.2", "0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.9.0"),
    *("0.9.0.1", "0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2"),
]
"""The releases of jax from 0.5.3 to 0.10.2."""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An index with eight versions of `toy`, and this process set to ask it alone."""
    with serve(tmp_path / "index") as index:
        days = {"0.9": "2025-01-01", "0.10": "2025-02-01", "0.10.1": "2025-03-01", "0.11.0rc1": "2025-03-10"}
        days |= {"0.11.0": "2025-04-01", "0.11.0.post1": "2025-04-02", "0.9.1": "2025-05-01", "1.0.dev3": "2025-06-01"}
        for version, day in days.items():
            index.add("toy", version, {"toy.py": ""}, uploaded=f"{day}T12:00:00Z")
        use(monkeypatch, tmp_path, UV_DEFAULT_INDEX=index.url)
        yield index


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **variables: str) -> None:
    wanted = plain_environment({"UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_RETRIES": "0", **variables})
    for name in os.environ.keys() - wanted.keys():
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


ALL = ("0.9", "0.9.1", "0.10", "0.10.1", "0.11.0rc1", "0.11.0", "0.11.0.post1", "1.0.dev3")


def test_every_version_is_told_oldest_first(toys: FakeIndex, tmp_path: Path) -> None:
    toys.yanked["toy-0.10.1-py3-none-any.whl"] = "broken"
    toys.pythons["toy-0.11.0-py3-none-any.whl"] = ">=4"  # for no Python there is
    assert releases("toy", MATRIX, tmp_path) == ALL
    assert not any(path.startswith("/files/") for path in toys.requests)  # no wheel is opened for it


def test_the_users_settings_of_logs_change_nothing(
    toys: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RUST_LOG": "error",
        "UV_LOG_CONTEXT": "1",
        "UV_NO_BINARY": "0",
        "UV_PRERELEASE": "disallow",
    }.items():
        monkeypatch.setenv(name, value)
    assert releases("toy", MATRIX, tmp_path) == ALL


def test_as_of_a_day(toys: FakeIndex, tmp_path: Path) -> None:
    assert releases("toy", MATRIX, tmp_path, day="2025-03-01") == ("0.9", "0.10", "0.10.1")
    assert releases("toy", MATRIX, tmp_path, day="2024-12-31") == ()
    assert releases("toy", MATRIX, tmp_path, day="2025-03-01", offline=True) == ("0.9", "0.10", "0.10.1")


def test_an_index_without_upload_times_cannot_answer_for_a_day(toys: FakeIndex, tmp_path: Path) -> None:
    toys.add("timeless", "1.0", {"timeless.py": ""}, uploaded="")
    assert releases("timeless", MATRIX, tmp_path) == ("1.0",)
    with pytest.raises(InfraError, match="does not tell when files were uploaded"):
        releases("timeless", MATRIX, tmp_path, day="2025-03-01")


def test_the_answer_is_kept_for_offline(toys: FakeIndex, tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="which versions of toy there were is not known") as error:
        releases("toy", MATRIX, tmp_path / "store", offline=True)
    assert "without --offline" in error.value.hint
    online = releases("toy", MATRIX, tmp_path / "store")
    toys.refuses = 500
    asked = len(toys.requests)
    assert releases("toy", MATRIX, tmp_path / "store", offline=True) == online
    assert len(toys.requests) == asked


def test_two_indexes_are_both_listed(toys: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(tmp_path / "second") as second:
        second.add("toy", "0.10.5", {"toy.py": ""})
        second.add("toy", "0.9", {"toy.py": ""})
        use(monkeypatch, tmp_path, PIP_INDEX_URL=toys.url, PIP_EXTRA_INDEX_URL=second.url)
        assert releases("toy", MATRIX, tmp_path) == (*ALL[:4], "0.10.5", *ALL[4:])


def test_trouble_is_no_empty_list(toys: FakeIndex, tmp_path: Path) -> None:
    with pytest.raises(NoSuchPackage, match="no package other"):
        releases("other", MATRIX, tmp_path)
    toys.empty.add("login")
    with pytest.raises(InfraError, match="lists no version of login at all"):
        releases("login", MATRIX, tmp_path)
    toys.refuses = 403
    with pytest.raises(InfraError, match="refuses access"):
        releases("third", MATRIX, tmp_path)
    toys.refuses = 500
    with pytest.raises(InfraError, match="server error"):
        releases("fourth", MATRIX, tmp_path)
    toys.refuses = 0
    toys.add("odd", "1.0", {"odd.py": ""}, uploaded="yesterday")
    with pytest.raises(InfraError, match="uv failed with status") as error:
        releases("odd", MATRIX, tmp_path)
    assert "unexpected JSON" in error.value.hint
    assert "TRACE" not in error.value.hint
    assert list(tmp_path.rglob("*.versions")) == []


def test_a_log_in_other_words_is_no_shorter_list() -> None:
    told = "TRACE Selecting candidate for toy with range * with 2 remote versions\n"
    told += "TRACE Found candidate for package toy with range * after 1 steps: 0.9 version\n"
    assert _told("toy", told, all_of_them=False) == ("0.9",)
    with pytest.raises(InfraError, match="in the words that are known"):
        _told("toy", told, all_of_them=True)
    with pytest.raises(InfraError, match="in the words that are known"):
        _told("toy", "No solution found when resolving dependencies", all_of_them=False)


def test_nightly_builds_are_those_of_their_index(toys: FakeIndex, tmp_path: Path) -> None:
    with serve(tmp_path / "nightly") as nightly:
        for version in ("0.12.0.dev20250603", "0.12.0.dev20250601", "0.11.0", "0.12.0.dev7"):
            nightly.add("toy", version, {"toy.py": ""})
        matrix = Matrix(Path("matrix.toml"), MATRIX.axes, "release", indexes=(("nightly", nightly.url),))
        builds = releases("toy", matrix, tmp_path, nightly=True)
        assert builds == ("0.12.0.dev20250601", "0.12.0.dev20250603")
        assert releases("toy", matrix, tmp_path) == ALL
        assert releases("toy", matrix, tmp_path, nightly=True, offline=True) == builds
        assert fitting("toy", "3.11", matrix, nightly=True) == Version("0.12.0.dev20250603")
        assert fitting("toy", "3.11", matrix) == Version("0.11.0.post1")


def test_the_day_of_a_build() -> None:
    assert built_on("0.12.0.dev20250601") == "2025-06-01"
    assert [built_on(each) for each in ("0.12.0", "0.12.0.dev6", "0.12.0rc20250601")] == ["", "", ""]


def test_what_fits_a_python(toys: FakeIndex, tmp_path: Path) -> None:
    toys.pythons |= {f"toy-{version}-py3-none-any.whl": ">=3.12" for version in ("0.11.0", "0.11.0.post1")}
    toys.yanked["toy-0.10.1-py3-none-any.whl"] = True
    assert fitting("toy", "3.11", MATRIX) == Version("0.10")
    assert fitting("toy", "3.12", MATRIX) == Version("0.11.0.post1")
    assert fitting("toy", "3.11", MATRIX, oldest=True) == Version("0.9")
    assert fitting("toy==0.10.1", "3.11", MATRIX) == Version("0.10.1")
    assert fitting("toy==0.11.0", "3.11", MATRIX) is None


# --- the real index ---------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_the_real_releases_of_jax(tmp_path: Path) -> None:
    found = releases("jax", MATRIX, tmp_path)
    assert [each for each in found if Version("0.5.3") <= Version(each) <= Version("0.10.2")] == REAL
    assert {"0.4.30", "0.4.32"} <= {*found}  # 0.4.32 was withdrawn
    assert releases("jax", MATRIX, tmp_path, day="2025-03-01")[-1] == "0.5.1"
    assert fitting("jax", "3.11", MATRIX) == Version("0.10.2")  # 0.11 needs 3.12


@pytest.mark.network
def test_the_list_is_what_uv_finds_one_by_one(tmp_path: Path) -> None:
    """Walking down from release to release takes a question each, and finds the same ones but for the withdrawn."""
    walked, bound = [], "<=2.28.9"
    while True:
        try:
            asked = [f"nvidia-nccl-cu12{bound},>=2.23"]
            resolved = compile_requirements(asked, python="3.11", platform=PLATFORM, options=["--no-deps"])
        except Unsatisfiable:
            break
        walked.append(resolved.packages[0].version)
        bound = f"<{walked[-1]}"
    assert len(walked) > 10
    low, high = Version("2.23"), Version("2.28.9")
    found = releases("nvidia-nccl-cu12", MATRIX, tmp_path)
    assert [each for each in found if low <= Version(each) <= high] == walked[::-1]
