"""Runs one attempt as a run of the tool does, from the script to the graded result."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import zstandard

from repromatrix.attempts import lay_out
from repromatrix.engines.attempt import ATTEMPT_MARK
from repromatrix.engines.base import Engine, Prepared, Raw
from repromatrix.engines.cores import store
from repromatrix.envs.daemon import LABEL, address, connect
from repromatrix.envs.podman import Podman
from repromatrix.evidence.stacks import Stacks, parse_index
from repromatrix.graded import grade_attempt, recall, record
from repromatrix.project import Project
from repromatrix.results.model import AttemptResult
from repromatrix.spec.model import Cell, Outcome
from repromatrix.spec.repro import load_repro
from tests.deaths import Death

ENGINES = {"venv": [], "docker": [pytest.mark.container]}
on_both = pytest.mark.parametrize(
    "place", [pytest.param(name, marks=marks) for name, marks in ENGINES.items()], indirect=True
)

needs_cores = pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text().startswith(("|", "/"))
    or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0,
    reason="this host leaves no core beside the process that died",
)


@dataclass(frozen=True, slots=True)
class Place:
    """An engine with an environment that is ready; `root` holds the evidence."""

    engine: Engine
    prepared: Prepared
    root: Path

    @property
    def project(self) -> Project:
        return Project(self.root, self.root / "store")


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that has ended, and what became of it.

    Attributes:
        wall: Seconds that the engine took for all of it.
    """

    raw: Raw
    result: AttemptResult
    folder: Path
    wall: float

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")


def cell_of(place: Place, folder: Path, name: str, script: str, *metadata: str) -> Cell:
    """A cell of a script; `metadata` are the TOML lines of its block."""
    lines = ["# /// repro", '# title = "A test"', '# targets = ["cpu"]', *(f"# {line}" for line in metadata), "# ///"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text("\n".join([*lines, script, ""]))
    repro = load_repro(path)
    timeout = repro.timeout or 60.0
    return Cell(place.prepared.lock.environment, repro, (), "cpu", repro.env, timeout, repro.memory)


def die(place: Place, cell: Cell, *, cores: str = "off", tools: Path | None = None) -> Ended:
    """Run an attempt of `cell` to its end and grade it; nothing of it may be left running."""
    name = f"{cell.repro.name}-{time.time_ns()}"
    folder = place.root / "evidence" / name
    attempt = lay_out(cell, name, folder, (), cores=cores, tools=tools)
    began = time.monotonic()
    raw = place.engine.run(place.prepared, attempt, threading.Event())
    wall = time.monotonic() - began
    assert list(left(place.engine.name, name)) == []
    raw = replace(raw, notes=(*raw.notes, *store(folder, threading.Event())))
    record(folder, raw)
    result = grade_attempt(cell, (), 1, folder, raw, place.project)
    again = grade_attempt(cell, (), 1, folder, recall(folder), place.project)
    assert again.outcome is result.outcome
    if result.outcome is not Outcome.INFRA:
        assert again == result, "kept evidence says something else"
    return Ended(raw, result, folder, wall)


def left(engine: str, attempt: str) -> Iterator[str]:
    """What still runs or exists of an attempt."""
    mark = f"{ATTEMPT_MARK}={attempt}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                yield f"process {entry.name}"
        except OSError:
            pass  # it has ended meanwhile, or is another user's
    if engine == "docker":
        found = connect(address(), timeout=60).api.containers(all=True, filters={"label": f"{LABEL}attempt={attempt}"})
        yield from (container["Id"] for container in found)
    elif engine == "podman":
        argv = ("ps", "--all", "--quiet", f"--filter=label={LABEL}attempt={attempt}")
        yield from Podman().ask(*argv, doing="list its containers").split()


def check(ended: Ended, death: Death) -> None:
    """Compare the graded attempt and its evidence with what the table says."""
    result = ended.result
    errors = "\n".join(f"--- {path.name}\n{ended.text(path.name)[-2000:]}" for path in ended.folder.glob("stderr*"))
    said = f"{result}\n{errors}"
    assert (result.outcome, result.exit_status, result.signal) == (death.outcome, death.exit_status, death.signal), said
    title = result.signature.title if result.signature else None
    assert title == death.title or (title is not None and fnmatchcase(title, death.title or "")), said
    assert re.search(death.reason, result.reason), said
    if not death.reason and death.outcome is not Outcome.HANG:
        assert result.reason == "", said
    for wanted in death.notes:
        assert any(re.search(wanted, note) for note in result.notes), said
    for file, wanted in death.holds:
        assert re.search(wanted, ended.text(file), re.MULTILINE), f"{wanted!r} is not in {file}\n{said}"
        assert file in [path for _, path in result.files], said
    ranks = tuple((rank.outcome, rank.exit_status, rank.signal, rank.role) for rank in result.ranks)
    assert ranks == death.ranks, said
    if death.never:
        assert death.never not in repr((result.signature, result.reason, result.notes, result.files)), said
    if death.within is not None:
        assert ended.wall < death.within, said
    measured = dict(result.metrics)
    for name, highest in death.metrics:
        assert 0 < measured[name] <= highest, said


def stacks_of(ended: Ended) -> Stacks:
    path = ended.folder / "stacks.json"
    return parse_index(path.read_text()) if path.exists() else Stacks()


def cores_in(ended: Ended) -> list[str]:
    return sorted(str(path.relative_to(ended.folder)) for path in ended.folder.rglob("core*"))


def reading(ended: Ended) -> float:
    """Seconds from the script's end, or its deadline, to the last stack, as the evidence tells."""
    began = datetime.fromisoformat(ended.raw.started).timestamp()
    return (ended.folder / "stacks.json").stat().st_mtime - began - ended.raw.seconds


def read_again(place: Place, tools: Path, ended: Ended, tmp_path: Path) -> str:
    """What pystack says of the kept core, by hand: unpacked, with the interpreter and the libraries that crashed."""
    name = f"core.{ended.raw.pid}"
    with (ended.folder / f"{name}.zst").open("rb") as packed, (tmp_path / name).open("wb") as core:
        zstandard.ZstdDecompressor().copy_stream(packed, core)
    if place.engine.name == "venv":
        command = [f"{place.prepared.location}/bin/python"]
        environ, where = {"PYTHONPATH": str(tools)}, tmp_path
    else:
        mounts = [
            f"--mount=type=bind,source={s},target={t},readonly" for s, t in ((tmp_path, "/core"), (tools, "/tools"))
        ]
        command = [
            "docker",
            "run",
            "--rm",
            "--network=none",
            f"--user={os.getuid()}",
            "--env=PYTHONPATH=/tools",
            *mounts,
        ]
        command += [place.prepared.location, "/opt/env/bin/python"]
        environ, where = dict(os.environ), Path("/core")
    command += ["-m", "pystack", "core", "--native-all", str(where / name)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
