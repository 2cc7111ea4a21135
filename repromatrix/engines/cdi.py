"""How a container gets the host's GPUs: NVIDIA's runtime, or a CDI specification, found here or written here.

CDI (Container Device Interface, `cncf-tags/container-device-interface`) describes in a file what a container needs for
a device. Docker since 25 and podman read it, and nothing of NVIDIA's need be installed beside the driver.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repromatrix.errors import InfraError
from repromatrix.files import write_atomically

KIND = "nvidia.com/gpu"

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where the engines look unless they are told otherwise (SPEC.md of CDI; dockerd's `cdi-spec-dirs`, podman)."""

INSIDE = "/usr/local/nvidia/lib64"
"""Where a container finds the driver's libraries: the folder that NVIDIA's own images have in LD_LIBRARY_PATH."""

DRIVER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", INSIDE, "/usr/lib/wsl/lib")

HOOK = "nvidia-container-runtime-hook"
"""With it on its PATH, dockerd understands `--gpus` without a runtime called nvidia (moby: daemon/nvidia_linux.go)."""

NO_DRIVER = ("could not select device driver", "failed to discover GPU vendor")
"""A daemon's words, at the start of a container, for `--gpus` without NVIDIA's hook: up to Docker 28, and since."""

ADVICE = (
    "install NVIDIA's container toolkit, or write a CDI specification (`invoke doctor --write-cdi /etc/cdi`) and start "
    "the daemon with the feature cdi (docs/gpus.md)"
)


@dataclass(frozen=True, slots=True)
class Specification:
    """A CDI specification of NVIDIA GPUs.

    Attributes:
        path: The file.
        devices: Names: `0`, `1`, `all`, UUIDs.
        library_path: LD_LIBRARY_PATH that it gives a container; empty where it gives none.
    """

    path: Path
    devices: tuple[str, ...]
    library_path: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """The way that was chosen.

    Attributes:
        how: `runtime` (`--gpus all`), `cdi`, `host` (processes of this host), or empty: there is none.
        why: One sentence: the choice and its reason, or what is missing.
        devices: Full CDI names that give all GPUs: `nvidia.com/gpu=all`.
        library_path: As in `Specification`.
    """

    how: str
    why: str
    devices: tuple[str, ...] = ()
    library_path: str = ""


def access(
    info: Mapping[str, Any], specifications: Iterable[Specification], *, hook: bool, refused: bool = False
) -> Access:
    """Choose: NVIDIA's runtime where the daemon has it, else CDI.

    Args:
        info: What the daemon says of itself (`docker info`).
        specifications: Those in the folders where this daemon looks.
        hook: `HOOK` is installed.
        refused: The daemon was asked with `--gpus all` and refused.
    """
    if not refused and (hook or "nvidia" in (info.get("Runtimes") or {})):
        return Access("runtime", f"--gpus all: the daemon has NVIDIA's {'hook' if hook else 'runtime'}")
    lacks = "the daemon refused --gpus all" if refused else "no NVIDIA runtime in the daemon"
    enabled = bool(info.get("CDISpecDirs"))
    for found in specifications:
        names = _every(found)
        if names and enabled:
            why = f"CDI: {lacks}, and {found.path} describes {', '.join(found.devices)}"
            return Access("cdi", why, names, found.library_path)
        if names:
            return Access("", f"{found.path} describes the GPUs, but the daemon does not read CDI: {ADVICE}")
    return Access("", f"{lacks}, and there is no CDI specification of GPUs: {ADVICE}")


def podman_access(specifications: Iterable[Specification]) -> Access:
    """The way in podman: CDI alone, which it reads without being told to.

    Args:
        specifications: Those in the folders where it looks.
    """
    for found in specifications:
        if names := _every(found):
            why = f"CDI: podman reads {found.path}, which describes {', '.join(found.devices)}"
            return Access("cdi", why, names, found.library_path)
    return Access(
        "",
        "there is no CDI specification of GPUs for podman: install NVIDIA's container toolkit (`nvidia-ctk cdi "
        "generate`), or write one with `invoke doctor --write-cdi /etc/cdi` (docs/gpus.md)",
    )


def _every(specification: Specification) -> tuple[str, ...]:
    """Full names of the devices that give all GPUs."""
    devices = specification.devices
    names = ("all",) if "all" in devices else tuple(name for name in devices if name.isdigit())
    return tuple(f"{KIND}={name}" for name in names)


def find_specifications(info: Mapping[str, Any]) -> tuple[Specification, ...]:
    """Specifications of NVIDIA GPUs where the daemon looks, or where engines look unless told otherwise."""
    folders = [Path(folder) for folder in info.get("CDISpecDirs") or FOLDERS]
    found = []
    for path in (path for folder in folders for path in sorted(folder.glob("*")) if _is_specification(path)):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):  # the daemon cannot use it either, and says so when a container starts
            continue
        if specification := read_specification(path, text):
            found.append(specification)
    return tuple(found)


def _is_specification(path: Path) -> bool:
    return path.suffix in (".json", ".yaml", ".yml")


