"""The OCI layout that an archive is: its manifests, its index, and what of them is believed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repromatrix.carry import folder
from repromatrix.carry.format import LARGEST, Blob, Image
from repromatrix.envs.base import restored_name
from repromatrix.errors import ReproError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
COMPRESSED = f"{LAYER}+zstd"

SIZE = "org.repromatrix.size"
"""Annotation of a layer: bytes when it is not compressed, which a tar's header must state before them."""

LARGEST_DOCUMENT = 4 << 20
"""Bytes of a manifest or configuration; registries take no larger one."""

_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_OURS = re.compile(r"repromatrix:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_OFFICIAL = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,255}@sha256:[0-9a-f]{64}")


class Damaged(ReproError):
    """What an archive holds of an image is not what it says; the engine was told nothing of it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: SHA-256 of its uncompressed bytes and their number, and the blob that it lies in, compressed."""

    diff_id: str
    size: int
    blob: Blob


def name_of(image: Image) -> str:
    """The name that an engine gives it: never one that could stand for an image of another tool.

    An official base gets `envs.base.restored_name`.

    Raises:
        Damaged: Its reference is of neither kind.
    """
    if _OURS.fullmatch(image.reference):
        return image.reference
    if _OFFICIAL.fullmatch(image.reference):
        return restored_name(image.reference)
    raise Damaged(
        "an image of this name is not loaded: it could take the place of another",
        where=image.reference,
        hint="environments are called repromatrix:NAME, official bases NAME@sha256:DIGEST",
    )


def manifest(config: Blob, layers: Iterable[Layer]) -> bytes:
    """The OCI manifest: one text for one configuration and its compressed layers."""
    return _text(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [
                {**_descriptor(COMPRESSED, layer.blob), "annotations": {SIZE: str(layer.size)}} for layer in layers
            ],
        }
    )


def plain_manifest(config: Blob, layers: Iterable[Layer]) -> bytes:
    """The manifest of the same image with its layers uncompressed: what an engine is given."""
    plain = [_descriptor(LAYER, Blob(layer.diff_id, layer.size)) for layer in layers]
    return _text({"schemaVersion": 2, "mediaType": MANIFEST, "config": _descriptor(CONFIG, config), "layers": plain})


def index(root: Path, images: Iterable[Image]) -> bytes:
    """`index.json`: every image by its reference, in the given order.

    Raises:
        Damaged: A manifest is not there.
    """
    found = []
    for image in images:
        name = {"org.opencontainers.image.ref.name": image.reference}
        blob = Blob(image.manifest, len(_document(root, image.manifest, image.reference)))
        found.append({**_descriptor(MANIFEST, blob), "annotations": name})
    return _text(index_of(found))


def index_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """An OCI index of these descriptors."""
    return {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}


def oci_layout() -> bytes:
    """The file `oci-layout`, which says that a folder is one."""
    return b'{"imageLayoutVersion":"1.0.0"}'


def blobs_of(root: Path, image: Image) -> tuple[Blob, ...]:
    """Everything that `image` consists of: manifest, configuration and layers.

    Raises:
        Damaged: They are not all there, or not what they should be; the layers' content is not read.
    """
    config, layers = read(root, image)
    size = folder.blob_path(root, image.manifest).stat().st_size
    return (Blob(image.manifest, size), Blob(image.id, len(config)), *dict.fromkeys(layer.blob for layer in layers))


def read(root: Path, image: Image) -> tuple[bytes, tuple[Layer, ...]]:
    """The configuration of `image`, and its layers from the lowest to the highest.

    Raises:
        Damaged: See `blobs_of`.
    """
    where = image.reference
    outer = _json(_document(root, image.manifest, where), where)
    config = _document(root, image.id, where)
    try:
        if outer["config"]["digest"] != f"sha256:{image.id}":
            raise Damaged("its manifest is of another image", where=where)
        diffs = [_hash(text) for text in _json(config, where)["rootfs"]["diff_ids"]]
        layers = [_layer(diff, described) for diff, described in zip(diffs, outer["layers"], strict=True)]
    except (LookupError, TypeError, ValueError) as error:
        raise Damaged(f"its manifest or configuration is not understood ({error})", where=where) from error
    for layer in layers:
        if not folder.holds(root, layer.blob):
            raise Damaged(f"its layer {layer.blob.sha256} is missing or cut short", where=where)
    return config, tuple(layers)


def _layer(diff_id: str, described: Mapping[str, Any]) -> Layer:
    if described["mediaType"] != COMPRESSED:
        raise ValueError(f"a layer of type {described['mediaType']}")
    size, packed = int(described["annotations"][SIZE]), described["size"]
    if type(packed) is not int or not (0 <= size <= LARGEST and 0 <= packed <= LARGEST):
        raise ValueError(f"a layer of {size} bytes in {packed!r}")
    return Layer(diff_id, size, Blob(_hash(described["digest"]), packed))


def _hash(text: str) -> str:
    match = _HASH.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no digest")
    return match[1]


def _document(root: Path, sha256: str, where: str) -> bytes:
    path = folder.blob_path(root, sha256)
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST_DOCUMENT:
            raise Damaged(f"{sha256} is no manifest or configuration", where=where)
        text = path.read_bytes()
    except OSError as error:
        raise Damaged(f"{sha256} cannot be read: {error.strerror}", where=where) from error
    if hashlib.sha256(text).hexdigest() != sha256:
        raise Damaged(f"{sha256} is not what its name says", where=where)
    return text


def _json(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"a manifest or configuration is not JSON: {error}", where=where) from error
    if not isinstance(found, dict):
        raise Damaged("a manifest or configuration is not a JSON object", where=where)
    return found


def _descriptor(kind: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{blob.sha256}", "size": blob.size}


def _text(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()
