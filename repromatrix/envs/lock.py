"""The locks of a matrix: made where there is none, and held against what the index gives now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from repromatrix.envs.index import addresses
from repromatrix.envs.lockfile import read_impossible, read_lock, render_lock, write_impossible, write_lock
from repromatrix.envs.model import Impossible, Lock
from repromatrix.envs.resolve import resolve
from repromatrix.errors import InfraError, InputErrors, UserError
from repromatrix.events import Listener, Silent
from repromatrix.project import Project
from repromatrix.spec.model import Environment, Matrix

THREADS = 4
"""Environments resolved at once: uv waits for the index most of the time."""

_T = TypeVar("_T")


def _each(environments: Sequence[Environment], work: Callable[[Environment], _T], cancel: threading.Event) -> list[_T]:
    with ThreadPoolExecutor(THREADS, thread_name_prefix="lock") as pool:
        try:
            return list(pool.map(work, environments))
        except BaseException:  # Ctrl-C: the pool waits for its threads, and these for uv
            cancel.set()
            raise


def lock_all(
    environments: Iterable[Environment],
    matrix: Matrix,
    project: Project,
    listener: Listener,
    *,
    refresh: bool = False,
    offline: bool = False,
    cancel: threading.Event | None = None,
) -> dict[Environment, Lock | Impossible | InfraError]:
    """The lock of each environment, made where there is none (or for all, with `refresh`), in the order given.

    Trouble with one environment is its value here and loses no other. A lock that exists is used without asking the
    index. Where a refresh finds that an environment can no longer be resolved, its lock is kept: stores and archives
    may hold its wheels.

    Raises:
        InputErrors: Lock files that are damaged or do not match; nothing was asked or written.
        UserError: A further requirement is malformed; what could be locked is written.
    """
    wanted = list(dict.fromkeys(environments))
    impossible = read_impossible(project.locks)
    result: dict[Environment, Lock | Impossible | InfraError] = {}
    errors: list[UserError] = []
    for environment in wanted:
        path = project.locks / f"{environment.id}.txt"
        if path.is_file():
            try:
                result[environment] = read_lock(path, environment)
            except UserError as error:
                if not refresh:
                    errors += error.errors if isinstance(error, InputErrors) else [error]
        elif environment.id in impossible:
            result[environment] = Impossible(environment, impossible[environment.id])
    if errors:
        raise InputErrors(errors)
    if offline:
        for environment in wanted:
            result.setdefault(
                environment,
                InfraError(
                    "not locked, and asking the index is forbidden",
                    where=environment.id,
                    hint=f"run invoke lock --env {environment.id} once with a network",
                ),
            )
        return {environment: result[environment] for environment in wanted}
    todo = [environment for environment in wanted if refresh or environment not in result]
    cancel = cancel or threading.Event()

    def work(environment: Environment) -> Lock | Impossible | InfraError | UserError:
        if cancel.is_set():
            return InfraError("cancelled before it was locked", where=environment.id)
        task = listener.start("lock", environment.id)
        try:
            found = resolve(environment, matrix, project.store, listener, cancel)
            if isinstance(found, Lock):
                write_lock(found, project.locks)
        except (InfraError, UserError) as error:
            task.finish("failed")
            return error
        task.finish(f"{len(found.wheels)} wheels" if isinstance(found, Lock) else "impossible")
        return found

    for environment, found in zip(todo, _each(todo, work, cancel), strict=True):
        if isinstance(found, UserError):
            errors.append(found)
            continue
        kept = result.get(environment)
        if isinstance(found, Impossible) and isinstance(kept, Lock):
            listener.warn(f"{environment.id} can no longer be resolved ({found.reason}); its lock is kept")
            continue
        result[environment] = found
        if isinstance(found, Impossible):
            impossible[environment.id] = found.reason
        elif isinstance(found, Lock):
            impossible.pop(environment.id, None)
    if todo:
        write_impossible(project.locks, impossible)
    if errors:
        raise InputErrors(errors)
    return {environment: result[environment] for environment in wanted}


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference between a committed lock and what the index gives now.

    Attributes:
        environment: Id.
        kind: `missing`, `invalid`, `differs`, `vanished`, `yanked` or `stale`.
        detail: One sentence.
    """

    environment: str
    kind: str
    detail: str

    @property
    def serious(self) -> bool:
        """Whether `lock --check` fails: a yanked wheel still installs, and a stale file harms nobody."""
        return self.kind not in ("stale", "yanked")

    def as_dict(self) -> dict[str, str | bool]:
        return {
            "environment": self.environment,
            "kind": self.kind,
            "detail": self.detail,
            "serious": self.serious,
        }

    def __str__(self) -> str:
        return f"{self.environment}: {self.kind}: {self.detail}"


