"""The store of wheels: content-addressed, verified, shared by all engines and all checkouts of a machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from repromatrix.envs.content import fingerprint
from repromatrix.envs.disk import disk_error
from repromatrix.envs.model import Wheel
from repromatrix.errors import InfraError
from repromatrix.events import Listener


class Cancelled(InfraError):
    """The work was cancelled before its end; nothing is damaged, and the next run continues."""

    exit_code = 130


class WheelStore:
    """Wheels by hash, and what is made of them; several processes and threads may use one at once.

    Layout: `wheels/<sha256>/<file name>`, `packs/<sha256>-cp311.tar.zst`, `trees/<sha256>-cp311/`, `venvs/`, and
    `tmp/` for what is being made (unfinished downloads, locks). Whatever has its final name is complete.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def place(self, wheel: Wheel) -> Path:
        """Where `wheel` lies or will lie."""
        return self.root / "wheels" / wheel.sha256 / wheel.filename

    def path(self, wheel: Wheel) -> Path | None:
        """The file of `wheel` if it is here with the right size. Its content is hashed when it is unpacked."""
        place = self.place(wheel)
        try:
            size = place.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        return place if size == (wheel.size or size) else None

    def missing(self, wheels: Iterable[Wheel]) -> tuple[Wheel, ...]:
        """Those of `wheels` that must be fetched, each once; reads no content."""
        unique = {wheel.sha256: wheel for wheel in wheels}
        return tuple(wheel for wheel in unique.values() if self.path(wheel) is None)

    def fetch(
        self,
        wheels: Iterable[Wheel],
        addresses: Mapping[str, str] | Callable[[str], str],
        listener: Listener,
        cancel: threading.Event,
    ) -> None:
        """Download what is missing of `wheels`, verified; continues what an earlier run began.

        Args:
            addresses: From a wheel's sha256 to its URL (`https:`, `http:` or `file:`).

        Raises:
            InfraError: A wheel has vanished, is not what the lock says, came incomplete; no route; the disk is full.
            Cancelled: `cancel` was set.
        """
        if missing := self.missing(wheels):
            from repromatrix.envs.download import download  # httpx takes 0.15 s to import

            download(self, missing, addresses, listener, cancel)

    def verify(self, wheel: Wheel) -> Path:
        """Hash the stored file of `wheel` again.

        Raises:
            InfraError: It is not here, or damaged; a damaged one is removed, so that `missing` names it.
        """
        self._opened(wheel).close()
        return self.place(wheel)

    def pack(self, wheel: Wheel, python: str, listener: Listener) -> Path:
        """The archive of `wheel` with bytecode for `python` (`3.11`), made if it is not here; see `pack.has_bytecode`.

        Raises:
            InfraError: The wheel is missing, damaged or unusable; compiling failed; the disk is full.
        """
        from repromatrix.envs.pack import make_pack

        name, tree, pack = self._places(wheel, python)
        self._drop_damaged(name, tree, listener)

        def make(room: Path) -> tuple[Path, str]:
            part = room / pack.name
            return part, make_pack(wheel, lambda: self._opened(wheel), python, tree, part, room / "tree")

        self._make(name, f"{wheel.filename} (archive)", pack, make, listener)
        return pack

    def tree(self, wheel: Wheel, python: str, listener: Listener) -> Path:
        """The folder with the same content as the archive of `pack`; its files are read-only. Raises as `pack`."""
        from repromatrix.envs.pack import make_tree

        name, tree, pack = self._places(wheel, python)
        self._drop_damaged(name, tree, listener)

        def make(room: Path) -> tuple[Path, str]:
            part = room / "tree"
            note = make_tree(wheel, lambda: self._opened(wheel), python, pack, part)
            tree.parent.mkdir(parents=True, exist_ok=True)
            _sum(tree).write_text(fingerprint(part))
            return part, note

        self._make(name, wheel.filename, tree, make, listener)
        return tree

    def _drop_damaged(self, name: str, tree: Path, listener: Listener) -> None:
        """Remove a tree that is not as it was made: what is linked or packed from it would be blamed on its version."""
        if not tree.exists() or _intact(tree):
            return
        with self.locked(name):
            if tree.exists() and not _intact(tree):
                listener.warn(f"{tree.name}: files were changed or removed in the store; it is unpacked again")
                shutil.rmtree(tree, ignore_errors=True)

    def _places(self, wheel: Wheel, python: str) -> tuple[str, Path, Path]:
        from repromatrix.envs.pack import pack_name

        name = pack_name(wheel, python)
        return name, self.root / "trees" / name, self.root / "packs" / f"{name}.tar.zst"

    def _make(
        self, name: str, label: str, final: Path, make: Callable[[Path], tuple[Path, str]], listener: Listener
    ) -> None:
        """Make `final` unless it is there: `make` works in a scratch folder, its result is renamed when complete."""
        if final.exists():
            return
        with self.locked(name), self.scratch(name) as room:
            if final.exists():  # another thread or process was faster
                return
            task = listener.start("unpack", label, 1)
            note = "failed"
            try:
                part, note = make(room)
                final.parent.mkdir(parents=True, exist_ok=True)
                part.replace(final)
                task.advance(1)
            except OSError as error:
                raise disk_error(error, self.root) from error
            finally:
                task.finish(note)

    def _opened(self, wheel: Wheel) -> IO[bytes]:
        """The wheel's file, opened and hashed: what is read from it afterwards is what the lock names."""
        place = self.place(wheel)
        try:
            opened = place.open("rb")
        except FileNotFoundError:
            raise InfraError(
                f"{wheel.filename} is not in the store", where=str(self.root), hint="fetch it: `invoke fetch`"
            ) from None
        try:
            size = os.fstat(opened.fileno()).st_size
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if digest != wheel.sha256 or size != (wheel.size or size):
                place.unlink(missing_ok=True)
                raise InfraError(
                    f"the stored wheel is damaged and was removed: expected {wheel.size or '?'} bytes with sha256 "
                    f"{wheel.sha256}, found {size} bytes with {digest}",
                    where=str(place),
                    hint="run again: it is fetched anew; if this repeats, check the disk",
                )
            opened.seek(0)
        except BaseException:
            opened.close()
            raise
        return opened

    @contextmanager
    def locked(self, name: str, cancel: threading.Event | None = None) -> Iterator[None]:
        """Hold the store's lock `name`: one holder among all threads and processes; a dead holder's lock is free.

        The empty lock file stays: removing it would let two holders in.

        Raises:
            Cancelled: `cancel` was set while waiting.
        """
        try:
            self.tmp.mkdir(parents=True, exist_ok=True)
            lock = (self.tmp / f"{name}.lock").open("wb")
        except OSError as error:
            raise disk_error(error, self.root) from error
        with lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if cancel is not None and cancel.is_set():
                        raise Cancelled("cancelled while waiting for another run", where=name) from None
                    time.sleep(0.1)
            yield

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """An empty folder to make something in, on the store's file system. Call it with the lock `name` held.

        What a killed run left in it is removed first.
        """
        room = self.tmp / f"{name}.room"
        shutil.rmtree(room, ignore_errors=True)
        try:
            room.mkdir()
        except OSError as error:
            raise disk_error(error, self.tmp) from error
        try:
            yield room
        finally:
            shutil.rmtree(room, ignore_errors=True)


def _sum(tree: Path) -> Path:
    """Where the fingerprint of `tree` is kept."""
    return tree.with_name(f"{tree.name}.sum")


def _intact(tree: Path) -> bool:
    try:
        return _sum(tree).read_text() == fingerprint(tree)
    except OSError:
        return False
