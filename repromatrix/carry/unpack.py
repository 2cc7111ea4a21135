"""A new checkout out of an archive: its project files, and a venv with what this tool needs to run.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import configparser
import errno
import os
import re
import shlex
import shutil
import stat
import sys
import venv
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from repromatrix.carry.folder import blob_path, hold
from repromatrix.carry.format import File, Manifest
from repromatrix.carry.place import Progress, copy, fault, folder, need_room, no_progress
from repromatrix.carry.trouble import Damaged, Problem, Refused

VENV = ".venv"

_SCRIPT = """\
{first}import sys
from {module} import {name}
if __name__ == "__main__":
    sys.exit({call}())
"""

_LARGEST_LIST = 1 << 20
"""Bytes that a wheel's list of programs may have: it is read as a whole."""

_OBJECT = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[.*\]\s*)?")


def this_python() -> str:
    """`3.11` for the Python that runs this."""
    return "{}.{}".format(*sys.version_info)


def pythons(manifest: Manifest) -> list[str]:
    """Versions of Python for which the archive holds what this tool needs, oldest first."""
    found = {file.path.split("/")[1] for file in manifest.files if file.path.startswith("tool/")}
    return sorted(found, key=lambda version: [int(number) for number in version.split(".")])


def area(manifest: Manifest, name: str) -> list[File]:
    """The files below `name`, `project` or `tool/3.11`."""
    return [file for file in manifest.files if file.path.startswith(f"{name}/")]


def check_new(into: Path) -> None:
    """Refuse a place where something is.

    Raises:
        Refused: See there.
    """
    if not is_new(into):
        raise Refused(f"{into} exists already", "name a new folder")
    if not into.absolute().parent.is_dir():
        raise Refused(f"{into.absolute().parent}: there is no such folder", "make it, or name another")


def is_new(into: Path) -> bool:
    """Whether nothing is at this place, or an empty folder."""
    return not os.path.lexists(into) or (into.is_dir() and not into.is_symlink() and not any(into.iterdir()))


def check_place(into: Path) -> None:
    """Refuse what can be neither a new checkout nor one to go on with, before the archive is read.

    Raises:
        Refused: See there.
    """
    if into.is_symlink() or not (into / "matrix.toml").is_file():
        check_new(into)


def goes_on(manifest: Manifest, into: Path) -> bool:
    """Whether `into` is a checkout that this archive made, for an interrupted restore to go on; False: it is new.

    `unpack` makes it whole or not at all, so it is one if every project file lies there as the archive has it. What
    else lies there does not matter: what goes on writes over nothing.

    Raises:
        Refused: Something else is there.
        OSError: A file may not be read, so nobody knows.
    """
    if is_new(into):
        return False
    check_place(into)
    for file in area(manifest, "project"):
        *above, name = file.path.split("/")[1:]
        try:
            with folder(into, *above):
                what = fault(into.joinpath(*above, name), file.sha256, file.size)
        except (FileNotFoundError, NotADirectoryError):
            what = "missing"
        if what:
            raise Refused(
                f"{into} exists already, and is not as this archive makes it: {'/'.join([*above, name])}: {what}",
                "name a new folder; or, for what that checkout lacks, use `invoke restore ARCHIVE` in it",
            )
    return True


def check_python(manifest: Manifest, python: str) -> None:
    """Refuse a Python for which the archive holds no tool.

    Raises:
        Refused: See there; says for which it does.
    """
    held = pythons(manifest)
    if python not in held:
        which = f"for Python {', '.join(held)}" if held else "for no Python"
        raise Refused(
            f"this is Python {python}, and the archive holds what the tool needs {which}",
            f"run it with python{held[-1]}" if held else "use `invoke restore` of an installed tool",
        )


def unpack(
    root: Path, manifest: Manifest, into: Path, python: str | None, progress: Progress = no_progress
) -> tuple[str, ...]:
    """Make the new folder `into` of the verified archive in `root`; it appears when it is whole, or not at all.

    Args:
        python: Minor version of the Python that runs this, to make `.venv` of it with the tool; None makes none.

    Returns:
        The project files that were written.

    Raises:
        Refused: `into` exists, or the archive holds no tool for this Python; nothing was written.
        Damaged: A file is not what the manifest states; nothing is left.
        OSError: The disk is full, or may not be written; nothing is left.
    """
    check_new(into)
    if python is not None:
        check_python(manifest, python)
    files, wheels = area(manifest, "project"), area(manifest, f"tool/{python}") if python else []
    into = into.absolute()
    part = into.with_name(f".{into.name}.{os.getpid()}.part")
    _sweep(into)
    part.mkdir()
    try:
        with ExitStack() as held:
            with suppress(OSError):  # a file system without locks: what a killed call leaves there stays
                held.enter_context(hold(part))
            unpacked = sum(_size(blob_path(root, wheel.sha256), wheel.path) for wheel in wheels)
            need_room(part, sum(file.size for file in files) + unpacked)
            for file in files:
                write_project(root, file, part, progress)
            if python is not None:
                _make_venv(part / VENV, into / VENV)
                for wheel in wheels:
                    _install(blob_path(root, wheel.sha256), wheel.path, part / VENV, into / VENV, python)
                    progress(wheel.size)
            part.replace(into)
    except FileExistsError as error:
        text = f"two files are one in {error.filename}: a file system that does not tell a from A?"
        raise OSError(errno.EEXIST, text, str(into)) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return tuple(file.path.partition("/")[2] for file in files)


