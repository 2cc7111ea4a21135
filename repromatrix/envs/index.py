"""Everything that asks the package index, always through uv: no host is named here, and every setting of uv or pip
that a network needs (index, credentials, proxy, CA bundle) holds.

uv resolves and tells; files are fetched elsewhere, from the addresses told here and checked against the lock's hashes.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast
from urllib.parse import unquote, urlsplit

import uv

from repromatrix.envs.disk import write_text
from repromatrix.envs.model import Locked, Wheel
from repromatrix.envs.network import DEFAULT_INDEX, EXTRA_INDEX, own_folder, redact, uv_environment, with_credentials
from repromatrix.envs.served import Served, served
from repromatrix.errors import InfraError
from repromatrix.spec.model import Matrix

DEADLINE = 300.0
"""Seconds one question to the index may take; on a fast network it takes less than one."""

PLATFORM = "x86_64-manylinux_2_28"
"""uv's name of the platform that environments are for: every jaxlib of the matrix has wheels for it."""


class Unsatisfiable(InfraError):
    """uv found no solution; `stderr` is its text. Not yet a verdict: `compat.explain` says whether it is one."""

    def __init__(self, stderr: str) -> None:
        super().__init__("uv finds no solution", hint=stderr.strip())
        self.stderr = stderr


class NoSuchPackage(InfraError):
    """An index that answered has no package `name`: a mistyped name, or a mirror that does not carry it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the index has no package {name}", hint=f"check the name in matrix.toml or the repro, or {_INDEX_HINT}"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class File:
    """A wheel as the index offers it; `sha256` and `uploaded` are empty, `size` is 0 where the index does not say."""

    url: str
    filename: str
    sha256: str
    size: int
    uploaded: str


@dataclass(frozen=True, slots=True)
class Package:
    """A resolved package with the wheels that fit."""

    name: str
    version: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What uv resolved, and what it said about it."""

    packages: tuple[Package, ...]
    stderr: str


# --- uv ---------------------------------------------------------------------------------------------------------------


def compile_requirements(
    requirements: Sequence[str],
    *,
    python: str,
    platform: str,
    options: Sequence[str] = (),
    overrides: Sequence[str] = (),
    indexes: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
    resolution: str = "highest",
) -> Resolution:
    """Resolve `requirements` for one Python and platform, wheels only.

    Args:
        python: Version, `3.11`; need not be installed.
        platform: uv's name, `x86_64-manylinux_2_28`.
        options: Further options of `uv pip compile`.
        overrides: Requirements that replace what packages ask for.
        indexes: Extra indexes, searched first.
        resolution: Which of the versions that fit is taken: `highest` or `lowest`.

    Raises:
        Unsatisfiable: uv found no solution, and the index answered.
        InfraError: The index did not answer, refused, or uv failed in a way that is no verdict.
    """
    env = uv_environment(environ)
    if indexes:
        env["UV_INDEX"] = " ".join([*indexes, *env.get("UV_INDEX", "").split()])
    with own_folder() as folder:
        command = [_uv(), "pip", "compile", "-", "--python", sys.executable, "--python-version", python]
        command += ["--python-platform", platform, "--only-binary", ":all:", "--resolution", resolution]
        command += ["--format", "pylock.toml", "-o", "pylock.out.toml", "--no-progress", *options]
        if overrides:
            (folder / "overrides.txt").write_text("\n".join(overrides) + "\n")
            command += ["--override", "overrides.txt"]
        code, stderr = _run(command, "\n".join(requirements) + "\n", folder, env, cancel)
        if code == 0:
            return Resolution(parse_pylock((folder / "pylock.out.toml").read_text(), env), redact(stderr))
    if (trouble := trouble_of(stderr, env)) is not None:
        raise trouble
    if "No solution found" in stderr:
        raise Unsatisfiable(redact(stderr))
    raise InfraError(f"uv failed with status {code}", hint=redact(stderr).strip())


_FINDING = threading.Lock()


def _uv() -> str:
    """Path of the uv that the tool's requirements installed.

    One thread at a time: sysconfig fills its table lazily and other threads see it empty (seen with CPython 3.11.7:
    a TypeError inside find_uv_bin, now and then, when four environments were locked at once).
    """
    with _FINDING:
        try:
            return uv.find_uv_bin()
        except FileNotFoundError as error:
            raise InfraError(f"uv is missing: {error}", hint="install the tool's requirements again") from None