class _Notes(Silent):
    """Keeps the warnings of one resolution."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def check(
    environments: Iterable[Environment],
    matrix: Matrix,
    project: Project,
    listener: Listener,
    *,
    described: Collection[str] | None = None,
) -> list[Drift]:
    """Resolve every environment again and compare with the committed locks; writes nothing.

    Args:
        environments: To be resolved.
        described: Ids of all environments of the matrix, where `environments` are only some: a lock of any other is
            told as stale.

    Raises:
        InfraError: The index does not answer, so nothing can be said.
    """
    wanted = list(dict.fromkeys(environments))
    impossible = read_impossible(project.locks)
    cancel = threading.Event()

    def work(environment: Environment) -> list[Drift]:
        task = listener.start("lock", environment.id)
        try:
            found = _drift(environment, matrix, project, impossible.get(environment.id), cancel)
        finally:
            task.finish()
        return found

    found = [drift for drifts in _each(wanted, work, cancel) for drift in drifts]
    ids = {environment.id for environment in wanted} if described is None else set(described)
    known = {path.stem for path in project.locks.glob("*.txt")} | set(impossible)
    found += [Drift(name, "stale", "no environment of the matrix has this id") for name in sorted(known - ids)]
    return found


def _drift(
    environment: Environment, matrix: Matrix, project: Project, impossible: str | None, cancel: threading.Event
) -> list[Drift]:
    name = environment.id
    path = project.locks / f"{name}.txt"
    if not path.is_file() and impossible is None:
        return [Drift(name, "missing", f"run invoke lock --env {name}")]
    old: Lock | None = None
    if path.is_file():
        try:
            old = read_lock(path, environment)
        except UserError as error:
            return [Drift(name, "invalid", str(error))]
    notes = _Notes()
    new = resolve(environment, matrix, project.store, notes, cancel)
    if old is None:
        if isinstance(new, Lock):
            return [Drift(name, "differs", f"is remembered as impossible ({impossible}) and resolves now")]
        return []
    found = [Drift(name, "yanked", text) for text in notes.warnings if "withdrawn" in text]
    if isinstance(new, Lock) and render_wheels(new) == render_wheels(old):
        return found
    served = addresses(old, matrix, cancel)
    gone = [wheel.filename for wheel in old.wheels if wheel.sha256 not in served]
    if gone:
        found.append(Drift(name, "vanished", f"the index no longer serves {', '.join(gone)}"))
    if isinstance(new, Impossible):
        return [*found, Drift(name, "differs", f"can no longer be resolved: {new.reason}")]
    return [*found, Drift(name, "differs", _difference(old, new))]


def render_wheels(lock: Lock) -> str:
    """What must not change: the file's text without the cutoff's and the tool's version."""
    return render_lock(replace(lock, cutoff="")).partition("\n")[2]


def _difference(old: Lock, new: Lock) -> str:
    """`numpy 2.3.0 -> 2.3.1, scipy 1.15.3 -> none`."""
    before = {wheel.name: wheel for wheel in old.wheels}
    after = {wheel.name: wheel for wheel in new.wheels}
    parts = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a != b:
            was, now = (a.version if a else "none"), (b.version if b else "none")
            parts.append(f"{name} {was} -> {now}" if was != now else f"{name} {was}: another file or other facts")
    return ", ".join(parts) or "only the header differs"
