"""GPUs of a host: what NVML tells, the host's CUDA libraries, and whether they can carry an environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.engines.base import Attempt
from repromatrix.engines.built import in_venv, words
from repromatrix.engines.cdi import (
    Access,
    Specification,
    access,
    find_specifications,
    read_specification,
    specification,
    write_specification,
)
from repromatrix.engines.gpu_host import NEEDS, GpuHost, check, nccl_cuda
from repromatrix.engines.gpus import Gpu, Inventory, inventory, nvml, read_kernel_log, xids
from repromatrix.engines.local_cuda import NEEDED, find_libraries
from repromatrix.engines.venv import VenvEngine
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, InputErrors, UserError
from repromatrix.events import Silent
from repromatrix.results.key import result_key
from repromatrix.spec.cells import expand
from repromatrix.spec.host import CUDA_LIBRARIES, anywhere, with_host
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Environment
from repromatrix.ui.doctor import gpu_findings
from tests.conftest import Checkout
from tests.test_engine_venv import MINOR

LOG = """\
[  12.3] NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
[  13.0] NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
6,901,44000,-;NVRM: Xid (PCI:0001:c8:00): 31, pid=99, name=python3, Ch 00000008
"""


# ---- the inventory ----


class NoAnswer(Exception):
    pass


@dataclass
class Nvml:
    """A stand-in for NVML's binding with the answers of two H200s, as one machine gave them."""

    NVMLError: type[Exception] = NoAnswer
    gone: bool = False
    silent: frozenset[str] = frozenset()
    nvlink: bool = True
    used: int = 4 << 20
    desktop: int = 0
    lost: frozenset[int] = frozenset()
    constants: dict[str, int] = field(
        default_factory=lambda: {
            "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
            "NVML_VOLATILE_ECC": 0,
            "NVML_P2P_CAPS_INDEX_NVLINK": 2,
            "NVML_P2P_STATUS_OK": 0,
            "NVML_NVLINK_MAX_LINKS": 18,
            "NVML_TOPOLOGY_SINGLE": 10,
            "NVML_TOPOLOGY_SYSTEM": 50,
            "nvmlMemory_v2": 33554472,
        }
    )

    def __getattr__(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if self.gone:
            return self._fail
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 2,
            "nvmlSystemGetDriverVersion": "580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150754820096, used=self.used),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(usedGpuMemory=self.desktop)] * bool(self.desktop),
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetP2PStatus": 0 if self.nvlink else 5,
            "nvmlDeviceGetTopologyCommonAncestor": 50,
        }
        numbered = {
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
            "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"0000000{index}:0{index + 5}:00.0"),
        }
        if name in self.silent:
            return self._fail
        return numbered.get(name) or (lambda *_, **__: answers[name])

    def _handle(self, index: int) -> int:
        if index in self.lost:
            raise NoAnswer("GPU is lost")
        return index

    def _fail(self, *_: object, **__: object) -> None:
        raise NoAnswer("NVML Shared Library Not Found" if self.gone else "Not Supported")


def test_two_h200() -> None:
    found = inventory(Nvml, lambda: LOG)
    assert (found.driver, found.cuda, found.links) == ("580.159.04", "13.0", ((0, 1, "NVLink x18"),))
    h200 = Gpu(0, "GPU-0", "NVIDIA H200", "00000000:05:00.0", "9.0", 150754820096, 4 << 20, "off", True, 0, (79, 79))
    assert found.gpus[0] == h200
    assert found.gpus[1].xids == ()
    assert found.facts() == {
        "GPU compute capability": "9.0",
        "driver's CUDA": "13.0",
        "GPU links": "NVLink x18 (1)",
        "MIG": "off",
        "persistence": "on",
    }
    assert [gpu.unfit() for gpu in found.gpus] == ["the kernel's log has Xid 79 of it", ""]
    assert found.identity() == {"gpus": "NVIDIA H200, NVIDIA H200", "driver": "580.159.04"}
    assert Inventory().identity() == {}


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    names = {"MigMode", "PersistenceMode", "TotalEccErrors", "CudaComputeCapability", "P2PStatus", "NvLinkState"}
    found = inventory(lambda: Nvml(silent=frozenset(f"nvmlDeviceGet{name}" for name in names)), lambda: "")
    assert found.facts() == {"driver's CUDA": "13.0", "GPU links": "PCIe across NUMA nodes (1)"}
    assert found.gpus[0].unfit() == ""
    assert inventory(lambda: Nvml(nvlink=False), str).links == ((0, 1, "PCIe across NUMA nodes"),)


