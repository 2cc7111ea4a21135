"""A wheel, unpacked once with its bytecode: same file in, same bytes out, on any host and inside a build stage.

Same bytes for the same CPython: between patch releases the compiler itself changes (3.11.2 and 3.11.7: 15 of the 562
sources of jax 0.6.2 get other line tables or jumps, numpy 2.3.0 none), with the same meaning.

Standard library only, Python 3.9 or newer, and no import of this project: the image builder copies this one file into
the build context, so that whoever has no store builds the same layers from the network:

    python3 pack_core.py [--no-bytecode] OUT WHEEL...   writes OUT/<wheel file name>.tar for the Python that runs it

No code of a wheel is ever executed: sources are compiled, not imported.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import marshal
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

PREFIX = "opt/env"
"""Where an environment lies in an image, and so in every pack and tree."""

MTIME = 315532800
"""1980-01-01, the first time that both zip and tar can hold."""

CHUNK = 1 << 20

_PARALLEL_FROM = 60
"""Sources from which two compilers pay for the start of the second."""

_DEADLINE = 900
"""Seconds one of them may take; the largest wheel of the matrix takes 20."""


class BadWheel(Exception):
    """The wheel is malformed, or would write where it must not."""


class CompilerFailed(Exception):
    """The interpreter that compiles bytecode did not end well."""


class Member(NamedTuple):
    """One file of a wheel: where it goes (relative to the root of a tree) and whether it may be executed."""

    info: zipfile.ZipInfo
    target: str
    executable: bool
    script: bool


def site_packages(python: str) -> str:
    """`opt/env/lib/python3.11/site-packages` for `3.11`."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def members(archive: zipfile.ZipFile, python: str) -> tuple[list[Member], str]:
    """Every file of the wheel with its place, and the name of its `.dist-info` folder.

    Follows the wheel specification: `*.data/{purelib,platlib,scripts,data,headers}` go to their places. Left out are
    folders (made as needed), INSTALLER (written by us) and `__pycache__` (compiled by us).

    Raises:
        BadWheel: Absolute paths, `..`, links, duplicates, a file where a folder is needed, no `.dist-info` folder.
    """
    found: dict[str, Member] = {}
    dist_infos = set()
    for info in archive.infolist():
        name = info.filename
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or "\\" in name or "\0" in info.orig_filename or {"", ".", ".."} & set(parts):
            raise BadWheel(f"unsafe path {info.orig_filename!r}")
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BadWheel(f"{name!r} is a link or a special file")
        if info.flag_bits & 1:
            raise BadWheel(f"{name!r} is encrypted")
        if parts[0].endswith(".dist-info"):
            dist_infos.add(parts[0])
        if info.is_dir() or "__pycache__" in parts[:-1] or _is_installer(parts):
            continue
        target, script = _target(parts, python)
        if target in found:
            raise BadWheel(f"two files for {target!r}")
        found[target] = Member(info, target, script or bool(mode & 0o111), script)
    if len(dist_infos) != 1:
        raise BadWheel(f"{len(dist_infos)} .dist-info folders, expected one")
    for target in found:
        for parent in _parents(target):
            if parent in found:
                raise BadWheel(f"{parent!r} is both a file and a folder")
    return [found[target] for target in sorted(found)], dist_infos.pop()


def _is_installer(parts: list[str]) -> bool:
    return len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == "INSTALLER"


def _target(parts: list[str], python: str) -> tuple[str, bool]:
    """Where the member `parts` goes, and whether it is a script."""
    site = site_packages(python)
    if not parts[0].endswith(".data"):
        return "/".join([site, *parts]), False
    if len(parts) < 3:
        raise BadWheel(f"{'/'.join(parts)!r} has no place in a .data folder")
    rest = parts[2:]
    if parts[1] in ("purelib", "platlib"):
        return "/".join([site, *rest]), False
    if parts[1] == "scripts":
        return "/".join([PREFIX, "bin", *rest]), True
    if parts[1] == "data":
        return "/".join([PREFIX, *rest]), False
    if parts[1] == "headers":
        project = parts[0].split("-")[0]
        return "/".join([PREFIX, "include", "site", f"python{python}", project, *rest]), False
    raise BadWheel(f"unknown .data folder {parts[1]!r}")


