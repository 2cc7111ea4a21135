"""`python -m repromatrix.search`, as one types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEN = [str(version) for version in range(1, 11)]


def typed(*words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "repromatrix.search", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_first_bad_version_is_found_and_confirmed() -> None:
    status, out, _ = typed("--good", "1", "--bad", "10", *TEN, "--", "sh", "-c", "test {} -lt 7")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "10: bad (end, 5 versions left)"
    assert lines[-1] == "7 is the first bad one after 6 (confidence 0.992)"
    assert len({line.partition(":")[0] for line in lines[:-1]}) <= 6
    assert sum("(confirm" in line for line in lines) == 7


def test_a_fix_between_two_versions_of_many() -> None:
    words = ("--confidence", "0", "--bad", "3", "--good", "9", *TEN, "--", "sh", "-c", "test {} -ge 5 -a {} -lt 10")
    status, out, _ = typed(*words)
    assert status == 0
    assert out.splitlines()[0].startswith("3: bad (end")
    assert out.splitlines()[-1] == "5 is the first good one after 4 (confidence 0)"


def test_125_says_nothing() -> None:
    script = "test {} -eq 6 && exit 125; test {} -lt 7"
    status, out, _ = typed("--confidence", "0.5", "--good", "1", "--bad", "10", *TEN, "--", "sh", "-c", script)
    assert status == 0
    assert out.splitlines()[-1] == "7 is the first bad one after 5 (confidence 0.75), without a verdict between: 6"


def test_no_change() -> None:
    assert typed(*TEN, "--", "true", "{}")[:2] == (
        1,
        "10: good (end, 1 version left)\n1: good (end, 0 versions left)\nno change was seen\n",
    )


def test_a_failure_too_rare_to_tell(tmp_path: Path) -> None:
    """Of version 3 every ninth attempt fails, the first one among them."""
    count = tmp_path / "count"
    script = f"test {{}} -lt 3 && exit 0; n=$(cat {count} || echo 0); echo $((n + 1)) > {count}; test $((n % 9)) -ne 0"
    status, out, _ = typed("--attempts", "20", "--good", "1", "--bad", "3", "1", "3", "--", "sh", "-c", script)
    assert status == 1
    assert out.splitlines()[-1].startswith("no change is certain: the failure comes and goes (in 0.00")
    assert out.splitlines()[-1].endswith("passes would make a version good; ambiguous: 1")


def test_an_end_that_is_not_what_it_is_said_to_be() -> None:
    status, out, _ = typed("--good", "1", "--bad", "10", *TEN, "--", "true", "{}")
    assert status == 2
    assert out.splitlines()[-1].startswith("10 is said to be bad and was ok in 7 of 7 attempts")


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ((), "the following arguments are required: VERSION"),
        (("1", "2"), "the command is missing"),
        (("1", "2", "--"), "the command has no {} for the version"),
        (("1", "2", "--", "true"), "the command has no {} for the version"),
        (("--", "true", "{}"), "the following arguments are required: VERSION"),
        (("1", "2", "1", "--", "true", "{}"), "twice among the versions: 1"),
        (("--good", "1", "1", "2", "--", "true", "{}"), "--good and --bad go together"),
        (("--good", "1", "--bad", "1", "1", "2", "--", "true", "{}"), "one version cannot be good and bad"),
        (("--good", "1", "--bad", "3", "1", "2", "--", "true", "{}"), "3 is not among the versions"),
        (("--confidence", "1", "1", "2", "--", "true", "{}"), "invalid number from 0 to below 1 value: '1'"),
        (("--rate", "x", "1", "2", "--", "true", "{}"), "invalid number from 0 to below 1 value: 'x'"),
        (("--rate", "nan", "1", "2", "--", "true", "{}"), "invalid number from 0 to below 1 value: 'nan'"),
        (("--attempts", "0", "1", "2", "--", "true", "{}"), "invalid count above 0 value: '0'"),
    ],
)
def test_mistakes(words: tuple[str, ...], mistake: str) -> None:
    status, out, error = typed(*words)
    assert (status, out) == (2, "")
    assert mistake in error


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("./no-such-program", "{}"), "./no-such-program did not start: No such file or directory"),
        (("sh", "-c", "exit 128; {}"), "sh ended with status 128 with 10: no verdict is above 127"),
        (("sh", "-c", "kill -9 $$; {}"), "sh was ended by SIGKILL with 10"),
    ],
)
def test_a_command_that_does_not_run_is_no_verdict(command: tuple[str, ...], why: str) -> None:
    status, out, error = typed(*TEN, "--", *command)
    assert (status, out) == (3, "")
    assert why in error


def test_ctrl_c() -> None:
    words = [sys.executable, "-m", "repromatrix.search", "1", "2", "--", "sh", "-c", "echo {} runs >&2; exec sleep 30"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "2 runs\n"
        os.killpg(running.pid, signal.SIGINT)
        began = time.monotonic()
        rest = running.stderr.read()
        assert running.wait(20) == 130
    assert "Traceback" not in rest
    assert time.monotonic() - began < 20


def test_a_reader_that_has_enough() -> None:
    words = f"{sys.executable} -m repromatrix.search --confidence 0 {' '.join(TEN)} -- true {{}} | true"
    done = subprocess.run(words, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
