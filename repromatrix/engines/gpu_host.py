"""Whether the GPUs, the driver and the CUDA libraries of this host can carry an environment, told before it runs.

What is surely too old makes a cell a skip; what is not known is a warning, and the cell runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from repromatrix.engines.cdi import Access
from repromatrix.engines.gpus import Inventory
from repromatrix.engines.local_cuda import CudaLibraries, find_libraries
from repromatrix.envs.model import Lock
from repromatrix.spec.model import Matrix


@dataclass(frozen=True, slots=True)
class Needs:
    """What a jax of one major version of CUDA needs.

    Attributes:
        driver: Oldest driver of Linux.
        capability: Lowest compute capability.
        source: Where both are said.
    """

    driver: str
    capability: str
    source: str


NEEDS: Mapping[str, Needs] = {
    "12": Needs(
        "525.60.13",
        "5.2",
        'jax, docs/installation.md ("SM version 5.2", ">= 525.60.13 for CUDA 12"); NVIDIA, CUDA Compatibility, '
        "Minor Version Compatibility, table 1 (CUDA 12.x: >= 525)",
    ),
    "13": Needs(
        "580",
        "7.5",
        "NVIDIA, CUDA Compatibility, Minor Version Compatibility, table 1 (CUDA 13.x: >= 580); CUDA 13.0 release "
        "notes: no code for Maxwell, Pascal and Volta, so 7.5 is the lowest",
    ),
}
"""By major version of CUDA. NCCL built with a CUDA needs the driver of that CUDA."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a GPU cell of one environment stands on here.

    Attributes:
        libraries: CUDA's libraries of the host that its attempts get, or None: it brings its own.
        hosted: Their versions, by name.
        facts: What decides results beside the lock: these, the GPUs, how they are linked and reached.
        unable: Why it cannot run here; empty where it can.
        is_final: It is for good (a skip), and not for the way that the engine is set up (infra).
        doubts: What could not be checked.
    """

    libraries: CudaLibraries | None = None
    hosted: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    unable: str = ""
    is_final: bool = True
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuHost:
    """The GPUs of this host, how attempts get them, and CUDA's libraries in the folders given."""

    inventory: Inventory
    access: Access
    facts: Mapping[str, str]
    libraries: CudaLibraries | None = None

    def ground(self, lock: Lock) -> Ground:
        """What GPU cells in the environment of `lock` stand on."""
        if not self.access.how:
            return Ground(unable=self.access.why, is_final=False)
        major, _, local = lock.environment.cuda.partition("-")
        libraries: CudaLibraries | None = None
        hosted: tuple[tuple[str, str], ...] = ()
        missed: tuple[str, ...] = ()
        if local and self.libraries is not None:
            libraries, missed = self.libraries, self.libraries.doubts()
            if any(wheel.name.startswith("nvidia-cuda-nvcc") for wheel in lock.wheels):
                libraries, missed = replace(libraries, tools=None, ptxas=""), ()  # the environment's own ptxas counts
            if why := libraries.lacking(major):
                return Ground(unable=why)
            hosted = tuple((f"{name} of the host", version) for name, version in libraries.versions(major))
        unable, doubts = check(self.inventory, major, nccl_cuda(hosted))
        facts = {**self.facts, **self.inventory.facts(), "GPU access": self.access.how, **dict(hosted)}
        return Ground(libraries, hosted, tuple(facts.items()), unable, doubts=(*doubts, *missed))


def libraries_of(matrix: Matrix) -> CudaLibraries | None:
    """CUDA's libraries in the folders that `[targets.gpu]` names; None where it names none.

    Raises:
        UserError: A folder is not there, or holds no CUDA.
    """
    given = next((each.cuda_libraries for each in matrix.targets if each.name == "gpu" and each.cuda_libraries), "")
    return find_libraries(given) if given else None


def nccl_cuda(hosted: tuple[tuple[str, str], ...]) -> str:
    """Major version of the CUDA that the host's NCCL was built with, `2.28.9+cuda13.0` -> `13`; empty where unknown."""
    found = re.search(r"\+cuda(\d+)", dict(hosted).get("nccl of the host", ""))
    return found[1] if found else ""


def check(inventory: Inventory, major: str, nccl: str = "") -> tuple[str, tuple[str, ...]]:
    """Hold what is here against `NEEDS`; returns why it cannot run, or empty, and what could not be checked.

    Args:
        major: Of the environment's CUDA.
        nccl: Major version of the CUDA of the host's NCCL; empty where the environment brings its own.
    """
    doubts = []
    for asked, what in chain([(major, f"CUDA {major}")], [(nccl, f"NCCL for CUDA {nccl}")] if nccl else []):
        needs = NEEDS.get(asked)
        if needs is None:
            doubts.append(f"which driver {what} needs is not known to this tool")
        elif not inventory.driver:
            doubts.append(f"the driver's version is unknown; {what} needs {needs.driver} or newer")
        elif _version(inventory.driver) < _version(needs.driver):
            return f"{what} needs driver {needs.driver} or newer, here is {inventory.driver}", ()
    for gpu in inventory.gpus:
        if gpu.lost:
            continue  # no attempt is granted it
        needs = NEEDS.get(major)
        if needs is not None and not gpu.capability:
            doubts.append(f"the compute capability of {gpu.model} is unknown")
        elif needs is not None and _version(gpu.capability) < _version(needs.capability):
            return (
                f"jax for CUDA {major} has no code for compute capability {gpu.capability} ({gpu.model}); "
                f"the lowest is {needs.capability}",
                (),
            )
        if gpu.mig == "on":
            return f"GPU {gpu.index} is divided by MIG: its parts have no number that CUDA_VISIBLE_DEVICES takes", ()
    return "", tuple(dict.fromkeys(doubts))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
