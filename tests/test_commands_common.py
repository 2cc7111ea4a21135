"""What every command does alike."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT, Checkout

WORK = """\
import sys, time
from repromatrix.commands.common import command
@command
def work():
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        time.sleep(SLEEP)
        print("told", flush=True)
        raise
sys.exit(work())
"""


@pytest.mark.parametrize(
    ("signals", "apart", "told"),
    [
        ((signal.SIGINT,), 0.0, True),
        ((signal.SIGTERM,), 0.0, True),
        ((signal.SIGINT, signal.SIGINT), 0.05, True),  # the terminal's, and the one that `uv run` passes on
        ((signal.SIGINT, signal.SIGINT), 1.0, False),  # by somebody who will not wait
    ],
)
def test_an_interruption_that_comes_twice_is_one(signals: tuple[int, ...], apart: float, told: bool) -> None:
    code = WORK.replace("SLEEP", "0.4" if told else "20")
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for one in signals:
            process.send_signal(one)
            time.sleep(apart)
        out, err = process.communicate(timeout=15)
    assert (process.returncode, out) == (130, "told\n" if told else "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "typed", ["archive --help", "issue --help", "handoff -h", "new --help", "run --help", "restore --help"]
)
def test_help_after_the_task_is_not_its_argument(checkout: Checkout, typed: str) -> None:
    """`invoke archive --help` once wrote an archive of everything into a folder called `--help`."""
    said = checkout.invoke(*typed.split())
    assert said.code == 2
    assert "comes before the task" in said.err
    assert "`uv run invoke --help TASK`" in said.err
    assert not list(checkout.root.glob("-*"))


@pytest.mark.parametrize("typed", ["archive --wheel-only --env jax1.0.0-cpu-*", "verify --expectt"])
def test_a_mistyped_option_is_not_an_argument(checkout: Checkout, typed: str) -> None:
    said = checkout.invoke(*typed.split())
    assert said.code == 2
    assert "there is no such option" in said.err
    assert not list(checkout.root.glob("-*"))
