"""Whole bisections through the command line and the real venv engine, on twelve stand-in releases of jax."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from repromatrix.commands.searching import page_name
from tests.conftest import Checkout, Said, new_checkout
from tests.fake_index import FakeIndex, publish_jax, serve

NAMES = [f"1.{minor}.{patch}" for minor in range(4) for patch in range(3)]
DAYS = {name: f"2025-{number + 1:02d}-10" for number, name in enumerate(NAMES)}
BEGINS = "if number >= 7: raise KeyError('broken')"
COMES_AND_GOES = "if 2 <= number < 5 or number >= 10: raise KeyError('broken')"

SCRIPT = """\
import os, pathlib, sys, time, jax
with open({tries!r}, "a") as file:
    file.write(jax.__version__ + "\\n")
turn = open({tries!r}).read().split().count(jax.__version__)
names = {names!r}
number = names.index(jax.__version__) if jax.__version__ in names else -1
{body}
"""


@dataclass(slots=True)
class Case:
    """A checkout with a repro whose body knows `number`, the release's place, and `turn`, the attempt's of it."""

    checkout: Checkout
    index: FakeIndex
    document: dict[str, Any]

    @property
    def tries(self) -> list[str]:
        """The versions tried, in order, an entry for each attempt."""
        path = self.checkout.root / "tries"
        return path.read_text().split() if path.exists() else []

    def repro(self, body: str, **metadata: str) -> None:
        text = SCRIPT.format(tries=str(self.checkout.root / "tries"), names=NAMES, body=body)
        metadata = {"hlo": '"off"', **metadata}
        self.checkout.repro("since", text, **{key: value for key, value in metadata.items() if value})

    def arguments(self, *args: str, good: str = "1.0.0", bad: str = "1.3.2") -> list[str]:
        ends = [*(["--good", good] if good else []), *(["--bad", bad] if bad else [])]
        return ["bisect", "since", *ends, "--json", "out.json", *args]

    def bisect(self, *args: str, good: str = "1.0.0", bad: str = "1.3.2") -> Said:
        said = self.checkout.invoke(*self.arguments(*args, good=good, bad=bad))
        assert "Traceback" not in said.err, said.err
        self.read()
        return said

    def read(self) -> None:
        path = self.checkout.root / "out.json"
        self.document = json.loads(path.read_text())["bisection"] if path.is_file() else {}
        path.unlink(missing_ok=True)

    @property
    def edges(self) -> list[tuple[str, str, bool]]:
        """(older, newer, whether the failure begins there)."""
        return [(edge["older"], edge["newer"], edge["begins"]) for edge in self.document["edges"]]

    @property
    def verdicts(self) -> dict[str, str]:
        return {each["name"]: each["mark"] for each in self.document["path"]}

    def environments(self) -> list[Path]:
        folder = self.checkout.root.parent / "store" / "venvs"
        return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with serve(tmp_path / "index") as index:
        publish_jax(index, DAYS)
        yield Case(new_checkout(tmp_path, index), index, {})


def test_a_regression_is_found_confirmed_and_reported(case: Case) -> None:
    case.repro(BEGINS)
    said = case.bisect("--sweep", "0")
    assert said.code == 0, said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert case.document["failure"] == "py-exc KeyError: 'broken'"
    assert case.document["edges"][0]["confidence"] >= 0.99
    assert len(set(case.tries)) <= 4 + 2  # ceil(log2 12) + 2
    assert Counter(case.tries)["1.2.0"] + Counter(case.tries)["1.2.1"] == 2 + 7
    assert "begins in jax 1.2.1 (2025-08-10); last good 1.2.0 (2025-07-10)" in said.out
    assert "KeyError" in (case.checkout.root / "reports" / "bisect-since.md").read_text()
    assert 'try    1.3.2: error "py-exc KeyError' in said.err


def test_the_same_command_again_runs_nothing(case: Case) -> None:
    case.repro(BEGINS)
    assert case.bisect().code == 0
    first, tries = case.document, case.tries
    assert case.bisect().code == 0
    assert case.tries == tries
    assert case.document["edges"] == first["edges"]
    assert [each["name"] for each in case.document["path"]] == [each["name"] for each in first["path"]]
    assert [each["verdict"] for each in case.document["path"]] == [each["verdict"] for each in first["path"]]
    assert sum(each["attempted"] for each in first["path"]) == len(tries)
    assert sum(each["attempted"] for each in case.document["path"]) == 0
    assert case.bisect("--rerun").code == 0
    assert sorted(case.tries) == sorted(tries * 2)  # those that confirm an edge run beside each other


def test_the_hlo_of_a_failure_is_collected_once(case: Case) -> None:
    case.repro(BEGINS, hlo="")
    assert case.bisect("--sweep", "0").code == 0
    attempted = {each["name"]: each["attempted"] for each in case.document["path"]}
    assert attempted["1.2.1"] > 1
    assert Counter(case.tries)["1.2.1"] == attempted["1.2.1"] + 1
    assert Counter(case.tries)["1.2.0"] == attempted["1.2.0"]


def test_what_the_matrix_found_is_not_run_again(case: Case) -> None:
    case.repro(BEGINS)
    path = case.checkout.root / "matrix.toml"
    path.write_text(path.read_text().replace('"1.1.0", "1.2.0"', ", ".join(f'"{name}"' for name in NAMES[1:])))
    assert case.checkout.invoke("matrix").code == 1
    assert len(case.tries) == len(NAMES)
    assert case.bisect("--confidence", "0").code == 0
    assert len(case.tries) == len(NAMES)
    assert case.edges == [("1.2.0", "1.2.1", True)]


def test_a_failure_that_comes_and_goes_gives_all_its_edges(case: Case) -> None:
    case.repro(COMES_AND_GOES)
    assert case.bisect("--confidence", "0").code == 0
    assert case.edges == [("1.0.1", "1.0.2", True), ("1.1.1", "1.1.2", False), ("1.3.0", "1.3.1", True)]


@pytest.mark.parametrize(
    ("find", "edges", "spared"),
    [
        ("regression", [("1.0.1", "1.0.2", True), ("1.3.0", "1.3.1", True)], {"1.1.0"}),
        ("fix", [("1.1.1", "1.1.2", False)], {"1.0.1", "1.3.0", "1.3.1"}),
    ],
)
def test_one_kind_of_change_alone(case: Case, find: str, edges: list[tuple[str, str, bool]], spared: set[str]) -> None:
    case.repro(COMES_AND_GOES)
    assert (
        case.bisect("--confidence", "0", "--find", find, "--oldest", "1.0.0", "--newest", "1.3.2", good="", bad="").code
        == 0
    )
    assert case.edges == edges
    assert not spared & {*case.tries}


def test_a_fix_is_found_where_the_bad_version_is_older(case: Case) -> None:
    case.repro("if number < 5: raise KeyError('broken')")
    said = case.bisect("--confidence", "0", good="1.3.2", bad="1.0.0")
    assert said.code == 0, said.err
    assert case.edges == [("1.1.1", "1.1.2", False)]
    assert "ends in jax 1.1.2" in said.out
    said = case.bisect("--find", "regression", good="1.3.2", bad="1.0.0")
    assert said.code == 2
    assert "1.0.0 is older and said to be bad, so this is no regression" in said.err


def test_versions_that_cannot_exist_are_passed_by(case: Case) -> None:
    for item in [item for item in case.index.published if item.version in NAMES[4:7] and item.name == "jax"]:
        case.index.published.remove(item)
        case.index.add("jax", item.version, {"jax/__init__.py": ""}, requires=["jaxlib==9"], uploaded=item.uploaded)
    case.repro(BEGINS)
    assert case.bisect("--confidence", "0").code == 0
    assert case.edges == [("1.1.0", "1.2.1", True)]
    edge = case.document["edges"][0]
    assert {*edge["between"]} <= {"1.1.1", "1.1.2", "1.2.0"}
    assert edge["between"]
    assert {case.verdicts[name] for name in edge["between"]} == {"impossible"}
    assert not {*NAMES[4:7]} & {*case.tries}


@pytest.mark.parametrize(
    ("body", "mark"),
    [
        ("raise OSError('a second bug')", "other failure"),
        ("sys.exit(125)", "skip"),
        ("os.kill(os.getpid(), 9)", "other failure"),
    ],
)
def test_what_says_nothing_never_steers(case: Case, body: str, mark: str) -> None:
    case.repro(f"if number in (5, 6, 7): {body}\nif number >= 9: raise KeyError('broken')")
    assert case.bisect("--confidence", "0").code == 0
    assert case.edges == [("1.2.2", "1.3.0", True)]
    assert {case.verdicts[name] for name in set(NAMES[5:8]) & {*case.tries}} == {mark}
    seen = {name for other in case.document["others"] for name in other["versions"]}
    assert seen == ({*NAMES[5:8]} & {*case.tries} if mark == "other failure" else set())


def test_an_end_without_a_verdict_gives_way_to_the_next(case: Case) -> None:
    case.repro("if number in (0, 11): sys.exit(125)\n" + BEGINS)
    assert case.bisect("--confidence", "0").code == 0
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert case.document["failure"] == "py-exc KeyError: 'broken'"
    assert any("1.3.2" in note for note in case.document["notes"])


def test_what_is_kept_far_away_does_not_say_what_bad_means(case: Case) -> None:
    """The bad end says nothing; the failure is that of its neighbour, not a known one of the other end."""
    case.repro("if number == 11: sys.exit(125)\nif number == 1: raise OSError('old')\n" + BEGINS)
    matrix = case.checkout.root / "matrix.toml"
    matrix.write_text(matrix.read_text().replace('"1.1.0", "1.2.0"', '"1.0.1"'))
    assert case.checkout.invoke("run", "since", "--env", "jax1.0.1-*").code == 1
    said = case.bisect("--confidence", "0")
    assert said.code == 0, said.out
    assert case.document["failure"] == "py-exc KeyError: 'broken'"
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert case.verdicts["1.0.1"] == "other failure"


def test_versions_that_are_left_out_at_an_edge_are_named_with_it(case: Case) -> None:
    case.repro(BEGINS)
    assert case.bisect("--confidence", "0").code == 0
    for lock in (case.checkout.root / "containers" / "locks").glob("jax1.2.0-*"):
        lock.unlink()
    said = case.bisect("--confidence", "0", "--offline")
    assert said.code == 0, said.err
    assert case.edges == [("1.1.2", "1.2.1", True)]
    assert case.document["edges"][0]["between"] == ["1.2.0"]
    assert "it may be in between, where 1.2.0 (left out) gave no verdict on it" in " ".join(said.out.split())


def test_a_version_that_another_package_forbids_is_impossible(case: Case) -> None:
    for number in range(1, 9):
        case.index.add("dep", f"1.{number}", {"dep.py": f"number = {number}\n"})
    case.index.add("other", "1.0", {"other.py": ""}, requires=["dep<1.6"])
    case.repro("import dep\nif dep.number >= 4: raise KeyError('dep')", packages='["dep==1.2", "other"]')
    said = case.bisect("--confidence", "0", "--axis", "dep", good="1.1", bad="1.8")
    assert said.code == 0, said.err
    assert case.edges == [("1.3", "1.4", True)]
    assert case.verdicts["1.8"] == "impossible"
    assert any(
        "every version of other needs dep <1.6, and dep 1.8 is asked for" in note for note in case.document["notes"]
    )


@pytest.mark.parametrize(("how", "noted"), [("os._exit(3)", True), ("sys.exit('the sum is wrong')", False)])
def test_a_failure_without_a_message_is_noted(case: Case, how: str, noted: bool) -> None:
    case.repro(f"if number >= 7: {how}")
    assert case.bisect("--confidence", "0", "--sweep", "0").code == 0
    assert any("known by how it ends alone, `exit 3`" in note for note in case.document["notes"]) == noted


def test_an_answer_whose_page_cannot_be_written_is_told_all_the_same(case: Case) -> None:
    case.repro(BEGINS)
    (case.checkout.root / "reports").write_text("no folder")
    said = case.bisect("--confidence", "0", "--sweep", "0")
    assert said.code == 3
    assert "begins in jax 1.2.1" in said.out
    assert "reports/bisect-since.md: cannot write" in said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]


def test_a_page_has_a_name_that_a_file_can_have() -> None:
    assert page_name("bisect", "since", "gpu:2", [("flag", "a_b")], "toy-1") == "bisect-since-a_b-gpu_2-toy_1"
    odd = ["a/b", "a_b", "a b", "../a", *("ü" * length for length in (300, 301)), "/" * 300]
    names = {page_name("minimise", "since", "cpu", [("text", text)]) for text in odd}
    assert len(names) == len(odd)
    assert max(len(name.encode()) for name in names) <= 220
    assert not any("/" in name for name in names)


def test_a_signature_says_what_is_looked_for(case: Case) -> None:
    case.repro("if number >= 9: raise OSError('late')\nif number >= 4: raise KeyError('early')")
    said = case.bisect("--confidence", "0", "--oldest", "1.0.0", "--newest", "1.3.2", good="", bad="")
    assert said.code == 0, said.err
    assert case.edges == [("1.1.0", "1.1.1", True)]
    assert case.document["failure"] == "py-exc KeyError: 'early'"
    assert [other["title"] for other in case.document["others"]] == ["py-exc OSError: late"]
    assert any("--signature" in note and "OSError" in note for note in case.document["notes"])
    assert case.bisect("--confidence", "0", "--signature", "OSError*").code == 0
    assert case.edges == [("1.1.0", "1.3.0", True)]  # what fails otherwise before says nothing
    assert {case.verdicts[name] for name in case.document["edges"][0]["between"]} == {"other failure"}


def test_another_failure_of_the_bad_end_is_named(case: Case) -> None:
    """What it showed first may have been a hiccup: no edge of that is certain, and the note says how to go on."""
    case.repro("if number == 11 and turn == 1: raise OSError('hiccup')\n" + BEGINS)
    said = case.bisect("--sweep", "0", "--attempts", "5")
    assert said.code == 1, said.out
    assert case.document["failure"] == "py-exc OSError: hiccup"
    advice = (
        "the failure that 1.3.2 showed first was looked for; --signature 'py-exc KeyError: *broken*' looks for another"
    )
    assert advice in case.document["notes"]
    assert case.bisect("--sweep", "0", "--attempts", "5", "--signature", "py-exc KeyError: *broken*").code == 0
    assert case.edges == [("1.2.0", "1.2.1", True)]


def test_ends_that_are_not_what_they_are_said_to_be(case: Case) -> None:
    case.repro(BEGINS)
    said = case.bisect("--confidence", "0", bad="1.1.0")
    assert said.code == 2
    assert "1.1.0 is said to be bad" in said.out
    assert not case.document["edges"]
    assert {*case.tries} == {"1.1.0"}
    assert not (case.checkout.root / "reports" / "bisect-since.md").exists()
    said = case.bisect("--confidence", "0", good="1.2.2")
    assert said.code == 2
    assert "1.2.2 is said to be good" in said.out


def test_a_good_end_alone_that_fails_is_refused_before_anything_else_is_tried(case: Case) -> None:
    """Whatever it shows: what most versions show would be known after the sweep alone."""
    case.repro("if number == 0: raise OSError('another')\n" + BEGINS)
    for good, *args in (("1.0.0",), ("1.2.2",), ("1.3.0", "--newest", "1.3.2", "--find", "fix")):
        (case.checkout.root / "tries").unlink(missing_ok=True)
        said = case.bisect(*args, good=good, bad="")
        assert said.code == 2, said.err
        assert f"no search: {good} is said to be good and failed in 1 of 1 attempt\n" in said.out
        assert case.tries == [good]


def test_no_change_is_exit_1(case: Case) -> None:
    case.repro("pass")
    said = case.bisect("--oldest", "1.0.0", "--newest", "1.3.2", "--confidence", "0", good="", bad="")
    assert said.code == 1, said.err
    assert "no change found" in said.out


def test_a_flaky_failure_is_counted_and_found(case: Case) -> None:
    case.repro("if number >= 7 and turn % 3 != 2: raise KeyError('broken')")
    said = case.bisect("--confidence", "0.9", "--sweep", "0")
    assert said.code == 0, said.err + said.out
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert 0 < case.document["rate"]["low"] < case.document["rate"]["high"] <= 1
    mixed = [each["name"] for each in case.document["path"] if len(each["rates"]) == 2]
    assert mixed
    assert min(mixed, key=NAMES.index) >= "1.2.1"
    tries = case.tries
    assert case.bisect("--confidence", "0.9", "--sweep", "0").code == 0
    assert case.tries == tries


def test_too_few_attempts_are_ambiguous(case: Case) -> None:
    case.repro("if number >= 7 and turn % 3 == 1: raise KeyError('broken')")
    said = case.bisect("--attempts", "4", "--sweep", "0")
    assert said.code == 1, said.out
    assert "AMBIGUOUS" in case.verdicts.values()


def test_a_metric_is_bisected_by_change_and_by_condition(case: Case) -> None:
    case.repro("print(f'REPRO_METRIC seconds={1 + number % 3 / 10 + 2 * (number >= 7)}')")
    assert case.bisect("--metric", "seconds", "--sweep", "0").code == 0
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert {each["name"]: each["metric"] for each in case.document["path"]}["1.2.1"] == pytest.approx(3.1)
    assert case.document["rules"]["symmetric"] is True
    assert case.bisect("--metric", "seconds > 3.05", "--sweep", "0", bad="1.2.1").code == 0
    assert case.document["failure"] == "seconds > 3.05"
    said = case.bisect("--metric", "seconds", bad="1.1.0")
    assert said.code == 2
    assert "seconds does not tell the good version from the bad one" in said.err
    assert case.bisect("--metric", "memory").code == 2


def test_an_index_that_is_gone_is_no_version_s_fault(case: Case) -> None:
    case.repro(BEGINS)
    case.index.refuses = 503
    said = case.bisect()
    assert said.code == 3
    assert case.document == {}
    case.index.refuses = 0
    case.index.broken = {item.path.name for item in case.index.published if item.version in NAMES[1:-1]}
    said = case.bisect()
    assert said.code == 3, said.err
    assert case.document == {}
    assert {*case.tries} == {"1.0.0", "1.3.2"}
    assert said.err.count("infra: ") < 4
    case.index.broken.clear()
    assert case.bisect().code == 0
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert Counter(case.tries)["1.0.0"] == 1


def test_one_wheel_that_cannot_be_had_is_passed_by(case: Case) -> None:
    case.index.broken = {item.path.name for item in case.index.published if item.version == "1.2.0"}
    case.repro(BEGINS)
    said = case.bisect("--confidence", "0")
    assert said.code == 0, said.err
    assert case.edges == [("1.1.2", "1.2.1", True)]
    assert case.verdicts["1.2.0"] == "infra"
    assert any("infrastructure failed for 1.2.0" in note for note in case.document["notes"])


def test_input_that_is_wrong_is_told_before_anything_runs(case: Case) -> None:
    case.repro(BEGINS)
    for args, told in {
        ("--find", "anything"): "--find 'anything'",
        ("--newest", "1.3.2"): "2 ends",
        ("--metric", ">3"): "expected the name of a metric",
        ("--metric", "a", "--signature", "b"): "give one of them",
        ("--sweep", "most"): "--sweep",
        ("--axis", "nowhere"): "nowhere",
        ("--markdown", "no/such/folder.md"): "no such folder",
        ("--markdown", "./out.json"): "name one file",
        ("--jobs", "none"): "--jobs",
        ("--nightly",): "no index of nightly builds is named",
    }.items():
        said = case.bisect(*args)
        assert said.code in (2, 3), args
        assert told.replace("2 ends", "two ends") in said.err, said.err
    assert case.tries == []


def test_one_document_on_standard_output(case: Case) -> None:
    case.repro(BEGINS)
    said = case.checkout.invoke(
        *["bisect", "since", "--good", "1.0.0", "--bad", "1.3.2", "--confidence", "0", "--json", "-"]
    )
    assert said.code == 0
    assert json.loads(said.out)["bisection"]["answer"] == "found"
    assert "begins in jax 1.2.1" in said.err
    said = case.checkout.invoke(
        *["bisect", "since", "--good", "1.0.0", "--bad", "1.3.2", "--confidence", "0", "--markdown", "-"]
    )
    assert said.out.startswith("## ")


SLOW = "if turn == 1 and number == 5:\n    pathlib.Path('{signal}').touch()\n    time.sleep(60)\n"


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_blow_in_the_middle_loses_nothing(case: Case, blow: signal.Signals) -> None:
    waiting = case.checkout.root / "waiting"
    case.repro(SLOW.format(signal=waiting) + BEGINS, timeout='"90s"')
    tool = case.checkout.start(*case.arguments("--confidence", "0"))
    end = time.monotonic() + 60
    while not waiting.exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(tool.pid, blow)
    said, told = tool.communicate(timeout=30)
    before = case.tries
    assert before[-1] == "1.1.2"
    case.read()
    if blow is not signal.SIGKILL:
        assert tool.returncode == 130
        assert case.document["answer"] == "interrupted"
        assert {*case.verdicts} == {*before[:-1]}
        assert "interrupted" in said
        assert "same command continues" in told
    assert case.bisect("--confidence", "0").code == 0
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert {name: count for name, count in Counter(case.tries).items() if count > 1} == {"1.1.2": 2}


@pytest.mark.parametrize("option", [[], ["--no-prefetch"]])
def test_what_comes_next_is_made_ready_meanwhile(case: Case, option: list[str]) -> None:
    """While the first attempt runs, environments appear that no attempt has asked for."""
    venvs, seen = case.checkout.root.parent / "store" / "venvs", case.checkout.root / "seen"
    case.repro(
        f"here = lambda: sum(1 for one in pathlib.Path({str(venvs)!r}).iterdir() if one.is_dir())\n"
        f"end = time.monotonic() + {2 if option else 60}\n"
        "while number == 11 and here() < 3 and time.monotonic() < end: time.sleep(0.05)\n"
        f"if number == 11: pathlib.Path({str(seen)!r}).write_text(str(here()))\n" + BEGINS,
        timeout='"90s"',
    )
    assert case.bisect("--confidence", "0", "--sweep", "0", *option).code == 0
    assert int(seen.read_text()) == 1 if option else int(seen.read_text()) >= 3
    assert len(case.environments()) >= len({*case.tries})
    assert (len(case.environments()) == len({*case.tries})) == bool(option)


def test_several_versions_are_tried_at_once(case: Case) -> None:
    running = case.checkout.root / "running"
    running.mkdir()
    case.repro(
        f"here = pathlib.Path({str(running)!r})\n(here / jax.__version__).touch()\nend = time.monotonic() + 5\n"
        "while turn == 1 and len(list(here.iterdir())) % 3 and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(0.3)\n" + BEGINS
    )
    said = case.bisect("--confidence", "0", "--sweep", "0", "--jobs", "3")
    assert said.code == 0, said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert any(line.startswith("try    ") and line.count(",") >= 2 for line in said.err.splitlines())


def test_nightly_builds_between_the_releases(tmp_path: Path, case: Case) -> None:
    builds = {f"1.2.1.dev202507{day:02d}": f"2025-07-{day:02d}" for day in range(11, 31)}
    with serve(tmp_path / "nightly") as nightly:
        publish_jax(nightly, builds)
        path = case.checkout.root / "matrix.toml"
        path.write_text(path.read_text() + f'\n[indexes]\nnightly = "{nightly.url}"\n')
        case.repro(BEGINS + "\nif 'dev' in jax.__version__ and jax.__version__[-2:] >= '22': raise KeyError('broken')")
        said = case.bisect("--confidence", "0", "--nightly")
    assert said.code == 0, said.err
    assert case.edges == [("1.2.1.dev20250721", "1.2.1.dev20250722", True)]
    assert "1.2.1.dev20250721" in case.document["versions"]


def test_days_of_one_release_are_ends_among_the_nightly_builds(tmp_path: Path, case: Case) -> None:
    builds = {f"1.2.1.dev202507{day:02d}": f"2025-07-{day:02d}" for day in range(11, 31)}
    case.repro("if jax.__version__[-2:] >= '22': raise KeyError('broken')")
    said = case.bisect(good="2025-07-15", bad="2025-07-28")
    assert "2025-07-15 and 2025-07-28 are one version" in said.err
    with serve(tmp_path / "nightly") as nightly:
        publish_jax(nightly, builds)
        path = case.checkout.root / "matrix.toml"
        path.write_text(path.read_text() + f'\n[indexes]\nnightly = "{nightly.url}"\n')
        days = {"good": "2025-07-15", "bad": "2025-07-28"}
        said = case.bisect("--confidence", "0", "--sweep", "0", "--nightly", **days)
        assert said.code == 0, said.err
        assert case.edges == [("1.2.1.dev20250721", "1.2.1.dev20250722", True)]
        assert {"1.2.1.dev20250715", "1.2.1.dev20250728"} <= {*case.tries}
        said = case.bisect("--nightly", good="2025-07-28", bad="2025-07-28")
        assert said.code == 2
        assert "both ends are 2025-07-28: one version" in said.err


def test_edges_of_releases_are_told_where_the_nightly_index_is_gone(tmp_path: Path, case: Case) -> None:
    with serve(tmp_path / "nightly") as nightly:
        nightly.refuses = 503
        path = case.checkout.root / "matrix.toml"
        path.write_text(path.read_text() + f'\n[indexes]\nnightly = "{nightly.url}"\n')
        case.repro(BEGINS)
        said = case.bisect("--confidence", "0", "--sweep", "0", "--nightly")
    assert said.code == 3, said.err
    assert "begins in jax 1.2.1" in said.out
    assert "the package index cannot be asked" in said.err
    assert case.edges == [("1.2.0", "1.2.1", True)]
    assert any("the nightly builds were not searched to the end" in note for note in case.document["notes"])
