"""The host check: what a run needs, what is missing, and the fix for each finding."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from repromatrix.engines.gpus import Inventory
from repromatrix.errors import ReproError
from repromatrix.project import Project

KERNEL = Path("/proc/sys/kernel")
"""Settings of the kernel: read, never written, as they are the host's and hold for everything on it."""

HANDLERS = {
    "systemd-coredump": "`coredumpctl list` on the host shows them",
    "apport": "it keeps them in /var/crash of the host, packed: apport-unpack",
    "abrt-hook-ccpp": "`abrt list` on the host shows them",
}
"""Where the usual programs behind `|` in core_pattern leave what they get."""

LARGEST_CORE = 8.8e9
"""Bytes on the disk of the largest core seen, of a process with a GPU."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        subject: What was looked at.
        level: `ok`, `warning` (something will be skipped or slower) or `problem` (nothing can run).
        found: What was found.
        fix: What to do; empty for `ok`.
    """

    subject: str
    level: str
    found: str
    fix: str = ""


def findings(project: Project) -> Iterator[Finding]:
    """Look at everything, one finding after the other. Touches nothing."""
    checks: tuple[Callable[[Project], Iterator[Finding]], ...] = (
        _engines,
        _pythons,
        _gpus,
        _disk,
        _shared_memory,
        core_pattern,
        core_limit,
        core_room,
        ptrace,
        stack_readers,
        _registry,
        _index,
    )
    for check in checks:
        yield from check(project)


def _engines(project: Project) -> Iterator[Finding]:
    from repromatrix.engines.docker import DockerEngine
    from repromatrix.engines.podman import PodmanEngine
    from repromatrix.spec.matrix import load_matrix

    matrix = load_matrix(project.matrix_toml)
    engine = PodmanEngine(project, matrix)
    docker, podman = DockerEngine(project, matrix).unavailable(), engine.unavailable()
    if docker and podman:
        fix = "start Docker (or set DOCKER_HOST) and install buildx, or install podman; without either cells run in "
        yield Finding("docker engine", "warning", docker, f"{fix}venvs, with no isolation")
        yield Finding("podman engine", "warning", podman, "see docs/engines.md")
    else:
        # One is enough: what the other lacks is told, and needs no fix.
        yield Finding(
            "docker engine", "ok", f"not used: {docker}" if docker else os.environ.get("DOCKER_HOST", "default socket")
        )
        yield Finding("podman engine", "ok", f"not used: {podman}" if podman else engine.about())
    if shutil.which("mmdebstrap") is None:
        yield Finding(
            "mmdebstrap",
            "warning",
            "not installed",
            "apt-get install mmdebstrap: bases are built with it where no registry answers",
        )


def _pythons(project: Project) -> Iterator[Finding]:
    from repromatrix.envs.interpreter import find_python
    from repromatrix.spec.matrix import load_matrix

    for python in dict(load_matrix(project.matrix_toml).axes)["python"]:
        path = find_python(python)
        if path is None:
            yield Finding(
                f"Python {python}", "warning", "not on this host", f"uv python install {python} (venv engine)"
            )
        else:
            yield Finding(f"Python {python}", "ok", str(path))


def _gpus(project: Project) -> Iterator[Finding]:
    from repromatrix.engines.choose import count_gpus
    from repromatrix.engines.gpus import inventory

    if not count_gpus():
        yield Finding("GPUs", "warning", "no NVIDIA device node", "cells with a gpu target will be skipped")
        return
    found = inventory()
    if found.trouble:
        yield Finding("GPUs", "problem", found.trouble, "check the driver: dmesg | grep -i nvrm")
        return
    yield from gpu_findings(found)
    yield from _gpu_access(project)
    yield from _cuda_libraries(project)


def gpu_findings(found: Inventory) -> Iterator[Finding]:
    """The driver, every GPU and how they are linked."""
    known = [f"driver {found.driver or 'unknown'}", *(f"{name} {value}" for name, value in found.facts().items())]
    yield Finding("GPU driver", "ok", "; ".join(known))
    for gpu in found.gpus:
        subject, what = f"GPU {gpu.index}", f"{gpu.model or 'model unknown'}, {gpu.memory / 2**30:.0f} GiB"
        if why := gpu.unfit():
            fix = "nothing that fails on it says anything of a version: free it, or have it looked at (dmesg)"
            yield Finding(subject, "warning", f"{what}: {why}", fix)
        else:
            yield Finding(subject, "ok", what)


def _gpu_access(project: Project) -> Iterator[Finding]:
    """How containers get the GPUs, where there is an engine for containers."""
    from repromatrix.engines.docker import DockerEngine
    from repromatrix.engines.podman import PodmanEngine
    from repromatrix.spec.matrix import load_matrix

    matrix = load_matrix(project.matrix_toml)
    for engine in (DockerEngine(project, matrix), PodmanEngine(project, matrix)):
        if not engine.unavailable():
            reach = engine.gpu_access()
            yield Finding(f"GPUs in {engine.name}", "ok" if reach.how else "warning", reach.why)


