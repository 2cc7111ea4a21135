"""Which versions of a project there are, and which of them fit a Python: asked of the index through uv."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from packaging.version import Version

from repromatrix.envs.disk import write_text
from repromatrix.envs.index import PLATFORM, Unsatisfiable, answers, compile_requirements, extra_indexes
from repromatrix.errors import InfraError
from repromatrix.spec.model import Matrix

_CANDIDATE = re.compile(r"Found candidate for package \S+ with range .* steps: (\S+) version$", re.MULTILINE)
_SEEN = re.compile(r"with (\d+) remote versions$", re.MULTILINE)
_LOG_LINE = re.compile(r"^ *(?:TRACE|DEBUG) .*\n?", re.MULTILINE)
_NIGHTLY = re.compile(r"\.dev(\d{4})(\d\d)(\d\d)$")


def releases(
    name: str,
    matrix: Matrix,
    store: Path,
    cancel: threading.Event | None = None,
    *,
    day: str = "",
    nightly: bool = False,
    offline: bool = False,
) -> tuple[str, ...]:
    """All versions of the project `name`, oldest first: also pre-releases, and those that were withdrawn.

    uv has no command for this. It is asked for the project with wheels and source distributions both forbidden: it
    then looks at each version in turn, refuses it, and names it in its log. One question, about 0.1 s with uv's cache
    and 0.4 s without (measured: 198 versions of jax).

    Args:
        store: Where the answer is kept for `offline`.
        day: ISO date; those alone that were uploaded by its end (UTC).
        nightly: Those of the index called nightly instead, which serves development versions.
        offline: Answer with what was last kept.

    Raises:
        NoSuchPackage: The index has no such project.
        InfraError: It does not answer, does not tell upload times where `day` needs them, or nothing was kept.
    """
    if offline:
        if (kept := remembered(name, matrix, store, day=day, nightly=nightly)) is None:
            by = f" by {day}" if day else ""
            raise InfraError(
                f"which versions of {name} there were{by} is not known, and asking the index is forbidden",
                hint="run this once without --offline",
            )
        return kept
    indexes = _indexes(matrix, nightly=nightly)
    options = ["--no-deps", "--no-binary", ":all:", "--prerelease=allow"]
    options += [f"--exclude-newer={day}T23:59:59Z"] if day else []
    environ = {key: value for key, value in os.environ.items() if key != "UV_LOG_CONTEXT"}
    try:
        compile_requirements(
            [name],
            python=_ANY,
            platform=PLATFORM,
            options=options,
            indexes=indexes,
            environ={**environ, "RUST_LOG": "uv_resolver=trace"},
            cancel=cancel,
        )
    except Unsatisfiable as error:
        found = _told(name, error.stderr, all_of_them=not day)
    except InfraError as error:
        error.hint = _LOG_LINE.sub("", error.hint).strip()
        raise
    else:
        raise _not_understood(name)
    found = tuple(version for version in found if not nightly or built_on(version))
    write_text(_place(name, store, indexes, day), "".join(f"{version}\n" for version in found))
    return found


def remembered(
    name: str, matrix: Matrix, store: Path, *, day: str = "", nightly: bool = False
) -> tuple[str, ...] | None:
    """What `releases` answered when the index was last asked; None where it was not."""
    try:
        kept = _place(name, store, _indexes(matrix, nightly=nightly), day).read_text(encoding="utf-8")
    except OSError:
        return None
    return tuple(kept.split())


def _indexes(matrix: Matrix, *, nightly: bool) -> tuple[str, ...]:
    return tuple(extra_indexes(matrix, [".dev"] if nightly else []))


def _place(name: str, store: Path, indexes: tuple[str, ...], day: str) -> Path:
    return answers(store, indexes) / f"{name}{'-by-' * bool(day)}{day}.versions"


_ANY = "3.99"
"""A Python newer than any: what the versions ask of Python is not the question here."""


def _told(name: str, log: str, *, all_of_them: bool) -> tuple[str, ...]:
    """The versions that uv's log names, held against how many it says that it sees."""
    seen = max(map(int, _SEEN.findall(log)), default=-1)
    if seen == 0:
        raise InfraError(
            f"the index answers and lists no version of {name} at all",
            hint="it may be your network's login page, or a mirror that is not filled: open it in a browser",
        )
    told = _CANDIDATE.findall(log)  # a version that two indexes have is seen, and told, twice
    if seen < 0 or (all_of_them and len(told) < seen):
        raise _not_understood(name)
    return tuple(sorted(set(told), key=Version))


def _not_understood(name: str) -> InfraError:
    return InfraError(
        f"uv's log does not tell the versions of {name} in the words that are known",
        hint="install the tool's requirements again: they pin the uv whose words these are",
    )


def built_on(version: str) -> str:
    """ISO date of a nightly build, as its version tells it: `0.9.0.dev20260701`; empty for any other version."""
    found = _NIGHTLY.search(version)
    return "-".join(found.groups()) if found else ""


def fitting(
    requirement: str,
    python: str,
    matrix: Matrix,
    cancel: threading.Event | None = None,
    *,
    oldest: bool = False,
    nightly: bool = False,
) -> Version | None:
    """The newest, or the `oldest`, version that meets `requirement` and has a wheel for `python`; None where none has.

    Withdrawn versions count only where the requirement is for one alone.

    Args:
        requirement: Of one project: `jax`, `jax==0.4.32`.
        nightly: Among the builds of the index called nightly.

    Raises:
        InfraError: The index does not answer.
    """
    try:
        resolved = compile_requirements(
            [requirement],
            python=python,
            platform=PLATFORM,
            options=["--no-deps", *(["--prerelease=allow"] if nightly else [])],
            indexes=extra_indexes(matrix, [".dev"] if nightly else []),
            cancel=cancel,
            resolution="lowest" if oldest else "highest",
        )
    except Unsatisfiable:
        return None
    return next((Version(package.version) for package in resolved.packages), None)