def _sweep(into: Path) -> None:
    """Remove what calls that were killed left of this new folder; a living one holds its own locked."""
    ours = re.compile(rf"\.{re.escape(into.name)}\.[0-9]+\.part")
    for part in [path for path in into.parent.iterdir() if ours.fullmatch(path.name) and not path.is_symlink()]:
        with suppress(OSError), hold(part):
            shutil.rmtree(part)


def write_project(root: Path, file: File, into: Path, progress: Progress = no_progress) -> None:
    """Write one new file of the area `project` below the folder `into`.

    Raises:
        FileExistsError: Something lies there.
        Damaged, OSError: See `place.copy`.
    """
    *above, name = file.path.split("/")[1:]
    with folder(into, *above, make=True) as there:
        mode = 0o755 if file.executable else 0o644
        copy(blob_path(root, file.sha256), file.path, file.sha256, file.size, there, name, mode, progress)


def _make_venv(part: Path, final: Path) -> None:
    """A venv of this Python without pip, made at `part` for its life at `final`."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(part)
    for path in [part / "pyvenv.cfg", *(part / "bin").iterdir()]:
        if path.is_file() and not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(str(part), str(final)), encoding="utf-8")


def _size(wheel: Path, where: str) -> int:
    """Bytes that a wheel's table of contents promises."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, ValueError) as error:
        raise Damaged([Problem(where, f"not a wheel: {error}")]) from None


def _install(wheel: Path, where: str, part: Path, final: Path, python: str) -> None:
    """Unpack a wheel into the venv at `part`, whose programs will run at `final`. No code of it is executed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info, target, program in _members(archive, python):
                _extract(archive, info, part / target, program, final)
            for name, script in _programs(archive, final):
                path = part / "bin" / name
                with path.open("x", encoding="utf-8") as out:
                    out.write(script)
                path.chmod(0o755)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, FileExistsError) as error:
        raise Damaged([Problem(where, f"a wheel that cannot be installed: {error}")]) from None


def _members(archive: zipfile.ZipFile, python: str) -> Iterator[tuple[zipfile.ZipInfo, str, bool]]:
    """Every file of a wheel, where it goes in a venv, and whether it is a script.

    Raises:
        ValueError: An unsafe path, a link, an encrypted file.
    """
    site = f"lib/python{python}/site-packages"
    places = {"purelib": site, "platlib": site, "scripts": "bin", "data": "."}
    for info in archive.infolist():
        name, parts = info.filename, info.filename.rstrip("/").split("/")
        if "\\" in name or "\0" in info.orig_filename or {"", ".", ".."} & set(parts):
            raise ValueError(f"unsafe path {info.orig_filename!r}")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR) or info.flag_bits & 1:
            raise ValueError(f"{name!r} is a link, a special file or encrypted")
        if info.is_dir():
            continue
        if not parts[0].endswith(".data"):
            yield info, f"{site}/{name}", False
        elif len(parts) > 2 and parts[1] in places:
            yield info, "/".join([places[parts[1]], *parts[2:]]), parts[1] == "scripts"
        elif parts[1:2] != ["headers"]:  # nothing is compiled against the tool
            raise ValueError(f"{name!r} has no place")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, program: bool, final: Path) -> None:
    """Write one member to the new file `target`, and no more bytes than its header states."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as out:
        left = info.file_size
        if program:  # its first line names the interpreter
            line = source.readline(1 << 16)
            left -= len(line)
            out.write(_first(final).encode() if line.startswith(b"#!python") else line)
        while data := source.read(min(1 << 20, left + 1)):
            left -= len(data)
            if left < 0:
                break
            out.write(data)
    if left:
        raise ValueError(f"{info.filename!r} is not as long as its header says")
    target.chmod(0o755 if program or info.external_attr >> 16 & 0o111 else 0o644)


def _first(final: Path) -> str:
    """How a program begins that the venv's Python runs; Linux takes 127 bytes and no space for an interpreter."""
    python = f"{final}/bin/python"
    if " " not in python and len(os.fsencode(python)) <= 124:
        return f"#!{python}\n"
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} \"$0\" \"$@\"\n' '''\n"  # for sh a command, for Python a string


def _programs(archive: zipfile.ZipFile, final: Path) -> Iterator[tuple[str, str]]:
    """Name and text of the programs that a wheel declares (`console_scripts`).

    Raises:
        ValueError: A name or an object that none can have.
    """
    for info in archive.infolist():
        name = info.filename
        if not re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", name):
            continue
        if info.file_size > _LARGEST_LIST:
            raise ValueError(f"{name} of {info.file_size} bytes")
        parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names differ in case
        try:
            parser.read_string(archive.read(info).decode())
            declared = parser.items("console_scripts") if parser.has_section("console_scripts") else []
        except configparser.Error as error:
            raise ValueError(f"{name}: {error}") from None
        for program, what in declared:
            found = _OBJECT.fullmatch(what)
            if found is None or not re.fullmatch(r"\w[\w.+-]*", program):
                raise ValueError(f"{name}: {program!r} = {what!r}")
            module, call = found.groups()
            yield (
                program,
                _SCRIPT.format(first=_first(final), module=module, name=call.split(".")[0], call=call),
            )
