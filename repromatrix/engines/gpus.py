"""The GPUs of this host as NVML sees them: what they are, how they are linked, and whether they are fit to test on.

NVML knows no GPU by the order of CUDA, but attempts run with CUDA_DEVICE_ORDER=PCI_BUS_ID, so that the numbers agree.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

STRANGERS = 1 << 30
"""Bytes in use above which somebody else works on a GPU: a CUDA context alone takes less, and a process with JAX
reserves three quarters of the memory."""

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
"""How the driver logs an error, by bus id (NVIDIA's "Xid Errors": `NVRM: Xid (PCI:0000:05:00): 79, ...`)."""

_MOST_LOG = 4 << 20
"""Bytes of a file with the kernel's log that are read: it may hold weeks, and is read before each attempt on a GPU."""

_BROKEN = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140})
"""Xids that tell of the hardware, not of the program (NVIDIA's "Xid Errors": 48, 63, 64, 92, 94, 95, 140 memory;
74 NVLink; 62, 79, 119, 120 the GPU or its processor gone). 13, 31, 43, 45 are a program's own faults."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: In NVML's order, which is that of the PCI bus.
        uuid, model, bus: As NVML names them.
        capability: Compute capability, `9.0`; empty where unknown.
        memory, used: Bytes; `used` by everybody but the desktop (a screen of this host takes 1 GiB and more).
        mig: `on`, `off`, or empty where this model has none.
        persistence: Whether the driver stays loaded without a user; None where unknown.
        ecc: Errors that ECC could not correct since the driver was loaded; None where unknown.
        xids: Number of each error that the kernel's log has of it, in order.
        lost: Why the driver tells nothing of it any more; else empty.
    """

    index: int
    uuid: str
    model: str
    bus: str = ""
    capability: str = ""
    memory: int = 0
    used: int = 0
    mig: str = ""
    persistence: bool | None = None
    ecc: int | None = None
    xids: tuple[int, ...] = ()
    lost: str = ""

    def unfit(self) -> str:
        """Why nothing that fails on this GPU could be blamed on a version; empty where it is fit."""
        return self.broken() or self.taken()

    def broken(self, before: Gpu | None = None) -> str:
        """What is wrong with the GPU itself, or with `before` only what is new since then; else empty."""
        if self.lost:
            return self.lost
        errors = (self.ecc or 0) - ((before.ecc or 0) if before else 0)
        if errors > 0:  # below it where the GPU was reset meanwhile
            return f"{errors}{' new' if before else ''} memory errors that ECC could not correct"
        new = Counter(self.xids) - Counter(before.xids if before else ())
        if hard := sorted(set(new) & _BROKEN):
            return f"the kernel's log has {'a new ' if before else ''}Xid {', '.join(map(str, hard))} of it"
        return ""

    def taken(self) -> str:
        """Who else works on it; empty where nobody does."""
        return f"{self.used / 2**30:.1f} GiB of its memory are in use by others" if self.used > STRANGERS else ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of this host.

    Attributes:
        driver: Version, `580.159.04`; empty where unknown.
        cuda: Newest CUDA that the driver speaks, `13.0`; empty where unknown.
        links: (index, index, how) of each pair: `NVLink x18`, `PCIe switch`, `PCIe host bridge`, ...
        trouble: Why this is not the whole truth; empty where it is.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    links: tuple[tuple[int, int, str], ...] = ()
    trouble: str = ""

    def capabilities(self) -> frozenset[str]:
        return frozenset(gpu.capability for gpu in self.gpus if gpu.capability)

    def identity(self) -> dict[str, str]:
        """`gpus` (models) and `driver`, for hosts that hide the files of NVIDIA's kernel module."""
        models = ", ".join(gpu.model for gpu in self.gpus if gpu.model)
        return {"gpus": models, "driver": self.driver or "unknown"} if models else {}

    def facts(self) -> dict[str, str]:
        """What reports show beside model and driver, by name; what is not known is left out."""
        found = {
            "GPU compute capability": ", ".join(sorted(self.capabilities())),
            "driver's CUDA": self.cuda,
            "GPU links": ", ".join(
                f"{how} ({count})" for how, count in Counter(link[2] for link in self.links).items()
            ),
            "MIG": ", ".join(sorted({gpu.mig for gpu in self.gpus if gpu.mig})),
            "persistence": ", ".join(
                sorted({"on" if gpu.persistence else "off" for gpu in self.gpus if gpu.persistence is not None})
            ),
        }
        return {name: value for name, value in found.items() if value}


def nvml() -> Any:
    """NVML's Python binding."""
    return importlib.import_module("pynvml")


def inventory(
    library: Callable[[], Any] = nvml,
    kernel_log: Callable[[], str] | None = None,
    only: Sequence[int] | None = None,
) -> Inventory:
    """Ask NVML; never raises. A host without the driver has no GPUs, and `trouble` says what NVML said.

    Args:
        library: Where NVML comes from.
        kernel_log: Gives the kernel's log; None = this host's, as far as this user may read it.
        only: Indices: these GPUs alone and nothing of the driver and the links, of which there are many to ask for.
    """
    binding = library()
    try:
        binding.nvmlInit()
    except binding.NVMLError as error:
        return Inventory(trouble=f"NVML does not answer: {error}")
    try:
        return _whole(binding, (kernel_log or read_kernel_log)(), only)
    except binding.NVMLError as error:
        return Inventory(trouble=f"NVML does not list the GPUs: {error}")
    finally:
        with suppress(binding.NVMLError):
            binding.nvmlShutdown()


