"""Memory of GPUs, seen through a stand-in for NVML."""

from __future__ import annotations

import importlib.util
import threading
import time
from dataclasses import dataclass, field

import pytest

from repromatrix.engines.device_memory import Library, nvml, watched


class NoAnswer(Exception):
    pass


@dataclass
class Info:
    used: int


@dataclass
class Gpus:
    """GPUs whose use follows a script: one row a look, bytes by index; the last row stays."""

    rows: list[list[int]]
    fails_at: int = -1
    looks: list[tuple[int, int]] = field(default_factory=list)
    seen: threading.Event = field(default_factory=threading.Event)
    NVMLError: type[Exception] = NoAnswer

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails_at == 0:
            raise NoAnswer("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Info:  # noqa: N802
        assert isinstance(handle, int)
        look = sum(index == handle for index, _ in self.looks)
        if look == self.fails_at:
            self.seen.set()
            raise NoAnswer("GPU is lost")
        self.looks.append((handle, look))
        if look > len(self.rows):
            self.seen.set()
        return Info(self.rows[min(look, len(self.rows) - 1)][handle])


def watch(gpus: Gpus, *devices: int) -> tuple[int, str]:
    with watched(devices, lambda: gpus, period=0.001) as peak:
        assert gpus.seen.wait(10)
    return peak.used, peak.trouble


def test_the_highest_sum_without_what_was_used_before() -> None:
    rows = [[100, 7, 50], [100, 9, 5000], [600, 9, 90], [300, 9, 70]]
    assert watch(Gpus(rows), 0, 2) == (5000 + 100 - 150, "")
    assert watch(Gpus(rows), 0) == (500, "")
    assert watch(Gpus(rows), 1) == (2, "")


def test_memory_given_back_is_no_negative_use() -> None:
    assert watch(Gpus([[500], [100]]), 0) == (0, "")


def test_a_gpu_that_is_lost_on_the_way() -> None:
    gpus = Gpus([[0], [40], [60]], fails_at=3)
    assert watch(gpus, 0) == (60, "the memory used on the GPU was not seen to the end: GPU is lost")


def test_a_host_without_nvml() -> None:
    with watched((0,), lambda: Gpus([[1]], fails_at=0)) as peak:
        pass
    assert (peak.used, peak.trouble) == (0, "the memory used on the GPU is unknown: NVML Shared Library Not Found")


def test_without_a_gpu_nvml_is_not_asked_for() -> None:
    def never() -> Library:
        raise AssertionError("no GPU was granted")

    began = time.perf_counter()
    with watched((), never) as peak:
        pass
    assert time.perf_counter() - began < 0.5
    assert (peak.used, peak.trouble) == (0, "")


def test_what_the_block_raises_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt), watched((0,), lambda: Gpus([[1]])):
        raise KeyboardInterrupt


def test_the_real_binding_has_what_is_used() -> None:
    assert importlib.util.find_spec("pynvml") is not None
    library = nvml()
    assert issubclass(library.NVMLError, Exception)
    for name in ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"):
        assert callable(getattr(library, name))
