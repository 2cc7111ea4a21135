"""The host check: what a run needs, what is missing, and the fix for each finding."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from repromatrix.errors import ReproError
from repromatrix.project import Project


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
        _core_pattern,
        _registry,
        _index,
    )
    for check in checks:
        yield from check(project)


def _engines(project: Project) -> Iterator[Finding]:
    from repromatrix.engines.docker import DockerEngine
    from repromatrix.spec.matrix import load_matrix

    why = DockerEngine(project, load_matrix(project.matrix_toml)).unavailable()
    if why:
        yield Finding(
            "docker engine",
            "warning",
            why,
            "start Docker (or set DOCKER_HOST) and install buildx; without it cells run in venvs, with no isolation",
        )
    else:
        yield Finding("docker engine", "ok", os.environ.get("DOCKER_HOST", "default socket"))
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


def _gpus(_: Project) -> Iterator[Finding]:
    from repromatrix.engines.choose import count_gpus

    count = count_gpus()
    if not count:
        yield Finding("GPUs", "warning", "no NVIDIA device node", "cells with a gpu target will be skipped")
        return
    smi = shutil.which("nvidia-smi")
    if smi is None:
        yield Finding("GPUs", "warning", f"{count} device nodes, no nvidia-smi", "install the driver's utilities")
        return
    query = [smi, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("GPUs", "problem", f"nvidia-smi failed: {error}", "check the driver: dmesg | grep -i nvrm")
        return
    yield Finding("GPUs", "ok", "; ".join(line.strip() for line in answer.splitlines()))


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


def _core_pattern(_: Project) -> Iterator[Finding]:
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError as error:  # a sandbox may hide it
        yield Finding("core_pattern", "warning", f"not readable: {error.strerror}", "core files may go anywhere")
        return
    if pattern.startswith("|"):
        # Only a pipe handler runs outside the container; it is the host's to configure, so it is read and left alone.
        yield Finding("core_pattern", "warning", pattern, "cores go to this handler, not into the evidence")
    elif pattern.startswith("/"):
        yield Finding("core_pattern", "warning", pattern, "cores are written to that folder inside the sandbox")
    else:
        yield Finding("core_pattern", "ok", pattern)


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
