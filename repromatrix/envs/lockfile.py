"""The lock file: a hashed requirements file that pip and uv install as it is, and the list of impossible environments.

    # jax0.6.2-cpu-py311, locked by repromatrix 0.1.0
    # axis: jax = 0.6.2
    # python: 3.11
    # platform: x86_64-manylinux_2_28
    # as_of: release
    # cutoff: 2025-06-17T23:59:59Z
    # wheels: 6
    jax==0.6.2 --hash=sha256:bb24...  # jax-0.6.2-py3-none-any.whl 2722396 2025-06-17T23:10:25Z

A size of 0 and a time of `-` say that the index did not tell. No address stands in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from repromatrix import __version__
from repromatrix.envs.disk import write_text
from repromatrix.envs.model import Lock, Wheel
from repromatrix.errors import InputErrors, UserError
from repromatrix.spec.model import Environment

IMPOSSIBLE = "impossible.json"
"""File in the folder of the locks: reason by environment id."""

_WHEEL = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"  # (?P<filename>\S+\.whl) (?P<size>\d+) (?P<uploaded>-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
)
_PLATFORM = re.compile(r"\w+-manylinux_2_\d+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def supported_tags(python: str, platform: str) -> list[Tag]:
    """Wheel tags of CPython `python` on `platform` (`x86_64-manylinux_2_28`), best first.

    Every glibc from the platform's down to 2.5, with the older names (PEP 600), then plain `linux`.
    """
    arch, _, glibc = platform.partition("-manylinux_2_")
    names = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(int(glibc), 4, -1):
        platforms.append(f"manylinux_2_{minor}_{arch}")
        if minor in names:
            platforms.append(f"{names[minor]}_{arch}")
    platforms.append(f"linux_{arch}")
    version = tuple(int(part) for part in python.split("."))
    abi = "cp" + "".join(str(part) for part in version)
    return [
        *cpython_tags(version, [abi], platforms),
        *compatible_tags(version, abi, platforms),
    ]


def header(lock: Lock) -> list[str]:
    """The facts that a lock file states about itself, one line each, without `# `."""
    return [
        *(f"axis: {name} = {value}" for name, value in lock.environment.axes),
        *(f"package: {requirement}" for requirement in lock.environment.packages),
        f"python: {lock.python}",
        f"platform: {lock.platform}",
        f"as_of: {lock.as_of}",
        f"cutoff: {lock.cutoff or '-'}",
        f"wheels: {len(lock.wheels)}",
    ]


def render_lock(lock: Lock) -> str:
    """The lock file's text; the same lock gives the same bytes."""
    return render_wheels([f"{lock.id}, locked by repromatrix {__version__}", *header(lock)], lock.wheels)


def render_wheels(facts: Iterable[str], wheels: Iterable[Wheel]) -> str:
    """A file of wheels: its header's lines, then a wheel a line."""
    lines = [f"# {line}" for line in facts]
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        told = f"{wheel.filename} {wheel.size} {wheel.uploaded or '-'}"
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}  # {told}")
    return "\n".join(lines) + "\n"


def write_lock(lock: Lock, folder: Path) -> Path:
    """Write `<folder>/<id>.txt` atomically.

    Raises:
        InfraError: It cannot be written.
    """
    path = folder / f"{lock.id}.txt"
    write_text(path, render_lock(lock))
    return path


def keep_lock(lock: Lock, store: Path) -> None:
    """Note in the store which wheels `lock` names, by its hash: a result refers to it when its file has long changed.

    Raises:
        InfraError: It cannot be written.
    """
    path = store / "locks" / f"{lock.hash}.txt"
    if not path.is_file():
        write_text(path, render_lock(lock))


