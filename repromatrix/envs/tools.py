"""The programs that read stacks (pystack, py-spy): locked like an environment, and kept beside it, never in it.

Stacks are read inside the sandbox by the environment's own interpreter (`python -I -S`), so there is a folder for each
Python minor version. It lies in the store, is made of its wheels, and is mounted read-only or used where it lies.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.content import intact, seal
from repromatrix.envs.disk import disk_error
from repromatrix.envs.lockfile import read_wheels
from repromatrix.envs.model import Wheel, hash_of
from repromatrix.envs.pack_core import PREFIX, site_packages
from repromatrix.envs.venv import link
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, InputErrors
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.spec.model import Matrix

LOCKS = Path(__file__).resolve().parents[2] / "containers" / "tools"
"""The committed locks, `py311.txt` for 3.11: part of this tool, whatever checkout it works on."""

PATIENCE = 20.0
"""Seconds that the index has to say where the wheels are: a run goes on without them. uv 0.13.9 needs 0.1 s for an
index that lacks them, 6 s for a refused connection, 9 s for a name that cannot be resolved."""

_DIED_IN = "a crash or a hang is recorded without native stacks"


@dataclass(frozen=True, slots=True)
class StackReaders:
    """The wheels of pystack and py-spy for one Python minor version."""

    python: str
    platform: str
    wheels: tuple[Wheel, ...]

    @property
    def id(self) -> str:
        pins = (f"{wheel.name} {wheel.version}" for wheel in self.wheels)
        return f"the stack readers ({', '.join(pins)})"

    @property
    def hash(self) -> str:
        return hash_of(self.python, self.platform, self.wheels)


_asking = threading.Lock()
_refused: dict[tuple[Path, str], InfraError] = {}
"""Why nothing can be fetched into this store, for one Python or (`""`) for all: asked once in a process' life."""
_told: set[tuple[Path, str]] = set()


def read_tools(python: str, locks: Path = LOCKS) -> StackReaders | None:
    """The locked stack readers for CPython `python` (`3.11`); None where no such wheels exist.

    Raises:
        InputErrors: The lock is damaged.
    """
    path = locks / f"py{python.replace('.', '')}.txt"
    if not path.is_file():
        return None
    content = read_wheels(
        path, python, "restore it from the repository, or write it: python tools/relock.py --stack-readers"
    )
    found = StackReaders(python, content.stated("platform"), content.wheels)
    if not content.errors and content.facts != header(found):
        content.wrong(f"the header does not fit Python {python} and the {len(found.wheels)} wheels below it")
    if content.errors:
        raise InputErrors(content.errors)
    return found


def header(found: StackReaders) -> list[str]:
    """The facts that a lock of stack readers states about itself."""
    return [f"python: {found.python}", f"platform: {found.platform}", f"wheels: {len(found.wheels)}"]


def known(python: str, project: Project, locks: Path = LOCKS) -> Path | None:
    """The folder of `tools` if it is complete in the store, else None; fetches and makes nothing."""
    found = read_tools(python, locks)
    if found is None:
        return None
    place = _place(found, WheelStore(project.store))
    return place if intact(place) else None


