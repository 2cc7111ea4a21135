"""An archive's folder on disk: blobs by hash, files beside them, and the manifest, which is written last.

Whoever adds holds the folder's lock. A blob gets its name when it is whole and its hash is right; the manifest is
replaced when all that it names is on disk. So a writer that dies leaves the archive that was there, and at most files
called `.*.part`, which the next one removes.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repromatrix.carry.format import BLOBS, NAME, Blob, File, Manifest, check, parse, render

PART = ".part"
"""How names of unfinished files end; they begin with a dot."""

CHUNK = 1 << 20
"""Bytes read at once: SHA-256 needs 0.7 ms for them, so a progress bar moves."""


class ContentError(ValueError):
    """A file's content is not what its hash says; the text says which and how."""


class BusyError(OSError):
    """Another process writes into this archive."""


def blob_path(root: Path, sha256: str) -> Path:
    """Where a blob lies or will lie."""
    return root / BLOBS / sha256


def holds(root: Path, blob: Blob) -> bool:
    """Whether a blob is there with its size; its content is not read."""
    try:
        state = blob_path(root, blob.sha256).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return state.st_size == blob.size


def hash_of(path: Path) -> Blob:
    """SHA-256 and size of a file's content.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as source:
        digest, size = hashlib.sha256(), 0
        for chunk in iter(lambda: source.read(CHUNK), b""):
            digest.update(chunk)
            size += len(chunk)
    return Blob(digest.hexdigest(), size)


def add(root: Path, source: Path | bytes, blob: Blob | None = None, wrote: Callable[[int], None] | None = None) -> Blob:
    """Put content into the archive, unless it is there.

    Args:
        source: A file, or the content.
        blob: What it is, where that is known: the file is not read if the archive holds it.
        wrote: Told the bytes that were written, while they are.

    Raises:
        ContentError: The file is not `blob`, or changed while it was read.
        OSError: It cannot be read, or the archive cannot be written.
    """
    if blob is None:
        blob = Blob(hashlib.sha256(source).hexdigest(), len(source)) if isinstance(source, bytes) else hash_of(source)
    if holds(root, blob):
        return blob
    place = blob_path(root, blob.sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{blob.sha256}{PART}")
    try:
        with part.open("wb") as out:
            digest, size = hashlib.sha256(), 0
            for chunk in _chunks(source):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                if wrote is not None:
                    wrote(len(chunk))
        if (digest.hexdigest(), size) != (blob.sha256, blob.size):
            raise ContentError(
                f"{source if isinstance(source, Path) else 'content'}: expected {blob.size} bytes with sha256 "
                f"{blob.sha256}, found {size} bytes with {digest.hexdigest()}"
            )
        part.chmod(0o644)  # whatever the umask is: an archive is read by others
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
    return blob


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        yield from iter(lambda: file.read(CHUNK), b"")


def read_manifest(root: Path) -> Manifest:
    """The archive's manifest.

    Raises:
        FormatError: It is damaged, dangerous, or of another version.
        OSError: It is not there, or cannot be read.
    """
    return parse((root / NAME).read_bytes())


def write_root(root: Path, name: str, content: bytes) -> File:
    """Write a file beside the manifest, as a whole; one that has this content already is left alone.

    Raises:
        OSError: It cannot be written.
    """
    place = root / name
    if not (place.is_file() and not place.is_symlink() and place.read_bytes() == content):
        part = root / f".{name}{PART}"
        try:
            part.write_bytes(content)
            part.chmod(0o644)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
    return File(name, hashlib.sha256(content).hexdigest(), len(content))


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Make `manifest` that of the archive; when this returns it and all that it names is on disk.

    Raises:
        FormatError: Nobody could read it again; the old one is untouched.
        OSError: It cannot be written; the old one is untouched.
    """
    check(manifest)
    os.sync()  # once, not per blob: thousands of small files of evidence would take minutes
    write_root(root, NAME, render(manifest))
    os.sync()


def sweep(root: Path, keep: Iterable[str] | None = None) -> int:
    """Remove what a dead writer left unfinished and, where `keep` is given, blobs whose hash is not in it.

    Returns:
        Bytes of the blobs that were removed.

    Raises:
        OSError: It cannot be removed.
    """
    kept = None if keep is None else set(keep)
    freed = 0
    for folder in (root, root / BLOBS):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") and path.name.endswith(PART):
                path.unlink()
            elif kept is not None and folder != root and path.name not in kept:
                freed += path.lstat().st_size
                path.unlink()
    return freed


@contextmanager
def hold(root: Path, writing: bool = True) -> Iterator[None]:
    """Hold the archive's lock: one writer, or several readers. It lies on the folder itself, so no file is added.

    The kernel drops it when its holder dies, by whatever means.

    Raises:
        BusyError: Another process holds it.
        OSError: The folder is not there, or its file system has no locks.
    """
    folder = os.open(str(root), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, (fcntl.LOCK_EX if writing else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(errno.EBUSY, "another process is writing into this archive", str(root)) from None
        except OSError as error:  # NFS: EBADF, since a folder cannot be opened for writing
            text = f"this file system has no locks on folders ({error.strerror})"
            raise OSError(error.errno, text, str(root)) from None
        yield
    finally:
        os.close(folder)
