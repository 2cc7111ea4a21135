"""The format of an archive: its manifest as data, read strictly, and which paths it may name.

An archive is a folder. Every file that it carries lies once in `blobs/sha256/`; `archive.json` says what they are. The
folder is an OCI layout as well (`oci-layout`, `index.json`), so that other tools read its images.

Runs alone on Python 3.9, like everything in this package: `restore.pyz` in an archive is made of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from json.encoder import encode_basestring_ascii
from typing import Any

SCHEMA = 1
NAME = "archive.json"
BLOBS = "blobs/sha256"

ROOTS = ("README.md", "index.json", "oci-layout", "restore.pyz", "sbom.cdx.json", "statement.json")
"""Files beside `archive.json` in an archive's folder; nothing else may lie there but `blobs`."""

AREAS = ("project", "store", "results", "tool")
"""First part of the path of a carried file.

project: the checkout, without results. store: what the shared store gets (`store/wheels/<sha256>/<file name>`,
`store/bases/<name>`, `store/debs/<base>/<name>`). results: `results/attempts.jsonl` and
`results/evidence/<2 hex>/<key>/<number>/...`. tool: `tool/<python>/<wheel>`, what this tool needs to run.
"""

LARGEST = 1 << 40
"""Bytes that a single file may claim to have: one TiB."""

_HASH = re.compile(r"[0-9a-f]{64}")
_TEXT = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "manifest":\n(.*)\}\n', re.DOTALL)
_WORD = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")


class FormatError(ValueError):
    """The manifest is not what this version understands, or is dangerous; the text says where and why."""


class SchemaError(FormatError):
    """The manifest is whole, and of a later schema than this version reads."""


@dataclass(frozen=True)
class Blob:
    """Content: SHA-256 in hex, and bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class File:
    """A carried file: where it belongs (see `AREAS`), and its content.

    Attributes:
        executable: Whether it is a program.
    """

    path: str
    sha256: str
    size: int
    executable: bool = False


@dataclass(frozen=True)
class Image:
    """An image in the layout.

    Attributes:
        environment: Id of the environment it is for; empty for a base image.
        reference: Name that the engine gives it, `repromatrix:jax0.10.2-cpu-py311`.
        manifest: SHA-256 of its OCI manifest, a blob.
        id: SHA-256 of its configuration, a blob: what Docker calls the image's id.
        tree: Hash of its files (`share/archives/images.py`), the same however an engine stores or compresses them.
    """

    environment: str
    reference: str
    manifest: str
    id: str
    tree: str


@dataclass(frozen=True)
class Carried:
    """An environment that an archive holds whole.

    Attributes:
        lock: `Lock.hash`.
        wheels: SHA-256 of each; the files lie under `store/wheels/`.
        base: Hash of the base from Debian packages, or the reference of an official one, or empty where none is held.
        image: SHA-256 of the configuration of its image, or empty where none is held.
    """

    id: str
    lock: str
    python: str
    platform: str
    wheels: tuple[str, ...]
    base: str = ""
    image: str = ""


@dataclass(frozen=True)
class Manifest:
    """What an archive holds; every collection sorted, each thing once.

    Attributes:
        tool: Version of the tool that wrote it.
        created: RFC 3339, of the newest addition.
        environments: By id.
        files: By path.
        images: By reference.
        blobs: All, of files and of images, by hash.
        roots: Files beside it, by path (`ROOTS`).
        notes: What is missing and why, in words.
    """

    tool: str
    created: str
    environments: tuple[Carried, ...]
    files: tuple[File, ...]
    images: tuple[Image, ...]
    blobs: tuple[Blob, ...]
    roots: tuple[File, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """SHA-256, hex, that fixes the whole archive: who compares it with what the sender says needs no trust."""
        return hashlib.sha256(_canonical(self)).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.size for blob in self.blobs)


def render(manifest: Manifest) -> bytes:
    """The text of `archive.json`: its own hash, then the manifest. One text for one manifest."""
    body = _canonical(manifest)
    return b'{"sha256": "%s", "manifest":\n%s}\n' % (hashlib.sha256(body).hexdigest().encode(), body)


def parse(text: bytes) -> Manifest:
    """The manifest in the text of `archive.json`.

    Raises:
        FormatError: Not the very text that `render` writes for it, or it names what it must not.
        SchemaError: It has the hash that it states, and a later schema.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None
    if not isinstance(data, dict) or set(data) != {"sha256", "manifest"}:
        raise FormatError("not an archive's manifest")
    body = data["manifest"]
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema") if isinstance(body, dict) else None
        whole = _TEXT.fullmatch(text)
        sound = whole is not None and hashlib.sha256(whole[2]).hexdigest().encode() == whole[1]
        later = sound and type(found) is int and found > SCHEMA
        raise (SchemaError if later else FormatError)(f"schema {found!r}; this version reads {SCHEMA}")
    manifest: Manifest = _read(Manifest, {key: value for key, value in body.items() if key != "schema"}, "manifest")
    if render(manifest) != text:
        raise FormatError("damaged: it is not the text whose hash it states")
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    """Refuse what would be unsafe or ambiguous to restore.

    Raises:
        FormatError: A path that leaves its area, two files in one place, a content that is not among the blobs, a wheel
            that does not lie under its own hash, an environment whose wheels, base or image are not held, a negative or
            absurd size, a collection out of order.
    """
    for what, keys in (
        ("environments", [each.id for each in manifest.environments]),
        ("files", [each.path for each in manifest.files]),
        ("images", [each.reference for each in manifest.images]),
        ("blobs", [each.sha256 for each in manifest.blobs]),
        ("roots", [each.path for each in manifest.roots]),
    ):
        if any(a >= b for a, b in zip(keys, keys[1:])):  # noqa: B905, RUF007  # Python 3.9 has neither
            raise FormatError(f"{what} are not sorted, or one is there twice")
    sizes = {blob.sha256: blob.size for blob in manifest.blobs}
    for blob in manifest.blobs:
        if not _HASH.fullmatch(blob.sha256) or not 0 <= blob.size <= LARGEST:
            raise FormatError(f"blob {blob.sha256!r} of {blob.size} bytes")
    places = set()
    for file in manifest.files:
        check_path(file.path)
        places.add(file.path)
        if sizes.get(file.sha256) != file.size:
            raise FormatError(f"{file.path}: its content is not among the blobs")
        area, _, rest = file.path.partition("/")
        if area == "store" and rest.startswith("wheels/") and rest.split("/")[1] != file.sha256:
            raise FormatError(f"{file.path}: not the wheel that its place says")
    for path in places:
        if any(above in places for above in _above(path)):
            raise FormatError(f"{path}: a file lies where its folder should be")
    for root in manifest.roots:
        if root.path not in ROOTS:
            raise FormatError(f"{root.path}: not a file of an archive")
    for image in manifest.images:
        if image.manifest not in sizes or image.id not in sizes:
            raise FormatError(f"{image.reference}: its manifest or configuration is not among the blobs")
    store = {place for place in places if place.startswith("store/")}
    for environment in manifest.environments:
        _check_whole(environment, manifest, store)


