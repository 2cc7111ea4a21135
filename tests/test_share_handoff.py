"""Folders that are handed over, on a machine with nothing but uv: what is in them, and what they say of what comes."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.engines.base import Raw
from repromatrix.engines.local_cuda import NEEDED
from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.network import uv_environment
from repromatrix.errors import ReproError
from repromatrix.evidence.outcome import GradeContext, grade
from repromatrix.kept import known_cells
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.results.model import HloFacts, HloModule
from repromatrix.share.handoffs.again import STATUS, Place, libraries, reproduce, together
from repromatrix.share.handoffs.bundle import closure, gz, tar, zipapp
from repromatrix.share.handoffs.expected import Expected, Grading, Handoff, Start, from_json, to_json
from repromatrix.share.handoffs.readme import Case as Result
from repromatrix.share.handoffs.standalone import MOST_ATTEMPTS, attempts_for, files, from_wheels, quick, with_stacks
from repromatrix.share.handoffs.verdict import OTHERWISE, REPRODUCED, UNKNOWN, Verdict, compare
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.model import Outcome, SignatureRule, Witness
from tests.conftest import ROOT, Checkout, Said
from tests.handed_over import (
    FAILS_IN_1_1,
    WITNESS,
    Case,
    Machine,
    case_of,
    change,
    expected,
    hand_over,
    last,
    machine,
    unshare,
)


@pytest.fixture
def lonely(tmp_path: Path) -> Machine:
    """A machine with uv."""
    return machine(tmp_path / "machine", ["uv"])


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with case_of(tmp_path_factory.mktemp("case")) as made:
        yield made


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    """A copy of the folder with the failure."""
    return shutil.copytree(case.failing, tmp_path / "folder")


# ---- what is in it ----


def test_the_folder_holds_what_it_needs(case: Case, folder: Path) -> None:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        *("Dockerfile", "Dockerfile.wheels", "README.md", "expected.json", "lock.txt", "pack_core.py"),
        *("reproduce.pyz", "reproduce.sh", "requirements.txt", "stacks.py", "stacks.txt", "supervise.py"),
        *("expected/stderr", "expected/stdout", "work/wrong_sum.py"),
    }
    assert (folder / "work/wrong_sum.py").read_bytes() == (case.checkout.root / "repros/wrong_sum.py").read_bytes()
    assert os.access(folder / "reproduce.sh", os.X_OK)
    assert "ArithmeticError: the sum of 3 values is wrong" in (folder / "expected/stderr").read_text()
    readme = (folder / "README.md").read_text()
    assert "sh reproduce.sh\n" in readme
    assert "`error status 1`" in readme
    assert "--gpus" not in readme
    assert "`docker rmi repromatrix-handoff:" in readme


def test_the_archive_is_the_folder_and_the_same_each_time(case: Case) -> None:
    again = hand_over(case.checkout, "wrong_sum")  # the kept result; the first failing cell
    packed = again.with_name("wrong_sum.tar.zst").read_bytes()
    found = {}
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(packed, 1 << 26))) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None
            found[member.name] = (stream.read(), member.mode)
            assert (member.mtime, member.uid, member.uname) == (0, 0, "")
    with tarfile.open(again.with_name("wrong_sum.tgz")) as archive:
        assert archive.getnames() == list(found)
    files = [path for path in case.failing.rglob("*") if path.is_file()]
    assert found == {
        f"wrong_sum/{path.relative_to(case.failing)}": (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in files
    }
    hand_over(case.checkout, "wrong_sum")
    assert again.with_name("wrong_sum.tar.zst").read_bytes() == packed


def test_what_compares_is_the_tools_own_and_needs_nothing_else(folder: Path) -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-X",
            "importtime",
            folder / "reproduce.pyz",
            "/nowhere",
            "/x",
            "/y",
            "/z",
            "1",
            "host",
            "",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == STATUS[UNKNOWN]
    assert told.stdout.startswith("COULD NOT RUN: ")
    used = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    assert "repromatrix.evidence.signature" in used
    foreign = {name.partition(".")[0] for name in used} - set(sys.stdlib_module_names)
    assert {name for name in foreign if name.isidentifier() and not name.startswith("_")} <= {"repromatrix", "org"}


def test_a_zipapp_is_the_same_each_time() -> None:
    assert zipapp("repromatrix.share.handoffs.again") == zipapp("repromatrix.share.handoffs.again")
    names = {path.name for path in closure("repromatrix.share.handoffs.again")}
    assert {"signature.py", "outcome.py", "verdict.py"} <= names
    assert "docker.py" not in names
    assert gz(tar({"a": (b"x", False)}, "top")) == gz(tar({"a": (b"x", False)}, "top"))


def test_gpus_and_devices_are_told(case: Case, tmp_path: Path, lonely: Machine) -> None:
    """As the folder of a cell with two GPUs would be, from a result without any: there are none here."""
    project = Project(case.checkout.root, Path(case.checkout.environ["REPROMATRIX_STORE"]))
    matrix, repros = load(project)
    (result,) = (one for one in known_cells(project, matrix, repros) if one.outcome is Outcome.ERROR)
    (cell,) = (one for one in choose(matrix, repros, Request(env="*"), "venv").cells if one.id == result.id)
    hostile = replace(cell.repro, title="a `title`\nwith | two lines", issue="a/b#1")
    cell = replace(cell, target="gpu:2", repro=hostile, params=(("p", "x\nexit 0\n"),))
    lock = read_lock(project.locks / f"{cell.environment.id}.txt", cell.environment)
    found, warnings = files(Result(cell, result, lock, matrix), project, Redactor())
    assert warnings == ()
    readme, script = (found[name][0].decode() for name in ("README.md", "reproduce.sh"))
    assert "sh reproduce.sh --gpus    # docker create --gpus all ..." in readme
    assert "sh reproduce.sh --cdi     # docker create --device nvidia.com/gpu=all ..." in readme
    assert "# a \\`title\\` with &#124; two lines" in readme
    assert "\ngpus=2\n" in script
    assert "\nexit 0\n\n" not in script, "a parameter's value is no line of the script"
    folder = tmp_path / "folder"
    for name, (content, _) in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
        assert (said.code, last(said)) == (3, "COULD NOT RUN: it needs 2 NVIDIA GPUs, none can be seen here"), said.err


# ---- what it says, with uv alone ----


def test_reproduced_with_uv_alone(folder: Path, lonely: Machine, case: Case) -> None:
    said = lonely.run(folder, "--uv", "--keep", str(lonely.home / "kept"), UV_DEFAULT_INDEX=case.index.url)
    assert (said.code, last(said)) == (
        0,
        'REPRODUCED: error status 1 "py-exc ArithmeticError: the sum of N values is wrong"',
    ), said.err
    assert "version 1.1.0" in (lonely.home / "kept/1/stdout").read_text()
    assert not list(lonely.home.glob("reproduce.*")), "its temporary folder is gone"


@pytest.mark.parametrize("inside", ["", "tmp"])
def test_a_project_of_the_caller_decides_nothing(
    tmp_path: Path, folder: Path, lonely: Machine, case: Case, inside: str
) -> None:
    """Called below a uv project, with paths relative to there; also where the temporary folders are made in it."""
    project = tmp_path / "project"
    (project / "notes/tmp").mkdir(parents=True)
    text = """[project]
    name = "theirs"
    version = "1"
    [tool.uv]
    required-version = "==0.1.0"
    constraint-dependencies = ["jax==1.2.0"]
    override-dependencies = ["jax==1.2.0"]
    """
    (project / "pyproject.toml").write_text(text)
    (project / "constraints.txt").write_text("jax==1.2.0")
    own = lonely.home / ".config/uv"
    own.mkdir(parents=True)
    (own / "uv.toml").write_text(f'[[index]]\nurl = "{case.index.url}"\ndefault = true\n')
    folder = folder.rename(project / "notes/kit")
    environ = {"UV_CONSTRAINT": "../constraints.txt"} | ({"TMPDIR": inside} if inside else {})
    given = {"PATH": str(lonely.path), "HOME": str(lonely.home), "TMPDIR": str(lonely.home), **environ}

    def call(*argv: str) -> Said:
        done = subprocess.run(
            argv, cwd=project / "notes", env=given, capture_output=True, text=True, timeout=300, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    sh = (str(lonely.path / "sh"), "kit/reproduce.sh", "--uv", "--keep")
    said = call(*sh, "kept")
    assert (said.code, last(said).partition(":")[0]) == (0, REPRODUCED), said.err
    assert "version 1.1.0" in (project / "notes/kept/1/stdout").read_text()
    carried = project / "notes/wheels"
    carried.mkdir()
    for one in case.index.published:
        shutil.copy(one.path, carried)
    (own / "uv.toml").unlink()
    said = call(*unshare(), *sh, "again", "--wheels", "wheels")
    assert (said.code, last(said).partition(":")[0]) == (0, REPRODUCED), said.err
    assert not list(project.rglob("reproduce.*/")), "its temporary folders are gone"


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_any_posix_shell_will_do(tmp_path: Path, folder: Path, case: Case, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    other = machine(tmp_path / shell, ["uv"], shell=shell)
    said = other.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
    assert (said.code, last(said).partition(":")[0]) == (0, REPRODUCED), said.err


def test_another_environment_that_is_well(folder: Path, lonely: Machine, case: Case) -> None:
    """The versions of another environment in the folder of the failing one."""
    shutil.copy(case.well / "requirements.txt", folder)
    said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
    assert (said.code, last(said)) == (1, "NOT REPRODUCED: ok"), said.err


def test_another_failure_is_none(folder: Path, lonely: Machine, case: Case) -> None:
    change(folder, "work/wrong_sum.py", "the sum of 3 values is wrong", "the shape is wrong")
    said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
    assert said.code == 1
    assert last(said) == (
        'NOT REPRODUCED: error status 1 "py-exc ArithmeticError: the shape is wrong": a different failure'
    )
    assert "    ArithmeticError: the shape is wrong" in said.out, "what came instead is shown"


def test_a_well_cell_needs_its_witness(tmp_path: Path, lonely: Machine, case: Case) -> None:
    folder = shutil.copytree(case.well, tmp_path / "folder")
    said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
    assert (said.code, last(said)) == (0, "REPRODUCED: ok"), said.err
    change(folder, "work/wrong_sum.py", 'print("the sum is right")', "")
    said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url)
    assert said.code == 1
    assert last(said).startswith("NOT REPRODUCED: inconclusive (exit 0, but the output lacks")


def test_a_forged_wheel_is_the_machines_fault(folder: Path, lonely: Machine, case: Case) -> None:
    case.index.broken.add("jax-1.1.0-py3-none-any.whl")
    try:
        said = lonely.run(folder, "--uv", UV_DEFAULT_INDEX=case.index.url, UV_HTTP_RETRIES="0")
    finally:
        case.index.broken.clear()
    assert (said.code, last(said)) == (3, "COULD NOT RUN: the wheels were not installed; uv's words are above")


def test_what_the_machine_lacks(tmp_path: Path, folder: Path, lonely: Machine) -> None:
    bare = machine(tmp_path / "bare", [])
    for options, why in (
        ((), "docker is not installed; with uv alone: sh reproduce.sh --uv"),
        (("--uv",), "uv is not installed; with Docker: sh reproduce.sh"),
    ):
        said = bare.run(folder, *options)
        assert (said.code, last(said)) == (3, f"COULD NOT RUN: {why}")
    change(folder, "expected.json", '"gpus": 0', '"gpus": 99')
    said = lonely.run(folder, "--uv", "--wheels", "/nowhere")
    assert (said.code, last(said)) == (3, "COULD NOT RUN: --wheels /nowhere: no such folder")


@pytest.mark.parametrize(
    "options", [["--wheels"], ["--repeat", "x"], ["--what"], ["--repeat", ""], ["--uv", "--base", "x"]]
)
def test_wrong_options(folder: Path, lonely: Machine, options: list[str]) -> None:
    said = lonely.run(folder, *options)
    assert said.code == 2
    assert "usage: sh reproduce.sh" in said.err


@pytest.mark.parametrize("layout", ["files", "archive"])
def test_without_a_network_from_carried_wheels(
    tmp_path: Path, folder: Path, lonely: Machine, case: Case, layout: str
) -> None:
    carried = tmp_path / "carried"
    for one in case.index.published:
        place = one.path.name if layout == "files" else f"blobs/sha256/{one.sha256}"
        (carried / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(one.path, carried / place)
    said = lonely.run(folder, "--uv", "--wheels", str(carried), wrap=unshare())
    assert (said.code, last(said).partition(":")[0]) == (0, REPRODUCED), said.err
    shutil.rmtree(carried)
    carried.mkdir()
    said = lonely.run(folder, "--uv", "--wheels", str(carried), wrap=unshare())
    assert said.code == 3
    assert last(said).startswith(f"COULD NOT RUN: not in {carried}: jax-1.1.0-py3-none-any.whl")


def test_asked_for_attempts_are_all_made(folder: Path, lonely: Machine, case: Case) -> None:
    said = lonely.run(folder, "--uv", "--repeat", "3", UV_DEFAULT_INDEX=case.index.url)
    assert said.code == 0
    assert said.out.count("attempt ") == 3
    assert last(said).endswith("(3 of 3 attempts)")


def test_ctrl_c_leaves_nothing(lonely: Machine, case: Case) -> None:
    case.checkout.repro("sleeper", "import time\nprint('up', flush=True)\ntime.sleep(600)", timeout='"1s"')
    folder = hand_over(case.checkout, "sleeper", "--cell", "*1.0.0*")
    assert expected(folder)["outcome"] == "hang"
    change(folder, "expected.json", '"timeout": 1.0', '"timeout": 500.0')
    environ = {"PATH": str(lonely.path), "HOME": str(lonely.home), "TMPDIR": str(lonely.home)}
    argv = [str(lonely.path / "sh"), "reproduce.sh", "--uv"]
    for _ in range(3):  # one time in four all was well by chance
        with subprocess.Popen(
            argv,
            cwd=folder,
            env={**environ, "UV_DEFAULT_INDEX": case.index.url},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            until = time.monotonic() + 60
            while not running("sleeper.py", lonely.home) and time.monotonic() < until:
                time.sleep(0.1)
            assert running("sleeper.py", lonely.home)
            os.killpg(process.pid, signal.SIGINT)
            _, told = process.communicate(timeout=30)
        assert (process.returncode, "reproduce.sh: interrupted" in told, "rm: " in told) == (130, True, False), told
        assert not running("sleeper.py", lonely.home)
        assert not list(lonely.home.glob("reproduce*")), "its folders are gone"


def running(script: str, home: Path) -> list[str]:
    """Processes that run `script` with something of `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if script in command and str(home) in command:
                found.append(command)
    return found


@pytest.mark.network
@pytest.mark.slow
def test_a_compiler_that_aborts(tmp_path: Path, lonely: Machine) -> None:
    """A shipped repro with real wheels, whose crash goes away with those of another version."""
    for name in ("matrix.toml", "repros", "containers"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    folders = {}
    for version in ("0.7.1", "0.7.0"):
        folders[version] = tmp_path / version
        options = ["--engine", "venv", "--cell", f"*@jax{version}-*noop_change", "--to", str(folders[version])]
        argv = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "handoff", "hlo_pass_crash", *options]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    network = {name: value for name, value in uv_environment().items() if name not in ("PATH", "HOME", "TMPDIR")}
    said = lonely.run(folders["0.7.1"], "--uv", **network)
    assert (said.code, last(said).partition('"')[0]) == (0, "REPRODUCED: crash SIGABRT "), said.err
    assert "reported that it changed the HLO" in last(said)
    shutil.copy(folders["0.7.0"] / "requirements.txt", folders["0.7.1"])
    said = lonely.run(folders["0.7.1"], "--uv", **network)
    assert (said.code, last(said)) == (1, "NOT REPRODUCED: ok"), said.err


# ---- nothing private ----


def test_nothing_private_leaves(checkout: Checkout, tmp_path: Path) -> None:
    token, user = "ghp_" + "Zx9Yw8Vu7" * 4, "mildred-planted"
    home = tmp_path / user
    home.mkdir()
    (home / "secrets").write_text(f"{token} {user} {home}/notes.txt {socket.gethostname()}")
    told = f"import os, sys\ntext = open({str(tmp_path)!r} + '/' + 'mildred-' + 'planted/secrets').read()\n"
    told += "print(text, os.uname().nodename)\nprint(text, file=sys.stderr)\nraise OSError(f'no rights: {text}')\n"
    checkout.repro("teller", told)
    folder = hand_over(checkout, "teller", "--cell", "*1.1.0*", HOME=str(home), USER=user, MY_TOKEN=token)
    planted = [
        token,
        user,
        str(home),
        str(checkout.root),
        *([] if len(socket.gethostname()) < 4 else [socket.gethostname()]),
    ]
    for path in (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "work"):
        text = path.read_bytes().decode(errors="replace")
        assert [word for word in planted if word in text] == [], path
    assert "no rights" in (folder / "expected/stderr").read_text()
    assert expected(folder)["globs"], "a title that held something private is compared around it"


# ---- which cell ----


def test_which_cell(checkout: Checkout) -> None:
    checkout.repro("wrong_sum", FAILS_IN_1_1, witness=WITNESS)
    said = checkout.invoke("handoff", "wrong_sum")
    assert said.code == 2
    assert "no failure of it is kept, so that a cell must be named" in said.err
    assert "wrong_sum@jax1.1.0-cpu-py3" in said.err
    said = checkout.invoke("handoff", "wrong_sum", "--cell", "*cpu*")
    assert (said.code, "3 cells match --cell *cpu*" in said.err) == (2, True)
    assert checkout.invoke("matrix", "--repro", "wrong_sum").code == 1
    folder = hand_over(checkout, "wrong_sum")
    assert "jax1.1.0" in (folder / "expected.json").read_text()


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [("skips", "raise SystemExit(125)", "it is skip"), ("vague", "print('nothing')", "it is inconclusive")],
)
def test_what_nobody_can_reproduce_is_refused(case: Case, name: str, body: str, why: str) -> None:
    case.checkout.repro(name, body, witness=WITNESS)
    said = case.checkout.invoke("handoff", name, "--cell", "*1.0.0*")
    assert (said.code, why in said.err) == (2, True), said.err
    assert not (case.checkout.root / "handoff" / name).exists()


def test_something_else_is_not_written_over(case: Case, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    said = case.checkout.invoke("handoff", "wrong_sum", "--cell", "*1.1.0*", "--to", str(tmp_path / "mine"))
    assert (said.code, "something else is there already" in said.err) == (2, True)
    assert (tmp_path / "mine/thesis.tex").read_text() == "years of work"


def test_notes_beside_an_earlier_handoff_are_not_lost(case: Case, tmp_path: Path) -> None:
    words = ("handoff", "wrong_sum", "--cell", "*1.1.0*", "--to", str(tmp_path / "kit"))
    assert case.checkout.invoke(*words).code == 0
    (tmp_path / "kit/notes.txt").write_text("what I found")
    said = case.checkout.invoke(*words)
    assert (said.code, "files of yours are there: notes.txt" in said.err) == (2, True)
    (tmp_path / "kit/notes.txt").unlink()
    said = case.checkout.invoke(*words)
    assert (said.code, "replaces the handoff that is in" in said.err) == (0, True)


def test_json_on_standard_output(case: Case) -> None:
    said = case.checkout.invoke("handoff", "wrong_sum", "--cell", "*1.1.0*", "--json", "-")
    assert json.loads(said.out)["outcome"] == "error"


# ---- the comparison ----


def of(outcome: Outcome, titles: tuple[str, ...] = (), **more: object) -> Expected:
    fields: dict[str, object] = {
        **dict.fromkeys(("signal", "signature")),
        **dict.fromkeys(("claimed", "globs", "metrics", "where", "changed", "unchanged"), ()),
        **dict.fromkeys(("exit_status", "failed", "of", "repeat"), 1),
    }
    return Expected(outcome=outcome, titles=titles, seconds=1.0, **{**fields, **more})  # type: ignore[arg-type]


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n{}\n'


def test_titles_meet_as_in_the_tool() -> None:
    found = grade(Raw(exit_status=1), "", TRACEBACK.format("ValueError: bad shape 3"), GradeContext())
    assert found.signature is not None
    assert compare(of(Outcome.ERROR, (*found.signature.alternatives, found.signature.title)), found).word == REPRODUCED
    assert compare(of(Outcome.ERROR, ("py-exc ValueError: bad type",)), found).word == OTHERWISE
    assert compare(of(Outcome.ERROR, (), globs=("py-exc ValueError: bad *",)), found).word == REPRODUCED
    assert compare(of(Outcome.ERROR, (), globs=("py-exc KeyError: bad *",)), found).word == OTHERWISE
    assert compare(of(Outcome.OK), found).word == OTHERWISE


def test_a_signal_alone_is_said_to_be_little() -> None:
    found = grade(Raw(signal="SIGSEGV"), "", "", GradeContext())
    verdict = compare(of(Outcome.CRASH, ("signal SIGSEGV in xla::Foo", "signal SIGSEGV")), found)
    assert (verdict.word, "no stack was read" in verdict.why) == (REPRODUCED, True)
    assert compare(of(Outcome.CRASH, ("signal SIGSEGV in xla::Foo",)), found).word == OTHERWISE


def test_the_machines_fault_is_no_verdict() -> None:
    found = grade(Raw(infra="the disk was full"), "", "", GradeContext())
    assert compare(of(Outcome.CRASH, ("hang",)), found) == Verdict(UNKNOWN, "the disk was full")


def test_claimed_outcomes_and_numbers() -> None:
    hang = grade(Raw(timed_out=True, signal="SIGABRT"), "", "", GradeContext())
    claim = of(Outcome.CRASH, ("signal SIGSEGV",), claimed=(Outcome.CRASH, Outcome.HANG))
    assert compare(claim, hang).word == REPRODUCED
    well = grade(Raw(exit_status=0), "REPRO_METRIC passes=20\n", "", GradeContext())
    assert compare(of(Outcome.OK, metrics=(("passes", ">= 20"),)), well).word == REPRODUCED
    assert compare(of(Outcome.OK, metrics=(("passes", "20.5"),)), well).why.endswith("passes is 20, expected 20.5")
    assert compare(of(Outcome.OK, metrics=(("other", "1"),)), well).word == OTHERWISE


def test_claims_on_passes() -> None:
    well = grade(Raw(exit_status=0), "", "", GradeContext())
    module = HloModule("jit_f", "a", "b", ("algsimp", "fusion"))
    hlo = HloFacts("passes", "explain", (module,))
    claim = of(Outcome.OK, changed=("fus*",), unchanged=("collective-*",))
    assert compare(claim, well, hlo).word == REPRODUCED
    assert compare(claim, well).word == OTHERWISE, "nothing is known of the passes"
    assert compare(claim, well, replace(hlo, whole=False)).word == OTHERWISE, "what is missing may be one"
    assert (
        compare(of(Outcome.OK, changed=("cse",)), well, hlo).why
        == "ok; claimed that cse changed a module, it changed none"
    )


@pytest.mark.parametrize(
    ("raw", "stderr"),
    [
        (Raw(exit_status=125), ""),
        (Raw(exit_status=1, oom_kills=1), ""),
        (Raw(signal="SIGKILL"), ""),
        (Raw(signal="SIGILL"), ""),
    ],
)
def test_what_this_machine_alone_can_have_done(raw: Raw, stderr: str) -> None:
    found = grade(raw, "", stderr, GradeContext())
    assert compare(of(Outcome.ERROR, ("py-exc ValueError: bad",)), found).word == UNKNOWN
    assert compare(of(Outcome.OK), found).word == UNKNOWN
    if found.outcome is Outcome.CRASH:
        assert compare(of(Outcome.CRASH, ("signal SIGSEGV in xla::Foo",)), found).word == UNKNOWN


SEEN = """
class Device:
    platform = {platform!r}

def devices():
    if {count} == 0:
        raise RuntimeError("Unable to initialize backend 'cuda'")
    return [Device()] * {count}
"""


@pytest.mark.parametrize(
    ("count", "platform", "ends", "outcome", "word", "why"),
    [
        (2, "gpu", "raise ValueError('bad')", Outcome.ERROR, REPRODUCED, ""),
        (
            1,
            "gpu",
            "raise ValueError('bad')",
            Outcome.ERROR,
            UNKNOWN,
            "jax sees 1 gpu devices here, and it needs 2 GPUs",
        ),
        (
            1,
            "cpu",
            "raise ValueError('bad')",
            Outcome.ERROR,
            UNKNOWN,
            "jax sees 1 cpu devices here, and it needs 2 GPUs",
        ),
        (1, "cpu", "", Outcome.OK, UNKNOWN, "jax sees 1 cpu devices here"),
        (0, "", "raise KeyError('other')", Outcome.ERROR, UNKNOWN, "jax does not start on GPUs here: RuntimeError"),
        # That CUDA does not start may be what was recorded.
        (0, "", "raise ValueError('bad')", Outcome.ERROR, REPRODUCED, ""),
        (2, "gpu", "", Outcome.ERROR, OTHERWISE, "ok"),
    ],
)
def test_what_did_not_run_on_gpus_is_no_verdict(
    tmp_path: Path, count: int, platform: str, ends: str, outcome: Outcome, word: str, why: str
) -> None:
    work = tmp_path / "folder" / "work"
    work.mkdir(parents=True)
    shutil.copy(ROOT / "containers" / "supervise.py", tmp_path / "folder")
    (work / "jax.py").write_text(SEEN.format(count=count, platform=platform))
    (work / "script.py").write_text(ends)
    start = Start("cell", "script.py", (), (("JAX_PLATFORMS", "cuda,cpu"),), 60.0, None, None, 2, 1, "")
    told = of(outcome, ("py-exc ValueError: bad",) if outcome.failed else ())
    handoff = Handoff(start, Grading("script.py", (), None, (), "", ""), told)
    found = reproduce(here(tmp_path / "folder"), tmp_path / "scratch", handoff, 0)
    assert (found.word, found.why.startswith(why)) == (word, True), found


def here(folder: Path) -> Place:
    return Place(folder, Path(sys.executable), None, own_cgroup=False, cuda=None)


@pytest.mark.parametrize(("recorded", "word"), [(0.1, OTHERWISE), (0.9, UNKNOWN)])
def test_a_slow_machine_proves_no_hang(tmp_path: Path, recorded: float, word: str) -> None:
    work = tmp_path / "folder" / "work"
    work.mkdir(parents=True)
    shutil.copy(ROOT / "containers" / "supervise.py", tmp_path / "folder")
    (work / "script.py").write_text("import time\ntime.sleep(60)")
    start = Start("cell", "script.py", (), (), 1.0, None, None, 0, 1, "")
    told = replace(of(Outcome.ERROR, ("py-exc ValueError: bad",)), seconds=recorded)
    handoff = Handoff(start, Grading("script.py", (), None, (), "", ""), told)
    found = reproduce(here(tmp_path / "folder"), tmp_path / "scratch", handoff, 0)
    assert found.word == word, found


def test_cuda_of_this_machine(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    assert libraries("", "", python) is None
    with pytest.raises(ReproError, match="name their folder with --cuda"):
        libraries("", "13", python)
    with pytest.raises(ReproError, match="no such folder"):
        libraries(str(tmp_path / "nowhere"), "13", python)
    toolkit = tmp_path / "cuda"
    (toolkit / "lib64").mkdir(parents=True)
    for name in NEEDED["13"].values():
        (toolkit / "lib64" / name).write_bytes(b"\x7fELF")
    found = libraries(str(toolkit), "13", python)
    assert found is not None
    assert found.folders == (toolkit / "lib64",)
    (toolkit / "lib64" / "libcudnn.so.9").unlink()
    with pytest.raises(ReproError, match="lack libcudnn"):
        libraries(str(toolkit), "13", python)


def test_one_failure_in_several_attempts() -> None:
    seen, other = Verdict(REPRODUCED, "hang"), Verdict(OTHERWISE, "ok")
    assert together(Outcome.HANG, [other, seen, other]) == Verdict(REPRODUCED, "hang (1 of 3 attempts)")
    assert together(Outcome.OK, [Verdict(REPRODUCED, "ok"), Verdict(OTHERWISE, "hang")]).word == OTHERWISE


@given(failed=st.integers(1, 200), more=st.integers(0, 200))
def test_attempts_find_what_is_rare(failed: int, more: int) -> None:
    attempts = attempts_for(failed, failed + more)
    assert 1 <= attempts <= MOST_ATTEMPTS
    missed = (more / (failed + more)) ** attempts
    assert missed <= 0.01 or attempts == MOST_ATTEMPTS


words = st.text(max_size=20)
pairs = st.lists(st.tuples(words, words), max_size=3).map(tuple)


@given(
    st.builds(
        Start,
        words,
        words,
        st.lists(words).map(tuple),
        pairs,
        st.floats(0, 1e6),
        st.none() | st.integers(1),
        *[st.integers(0, 9)] * 3,
        words,
    ),
    st.builds(
        Grading,
        words,
        st.lists(words).map(tuple),
        st.none() | st.builds(Witness, *[st.lists(words).map(tuple)] * 3),
        st.lists(st.builds(SignatureRule, words, words)).map(tuple),
        words,
        words,
    ),
    st.sampled_from(Outcome),
    pairs,
)
def test_expected_json_and_back(
    start: Start, grading: Grading, outcome: Outcome, metrics: tuple[tuple[str, str], ...]
) -> None:
    handoff = Handoff(start, grading, of(outcome, ("a", "b"), metrics=metrics, claimed=(outcome,)))
    assert from_json(to_json(handoff)) == handoff


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"schema": 2}', '{"schema": 1, "start": 3, "grading": {}, "expected": {}}', "x"]
)
def test_a_damaged_expectation(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_a_changed_template_is_noticed() -> None:
    with pytest.raises(AssertionError):
        with_stacks("FROM scratch\n")
    with pytest.raises(AssertionError):
        quick("FROM scratch\n")
    with pytest.raises(AssertionError):
        from_wheels("FROM scratch\nRUN /tmp/pip/bin/pip download x\n")
