"""Python interpreters of this host: to compile bytecode with, and to base a venv on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.network import own_folder
from repromatrix.errors import InfraError
from repromatrix.events import Listener

_INSTALL = 600
"""Seconds that uv may take to install an interpreter (30 MB)."""

_ASK = """
import json, os, platform, sys, sysconfig
executable = os.path.realpath(sys.executable)
if sys.prefix != sys.base_prefix:  # a venv: go to the interpreter it was made from
    executable = os.path.realpath("{}/bin/python{}.{}".format(sys.base_prefix, *sys.version_info))
print(json.dumps({
    "executable": executable, "version": platform.python_version(), "build": sys.version,
    "implementation": sys.implementation.name, "minor": "{}.{}".format(*sys.version_info),
    "abi": sysconfig.get_config_var("SOABI") or "", "no_gil": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""


class NoInterpreter(InfraError):
    """This host has no CPython of that version: its cells are `infra`, as it says nothing of the version of JAX."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython of this host.

    Attributes:
        path: The executable itself, no link and not one of a venv.
        version: `3.11.7`.
        id: Changes with the executable's place and its build.
    """

    path: Path
    version: str
    id: str


def find_python(minor: str) -> Path | None:
    """The executable of a CPython `minor` (`3.11`) on this host that was started and said so; None if there is none.

    Looks at the running interpreter, PATH, pyenv's versions, and what uv knows, in this order; downloads nothing.
    """
    found = interpreter(minor)
    return found.path if found else None


def require_python(minor: str) -> Interpreter:
    """The interpreter that `find_python` names.

    Raises:
        NoInterpreter: There is none.
    """
    if (found := interpreter(minor)) is None:
        raise NoInterpreter(
            f"no CPython {minor} on this host",
            hint=f"install it (`uv python install {minor}`, or your distribution's package), or use a container engine",
        )
    return found


def obtain_python(minor: str, listener: Listener) -> Interpreter:
    """The interpreter that `find_python` names; where there is none, uv is asked to install one in the user's home.

    `UV_PYTHON_DOWNLOADS=never` forbids that, as for uv itself.

    Raises:
        NoInterpreter: There is none, and none can be installed.
    """
    if (found := interpreter(minor)) is not None:
        return found
    from uv import find_uv_bin

    task = listener.start("venv", f"CPython {minor}, which this host lacks")
    try:
        command = [find_uv_bin(), "python", "install", f"cpython@{minor}"]
        with own_folder() as there:
            done = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=_INSTALL, check=False)
        said = done.stderr.strip().splitlines()[:1] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        said = [str(error)]
    task.finish("failed" if said else "installed")
    interpreter.cache_clear()
    try:
        return require_python(minor)
    except NoInterpreter as error:
        raise NoInterpreter(f"{error.message}, and uv installs none: {' '.join(said)}", hint=error.hint) from None


@functools.cache
def interpreter(minor: str) -> Interpreter | None:
    """As `find_python`, with its version and identity; asked once a process."""
    for candidate in _candidates(minor):
        if (found := _ask(candidate, minor)) is not None:
            return found
    return None


def _candidates(minor: str) -> Iterator[Path]:
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}" and sys.executable:
        yield Path(sys.executable)
    # pyenv's shims on PATH are slow (0.2 s) and answer only for versions that are active: look where those lie.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{minor}")
    if on_path and Path(on_path).parent != pyenv / "shims":
        yield Path(on_path)
    yield from sorted((pyenv / "versions").glob(f"{minor}.*/bin/python{minor}"), reverse=True)
    if by_uv := _ask_uv(minor):  # knows the places of those it installed itself
        yield by_uv


def _ask_uv(minor: str) -> Path | None:
    from uv import find_uv_bin

    try:
        command = [find_uv_bin(), "python", "find", f"cpython@{minor}", "--system", "--no-project", "--offline"]
        with own_folder() as there:
            answer = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no uv here: the other places remain
        return None
    return Path(answer.stdout.strip()) if answer.returncode == 0 and answer.stdout.strip() else None


def _ask(candidate: Path, minor: str) -> Interpreter | None:
    """What `candidate` says of itself; None where it is not a CPython `minor` that can load manylinux wheels."""
    try:
        answer = subprocess.run(
            [candidate, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        facts = json.loads(answer.stdout) if answer.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, ValueError):  # a broken interpreter is no interpreter
        return None
    if facts.get("minor") != minor or facts["implementation"] != "cpython" or facts["no_gil"] or "musl" in facts["abi"]:
        return None
    path = Path(facts["executable"])
    if not path.is_file():
        return None
    identity = hashlib.sha256(f"{path}\n{facts['build']}".encode()).hexdigest()[:12]
    return Interpreter(path, facts["version"], identity)
