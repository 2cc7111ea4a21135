"""Five gigabytes of stderr through the supervisor's log and the signature, and what taking stacks costs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.common import Table, in_turn, warm
from repromatrix.engines.attempt import SUPERVISOR
from repromatrix.engines.base import Attempt, Engine, Prepared, Raw
from repromatrix.engines.docker import DockerEngine
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.tools import tools
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent

ROOT = Path(__file__).resolve().parent.parent
ASKED = 100
"""MB/s."""
WHOLE, PART = 5_000_000_000, 50_000_000

SPEAKER = """\
import os, sys
line = b"2026-07-01 12:00:00.000000: W external/xla/xla/service/%d.cc:87] a warning like any other, again and again\\n"
block = b"".join(line % number for number in range(10000))
left = int(sys.argv[1])
while left > 0:
    left -= os.write(2, block[:left])
raise RuntimeError("at the end of it all")
"""
LISTENER = """\
import sys
from repromatrix.evidence.signature import sign
from repromatrix.evidence.text import condense
from repromatrix.spec.model import Outcome
with open(sys.argv[1], "rb") if sys.argv[1:] else sys.stdin.buffer as stream:
    found = sign(Outcome.ERROR, None, condense(stream), exit_status=1)
print(found.title)
with open("/proc/self/status") as status:
    print(*(line.split()[1] for line in status if line.startswith("VmHWM")))
"""
TITLE = "py-exc RuntimeError: at the end of it all"

CRASH = """\
import jax
import jax.numpy as jnp


def compile_it():
    return jax.jit(lambda x: jnp.sum(x * 2.0 + 1.0))(jnp.arange(8.0))


compile_it()
"""
CRASH_ENV = (("XLA_FLAGS", "--xla_unsupported_crash_on_hlo_pass_noop_change=true"),)
HANG = """\
import time

import jax
import jax.numpy as jnp


def wait_for_ever(x):
    time.sleep(1000)
    return x


def call_it():
    shape = jax.ShapeDtypeStruct((8,), jnp.float32)
    return jax.pure_callback(wait_for_ever, shape, jnp.arange(8.0)).block_until_ready()


call_it()
"""
DEADLINE = 8.0
"""Seconds until a hang is ended: jax is imported and waits long before."""


def run() -> list[Table]:
    return [_logs(), _stacks()]


# --- five gigabytes ---------------------------------------------------------------------------------------------------


def _logs() -> Table:
    rows = []
    for name, measure in (
        ("the supervisor's log of a script", _supervised),
        ("`condense` and `sign` of a pipe", _signed),
    ):
        (rate, peak), (_, least) = measure(WHOLE), measure(PART)
        rows.append((name, f"{rate:.0f}", f"{rate / ASKED:.1f}", f"{peak:.0f}", f"{peak / least:.2f}"))
    return Table(
        "Five gigabytes of stderr",
        f"A script that writes {WHOLE / 1e9:.0f} GB of warnings and then raises, on the same CPUs. Nothing of this "
        f"size is ever on the disk. {ASKED} MB/s are asked; the memory is compared to that for {PART / 1e6:.0f} MB.",
        ("through", "MB/s", "over what is asked", "peak memory, MB", "over that of a hundredth"),
        tuple(rows),
    )


def _supervised(size: int) -> tuple[float, float]:
    """(MB/s, peak MB of the supervisor and of the signing after it, the larger); the log must still be signed right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        spec = {"id": "bench", "argv": [sys.executable, "-c", SPEAKER, str(size)], "timeout": 600}
        (folder / "spec.json").write_text(json.dumps(spec))
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, "-I", "-S", SUPERVISOR, folder]) as supervisor:
            peak = 0.0
            while supervisor.poll() is None:
                peak = max(peak, _high_water(supervisor.pid))
                time.sleep(0.02)
        listener = subprocess.run(_listener(folder / "stderr"), cwd=ROOT, capture_output=True, text=True, check=True)
        took = time.perf_counter() - began
        result = json.loads((folder / "result.json").read_text())
        assert result["exit_status"] == 1, result
        assert (folder / "stderr").stat().st_size < 10 << 20
    title, of_listener = listener.stdout.splitlines()
    assert title == TITLE, title
    return size / 1e6 / took, max(peak, int(of_listener) / 1024)


