"""Which CUDA, cuDNN and NCCL a CUDA plugin was compiled with: asked of the plugin itself, which needs no GPU for it.

`jax_cuda12_plugin._versions` of 0.4.30 to 0.10.2 tells CUDA and cuDNN (with no library of either present). Of NCCL the
wheel's metadata tells the oldest that it takes, and nothing tells the one whose header it was compiled with, but for
what the header itself puts into the binary: NCCL_CONFIG_INITIALIZER (nccl.h) is a size, the number 0xcafebeef and the
version, 22907 for 2.29.7. All 22 plugins that were looked at, of 0.4.30 to 0.10.2, have it, and one version in all its
places.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

from repromatrix.envs.daemon import LABEL, daemon_errors
from repromatrix.errors import InfraError

if TYPE_CHECKING:
    from repromatrix.envs.daemon import Daemon

CODE = r"""
import importlib, importlib.metadata, importlib.util, json, mmap, os, re
def compiled(major):
    found = importlib.util.find_spec("jax_plugins.xla_cuda%s" % major)
    if found is None or not found.origin:
        return []
    with open(os.path.join(os.path.dirname(found.origin), "xla_cuda_plugin.so"), "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            told = re.findall(rb"\xef\xbe\xfe\xca(.{4})", whole, re.DOTALL)
    return sorted({int.from_bytes(each, "little") for each in told})
for major in ("13", "12"):
    try:
        told = importlib.import_module("jax_cuda%s_plugin._versions" % major)
    except ImportError:
        continue
    asked = importlib.metadata.requires("jax-cuda%s-plugin" % major) or ()
    nccl = [each for each in asked if each.startswith("nvidia-nccl")]
    try:
        header = compiled(major)
    except (ImportError, OSError, ValueError):
        header = []
    cuda, cudnn = told.cuda_runtime_build_version(), told.cudnn_build_version()
    print(json.dumps({"cuda": cuda, "cudnn": cudnn, "nccl": nccl, "header": header}))
    break
"""
"""For the environment's interpreter; prints nothing where there is no CUDA plugin."""

_PATIENCE = 60


def words(answer: str) -> str:
    """What `CODE` printed, as a note: `built with CUDA 13.0, cuDNN 9.12.0 and NCCL 2.29.7, for NCCL 2.27.7 or newer`.

    Empty where it printed nothing of the kind.
    """
    try:
        told = json.loads(answer)
        cuda, cudnn = int(told["cuda"]), int(told["cudnn"])
        least = re.search(r">=\s*([\d.]+)", "".join(told["nccl"]))
        header = [int(each) for each in told.get("header", ())]
    except (ValueError, KeyError, TypeError):
        return ""
    parts = [f"CUDA {cuda // 1000}.{cuda % 1000 // 10}", f"cuDNN {_dotted(cudnn)}"]
    if len(header) == 1 and _DOTTED.start <= header[0] < _DOTTED.stop:  # of several, none is known to be the right one
        parts.append(f"NCCL {_dotted(header[0])}")
    said = f"built with {', '.join(parts[:-1])} and {parts[-1]}"
    return said + (f", for NCCL {least[1]} or newer" if least else "")


_DOTTED = range(2_09_00, 10_00_00)
"""NCCL's versions as they are since 2.9.0 (NCCL_VERSION in nccl.h): anything else beside that number is not one."""


def _dotted(version: int) -> str:
    """`9.12.0` for 91200, `2.29.7` for 22907: cuDNN's form since 9, NCCL's since 2.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def in_venv(python: str) -> str:
    """The note on the environment of this interpreter; empty where it does not tell."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", CODE], capture_output=True, text=True, timeout=_PATIENCE, check=False, env={}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return words(done.stdout)


def in_image(daemon: Daemon, host: str, image: str, python: str, owner: str) -> str:
    """The note on the environment of this image, or on what went wrong; empty where it does not tell.

    Args:
        host: The daemon's address, for errors.
        python: Interpreter in the image.
        owner: Mark by which a later run finds the container, should this one be killed.
    """
    try:
        with daemon_errors(host, "ask an environment what it was built with"):
            made = daemon.api.create_container(
                image,
                command=[python, "-I", "-c", CODE],
                entrypoint=[],
                network_disabled=True,
                labels={f"{LABEL}attempt": "built", f"{LABEL}owner": owner},
            )
            try:
                daemon.api.start(made["Id"])
                daemon.api.wait(made["Id"], timeout=_PATIENCE)
                answer = daemon.api.logs(made["Id"], stdout=True, stderr=False)
            finally:
                daemon.api.remove_container(made["Id"], force=True, v=True)
    except InfraError as error:  # the attempt itself has a verdict, and this is only told beside it
        return f"what it was built with could not be asked: {error.line}"
    return words(answer.decode(errors="replace"))
