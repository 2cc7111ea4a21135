"""What one attempt costs over the bare command, in docker and venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import Table, in_turn, warm
from repromatrix.engines.base import Attempt, Engine, Prepared
from repromatrix.engines.docker import DockerEngine
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent

SCRIPT = "import jax\nprint(jax.jit(lambda x: x + 1)(1))\n"


def run() -> list[Table]:
    project, selection, (lock,) = warm(("0.7.1",))
    rows = []
    for engine in (VenvEngine(WheelStore(project.store)), DockerEngine(project, selection.matrix)):
        if why := engine.unavailable():
            rows.append((engine.name, f"not measured: {why}", "", ""))
            continue
        prepared = engine.prepare(lock, Silent())
        with tempfile.TemporaryDirectory() as folder:
            bare, ours = in_turn(_bare(prepared, Path(folder)), _attempt(engine, prepared, Path(folder)), 7)
        rows.append((engine.name, f"{bare:.2f}", f"{ours:.2f}", f"{ours - bare:+.2f} s ({ours / bare:.2f})"))
    return [
        Table(
            "One attempt over the bare command",
            "`import jax` and one operation, jax 0.7.1: bare `python` of the same venv, bare `docker run` of the same "
            "image; medians of seven runs in turn.",
            ("engine", "bare, s", "attempt, s", "difference"),
            tuple(rows),
        )
    ]


def _bare(prepared: Prepared, folder: Path) -> Callable[[], object]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    if prepared.engine == "venv":
        argv = [f"{prepared.location}/bin/python", str(script)]
    else:
        mount = f"type=bind,source={folder},target=/mnt"
        argv = ["docker", "run", "--rm", "--network=none", f"--user={os.getuid()}", "--mount", mount]
        argv += [prepared.location, "/opt/env/bin/python", "/mnt/script.py"]
    return lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _attempt(engine: Engine, prepared: Prepared, room: Path) -> Callable[[], object]:
    def work() -> None:
        folder = room / "attempt"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "script.py").write_text(SCRIPT)
        attempt = Attempt("bench", folder, "script.py", (), (), 60.0)
        raw = engine.run(prepared, attempt, threading.Event())
        assert raw.exit_status == 0, raw

    return work
