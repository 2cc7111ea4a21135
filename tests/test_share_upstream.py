"""Which wheels an index has lost: removed, replaced, withdrawn; and never taken for lost because it does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.carry.format import Blob, File, Manifest
from repromatrix.envs.model import Wheel
from repromatrix.envs.upstream import Loss, losses
from repromatrix.errors import InfraError, InputErrors
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.share.archives.upstream import archived, locked, rows, text
from tests.conftest import Checkout
from tests.fake_index import FakeIndex, Published


@pytest.fixture
def ask(index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Loss, ...]]:
    """Ask the loopback's index, through uv's own cache."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return lambda wheels: losses(wheels, None, Silent(), threading.Event())


def wheel_of(item: Published) -> Wheel:
    size = item.path.stat().st_size
    return Wheel(item.name, item.version, item.path.name, item.sha256, size, item.uploaded)


def wheels_of(index: FakeIndex) -> list[Wheel]:
    return [wheel_of(item) for item in index.published]


def test_nothing_is_lost_and_no_wheel_is_fetched(ask: Callable[..., tuple[Loss, ...]], index: FakeIndex) -> None:
    assert ask([*wheels_of(index), *wheels_of(index)]) == ()
    assert ask([]) == ()
    fetched = {path for path in index.requests if path.startswith("/files/") and not path.endswith(".metadata")}
    # The loopback offers no metadata files: uv reads the ends of the wheels instead, and keeps none.
    assert {path.rpartition("/")[2] for path in fetched} <= {wheel.filename for wheel in wheels_of(index)}


def test_every_way_to_be_lost(ask: Callable[..., tuple[Loss, ...]], index: FakeIndex) -> None:
    before = {(wheel.name, wheel.version): wheel for wheel in wheels_of(index)}
    index.published = [item for item in index.published if (item.name, item.version) != ("jaxlib", "1.0.0")]
    index.published = [item for item in index.published if (item.name, item.version) != ("jax", "1.1.0")]
    index.add("jax", "1.1.0", {"jax/__init__.py": "other = True"})
    index.yanked = {"jax-1.2.0-py3-none-any.whl": "miscompiles x64", "jaxlib-1.2.0-py3-none-any.whl": True}
    new = next(item.sha256 for item in index.published if (item.name, item.version) == ("jax", "1.1.0"))
    found = ask(before.values())
    assert [(loss.wheel, loss.kind, loss.reason) for loss in found] == [
        (before["jax", "1.1.0"], "replaced", new),
        (before["jax", "1.2.0"], "yanked", "miscompiles x64"),
        (before["jaxlib", "1.0.0"], "vanished", ""),
        (before["jaxlib", "1.2.0"], "yanked", ""),
    ]
    told = text(found, len(before), "the archive")
    assert "the index no longer serves jaxlib-1.0.0-py3-none-any.whl" in told
    assert "its authors have withdrawn jax-1.2.0-py3-none-any.whl: miscompiles x64" in told
    assert f"the index serves another file as jax-1.1.0-py3-none-any.whl (sha256 {new})" in told
    assert "the archive still holds them" in told
    assert rows(found)[0]["sha256"] == before["jax", "1.1.0"].sha256


def test_a_project_that_is_gone_is_vanished(ask: Callable[..., tuple[Loss, ...]], index: FakeIndex) -> None:
    before = wheels_of(index)
    index.published = [item for item in index.published if item.name != "jaxlib"]
    assert {(loss.wheel.name, loss.kind) for loss in ask(before)} == {("jaxlib", "vanished")}
    index.empty = {"jaxlib"}
    assert {(loss.wheel.name, loss.kind) for loss in ask(before)} == {("jaxlib", "vanished")}


def test_a_page_that_was_just_read_is_asked_for_again(ask: Callable[..., tuple[Loss, ...]], index: FakeIndex) -> None:
    before = wheels_of(index)
    assert ask(before) == ()
    gone = index.published.pop()
    assert [loss.wheel.sha256 for loss in ask(before)] == [gone.sha256]


