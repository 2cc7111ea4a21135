"""What a container of an attempt is made with: its options, its mounts, and the same as a shell command."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repromatrix.engines.attempt import STACKS, SUPERVISOR, script_env
from repromatrix.engines.base import Attempt
from repromatrix.engines.cdi import NO_DRIVER, Access

INSIDE = "/attempt"
"""Where the attempt's folder lies in the container."""

SUPERVISE = "/opt/repromatrix/supervise.py"
READ_STACKS = "/opt/repromatrix/stacks.py"
TOOLS = "/opt/repromatrix/tools"
CUDA = "/opt/repromatrix/cuda"
"""Below it lie the host's CUDA libraries, numbered in their order."""

PYTHON = "/opt/env/bin/python"
PATH = "/opt/env/bin:/usr/local/bin:/usr/bin:/bin"

COMMAND = ("python3", "-I", "-S", SUPERVISE, INSIDE)

PIDS = 4096
"""Tasks an attempt may have: JAX starts some 60 threads per 16 CPUs, a fork bomb stops here."""

SHM = 2 << 30
"""Bytes of /dev/shm: NCCL's ring buffers need more than Docker's 64 MB."""

NOFILE = 65536

NO_INIT = ("docker-init", "catatonit")
NO_CORE = ("rlimit type 4", "RLIMIT_CORE")
NO_FILES = ("rlimit type 7", "RLIMIT_NOFILE")

REFUSED = {
    NO_INIT[0]: "the daemon has no docker-init: the supervisor was PID 1",
    NO_INIT[1]: "podman has no catatonit and no tini-static: the supervisor was PID 1",
    **dict.fromkeys(NO_FILES, ""),
    **dict.fromkeys(NO_CORE, "the engine may not raise the limit of core files: its own holds"),
    **dict.fromkeys(NO_DRIVER, ""),
}
"""What an engine may be unable to give, by the words with which it refuses to start a container (Docker's or podman's,
runc's or crun's), and the note that an attempt without it carries (none where it cannot change a verdict). Debian ships
docker-init in another package (tini); an engine in a sandbox has hard limits (setrlimit(2): 4 is RLIMIT_CORE, 7 is
RLIMIT_NOFILE). `--gpus all` is given up for CDI, and each attempt on GPUs says how it got them."""

INITS = ("catatonit", "tini-static")
"""Programs for podman's `--init`, which looks for the first alone (4.3.1: in a folder of its own). Both are linked
statically: Debian's tini needs the libc of the host, and not every image has that."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a container that follow from the engine's own."""

    user: str
    security: list[str]
    userns: str | None
    init: bool
    ulimits: dict[str, int]
    gpus: Access

    @classmethod
    def of(cls, info: Mapping[str, Any], refused: frozenset[str], gpus: Access) -> Options:
        """What depends on how the engine itself is set up.

        Args:
            info: What it says of itself, in the words of `docker info`; `Limits` are hard limits that hold for it,
                where they are known.
            refused: Keys of `REFUSED` that it cannot give.
            gpus: How it gives GPUs.
        """
        features = {str(entry).split(",")[0].removeprefix("name=") for entry in info.get("SecurityOptions") or ()}
        # In a rootless engine the caller is root inside, and every other user is a stranger to the caller's files.
        user = "0:0" if "rootless" in features else f"{os.getuid()}:{os.getgid()}"
        security = ["no-new-privileges"]
        if "selinux" in features:
            security.append("label=disable")  # else the bind mounts are not readable, and relabelling changes the host
        own = info.get("Limits") or {}
        ulimits = own | {"nofile": min(NOFILE, own.get("nofile", NOFILE)), "core": -1}
        for name, words in (("core", NO_CORE), ("nofile", NO_FILES)):
            if not refused.isdisjoint(words):
                del ulimits[name]
        userns = "host" if "userns" in features else None
        return cls(user, security, userns, refused.isdisjoint(NO_INIT), ulimits, gpus)


def mounts(attempt: Attempt) -> list[tuple[Path, str, bool]]:
    """(on the host, in the container, read-only) of everything that the supervisor needs."""
    found = [(attempt.folder.resolve(), INSIDE, False), (SUPERVISOR, SUPERVISE, True), (STACKS, READ_STACKS, True)]
    if attempt.tools is not None:
        found.append((attempt.tools.resolve(), TOOLS, True))
    return found + _cuda_mounts(attempt)


