"""A range of releases archived today and bisected later: in another checkout, with an empty store and no index."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.carry.verify import verify
from tests.conftest import Checkout, Said, new_checkout
from tests.fake_index import FakeIndex, publish_jax, serve

DAYS = {f"1.{minor}.{patch}": f"2025-{3 * minor + patch + 1:02d}-10" for minor in range(4) for patch in range(3)}
BREAKS = "import sys, jax\nif jax.__version__ >= '1.2.1': raise KeyError('broken')"
PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}"
BISECT = ("bisect", "breaks", "--json", "out.json", "--offline")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FakeIndex]:
    with serve(tmp_path / "index") as running:
        publish_jax(running, DAYS)
        yield running


def archived(checkout: Checkout, place: Path, *args: str) -> Said:
    return checkout.invoke("archive", str(place), "--tool-python", "none", "--wheels-only", *args)


def elsewhere(checkout: Checkout, place: Path, into: Path) -> Checkout:
    """The archive restored on a machine that has nothing and reaches nobody."""
    into.mkdir()
    nobody = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple/", "UV_CACHE_DIR": str(into / "uv")}
    there = replace(checkout, environ={**checkout.environ, **nobody, "REPROMATRIX_STORE": str(into / "store")})
    said = there.invoke("restore", str(place), "--into", str(into / "checkout"))
    assert said.code == 0, said.err
    return replace(there, root=into / "checkout")


def test_the_range_is_archived_and_bisected_with_no_index(tmp_path: Path, index: FakeIndex) -> None:
    checkout = new_checkout(tmp_path, index)
    checkout.repro("breaks", BREAKS, hlo='"off"', jax='["1.0.0", "1.1.0", "1.2.0"]')  # narrows `invoke matrix` alone
    place = tmp_path / "archive"
    said = archived(checkout, place, "--repro", "breaks", "--newest", "1.3.1")
    assert said.code == 0, said.err
    wanted = [version for version in DAYS if version <= "1.3.1"]
    assert [each.id for each in verify(place).environments] == [f"jax{version}-cpu-{PYTHON}" for version in wanted]
    assert len({sha256 for each in verify(place).environments for sha256 in each.wheels}) == 2 * len(wanted)

    there = elsewhere(checkout, place, tmp_path / "elsewhere")
    assert sorted(path.stem for path in (there.root / "containers" / "locks").glob("jax*.txt")) == [
        f"jax{version}-cpu-{PYTHON}" for version in wanted
    ]
    said = there.invoke(*BISECT, "--good", "1.0.0", "--bad", "1.3.1")
    assert said.code == 0, said.err
    found = json.loads((there.root / "out.json").read_text())["bisection"]
    assert [(edge["older"], edge["newer"], edge["begins"]) for edge in found["edges"]] == [("1.2.0", "1.2.1", True)]
    assert "begins in jax 1.2.1 (2025-08-10); last good 1.2.0 (2025-07-10)" in said.out
    assert "1.3.2" not in said.out + said.err


def test_a_day_means_the_newest_release_that_is_locked(tmp_path: Path, index: FakeIndex) -> None:
    checkout = new_checkout(tmp_path, index)
    checkout.repro("breaks", BREAKS, hlo='"off"')
    place = tmp_path / "archive"
    assert archived(checkout, place, "--repro", "breaks", "--oldest", "1.1.2", "--newest", "1.2.2").code == 0
    there = elsewhere(checkout, place, tmp_path / "elsewhere")
    said = there.invoke(*BISECT, "--good", "2025-07-01", "--bad", "2025-12-01", "--sweep", "0")
    assert said.code == 0, said.err
    assert "2025-07-01 is jax 1.1.2" in said.err
    assert "2025-12-01 is jax 1.2.2" in said.err
    assert "begins in jax 1.2.1" in said.out
    said = there.invoke(*BISECT, "--good", "2025-01-01", "--bad", "1.2.2")
    assert said.code == 3
    assert "which versions of jax there were by 2025-01-01 is not known" in said.err


def test_offline_nothing_is_known_where_nothing_is_locked(tmp_path: Path, index: FakeIndex) -> None:
    checkout = new_checkout(tmp_path, index)
    checkout.repro("breaks", BREAKS)
    said = checkout.invoke(*BISECT, "--good", "1.0.0", "--bad", "1.3.1")
    assert said.code == 3
    assert "which versions of jax there were is not known" in said.err


def test_a_range_that_cannot_be(tmp_path: Path, index: FakeIndex) -> None:
    checkout = new_checkout(tmp_path, index)
    checkout.repro("breaks", BREAKS)
    place = tmp_path / "archive"
    for args, words in (
        (("--axis", "jaxlib"), "--axis is that of a range"),
        (("--oldest", "7.0"), "the index has no jax 7.0"),
        (("--oldest", "1.0.0", "--axis", "jaxlib"), "both ends of the range must be said"),
        (("--oldest", "1.0.0", "--newest", "1.1.0", "--axis", "python"), "python has no history"),
    ):
        said = archived(checkout, place, "--repro", "breaks", *args)
        assert said.code == 2, said.err
        assert words in said.err
    assert not place.exists()