def _check_whole(environment: Carried, manifest: Manifest, store: Set[str]) -> None:
    """Refuse an environment that is said to be held and is not.

    Args:
        store: Paths of the files of this area.
    """
    held = {place.split("/")[2] for place in store if place.startswith("store/wheels/")}
    if lacking := [sha256 for sha256 in environment.wheels if sha256 not in held]:
        raise FormatError(f"{environment.id}: {len(lacking)} of its wheels are not carried")
    if environment.image and environment.image not in {image.id for image in manifest.images}:
        raise FormatError(f"{environment.id}: its image is not carried")
    base = environment.base
    if _HASH.fullmatch(base):
        if lacking := [end for end in (".packages", ".tar.zst") if f"store/bases/{base}{end}" not in store]:
            raise FormatError(f"{environment.id}: its base {base} is not carried: no {' and no '.join(lacking)}")
    elif base and base not in {image.reference for image in manifest.images}:
        raise FormatError(f"{environment.id}: its base {base} is not carried")


def check_path(path: str) -> None:
    """Refuse a path that could lead out of its area, or that another system reads differently.

    Raises:
        FormatError: See there.
    """
    parts = path.split("/")
    if parts[0] not in AREAS or len(parts) < 2:
        raise FormatError(f"{path!r}: not below one of {', '.join(AREAS)}")
    if any(part in ("", ".", "..") or not _WORD.fullmatch(part) for part in parts) or len(path) > 1024:
        raise FormatError(f"{path!r}: not a plain path")
    if ".git" in (part.casefold() for part in parts):
        raise FormatError(f"{path!r}: git runs what lies there")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"{path!r}: not UTF-8") from None


def _above(path: str) -> Iterator[str]:
    """`a/b` and `a` for `a/b/c`."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def folded(files: Iterable[File]) -> list[str]:
    """Paths that differ in case alone: two files here, one on a file system that folds case."""
    seen: dict[str, str] = {}
    return [file.path for file in files if seen.setdefault(file.path.casefold(), file.path) != file.path]


def _canonical(manifest: Manifest) -> bytes:
    """What `json.dumps` gives with `indent=1` and sorted keys, in a third of its time: there may be 100,000 files."""
    body: dict[str, Any] = {each.name: getattr(manifest, each.name) for each in fields(manifest)}
    return _text({"schema": SCHEMA, **body}, "\n").encode()


def _text(value: Any, line: str) -> str:
    """`value` as JSON; `line` begins a line at its depth."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        items = [f"{encode_basestring_ascii(key)}: {_text(value[key], line + ' ')}" for key in sorted(value)]
        return f"{{{line} {f',{line} '.join(items)}{line}}}"
    if isinstance(value, tuple):
        return f"[{line} {f',{line} '.join([_text(each, line + ' ') for each in value])}{line}]" if value else "[]"
    return json.dumps(value)


_ITEMS: dict[str, Any] = {
    "environments": Carried,
    "files": File,
    "images": Image,
    "blobs": Blob,
    "roots": File,
    "wheels": str,
    "notes": str,
}
_KINDS: dict[str, type] = {"size": int, "executable": bool}


def _read(kind: Any, data: Mapping[str, Any], where: str) -> Any:
    """An instance of the dataclass `kind` from JSON: every field there, of its type, and no other."""
    names = {field.name for field in fields(kind)}
    if not isinstance(data, dict) or set(data) != names:
        raise FormatError(f"{where}: fields {sorted(data) if isinstance(data, dict) else data!r}")
    found: dict[str, Any] = {}
    for name in names:
        value = data[name]
        if name in _ITEMS:
            if not isinstance(value, list):
                raise FormatError(f"{where}.{name}: not a list")
            item = _ITEMS[name]
            if item is str:
                if not all(isinstance(each, str) for each in value):
                    raise FormatError(f"{where}.{name}: not a list of texts")
                found[name] = tuple(value)
            else:
                found[name] = tuple(_read(item, each, f"{where}.{name}[{n}]") for n, each in enumerate(value))
        else:
            wanted = _KINDS.get(name, str)
            if type(value) is not wanted:
                raise FormatError(f"{where}.{name}: {value!r} is not {wanted.__name__}")
            found[name] = value
    return kind(**found)
