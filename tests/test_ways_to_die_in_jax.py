"""Crashes and hangs of real jax, on both engines: what is known of them must lead a maintainer to the place."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.engines.base import Engine, Prepared
from repromatrix.engines.docker import DockerEngine
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.project import Project, find_project
from repromatrix.ready import fetch_missing
from repromatrix.spec.cells import expand
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Cell, Environment, Outcome
from repromatrix.spec.repro import load_repro
from tests.conftest import ROOT
from tests.dying import Ended, Place, cell_of, cores_in, die, needs_cores, on_both, read_again, reading, stacks_of
from tests.tools_fixture import readers

pytestmark = [pytest.mark.network, pytest.mark.slow]

MATRIX = load_matrix(ROOT / "matrix.toml")
PYTHON = "3.11"


def locked(jax: str) -> Lock:
    axes = (("jax", jax), ("cuda", "none"), ("python", PYTHON), ("nccl", "locked"))
    return read_lock(ROOT / "containers" / "locks" / f"jax{jax}-cpu-py311.txt", Environment(axes))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The engine that the parameter names; its environments come from the user's own store."""
    project = Project(tmp_path, find_project(ROOT).store)
    chosen: Engine = VenvEngine(WheelStore(project.store))
    if request.param == "docker":
        request.getfixturevalue("engine")
        chosen = DockerEngine(project, MATRIX)
    return Place(chosen, ready(chosen, locked("0.10.2")), tmp_path)


def ready(engine: Engine, lock: Lock) -> Prepared:
    prepared = engine.known(lock)
    if prepared is None:
        fetch_missing(lock, MATRIX, WheelStore(find_project(ROOT).store), Silent(), threading.Event())
        prepared = engine.prepare(lock, Silent())
    return prepared


def with_lock(place: Place, lock: Lock) -> Place:
    return replace(place, prepared=ready(place.engine, lock))


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return readers(tmp_path, PYTHON)


def pass_crash(jax: str, flag: str) -> Cell:
    """A cell of the shipped repro."""
    cells = expand(MATRIX, (load_repro(ROOT / "repros" / "hlo_pass_crash.py"),)).cells
    wanted = f"jax{jax}-cpu-py311", (("flag", flag),)
    (cell,) = (cell for cell in cells if (cell.environment.id, cell.params) == wanted)
    return cell


def crash(place: Place, tools: Path, jax: str, flag: str, cores: str) -> Ended:
    ended = die(with_lock(place, locked(jax)), pass_crash(jax, flag), cores=cores, tools=tools)
    assert (ended.result.outcome, ended.result.signal) == (Outcome.CRASH, "SIGABRT"), ended.result
    return ended


def titles(ended: Ended) -> frozenset[str]:
    assert ended.result.signature is not None
    return ended.result.signature.titles


@needs_cores
@on_both
def test_a_crash_in_xla_shows_the_pass_and_the_line(place: Place, tools: Path) -> None:
    ended = crash(place, tools, "0.10.2", "noop_change", "stacks")
    (stack,) = stacks_of(ended).stacks
    assert (stack.pid, stack.tool, stack.signal, stack.trouble) == (ended.raw.pid, "pystack", "SIGABRT", "")
    assert stack.thread not in (None, stack.pid)  # XLA compiles on a pool
    text = ended.text(stack.file)
    crashed = text.split(f"Traceback for thread {stack.thread} ")[1].split("Traceback for thread")[0]
    assert "xla::HloPassPipeline::RunPassesInternal" in crashed
    assert re.search(r'\(Python\) File ".*hlo_pass_crash.py", line \d+, in <module>', text)
    assert "assert float(jax.jit(" in text
    assert any("in xla::HloPassPipeline::RunPassesInternal" in title for title in titles(ended)), titles(ended)
    assert cores_in(ended) == []
    print(f"stacks of {place.engine.name} after {reading(ended):.2f} s")
    assert reading(ended) < 15  # 5 on a machine that does nothing else


@needs_cores
@on_both
def test_a_kept_core_of_jax_can_be_read_again(place: Place, tools: Path, tmp_path: Path) -> None:
    ended = crash(place, tools, "0.10.2", "noop_change", "keep")
    name = f"core.{ended.raw.pid}.zst"
    assert cores_in(ended) == [name]
    (core,) = stacks_of(ended).cores
    assert (ended.folder / name).stat().st_size < core.allocated / 2
    assert core.allocated < core.size * 0.7  # the rest is holes
    assert "xla::HloPassPipeline::RunPassesInternal" in read_again(place, tools, ended, tmp_path)


