"""Who uses the store: processes at work in it, which keep `invoke gc` out, and the checkouts whose locks it spares.

Layout: `users/` has a file for each process at work, locked by it, so that its death shows; `checkouts/` a file for
each checkout that ever used the store, with its path; `gc.lock` is held while somebody comes, and while `gc` works.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from repromatrix.envs.disk import disk_error, write_text
from repromatrix.errors import InfraError, UserError
from repromatrix.project import Project
from repromatrix.results.locks import Owner, lock_file, try_lock

PATIENCE = 2.0
"""Seconds that `alone` waits for the lock: who only comes holds it for milliseconds."""


@contextmanager
def using(project: Project, doing: str, announce: Callable[[str], None]) -> Iterator[None]:
    """Use the store: nothing is removed from it meanwhile, and nothing ever that the checkout's locks name.

    A store that this user may only read is used without that: nobody can be kept out of it.

    Args:
        doing: The command, for whoever has to wait for it.
        announce: Told once that `invoke gc` is waited for.

    Raises:
        InfraError: The disk is full.
    """
    store = project.store
    if store.is_dir() and not os.access(store, os.W_OK):
        yield
        return
    with _gate(store) as file:
        told = False
        while not try_lock(file):
            file.seek(0)
            if not told and (holder := file.read().strip()):
                announce(f"waiting for {holder}, which removes what the store need not keep")
                told = True
            time.sleep(0.05)
        owner = Owner.take(store / "users", f"`{doing}` (pid {os.getpid()}, since {_now()}, in {project.root})")
    try:
        register(project)
        yield
    finally:
        owner.release()


@contextmanager
def alone(project: Project, doing: str) -> Iterator[None]:
    """Have the store for oneself: whoever comes waits.

    Raises:
        UserError: Others use it; the message names them.
    """
    store = project.store
    with _gate(store) as file:
        deadline = time.monotonic() + PATIENCE
        while not try_lock(file):
            if time.monotonic() > deadline:
                file.seek(0)
                raise _busy([file.read().strip() or "another command"], store)
            time.sleep(0.05)
        if others := [_said(store / "users" / name) for name in Owner.sweep(store / "users")]:
            raise _busy(others, store)
        file.seek(0)
        file.truncate()
        file.write(f"`{doing}` (pid {os.getpid()}, since {_now()})")
        file.flush()
        try:
            register(project)
            yield
        finally:
            file.seek(0)
            file.truncate()


@contextmanager
def _gate(store: Path) -> Iterator[IO[str]]:
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, store) from error
    with lock_file(store / "gc.lock") as file:
        yield file


def register(project: Project) -> None:
    """Let the store know the checkout.

    Raises:
        InfraError: It cannot be written.
    """
    # As JSON: a path may hold bytes that are no UTF-8.
    path, text = _entry(project), json.dumps(str(project.root)) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def checkouts(project: Project) -> tuple[Path, ...]:
    """Folders of the checkouts that the store knows, and of this one, by path; those that are gone are left out.

    Raises:
        InfraError: An entry is damaged: whose locks it stands for cannot be told; or a checkout cannot be looked at.
    """
    known = {project.root}
    for path in (project.store / "checkouts").glob("[0-9a-f]*"):
        try:
            known.add(Path(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            raise InfraError(
                f"the entry of a checkout is damaged: {error}",
                where=str(path),
                hint="delete it, and run `uv run invoke matrix` once in the checkout that it stood for",
            ) from None
    return tuple(sorted(root for root in known if _is_there(root)))


def forget_gone(project: Project) -> None:
    """Drop the entries of checkouts whose folder is gone."""
    for path in (project.store / "checkouts").glob("[0-9a-f]*"):
        if not _is_there(Path(json.loads(path.read_text(encoding="utf-8")))):
            path.unlink(missing_ok=True)


def _is_there(root: Path) -> bool:
    """Whether the checkout exists. `Path.is_dir` would also say no where this user may not look (Python 3.14).

    Raises:
        InfraError: It cannot be told: another user's folder, a server that does not answer.
    """
    try:
        return stat.S_ISDIR(root.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InfraError(
            f"a checkout that uses the store cannot be looked at: {error.strerror}",
            where=str(root),
            hint="run it as a user who may",
        ) from error


def _entry(project: Project) -> Path:
    return project.store / "checkouts" / hashlib.sha256(os.fsencode(project.root)).hexdigest()[:16]


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "another command"
    except OSError:  # it ended meanwhile
        return "another command"


def _busy(others: list[str], store: Path) -> UserError:
    return UserError(
        f"the store is in use by {' and by '.join(others)}", where=str(store), hint="wait until it ends, or stop it"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
