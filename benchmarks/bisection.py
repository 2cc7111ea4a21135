"""A bisection over thirty releases with nothing at hand: with what comes next made ready meanwhile, and without."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from benchmarks.common import Table, seconds
from benchmarks.link import link
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

LINK = 100e6 / 8
"""Bytes per second. A jaxlib has 90 MB: a mirror beside the machine gives it in 2 s, and leaves little to wait for."""


def run() -> list[Table]:
    with (
        tempfile.TemporaryDirectory(prefix="bisection-", ignore_cleanup_errors=True) as place,
        link(LINK) as proxy,
        _variables({"HTTPS_PROXY": proxy}),
    ):
        # With prefetch first: what caches on the way keep of the wheels can then only help the other one.
        with_it, warm = _bisection(Path(place, "with"), prefetch=True)
        without, cold = _bisection(Path(place, "without"), prefetch=False)
    assert [edge.newer.name for edge in with_it.edges] == [edge.newer.name for edge in without.edges] == [BREAKS]
    rows = tuple(
        (what, f"{took:.0f} s", f"{found.spent.running:.0f} s", f"{took - found.spent.running:.0f} s", len(found.path))
        for what, took, found in (("without prefetch", cold, without), ("with prefetch", warm, with_it))
    )
    return [
        Table(
            "A bisection with cold environments",
            f"{RELEASES} releases of jax, a repro that sleeps {SLEEPS} s, `--confidence 0 --sweep 0`, venv, over a "
            f"link of {LINK * 8 / 1e6:.0f} Mbit/s. Each search has an empty store and an empty cache of uv: every "
            "environment is resolved, downloaded and unpacked. "
            f"With prefetch it takes {warm / cold:.2f} of the time (wanted: at most 0.65).",
            ("", "wall time", "attempts ran", "waited", "versions tried"),
            rows,
        )
    ]


def _bisection(place: Path, *, prefetch: bool) -> tuple[Bisection, float]:
    """A search in a checkout of its own, and how long it took in seconds."""
    project = Project(place / "checkout", place / "store")
    project.repros.mkdir(parents=True)
    project.matrix_toml.write_text(MATRIX)
    (project.repros / "sleeps.py").write_text(REPRO)
    with _variables({"UV_CACHE_DIR": str(place / "uv")}):
        known = releases("jax", load(project)[0], project.store)
        finals = [version for version in known if not Version(version).is_prerelease]
        last = finals.index(NEWEST)
        wanted = Wanted(finals[last + 1 - RELEASES], NEWEST, sweep="0", prefetch=prefetch)
        request, rules = Request("sleeps", engine="venv"), Rules(confidence=0)
        found: list[Bisection] = []

        def search() -> None:
            found.append(bisect(project, request, wanted, rules, Silent(), threading.Event()))

        took = seconds(search)
    shutil.rmtree(place, ignore_errors=True)
    return found[0], took


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