def _run(
    command: Sequence[str], stdin: str, folder: Path, env: Mapping[str, str], cancel: threading.Event | None
) -> tuple[int, str]:
    """Run uv to its end, its deadline or cancellation; (status, stderr)."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, encoding="utf-8", errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise InfraError(f"uv does not start: {error}", hint="install the tool's requirements again") from error
    deadline = time.monotonic() + DEADLINE
    text: str | None = stdin
    while True:
        try:
            _, stderr = process.communicate(text, timeout=0.2)
            return process.returncode, stderr
        except subprocess.TimeoutExpired:
            text = None  # communicate() keeps what it has not sent yet
        except BaseException:
            process.kill()
            process.wait()
            raise
        if (cancel is not None and cancel.is_set()) or time.monotonic() > deadline:
            process.kill()
            process.communicate()
            if cancel is not None and cancel.is_set():
                raise InfraError("cancelled while asking the index")
            raise InfraError(
                f"the index did not answer uv within {DEADLINE:.0f} s",
                hint="check the network; set UV_DEFAULT_INDEX (or PIP_INDEX_URL) and HTTPS_PROXY as your network needs",
            )


class _Wheel(TypedDict, total=False):
    url: str
    path: str
    name: str
    size: int
    hashes: dict[str, str]


def parse_pylock(pylock: str, environ: Mapping[str, str]) -> tuple[Package, ...]:
    """The packages of a pylock.toml, sorted by name."""
    packages = []
    for entry in tomllib.loads(pylock).get("packages", []):
        files = []
        for wheel in entry.get("wheels", []):
            known = cast(_Wheel, wheel)
            url = known.get("url") or Path(known.get("path", "")).absolute().as_uri()
            uploaded = wheel.get("upload-time")
            files.append(
                File(
                    url=with_credentials(url, environ),
                    filename=known.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]),
                    sha256=known.get("hashes", {}).get("sha256", ""),
                    size=known.get("size", 0),
                    uploaded=f"{uploaded:%Y-%m-%dT%H:%M:%SZ}" if uploaded else "",
                )
            )
        packages.append(Package(entry["name"], entry.get("version", ""), tuple(files)))
    return tuple(sorted(packages, key=lambda package: package.name))


# --- trouble ----------------------------------------------------------------------------------------------------------

_INDEX_HINT = "set UV_DEFAULT_INDEX (or PIP_INDEX_URL) to an index that this machine reaches"
_CREDENTIALS_HINT = "put user and password into the index URL, UV_INDEX_<NAME>_USERNAME and _PASSWORD, or ~/.netrc"
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"Proxy Authentication Required", "the proxy asks for credentials", "put them into HTTPS_PROXY"),
    (
        r"tunnel error|proxy connect|socks",
        "the proxy does not let it through",
        "correct or unset HTTPS_PROXY (or pip's proxy)",
    ),
    (
        r"peer certificate|certificate",
        "its TLS certificate is not trusted",
        "set SSL_CERT_FILE (or PIP_CERT) to your network's CA bundle",
    ),
    (r"dns error|resolving DNS", "its name cannot be resolved", f"{_INDEX_HINT}, or HTTPS_PROXY to your proxy"),
    (r"timed out|timeout", "it does not answer in time", f"{_INDEX_HINT}, or HTTPS_PROXY to your proxy"),
    (r"\((5\d\d [^)]*)\)", "it answers with a server error", "try again later, or use another index"),
    (r"\((40[13] [^)]*)\)", "it refuses access", _CREDENTIALS_HINT),
    (r"\((4\d\d [^)]*)\)", "it refuses the request", _INDEX_HINT),
    (
        r"tcp connect error|Connection (?:refused|reset)|unreachable|\(Connect\)",
        "no connection",
        f"{_INDEX_HINT}, or HTTPS_PROXY to your proxy",
    ),
)


def trouble_of(stderr: str, environ: Mapping[str, str]) -> InfraError | None:
    """The trouble with network or index that `stderr` tells of, or None: whose address, what failed, what to set."""
    if "network was disabled" in stderr:
        return InfraError("uv is told to stay offline", where="UV_OFFLINE", hint="unset UV_OFFLINE to ask the index")
    refused = re.search(r"An index(?: URL)? \((\S+?)\).*\b(40[13] \w+)", stderr)
    if refused is not None:
        return InfraError(
            f"the package index refuses access ({refused[2]})", where=redact(refused[1]), hint=_CREDENTIALS_HINT
        )
    if (
        failed := re.search(r"Failed to (?:fetch|download|read)[^:\n]*: `?(\S+?)`?$", stderr, re.MULTILINE)
    ) is not None:
        # Without the address: a host called `pypi-proxy` says nothing of a proxy.
        url, details = failed[1], stderr[failed.end() :].replace(failed[1], "")
        whose = "the package index" if _on_an_index(url, environ) else "the server of the index's files"
        for pattern, what, hint in _CAUSES:
            if (match := re.search(pattern, details, re.IGNORECASE)) is not None:
                status = f" ({match[1]})" if match.groups() else ""
                return InfraError(f"{whose} cannot be asked: {what}{status}", where=redact(url), hint=hint)
        return InfraError(f"{whose} cannot be asked", where=redact(url), hint=redact(stderr).strip())
    if "is missing an upload date" in stderr and "No solution found" in stderr:
        return InfraError(
            "the index does not tell when files were uploaded, so nothing can be resolved as of a day",
            hint='use an index that tells upload times (PEP 700), or as_of = "latest"',
        )
    if (absent := re.search(r"(\S+) was not found in the package registry", stderr)) is not None:
        return NoSuchPackage(absent[1])
    return None


def _on_an_index(url: str, environ: Mapping[str, str]) -> bool:
    """Whether `url` is a project's page on an index, not a file."""
    return "/simple/" in url or any(
        urlsplit(entry).hostname == urlsplit(url).hostname
        for name in (*DEFAULT_INDEX, *EXTRA_INDEX)
        for entry in environ.get(name, "").split()
    )


