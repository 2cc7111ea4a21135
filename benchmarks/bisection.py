"""A bisection over thirty releases with nothing at hand: with what comes next made ready meanwhile, and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from benchmarks.common import Table, seconds
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs.releases import releases
from repromatrix.events import Silent
from repromatrix.plan import Request, load
from repromatrix.project import Project
from repromatrix.regressions.bisection.bisect import bisect
from repromatrix.regressions.model import Bisection, Wanted
from repromatrix.search.model import Rules

NEWEST, RELEASES, BREAKS, SLEEPS = "0.10.2", 30, "0.8.1", 20

MATRIX = f"""\
[matrix]
jax    = ["{NEWEST}"]
cuda   = ["none"]
python = ["3.11"]
as_of  = "release"
[bases."3.11"]
debian = "bookworm"
"""

REPRO = f"""\
# /// repro
# title = "Sleeps, and fails from {BREAKS} on"
# hlo   = "off"
# ///
import sys, time, jax
time.sleep({SLEEPS})
sys.exit([int(part) for part in jax.__version__.split(".")] >= {[int(part) for part in BREAKS.split(".")]})
"""


def run() -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="bisection-", ignore_cleanup_errors=True) as place:
        bases = Path(place, "bases")
        # With prefetch first: what caches on the way keep of the wheels can then only help the other one.
        with_it, warm = _bisection(Path(place, "with"), bases, prefetch=True)
        without, cold = _bisection(Path(place, "without"), bases, prefetch=False)
    assert [edge.newer.name for edge in with_it.edges] == [edge.newer.name for edge in without.edges] == [BREAKS]
    rows = tuple(
        (what, f"{took:.0f} s", f"{found.spent.running:.0f} s", f"{took - found.spent.running:.0f} s", len(found.path))
        for what, took, found in (("without prefetch", cold, without), ("with prefetch", warm, with_it))
    )
    return [
        Table(
            "A bisection with cold environments",
            f"{RELEASES} releases of jax, a repro that sleeps {SLEEPS} s, `--confidence 0 --sweep 0`, docker. Each "
            "search has an empty store, an empty cache of uv and an engine of its own that holds the base alone: every "
            "environment is resolved, downloaded and built. "
            f"With prefetch it takes {warm / cold:.2f} of the time (wanted: at most 0.65).",
            ("", "wall time", "attempts ran", "waited", "versions tried"),
            rows,
        )
    ]


def _bisection(place: Path, bases: Path, *, prefetch: bool) -> tuple[Bisection, float]:
    """A search in a checkout of its own, and how long it took in seconds."""
    project = Project(place / "checkout", place / "store")
    project.repros.mkdir(parents=True)
    project.matrix_toml.write_text(MATRIX)
    (project.repros / "sleeps.py").write_text(REPRO)
    with _engine(place / "engine") as host, _variables({"DOCKER_HOST": host, "UV_CACHE_DIR": str(place / "uv")}):
        matrix = load(project)[0]
        if bases.exists():
            shutil.copytree(bases, project.store / "bases")
        DockerEngine(project, matrix).basis("3.11", Silent())
        if not bases.exists():
            shutil.copytree(project.store / "bases", bases)
        known = releases("jax", matrix, project.store)
        finals = [version for version in known if not Version(version).is_prerelease]
        last = finals.index(NEWEST)
        wanted = Wanted(finals[last + 1 - RELEASES], NEWEST, sweep="0", prefetch=prefetch)
        request, rules = Request("sleeps", engine="docker"), Rules(confidence=0)
        found: list[Bisection] = []

        def search() -> None:
            found.append(bisect(project, request, wanted, rules, Silent(), threading.Event()))

        took = seconds(search)
    shutil.rmtree(place, ignore_errors=True)
    return found[0], took


@contextmanager
def _engine(home: Path) -> Iterator[str]:
    """A Docker engine that knows nothing yet: its address."""
    script = Path(__file__).resolve().parent.parent / ".ci" / "engine"
    settings = {**os.environ, "REPROMATRIX_ENGINE_HOME": str(home)}
    yield subprocess.run([script, "start"], env=settings, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    pid = (home / "dockerd.pid").read_text().strip()
    subprocess.run([script, "stop"], env=settings, check=True)
    while Path("/proc", pid).exists():  # until then its folders are mounted
        time.sleep(0.1)


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
