"""Which CUDA, cuDNN and NCCL a CUDA plugin was compiled with: asked of the plugin itself, which needs no GPU for it.

`jax_cuda12_plugin._versions` of 0.4.30 to 0.10.2 tells CUDA and cuDNN (with no library of either present); of NCCL the
wheel's metadata tells the oldest that it takes.
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

CODE = """
import importlib, importlib.metadata, json
for major in ("13", "12"):
    try:
        told = importlib.import_module("jax_cuda%s_plugin._versions" % major)
    except ImportError:
        continue
    asked = importlib.metadata.requires("jax-cuda%s-plugin" % major) or ()
    nccl = [each for each in asked if each.startswith("nvidia-nccl")]
    print(json.dumps({"cuda": told.cuda_runtime_build_version(), "cudnn": told.cudnn_build_version(), "nccl": nccl}))
    break
"""
"""For the environment's interpreter; prints nothing where there is no CUDA plugin."""

_PATIENCE = 60


def words(answer: str) -> str:
    """What `CODE` printed, as a note: `built with CUDA 13.0 and cuDNN 9.12.0, for NCCL 2.27.7 or newer`; else empty."""
    try:
        told = json.loads(answer)
        cuda, cudnn = int(told["cuda"]), int(told["cudnn"])
        nccl = re.search(r">=\s*([\d.]+)", "".join(told["nccl"]))
    except (ValueError, KeyError, TypeError):
        return ""
    said = f"built with CUDA {cuda // 1000}.{cuda % 1000 // 10} and cuDNN {cudnn // 10000}.{cudnn // 100 % 100}"
    return f"{said}.{cudnn % 100}" + (f", for NCCL {nccl[1]} or newer" if nccl else "")


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