def read_specification(path: Path, text: str) -> Specification | None:
    """What matters of a specification's text, JSON or YAML; None where it is of something else.

    Of YAML three keys are looked for, as `nvidia-ctk cdi generate` writes them: `name` occurs for devices alone.
    """
    if text.lstrip().startswith("{"):
        try:
            told = json.loads(text)
            kind, names = told.get("kind"), [str(device["name"]) for device in told.get("devices", ())]
        except (ValueError, AttributeError, KeyError, TypeError):  # not for us to judge: the daemon leaves it out
            return None
    else:
        found = re.search(r"""^kind:\s*["']?([\w./-]+)""", text, re.MULTILINE)
        kind = found[1] if found else None
        names = re.findall(r"""^\s*(?:-\s+)?name:\s*["']?([\w:.-]+)""", text, re.MULTILINE)
    if kind != KIND:
        return None
    paths = re.search(r"""\bLD_LIBRARY_PATH=([^"'\s,\]]+)""", text)
    return Specification(path, tuple(dict.fromkeys(names)), paths[1] if paths else "")


def hook_installed() -> bool:
    return shutil.which(HOOK, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin:/usr/sbin") is not None


# ---- the driver's files ----


def driver_folder() -> Path | None:
    """The folder of this host's libcuda.so.1, or None.

    It is asked of the loader's cache first, then of LD_LIBRARY_PATH, then of the usual places.
    """
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is not None:
        try:
            told = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            told = ""
        word = "aarch64" if os.uname().machine == "aarch64" else "x86-64"
        for line in told.splitlines():
            if line.strip().startswith("libcuda.so.1 ") and word in line:
                return Path(line.rpartition("=> ")[2]).parent
    own = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return next((Path(folder) for folder in (*own, *DRIVER_FOLDERS) if folder and has_driver(Path(folder))), None)


def has_driver(folder: Path) -> bool:
    return (folder / "libcuda.so.1").is_file()


def beyond_the_loader() -> str:
    """The folder of libcuda.so.1 where the loader does not find it, for a process of this host; else empty."""
    folder = driver_folder()
    if folder is None or str(folder) in DRIVER_FOLDERS[:3]:
        return ""
    return str(folder)


def specification(folder: Path, dev: Path = Path("/dev"), binaries: Iterable[Path] = ()) -> dict[str, Any]:
    """A CDI specification of this host's GPUs.

    Args:
        folder: That of the driver's libraries.
        dev: Where the device nodes are.
        binaries: Programs of the driver, put into /usr/bin: nvidia-smi.

    Raises:
        InfraError: No GPU, or no driver.
    """
    nodes = sorted(
        (node for node in dev.glob("nvidia*") if node.name[6:].isdigit()), key=lambda node: int(node.name[6:])
    )
    if not nodes:
        raise InfraError("no NVIDIA device node", where=str(dev), hint="load the driver: nvidia-smi makes the nodes")
    if not has_driver(folder):
        raise InfraError("no libcuda.so.1", where=str(folder), hint="install the driver's libraries")
    shared = [dev / name for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools") if (dev / name).exists()]
    # Those of MIG instances, and of memory shared between machines.
    shared += sorted(path for path in dev.glob("nvidia-caps*/*") if not path.is_dir())
    libraries = sorted({path for glob in ("libcuda*.so*", "libnvidia-*.so*") for path in folder.glob(glob)})
    # Each name is mounted for itself, since a bind mount follows a link: all of them lead to the file of this version.
    mounts = [_mount(path.resolve(), f"{INSIDE}/{path.name}") for path in libraries if path.is_file()]
    mounts += [_mount(path.resolve(), f"/usr/bin/{path.name}") for path in binaries]

    def device(name: str, own: Iterable[Path]) -> dict[str, Any]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": str(node)} for node in own]}}

    return {
        "cdiVersion": "0.5.0",  # the first that every engine with CDI reads, and all that is used here
        "kind": KIND,
        "containerEdits": {
            "env": [f"LD_LIBRARY_PATH={INSIDE}"],
            "deviceNodes": [{"path": str(node)} for node in shared],
            "mounts": mounts,
        },
        "devices": [*(device(node.name[6:], [node]) for node in nodes), device("all", nodes)],
    }


def _mount(outside: Path, inside: str) -> dict[str, Any]:
    return {"hostPath": str(outside), "containerPath": inside, "options": ["ro", "nosuid", "nodev", "bind"]}


def write_specification(target: Path, dev: Path = Path("/dev")) -> Path:
    """Write `nvidia.json` into the folder `target`, which is made; returns the file.

    Raises:
        InfraError: No GPU, no driver, or the folder cannot be written.
    """
    folder = driver_folder()
    if folder is None:
        raise InfraError("no libcuda.so.1 on this host", hint="install the driver's libraries, or set LD_LIBRARY_PATH")
    near = folder.parent / "bin"
    smi = shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', '')}:/usr/bin:{near}")
    content = specification(folder, dev, [Path(smi)] if smi else [])
    path = target / "nvidia.json"
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise InfraError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            hint='name a folder of yours, and the daemon\'s "cdi-spec-dirs" with it',
        ) from error
    return path
