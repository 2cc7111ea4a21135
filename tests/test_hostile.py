"""What hostile scripts and unlucky users do to the whole job, through the command line, on stand-in wheels."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Checkout, Said
from tests.test_main_job import cells

ONE = ("--env", "jax1.0.0*")

FORGED = """\
import json, os, signal
verdict = dict(
    schema=1, id=json.load(open("../spec.json"))["id"], infra="", cancelled="", timed_out=False, oom_kills=0,
    peak_memory=1, seconds=1.0, started="2026-01-01T00:00:00Z", stdout_bytes=0, stderr_bytes=0, disk_full=False,
    notes=[], exit_status=0, signal=None, core=False,
)
json.dump(verdict, open("../result.json", "w"))
"""
"""Writes a verdict of its own: exit status 0."""


def shell(checkout: Checkout, line: str) -> Said:
    """Run a shell line in which `"$@"` is the tool."""
    done = subprocess.run(
        ["bash", "-c", line, "bash", *checkout.command()],
        cwd=checkout.root,
        env=checkout.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def test_a_forged_verdict_is_not_believed(checkout: Checkout) -> None:
    checkout.repro("forges", FORGED + "raise SystemExit(7)")
    _, found = cells(checkout, *ONE)
    assert (found[0]["outcome"], found[0]["exit_status"]) == ("error", 7)


def test_a_forged_verdict_is_not_believed_later_either(checkout: Checkout) -> None:
    checkout.repro("forges", FORGED + "os.kill(os.getppid(), signal.SIGKILL)")
    code, found = cells(checkout, *ONE)
    assert (code, found[0]["outcome"]) == (3, "infra")
    assert "0 changed" in checkout.invoke("regrade").out
    assert '"infra"' in checkout.invoke("report", "--json", "-").out


def test_logs_that_the_supervisor_did_not_write_are_not_read(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret")
    body = (
        f"import os\nos.symlink({str(tmp_path / 'secret')!r}, '../stdout.0')\n"
        "open('../stderr.0x', 'w').write('RuntimeError: forged')\nraise SystemExit(7)"
    )
    checkout.repro("plants", body, witness='{ output = ["the secret"] }')
    _, found = cells(checkout, *ONE)
    assert (found[0]["outcome"], found[0]["signature"]["title"]) == ("error", "exit 7")


def test_attempts_lost_to_infrastructure_are_not_passed_over(checkout: Checkout) -> None:
    body = "import os, pathlib, signal\nif pathlib.Path.cwd().parent.name != '1': os.kill(os.getppid(), signal.SIGKILL)"
    checkout.repro("half", body, repeat="3", expect='[[expect]]\noutcome = "ok"')
    code, found = cells(checkout, *ONE, "--jobs", "1")
    assert (code, found[0]["outcome"], len(found[0]["attempts"])) == (3, "ok", 1)
    assert "1 of 3 attempts have a verdict" in found[0]["reason"]


def test_a_repro_without_a_cell_is_no_success(checkout: Checkout) -> None:
    checkout.repro("never", "pass", jax='"==7.0"')
    said = checkout.invoke("matrix")
    assert said.code == 2
    assert "no cell is left to run" in said.err
    checkout.repro("runs", "pass")
    said = checkout.invoke("matrix")
    assert said.code == 0
    assert "never: no cell of it is chosen: the repro asks for jax ==7.0" in said.err


def test_more_cpus_than_there_are_is_a_skip(checkout: Checkout) -> None:
    checkout.repro("wide", "pass", cpus="9999")
    _, found = cells(checkout, *ONE)
    assert found[0]["outcome"] == "skip"
    assert found[0]["reason"].startswith("needs 9999 CPUs, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "x"), "--jobs 'x' is not a number from 1"),
        (("--jobs", "-1"), "--jobs '-1' is not a number from 1"),
        (("--repeat", "0"), "--repeat '0' is not a number from 1"),
        (("--repeat", "9" * 30), "is not a number from 1 to"),
        (("--json", "/"), "it is a folder"),
        (("--json", "nowhere/out.json"), "there is no such folder"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(
    checkout: Checkout, arguments: tuple[str, ...], message: str
) -> None:
    checkout.repro("any", "pass")
    said = checkout.invoke("matrix", *arguments)
    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert not (checkout.root / ".repromatrix").exists()


def test_lock_check_of_some_does_not_call_the_others_stale(checkout: Checkout) -> None:
    checkout.repro("any", "pass")
    assert checkout.invoke("lock").code == 0
    said = checkout.invoke("lock", "--check", *ONE)
    assert (said.code, said.out) == (0, "")
    (checkout.root / "containers" / "locks" / "jax0.1-cpu-py311.txt").write_text("")
    assert "jax0.1-cpu-py311: stale" in checkout.invoke("lock", "--check", *ONE).out


@pytest.mark.parametrize(
    "line",
    [
        'set -o pipefail; "$@" matrix | true',
        'set -o pipefail; "$@" matrix --json - | true',
        '"$@" matrix >&-',
        '"$@" matrix 2>&-',
        '"$@" matrix <&- >&- 2>&-',
        'set -o pipefail; "$@" run fails --env "jax1.0.0*" | true',
    ],
)
def test_output_that_nobody_reads_changes_no_exit_status(checkout: Checkout, line: str) -> None:
    checkout.repro("fails", "print('x' * 300000)\nraise SystemExit(3)")
    said = shell(checkout, line)
    assert said.code == 1, said.err
    assert "Traceback" not in said.err
    assert cells(checkout)[0] == 1  # and the database is whole


def test_output_to_a_full_disk_is_infrastructure(checkout: Checkout) -> None:
    checkout.repro("any", "pass")
    for line in ('"$@" cells >/dev/full', '"$@" matrix >/dev/full'):
        said = shell(checkout, line)
        assert said.code == 3
        assert "cannot write the output: No space left on device" in said.err
        assert "Traceback" not in said.err


def test_a_store_that_cannot_be_made_is_infrastructure(checkout: Checkout) -> None:
    checkout.repro("any", "pass")
    said = checkout.invoke("matrix", REPROMATRIX_STORE="/dev/null/store")
    assert said.code == 3
    assert "/dev/null/store" in said.out + said.err
    assert "Traceback" not in said.err


def test_what_was_removed_from_a_venv_is_not_blamed_on_the_version(checkout: Checkout, tmp_path: Path) -> None:
    checkout.repro("any", "import jax; print(jax.__version__)")
    assert cells(checkout, *ONE)[0] == 0
    for part in ("venvs", "trees"):  # the files are shared: one edit reaches both
        for path in (tmp_path / "store" / part).rglob("jax/__init__.py"):
            path.chmod(0o644)
            path.write_text("__version__ = 'another'\n")
    code, found = cells(checkout, *ONE, "--rerun")
    assert code == 0
    assert (checkout.root / found[0]["attempts"][0]["evidence"] / "stdout").read_text() == "1.0.0\n"


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_folder_of_repros_that_cannot_be_read(checkout: Checkout) -> None:
    checkout.repro("any", "pass")
    (checkout.root / "repros").chmod(0)
    try:
        said = checkout.invoke("cells")
    finally:
        (checkout.root / "repros").chmod(0o755)
    assert said.code == 2
    assert "Permission denied" in said.err
