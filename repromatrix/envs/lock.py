"""The locks of a matrix: made where there is none, and held against what the index gives now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from repromatrix.envs.lockfile import read_impossible, read_lock, render_lock, write_impossible, write_lock
from repromatrix.envs.model import Impossible, Lock
from repromatrix.envs.resolve import resolve
from repromatrix.envs.upstream import Loss, losses
from repromatrix.envs.wheels import WheelStore
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
        kind: `missing`, `invalid`, `differs`, `stale`, or what became of a wheel: `vanished`, `replaced`, `yanked`.
        detail: One sentence.
    """

    environment: str
    kind: str
    detail: str

    @property
    def serious(self) -> bool:
        """Whether `lock --check` fails: a stale file harms nobody. A yanked wheel still installs, while it is there."""
        return self.kind != "stale"

    def as_dict(self) -> dict[str, str | bool]:
        return {
            "environment": self.environment,
            "kind": self.kind,
            "detail": self.detail,
            "serious": self.serious,
        }

    def __str__(self) -> str:
        return f"{self.environment}: {self.kind}: {self.detail}"


def check(
    environments: Iterable[Environment],
    matrix: Matrix,
    project: Project,
    listener: Listener,
    *,
    described: Collection[str] | None = None,
) -> list[Drift]:
    """Resolve every environment again and compare with the committed locks, whose wheels are asked for one by one.

    Writes nothing.

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
    locks: dict[Environment, Lock] = {}
    unread: dict[Environment, Drift] = {}
    for environment in wanted:
        path = project.locks / f"{environment.id}.txt"
        try:
            if path.is_file():
                locks[environment] = read_lock(path, environment)
            elif environment.id not in impossible:
                unread[environment] = Drift(environment.id, "missing", f"run invoke lock --env {environment.id}")
        except UserError as error:
            unread[environment] = Drift(environment.id, "invalid", str(error))
    lost = losses((wheel for lock in locks.values() for wheel in lock.wheels), matrix, listener, cancel)

    def work(environment: Environment) -> list[Drift]:
        if environment in unread:
            return [unread[environment]]
        task = listener.start("lock", environment.id)
        try:
            new = resolve(environment, matrix, project.store, Silent(), cancel)
        finally:
            task.finish()
        if environment not in locks:
            return _possible_now(new, impossible[environment.id])
        return [*_lost(locks[environment], lost, project), *_differs(locks[environment], new)]

    found = [drift for drifts in _each(wanted, work, cancel) for drift in drifts]
    ids = {environment.id for environment in wanted} if described is None else set(described)
    known = {path.stem for path in project.locks.glob("*.txt")} | set(impossible)
    found += [Drift(name, "stale", "no environment of the matrix has this id") for name in sorted(known - ids)]
    return found


def _possible_now(new: Lock | Impossible, reason: str) -> list[Drift]:
    if isinstance(new, Impossible):
        return []
    return [Drift(new.id, "differs", f"is remembered as impossible ({reason}) and resolves now")]


def _lost(lock: Lock, lost: Iterable[Loss], project: Project) -> list[Drift]:
    """What became of the wheels of `lock`, and whether the store still has them."""
    store, mine = WheelStore(project.store), {wheel.sha256 for wheel in lock.wheels}
    found = []
    for loss in lost:
        if loss.wheel.sha256 in mine:
            here = "in the store" if store.path(loss.wheel) else "not in the store"
            found.append(Drift(lock.id, loss.kind, f"{loss}; it is {here}"))
    return found


def _differs(old: Lock, new: Lock | Impossible) -> list[Drift]:
    if isinstance(new, Impossible):
        return [Drift(old.id, "differs", f"can no longer be resolved: {new.reason}")]
    if render_wheels(new) == render_wheels(old):
        return []
    return [Drift(old.id, "differs", _difference(old, new))]


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
