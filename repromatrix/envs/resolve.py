"""From an environment to its wheels: what uv is asked, and what of its answer is locked."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from repromatrix.envs import compat
from repromatrix.envs.index import (
    PLATFORM,
    File,
    Package,
    Resolution,
    Unsatisfiable,
    compile_requirements,
    extra_indexes,
    release_time,
)
from repromatrix.envs.lockfile import mismatches, nccl_package, supported_tags
from repromatrix.envs.model import Impossible, Lock, Wheel
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.spec.model import Environment, Matrix


@dataclass(frozen=True, slots=True)
class Request:
    """What uv is asked for.

    Attributes:
        requirements: In a fixed order.
        overrides: Requirements that replace what packages ask for.
        exempt: Projects that may be younger than the cutoff.
        prerelease: Projects of which development versions may be taken.
    """

    requirements: tuple[str, ...]
    overrides: tuple[str, ...]
    exempt: tuple[str, ...]
    prerelease: tuple[str, ...]


def request_of(environment: Environment, *, cpu_extra: bool = False) -> Request:
    """The requirements that an environment's axes and packages mean.

    The jax family is pinned by its own metadata and so exempt from the cutoff (jaxlib and the plugins are uploaded
    minutes to days around jax); whatever an axis or a package pins exactly is exempt because it was asked for.

    Args:
        cpu_extra: Ask for `jax[cpu]`: up to jax 0.4.26 plain `jax` does not require jaxlib.

    Raises:
        UserError: A further requirement is not one that an index can serve.
    """
    cuda = environment.cuda
    extra = f"[cuda{cuda}]" if cuda != "none" else "[cpu]" if cpu_extra else ""
    requirements = [f"jax{extra}=={environment.jax}"]
    exempt = ["jax", "jaxlib"]
    if cuda != "none":
        major = cuda.partition("-")[0]
        exempt += [f"jax-cuda{major}-plugin", f"jax-cuda{major}-pjrt"]
    family = tuple(exempt)
    if cuda == "12-local":
        # XLA compiles to the end with ptxas and libdevice. The host may have none: 0.4.38 to 0.6.2 then fail with
        # "libdevice not found", 0.8.0 to 0.10.2 with "No PTX compilation provider is available".
        requirements.append("nvidia-cuda-nvcc-cu12")
    for name, value in environment.axes:
        if name not in ("jax", "cuda", "python", "nccl"):
            requirements.append(f"{name}=={value}")
            exempt.append(canonicalize_name(name))
    overrides = []
    if (nccl := environment.axis("nccl")) not in (None, "locked"):
        overrides.append(f"{nccl_package(cuda)}=={nccl}")
        exempt.append(nccl_package(cuda))
    for text in environment.packages:
        requirement = _requirement(text, environment)
        requirements.append(str(requirement))
        if any(s.operator == "==" and "*" not in s.version for s in requirement.specifier):
            exempt.append(canonicalize_name(requirement.name))
    prerelease = family if ".dev" in environment.jax else ()
    return Request(tuple(requirements), tuple(overrides), tuple(dict.fromkeys(exempt)), prerelease)


def _requirement(text: str, environment: Environment) -> Requirement:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UserError(f"not a requirement: {text!r}", where=environment.id, hint=str(error).splitlines()[0]) from None
    if requirement.url is not None:
        raise UserError(
            f"a requirement by address cannot be locked: {text!r}",
            where=environment.id,
            hint="name a version that the index serves as a wheel",
        )
    return requirement


def resolve(
    environment: Environment,
    matrix: Matrix,
    store: Path | None,
    listener: Listener,
    cancel: threading.Event | None = None,
) -> Lock | Impossible:
    """Fix every wheel of `environment`. Two calls give the same lock as long as the index keeps what it serves.

    Args:
        store: Where release times are kept; None = ask for them.

    Raises:
        InfraError: The index does not answer or does not tell enough, or uv's refusal is not understood.
        UserError: A further requirement is malformed.
    """
    nccl = environment.axis("nccl")
    if nccl not in (None, "locked") and environment.cuda == "none":
        return Impossible(environment, f"NCCL {nccl} is asked for, and CPU wheels have no NCCL")
    if ".dev" in environment.jax and "nightly" not in dict(matrix.indexes):
        raise UserError(
            f"jax {environment.jax} is a development version, and no index of these is named",
            where=str(matrix.path),
            hint='add nightly = "https://..." under [indexes]',
        )
    indexes = extra_indexes(matrix, [environment.jax])

    def ask(request: Request) -> Resolution:
        options = [f"--exclude-newer={cutoff}"] if cutoff else []
        # `false` and not a far date: files whose upload time the index does not tell would fall under a date.
        options += [f"--exclude-newer-package={name}=false" for name in request.exempt] if cutoff else []
        options += [f"--prerelease-package={name}=allow" for name in request.prerelease]
        pins: list[str] = []
        while True:
            try:
                return compile_requirements(
                    [*request.requirements, *pins],
                    python=environment.python,
                    platform=PLATFORM,
                    options=options,
                    overrides=request.overrides,
                    indexes=indexes,
                    cancel=cancel,
                )
            except Unsatisfiable as error:
                # pip installs a withdrawn version where anything pins it; uv only where a direct requirement does.
                # jax 0.4.32 pins jaxlib 0.4.32, and both are withdrawn: just what a reporter may have had.
                new = [pin for pin in compat.withdrawn_pins(error.stderr) if pin not in pins]
                if not new:
                    raise
                pins += new

    try:
        cutoff = _cutoff(environment, store, matrix)
        resolved = ask(request := request_of(environment))
        free = environment.cuda == "none" and environment.axis("jaxlib") is None
        if free and not _pins_jaxlib(environment.jax, resolved):
            resolved = ask(request := request_of(environment, cpu_extra=True))
    except Unsatisfiable as error:
        if (name := compat.missing_version(error.stderr)) is not None:
            _require_any(name, environment, indexes, cancel)
        if (reason := compat.explain(error.stderr, environment.python)) is not None:
            return Impossible(environment, reason)
        raise InfraError(
            "uv finds no solution, for a reason that is not understood", where=environment.id, hint=error.hint
        ) from error
    except InfraError as error:
        raise InfraError(error.message, where=error.where or environment.id, hint=error.hint) from error
    return _lock_of(environment, request, resolved, cutoff, listener)


def _pins_jaxlib(jax: str, resolved: Resolution) -> bool:
    """Whether plain `jax` asks for its jaxlib: where it does not, a package such as flax brings the newest there is."""
    return Version(jax) >= Version("0.4.27") and any(package.name == "jaxlib" for package in resolved.packages)


def _require_any(name: str, environment: Environment, indexes: list[str], cancel: threading.Event | None) -> None:
    """Refuse to conclude that a version does not exist from an index that lists no version of the package.

    The login page of a network answers every address, with status 200 and no link in it: to uv a package without
    versions (seen with uv 0.13.9).

    Raises:
        InfraError: The index lists none.
    """
    try:
        compile_requirements(
            [name],
            python=environment.python,
            platform=PLATFORM,
            options=["--no-deps", "--prerelease=allow"],
            indexes=indexes,
            cancel=cancel,
        )
    except Unsatisfiable as error:
        if compat.lists_nothing(error.stderr):
            raise InfraError(
                f"the index answers and lists no version of {name} at all",
                where=environment.id,
                hint="it may be your network's login page, or a mirror that is not filled: open it in a browser",
            ) from error


def _cutoff(environment: Environment, store: Path | None, matrix: Matrix) -> str:
    """The end (UTC) of the day asked for; empty for `latest`."""
    if environment.as_of == "latest":
        return ""
    day = environment.as_of
    if day == "release":
        day = release_time("jax", environment.jax, store, matrix)[:10]
    return f"{day}T23:59:59Z"


def _lock_of(
    environment: Environment, request: Request, resolved: Resolution, cutoff: str, listener: Listener
) -> Lock | Impossible:
    """The lock of what uv resolved, or why it is not what was asked for."""
    asked = {canonicalize_name(Requirement(text).name) for text in request.requirements}
    for name, version, extra in compat.missing_extras(resolved.stderr):
        reason = f"{name} {version} has no extra {extra}"
        if name in asked:
            return Impossible(environment, reason)
        listener.warn(f"{environment.id}: {reason}, though another package asks for it")
    for name, version, why in compat.yanked(resolved.stderr):
        listener.warn(f"{environment.id}: {name} {version} was withdrawn by its authors{f': {why}' if why else ''}")
    for name in re.findall(r"`(\S+?)` is missing an upload date", resolved.stderr):
        listener.warn(f"{environment.id}: the index does not tell when {name} was uploaded, so it was left out")
    wheels = []
    for package in resolved.packages:
        chosen = best_wheel(package, environment.python)
        if chosen is None:
            return Impossible(
                environment,
                f"{package.name} {package.version} has no wheel for Python {environment.python} on {PLATFORM}",
            )
        if not re.fullmatch(r"[0-9a-f]{64}", chosen.sha256):
            raise InfraError(
                f"the index gives no SHA-256 of {chosen.filename}, so it cannot be locked",
                where=environment.id,
                hint="use an index that gives hashes (PEP 503)",
            )
        wheels.append(
            Wheel(package.name, package.version, chosen.filename, chosen.sha256, chosen.size, chosen.uploaded)
        )
    lock = Lock(environment, environment.python, PLATFORM, environment.as_of, cutoff, tuple(wheels))
    if wrong := mismatches(lock):
        return Impossible(environment, f"{'; '.join(wrong)}: {', '.join(request.requirements)} does not install it")
    return lock


def best_wheel(package: Package, python: str) -> File | None:
    """The wheel that an installer would choose: best tag first, then the highest build number."""
    rank = {tag: place for place, tag in enumerate(supported_tags(python, PLATFORM))}
    best: tuple[tuple[int, tuple[int, str], str], File] | None = None
    for file in package.files:
        try:
            _, _, build, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in tags if tag in rank]
        if places:
            key = (-min(places), build or (-1, ""), file.filename)
            if best is None or key > best[0]:
                best = (key, file)
    return best[1] if best else None
