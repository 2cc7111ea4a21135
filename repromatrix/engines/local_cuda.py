"""CUDA's libraries of the host, for environments that bring the plugin alone (`12-local`, `13-local`).

The plugin opens the libraries by their names (`libcudart.so.13`), so that LD_LIBRARY_PATH is enough; jax takes ptxas,
nvlink and libdevice from the folder that CUDA_ROOT names (`jax/_src/lib/__init__.py`, 0.4.30 to 0.10.2). Of a
site-packages only what lies below `nvidia/` is shown to an attempt: a jax beside it must not be seen.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repromatrix.errors import UserError

_BOTH = {"cudnn": "libcudnn.so.9", "nccl": "libnccl.so.2"}

NEEDED: Mapping[str, Mapping[str, str]] = {
    "12": {
        "cudart": "libcudart.so.12",
        "cublas": "libcublas.so.12",
        "cufft": "libcufft.so.11",
        "cupti": "libcupti.so.12",
        "cusolver": "libcusolver.so.11",
        "cusparse": "libcusparse.so.12",
        "nvjitlink": "libnvJitLink.so.12",
        **_BOTH,
    },
    "13": {
        "cudart": "libcudart.so.13",
        "cublas": "libcublas.so.13",
        "cufft": "libcufft.so.12",
        "cupti": "libcupti.so.13",
        "cusolver": "libcusolver.so.12",
        "cusparse": "libcusparse.so.12",
        "nvjitlink": "libnvJitLink.so.13",
        **_BOTH,
    },
}
"""By major version of CUDA, the libraries that a jax on GPUs opens or that those open (`jax_plugins/xla_cuda13` of
0.8.0 and 0.10.2, where both majors are named; cuSOLVER and cuSPARSE need nvJitLink)."""

LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"

_TOOLKIT = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "extras/CUPTI/lib64", "lib", ".")
"""Where a toolkit, or a folder of libraries, has them."""


@dataclass(frozen=True, slots=True)
class CudaLibraries:
    """What was found in the folders given.

    Attributes:
        shown: Folders that a container must see: toolkits, and the `nvidia` of a site-packages.
        folders: Those with libraries, in the order in which they are searched.
        tools: Folder with `bin/ptxas` and `nvvm/libdevice`, or None.
        files: (name in `NEEDED`'s values, version) of the first library of each name, as the loader would find it.
        ptxas: Its version; empty without `tools`.
    """

    shown: tuple[Path, ...]
    folders: tuple[Path, ...]
    tools: Path | None
    files: tuple[tuple[str, str], ...]
    ptxas: str

    def versions(self, major: str) -> tuple[tuple[str, str], ...]:
        """(library, version) as a jax of CUDA `major` opens them, by name; ptxas among them."""
        found = dict(self.files)
        names = {name: found[file] for name, file in NEEDED[major].items() if file in found}
        return tuple(sorted((names | ({"ptxas": self.ptxas} if self.ptxas else {})).items()))

    def fact(self, major: str) -> str:
        """The versions in one line, for reports and for the key of a result."""
        return ", ".join(f"{name} {version}" for name, version in self.versions(major))

    def lacking(self, major: str) -> str:
        """Why these cannot carry a jax of CUDA `major`; empty where they can."""
        found = dict(self.files)
        absent = [file for file in NEEDED[major].values() if file not in found]
        if absent:
            return f"the host's CUDA libraries lack {', '.join(absent)} (searched: {self._searched()})"
        return ""

    def doubts(self) -> tuple[str, ...]:
        """What XLA may miss when it compiles; the plugins of 0.8.0 and 0.10.2 hold no nvJitLink to do without ptxas."""
        if self.tools is None:
            return (f"no ptxas in {self._searched()}: XLA may find none, and then compiles nothing",)
        return () if _has_libdevice(self.tools) else (f"no {LIBDEVICE} in {self.tools}: some programs do not compile",)

    def _searched(self) -> str:
        return ", ".join(map(str, self.shown))

    def variables(self, inside: Callable[[Path], Path]) -> dict[str, str]:
        """What an attempt must know; `inside` gives a folder's path as the attempt sees it."""
        found = {"LD_LIBRARY_PATH": ":".join(str(inside(folder)) for folder in self.folders)}
        if self.tools is not None:
            found["CUDA_ROOT"] = str(inside(self.tools))
        return found


def find_libraries(given: str) -> CudaLibraries:
    """Look into the folders of `[targets.gpu] cuda_libraries`.

    Args:
        given: Absolute paths, separated by colons: a toolkit (`/usr/local/cuda`), a folder of libraries, or a
            site-packages into which NVIDIA's wheels were installed. What is found first counts.

    Raises:
        UserError: One is not there, holds no CUDA, or is the system's own folder of libraries.
    """
    shown: list[Path] = []
    folders: list[Path] = []
    tools: Path | None = None
    owners: dict[Path, str] = {}
    for text in filter(None, given.split(":")):
        root = Path(text)
        if not root.is_dir():
            raise UserError(
                "no such folder", where=f"cuda_libraries {text}", hint="name one that holds CUDA's libraries"
            )
        packages = root / "nvidia"
        own = packages if packages.is_dir() else root
        holding = [folder for folder in _candidates(own) if _holds_libraries(folder)]
        roots = [place for place in (*sorted(own.glob("*")), own) if (place / "bin" / "ptxas").is_file()]
        if not holding and not roots:
            raise UserError(
                "holds neither CUDA's libraries nor ptxas",
                where=f"cuda_libraries {text}",
                hint="name a toolkit, or the site-packages that holds nvidia/cu13 or nvidia/cuda_runtime",
            )
        if any((folder / "libc.so.6").exists() for folder in holding):
            raise UserError(
                "holds the system's own libraries, which an attempt must not take from here",
                where=f"cuda_libraries {text}",
                hint="name the toolkit's folder, such as /usr/local/cuda",
            )
        shown.append(own)
        folders += [folder for folder in holding if folder not in folders]
        tools = _better(tools, *roots)
        owners |= _owned(root) if own is packages else {}
    found = dict(_files(folders, owners))
    ptxas = "" if tools is None else _ptxas_version(tools, owners)
    return CudaLibraries(tuple(shown), tuple(folders), tools, tuple(sorted(found.items())), ptxas)


def _better(*roots: Path | None) -> Path | None:
    """The first that has libdevice beside ptxas, else the first with ptxas alone."""
    found = [root for root in roots if root is not None]
    return next(filter(_has_libdevice, found), found[0] if found else None)


def _has_libdevice(root: Path) -> bool:
    return (root / LIBDEVICE).is_file()


def _candidates(own: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for folder in (*sorted(own.glob("*/lib")), *(own / name for name in _TOOLKIT)):
        if folder.is_dir() and (real := folder.resolve()) not in seen:
            seen.add(real)
            yield folder


def _holds_libraries(folder: Path) -> bool:
    return any(re.match(r"lib(cu|nv|nccl)\w*\.so\.\d", entry.name) for entry in folder.iterdir())


def _owned(root: Path) -> dict[Path, str]:
    """The version of the wheel that installed each file below `nvidia/`, as its RECORD says."""
    found: dict[Path, str] = {}
    for record in sorted(root.glob("nvidia_*.dist-info/RECORD")):
        version = record.parent.name.removesuffix(".dist-info").rpartition("-")[2]
        try:
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # then the file itself must tell
            continue
        found |= {root / line.partition(",")[0]: version for line in lines if line.startswith("nvidia/")}
    return found


def _files(folders: list[Path], owners: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    for name in sorted({file for files in NEEDED.values() for file in files.values()}):
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            told = _nccl(path) if name.startswith("libnccl.") else ""
            yield name, told or owners.get(path) or _version_of(path)


def _version_of(path: Path) -> str:
    """`13.0.96` of a link to `libcudart.so.13.0.96`; else what identifies the content, which then stands for it."""
    said = re.search(r"\.so\.(\d+(?:\.\d+){2,})$", path.resolve().name)
    return said[1] if said else _content(path)


def _nccl(path: Path) -> str:
    """`2.28.9+cuda13.0` as NCCL prints it when it starts: the CUDA is that which its driver must know."""
    if not path.stat().st_size:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.search(rb"NCCL version (\d+\.\d+\.\d+\+cuda\d+\.\d+)", content)
        return found[1].decode() if found else ""


def _ptxas_version(tools: Path, owners: Mapping[Path, str]) -> str:
    ptxas = tools / "bin" / "ptxas"
    if version := owners.get(ptxas):
        return version
    try:
        told = subprocess.run([ptxas, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    said = re.search(r"\bV(\d+(?:\.\d+)+)", told)  # Cuda compilation tools, release 13.0, V13.0.88
    return said[1] if said else _content(ptxas)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()[:12]