def _cuda_mounts(attempt: Attempt) -> list[tuple[Path, str, bool]]:
    shown = () if attempt.cuda is None else attempt.cuda.shown
    return [(folder.resolve(), f"{CUDA}/{number}", True) for number, folder in enumerate(shown)]


def _inside(attempt: Attempt, folder: Path) -> Path:
    """Where the container has a folder of the host's CUDA; links are followed out here, as they may not hold inside."""
    real = folder.resolve()
    for outside, inside, _ in _cuda_mounts(attempt):
        if real.is_relative_to(outside):
            return Path(inside) / real.relative_to(outside)
    raise ValueError(f"{folder} leads out of the folders given")


def engine_env(attempt: Attempt, gpus: Access) -> dict[str, str]:
    """The engine's own variables of the script."""
    devices = attempt.devices or range(attempt.gpus)
    found = {"PATH": PATH, "VIRTUAL_ENV": "/opt/env", "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
    if not attempt.gpus:
        return found
    if attempt.cuda is not None:
        found |= attempt.cuda.variables(lambda folder: _inside(attempt, folder))
    if tools := found.get("CUDA_ROOT"):
        found["PATH"] = f"/opt/env/bin:{tools}/bin:{PATH.partition(':')[2]}"
    # What a specification gives the container, the script gets only from here.
    if libraries := ":".join(filter(None, (found.get("LD_LIBRARY_PATH"), gpus.library_path))):
        found["LD_LIBRARY_PATH"] = libraries
    return found


def flags(engine: str, attempt: Attempt, options: Options) -> list[str]:
    """Options of `docker run` and `podman run` for an attempt; mounts and variables are not among them."""
    words = ["--init"] * options.init
    if options.init and engine == "podman" and (program := next(filter(None, map(shutil.which, INITS)), None)):
        words.append(f"--init-path={program}")
    words += ["--network=none", "--hostname=localhost", "--cap-drop=ALL"]
    words += [f"--security-opt={option}" for option in options.security]
    words += [f"--pids-limit={PIDS}", f"--shm-size={SHM}"]
    words += [f"--ulimit={name}={value}" for name, value in options.ulimits.items()]
    if attempt.memory is not None:
        words += [f"--memory={attempt.memory}", f"--memory-swap={attempt.memory}"]
    if attempt.gpus:
        words += [f"--device={name}" for name in options.gpus.devices] or ["--gpus=all"]
    return [*words, f"--user={options.user}"]


def bind(source: Path, target: str, *, read_only: bool) -> str:
    """A mount as both command lines take it."""
    return f"--mount=type=bind,source={source},target={target}{',readonly' * read_only}"


def command(engine: str, image: str, attempt: Attempt, options: Options) -> str:
    """A `docker run` (`podman run`) that runs the script again; ranks need the supervisor, so it is run for them."""
    words = [engine, "run", "--rm", *flags(engine, attempt, options)]
    if attempt.cpus is not None:
        words.append(f"--cpuset-cpus={','.join(str(n) for n in sorted(os.sched_getaffinity(0))[: attempt.cpus])}")
    if attempt.processes > 1:
        # On a copy: the supervisor writes its verdict and the logs over those that are kept.
        words += [bind(source, target, read_only=fixed) for source, target, fixed in mounts(attempt)[1:]]
        copied = f'copy=$(mktemp -d) && cp -a {shlex.quote(str(attempt.folder.resolve()))}/. "$copy" && '
        own = f'"--mount=type=bind,source=$copy,target={INSIDE}"'
        return f'{copied}{shlex.join(words)} {own} {shlex.join([image, *COMMAND])} && echo "$copy"'
    words.append(f"--workdir={INSIDE}/work")
    words.append(bind((attempt.folder / "work").resolve(), f"{INSIDE}/work", read_only=False))
    words += [bind(source, target, read_only=True) for source, target, _ in _cuda_mounts(attempt)]
    env = script_env(attempt, INSIDE, engine_env(attempt, options.gpus))
    env["TMPDIR"] = "/tmp"
    words += [f"--env={name}={value}" for name, value in sorted(env.items()) if not name.startswith("REPROMATRIX_")]
    # A specification's variables are laid over those of the command line, so this one is set inside.
    inner = [f"LD_LIBRARY_PATH={env['LD_LIBRARY_PATH']}"] if options.gpus.devices and "LD_LIBRARY_PATH" in env else []
    return shlex.join([*words, image, *(["env", *inner] if inner else []), PYTHON, attempt.script, *attempt.arguments])
