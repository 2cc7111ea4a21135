"""The history along an axis: its versions and their cells, on a fake index; and the cell whose axis that is."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Number

from repromatrix.axes.history import between, days
from repromatrix.axes.model import Series, Version
from repromatrix.axes.reference import reference
from repromatrix.axes.versions import cell_of, coarse, place, series
from repromatrix.engines.base import Engine
from repromatrix.engines.choose import choose_engine
from repromatrix.envs.lock import lock_all
from repromatrix.envs.model import Lock
from repromatrix.envs.resolve import resolve
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Silent
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.spec.model import Cell, Matrix
from tests.fake_index import FakeIndex, publish_jax, serve
from tests.test_releases import use

ROOT = Path(__file__).resolve().parent.parent
MINOR = sys.version_info.minor
HERE = f"3.{MINOR}"
NEXT = f"3.{MINOR + 1}"

RELEASES = {"1.0.0": "2025-01-10", "1.0.1": "2025-01-20", "1.1.0": "2025-02-10", "1.2.0": "2025-03-10"}
RELEASES |= {"1.10.0": "2025-04-10", "1.10.1": "2025-05-10"}

MATRIX = f"""\
[matrix]
jax    = ["1.0.0", "1.1.0", "1.10.1"]
cuda   = ["none", "12"]
python = ["{HERE}"]

[[exclude]]
jax    = "1.1.0"
reason = "not by default"

[[override]]
select   = "jax1.0.*"
packages = ["toy==0.1", "other"]
timeout  = "7s"

[bases."{HERE}"]
debian = "bookworm"

[run]
engine = "venv"
"""

REPROS = {
    "plain": """\
# title = "Plain"
# targets = ["cpu"]
# jax = ">=1.1"
# [[expect]]
# when = "jax < 1.1"
# outcome = "crash"
# [[expect]]
# when = "jax >= 1.1"
# outcome = "ok"
""",
    "pinned": """\
# title = "With a package of its own"
# targets = ["cpu"]
# packages = ["toy==0.2", "another<2"]
""",
    "chosen": """\
# title = "With choices"
# targets = ["gpu:64", "cpu", "cpu:4"]
# params = { size = [1, 2], fast = [true, false] }
# [[expect]]
# when = 'size == 2 and target == "cpu"'
# outcome = "crash"
# [[expect]]
# outcome = "ok"
""",
    "gpus": """\