@on_both
def test_no_core_of_jax_where_none_is_wanted(place: Place, tools: Path) -> None:
    ended = crash(place, tools, "0.10.2", "noop_change", "off")
    assert cores_in(ended) == []
    assert not (ended.folder / "stacks.json").exists()


@needs_cores
@on_both
def test_one_bug_in_two_versions_and_two_bugs_in_one_pipeline(place: Place, tools: Path) -> None:
    old = titles(crash(place, tools, "0.6.0", "noop_change", "stacks"))
    new = titles(crash(place, tools, "0.10.2", "noop_change", "stacks"))
    other = titles(crash(place, tools, "0.6.2", "silent_hlo_change", "stacks"))  # no version fails of both
    assert old & new
    assert not new & other
    assert not old & other


@on_both
@pytest.mark.parametrize(("jax", "jaxlib"), [("0.10.2", "0.6.0"), ("0.6.0", "0.10.2")])
def test_a_jaxlib_of_another_version_is_told(place: Place, tmp_path: Path, jax: str, jaxlib: str) -> None:
    lock = locked(jax)
    other = next(wheel for wheel in locked(jaxlib).wheels if wheel.name == "jaxlib")
    wheels = tuple(other if wheel.name == "jaxlib" else wheel for wheel in lock.wheels)
    axes = (("jax", jax), ("jaxlib", jaxlib), *lock.environment.axes[1:])
    mixed = with_lock(place, replace(lock, environment=Environment(axes), wheels=wheels))
    ended = die(mixed, cell_of(mixed, tmp_path / "repros", "imports", "import jax"))
    assert (ended.result.outcome, ended.result.exit_status) == (Outcome.ERROR, 1), ended.result
    assert ended.result.signature is not None
    assert re.match(r"setup RuntimeError: jaxlib (is )?version N\b.*\bjax", ended.result.signature.title), ended.result


DEADLOCK = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

rank = int(os.environ["REPRO_RANK"])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(os.environ["REPRO_COORDINATOR"], int(os.environ["REPRO_WORLD"]), rank)
mesh = Mesh(np.array(jax.devices()), ("i",))
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
values = np.arange(8, dtype=np.float32)
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("i")), lambda part: values[part])
jax.block_until_ready(total(x))
print("warm", flush=True)


def add_up():
    jax.block_until_ready(total(x))


def wait_for_rank_0():
    jax._src.distributed.global_state.client.blocking_key_value_get("done", 1_000_000)


if rank == 0:
    add_up()
    jax._src.distributed.global_state.client.key_value_set("done", "yes")
else:
    wait_for_rank_0()
    add_up()
"""


@on_both
def test_a_deadlock_shows_where_each_rank_waits(place: Place, tools: Path, tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 in a collective, rank 1 for a word of rank 0."""
    cell = cell_of(place, tmp_path / "repros", "deadlock", DEADLOCK, "processes = 2", 'timeout = "15s"')
    ended = die(place, cell, cores="stacks", tools=tools)
    for rank in (0, 1):
        assert ended.text(f"stdout.{rank}").endswith("warm\n"), ended.text(f"stderr.{rank}")
    assert (ended.result.outcome, ended.result.signal) == (Outcome.HANG, "SIGABRT"), ended.result
    assert "ranks" in ended.result.reason
    assert [rank.outcome for rank in ended.result.ranks] == [Outcome.HANG, Outcome.HANG]
    stacks = {stack.rank: stack for stack in stacks_of(ended).stacks if stack.source == "live"}
    assert [stacks[rank].pid for rank in (0, 1)] == [end.pid for end in ended.raw.ranks]
    first, second = (ended.text(stacks[rank].file) for rank in (0, 1))
    assert "gloo::" in first
    assert re.search(r'deadlock.py", line \d+, in add_up', first)
    assert re.search(r'deadlock.py", line \d+, in wait_for_rank_0', second)
    signatures = [rank.signature for rank in ended.result.ranks]
    assert [signature is not None for signature in signatures] == [True, True]
    assert "hang from deadlock.py add_up" in titles(ended)
    assert any("deadlock.py wait_for_rank_0" in title for title in (signatures[1].titles if signatures[1] else ()))