def _parents(target: str) -> list[str]:
    parts = target.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def unpacked_size(archive: zipfile.ZipFile) -> int:
    """Bytes that the wheel's own table of contents promises; `unpack` never writes more than that."""
    return sum(info.file_size for info in archive.infolist())


def unpack(archive: zipfile.ZipFile, root: Path, python: str) -> None:
    """Write the wheel's files under `root`, an empty folder; files are read-only, modes 0555 or 0444.

    Scripts that start with `#!python` get `#!/usr/bin/env python3`: the same bytes must serve an image and a venv.

    Raises:
        BadWheel: See `members`; or a file is not what its header says.
        OSError: The disk is full, or `root` cannot be written.
    """
    entries, dist_info = members(archive, python)
    made = set()
    for member in entries:
        path = root / member.target
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        try:
            with archive.open(member.info) as source, path.open("xb") as out:
                _copy(member, source, out)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise BadWheel(f"{member.info.filename!r} cannot be unpacked: {error}") from error
        path.chmod(0o555 if member.executable else 0o444)
    installer = root / site_packages(python) / dist_info / "INSTALLER"
    installer.write_text("repromatrix\n")
    installer.chmod(0o444)


def _copy(member: Member, source: IO[bytes], out: IO[bytes]) -> None:
    size = 0
    while chunk := source.read(CHUNK):
        if member.script and size == 0 and chunk.startswith(b"#!python"):
            _, newline, rest = chunk.partition(b"\n")
            out.write(b"#!/usr/bin/env python3" + newline + rest)
        else:
            out.write(chunk)
        size += len(chunk)
    # zipfile stops at the size in the header and then checks the CRC, so more data than promised fails there.
    if size != member.info.file_size:
        raise BadWheel(f"{member.info.filename!r} holds {size} bytes, its header says {member.info.file_size}")