def _cuda_libraries(project: Project) -> Iterator[Finding]:
    """The host's CUDA libraries, where `[targets.gpu]` or the variable names them."""
    from repromatrix.engines.gpu_host import libraries_of
    from repromatrix.engines.local_cuda import NEEDED
    from repromatrix.spec.host import with_host
    from repromatrix.spec.matrix import load_matrix

    subject = "CUDA libraries of the host"
    try:
        libraries = libraries_of(with_host(load_matrix(project.matrix_toml)))
    except ReproError as error:
        yield Finding(subject, "warning", str(error).splitlines()[0], error.hint)
        return
    if libraries is None:
        return
    for major in NEEDED:
        if why := libraries.lacking(major):
            yield Finding(f"{subject} for {major}-local", "warning", why, f"cells with {major}-local are skipped")
        else:
            yield Finding(f"{subject} for {major}-local", "ok", libraries.fact(major))


def _disk(project: Project) -> Iterator[Finding]:
    folder = next(path for path in (project.store, *project.store.parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        fix = "set REPROMATRIX_STORE to a folder that you may write in"
        yield Finding("disk", "problem", f"the store {project.store} cannot be written to", fix)
        return
    free = shutil.disk_usage(folder).free
    level = "ok" if free > 20e9 else "warning"
    fix = "" if level == "ok" else "a CUDA environment takes 3 GB packed and 8 GB as an image: free some space"
    yield Finding("disk", level, f"{free / 1e9:.0f} GB free for the store at {project.store}", fix)


def _shared_memory(_: Project) -> Iterator[Finding]:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError as error:
        yield Finding("/dev/shm", "problem", str(error), "mount a tmpfs there: collectives between processes need it")
        return
    level = "ok" if size >= 1 << 30 else "warning"
    yield Finding("/dev/shm", level, f"{size / 2**30:.1f} GiB", "" if level == "ok" else "NCCL wants 1 GiB or more")


def core_pattern(_: Project, kernel: Path = KERNEL) -> Iterator[Finding]:
    """Where the kernel puts cores (core(5)), and what this means for both engines."""
    try:
        pattern = (kernel / "core_pattern").read_text().strip()
        with_pid = (kernel / "core_uses_pid").read_text().strip() == "1" or "%p" in pattern
    except OSError as error:  # a sandbox may hide it
        yield Finding("core_pattern", "warning", f"not readable: {error.strerror}", "core files may go anywhere")
        return
    administrator = "an administrator may set `sysctl kernel.core_pattern=core`; repromatrix never does"
    if not pattern and not with_pid:
        yield Finding("core_pattern", "warning", "empty: no core is written, in docker and venv", administrator)
    elif pattern.startswith("|"):
        handler = (pattern[1:].split() or [""])[0]
        found = (
            f"{pattern}: the host's {Path(handler).name} takes every core, in docker and venv; it tells no stacks here"
        )
        where = HANDLERS.get(Path(handler).name, f"look where {handler} keeps them")
        yield Finding("core_pattern", "warning", found, f"{where}; {administrator}")
    elif pattern.startswith("/"):
        yield from _core_folder(pattern, administrator)
    elif "/" in pattern:
        found = f"{pattern}: below the folder where a process runs, and lost unless the script makes that folder"
        yield Finding("core_pattern", "warning", found, administrator)
    else:
        found = f"{pattern or '.PID'}: where the process ran, in docker and venv"
        if not with_pid:
            found += "; without the pid in the name, so of children that die in one folder the last one's is left"
        yield Finding("core_pattern", "ok", found)


def _core_folder(pattern: str, administrator: str) -> Iterator[Finding]:
    """A pattern that names a folder: of the container's own files in docker, of this host's in venv."""
    folder = Path(pattern).parent
    if "%" in str(folder):
        here = "there only if somebody made it"
    elif not folder.is_dir():
        here = "not there: they are lost"
    elif not os.access(folder, os.W_OK | os.X_OK):
        here = "not yours to write in: they are lost"
    else:
        here = "shared with the whole host: only those of the script's own processes are taken, not its children's"
    everywhere = str(folder) in ("/tmp", "/var/tmp")
    docker = "" if everywhere else "; in docker the image's, and lost where it has no such folder"
    yield Finding("core_pattern", "warning", f"{pattern}: in venv that folder is {here}{docker}", administrator)


def core_limit(_: Project, hard: int | None = None) -> Iterator[Finding]:
    """How large a core may become in a venv: a limit that only an administrator can raise."""
    if hard is None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == resource.RLIM_INFINITY:
        yield Finding("core limit", "ok", "none")
    else:
        found = "0: no core is written in venv" if not hard else f"cores in venv are cut after {hard / 1e6:.0f} MB"
        yield Finding("core limit", "warning", found, "raise it: `hard core unlimited` in /etc/security/limits.conf")


def core_room(project: Project, free: int | None = None) -> Iterator[Finding]:
    """How much of a core the disk of the evidence can take; `free` in bytes, None = look."""
    from repromatrix.engines.attempt import CORE_CAP
    from repromatrix.spec.matrix import load_matrix

    if load_matrix(project.matrix_toml).run.cores == "off":
        yield Finding("room for cores", "ok", 'not needed: [run] cores = "off"')
        return
    if free is None:
        free = shutil.disk_usage(project.state if project.state.is_dir() else project.root).free
    cap = min(CORE_CAP, free // 2)  # of an attempt with one process: half of the disk stays for everything else
    found = f"{free / 1e9:.1f} GB free for the evidence: a core is cut after {cap / 1e9:.1f} GB"
    if cap >= LARGEST_CORE:
        yield Finding("room for cores", "ok", found)
    else:
        fix = f"free some space: one of a process with a GPU was seen to have {LARGEST_CORE / 1e9:.1f} GB"
        yield Finding("room for cores", "warning", found, fix)


def ptrace(_: Project, kernel: Path = KERNEL) -> Iterator[Finding]:
    """Whether a hang can be read while it lives: Yama's ptrace_scope of the host holds in containers too."""
    try:
        scope = (kernel / "yama" / "ptrace_scope").read_text().strip()
    except FileNotFoundError:
        yield Finding("ptrace", "ok", "no Yama: hangs can be read")
        return
    except OSError as error:
        yield Finding("ptrace", "warning", f"not readable: {error.strerror}", "stacks of hangs may be refused")
        return
    meaning = {
        "0": "hangs can be read",
        "1": "of a hang the script's own process can be read, its children may refuse",
        "2": "only root may read a hang, and in docker nobody",
    }.get(scope, "nobody may read a hang")
    if scope == "0":
        yield Finding("ptrace", "ok", f"kernel.yama.ptrace_scope = 0: {meaning}")
        return
    reboot = " (3 lasts until the next boot)" if scope == "3" else ""
    yield Finding(
        "ptrace",
        "warning",
        f"kernel.yama.ptrace_scope = {scope}: {meaning}",
        f"`sysctl kernel.yama.ptrace_scope=0`{reboot}; else stacks come from the core that SIGABRT leaves, if any",
    )


def stack_readers(project: Project, locks: Path | None = None) -> Iterator[Finding]:
    """Whether pystack and py-spy are in the store, or where the index has them; fetches nothing."""
    from repromatrix.envs.index import addresses
    from repromatrix.envs.tools import LOCKS, known, read_tools
    from repromatrix.spec.matrix import load_matrix

    matrix = load_matrix(project.matrix_toml)
    for python in dict(matrix.axes)["python"]:
        subject = f"stack readers for Python {python}"
        less = "crashes and hangs are recorded without native stacks"
        if (found := read_tools(python, locks or LOCKS)) is None:
            yield Finding(subject, "warning", "pystack has no wheel for it", less)
        elif (place := known(python, project, locks or LOCKS)) is not None:
            yield Finding(subject, "ok", str(place))
        else:
            try:
                served = addresses(found, matrix)
            except ReproError as error:
                yield Finding(subject, "warning", error.message, "; ".join(filter(None, (less, error.hint))))
                continue
            size = sum(wheel.size for wheel in found.wheels) / 1e6
            if absent := [wheel.filename for wheel in found.wheels if wheel.sha256 not in served]:
                yield Finding(subject, "warning", f"the index does not serve {' and '.join(absent)}", less)
            else:
                yield Finding(subject, "ok", f"not in the store; the next run fetches {size:.0f} MB from the index")


def _registry(project: Project) -> Iterator[Finding]:
    from repromatrix.envs.base import resolve_digests
    from repromatrix.envs.daemon import address
    from repromatrix.spec.matrix import load_matrix

    try:
        resolve_digests(load_matrix(project.matrix_toml), address())
    except ReproError as error:
        yield Finding("image registry", "warning", error.message, "bases are built from Debian packages instead")
    else:
        yield Finding("image registry", "ok", "answers")


def _index(project: Project) -> Iterator[Finding]:
    from repromatrix.envs.index import release_time
    from repromatrix.spec.matrix import load_matrix

    newest = dict(load_matrix(project.matrix_toml).axes)["jax"][-1]
    try:
        when = release_time("jax", newest, project.store)
    except ReproError as error:
        yield Finding(
            "package index", "warning", error.message, error.hint or "set UV_DEFAULT_INDEX, SSL_CERT_FILE, HTTPS_PROXY"
        )
    else:
        yield Finding("package index", "ok", f"answers (jax {newest} was released on {when[:10]})")