def test_an_index_that_does_not_answer_has_lost_nothing(
    ask: Callable[..., tuple[Loss, ...]], index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wheels_of(index)
    assert ask(before) == ()  # what uv keeps of this must not pass for an answer
    index.refuses = 500
    with pytest.raises(InfraError, match="server error"):
        ask(before)
    index.refuses = 403
    with pytest.raises(InfraError, match="refuses access"):
        ask(before)
    index.refuses = 0
    published, index.published = index.published, []
    with pytest.raises(InfraError, match="none of the 6 wheels"):
        ask(before)
    index.published = published
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    with pytest.raises(InfraError, match="cannot be asked"):
        ask(before)


def test_wheels_of_several_pythons_and_platforms_are_asked_for_together(
    ask: Callable[..., tuple[Loss, ...]], index: FakeIndex
) -> None:
    made = []
    for tags in (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp313-cp313-manylinux2014_x86_64",
        "cp39-abi3-manylinux2014_aarch64",
    ):
        item = index.add("native", "1.0", {"native.py": tags})
        path = item.path.rename(item.path.with_name(f"native-1.0-{tags}.whl"))
        index.published[-1] = replace(item, path=path)
        made.append(wheel_of(index.published[-1]))
    assert ask([*made, *wheels_of(index)]) == ()
    lost = index.published.pop(-2)
    assert [loss.wheel.sha256 for loss in ask(made)] == [lost.sha256]
    windows = replace(made[0], filename="native-1.0-cp311-cp311-win_amd64.whl", sha256="0" * 64)
    with pytest.raises(InfraError, match="cannot be asked for native"):
        ask([*made, windows])


def test_the_wheels_of_an_archive() -> None:
    sha = "a" * 64
    files = (
        File("project/matrix.toml", "b" * 64, 1),
        File(f"store/wheels/{sha}/ml_dtypes-0.5.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", sha, 7),
        File("tool/3.11/invoke-2.2.0-py3-none-any.whl", "c" * 64, 1),
    )
    blobs = tuple(Blob(file.sha256, file.size) for file in files)
    manifest = Manifest("1", "2026-01-01T00:00:00Z", (), files, (), blobs, ())
    assert archived(manifest) == (Wheel("ml-dtypes", "0.5.0", files[1].path.rpartition("/")[2], sha, 7, ""),)


def test_lock_check_tells_of_lost_wheels(checkout: Checkout, index: FakeIndex) -> None:
    checkout.repro("fine", "print(1)")
    assert checkout.invoke("fetch", "--env", "*").code == 0
    assert checkout.invoke("lock", "--env", "*", "--check").code == 0
    index.yanked = {"jax-1.1.0-py3-none-any.whl": "miscompiles x64"}
    index.published = [item for item in index.published if (item.name, item.version) != ("jaxlib", "1.2.0")]
    said = checkout.invoke("lock", "--env", "*", "--check", "--json", "-")
    assert said.code == 1, said.err
    drift = {(row["environment"].partition("-")[0], row["kind"]): row for row in json.loads(said.out)["drift"]}
    assert set(drift) == {("jax1.1.0", "yanked"), ("jax1.2.0", "vanished"), ("jax1.2.0", "differs")}
    assert "jaxlib-1.2.0-py3-none-any.whl; it is in the store" in drift["jax1.2.0", "vanished"]["detail"]
    assert "miscompiles x64" in drift["jax1.1.0", "yanked"]["detail"]
    assert "invoke archive" in said.err
    index.refuses = 503
    assert checkout.invoke("lock", "--env", "*", "--check", UV_HTTP_RETRIES="0").code == 3
    found = locked(Project(checkout.root, checkout.root))
    assert {wheel.name for wheel in found} == {"jax", "jaxlib"}
    assert len(found) == 6


def test_locks_that_cannot_be_read_are_told(checkout: Checkout, index: FakeIndex) -> None:
    checkout.repro("fine", "print(1)")
    assert checkout.invoke("lock", "--env", "*").code == 0
    project = Project(checkout.root, checkout.root)
    first, second, third = sorted(project.locks.glob("*.txt"))
    first.write_text("\n".join(first.read_text().splitlines()[:-1]) + "\n")
    second.write_bytes(b"\xff")
    third.write_text("# nothing\n")
    with pytest.raises(InputErrors) as caught:
        locked(project)
    assert [error.message.split(":")[0] for error in caught.value.errors] == [
        "the header does not tell of the 1 wheels below it",
        "the lock cannot be read",
        "the header names no Python",
    ]


@pytest.mark.network
def test_a_release_that_was_really_withdrawn() -> None:
    """jax 0.4.32 was yanked by its authors; 0.4.31 was not."""
    wheels = [
        Wheel(
            "jax",
            "0.4.32",
            "jax-0.4.32-py3-none-any.whl",
            "3aef0e95db727f07aabdd589159a97a6714ded1ea4a93c53e5fcb79f6b560f80",
            2097874,
            "",
        ),
        Wheel(
            "jaxlib",
            "0.4.32",
            "jaxlib-0.4.32-cp311-cp311-manylinux2014_x86_64.whl",
            "3118b335a48648887973303e9de23890b2c0c94c8367a50efe772f5bd1039dce",
            85071665,
            "",
        ),
        Wheel(
            "numpy",
            "2.0.0",
            "numpy-2.0.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "a7039a136017eaa92c1848152827e1424701532ca8e8967fe480fe1569dae581",
            19292279,
            "",
        ),
        Wheel("jax", "0.4.31", "jax-0.4.31-py3-none-any.whl", "0" * 64, 1, ""),
    ]
    found = {
        (loss.wheel.name, loss.wheel.version): loss.kind for loss in losses(wheels, None, Silent(), threading.Event())
    }
    assert found == {("jax", "0.4.31"): "replaced", ("jax", "0.4.32"): "yanked", ("jaxlib", "0.4.32"): "yanked"}