def test_the_real_binding_has_what_is_asked() -> None:
    binding, stand_in = nvml(), Nvml()
    names = ["DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetPciInfo", "DeviceGetGraphicsRunningProcesses"]
    names += ["DeviceGetMemoryInfo", "DeviceGetTotalEccErrors", "DeviceGetNvLinkState", "DeviceGetP2PStatus"]
    assert [name for name in names if not callable(getattr(binding, f"nvml{name}", None))] == []
    assert [name for name in stand_in.constants if not hasattr(binding, name)] == []


def test_of_a_long_log_the_end_counts(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    old, new = LOG.splitlines()[0], LOG.splitlines()[2]
    log.write_text(f"{old}\n" + "x" * (5 << 20) + f"\n{new}\n")
    assert xids(read_kernel_log(tmp_path / "none", [tmp_path / "gone", log])) == {"1:c8:0": (31,)}
    assert read_kernel_log(tmp_path / "none", []) == ""


def test_a_host_without_the_driver() -> None:
    found = inventory(lambda: Nvml(gone=True))
    assert found == Inventory(trouble="NVML does not answer: NVML Shared Library Not Found")
    assert found.facts() == {}


def test_a_gpu_that_is_lost_hides_no_other() -> None:
    found = inventory(lambda: Nvml(lost=frozenset({0})), str)
    assert [gpu.unfit() for gpu in found.gpus] == ["NVML does not reach it: GPU is lost", ""]
    assert (found.identity()["gpus"], found.links) == ("NVIDIA H200", ())
    assert check(found, "13") == ("", ())


def test_some_gpus_alone() -> None:
    found = inventory(Nvml, lambda: LOG, only=[1])
    assert [gpu.index for gpu in found.gpus] == [1]
    assert (found.links, found.driver) == ((), "")


def test_the_desktop_is_no_stranger() -> None:
    (gpu, _) = inventory(lambda: Nvml(used=3 << 30, desktop=5 << 29), str).gpus
    assert (gpu.used, gpu.taken()) == (1 << 29, "")


def test_what_is_new_since_the_run_began() -> None:
    before = Gpu(0, "GPU-0", "NVIDIA H200", ecc=2, xids=(79, 31))
    assert before.broken() == "2 memory errors that ECC could not correct"
    assert before.broken(before) == ""
    assert replace(before, ecc=5).broken(before) == "3 new memory errors that ECC could not correct"
    assert replace(before, ecc=0).broken(before) == ""  # it was reset
    assert replace(before, xids=(79, 31, 79)).broken(before) == "the kernel's log has a new Xid 79 of it"
    assert replace(before, xids=(79, 31, 13, 43)).broken(before) == ""  # faults of the program
    assert replace(before, lost="gone").broken(before) == "gone"


def test_gpus_that_nothing_can_be_blamed_on() -> None:
    fit = Gpu(0, "GPU-0", "NVIDIA H200")
    assert fit.unfit() == ""
    assert replace(fit, ecc=2).unfit() == "2 memory errors that ECC could not correct"
    assert replace(fit, used=3 << 30).unfit() == "3.0 GiB of its memory are in use by others"
    assert replace(fit, xids=(31, 13)).unfit() == ""  # faults of the program


def test_xids_by_bus_whatever_the_width_of_the_domain() -> None:
    assert xids(LOG) == {"0:5:0": (79, 79), "1:c8:0": (31,)}
    assert xids("") == {}


# ---- the host's CUDA libraries ----


def cuda_wheels(root: Path, major: str, versions: dict[str, str] | None = None) -> Path:
    """A site-packages with NVIDIA's wheels as they lie there (seen with those of CUDA 13.0 and NCCL 2.28.9)."""
    site = root / "site-packages"
    for name, file in NEEDED[major].items():
        folder = f"nvidia/{name}/lib" if name in ("nccl", "cudnn") or major == "12" else f"nvidia/cu{major}/lib"
        (site / folder).mkdir(parents=True, exist_ok=True)
        (site / folder / file).write_bytes(b"\x7fELF NCCL version 2.28.9+cuda13.0\0" if name == "nccl" else b"\x7fELF")
        version = (versions or {}).get(name, f"{major}.0.1")
        info = site / f"nvidia_{name}-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"nvidia/__init__.py,sha256=x,0\n{folder}/{file},sha256=x,4\n")
    (site / "jax").mkdir()
    return site


def toolkit(root: Path, *files: str) -> Path:
    """A CUDA toolkit with ptxas and libdevice, and further files."""
    place = root / "cuda"
    for name in ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc", *files):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    ptxas = place / "bin" / "ptxas"
    ptxas.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    ptxas.chmod(0o755)
    return place


def test_the_wheels_of_a_site_packages_and_the_ptxas_of_a_toolkit(tmp_path: Path) -> None:
    site, cuda = cuda_wheels(tmp_path, "13", {"cudnn": "9.15.1.9"}), toolkit(tmp_path)
    found = find_libraries(f"{site}:{cuda}")
    assert found.shown == (site / "nvidia", cuda)
    assert found.folders == tuple(site / "nvidia" / name / "lib" for name in ("cu13", "cudnn", "nccl"))
    assert found.fact("13") == (
        "cublas 13.0.1, cudart 13.0.1, cudnn 9.15.1.9, cufft 13.0.1, cupti 13.0.1, cusolver 13.0.1, cusparse 13.0.1, "
        "nccl 2.28.9+cuda13.0, nvjitlink 13.0.1, ptxas 13.0.88"
    )
    assert (found.lacking("13"), found.doubts()) == ("", ())
    assert found.variables(lambda folder: Path("/in") / folder.relative_to(tmp_path)) == {
        "LD_LIBRARY_PATH": ":".join(f"/in/site-packages/nvidia/{name}/lib" for name in ("cu13", "cudnn", "nccl")),
        "CUDA_ROOT": "/in/cuda",
    }
    lacking = found.lacking("12")
    assert lacking.startswith("the host's CUDA libraries lack libcudart.so.12, libcublas.so.12, libcufft.so.11, ")
    assert str(site / "nvidia") in lacking
    assert find_libraries(str(site)).doubts() == (
        f"no ptxas in {site / 'nvidia'}: XLA may find none, and then compiles nothing",
    )


def test_the_folders_of_cuda_12_wheels(tmp_path: Path) -> None:
    found = find_libraries(str(cuda_wheels(tmp_path, "12")))
    assert [folder.parent.name for folder in found.folders] == sorted(NEEDED["12"])
    assert found.lacking("12") == ""


def test_the_libraries_of_a_toolkit_tell_their_version_by_their_name(tmp_path: Path) -> None:
    cuda = toolkit(tmp_path, "targets/x86_64-linux/lib/libcudart.so.13.0.96", "extras/CUPTI/lib64/libcupti.so.13")
    (cuda / "lib64").symlink_to("targets/x86_64-linux/lib")
    (cuda / "lib64" / "libcudart.so.13").symlink_to("libcudart.so.13.0.96")
    found = find_libraries(str(cuda))
    assert found.folders == (cuda / "lib64", cuda / "extras/CUPTI/lib64")
    versions = dict(found.versions("13"))
    assert versions["cudart"] == "13.0.96"
    assert re.fullmatch("sha256:[0-9a-f]{12}", versions["cupti"])  # nothing else tells it from another


def test_what_is_found_first_counts(tmp_path: Path) -> None:
    first = toolkit(tmp_path / "a", "lib64/libcudart.so.13")
    second = toolkit(tmp_path / "b", "lib64/libcudart.so.13")
    (second / "lib64" / "libcudart.so.13").write_text("another")
    one, other = (dict(find_libraries(text).files) for text in (f"{first}:{second}", f"{second}:{first}"))
    assert one != other
    assert one == dict(find_libraries(str(first)).files)


def test_folders_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder") as caught:
        find_libraries(f"{tmp_path}/nowhere")
    assert caught.value.where == f"cuda_libraries {tmp_path}/nowhere"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds neither CUDA's libraries nor ptxas"):
        find_libraries(f"{tmp_path}/empty")
    system = tmp_path / "system"
    system.mkdir()
    for name in ("libc.so.6", "libcudart.so.12"):
        (system / name).write_text("")
    with pytest.raises(UserError, match="holds the system's own libraries"):
        find_libraries(str(system))


# ---- which cells run on them ----

MATRIX = """\
[matrix]
jax = ["0.10.2"]
cuda = ["12-local", "13-local"]
python = ["3.12"]
[targets.gpu]
env = {{ NCCL_NVLS_ENABLE = "0", A = "all" }}
{more}
[targets."gpu:2"]
env = {{ A = "two" }}
[run]
env = {{ A = "run", B = "run" }}
"""


def test_variables_of_all_attempts_on_gpus(checkout: Checkout) -> None:
    from repromatrix.spec.repro import load_repro

    (checkout.root / "matrix.toml").write_text(MATRIX.format(more='cuda_libraries = "/opt/cuda"'))
    path = checkout.repro("bug", "import jax", targets='["gpu", "gpu:2"]', env='{ C = "own" }')
    cells = expand(load_matrix(checkout.root / "matrix.toml"), [load_repro(path)]).cells
    found = {cell.target: dict(cell.env) for cell in cells}
    assert found["gpu"] == {
        "A": "all",
        "B": "run",
        "C": "own",
        "NCCL_NVLS_ENABLE": "0",
        "JAX_PLATFORMS": "cuda,cpu",
    }
    assert found["gpu:2"]["A"] == "two"
    assert found["gpu:2"]["NCCL_NVLS_ENABLE"] == "0"


def test_the_variable_of_the_host_wins(checkout: Checkout) -> None:
    (checkout.root / "matrix.toml").write_text(MATRIX.format(more='cuda_libraries = "/opt/cuda"'))
    matrix = load_matrix(checkout.root / "matrix.toml")
    assert with_host(matrix, {}) == matrix
    given = with_host(matrix, {CUDA_LIBRARIES: "/a:/b"})
    real = next(target for target in given.targets if target.name == "gpu")
    assert real.cuda_libraries == "/a:/b"
    assert real.env == (("NCCL_NVLS_ENABLE", "0"), ("A", "all"))
    assert len(given.targets) == 2
    assert [target.cuda_libraries for target in anywhere(replace(matrix, targets=())).targets] == ["/"]
    with pytest.raises(UserError, match="expected absolute paths"):
        with_host(matrix, {CUDA_LIBRARIES: "/a:b"})


def test_what_the_file_may_say_of_gpus(checkout: Checkout) -> None:
    def said(text: str) -> str:
        (checkout.root / "matrix.toml").write_text('[matrix]\njax = ["0.10.2"]\npython = ["3.12"]\n' + text)
        with pytest.raises(InputErrors) as caught:
            load_matrix(checkout.root / "matrix.toml")
        return str(caught.value).partition("matrix.toml:")[2].splitlines()[0]

    assert said('[targets.gpu]\ncuda_libraries = "/a:b"') == (
        '5: targets.gpu.cuda_libraries: expected an absolute path, found "/a:b"'
    )
    (checkout.root / "h100.txtpb").write_text("gpu")
    assert said('[targets."h100:8"]\ndescribe = "h100.txtpb"\nenv = { A = "1" }') == (
        '6: targets."h100:8".env: compiling without a device needs no variables of real GPUs; '
        "[run] env holds everywhere"
    )


def test_cells_need_the_hosts_libraries(checkout: Checkout) -> None:
    (checkout.root / "matrix.toml").write_text(MATRIX.format(more=""))
    checkout.repro("bug", "import jax", targets='["gpu:2"]')
    assert "2 are excluded" in checkout.invoke("cells").out
    said = checkout.invoke("cells", REPROMATRIX_CUDA_LIBRARIES="/usr/local/cuda")
    assert "needs 2 NVIDIA GPUs, none here" in said.out
    said = checkout.invoke("cells", REPROMATRIX_CUDA_LIBRARIES="cuda")
    assert (said.code, said.err.splitlines()[0]) == (
        2,
        "error: REPROMATRIX_CUDA_LIBRARIES: expected absolute paths, separated by colons, found 'cuda'",
    )


# ---- what they can carry ----

H200 = Inventory((Gpu(0, "GPU-0", "NVIDIA H200", capability="9.0"),), "580.159.04", "13.0")


def lock_for(cuda: str, *wheels: str) -> Lock:
    axes = (("jax", "0.10.2"), ("cuda", cuda), ("python", "3.12"), ("nccl", "locked"))
    made = tuple(Wheel(name, "1", f"{name}.whl", "0" * 64, 1, "") for name in wheels)
    return Lock(Environment(axes), "3.12", "x86_64-manylinux_2_28", "release", "", made)


@pytest.mark.parametrize(
    ("driver", "major", "reason"),
    [
        ("580.159.04", "13", ""),
        ("580.65.06", "13", ""),
        ("575.57.08", "13", "CUDA 13 needs driver 580 or newer, here is 575.57.08"),
        ("525.60.13", "12", ""),
        ("525.60.11", "12", "CUDA 12 needs driver 525.60.13 or newer, here is 525.60.11"),
        ("470.82.01", "12", "CUDA 12 needs driver 525.60.13 or newer, here is 470.82.01"),
    ],
)
def test_the_driver_against_cuda(driver: str, major: str, reason: str) -> None:
    assert check(replace(H200, driver=driver), major) == (reason, ())


def test_the_gpu_against_the_wheel() -> None:
    volta = replace(H200, gpus=(Gpu(0, "GPU-0", "Tesla V100-SXM2-16GB", capability="7.0"),))
    said = "jax for CUDA 13 has no code for compute capability 7.0 (Tesla V100-SXM2-16GB); the lowest is 7.5"
    assert check(volta, "13") == (said, ())
    assert check(volta, "12") == ("", ())
    assert "divided by MIG" in check(replace(H200, gpus=(replace(H200.gpus[0], mig="on"),)), "13")[0]


def test_nccl_against_the_driver() -> None:
    old = replace(H200, driver="535.104.05")
    assert check(old, "12", "13") == ("NCCL for CUDA 13 needs driver 580 or newer, here is 535.104.05", ())
    assert nccl_cuda((("nccl of the host", "2.28.9+cuda13.0"),)) == "13"
    assert nccl_cuda((("nccl of the host", "2.28.9"),)) == ""


def test_what_is_unknown_warns() -> None:
    assert check(Inventory(), "13") == ("", ("the driver's version is unknown; CUDA 13 needs 580 or newer",))
    assert check(H200, "14") == ("", ("which driver CUDA 14 needs is not known to this tool",))
    unknown = replace(H200, gpus=(replace(H200.gpus[0], capability=""),))
    assert check(unknown, "13") == ("", ("the compute capability of NVIDIA H200 is unknown",))


@given(st.tuples(st.integers(400, 700), st.integers(0, 300), st.integers(0, 20)), st.sampled_from(sorted(NEEDS)))
def test_a_newer_driver_never_bars(driver: tuple[int, int, int], major: str) -> None:
    def barred(version: tuple[int, ...]) -> bool:
        return bool(check(replace(H200, driver=".".join(map(str, version))), major)[0])

    assert not barred(driver) or barred((driver[0] - 1, *driver[1:]))
    assert barred(driver) == (driver < tuple(map(int, NEEDS[major].driver.split("."))))


def test_what_an_environment_stands_on(tmp_path: Path) -> None:
    libraries = find_libraries(f"{cuda_wheels(tmp_path, '13')}:{toolkit(tmp_path)}")
    host = GpuHost(H200, Access("host", ""), {"gpus": "NVIDIA H200", "driver": "580.159.04"}, libraries)
    own = host.ground(lock_for("13"))
    assert (own.libraries, own.hosted, own.unable, own.doubts) == (None, (), "", ())
    assert dict(own.facts)["gpus"] == "NVIDIA H200"
    local = host.ground(lock_for("13-local"))
    assert local.libraries == libraries
    assert dict(local.hosted)["nccl of the host"] == "2.28.9+cuda13.0"
    assert dict(local.facts) == {**dict(own.facts), **dict(local.hosted)}
    assert host.ground(lock_for("12-local")).unable.startswith("the host's CUDA libraries lack libcudart.so.12")
    bare = host.ground(lock_for("13-local", "nvidia-cuda-nvcc"))
    assert bare.libraries is not None
    assert (bare.libraries.tools, "ptxas of the host" in dict(bare.facts)) == (None, False)
    none = replace(host, access=Access("", "no way")).ground(lock_for("13"))
    assert (none.unable, none.is_final) == ("no way", False)


def test_another_nccl_is_another_result(checkout: Checkout, tmp_path: Path) -> None:
    from repromatrix.spec.repro import load_repro

    (checkout.root / "matrix.toml").write_text(MATRIX.format(more='cuda_libraries = "/opt/cuda"'))
    path = checkout.repro("bug", "import jax", targets='["gpu"]')
    cell = expand(load_matrix(checkout.root / "matrix.toml"), [load_repro(path)]).cells[0]
    libraries = find_libraries(f"{cuda_wheels(tmp_path, '13')}:{toolkit(tmp_path)}")
    host = GpuHost(inventory(Nvml, str), Access("host", ""), {"gpus": "NVIDIA H200", "driver": "580.159.04"}, libraries)

    def key(host: GpuHost) -> str:
        return result_key(cell, "lock", "venv", "CPython", dict(host.ground(lock_for("13-local")).facts))

    other = replace(libraries, files=tuple((f, "2.29.0" if "nccl" in f else v) for f, v in libraries.files))
    slower = replace(host.inventory, links=((0, 1, "PCIe switch"),))
    loaded_once = replace(host.inventory, gpus=tuple(replace(gpu, persistence=False) for gpu in host.inventory.gpus))
    different = [
        host,
        replace(host, libraries=other),
        replace(host, access=Access("cdi", "")),
        replace(host, inventory=slower),
    ]
    assert len({key(each) for each in different}) == len(different)
    assert key(replace(host, inventory=loaded_once)) == key(host)


def test_what_the_host_check_says_of_gpus() -> None:
    found = list(gpu_findings(inventory(lambda: Nvml(used=5 << 30), lambda: LOG)))
    assert [(each.subject, each.level) for each in found] == [
        ("GPU driver", "ok"),
        ("GPU 0", "warning"),
        ("GPU 1", "warning"),
    ]
    assert found[0].found.startswith("driver 580.159.04; GPU compute capability 9.0; driver's CUDA 13.0; GPU links NVL")
    assert found[1].found == "NVIDIA H200, 140 GiB: the kernel's log has Xid 79 of it"
    assert found[2].found == "NVIDIA H200, 140 GiB: 5.0 GiB of its memory are in use by others"


# ---- attempts as processes ----


def test_a_process_gets_the_hosts_cuda(tmp_path: Path) -> None:
    zlib = Path("/usr/lib/x86_64-linux-gnu/libz.so.1")
    if not zlib.exists():
        pytest.skip("any shared library would do, and this host has not the one that is known to be everywhere")
    site = cuda_wheels(tmp_path, "13")
    shutil.copyfile(zlib.resolve(), site / "nvidia/cu13/lib/libcudart.so.13")
    cuda = toolkit(tmp_path)
    engine = VenvEngine(WheelStore(tmp_path / "store"))
    lock = replace(lock_for("13-local"), python=MINOR, environment=_environment(MINOR))
    prepared = engine.prepare(lock, Silent())
    folder = tmp_path / "attempt"
    (folder / "work").mkdir(parents=True)
    script = (
        "import ctypes, json, os, sys, time\nctypes.CDLL('libcudart.so.13')\n"
        "print(json.dumps([os.environ.get(n) for n in ('LD_LIBRARY_PATH', 'CUDA_ROOT', 'CUDA_VISIBLE_DEVICES')]))\n"
        "print(os.environ['PATH'].split(':')[1])\ntry:\n    import jax\nexcept ImportError:\n    print('no jax')\n"
        "sys.stdout.flush()\ntime.sleep(1.5)\n"
    )
    (folder / "work" / "script.py").write_text(script)
    attempt = Attempt(
        "a", folder, "script.py", (), (), 30.0, gpus=1, devices=(1,), cuda=find_libraries(f"{site}:{cuda}")
    )
    raw = engine.run(prepared, attempt, threading.Event())
    assert (raw.exit_status, raw.infra) == (0, ""), (folder / "stderr").read_text()
    told, tools, jax = (folder / "stdout").read_text().splitlines()
    libraries, root, devices = json.loads(told)
    assert libraries.startswith(f"{site}/nvidia/cu13/lib:{site}/nvidia/cudnn/lib:{site}/nvidia/nccl/lib")
    assert (root, devices, tools, jax) == (str(cuda), "1", f"{cuda}/bin", "no jax")
    assert raw.notes == ("loaded: cudart 13.0.1 of the host",)
    command = engine.command(prepared, attempt)
    again = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert again.stdout == (folder / "stdout").read_text()


def _environment(minor: str) -> Environment:
    return Environment((("jax", "0.10.2"), ("cuda", "13-local"), ("python", minor), ("nccl", "locked")))


def test_what_a_plugin_was_built_with() -> None:
    told = '{"cuda": 13000, "cudnn": 91200, "nccl": ["nvidia-nccl-cu13>=2.27.7; sys_platform == \\"linux\\""]}'
    assert words(told + "\n") == "built with CUDA 13.0 and cuDNN 9.12.0, for NCCL 2.27.7 or newer"
    old = '{"cuda": 12030, "cudnn": 90101, "nccl": ["nvidia-nccl-cu12 >=2.18.1 ; extra == \'with_cuda\'"]}'
    assert words(old) == "built with CUDA 12.3 and cuDNN 9.1.1, for NCCL 2.18.1 or newer"
    found = told.replace("}", ', "header": [22907]}')
    assert words(found) == "built with CUDA 13.0, cuDNN 9.12.0 and NCCL 2.29.7, for NCCL 2.27.7 or newer"
    for strange in ("[]", "[22707, 22907]", "[2708]", "[3405691631]"):  # none, two, no version of this form
        assert words(told.replace("}", f', "header": {strange}}}')) == words(told)
    assert words("") == words("{}") == words("[]") == ""
    assert in_venv(sys.executable) == ""  # no CUDA plugin here
    assert in_venv("/no/such/python") == ""


HEADER = bytes.fromhex("5800000000000000 efbefeca 7b590000 00000080")
"""NCCL_CONFIG_INITIALIZER as it lies in `xla_cuda_plugin.so` of jax-cuda13-pjrt 0.10.2."""


@pytest.mark.parametrize(
    ("binary", "nccl"),
    [
        (b"\x7fELF" + b"\0" * 5000 + HEADER + b"code" + HEADER[8:16], " and NCCL 2.29.7"),
        (b"\x7fELF", ""),  # not linked with NCCL
        (b"", ""),
        (None, ""),
    ],
)
def test_the_nccl_header_that_a_plugin_was_compiled_with(binary: bytes | None, nccl: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    plugin = site / "jax_plugins" / "xla_cuda13"
    for folder in (site / "jax_cuda13_plugin", site / "jax_cuda13_plugin-0.10.2.dist-info", plugin):
        folder.mkdir(parents=True)
    (site / "jax_cuda13_plugin" / "_versions.py").write_text(
        "cuda_runtime_build_version = lambda: 13000\ncudnn_build_version = lambda: 91200\n"
    )
    metadata = "Metadata-Version: 2.1\nName: jax-cuda13-plugin\nVersion: 0.10.2\n"
    (site / "jax_cuda13_plugin-0.10.2.dist-info" / "METADATA").write_text(metadata)
    (plugin / "__init__.py").write_text("raise SystemExit('it looks for GPUs: it must not be imported')\n")
    if binary is not None:
        (plugin / "xla_cuda_plugin.so").write_bytes(binary)
    said = f"built with CUDA 13.0, cuDNN 9.12.0{nccl}" if nccl else "built with CUDA 13.0 and cuDNN 9.12.0"
    assert in_venv(str(tmp_path / "venv" / "bin" / "python")) == said


# ---- how a container gets them ----

CTK = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks]
    hookName: createContainer
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-1c0ffee
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""


def test_specifications_as_they_are_found(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(CTK)
    (tmp_path / "other.json").write_text('{"kind": "vendor.com/net", "devices": [{"name": "eth0"}]}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "README").write_text(CTK)
    found = find_specifications({"CDISpecDirs": [str(tmp_path), str(tmp_path / "none")]})
    assert found == (Specification(tmp_path / "nvidia.yaml", ("0", "GPU-1c0ffee", "all")),)
    with_path = read_specification(Path("x"), CTK.replace("NVIDIA_VISIBLE_DEVICES=void", "LD_LIBRARY_PATH=/a:/b"))
    assert with_path is not None
    assert with_path.library_path == "/a:/b"


def test_the_way_and_the_reason() -> None:
    found = [Specification(Path("/etc/cdi/nvidia.yaml"), ("0", "1"), "/drv")]
    plain: dict[str, Any] = {"Runtimes": {"runc": {}}}
    reading = {**plain, "CDISpecDirs": ["/etc/cdi"]}
    runtime: dict[str, Any] = {"Runtimes": {"runc": {}, "nvidia": {}}}
    assert access(runtime, found, hook=False) == Access("runtime", "--gpus all: the daemon has NVIDIA's runtime")
    assert access(plain, (), hook=True).why == "--gpus all: the daemon has NVIDIA's hook"
    by_cdi = access(reading, found, hook=False)
    assert (by_cdi.how, by_cdi.devices, by_cdi.library_path) == (
        "cdi",
        ("nvidia.com/gpu=0", "nvidia.com/gpu=1"),
        "/drv",
    )
    assert access(runtime | reading, found, hook=True, refused=True).how in ("cdi",)
    for info, specifications in ((plain, ()), (reading, ()), (plain, found)):
        none = access(info, specifications, hook=False)
        assert none.how == ""
        assert "--write-cdi" in none.why


def driver_files(root: Path) -> Path:
    folder = root / "drv"
    folder.mkdir()
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
        (folder / f"{name}.580.159.04").write_text(name)
        (folder / f"{name}.1").symlink_to(f"{name}.580.159.04")
    (folder / "libGL.so.1").write_text("")
    return folder


def test_a_specification_of_this_host(tmp_path: Path) -> None:
    dev, folder = tmp_path / "dev", driver_files(tmp_path)
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/cap1"):
        (dev / name).write_text("")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("")
    made = specification(folder, dev, [smi])
    assert made["kind"] == "nvidia.com/gpu"
    assert [device["name"] for device in made["devices"]] == ["0", "2", "10", "all"]
    assert [node["path"] for node in made["devices"][-1]["containerEdits"]["deviceNodes"]] == [
        str(dev / name) for name in ("nvidia0", "nvidia2", "nvidia10")
    ]
    edits = made["containerEdits"]
    assert [Path(node["path"]).name for node in edits["deviceNodes"]] == ["nvidiactl", "nvidia-uvm", "cap1"]
    assert edits["env"] == ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert mounts["/usr/local/nvidia/lib64/libcuda.so.1"] == str(folder / "libcuda.so.580.159.04")
    assert mounts["/usr/bin/nvidia-smi"] == str(smi)
    assert len(mounts) == 7
    assert not any("libGL" in inside for inside in mounts)
    read = read_specification(tmp_path / "x.json", json.dumps(made))
    assert read == Specification(tmp_path / "x.json", ("0", "2", "10", "all"), "/usr/local/nvidia/lib64")


def test_a_host_that_has_nothing_to_describe(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InfraError, match="no NVIDIA device node"):
        specification(driver_files(tmp_path), tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").write_text("")
    with pytest.raises(InfraError, match=r"no libcuda\.so\.1"):
        specification(tmp_path, tmp_path / "dev")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "drv"))
    written = write_specification(tmp_path / "cdi", tmp_path / "dev")
    assert json.loads(written.read_text())["devices"][0]["name"] == "0"
    if os.geteuid() != 0:
        return
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot be written"):
        write_specification(tmp_path / "file" / "cdi", tmp_path / "dev")


# A /dev of its own, where files stand for the GPUs: only their names are asked for.
OTHER_DEV = """\
dev=$1; shift
mount -t tmpfs none "$dev" || exit 99
for node in null zero random urandom; do touch "$dev/$node" && mount --bind "/dev/$node" "$dev/$node" || exit 99; done
ln -s /proc/self/fd "$dev/fd"
for node in $NODES; do touch "$dev/$node"; done
mount --bind "$dev" /dev || exit 99
exec "$@"
"""


def doctor_writes(
    checkout: Checkout, folder: Path, into: Path, nodes: str, *more: str
) -> subprocess.CompletedProcess[str]:
    """`invoke doctor --write-cdi INTO` on a host with these device nodes, and the driver's files in `folder`/drv."""
    (folder / "newdev").mkdir(exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "ldconfig").write_text("#!/bin/sh\n")  # of this machine's own driver nothing is told
    (folder / "bin" / "ldconfig").chmod(0o755)
    environ = {
        **checkout.environ,
        "NODES": nodes,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder / "drv"),
    }
    enter = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user", "--user"]
    command = [*enter, "sh", "-c", OTHER_DEV, "sh", str(folder / "newdev")]
    command += checkout.command("doctor", "--write-cdi", str(into), *more)
    done = subprocess.run(command, cwd=checkout.root, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip("no right to mount here")
    return done


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare to give a process a /dev of its own")
def test_doctor_writes_what_an_engine_reads(checkout: Checkout, tmp_path: Path) -> None:
    driver_files(tmp_path)
    smi = tmp_path / "bin" / "nvidia-smi"  # beside the driver's folder, as some hosts have it
    smi.parent.mkdir(exist_ok=True)
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    into = tmp_path / "etc" / "cdi"
    done = doctor_writes(checkout, tmp_path, into, "nvidia0 nvidia1 nvidia10 nvidiactl nvidia-uvm nvidia-modeset")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {into}/nvidia.json; docs/gpus.md says how an engine is told of it\n"
    said = doctor_writes(checkout, tmp_path, into, "nvidia0 nvidia1 nvidia10 nvidiactl nvidia-uvm", "--json", "-")
    assert json.loads(said.stdout) == {"schema": 1, "wrote": f"{into}/nvidia.json"}
    told = json.loads((into / "nvidia.json").read_text())
    assert [device["name"] for device in told["devices"]] == ["0", "1", "10", "all"]
    nodes = [node["path"] for node in told["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in told["containerEdits"]["mounts"]}
    assert mounts["/usr/bin/nvidia-smi"] == str(smi)
    assert Path(mounts["/usr/local/nvidia/lib64/libcuda.so.1"]).parent == tmp_path / "drv"
    (found,) = find_specifications({"CDISpecDirs": [str(into)]})
    assert access({"CDISpecDirs": [str(into)]}, [found], hook=False).devices == ("nvidia.com/gpu=all",)


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare to give a process a /dev of its own")
def test_doctor_writes_nothing_without_gpus_or_driver(checkout: Checkout, tmp_path: Path) -> None:
    driver_files(tmp_path)
    into = tmp_path / "cdi"
    done = doctor_writes(checkout, tmp_path, into, "nvidiactl")
    assert done.returncode == 3
    assert "no NVIDIA device node" in done.stderr
    shutil.rmtree(tmp_path / "drv")
    done = doctor_writes(checkout, tmp_path, into, "nvidia0")
    assert done.returncode == 3
    assert "no libcuda.so.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not into.exists()
