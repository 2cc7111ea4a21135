"""The packages that a base was made of, kept as a repository from which the very same base is made again.

A mirror drops a version when the next one is there, so what is not kept today cannot be had in a year. mmdebstrap
makes the same bytes of these packages as it made of the mirror's, with no network (seen with 1.3.5 on bookworm).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from repromatrix.envs.command import run_command
from repromatrix.errors import InfraError

_FIELDS = re.compile(r"^(Package|Version|Architecture): (.*)$", re.MULTILINE)

_FILES = re.compile(r"^Filename: \./(.*)\nSize: (\d+)$", re.MULTILINE)


def identities(text: str) -> list[str]:
    """`name=version=architecture` of every paragraph with a package in dpkg's format, sorted."""
    found = (dict(_FIELDS.findall(paragraph)) for paragraph in text.split("\n\n"))
    return sorted(f"{each['Package']}={each['Version']}={each['Architecture']}" for each in found if each)


def write_index(folder: Path, release: str) -> list[str]:
    """Make `folder`, which holds packages, a repository that apt reads; returns their `identities`.

    The same packages give the same index. It is not signed: what vouches for the packages is who keeps them, a store or
    an archive, whose manifest states their hashes.

    Args:
        release: Debian's code name, by which mmdebstrap finds the essential packages.

    Raises:
        InfraError: A package cannot be read.
        OSError: The index cannot be written.
    """
    paragraphs = []
    for path in sorted(folder.glob("*.deb")):
        status, control = run_command(["dpkg-deb", "--field", str(path)], timeout=60, hint="install the package dpkg")
        if status:
            raise InfraError(f"dpkg-deb cannot read the package: {control.strip()[-500:]}", where=str(path))
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        paragraphs.append(f"{control.strip()}\nFilename: ./{path.name}\nSize: {len(content)}\nSHA256: {sha256}\n")
    packages = "\n".join(paragraphs)
    (folder / "Packages").write_text(packages)
    summed = packages.encode()
    (folder / "Release").write_text(
        f"Origin: Debian\nSuite: {release}\nCodename: {release}\nDate: Wed, 01 Jan 2020 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(summed).hexdigest()} {len(summed)} Packages\n"
    )
    return identities(packages)


def complete(folder: Path) -> bool:
    """Whether every package that the index of `folder` names is there with its size; reads no content of them."""
    try:
        sizes = _FILES.findall((folder / "Packages").read_text())
        return bool(sizes) and all((folder / name).stat().st_size == int(size) for name, size in sizes)
    except OSError:
        return False


def local_source(folder: Path) -> str:
    """What mmdebstrap takes to use `folder`, as `write_index` left it, as its only source."""
    return f"deb [trusted=yes] copy://{quote(str(folder.absolute()))} ./"


@contextmanager
def readable(folder: Path) -> Iterator[Path]:
    """`folder` where mmdebstrap can read it, or a copy of it (45 MB) that lasts as long as the block.

    Without root, mmdebstrap is another user while it runs apt, from whom a home is usually closed.

    Raises:
        OSError: It cannot be copied.
    """
    if os.geteuid() == 0:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="repromatrix-debs-") as room:
        Path(room).chmod(0o755)
        copied = Path(room) / "debs"
        copied.mkdir(0o755)
        for path in folder.iterdir():
            shutil.copyfile(path, copied / path.name)
            (copied / path.name).chmod(0o644)
        yield copied