def tools(
    python: str,
    matrix: Matrix,
    project: Project,
    listener: Listener,
    cancel: threading.Event,
    *,
    offline: bool,
    locks: Path = LOCKS,
) -> Path | None:
    """The folder with the package `pystack` and the program `bin/py-spy` for CPython `python` (`3.11`).

    Made if it is not in the store, once among all threads and processes. Files and folders are readable for everyone,
    as the user inside a container is another. It holds bytecode, so that nothing is written where it is used.

    Args:
        offline: Fetch nothing.
        locks: Folder of the locks.

    Returns:
        None where there are no such wheels for this Python, which the listener is told once.

    Raises:
        InfraError: A wheel cannot be fetched or is damaged, the disk is full. An index that refused once is not asked
            again by this process: the same error is raised at once.
        Cancelled: `cancel` was set.
    """
    found = read_tools(python, locks)
    if found is None:
        with _asking:
            if (project.store, python) not in _told:
                _told.add((project.store, python))
                listener.note(f"there is no pystack for Python {python}: {_DIED_IN}")
        return None
    store = WheelStore(project.store)
    place = _place(found, store)
    if intact(place):
        return place
    with _asking:
        _fetch(found, matrix, store, listener, cancel, offline=offline)
    trees = [store.tree(wheel, python, listener) for wheel in found.wheels]
    with store.locked(place.name, cancel), store.scratch(place.name) as room:
        if intact(place):
            return place
        if place.exists():
            listener.warn(f"{found.id}: files were changed or removed in the store; they are laid out again")
        try:
            made = _lay_out(trees, python, room / "tools")
            seal(made, {"lock": found.hash, "python": python})
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)  # damaged
            made.replace(place)
        except OSError as error:
            raise disk_error(error, room) from error
    return place


def _place(found: StackReaders, store: WheelStore) -> Path:
    from repromatrix.envs.pack import pack_name

    # `cp311`, or `cp311-source` where no such Python is here to compile with: it is made again when one is.
    variant = pack_name(found.wheels[0], found.python).partition("-")[2]
    return store.root / "tools" / f"{found.hash[:32]}-{variant}"


def _lay_out(trees: list[Path], python: str, made: Path) -> Path:
    """Fill the new folder `made` with what the wheels install, packages at its top."""
    made.mkdir()
    for tree in trees:
        for part, into in ((site_packages(python), made), (f"{PREFIX}/bin", made / "bin")):
            if (tree / part).is_dir():
                link(tree / part, into)
    for folder, _, _ in os.walk(made):
        Path(folder).chmod(0o755)  # whatever the umask is
    return made


class _Until(threading.Event):
    """Set when `cancel` is, or when the time is over."""

    def __init__(self, cancel: threading.Event, seconds: float) -> None:
        super().__init__()
        self.cancel = cancel
        self.end = time.monotonic() + seconds

    def is_set(self) -> bool:
        return self.cancel.is_set() or time.monotonic() > self.end


def _fetch(
    found: StackReaders,
    matrix: Matrix,
    store: WheelStore,
    listener: Listener,
    cancel: threading.Event,
    *,
    offline: bool,
) -> None:
    """Download what is missing, unless that failed before."""
    missing = store.missing(found.wheels)
    if not missing:
        return
    if offline:
        raise InfraError(
            f"{found.id} are not in the store and --offline forbids fetching them: {_DIED_IN}",
            where=str(store.root),
            hint="run once without --offline",
        )
    for scope in ("", found.python):
        if (before := _refused.get((store.root, scope))) is not None:
            raise InfraError(before.message, where=before.where, hint=before.hint)
    scope = ""
    try:
        served = _ask(found, matrix, cancel)
        scope = found.python
        if absent := [wheel.filename for wheel in missing if wheel.sha256 not in served]:
            hint = "let your mirror carry it, or set UV_DEFAULT_INDEX to an index that does"
            raise InfraError(f"the index does not serve {' and '.join(absent)}", hint=hint)
        store.fetch(missing, served, listener, cancel)
    except InfraError as error:
        if cancel.is_set():
            raise
        trouble = InfraError(f"no stacks can be read: {error.message}; {_DIED_IN}", where=error.where, hint=error.hint)
        _refused[store.root, scope] = trouble
        raise trouble from error


def _ask(found: StackReaders, matrix: Matrix, cancel: threading.Event) -> dict[str, str]:
    """Where the index serves the wheels: URL by SHA-256."""
    from repromatrix.envs.index import addresses

    until = _Until(cancel, PATIENCE)
    try:
        return addresses(found, matrix, until)
    except InfraError as error:
        if until.is_set() and not cancel.is_set():
            message = f"the index did not say within {PATIENCE:.0f} s where {found.id} are"
            raise InfraError(message, hint="check the network, or run with --offline") from error
        raise