def _whole(binding: Any, log: str, only: Sequence[int] | None) -> Inventory:
    def ask(question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (binding.NVMLError, AttributeError):  # this GPU or this driver does not tell, older bindings lack it
            return None

    handles, gpus, found = {}, [], xids(log)
    for index in range(binding.nvmlDeviceGetCount()) if only is None else only:
        try:
            handles[index] = binding.nvmlDeviceGetHandleByIndex(index)
        except binding.NVMLError as error:  # GPU_IS_LOST: the others are still there
            gpus.append(Gpu(index, "", "", lost=f"NVML does not reach it: {error}"))
            continue
        gpu = _gpu(binding, ask, index, handles[index])
        gpus.append(replace(gpu, xids=found.get(_short_bus(gpu.bus), ())))
    if only is not None:
        return Inventory(tuple(gpus))
    spoken = ask(binding.nvmlSystemGetCudaDriverVersion_v2)
    links = [
        (first, second, _link(binding, ask, handles[first], handles[second]))
        for first, second in combinations(sorted(handles), 2)
    ]
    return Inventory(
        gpus=tuple(gpus),
        driver=_text(ask(binding.nvmlSystemGetDriverVersion)),
        cuda=f"{spoken // 1000}.{spoken % 1000 // 10}" if spoken else "",
        links=tuple((first, second, how) for first, second, how in links if how),
    )


def _gpu(binding: Any, ask: Callable[[Callable[[], Any]], Any], index: int, handle: object) -> Gpu:
    # The second form counts what the driver keeps for itself apart from what is used.
    memory = ask(lambda: binding.nvmlDeviceGetMemoryInfo(handle, version=binding.nvmlMemory_v2))
    memory = memory or ask(lambda: binding.nvmlDeviceGetMemoryInfo(handle))
    capability = ask(lambda: binding.nvmlDeviceGetCudaComputeCapability(handle))
    desktop = ask(lambda: binding.nvmlDeviceGetGraphicsRunningProcesses(handle))
    shown = sum(process.usedGpuMemory or 0 for process in desktop or ())
    mig = ask(lambda: binding.nvmlDeviceGetMigMode(handle))
    persistence = ask(lambda: binding.nvmlDeviceGetPersistenceMode(handle))
    ecc = ask(
        lambda: binding.nvmlDeviceGetTotalEccErrors(
            handle, binding.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, binding.NVML_VOLATILE_ECC
        )
    )
    pci = ask(lambda: binding.nvmlDeviceGetPciInfo(handle))
    return Gpu(
        index=index,
        uuid=_text(ask(lambda: binding.nvmlDeviceGetUUID(handle))),
        model=_text(ask(lambda: binding.nvmlDeviceGetName(handle))),
        bus="" if pci is None else _text(pci.busId),
        capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        memory=memory.total if memory else 0,
        used=max(0, memory.used - shown) if memory else 0,
        mig="" if mig is None else "on" if mig[0] else "off",
        persistence=None if persistence is None else bool(persistence),
        ecc=ecc,
    )


_LEVELS = (
    ("NVML_TOPOLOGY_INTERNAL", "one board"),
    ("NVML_TOPOLOGY_SINGLE", "PCIe switch"),
    ("NVML_TOPOLOGY_MULTIPLE", "PCIe switches"),
    ("NVML_TOPOLOGY_HOSTBRIDGE", "PCIe host bridge"),
    ("NVML_TOPOLOGY_NODE", "PCIe host bridges of one NUMA node"),
    ("NVML_TOPOLOGY_SYSTEM", "PCIe across NUMA nodes"),
)


def _link(binding: Any, ask: Callable[[Callable[[], Any]], Any], first: object, second: object) -> str:
    """How two GPUs reach each other; empty where NVML does not tell."""
    peer = ask(
        lambda: (
            binding.nvmlDeviceGetP2PStatus(first, second, binding.NVML_P2P_CAPS_INDEX_NVLINK)
            == binding.NVML_P2P_STATUS_OK
        )
    )
    if peer:
        active = 0
        for number in range(binding.NVML_NVLINK_MAX_LINKS):
            state = ask(lambda number=number: binding.nvmlDeviceGetNvLinkState(first, number))  # type: ignore[misc]
            active += bool(state)
        return f"NVLink x{active}" if active else "NVLink"
    level = ask(lambda: binding.nvmlDeviceGetTopologyCommonAncestor(first, second))
    return next((words for name, words in _LEVELS if level == getattr(binding, name, None)), "")


def xids(log: str) -> dict[str, tuple[int, ...]]:
    """The Xids in a kernel's log, in order, by bus id without domain's leading zeros and function."""
    found: dict[str, list[int]] = {}
    for bus, number in _XID.findall(log):
        found.setdefault(_short_bus(bus), []).append(int(number))
    return {bus: tuple(numbers) for bus, numbers in found.items()}


def _short_bus(bus: str) -> str:
    """`0:5:0` of `00000000:05:00.0` and of `0000:05:00`: NVML and the kernel write the domain in different widths."""
    parts = bus.partition(".")[0].split(":")
    try:
        return ":".join(f"{int(part, 16):x}" for part in parts)
    except ValueError:
        return bus


def read_kernel_log(kmsg: Path = Path("/dev/kmsg"), files: Iterable[Path] = (Path("/var/log/kern.log"),)) -> str:
    """The kernel's log, or what a file keeps of it; empty where this user may read neither."""
    try:
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        for path in files:
            with suppress(OSError), path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_LOG))
                return file.read().decode(errors="replace")
        return ""
    records: list[bytes] = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)  # one record a read; EAGAIN at the end (Documentation/ABI/dev-kmsg)
            except BrokenPipeError:  # a record was overwritten meanwhile: the next read goes on behind it
                continue
            except OSError:
                break
            if not record:
                break
            records.append(record)
    finally:
        os.close(descriptor)
    return b"\n".join(records).decode(errors="replace")


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