@dataclass(slots=True)
class Content:
    """What a file of wheels says, and every mistake in it.

    Attributes:
        facts: Lines of its header but for the first, without `# `.
        wheels: Sorted by name.
    """

    path: Path
    hint: str
    facts: list[str] = field(default_factory=list)
    wheels: tuple[Wheel, ...] = ()
    errors: list[UserError] = field(default_factory=list)

    def wrong(self, message: str, number: int | None = None) -> None:
        where = f"{self.path}:{number}" if number else str(self.path)
        self.errors.append(UserError(message, where=where, hint=self.hint))

    def stated(self, key: str) -> str:
        """The value of the fact `key`, or empty."""
        return next((fact.partition(": ")[2] for fact in self.facts if fact.startswith(f"{key}: ")), "")


def read_wheels(path: Path, python: str, hint: str) -> Content:
    """Read a file of wheels for `python`, trusting nothing.

    Args:
        hint: What to do about a mistake.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the lock cannot be read: {error}", where=str(path), hint=hint) from None
    content = Content(path, hint)
    wheels: dict[str, Wheel] = {}
    tags: frozenset[Tag] | None = None
    for number, line in enumerate(lines, 1):
        if line.startswith("# "):
            if number > 1:
                content.facts.append(line.removeprefix("# "))
        elif (match := _WHEEL.fullmatch(line)) is None:
            content.wrong(f"not a locked wheel: {line[:120]!r}", number)
        else:
            wheel = Wheel(
                match["name"],
                match["version"],
                match["filename"],
                match["sha256"],
                int(match["size"]),
                "" if match["uploaded"] == "-" else match["uploaded"],
            )
            if tags is None and _PLATFORM.fullmatch(platform := content.stated("platform")):
                tags = frozenset(supported_tags(python, platform))
            if wheel.name in wheels:
                content.wrong(f"{wheel.name} is locked twice", number)
            elif mistake := _unfit(wheel, tags or frozenset()):
                content.wrong(mistake, number)
            wheels[wheel.name] = wheel
    content.wheels = tuple(sorted(wheels.values(), key=lambda wheel: wheel.name))
    if not _PLATFORM.fullmatch(content.stated("platform")):
        content.wrong("the header names no platform")
    return content


def read_lock(path: Path, environment: Environment) -> Lock:
    """Read the lock of `environment`, trusting nothing: every mistake of the file at once.

    Raises:
        InputErrors: Lines that are no wheel or do not fit, facts that are not those of `environment`.
        UserError: The file cannot be read.
    """
    # Not `invoke lock --refresh`, which does not know what a bisection locked once its lock cannot be read.
    hint = "restore it, or delete it: whatever needs it locks it again"
    content = read_wheels(path, environment.python, hint)
    cutoff = content.stated("cutoff")
    lock = Lock(
        environment=environment,
        python=environment.python,
        platform=content.stated("platform"),
        as_of=environment.as_of,
        cutoff="" if cutoff == "-" else cutoff,
        wheels=content.wheels,
    )
    if not _TIME.fullmatch(cutoff) and not (cutoff == "-" and environment.as_of == "latest"):
        content.wrong("the header names no cutoff")
    elif re.match(r"\d{4}-", environment.as_of) and not cutoff.startswith(environment.as_of):
        content.wrong(f"the cutoff {cutoff} is not that of as_of = {environment.as_of}")
    if not content.errors:
        expected = header(lock)
        for line in sorted(set(expected) ^ set(content.facts)):
            told = "lacks" if line in expected else "states"
            content.wrong(f"the header {told} '{line}', which does not match matrix.toml or the wheels below it")
        for text in mismatches(lock):
            content.wrong(text)
    if content.errors:
        raise InputErrors(content.errors)
    return lock


def locked_environments(folder: Path) -> tuple[Environment, ...]:
    """The environments whose locks are in `folder`, as their headers state them, by name.

    A file whose header states another environment than its name is left out: `read_lock` tells what is wrong with it.
    """
    found = []
    for path in sorted(folder.glob("*.txt")):
        with suppress(OSError, UnicodeDecodeError, KeyError), path.open(encoding="utf-8") as file:
            facts = [line[2:].rstrip("\n") for line in takewhile(lambda line: line.startswith("# "), file)]
            told = [fact.partition(": ")[::2] for fact in facts]
            axes = tuple(value.partition(" = ")[::2] for key, value in told if key == "axis")
            packages = tuple(value for key, value in told if key == "package")
            environment = Environment(axes, dict(told)["as_of"], packages)
            if environment.id == path.stem:
                found.append(environment)
    return tuple(found)


def locked_versions(folder: Path, package: str) -> dict[str, str]:
    """Versions of `package` that the locks of `folder` name, each with the day of its upload, empty if not known."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.txt")):
        with suppress(OSError, UnicodeDecodeError):  # whoever needs this lock reads it again, and tells
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith(f"{package}==") and (wheel := _WHEEL.fullmatch(line)):
                    found[wheel["version"]] = wheel["uploaded"][:10].strip("-")
    return found


