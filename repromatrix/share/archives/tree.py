"""The files of an image, out of its layers, and one hash over them that no engine and no compression changes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

CHUNK = 1 << 20
"""Bytes read at once, always exactly so many but at the end: zstd then gives the same bytes for the same layer."""

_KINDS = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}
_XATTR = "SCHILY.xattr."
_GONE = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a layer.

    Attributes:
        path: Without a leading or trailing slash; `.` is the root.
        kind: `file`, `folder`, `link`, `pipe`, a device, or `same` for a hard link.
        mode: Permission bits; 0 for a link, which has none.
        content: SHA-256 of a file, target of a link or hard link, numbers of a device, else empty.
        attributes: Extended attributes, sorted by name; a file's capabilities are one.
    """

    path: str
    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    content: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


def entries(layer: Any) -> Iterator[Entry]:
    """The entries of a layer's tar, in its order, reading it once from front to end mark.

    Args:
        layer: Anything with `read(size)`.

    Raises:
        tarfile.TarError: It is no tar, or cut short.
    """
    with tarfile.open(fileobj=layer, mode="r|", bufsize=CHUNK) as tar:
        for member in tar:
            yield _entry(tar, member)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    path = _plain(member.name)
    xattrs = ((name.removeprefix(_XATTR), text) for name, text in member.pax_headers.items() if name.startswith(_XATTR))
    attributes = tuple(sorted(xattrs))
    mode, uid, gid = member.mode & 0o7777, member.uid, member.gid
    if member.islnk():
        return Entry(path, "same", content=_plain(member.linkname))
    if member.issym():
        return Entry(path, "link", 0, uid, gid, 0, member.linkname, attributes)
    if not member.isreg():
        numbers = f"{member.devmajor}:{member.devminor}" if member.isdev() and not member.isfifo() else ""
        return Entry(path, _KINDS.get(member.type, "unknown"), mode, uid, gid, 0, numbers, attributes)
    digest = hashlib.sha256()
    source = tar.extractfile(member)
    assert source is not None
    for chunk in iter(lambda: source.read(CHUNK), b""):
        digest.update(chunk)
    return Entry(path, "file", mode, uid, gid, member.size, digest.hexdigest(), attributes)


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", ".")) or "."


def flatten(layers: Iterable[Iterable[Entry]]) -> dict[str, Entry]:
    """The files that a container sees, by path: each layer laid over those below it.

    A file `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` all that they have in its folder (OCI image
    specification, layer.md). A hard link becomes the file that it names: copied or linked, it reads the same.
    """
    found: dict[str, Entry] = {}
    for layer in layers:
        found = _laid_over(found, tuple(layer))
    return found


def _laid_over(below: Mapping[str, Entry], layer: tuple[Entry, ...]) -> dict[str, Entry]:
    gone, emptied, mine = set(), set(), []
    for entry in layer:
        folder, _, name = entry.path.rpartition("/")
        if name == _OPAQUE:
            emptied.add(folder)
        elif name.startswith(_GONE):
            gone.add(f"{folder}/{name.removeprefix(_GONE)}".lstrip("/"))
        else:
            mine.append(entry)
            if entry.kind != "folder" and (old := below.get(entry.path)) is not None and old.kind == "folder":
                gone.add(entry.path)
    found = {path: entry for path, entry in below.items() if not _hidden(path, gone, emptied)}
    for entry in mine:
        if entry.kind == "same" and (target := found.get(entry.content)) is not None:
            found[entry.path] = replace(target, path=entry.path)
        else:
            found[entry.path] = entry
    return found


def _hidden(path: str, gone: set[str], emptied: set[str]) -> bool:
    if not gone and not emptied:
        return False
    if path in gone:
        return True
    above = path
    while above:
        above = above.rpartition("/")[0]
        if above in gone or (above in emptied and path != "."):
            return True
    return False


def tree_hash(files: Mapping[str, Entry]) -> str:
    """SHA-256, hex, over path, kind, mode, owner, size, content and attributes of every file, in the order of paths.

    Times do not count: no program's result depends on them, and the time of an import is in them. How the files are
    spread over layers, and how those are compressed, does not count either.
    """
    found = hashlib.sha256()
    for path in sorted(files):
        entry = files[path]
        fields = [path, entry.kind, entry.mode, entry.uid, entry.gid, entry.size, entry.content, entry.attributes]
        found.update(json.dumps(fields).encode() + b"\n")
    return found.hexdigest()