def _signed(size: int) -> tuple[float, float]:
    """(MB/s, peak MB) of one process that reads the whole from a pipe."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", SPEAKER, str(size)], stderr=subprocess.PIPE) as speaker:
        listener = subprocess.run(
            _listener(), cwd=ROOT, stdin=speaker.stderr, capture_output=True, text=True, check=True
        )
    title, peak = listener.stdout.splitlines()
    assert title == TITLE, title
    return size / 1e6 / (time.perf_counter() - began), int(peak) / 1024


def _listener(*log: Path) -> list[str]:
    return [sys.executable, "-c", LISTENER, *map(str, log)]


def _high_water(pid: int) -> float:
    """Peak MB of a process so far; 0 where it has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


# --- stacks -----------------------------------------------------------------------------------------------------------


def _stacks() -> Table:
    project, selection, (lock,) = warm(("0.10.2",))
    readers = tools(lock.python, selection.matrix, project, Silent(), threading.Event(), offline=False)
    assert readers is not None
    rows = []
    for engine in (VenvEngine(WheelStore(project.store)), DockerEngine(project, selection.matrix)):
        if why := engine.unavailable():
            rows.append((engine.name, f"not measured: {why}", "", "", ""))
            continue
        prepared = engine.prepare(lock, Silent())
        for name, script, env, timeout, times in (
            ("crash in a pass of XLA", CRASH, CRASH_ENV, 120.0, 5),
            ("hang in a callback", HANG, (), DEADLINE, 3),
        ):
            with tempfile.TemporaryDirectory() as room:
                attempt = Attempt("bench", Path(room) / "attempt", "script.py", (), env, timeout)
                with_stacks = replace(attempt, cores="stacks", tools=readers)
                plain, ours = in_turn(
                    _attempt(engine, prepared, attempt, script), _attempt(engine, prepared, with_stacks, script), times
                )
                held = _seen(with_stacks.folder)
            rows.append((engine.name, name, f"{plain:.1f}", f"{ours - plain:+.1f}", held))
    return Table(
        "Taking stacks of jax 0.10.2",
        "Whole attempts in turn, without core files and stacks, and with both; medians of five (crash) and three "
        f"(hang, deadline after {DEADLINE:.0f} s). Under 5 s are asked. What is taken: threads, and whether frames of "
        "`xla::` and the script's own function are among them.",
        ("engine", "how it ends", "attempt without, s", "stacks, s", "taken"),
        tuple(rows),
    )


def _attempt(engine: Engine, prepared: Prepared, attempt: Attempt, script: str) -> Callable[[], Raw]:
    def work() -> Raw:
        shutil.rmtree(attempt.folder, ignore_errors=True)
        (attempt.folder / "work").mkdir(parents=True)
        (attempt.folder / "work" / attempt.script).write_text(script)
        raw = engine.run(prepared, attempt, threading.Event())
        assert raw.signal == "SIGABRT" or raw.timed_out, raw
        return raw

    return work


def _seen(folder: Path) -> str:
    """What the stacks that were taken hold."""
    texts = [path.read_text(errors="replace") for path in sorted((folder / "stacks").glob("*.txt"))]
    threads = sum(len(re.findall(r"^Traceback for thread ", text, re.MULTILINE)) for text in texts)
    kinds = [("`xla::`", r"\bxla::"), ("the script's function", r"\b(?:compile_it|call_it)\b")]
    there = [name for name, pattern in kinds if any(re.search(pattern, text) for text in texts)]
    return f"{threads} threads: {', '.join(there) or 'neither'}"
