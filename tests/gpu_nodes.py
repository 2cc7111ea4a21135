"""Device nodes, a driver and a CUDA that stand for those of a host with GPUs, and a script that looks at them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ZLIB = Path("/usr/lib/x86_64-linux-gnu/libz.so.1")
"""Any small library that loads in the base image: it stands for the driver's, and for CUDA's."""

GPU_SCRIPT = """\
import ctypes, json, os, stat, time
told = {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", "CUDA_ROOT", "PATH", "CUDA_VISIBLE_DEVICES")}
told["nodes"] = [name for name in NODES if os.path.exists(name) and stat.S_ISCHR(os.stat(name).st_mode)]
for name in LIBRARIES:
    ctypes.CDLL(name)
for name in NODES[:1]:
    open(name, "rb").close()
print(json.dumps(told), flush=True)
time.sleep(1.5)
"""
"""Takes NODES (paths) and LIBRARIES (names) from the lines before it."""


def host_with_gpus(root: Path) -> Path:
    """Two device nodes (of /dev/null), a driver's folder and a site-packages with a CUDA 13 and a jax; needs root."""
    (root / "dev").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        subprocess.run(["mknod", str(root / "dev" / name), "c", "1", "3"], check=True)
    driver = root / "driver"
    driver.mkdir()
    shutil.copyfile(ZLIB.resolve(), driver / "libcuda.so.580.159.04")
    (driver / "libcuda.so.1").symlink_to("libcuda.so.580.159.04")
    cuda = root / "site-packages" / "nvidia" / "cu13"
    for path in (cuda / "lib" / "libcudart.so.13", cuda / "bin" / "ptxas", cuda / "nvvm/libdevice/libdevice.10.bc"):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ZLIB.resolve(), path)
    (root / "site-packages" / "jax").mkdir()
    (root / "site-packages" / "jax" / "__init__.py").write_text("")
    return root
