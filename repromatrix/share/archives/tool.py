"""The wheels that this tool itself needs to run, so that an archive restores where no index answers.

Which these are depends on the Python: uv resolves the dependencies of pyproject.toml to the versions and hashes of
requirements.lock. The answer is kept in the store, so that adding to an archive asks nobody.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.disk import write_text
from repromatrix.envs.index import PLATFORM, addresses, compile_requirements
from repromatrix.envs.lockfile import read_wheels, render_wheels
from repromatrix.envs.model import Wheel, hash_of
from repromatrix.envs.resolve import best_wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.project import TOOL_ROOT, Project
from repromatrix.spec.model import Matrix

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The Python that runs now."""

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:\s*;.*?)?\s*\\$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ToolWheels:
    """What the tool needs on one Python minor version; fits `Locked`."""

    python: str
    platform: str
    wheels: tuple[Wheel, ...]

    @property
    def id(self) -> str:
        return f"this tool on Python {self.python}"

    @property
    def hash(self) -> str:
        return hash_of(self.python, self.platform, self.wheels)


def pythons(text: str) -> tuple[str, ...]:
    """The Python versions of `--tool-python`: empty = the one that runs, `none` = none.

    Raises:
        UserError: Not minor versions that the tool runs on.
    """
    if text == "none":
        return ()
    wanted = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) or (HERE,)
    least = _least()
    for each in wanted:
        match = re.fullmatch(r"3\.(\d{1,2})", each)
        if match is None or int(match[1]) < least:
            raise UserError(
                f"--tool-python {each!r} is not a Python that this tool runs on",
                hint=f"for example --tool-python 3.{least},{HERE}; `none` leaves the tool out",
            )
    return wanted


def tool_wheels(
    python: str, matrix: Matrix, project: Project, listener: Listener, cancel: threading.Event, *, offline: bool
) -> ToolWheels:
    """The wheels for Python `python` on Linux x86_64, in the store when this returns.

    Raises:
        InfraError: The index does not answer or lacks one, or `offline` forbids to ask; what the lock pins has no
            wheel for this Python.
    """
    store = WheelStore(project.store)
    kept = store.root / "tool" / f"{_inputs()[:16]}-py{python.replace('.', '')}.txt"
    found = _read(kept, python)
    if found is None:
        if offline:
            raise InfraError(
                f"which wheels {_what(python)} needs is not known yet, and --offline forbids to ask",
                hint="run once without --offline",
            )
        found = _resolve(python, cancel)
        title = f"{found.id}: written by invoke archive, from requirements.lock"
        write_text(kept, render_wheels([title, *_header(found)], found.wheels))
    if missing := store.missing(found.wheels):
        if offline:
            raise InfraError(
                f"{len(missing)} wheels of {found.id} are not in the store, and --offline forbids to fetch them",
                hint="run once without --offline",
            )
        store.fetch(missing, addresses(found, matrix, cancel), listener, cancel)
    return found


def _what(python: str) -> str:
    return f"this tool on Python {python}"


def _resolve(python: str, cancel: threading.Event) -> ToolWheels:
    lock = TOOL_ROOT / "requirements.lock"
    pins = _pins(lock.read_text(encoding="utf-8"))
    options = ["--constraint", str(lock)]
    resolved = compile_requirements(_dependencies(), python=python, platform=PLATFORM, options=options, cancel=cancel)
    wheels = []
    for package in resolved.packages:
        version, hashes = pins.get(package.name, ("", frozenset()))
        file = best_wheel(package, python)
        if file is None or package.version != version or file.sha256 not in hashes:
            raise InfraError(
                f"the index has no wheel of {package.name} {version} for Python {python} that requirements.lock names",
                hint="use an index that serves it, or another Python (--tool-python)",
            )
        wheels.append(Wheel(package.name, version, file.filename, file.sha256, file.size, file.uploaded))
    return ToolWheels(python, PLATFORM, tuple(wheels))


def _dependencies() -> list[str]:
    project = tomllib.loads((TOOL_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [str(each) for each in project["dependencies"]]


def _least() -> int:
    """The oldest minor version of Python 3 that the tool runs on."""
    project = tomllib.loads((TOOL_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return int(str(project["requires-python"]).removeprefix(">=3."))


def _inputs() -> str:
    """Hash of what decides the wheels."""
    files = (TOOL_ROOT / name for name in ("pyproject.toml", "requirements.lock"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _pins(lock: str) -> Mapping[str, tuple[str, frozenset[str]]]:
    """Version and hashes by name, of a hashed requirements file."""
    found: dict[str, tuple[str, set[str]]] = {}
    name = ""
    for line in lock.splitlines():
        if match := _PIN.match(line):
            name = match[1]
            found[name] = (match[2], set())
        for sha256 in _HASH.findall(line):
            found[name][1].add(sha256)
    return {each: (version, frozenset(hashes)) for each, (version, hashes) in found.items()}


def _header(found: ToolWheels) -> list[str]:
    return [f"python: {found.python}", f"platform: {found.platform}", f"wheels: {len(found.wheels)}"]


def _read(path: Path, python: str) -> ToolWheels | None:
    """What is kept; None where nothing is, or it is damaged: it is asked again."""
    if not path.is_file():
        return None
    content = read_wheels(path, python, "")
    found = ToolWheels(python, content.stated("platform"), content.wheels)
    return found if not content.errors and content.facts == _header(found) else None
