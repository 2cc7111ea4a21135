"""How much memory of its GPUs an attempt used: looked at from the host while it runs, through NVML."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

PERIOD = 0.1
"""Seconds between two looks. What lives shorter than this may not be seen."""

STUCK = 5.0
"""Seconds for a last answer: a driver that has lost its GPU may never give one, and the attempt is over."""


class Memory(Protocol):
    """What NVML says of a GPU's memory."""

    used: int


class Library(Protocol):
    """The part of NVML's Python binding that is used here."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Memory: ...  # noqa: N802


@dataclass(slots=True)
class Peak:
    """What was seen.

    Attributes:
        used: Bytes, highest sum over the GPUs, without what was in use before; 0 where nothing could be seen.
        trouble: Why nothing could be seen, or not all the time; else empty.
    """

    used: int = 0
    trouble: str = ""


def nvml() -> Library:
    """The real one, whose binding is nvidia-ml-py."""
    return cast("Library", importlib.import_module("pynvml"))


@contextmanager
def watched(devices: Sequence[int], library: Callable[[], Library] = nvml, period: float = PERIOD) -> Iterator[Peak]:
    """Watch these GPUs while the block runs; nobody else may use them meanwhile. Starting takes 0.1 s (one H200).

    JAX reserves three quarters of a GPU's memory when it starts, unless XLA_PYTHON_CLIENT_PREALLOCATE=false.

    Args:
        devices: Indices in NVML's order. Without any, NVML is not even imported.
        library: Where NVML comes from.
        period: Seconds between two looks.
    """
    peak = Peak()
    if not devices:
        yield peak
        return
    binding, stop = library(), threading.Event()
    try:
        binding.nvmlInit()
        handles = [binding.nvmlDeviceGetHandleByIndex(index) for index in devices]
        before = _used(binding, handles)
    except binding.NVMLError as error:
        peak.trouble = f"the memory used on the GPU is unknown: {error}"
        yield peak
        return

    def watch() -> None:
        try:
            while not stop.wait(period):
                peak.used = max(peak.used, _used(binding, handles) - before)
        except binding.NVMLError as error:
            peak.trouble = f"the memory used on the GPU was not seen to the end: {error}"

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield peak
    finally:
        stop.set()
        watching.join(STUCK)


def _used(binding: Library, handles: Sequence[object]) -> int:
    return sum(binding.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)
