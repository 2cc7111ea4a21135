"""Environments that no matrix has: named by their ids wherever `--env` is accepted, after a bisection locked them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repromatrix.envs.lockfile import locked_environments, read_lock
from tests.conftest import ROOT, Checkout, new_checkout
from tests.fake_index import publish_jax, serve
from tests.test_regressions_bisect import BEGINS, DAYS, Case, case  # noqa: F401  # a fixture

PY = f"py{sys.version_info.major}{sys.version_info.minor}"
FIRST_BAD = f"jax1.2.1-cpu-{PY}"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """After a bisection whose first bad version, 1.2.1, is not in matrix.toml; the last good one, 1.2.0, is."""
    place = tmp_path_factory.mktemp("searched")
    with serve(place / "index") as index:
        publish_jax(index, DAYS)
        found = Case(new_checkout(place, index), index, {})
        found.repro(BEGINS)
        assert found.bisect("--confidence", "0").code == 0
        assert found.edges == [("1.2.0", "1.2.1", True)]
        assert "1.2.1" not in (found.checkout.root / "matrix.toml").read_text()
        yield found


def document(checkout: Checkout, *args: str) -> dict[str, Any]:
    said = checkout.invoke(*args, "--json", "-")
    assert said.code in (0, 1), said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def locks(checkout: Checkout) -> list[str]:
    return sorted(path.stem for path in (checkout.root / "containers" / "locks").glob("*.txt"))


def test_what_a_bisection_ran_is_found_and_not_run_again(searched: Case) -> None:
    tries = searched.tries
    found = document(searched.checkout, "matrix", "--repro", "since", "--env", FIRST_BAD)
    assert [cell["id"] for cell in found["cells"]] == [f"since@{FIRST_BAD}@cpu"]
    assert found["run"]["attempted"] == 0
    assert searched.tries == tries
    of_search = next(each["cell"] for each in searched.document["path"] if each["name"] == "1.2.1")
    assert found["cells"][0]["key"] == of_search["key"]
    tested = {each["name"] for each in searched.document["path"]}
    every = ",".join(f"jax{name}-cpu-{PY}" for name in tested)
    assert len(document(searched.checkout, "matrix", "--repro", "since", "--env", every)["cells"]) == len(tested)
    assert searched.tries == tries


def test_all_that_is_kept_is_graded_again(searched: Case) -> None:
    found = document(searched.checkout, "regrade")
    assert found["attempts"] >= len({*searched.tries})
    assert found["changed"] == []


def test_the_command_that_a_result_shows_works(searched: Case) -> None:
    cell = next(each["cell"] for each in searched.document["path"] if each["name"] == "1.2.1")
    words = shlex.split(cell["command"])
    assert words[:3] == ["uv", "run", "invoke"]
    tries = len(searched.tries)
    said = searched.checkout.invoke(*words[3:])
    assert said.code == 1, said.err
    assert searched.tries[tries:] == ["1.2.1"]


def test_the_first_bad_version_is_handed_over(searched: Case) -> None:
    """By the command that stands on the bisection's page."""
    tries = searched.tries
    page = (searched.checkout.root / "reports" / "bisect-since.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("uv run invoke handoff"))
    found = document(searched.checkout, *shlex.split(line, comments=True)[3:])
    assert found["cell"] == f"since@{FIRST_BAD}@cpu"
    assert found["signature"] == "py-exc KeyError: 'broken'"
    lock = Path(found["folder"]) / "lock.txt"
    assert "jax==1.2.1 --hash=sha256:" in lock.read_text()
    assert searched.tries == tries


def test_the_issue_is_as_narrow_as_the_bisection(searched: Case) -> None:
    tries = searched.tries
    text = document(searched.checkout, "issue", "since")["issue"]["text"]
    assert "**last good** jax 1.2.0 (2025-07-10), **first bad** jax 1.2.1 (2025-08-10);" in text
    assert "jax-v1.2.0...jax-v1.2.1" in text
    assert searched.tries == tries
    narrower = searched.checkout.invoke("issue", "since", "--env", "jax1.*")
    assert narrower.code == 1, narrower.out  # a glob means the matrix's own, in which nothing fails
    assert searched.tries == tries


def test_issue_and_handoff_show_the_same_cell(case: Case) -> None:  # noqa: F811
    """The failure's text changes along the releases; a claimed failure goes before others, and then the newest."""
    body = "if number == 11: raise OSError('another')\nif number >= 3: raise KeyError(f'broken {number}')"
    case.repro(body, expect='[[expect]]\nwhen = "jax >= 1.1"\noutcome = "error"\nsignature = "py-exc KeyError*"')
    assert case.checkout.invoke("matrix").code == 0
    assert case.bisect("--confidence", "0", "--signature", "py-exc KeyError*", bad="1.3.1").code == 0
    assert case.checkout.invoke("matrix", "--repro", "since", "--env", f"jax1.3.1-cpu-{PY}").code == 0
    shown = f"since@jax1.3.1-cpu-{PY}@cpu"
    assert document(case.checkout, "handoff", "since")["cell"] == shown
    said = case.checkout.invoke("issue", "since", "--to", "issue.md")
    assert f"invoke handoff since --cell {shown} --engine venv" in said.err
    command = said.err.partition("which this writes: uv run invoke ")[2].splitlines()[0]
    assert document(case.checkout, *shlex.split(command))["cell"] == shown


def test_a_glob_means_the_matrix_alone(searched: Case) -> None:
    found = document(searched.checkout, "matrix", "--env", "jax1.*")
    assert {cell["axes"]["jax"] for cell in found["cells"]} == {"1.0.0", "1.1.0", "1.2.0"}
    assert {cell["axes"]["jax"] for cell in document(searched.checkout, "matrix")["cells"]} == {
        *("1.0.0", "1.1.0", "1.2.0")
    }
    assert "1.2.1" not in (searched.checkout.root / "reports" / "since.md").read_text()
    for asked in ("jax1.2.1*", "jax1.2.1"):
        said = searched.checkout.invoke("cells", "--env", asked)
        assert said.code == 2
        assert f'--env "{asked}" matches nothing' in said.err
        assert f"locked, though not in the matrix: {FIRST_BAD}; name one by its exact id" in said.err
    said = searched.checkout.invoke("diff", "1.2.1", "1.2.0")
    assert said.code == 2
    assert f"locked, though not in the matrix: {FIRST_BAD}" in said.err


@pytest.mark.parametrize(
    "args",
    [
        ("lock", "--env", FIRST_BAD),
        ("fetch", "--env", FIRST_BAD),
        ("build", "--env", FIRST_BAD, "--engine", "venv"),
        ("render", "--env", FIRST_BAD),
        ("cells", "--env", FIRST_BAD),
        ("diff", FIRST_BAD, "1.2.0"),
        ("diff", "1.2.0", FIRST_BAD, "--repro", "since"),
        ("bisect", "since", "--env", FIRST_BAD, "--good", "1.0.0", "--bad", "1.2.1", "--confidence", "0"),
        ("bisect", "since", "--env", FIRST_BAD, "--oldest", "1.0.0", "--newest", "1.2.1", "--confidence", "0"),
        ("minimise", "since", "--env", FIRST_BAD, "--good", "1.2.0", "--confidence", "0"),
        ("archive", "../archive", "--env", FIRST_BAD, "--wheels-only", "--tool-python", "none"),
    ],
)
def test_it_can_be_named_wherever_environments_are(searched: Case, args: tuple[str, ...]) -> None:
    before = locks(searched.checkout)
    said = searched.checkout.invoke(*args)
    assert said.code == 0, said.err
    assert FIRST_BAD in said.out + said.err or "complete" in said.out
    assert locks(searched.checkout) == before


def test_the_repro_says_what_the_matrix_runs_and_not_what_may_be_named(case: Case) -> None:  # noqa: F811
    case.repro(BEGINS, jax='"<1.1"', expect='[[expect]]\nwhen = "jax >= 1.2.1"\noutcome = "error"')
    case.checkout.repro("other", "print(1)", jax='"<1.1"')
    matrix = case.checkout.root / "matrix.toml"
    matrix.write_text(matrix.read_text() + '\n[[exclude]]\nrepro = "since"\njax = ">=1.3"\n')
    assert case.bisect("--confidence", "0").code == 0
    tries = case.tries
    for version in ("1.2.0", "1.2.1", "1.3.2"):  # of the matrix and narrowed; beside it; beside it and excluded
        environment = f"jax{version}-cpu-{PY}"
        found = document(case.checkout, "matrix", "--repro", "since", "--env", environment)
        assert [cell["as_expected"] for cell in found["cells"]] == [None if version == "1.2.0" else True]
        assert document(case.checkout, "handoff", "since", "--env", environment, "--cell", "*")["cell"]
        said = case.checkout.invoke("matrix", "--env", environment)  # no repro is named
        assert said.code == 2
        assert "no cell is left to run" in said.err
    assert case.tries == tries
    assert "**first bad** jax 1.2.1" in document(case.checkout, "issue", "since")["issue"]["text"]
    listing = case.checkout.invoke("cells", "--env", f"jax1.3.2-cpu-{PY}")
    assert "the repro asks for jax <1.1" in listing.out


def test_packages_of_the_repro(case: Case) -> None:  # noqa: F811
    for number in range(1, 9):
        case.index.add("dep", f"1.{number}", {"dep.py": f"number = {number}\n"})
    body = "import dep\nif number >= 7 and dep.number > 1: raise KeyError('dep')"
    case.repro(body, packages='["dep==1.2"]')
    case.checkout.repro("plain", "print(1)")
    assert case.bisect("--confidence", "0").code == 0
    (named,) = (name for name in locks(case.checkout) if name.startswith("jax1.2.1-"))
    assert named.startswith(f"{FIRST_BAD}-x")
    tries = case.tries
    found = document(case.checkout, "matrix", "--env", named)
    assert [cell["id"] for cell in found["cells"]] == [f"since@{named}@cpu"]  # no environment of `plain`
    said = case.checkout.invoke("run", "since", "--env", FIRST_BAD)
    assert said.code == 2
    assert f"locked, though not in the matrix: {named}" in said.err
    said = case.checkout.invoke("run", "plain", "--env", named)
    assert said.code == 2
    assert "it is locked, and not for this repro, whose packages and axes are others" in said.err
    assert case.tries == tries


def test_an_axis_that_no_matrix_has(case: Case) -> None:  # noqa: F811
    for number in range(1, 9):
        case.index.add(
            "dep", f"1.{number}", {"dep.py": f"number = {number}\n"}, uploaded=f"2024-0{number}-01T00:00:00Z"
        )
    case.repro("import dep\nif dep.number >= 4: raise KeyError('dep')", packages='["dep==1.2"]')
    assert case.bisect("--confidence", "0", "--axis", "dep", good="1.1", bad="1.8").code == 0
    assert case.edges == [("1.3", "1.4", True)]
    tries = case.tries
    named = f"jax1.2.0-cpu-{PY}-dep1.4"
    assert document(case.checkout, "matrix", "--repro", "since", "--env", named)["run"]["attempted"] == 0
    assert document(case.checkout, "handoff", "since", "--env", named)["cell"] == f"since@{named}@cpu"
    text = document(case.checkout, "issue", "since")["issue"]["text"]
    assert "dep 1.3 (2024-03-01), **first bad** jax 1.2.0 (2025-07-10), dep 1.4 (2024-04-01)" in text
    assert "the only version of which anything is known" not in text
    assert case.tries == tries


def test_days(case: Case) -> None:  # noqa: F811
    for number in range(1, 9):
        case.index.add(
            "dep", f"1.{number}", {"dep.py": f"number = {number}\n"}, uploaded=f"2025-09-0{number}T00:00:00Z"
        )
    case.repro("import dep\nif dep.number >= 4: raise KeyError('dep')", packages='["dep"]')
    said = case.bisect("--confidence", "0", "--axis", "date", good="2025-09-01", bad="2025-09-08")
    assert said.code == 0, said.err
    assert case.edges == [("2025-09-03", "2025-09-04", True)]
    tries = case.tries
    (named,) = (name for name in locks(case.checkout) if "-asof20250904-" in name)
    assert document(case.checkout, "matrix", "--repro", "since", "--env", named)["run"]["attempted"] == 0
    found = document(case.checkout, "issue", "since")["issue"]
    text = found["text"]
    assert "all else as of 2025-09-03, **first bad** jax 1.2.0 (2025-07-10), all else as of 2025-09-04" in text
    assert "all else as of 2025-09-04 to 2025-09-08, ok in 2025-09-03" in found["title"]
    assert case.tries == tries


def test_what_the_locks_say_they_are() -> None:
    folder = ROOT / "containers" / "locks"
    found = locked_environments(folder)
    assert [each.id for each in found] == sorted(path.stem for path in folder.glob("*.txt"))
    for each in found:
        assert read_lock(folder / f"{each.id}.txt", each).environment == each


def test_a_lock_that_lies_names_nothing(searched: Case) -> None:
    folder = searched.checkout.root / "containers" / "locks"
    path = folder / f"{FIRST_BAD}.txt"
    text = path.read_text()
    path.write_text(text.replace("# axis: jax = 1.2.1", "# axis: jax = 1.2.2"))
    (folder / "binary.txt").write_bytes(b"\xff\xfe# axis")
    (folder / "empty.txt").write_text("")
    assert searched.checkout.invoke("cells").code == 0
    said = searched.checkout.invoke("cells", "--env", FIRST_BAD)
    assert said.code == 2
    assert "matches nothing" in said.err
    path.write_text(text.replace("jax==1.2.1 ", "jax==1.2.2 "))
    said = searched.checkout.invoke("run", "since", "--env", FIRST_BAD)
    assert said.code == 2
    assert f"{FIRST_BAD}.txt" in said.err
    path.write_text(text)
    for name in ("binary", "empty"):
        (folder / f"{name}.txt").unlink()
