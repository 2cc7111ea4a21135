"""What is known: attempts by key, the last result of every cell, and a folder of evidence per attempt.

Layout of the state folder:

    results.db              SQLite
    evidence/ab/abcd.../3/  the third attempt under key abcd...
    unfinished/             folders of attempts whose run died: no verdict came of them
    owners/                 one locked file per process that has attempts under way
    writer                  locked by the process that runs cells
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from repromatrix.errors import InfraError, UserError
from repromatrix.results.codec import attempt_from, attempt_object, cell_from, cell_object
from repromatrix.results.locks import Owner, lock_file, locked_folder, try_lock
from repromatrix.results.model import AttemptResult, CellResult

MIGRATIONS = (
    """
    CREATE TABLE attempts (
        key        TEXT NOT NULL,
        number     INTEGER NOT NULL,
        owner      TEXT NOT NULL,              -- who reserved it: the name of a file in owners/
        outcome    TEXT,                       -- these three are NULL while it is under way
        body       TEXT,
        context    TEXT,
        superseded INTEGER NOT NULL DEFAULT 0, -- kept as evidence, no longer an answer
        PRIMARY KEY (key, number)
    ) WITHOUT ROWID;
    CREATE INDEX unfinished ON attempts (owner) WHERE body IS NULL;
    CREATE TABLE cells (
        id     TEXT NOT NULL,
        engine TEXT NOT NULL,
        key    TEXT NOT NULL,
        body   TEXT NOT NULL,
        PRIMARY KEY (id, engine)
    ) WITHOUT ROWID;
    """,
)
"""Script n takes the database from version n to n + 1. Never edit one that was released: append."""

_LARGE = re.compile(r"core\..*|.*\.part")
"""What the supervisor calls cores, and files that are not whole yet."""

_BUSY = 30.0  # seconds; a transaction here takes milliseconds, so a longer wait means a stuck process or disk


class Results:
    """The results of one checkout; safe to use from several threads and several processes.

    Args:
        state: Folder, made if missing.

    Raises:
        InfraError: The database is damaged, of a newer version, or the folder cannot be written. The same holds for
            every method.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / "results.db"
        self._mutex = threading.RLock()
        self._owner: Owner | None = None
        try:
            state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfraError(f"cannot make the folder of results: {error.strerror}", where=str(state)) from error
        with self._explained():
            self._db = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Attempts still under way are left to the next `recover()`."""
        with self._mutex:
            self._db.close()
            if self._owner is not None:
                self._owner.release()
                self._owner = None

    def new_attempt(self, key: str) -> tuple[int, Path]:
        """Reserve the next attempt under `key`: its number, from 1, and its folder, new and empty."""
        with self._mutex:
            if self._owner is None:
                self._owner = Owner.take(self._state / "owners")
            with self._transaction():
                last = self._db.execute("SELECT max(number) FROM attempts WHERE key = ?", (key,)).fetchone()[0]
                number = (last or 0) + 1
                while self.folder(key, number).exists():  # evidence of a database that was moved away
                    number += 1
                self._db.execute(
                    "INSERT INTO attempts (key, number, owner) VALUES (?, ?, ?)", (key, number, self._owner.name)
                )
        folder = self.folder(key, number)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise InfraError(f"cannot make the attempt's folder: {error.strerror}", where=str(folder)) from error
        return number, folder

    def folder(self, key: str, number: int) -> Path:
        """Where the evidence of an attempt lies."""
        return self._state / "evidence" / key[:2] / key / str(number)

    def add(self, key: str, attempt: AttemptResult, context: Mapping[str, object]) -> None:
        """Put a finished attempt on record; when this returns it is on disk.

        Args:
            key: Of the result.
            attempt: Graded; `attempt.number` from `new_attempt`.
            context: What the key stands for, for whoever reads the database: the cell's id, the hardware, the base.

        Raises:
            ValueError: This attempt is on record already: evidence is never overwritten.
        """
        with self._mutex, self._transaction():
            done = self._db.execute(
                "INSERT INTO attempts (key, number, owner, outcome, body, context) VALUES (?, ?, '', ?, ?, ?)"
                " ON CONFLICT (key, number) DO UPDATE SET"
                " outcome = excluded.outcome, body = excluded.body, context = excluded.context WHERE body IS NULL",
                (key, attempt.number, attempt.outcome.value, _json(attempt_object(attempt)), _json(dict(context))),
            )
            if done.rowcount != 1:
                raise ValueError(f"attempt {attempt.number} of {key} is on record already")

    def many(self, keys: Iterable[str], *, or_infra: bool = False) -> dict[str, tuple[AttemptResult, ...]]:
        """The attempts that answer for each key, by number: finished, not superseded, not `infra`.

        Keys without an answer are left out.

        Args:
            or_infra: Give the `infra` attempts of a key that has nothing better: they do not answer, and explain why.
        """
        found: dict[str, list[AttemptResult]] = {}
        lost: dict[str, list[AttemptResult]] = {}
        with self._mutex, self._explained():
            rows = self._db.execute(
                "SELECT key, body, outcome = 'infra' FROM attempts WHERE key IN (SELECT value FROM json_each(?))"
                " AND body IS NOT NULL AND superseded = 0 ORDER BY key, number",
                (json.dumps(list(keys)),),
            ).fetchall()
        for key, body, infra in rows:
            (lost if infra else found).setdefault(key, []).append(attempt_from(json.loads(body)))
        if or_infra:
            found = lost | found
        return {key: tuple(attempts) for key, attempts in found.items()}

    def amend(self, key: str, attempt: AttemptResult) -> None:
        """Put what `attempt` means now in the place of what it meant: its evidence was graded again.

        Raises:
            ValueError: No such attempt is on record.
        """
        with self._mutex, self._transaction():
            done = self._db.execute(
                "UPDATE attempts SET outcome = ?, body = ? WHERE key = ? AND number = ? AND body IS NOT NULL",
                (attempt.outcome.value, _json(attempt_object(attempt)), key, attempt.number),
            )
            if done.rowcount != 1:
                raise ValueError(f"attempt {attempt.number} of {key} is not on record")

    def forget(self, keys: Iterable[str]) -> int:
        """Let the attempts of `keys` answer no longer, so that they run again; rows and evidence stay.

        Returns:
            How many attempts were superseded.
        """
        with self._mutex, self._transaction():
            done = self._db.execute(
                "UPDATE attempts SET superseded = 1 WHERE key IN (SELECT value FROM json_each(?))"
                " AND body IS NOT NULL AND superseded = 0",
                (json.dumps(list(keys)),),
            )
            return done.rowcount

    def save_cells(self, cells: Iterable[CellResult]) -> None:
        """Keep `cells` as the last known results of their ids and engines; when this returns they are on disk.

        Those that did not change cost no write.

        A cell that no engine ran (`skip` for want of a device) gives way as soon as one did.
        """
        rows = [(cell.id, cell.engine, cell.key, _json(cell_object(cell))) for cell in cells]
        with self._mutex, self._transaction():
            self._db.executemany("DELETE FROM cells WHERE id = ? AND engine = ''", [(r[0],) for r in rows if r[1]])
            self._db.executemany(
                "INSERT INTO cells VALUES (?, ?, ?, ?) ON CONFLICT (id, engine) DO UPDATE SET"
                " key = excluded.key, body = excluded.body WHERE body != excluded.body",
                rows,
            )

    def latest_cells(self) -> tuple[CellResult, ...]:
        """The last known result of every cell id and engine, in that order; `engine` is empty where none ran it."""
        with self._mutex, self._explained():
            rows = self._db.execute("SELECT body FROM cells ORDER BY id, engine").fetchall()
        return tuple(cell_from(json.loads(body)) for (body,) in rows)

    def recover(self) -> tuple[Path, ...]:
        """Set aside what dead runs left unfinished, without its cores: they are large, and nobody is told of them.

        Attempts of living processes are not touched.

        Returns:
            The folders that were set aside, where they are now. They answer for nothing and may be deleted.
        """
        aside: list[Path] = []
        with self._mutex, self._transaction():
            rows = self._db.execute("SELECT key, number, owner FROM attempts WHERE body IS NULL").fetchall()
            mine = self._owner.name if self._owner is not None else None
            alive = {mine, *Owner.sweep(self._state / "owners")}
            for key, number, owner in rows:
                if owner in alive:
                    continue
                try:
                    moved = self._set_aside(key, number)
                except OSError as error:
                    where = str(self.folder(key, number))
                    raise InfraError(
                        f"cannot set an unfinished attempt aside: {error.strerror}", where=where
                    ) from error
                if moved is not None:
                    aside.append(moved)
                self._db.execute("DELETE FROM attempts WHERE key = ? AND number = ?", (key, number))
        return tuple(aside)

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True, announce: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Hold the writer's lock of this checkout, so that no two runs do the same cells twice.

        The kernel drops the lock when its holder dies, by whatever means.

        Args:
            wait: Wait for the holder to end; else refuse.
            announce: Told once who is waited for.

        Raises:
            UserError: Another run holds it and `wait` is False.
        """
        with lock_file(self._state / "writer") as file:
            told = False
            while not try_lock(file):
                file.seek(0)
                holder = file.read().strip() or "another run"
                if not wait:
                    raise UserError(
                        f"{holder} is running cells in this checkout",
                        where=str(self._state),
                        hint="wait until it ends, or stop it; what it finished is kept",
                    )
                if not told:
                    announce(f"waiting for {holder}, which is running cells in this checkout")
                    told = True
                time.sleep(0.2)
            file.seek(0)
            file.truncate()
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"`{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}` (pid {os.getpid()}, since {now})")
            file.flush()
            yield

    def _open(self) -> None:
        version = self._version()
        if version > len(MIGRATIONS):
            raise InfraError(
                f"the database is of version {version}, this tool knows up to {len(MIGRATIONS)}",
                where=str(self._path),
                hint="use the newer tool that wrote it; nothing was changed",
            )
        # FULL: a commit is on disk when it returns, also when the power fails.
        self._db.execute("PRAGMA synchronous = FULL")
        if version == len(MIGRATIONS):
            return
        # Two processes that turn a new database to WAL at once get "locked" without the busy timeout being waited for.
        with locked_folder(self._state):
            self._db.execute("PRAGMA journal_mode = WAL")
            self._migrate()

    def _migrate(self) -> None:
        with self._transaction():
            for script in MIGRATIONS[self._version() :]:
                for statement in filter(str.strip, script.split(";\n")):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _set_aside(self, key: str, number: int) -> Path | None:
        folder = self.folder(key, number)
        if not folder.is_dir():
            return None
        parent = self._state / "unfinished"
        parent.mkdir(exist_ok=True)
        place = parent / f"{key[:16]}-{number}-{uuid.uuid4().hex[:8]}"
        for path in folder.iterdir():
            if _LARGE.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
                path.unlink()
        folder.rename(place)
        return place

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise  # our mistake, not the machine's
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            where = str(self._path)
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise InfraError(
                    f"the database of results is damaged ({error})",
                    where=where,
                    hint=f'move it away: for f in {shlex.quote(where)}*; do mv "$f" "$f.damaged"; done\n'
                    "  The evidence folders stay as they are; the next run starts a new database and runs all again",
                ) from error
            hints = {
                sqlite3.SQLITE_FULL: "free some space; finished attempts are kept",
                sqlite3.SQLITE_BUSY: f"another process kept it locked for {_BUSY:.0f} s: see whether one hangs",
                sqlite3.SQLITE_READONLY: "make the folder and the file writable",
                sqlite3.SQLITE_CANTOPEN: "make the folder and the file readable and writable",
            }
            raise InfraError(
                f"the database of results failed: {error}", where=where, hint=hints.get(code, "")
            ) from error


def _json(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