def _unfit(wheel: Wheel, tags: frozenset[Tag]) -> str:
    """Why the file name does not belong to this wheel or to this Python and platform; empty if it does."""
    try:
        name, version, _, of_file = parse_wheel_filename(wheel.filename)
        same = name == wheel.name and version == Version(wheel.version)
    except (InvalidWheelFilename, InvalidVersion) as error:
        return str(error)
    if not same:
        return f"{wheel.filename} is no wheel of {wheel.name} {wheel.version}"
    if tags and not tags & of_file:
        return f"{wheel.filename} does not fit this Python and platform"
    return ""


def mismatches(lock: Lock) -> list[str]:
    """What the environment's axes and packages ask for and the wheels do not give."""
    environment = lock.environment
    wanted = {name: value for name, value in environment.axes if name not in ("cuda", "python", "nccl")}
    for text in environment.packages:
        requirement = Requirement(text)
        pins = [s.version for s in requirement.specifier if s.operator == "==" and "*" not in s.version]
        if pins and (requirement.marker is None):
            wanted[canonicalize_name(requirement.name)] = pins[0]
    if (nccl := environment.axis("nccl")) not in (None, "locked"):
        wanted[nccl_package(environment.cuda)] = str(nccl)
    found = []
    for name, value in wanted.items():
        version = lock.version(canonicalize_name(name))
        if version is None:
            found.append(f"{name} {value} is asked for and not locked")
        elif Version(version) != Version(value):
            found.append(f"{name} {value} is asked for and {version} is locked")
    if lock.version("jaxlib") is None:
        found.append("no jaxlib is locked")
    return found


def nccl_package(cuda: str) -> str:
    """NVIDIA's project for NCCL of the axis value `12` or `13-local`.

    From CUDA 13 most of its names lost the suffix (`nvidia-cublas`), but not this one: jax[cuda13]==0.10.2 resolves
    to `nvidia-nccl-cu13`.
    """
    return f"nvidia-nccl-cu{cuda.partition('-')[0]}"


def read_impossible(folder: Path) -> dict[str, str]:
    """Reason by environment id, as remembered; empty where nothing is.

    Raises:
        UserError: The file is not what `write_impossible` writes.
    """
    path = folder / IMPOSSIBLE
    if not path.is_file():
        return {}
    try:
        read: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"not JSON: {error}", where=str(path), hint="delete the file and run invoke lock") from None
    if not isinstance(read, dict) or not all(isinstance(value, str) and value for value in read.values()):
        raise UserError(
            "expected an object of environment ids and reasons",
            where=str(path),
            hint="delete the file and run invoke lock",
        )
    return {str(key): str(value) for key, value in read.items()}


def write_impossible(folder: Path, reasons: Mapping[str, str]) -> None:
    """Write the remembered reasons, sorted; nothing is written where nothing changed.

    Raises:
        InfraError: The file cannot be written.
    """
    if reasons != read_impossible(folder):
        write_text(folder / IMPOSSIBLE, json.dumps(dict(sorted(reasons.items())), indent=2) + "\n")