def compile_tree(root: Path, python: str, interpreter: str, jobs: int = 2) -> list[str]:
    """Compile every source under the tree's site-packages, in processes of `interpreter`, which must be of `python`.

    Returns:
        Sources, relative to site-packages, that do not compile and stay without bytecode (templates, tests).

    Raises:
        CompilerFailed: The interpreter could not be started, died, or is of another version.
    """
    count = len(_sources(root / site_packages(python)))
    if not count:
        return []
    shards = min(jobs, 2) if count >= _PARALLEL_FROM else 1
    # Not -I: that would ignore PYTHONHASHSEED, on which the order of constants in older versions depends.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ.update(PYTHONHASHSEED="0", PYTHONSAFEPATH="1", PYTHONUTF8="1")
    command = [interpreter, "-s", "-S", "-B", str(Path(__file__).resolve()), "--compile", python, str(root)]

    def start(shard: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, str(shard), str(shards)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    running: list[subprocess.Popen[str]] = []
    failed: list[str] = []
    try:
        running.extend(map(start, range(shards)))
        for process in running:
            stdout, stderr = process.communicate(timeout=_DEADLINE)
            if process.returncode != 0:
                last = stderr.strip().rsplit("\n", 1)[-1]
                raise CompilerFailed(f"{interpreter} ended with status {process.returncode}: {last}")
            failed += json.loads(stdout)
    except subprocess.TimeoutExpired as error:
        raise CompilerFailed(f"{interpreter} did not end within {_DEADLINE} s") from error
    except OSError as error:
        raise CompilerFailed(f"{interpreter} cannot be started: {error.strerror}") from error
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return sorted(failed)


def compile_shard(python: str, root: Path, shard: int, shards: int) -> list[str]:
    """Compile one share of the sources in this process; see `compile_tree`.

    The bytecode is hash-based and unchecked (PEP 552), so it holds whatever the modification times are, and names the
    sources as they lie in an image; on import Python puts the real path in its place.
    """
    running = "{}.{}".format(*sys.version_info)
    if running != python:
        raise CompilerFailed(f"this is Python {running}, not {python}")
    warnings.simplefilter("ignore")  # SyntaxWarnings of other people's code
    gc.disable()  # nothing here makes cycles that last; 7 % faster
    site = site_packages(python)
    failed = []
    for source in _sources(root / site)[shard::shards]:
        path = root / site / source
        data = path.read_bytes()
        try:
            code = compile(data, f"/{site}/{source}", "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError, RecursionError, OverflowError, MemoryError):
            failed.append(source)
            continue
        flags = 0b01  # hash-based, not checked against the source
        header = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(data)
        target = Path(importlib.util.cache_from_source(str(path), optimization=""))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(header + marshal.dumps(code))
        target.chmod(0o444)
    return failed


def _sources(site: Path) -> list[str]:
    return [path for path, is_folder in _walk(site) if path.endswith(".py") and not is_folder]


def _walk(root: Path) -> list[tuple[str, bool]]:
    """(path relative to `root`, whether it is a folder) of everything below, sorted."""
    found = []
    for folder, folders, names in os.walk(root):
        inside = folder[len(str(root)) + 1 :]
        head = inside + "/" if inside else ""
        found += [(head + name, True) for name in folders] + [(head + name, False) for name in names]
    return sorted(found)


def write_tar(root: Path, out: IO[bytes]) -> None:
    """Write the tree under `root` to `out`, the same bytes for the same content.

    Every parent folder has its entry, so that a layer made of it does not depend on what lies below. Sorted by path;
    time MTIME, owner 0:0, modes 0755 and 0644.
    """
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK) as archive:
        archive.copybufsize = CHUNK  # type: ignore[attr-defined]  # missing in typeshed; the default is 16 KiB
        for path, is_folder in _walk(root):
            entry = tarfile.TarInfo(path)
            entry.mtime = MTIME
            if is_folder:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                status = (root / path).lstat()
                entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
                entry.size = status.st_size
                with (root / path).open("rb") as content:
                    archive.addfile(entry, content)


def build_tree(wheel: IO[bytes], root: Path, python: str, interpreter: str | None) -> list[str]:
    """Unpack `wheel` under `root` and, given an interpreter of `python`, compile it; what did not compile is returned.

    Raises:
        BadWheel, CompilerFailed, OSError: See `unpack` and `compile_tree`.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            unpack(archive, root, python)
    except zipfile.BadZipFile as error:
        raise BadWheel(f"not a wheel: {error}") from error
    return compile_tree(root, python, interpreter) if interpreter else []


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--compile"]:
        json.dump(compile_shard(arguments[1], Path(arguments[2]), int(arguments[3]), int(arguments[4])), sys.stdout)
        return 0
    interpreter: str | None = sys.executable
    if arguments[:1] == ["--no-bytecode"]:
        interpreter, arguments = None, arguments[1:]
    if len(arguments) < 2 or re.match("-", arguments[0]):
        sys.stderr.write("usage: python3 pack_core.py [--no-bytecode] OUT WHEEL...\n")
        return 2
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    python = "{}.{}".format(*sys.version_info)
    for wheel in map(Path, arguments[1:]):
        root = Path(tempfile.mkdtemp(dir=out))
        try:
            with wheel.open("rb") as source:
                build_tree(source, root, python, interpreter)
            with (out / f"{wheel.name}.tar").open("wb") as tar:
                write_tar(root, tar)
        except (BadWheel, CompilerFailed) as error:
            sys.stderr.write(f"{wheel}: {error}\n")
            return 1
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