# --- questions --------------------------------------------------------------------------------------------------------


def extra_indexes(matrix: Matrix | None, versions: Iterable[str]) -> list[str]:
    """Extra indexes of matrix.toml for these versions: `nightly` serves development versions alone."""
    dev = any(".dev" in version for version in versions)
    return [url for name, url in (matrix.indexes if matrix else ()) if name != "nightly" or dev]


def answers(store: Path, indexes: Iterable[str]) -> Path:
    """Folder of the store for what the user's index and `indexes` answered."""
    env = uv_environment()
    asked = redact(" ".join([*indexes, *(env.get(key, "") for key in (*DEFAULT_INDEX, *EXTRA_INDEX))]))
    return store / "index" / hashlib.sha256(asked.encode()).hexdigest()[:12]


def release_time(name: str, version: str, store: Path | None = None, matrix: Matrix | None = None) -> str:
    """RFC 3339 time at which the pure-Python project `name` uploaded `version`.

    A development version tells its day itself: the nightly index has no upload times.

    Args:
        store: Where answers are kept for good, by index; None = ask in any case.

    Raises:
        Unsatisfiable: The index has no such version, or no wheel of it.
        InfraError: The index does not answer, or does not tell upload times.
    """
    if (day := re.search(r"\.dev(\d{4})(\d\d)(\d\d)", version)) is not None:
        return f"{day[1]}-{day[2]}-{day[3]}T00:00:00Z"
    indexes = extra_indexes(matrix, [version])
    kept = None
    if store is not None:
        kept = answers(store, indexes) / f"{name}-{version}"
        if kept.is_file() and re.fullmatch(r"[\dT:-]{19}Z", found := kept.read_text().strip()):
            return found
    # A Python newer than any: what this release asks of Python is not the question here.
    resolved = compile_requirements(
        [f"{name}=={version}"],
        python="3.99",
        platform=PLATFORM,
        options=["--no-deps"],
        indexes=indexes,
    )
    times = sorted(file.uploaded for package in resolved.packages for file in package.files if file.uploaded)
    if not times:
        raise InfraError(
            f"the index does not tell when {name} {version} was uploaded",
            hint='use an index that tells upload times (PEP 700), or as_of = "latest"',
        )
    if kept is not None:
        write_text(kept, times[0] + "\n")
    return times[0]


def pinned(
    wheels: Collection[Wheel],
    python: str,
    platform: str,
    matrix: Matrix | None = None,
    cancel: threading.Event | None = None,
    *,
    fresh: bool = False,
) -> Resolution:
    """What the index has of the releases of `wheels`, no project in two versions; what it lacks is left out.

    Args:
        fresh: Ask past uv's cache, which takes a page for fresh for ten minutes.

    Raises:
        InfraError: The index does not answer.
    """
    pins = {wheel.name: f"{wheel.name}=={wheel.version}" for wheel in wheels}
    indexes = extra_indexes(matrix, [wheel.version for wheel in wheels])
    options = ["--no-deps", *(["--refresh"] if fresh else [])]
    while pins:
        try:
            return compile_requirements(
                list(pins.values()),
                python=python,
                platform=platform,
                options=options,
                indexes=indexes,
                cancel=cancel,
            )
        except InfraError as error:
            # Without dependencies a refusal names only what the index lacks; the other pins are asked for again.
            gone = set()
            if isinstance(error, NoSuchPackage):
                gone = {error.name}
            elif isinstance(error, Unsatisfiable):
                gone = {
                    name for name, pin in pins.items() if re.search(rf"(?<![\w.-]){re.escape(pin)}\b", error.stderr)
                }
            if not gone & pins.keys():
                raise
            pins = {name: pin for name, pin in pins.items() if name not in gone}
    return Resolution((), "")


def addresses(lock: Locked, matrix: Matrix | None = None, cancel: threading.Event | None = None) -> Served:
    """Where the index serves the wheels of `lock`: URL by SHA-256, with credentials where the index has some.

    Yanked wheels are found. A hash that is absent from the answer is no longer served: it can come from a store or an
    archive only. Asking for one whose name the index has with another hash raises InfraError, which says so. The URLs
    may hold a password: `redact` them before they are shown.

    Raises:
        InfraError: The index does not answer, or has none of these packages.
    """
    resolved = pinned(lock.wheels, lock.python, lock.platform, matrix, cancel)
    if not resolved.packages:
        raise InfraError(f"the index has none of the packages of {lock.id}", hint=_INDEX_HINT)
    files = (file for package in resolved.packages for file in package.files)
    return served(lock, ((file.filename, file.sha256, file.url) for file in files))