# title = "On GPUs"
# targets = ["gpu:64"]
""",
}


@dataclass(slots=True)
class Noted(Silent):
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.notes.append(message)


@dataclass(slots=True)
class Place:
    """A checkout whose index is the loopback's.

    Attributes:
        builds: The index called nightly, where there is one.
        told: What was noted, anew for each question.
    """

    project: Project
    index: FakeIndex
    builds: FakeIndex | None = None
    told: Noted = field(default_factory=Noted)

    @property
    def matrix(self) -> Matrix:
        return load(self.project)[0]

    @property
    def engine(self) -> Engine:
        return choose_engine("venv", self.project, self.matrix, Silent())

    def reference(self, repro: str = "plain", axis: str = "jax", ends: tuple[str, ...] = (), **asked: object) -> Cell:
        self.told = Noted()
        request = Request(repro, **asked)  # type: ignore[arg-type]
        return reference(*load(self.project), request, "venv", self.told, axis, ends)

    def series(
        self,
        low: str,
        high: str,
        axis: str = "jax",
        cell: Cell | None = None,
        *,
        offline: bool = False,
        nightly: bool = False,
    ) -> Series:
        cell = cell or self.reference()
        self.told = Noted()
        fixed = (self.project, self.matrix, cell, axis, low, high, self.engine, self.told, threading.Event())
        return series(*fixed, offline=offline, nightly=nightly)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    root = tmp_path / "checkout"
    (root / "repros").mkdir(parents=True)
    (root / "matrix.toml").write_text(MATRIX)
    for name, block in REPROS.items():
        (root / "repros" / f"{name}.py").write_text(f"# /// repro\n{block}# ///\nprint('ran')\n")
    with serve(tmp_path / "index") as index:
        publish_jax(index, RELEASES)
        for version in ("0.1", "0.2", "0.3", "0.10"):
            index.add("toy", version, {"toy.py": ""})
        use(monkeypatch, tmp_path, UV_DEFAULT_INDEX=index.url, UV_PYTHON_DOWNLOADS="never")
        yield Place(Project(root, tmp_path / "store"), index)


def names(found: Series) -> list[str]:
    return [version.name for version in found.versions]


def ids(found: Series) -> list[str]:
    return [version.cell.environment.id for version in found.versions]


# --- along jax --------------------------------------------------------------------------------------------------------


def test_the_releases_between_two_ends_with_their_cells(there: Place) -> None:
    found = there.series("1.0.1", "1.10.0")
    assert (found.axis, found.left_out, found.meant) == ("jax", (), ())
    assert names(found) == ["1.0.1", "1.1.0", "1.2.0", "1.10.0"]
    assert [version.number for version in found.versions] == [1, 2, 3, 4]
    assert ids(found) == [
        f"jax1.0.1-cpu-py3{MINOR}-{found.versions[0].cell.environment.id[-7:]}",  # what the override adds
        *(f"jax{version}-cpu-py3{MINOR}" for version in ("1.1.0", "1.2.0", "1.10.0")),
    ]
    assert found.versions[0].cell.environment.packages == ("other", "toy==0.1")
    assert [version.cell.timeout for version in found.versions] == [7.0, 600.0, 600.0, 600.0]
    claims = [version.cell.expect for version in found.versions]
    assert [claim.outcome[0].value for claim in claims if claim] == ["crash", "ok", "ok", "ok"]


def test_a_cell_of_the_matrix_is_that_of_the_history(there: Place) -> None:
    """Else nothing that `invoke matrix` kept would be known to a search."""
    matrix, repros = load(there.project)
    cells = choose(matrix, repros, Request(env="*"), "venv").cells
    assert {cell.repro.name for cell in cells} == set(REPROS)
    for cell in cells:
        assert cell_of(matrix, cell, "jax", cell.environment.jax, cell.environment.python, "venv") == cell


def test_there_and_back_is_the_shipped_cell() -> None:
    matrix, repros = load(Project(ROOT, ROOT))
    for cell in choose(matrix, repros, Request(env="*"), "docker").cells:
        moved = cell_of(matrix, cell, "jax", "0.7.0", cell.environment.python, "docker")
        assert isinstance(moved, Cell)
        assert moved.environment.jax == "0.7.0"
        assert cell_of(matrix, moved, "jax", cell.environment.jax, cell.environment.python, "docker") == cell


def test_numbers_do_not_depend_on_the_range(there: Place) -> None:
    whole = {version.name: version.number for version in there.series("1.0.0", "1.10.1").versions}
    assert whole == {name: number for number, name in enumerate(RELEASES)}
    for version in there.series("1.2.0", "1.10.1").versions:
        assert whole[version.name] == version.number


def test_the_ends_may_be_said_in_any_order_and_spelling(there: Place) -> None:
    found = there.series("1.2", "v1.0.1")
    assert names(found) == ["1.0.1", "1.1.0", "1.2.0"]
    assert [place(found, text) for text in ("1.2", "v1.0.1", "1.1", "1.1.0")] == [2, 0, 1, 1]
    assert there.told.notes == ["1.2 is jax 1.2.0", "v1.0.1 is jax 1.0.1"]


def test_a_day_is_the_newest_release_of_that_day(there: Place) -> None:
    found = there.series("2025-01-20", "2025-04-09")
    assert names(found) == ["1.0.1", "1.1.0", "1.2.0"]
    assert found.meant == (("2025-01-20", "1.0.1"), ("2025-04-09", "1.2.0"))
    assert there.told.notes == ["2025-01-20 is jax 1.0.1", "2025-04-09 is jax 1.2.0"]
    assert (place(found, "2025-01-20"), place(found, "2025-04-09")) == (0, 2)


def test_without_ends_it_is_the_range_of_the_matrix(there: Place) -> None:
    assert names(there.series("", "")) == list(RELEASES)
    assert names(there.series("1.2.0", "")) == ["1.2.0", "1.10.0", "1.10.1"]


NEWER = "the range ends with jax 1.10.1 of matrix.toml; --newest 1.12.0 takes in 2 newer releases"


def test_releases_beyond_an_end_that_nobody_typed_are_told(there: Place) -> None:
    assert there.series("", "").notes == ()
    publish_jax(there.index, {"1.11.0": "2025-06-10", "1.12.0": "2025-07-10", "1.13.0rc1": "2025-07-20"})
    for low in ("", "1.0.1"):
        assert there.series(low, "").notes == (NEWER,)
        assert NEWER in there.told.notes
    assert there.series("", "1.10.0").notes == there.series("1.0.1", "1.11.0").notes == ()
    assert there.series("1.11.0", "").notes == ()  # it is the newer end, and was typed
    assert there.series("", "1.11.0").notes == ()
    online = there.series("1.1.0", "")
    locked = [version.cell.environment for version in (online.versions[0], online.versions[-1])]
    lock_all(locked, there.matrix, there.project, Silent())
    offline = there.series("1.1.0", "", offline=True)
    assert (online.notes, offline.notes) == ((NEWER,), ())


def test_releases_that_the_index_has_lost_are_told(there: Place) -> None:
    there.series("1.0.0", "1.10.0")
    there.index.yanked["jax-1.0.1-py3-none-any.whl"] = "broken"
    assert there.series("1.0.0", "1.10.0").notes == ()  # withdrawn is not gone
    gone = [item for item in there.index.published if item.version in ("1.0.1", "1.2.0", "1.10.1")]
    for item in gone:
        there.index.published.remove(item)
    found = there.series("1.1.0", "1.10.0")
    assert names(found) == ["1.1.0", "1.10.0"]
    assert found.notes == (
        "the index does not list jax 1.0.1, 1.2.0 any more, as it did when it was last asked;"
        " a search may try other versions than one before",
    )
    assert there.told.notes == [*found.notes]
    there.index.published += gone
    assert there.series("1.0.0", "1.10.0").notes == ()


def test_pre_releases_count_where_an_end_is_one(there: Place) -> None:
    publish_jax(there.index, {"1.1.0rc1": "2025-02-01", "1.2.0rc1": "2025-03-01"})
    assert names(there.series("1.0.1", "1.2.0")) == ["1.0.1", "1.1.0", "1.2.0"]
    early = there.series("1.1.0rc1", "1.2.0")
    assert names(early) == ["1.1.0rc1", "1.1.0", "1.2.0rc1", "1.2.0"]
    assert [version.number for version in early.versions] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("low", "high", "message", "hint"),
    [
        ("1.1.0", "1.1.0", "both ends are 1.1.0: one version", "name two"),
        ("1.1", "1.1.0", "1.1 and 1.1.0 are one version", "name two"),
        ("2025-02-10", "2025-03-09", "2025-02-10 and 2025-03-09 are one version", "name two"),
        ("1.1.5", "1.2.0", "the index has no jax 1.1.5", "the nearest are 1.0.1, 1.1.0, 1.2.0, 1.10.0"),
        ("0.1", "1.2.0", "the index has no jax 0.1", "the nearest are 1.0.0, 1.0.1"),
        ("1.1.x", "1.2.0", "'1.1.x' is no version of jax", 'did you mean "1.1.0"?'),
        ("yesterday", "1.2.0", "'yesterday' is no version of jax", "a day like 2026-07-01"),
        ("2025-02-30", "1.2.0", "'2025-02-30' is no day", "write it as 2026-07-01"),
        ("2024-01-01", "1.2.0", "no jax was released by 2024-01-01", "name a later day"),
        ("1.3.0.dev20250320", "1.2.0", "jax 1.3.0.dev20250320 is a nightly build", "add --nightly"),
    ],
)
def test_ends_that_are_none(there: Place, low: str, high: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        there.series(low, high)
    assert message in error.value.message
    assert hint in error.value.hint


# --- along other axes -------------------------------------------------------------------------------------------------


def test_a_package_replaces_the_pins_of_it_and_leaves_the_others(there: Place) -> None:
    cell = there.reference("pinned", env="jax1.0.0-cpu*")
    assert cell.environment.packages == ("another<2", "other", "toy==0.1", "toy==0.2")
    found = there.series("0.1", "0.10", "Toy", cell)
    assert found.axis == "toy"
    assert names(found) == ["0.1", "0.2", "0.3", "0.10"]
    for version in found.versions:
        assert version.cell.environment.packages == ("another<2", "other")
        assert version.cell.environment.axis("toy") == version.name
        assert version.cell.environment.jax == "1.0.0"
        assert version.cell.repro == cell.repro  # so that its result is that of the repro
    assert len({*ids(found)}) == 4


def test_jaxlib_alone(there: Place) -> None:
    cell = there.reference("plain", "jaxlib", ("1.0.0", "1.0.1"), env="1.1.0")
    found = there.series("1.0.0", "1.1.0", "jaxlib", cell)
    assert ids(found) == [f"jax1.1.0-jaxlib{version}-cpu-py3{MINOR}" for version in ("1.0.0", "1.0.1", "1.1.0")]
    locks = lock_all([version.cell.environment for version in found.versions], there.matrix, there.project, Silent())
    for version in found.versions:
        lock = locks[version.cell.environment]
        assert isinstance(lock, Lock)
        assert (lock.version("jax"), lock.version("jaxlib")) == ("1.1.0", version.name)


def test_nccl_needs_the_wheels_of_cuda(there: Place) -> None:
    for version in ("2.26.2", "2.27.3"):
        there.index.add("nvidia-nccl-cu12", version, {"n.py": ""})
    cpu = there.reference()
    with pytest.raises(UserError, match="has no NCCL"):
        there.series("2.26.2", "2.27.3", "nccl", cpu)
    with pytest.raises(UserError, match="nvidia-nccl-cu12 belongs to the wheels of CUDA 12"):
        there.series("2.26.2", "2.27.3", "nvidia-nccl-cu12", cpu)
    matrix, repros = load(there.project)
    gpu = choose(matrix, repros, Request("gpus", env="jax1.10.1*"), "venv").cells[0]
    for axis in ("nccl", "nvidia-nccl-cu12"):
        found = there.series("2.26.2", "2.27.3", axis, gpu)
        assert found.axis == "nccl"
        assert ids(found) == [f"jax1.10.1-cuda12-py3{MINOR}-nccl{version}" for version in ("2.26.2", "2.27.3")]
    local = replace(gpu, environment=replace(gpu.environment, axes=(*gpu.environment.axes, ("cuda", "12-local"))))
    with pytest.raises(UserError, match="takes NCCL from the host"):
        there.series("2.26.2", "2.27.3", "nccl", local)


def test_every_day_of_a_range(there: Place) -> None:
    text = there.project.matrix_toml.read_text()
    there.project.matrix_toml.write_text(text.replace('timeout  = "7s"', 'as_of = "2025-02-01"'))
    cell = there.reference("pinned", env="jax1.0.0-cpu*")
    found = there.series("2025-03-02", "2025-02-27", "date", cell)
    assert names(found) == ["2025-02-27", "2025-02-28", "2025-03-01", "2025-03-02"]
    assert [version.cell.environment.as_of for version in found.versions] == names(found)
    assert [date.fromordinal(version.number).isoformat() for version in found.versions] == names(found)
    assert place(found, "2025-03-01") == 2
    with pytest.raises(UserError, match="date 2025-03-03 is not in this range") as error:
        place(found, "2025-03-03")
    assert error.value.hint == "it goes from 2025-02-27 to 2025-03-02"


def test_days_that_are_none() -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    with pytest.raises(UserError, match="lies in the future"):
        days("2025-01-01", tomorrow.isoformat())
    with pytest.raises(UserError, match="both ends of the range must be said"):
        days("2025-01-01", "")
    with pytest.raises(UserError, match=r"'1\.2\.0' is no day"):
        days("2025-01-01", "1.2.0")
    with pytest.raises(UserError, match="both ends are 2025-01-01"):
        days("2025-01-01", "2025-01-01")


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ("nosuch", "--axis nosuch: the index has no package nosuch"),
        ("python", "python has no history"),
        ("cuda", "cuda has no history"),
        ("a package", "'a package' is no axis"),
        ("--x", "'--x' is no axis"),
    ],
)
def test_axes_that_are_none(there: Place, axis: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        there.series("1.0", "2.0", axis)
    assert message in error.value.message
    assert error.value.hint


def test_an_index_without_jax_is_no_mistake_of_the_user(there: Place) -> None:
    cell = there.reference()
    there.index.published = [item for item in there.index.published if item.name == "toy"]
    with pytest.raises(InfraError, match="the index has no package jax"):
        there.series("1.0.0", "1.1.0", cell=cell)


def test_both_ends_of_a_package_must_be_said(there: Place) -> None:
    with pytest.raises(UserError, match="both ends") as error:
        there.series("", "0.3", "toy")
    assert error.value.hint == "the index has toy 0.1 to 0.10"


# --- the Python of each version ---------------------------------------------------------------------------------------


def needs(index: FakeIndex, project: str, versions: tuple[str, ...], python: str) -> None:
    index.pythons |= {f"{project}-{version}-py3-none-any.whl": python for version in versions}


def other_python(there: Place, python: str, *bases: str) -> None:
    """Let the matrix have `python`, and bases for these."""
    text = MATRIX.replace(f'python = ["{HERE}"]', f'python = ["{python}"]')
    text += "".join(f'[bases."{each}"]\ndebian = "bookworm"\n' for each in bases)
    there.project.matrix_toml.write_text(text)


def test_the_nearest_python_that_a_new_version_fits(there: Place) -> None:
    before = f"3.{MINOR - 1}"
    other_python(there, before)
    needs(there.index, "jax", ("1.10.0", "1.10.1"), f">={HERE}")
    found = there.series("1.1.0", "1.10.1")
    assert [version.cell.environment.python for version in found.versions] == [before, before, HERE, HERE]
    parts = f"1.1.0 to 1.2.0 with Python {before}, 1.10.0 to 1.10.1 with Python {HERE}"
    assert there.told.notes == [f"not all are tried with the same Python: {parts}"]
    assert [version.cell.environment.python for version in there.series("1.10.0", "1.10.1").versions] == [HERE, HERE]


def test_an_old_jaxlib_has_no_wheel_for_a_new_python(there: Place) -> None:
    other_python(there, NEXT)
    for number, item in enumerate(there.index.published):
        if item.name == "jaxlib" and item.version in ("1.0.0", "1.0.1"):
            tagged = item.path.with_name(
                item.path.name.replace("py3-none-any", f"cp3{MINOR}-cp3{MINOR}-manylinux2014_x86_64")
            )
            shutil.move(item.path, tagged)
            there.index.published[number] = replace(item, path=tagged)
    found = there.series("1.0.1", "1.2.0")
    assert [version.cell.environment.python for version in found.versions] == [HERE, NEXT, NEXT]


def test_a_python_that_this_host_lacks_is_not_taken(there: Place) -> None:
    other_python(there, HERE, "3.77")
    needs(there.index, "jax", ("1.2.0", "1.10.0", "1.10.1"), ">=3.77")
    with pytest.raises(InfraError, match=r"jax 1\.2\.0 cannot be tried") as error:
        there.series("1.1.0", "1.2.0")
    assert f"no wheel for Python {HERE}, and Python 3.77 cannot be had here" in error.value.message


def test_what_has_no_wheel_is_told_and_left_out(there: Place) -> None:
    needs(there.index, "toy", ("0.2",), ">=3.99")  # in the middle
    needs(there.index, "toy", ("0.10",), ">=3.99")
    with pytest.raises(UserError, match=f"toy 0.10 cannot be tried: it has no wheel for Python {HERE}"):
        there.series("0.1", "0.10", "toy")
    there.index.add("toy", "0.11", {"toy.py": ""})
    there.index.yanked["toy-0.11-py3-none-any.whl"] = True
    os.environ["UV_CACHE_DIR"] += "-new"  # uv takes a page for fresh for ten minutes
    found = there.series("0.1", "0.11", "toy")
    assert names(found) == ["0.1", "0.2", "0.3", "0.11"]  # what a lock finds out is not asked twice
    assert found.left_out == (("0.10", f"it has no wheel for Python {HERE}"),)
    with pytest.raises(UserError, match=r"toy 0\.10 cannot be tried: it has no wheel"):
        place(found, "0.10")


# --- offline ----------------------------------------------------------------------------------------------------------


def test_offline_those_that_are_locked(there: Place) -> None:
    with pytest.raises(InfraError, match="is not known, and asking the index is forbidden"):
        there.series("1.0.0", "1.10.1", offline=True)
    online = there.series("1.0.0", "1.10.1")
    for version in online.versions[2:6:3]:
        lock_all([version.cell.environment], there.matrix, there.project, Silent())
    there.index.refuses = 500
    found = there.series("1.1.0", "1.10.1", offline=True)
    assert found.versions == (online.versions[2], online.versions[5])
    assert [name for name, _ in found.left_out] == ["1.2.0", "1.10.0"]
    with pytest.raises(InfraError, match="it is not locked, and asking the index is forbidden"):
        there.series("1.0.0", "1.10.1", offline=True)
    with pytest.raises(InfraError, match="were by 2025-01-20 is not known"):
        there.series("2025-01-20", "1.10.1", offline=True)


# --- nightly builds ---------------------------------------------------------------------------------------------------

BUILDS = ("1.11.0.dev20250512", "1.11.0.dev20250514", "1.11.0.dev20250515")


@pytest.fixture
def nightly(there: Place, tmp_path: Path) -> Iterator[Place]:
    with serve(tmp_path / "nightly") as index:
        publish_jax(index, dict.fromkeys(BUILDS, "2025-01-01"))
        index.add("jaxlib", "1.11.0.dev20250516", {"jaxlib/__init__.py": ""})
        publish_jax(there.index, {"1.11.0": "2025-06-01"})
        text = there.project.matrix_toml.read_text()
        there.project.matrix_toml.write_text(f'{text}[indexes]\nnightly = "{index.url}"\n')
        there.builds = index
        yield there


def test_nightly_builds_lie_between_the_releases(nightly: Place) -> None:
    found = nightly.series("1.10.1", "1.11.0", nightly=True)
    assert names(found) == ["1.10.1", *BUILDS, "1.11.0"]
    first = date(2025, 5, 12).toordinal()
    assert [version.number for version in found.versions] == [5, first, first + 2, first + 3, 6]
    assert names(nightly.series("1.10.1", "1.11.0")) == ["1.10.1", "1.11.0"]
    assert coarse(found, "minor") == (1, 3)


def test_a_day_is_the_nearest_nightly_build(nightly: Place) -> None:
    found = nightly.series("2025-05-13", "2025-07-01", nightly=True)
    assert names(found) == [*BUILDS]
    assert found.meant == (("2025-05-13", BUILDS[0]), ("2025-07-01", BUILDS[2]))
    assert names(nightly.series(BUILDS[0], "2025-05-14", nightly=True)) == [*BUILDS[:2]]


def test_builds_that_are_gone_are_told_where_they_lie_in_the_range(nightly: Place, tmp_path: Path) -> None:
    """An index of nightly builds drops the old ones as a matter of course."""
    assert nightly.builds is not None
    lost = "the index does not list jax 1.11.0.dev20250514 any more"
    for version, low, told in ((BUILDS[0], BUILDS[1], ""), (BUILDS[1], "1.10.1", lost)):
        nightly.series("1.10.1", "1.11.0", nightly=True)
        nightly.builds.published[:] = [item for item in nightly.builds.published if item.version != version]
        notes = nightly.series(low, "1.11.0", nightly=True).notes
        assert [note.partition(",")[0] for note in notes] == [told][: bool(told)]


def test_a_nightly_jax_gets_the_jaxlib_of_its_day(nightly: Place) -> None:
    for version in nightly.series("1.10.1", "1.11.0", nightly=True).versions:
        lock = resolve(version.cell.environment, nightly.matrix, None, Silent())
        assert isinstance(lock, Lock)
        assert (lock.version("jax"), lock.version("jaxlib")) == (version.name, version.name)


def test_nightly_builds_that_are_not_to_be_had(there: Place, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no index of nightly builds is named") as error:
        there.series("1.10.1", "1.10.0", nightly=True)
    assert "[indexes]" in error.value.hint
    with pytest.raises(UserError, match="along jax, not along toy"):
        there.series("0.1", "0.2", "toy", nightly=True)
    with serve(tmp_path / "without") as index:
        publish_jax(index, {"1.0.0": "2025-01-01"})
        text = there.project.matrix_toml.read_text()
        there.project.matrix_toml.write_text(f'{text}[indexes]\nnightly = "{index.url}"\n')
        assert names(there.series("1.10.1", "1.10.0", nightly=True)) == ["1.10.0", "1.10.1"]
        with pytest.raises(UserError, match="has no nightly build"):
            there.series("1.10.1", "2025-05-13", nightly=True)


# --- the reference ----------------------------------------------------------------------------------------------------


def test_the_newest_environment_in_the_range_is_taken_and_said(there: Place) -> None:
    assert there.reference().environment.id == f"jax1.10.1-cpu-py3{MINOR}"
    assert there.told.notes == [f"all else is as in jax1.10.1-cpu-py3{MINOR}; --env names another environment"]
    assert there.reference("pinned", ends=("1.2.0", "0.9")).environment.jax == "1.0.0"  # 1.1.0 is excluded
    assert there.reference("pinned", ends=("0.1", "0.2")).environment.jax == "1.0.0"
    assert there.reference("pinned", "toy", ("0.1", "0.2")).environment.jax == "1.10.1"
    assert there.reference("pinned", ends=("2025-01-01", "2025-02-01")).environment.jax == "1.10.1"


def test_an_excluded_environment_may_be_named(there: Place) -> None:
    for asked in ("1.1.0", f"jax1.1.0-cpu-py3{MINOR}", "jax1.1.*"):
        assert there.reference(env=asked).environment.jax == "1.1.0"
        assert there.told.notes == []
    with pytest.raises(UserError, match="no environment of plain is called jax1"):
        there.reference(env="jax1.2.0")


def test_parameters_must_be_said(there: Place) -> None:
    with pytest.raises(UserError, match="chosen has 4 combinations of parameters") as error:
        there.reference("chosen")
    assert "--param size=1 --param fast=true\n" in error.value.hint
    with pytest.raises(UserError, match="chosen has 2 combinations") as error:
        there.reference("chosen", params=(("size", "2"),))
    assert "size=1" not in error.value.hint
    with pytest.raises(UserError, match="chosen has no cell with size=3") as error:
        there.reference("chosen", params=(("size", "3"),))
    assert "--param size=2 --param fast=false" in error.value.hint
    with pytest.raises(UserError, match="has no parameter 'sise'") as error:
        there.reference("chosen", params=(("sise", "3"),))
    assert error.value.hint == 'did you mean "size"?'
    with pytest.raises(UserError, match="has no parameter 'size'"):
        there.reference("plain", params=(("size", "3"),))


def test_the_first_target_that_this_host_can_run(there: Place) -> None:
    said = (("size", "2"), ("fast", "false"))
    cell = there.reference("chosen", params=said)
    assert (cell.target, cell.params) == ("cpu", (("size", 2), ("fast", False)))
    assert there.told.notes[0] == "the target is cpu; --target can be gpu:64, cpu:4 too"
    assert there.reference("chosen", params=said, target="cpu:4").target == "cpu:4"
    with pytest.raises(UserError, match="this host cannot run gpus") as error:
        there.reference("gpus")
    assert "gpu:64: needs 64 NVIDIA GPUs" in error.value.hint
    claims = [version.cell.expect for version in there.series("1.0.0", "1.2.0", cell=cell).versions]
    assert [claim.outcome[0].value for claim in claims if claim] == ["crash"] * 4


def test_a_target_that_the_repro_does_not_have(there: Place) -> None:
    """What other repros have is no advice."""
    for target in ("gpu", "gpu:64", "gpu*"):
        with pytest.raises(UserError) as error:
            there.reference("plain", target=target)
        assert (error.value.message, error.value.hint) == (f"plain has no target {target}", "there is: cpu")
    with pytest.raises(UserError, match="chosen has no target gpu") as error:
        there.reference("chosen", target="gpu")
    assert error.value.hint == 'did you mean "gpu:64"?'


def test_one_repro_is_searched(there: Place) -> None:
    with pytest.raises(UserError, match=r"p\* means 2 repros") as error:
        there.reference("p*")
    assert error.value.hint == "name one of: pinned, plain"
    with pytest.raises(UserError, match='"nosuch" matches nothing'):
        there.reference("nosuch")


# --- places -----------------------------------------------------------------------------------------------------------


def history(axis: str, *versions: str) -> Series:
    """A series without cells: places need none."""
    return Series(axis, tuple(Version(name, None, n) for n, name in enumerate(versions)))  # type: ignore[arg-type]


def test_the_last_of_each_minor_release_inside() -> None:
    found = history("jax", "0.5.3", "0.6.0", "0.6.1", "0.6.2", "0.7.0", "0.7.1", "0.8.0", "0.10.0", "0.10.1")
    assert [found.versions[place].name for place in coarse(found, "minor")] == ["0.6.2", "0.7.1", "0.8.0"]
    assert coarse(found, "all") == tuple(range(1, 8))
    assert coarse(found, "0") == ()
    assert coarse(found, "1") == (4,)
    assert coarse(found, "3") == (2, 4, 6)
    assert coarse(found, "1000") == coarse(found, "all")


def test_about_the_root_where_there_are_no_minor_releases() -> None:
    year = history("date", *days("2025-01-01", "2025-12-31").names)
    places = coarse(year, "minor")
    assert len(places) == 19
    assert {b - a for a, b in pairwise((0, *places, 364))} <= {18, 19}
    assert coarse(history("jax", "0.6.0", "0.6.1", "0.6.2", "0.6.3"), "minor") == (1, 2)
    assert coarse(history("jax", "0.6.0", "0.6.1"), "minor") == ()
    assert coarse(history("jax", "0.6.2", "0.7.0", "0.7.1"), "minor") == (1,)
    assert coarse(history("jax", "0.6.0", "0.7.0"), "minor") == ()


@pytest.mark.parametrize("sweep", ["", "major", "-1", "1.5", "٣"])
def test_other_sweeps_are_refused(sweep: str) -> None:
    with pytest.raises(UserError, match="is not minor, all, or a number"):
        coarse(history("jax", "0.6.0", "0.6.1"), sweep)


VERSIONS = st.builds(lambda a, b, c: f"{a}.{b}.{c}", *[st.integers(0, 12)] * 3)
SETS = st.lists(VERSIONS, min_size=2, max_size=40, unique=True).map(lambda found: sorted(found, key=Number))


@given(SETS, st.sampled_from(["minor", "all", "0", "1", "2", "5", "13", "99"]))
def test_places_lie_inside_and_each_once(found: list[str], sweep: str) -> None:
    places = coarse(history("jax", *found), sweep)
    assert list(places) == sorted(set(places))
    assert all(0 < place < len(found) - 1 for place in places)
    if sweep.isdigit():
        assert len(places) == min(int(sweep), len(found) - 2)


@given(SETS, st.data())
def test_a_range_is_a_part_of_the_whole(found: list[str], data: st.DataObject) -> None:
    low, high = data.draw(st.permutations(found))[:2]
    part = between(found, (), low, high)
    first, last = sorted((found.index(low), found.index(high)))
    assert part.names == tuple(found[first : last + 1])
    assert part.numbers == tuple(range(first, last + 1))
    row = history("jax", *part.names)
    assert [place(row, name) for name in part.names] == list(range(len(part.names)))


def test_a_place_that_is_none() -> None:
    found = history("jax", "0.6.0", "0.6.1", "0.7.0", "0.8.0")
    with pytest.raises(UserError, match=r"jax 0\.6\.3 is not in this range") as error:
        place(found, "0.6.3")
    assert error.value.hint == "the nearest are 0.6.0, 0.6.1, 0.7.0, 0.8.0"
    with pytest.raises(UserError) as error:
        place(found, "0.7.O")
    assert error.value.hint == 'did you mean "0.7.0"?'
    with pytest.raises(UserError) as error:
        place(found, "2025-01-01")
    assert error.value.hint == "it goes from 0.6.0 to 0.8.0"


# --- the real index ---------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_the_real_history_of_jax(tmp_path: Path) -> None:
    matrix, repros = load(Project(ROOT, tmp_path))
    request = Request("hlo_pass_crash", params=(("flag", "noop_change"),))
    cell = reference(matrix, repros, request, "venv", Silent())
    project = Project(ROOT, tmp_path)
    engine = choose_engine("venv", project, matrix, Silent())
    found = series(project, matrix, cell, "jax", "0.4.30", "0.10.2", engine, Silent(), threading.Event())
    assert len(found.versions) == 30
    assert {version.cell.environment.python for version in found.versions} == {"3.11"}
    assert [found.versions[place].name for place in coarse(found, "minor")] == [
        *("0.4.38", "0.5.3", "0.6.2", "0.7.2", "0.8.3", "0.9.2"),
    ]
