"""Packs and trees: each wheel unpacked once per Python minor version, with its bytecode.

A pack is an archive for image builds, a tree is a folder for venvs; both hold the same files under `opt/env`. The work
itself is in `pack_core.py`, which also runs inside an image build.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import zstandard

from repromatrix.envs import pack_core
from repromatrix.envs.disk import disk_error, no_room
from repromatrix.envs.interpreter import find_python
from repromatrix.envs.model import Wheel
from repromatrix.errors import InfraError

_THREADS = 2
_WITHOUT_BYTECODE = "-source"


def pack_name(wheel: Wheel, python: str) -> str:
    """`<sha256>-cp311`, or `<sha256>-cp311-source` where no CPython of that minor is here to compile with."""
    bytecode = "" if find_python(python) else _WITHOUT_BYTECODE
    return f"{wheel.sha256}-cp{python.replace('.', '')}{bytecode}"


def has_bytecode(built: Path) -> bool:
    """Whether a pack or tree holds bytecode; if not, compile it where it is used (`python -m compileall`)."""
    return not built.name.removesuffix(".tar.zst").endswith(_WITHOUT_BYTECODE)


def make_tree(wheel: Wheel, source: Callable[[], IO[bytes]], python: str, pack: Path, root: Path) -> str:
    """Fill the new folder `root` from `pack` if that is there (no compiling: much the faster), else from the wheel.

    Args:
        source: Opens the wheel, verified.

    Returns:
        A note for the progress line.

    Raises:
        InfraError: The wheel or the pack is bad, the compiler failed, or the disk is full.
    """
    root.mkdir(parents=True)
    try:
        if pack.is_file():
            _extract(pack, root)
            return "from its pack"
        with source() as opened:
            return _build(wheel, opened, python, root)
    except OSError as error:
        raise disk_error(error, root) from error


def make_pack(wheel: Wheel, source: Callable[[], IO[bytes]], python: str, tree: Path, pack: Path, room: Path) -> str:
    """Write the archive `pack` from `tree` if that is there, else from the wheel through the scratch folder `room`.

    Raises:
        InfraError: See `make_tree`.
    """
    note = "from its tree"
    try:
        if not tree.is_dir():
            tree = room
            room.mkdir(parents=True)
            with source() as opened:
                note = _build(wheel, opened, python, room)
        compressor = zstandard.ZstdCompressor(level=1, threads=_THREADS, write_checksum=True)
        with pack.open("wb") as out, compressor.stream_writer(out, closefd=False) as compressed:
            pack_core.write_tar(tree, compressed)
    except OSError as error:
        raise disk_error(error, pack.parent) from error
    return note


def _build(wheel: Wheel, opened: IO[bytes], python: str, root: Path) -> str:
    try:
        with zipfile.ZipFile(opened) as archive:
            needed = pack_core.unpacked_size(archive)
        if (free := shutil.disk_usage(root).free) < needed:
            raise no_room(root, needed, free)
        opened.seek(0)
        compiler = find_python(python)
        failed = pack_core.build_tree(opened, root, python, str(compiler) if compiler else None)
    except (zipfile.BadZipFile, pack_core.BadWheel) as error:
        raise InfraError(
            f"the wheel is as published (its hash is right) and cannot be used: {error}",
            where=wheel.filename,
            hint="pin another version of this package, or tell its maintainers",
        ) from error
    except pack_core.CompilerFailed as error:
        raise InfraError(f"compiling bytecode failed: {error}", where=wheel.filename) from error
    if compiler is None:
        return f"without bytecode: no CPython {python} here"
    return f"{len(failed)} sources do not compile" if failed else ""


def _extract(pack: Path, root: Path) -> None:
    """Unpack our own archive `pack`; its files become read-only."""
    try:
        with pack.open("rb") as opened, zstandard.ZstdDecompressor().stream_reader(opened) as plain:
            with tarfile.open(fileobj=plain, mode="r|", bufsize=pack_core.CHUNK) as archive:
                for entry in archive:
                    path = root / entry.name
                    if entry.isdir():
                        path.mkdir()
                        continue
                    content = archive.extractfile(entry)
                    if content is None:
                        raise tarfile.ReadError(f"{entry.name} is no file")
                    with content, path.open("xb") as out:
                        shutil.copyfileobj(content, out, pack_core.CHUNK)
                    path.chmod(0o555 if entry.mode & 0o111 else 0o444)
            while plain.read(pack_core.CHUNK):  # the checksum is at the very end
                pass
    except (zstandard.ZstdError, tarfile.TarError) as error:
        pack.unlink(missing_ok=True)
        raise InfraError(
            f"the pack was damaged ({error}); it was removed", where=str(pack), hint="run again: it is made anew"
        ) from error
