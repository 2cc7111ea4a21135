"""What is made ready ahead: what is probably needed next, beside what is needed now."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.ready import Ready
from repromatrix.regressions.prefetch import Prefetch
from repromatrix.spec.model import Environment, Matrix

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Work:
    """Work that lasts until `go`, or until it is stopped."""

    raises: bool = True
    began: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, thing: str, stop: threading.Event) -> None:
        self.began.append(thing)
        while not self.go.is_set() and not stop.is_set():
            time.sleep(0.005)
        (self.stopped if stop.is_set() else self.done).append(thing)
        if self.raises:
            raise OSError("nobody hears of it")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def test_prefetch_does_the_likeliest_first_and_forgets_what_is_no_longer_wanted() -> None:
    work = Work()
    prefetch = Prefetch(work)
    prefetch.ask(["a", "b", "c"])
    until(lambda: work.began == ["a"])
    prefetch.ask(["d", "a", "e"])
    work.go.set()
    until(lambda: len(work.done) == 3)
    prefetch.ask(["d"])
    prefetch.close()
    prefetch.ask(["f"])
    assert work.done == ["a", "d", "e"]


def test_prefetch_stops_what_is_no_longer_wanted_and_does_it_when_it_is_again() -> None:
    first, second = Work(raises=False), Work()
    prefetch = Prefetch(first, second)
    prefetch.ask(["a", "b", "c"])
    until(lambda: first.began == ["a"])
    first.go.set()
    until(lambda: first.done == ["a", "b", "c"] and second.began == ["a"])
    first.go.clear()
    prefetch.ask(["d"], keep=["b"])
    until(lambda: second.stopped == ["a"] and first.began[3:] == ["d"])
    prefetch.ask(["a"], keep=["d"])
    second.go.set()
    until(lambda: second.done == ["a"])
    assert first.began == ["a", "b", "c", "d"]
    prefetch.close()
    assert first.stopped == ["d"]
    assert second.began == ["a", "a"]


def test_what_failed_goes_no_further() -> None:
    first, second = Work(), Work()
    first.go.set()
    prefetch = Prefetch(first, second)
    prefetch.ask(["a", "b"])
    until(lambda: first.done == ["a", "b"])
    prefetch.close()
    assert second.began == []


def test_the_end_stops_what_is_under_way() -> None:
    first, second = Work(raises=False), Work()
    prefetch = Prefetch(first, second)
    prefetch.ask(["a", "b"])
    until(lambda: first.began == ["a"])
    first.go.set()
    until(lambda: second.began == ["a"])
    prefetch.close()
    assert second.stopped == ["a"]


def test_what_is_needed_now_goes_before_what_may_be_needed_soon(tmp_path: Path) -> None:
    """Work ahead waits until all that is needed is ready, or has failed; but for what is needed itself."""
    axes = {"jax": "0.0.1", "cuda": "none", "python": MINOR, "nccl": "default"}
    empty = Lock(Environment(tuple(axes.items())), MINOR, "x86_64-manylinux_2_28", "latest", "", ())
    absent = replace(empty, wheels=(Wheel("toy", "1.0", "toy-1.0-py3-none-any.whl", "0" * 64, 1000, ""),))
    locks = {"ready": empty, "absent": absent, "other": replace(empty, platform="x86_64-manylinux_2_34")}
    matrix = Matrix(tmp_path / "matrix.toml", (), "latest")
    project, cancel = Project(tmp_path, tmp_path / "store"), threading.Event()
    engine = VenvEngine(WheelStore(project.store))
    ready = Ready(project, matrix, engine, Silent(), cancel, offline=True)
    ahead: list[str] = []

    def work(name: str, stop: threading.Event) -> None:
        if ready.give_way(locks[name], stop):
            ahead.append(name)

    prefetch = Prefetch(work)
    with ready.first([locks["ready"], locks["absent"]]):
        prefetch.ask(["ready", "other"])
        until(lambda: ahead == ["ready"])
        ready.fetch(locks["ready"])
        ready.prepare(locks["ready"])
        time.sleep(0.3)
        assert ahead == ["ready"]
        with pytest.raises(InfraError, match="--offline"):
            ready.fetch(locks["absent"])
        until(lambda: ahead == ["ready", "other"])
    with ready.first([locks["ready"]]):
        prefetch.ask(["absent"])
        time.sleep(0.3)
        assert ahead == ["ready", "other"]
    until(lambda: ahead == ["ready", "other", "absent"])
    with ready.first([locks["ready"]]):
        cancel.set()
        assert not ready.give_way(locks["other"], cancel)
    prefetch.close()
