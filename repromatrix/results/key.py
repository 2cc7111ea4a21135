"""The key of a result: the hash of everything that decides it, and the facts of this machine that go into it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from repromatrix.engines.choose import count_gpus
from repromatrix.engines.gpus import inventory
from repromatrix.files import write_atomically
from repromatrix.spec.model import Cell

KEY_FORMAT = 1
"""Raised when the meaning of a key changes, so that results under the old meaning are not taken for new ones."""

SHOWN_ONLY = frozenset({"kernel", "GPU compute capability", "driver's CUDA", "persistence"})
"""Facts that reports show and keys leave out. The kernel changes monthly, and no verdict on JAX that we know of with
it; the others follow from model and driver, or decide only how long a first start takes."""

MEMORY = "memory"
"""File in a checkout's state: the boot, and the memory then."""

# Instruction sets that XLA's CPU backend can generate code for. The other words in /proc/cpuinfo (mitigations,
# virtualisation) come and go with microcode and kernel and decide nothing.
_ISA = re.compile(
    r"(sse|ssse|avx|amx|fma|bmi|f16c|adx|aes|vaes|sha|gfni|pclmul|vpclmul|popcnt|abm|movbe|cx16|neon|asimd|sve|sme|fp$"
    r"|fphp|bf16|i8mm|atomics|crc32|dotprod)"
)


def result_key(cell: Cell, lock_hash: str, engine: str, base: str, hardware: Mapping[str, str]) -> str:
    """SHA-256, hex, of what decides the result of `cell`.

    The timeout is part of it, since a hang is relative to it: "hang" under 60 s says nothing about 600 s. So are the
    limits (an `oom` is relative to memory, some hangs need few CPUs). How often the cell is repeated, what is claimed
    of it and how its environment is named are not.

    What is collected of the HLO counts only where the first run collects it: of a deviceless cell. Elsewhere a second
    run does, and dumps nothing that changes the first verdict.

    Args:
        cell: The cell.
        lock_hash: `Lock.hash` of its environment.
        engine: Name of the engine.
        base: What identifies the interpreter's origin: the image's id for containers, the host's Python for `venv`.
        hardware: `hardware_facts()`, and where the target is a GPU `gpu_facts()`, how the GPUs are linked and reached,
            and the host's CUDA libraries that are used; `SHOWN_ONLY` is left out here.
    """
    repro, gpus = cell.repro, cell.described
    parts: dict[str, object] = {
        "format": KEY_FORMAT,
        "lock": lock_hash,
        "engine": engine,
        "base": base,
        "repro": repro.body,
        "params": dict(cell.params),
        "target": cell.target,
        "env": dict(cell.env),
        "timeout": float(cell.timeout),
        "memory": cell.memory,
        "cpus": repro.cpus,
        "processes": repro.processes,
        "hardware": {name: value for name, value in hardware.items() if name not in SHOWN_ONLY},
    }
    if gpus is not None:  # a part that most cells lack must not change their keys
        parts["described"] = {
            "description": gpus.description_sha256,
            "topology": gpus.topology,
            "autotune": gpus.autotune_sha256,
            "hlo": cell.hlo,
        }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hardware_facts(state: Path | None = None) -> dict[str, str]:
    """What this machine is, as far as it can change a verdict.

    Args:
        state: Folder of the checkout's state, where `memory` is kept as it was first seen since the machine was
            booted: some virtual machines get more while they run (31 GiB at first, 128 later), and a result must not
            be asked for again because of that. None = as it is now.

    Returns:
        `cpu` (model), `cpus` (those this process may use, which is what XLA sizes its thread pools by), `isa` (hash of
        the instruction sets), `memory` (whole GiB: MemTotal itself moves by megabytes with every kernel) and `kernel`.
    """
    facts = cpu_facts(_read("/proc/cpuinfo"))
    facts["cpus"] = str(len(os.sched_getaffinity(0)))
    facts["memory"] = memory_fact(_read("/proc/meminfo"))
    if state is not None:
        facts["memory"] = first_seen(state / MEMORY, _read("/proc/sys/kernel/random/boot_id").strip(), facts["memory"])
    facts["kernel"] = platform.release()
    return facts


def gpu_facts(nvidia: Path = Path("/proc/driver/nvidia")) -> dict[str, str]:
    """`gpus` (models) and `driver` as NVIDIA's kernel module tells (seen: 580.159.04); empty where it is not loaded.

    Args:
        nvidia: Folder of the module's files.
    """
    version = re.search(r"Kernel Module(?: for \S+)?\s+(\d\S+)", _read(str(nvidia / "version")))
    told = "".join(_read(str(path)) for path in sorted(nvidia.glob("gpus/*/information")))
    models = re.findall(r"^Model:\s*(.+?)\s*$", told, re.MULTILINE)
    return {"gpus": ", ".join(models), "driver": version[1] if version else "unknown"} if models else {}


def gpu_host_facts() -> dict[str, str]:
    """`gpu_facts()` of this host, and what NVML tells beside them: links, MIG, capability, CUDA of the driver.

    Without a GPU nobody is asked.
    """
    if not count_gpus():
        return {}
    seen = inventory()
    return {**(gpu_facts() or seen.identity()), **seen.facts()}


def cpu_facts(cpuinfo: str) -> dict[str, str]:
    """`cpu` and `isa` from the text of /proc/cpuinfo; Arm kernels name no model, so there the part number stands in."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    part = " ".join(f"{name.removeprefix('CPU ')} {fields[name]}" for name in _ARM if name in fields)
    words = fields.get("flags", fields.get("Features", "")).split()
    isa = sorted({word for word in words if _ISA.match(word)})
    return {
        "cpu": fields.get("model name") or part or platform.machine(),
        "isa": hashlib.sha256(" ".join(isa).encode()).hexdigest()[:12],
    }


def memory_fact(meminfo: str) -> str:
    """`24 GiB` from the text of /proc/meminfo; `unknown` where it does not say."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return f"{round(int(found[1]) / 2**20)} GiB" if found else "unknown"


def first_seen(kept: Path, boot: str, now: str) -> str:
    """The memory that `kept` has of this boot, else `now`, which it then has; `now` where nothing can be kept."""
    try:
        at, _, memory = kept.read_text(encoding="utf-8").strip().partition(" ")
        if at == boot and memory:
            return memory
    except (OSError, ValueError):  # not yet there, or no text
        pass
    if boot:
        with suppress(OSError):  # a checkout that cannot be written
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, f"{boot} {now}\n")
    return now


_ARM = ("CPU implementer", "CPU part", "CPU variant")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # a sandbox may hide it: the facts then say so (machine type, "unknown")
        return ""
