"""Images in an archive: taken from an engine layer by layer, each kept once, and given back to one.

A layer lies there compressed with zstd. What an image is stays fixed by its configuration, whose hash is its id: it
lists the hash of every layer's uncompressed bytes, and each is checked before an engine is told of the image.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import threading
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from repromatrix.carry import folder
from repromatrix.carry.format import BLOBS, Blob, Image
from repromatrix.envs.daemon import Daemon, daemon_errors
from repromatrix.envs.disk import no_room
from repromatrix.envs.wheels import Cancelled
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.share.archives import layout
from repromatrix.share.archives.layers import SavedImage, Tapped, checked, read_saved
from repromatrix.share.archives.layout import Damaged, Layer
from repromatrix.share.archives.transfer import loading, saved
from repromatrix.share.archives.tree import CHUNK, entries, flatten, tree_hash


def save(
    daemon: Daemon,
    image_id: str,
    reference: str,
    environment: str,
    root: Path,
    listener: Listener,
    cancel: threading.Event,
    beside: Iterable[Image] = (),
) -> Image:
    """Write an image of the engine into the archive's folder `root`, in one pass over what the engine sends.

    Nothing is held in memory, or on disk twice; no blob gets its name before it is whole. The caller holds the
    folder's lock.

    Args:
        image_id: As `envs.image.build` gave it.
        reference: Name to load it under, see `layout.name_of`.
        environment: Id of its environment, or empty for a base.
        beside: Images that the archive holds already: their layers are not compressed again.

    Raises:
        InfraError: The engine has no such image or failed, or the disk is full.
        Cancelled: `cancel` was set.
    """
    held = [image for image in beside if _whole(root, image)]
    for image in held:
        if f"sha256:{image.id}" == image_id:
            return replace(image, reference=reference, environment=environment)
    layers = {layer.diff_id: layer for image in held for layer in layout.read(root, image)[1]}
    saved_image, wrote = None, 0
    task = listener.start("save", reference, _inspect(daemon, image_id)["Size"], "B")
    try:
        with saved(daemon, image_id, cancel) as stream:
            found = read_saved(stream, root, layers, lambda chunk: task.advance(len(chunk)))
        saved_image = _add(root, found, reference, environment)
        wrote = sum(layer.blob.size for layer in found.layers if layer.diff_id not in layers)
        return saved_image
    except OSError as error:
        hint = "free some disk, or give a folder that you may write in"
        raise InfraError(f"the archive cannot be written: {error.strerror}", where=str(root), hint=hint) from error
    finally:
        task.finish(f"{wrote / 1e6:.0f} MB new" if saved_image else "failed")


def tree_of(daemon: Daemon, image_id: str, listener: Listener, cancel: threading.Event) -> str:
    """`tree_hash` of an image that the engine has: the same as `Image.tree` of the archive that it came from.

    Raises: as `save`.
    """
    task = listener.start("read", image_id, _inspect(daemon, image_id)["Size"], "B")
    try:
        with saved(daemon, image_id, cancel) as stream:
            return read_saved(stream, None, {}, lambda chunk: task.advance(len(chunk))).tree
    finally:
        task.finish()


def tree_in(root: Path, image: Image, cancel: threading.Event) -> str:
    """`tree_hash` of an image in the archive, from its layers as they lie there.

    Raises:
        Damaged: They are not what the image says.
        Cancelled: `cancel` was set.
    """

    def stop(_: bytes) -> None:
        if cancel.is_set():
            raise Cancelled("cancelled", where=image.reference)

    _, layers = layout.read(root, image)
    found = []
    for layer in layers:
        with checked(root, layer, image.reference) as stream:
            tapped = Tapped(stream, stop)
            try:
                found.append(tuple(entries(tapped)))
            except tarfile.TarError as error:
                raise Damaged(f"its layer {layer.blob.sha256} is no tar: {error}", where=image.reference) from error
            tapped.drain()
    return tree_hash(flatten(found))


def load(daemon: Daemon, root: Path, image: Image, listener: Listener, cancel: threading.Event) -> str:
    """Make sure that the engine has `image`, under `layout.name_of(image)`; returns what the engine calls it.

    That is `sha256:` and `image.id`, where the engine stores images as Docker always did; with containerd's store it is
    the hash of a manifest. Either way the configuration and every layer are those of the archive, hashed while they
    are sent; the engine learns that they are an image when all of them were right, and from nothing else.

    Raises:
        Damaged: The archive holds something else than it says.
        InfraError: The engine failed, or its disk is full.
        Cancelled: `cancel` was set; the engine has nothing new.
    """
    name = layout.name_of(image)
    config, layers = layout.read(root, image)
    manifest = layout.plain_manifest(Blob(image.id, len(config)), layers)
    ids = (f"sha256:{image.id}", f"sha256:{hashlib.sha256(manifest).hexdigest()}")
    if (there := _known(daemon, ids, name)) is not None:
        return there
    unique = {layer.diff_id: layer for layer in layers}
    size = sum(layer.size for layer in unique.values())
    _check_room(daemon, size)
    task = listener.start("load", name, size, "B")
    note = "failed"
    try:
        with loading(daemon, name, cancel) as stream, tarfile.open(fileobj=stream, mode="w|", bufsize=CHUNK) as tar:
            for layer in unique.values():
                with checked(root, layer, image.reference) as content:
                    tapped: Any = Tapped(content, lambda chunk: task.advance(len(chunk)))
                    tar.addfile(_member(f"{BLOBS}/{layer.diff_id}", layer.size), tapped)
                    tapped.drain()
            for path, text in _documents(image, name, config, manifest, layers).items():
                tar.addfile(_member(path, len(text)), BytesIO(text))
        there = _known(daemon, ids, name)
        if there is None:
            raise InfraError(f"the Docker daemon took {name} and does not have it as {ids[0]}", where=daemon.host)
        note = there.removeprefix("sha256:")[:12]
        return there
    except OSError as error:
        raise InfraError(f"the archive cannot be read: {error.strerror}", where=str(root)) from error
    finally:
        task.finish(note)


def _documents(image: Image, name: str, config: bytes, manifest: bytes, layers: tuple[Layer, ...]) -> dict[str, bytes]:
    """What follows the layers. Docker's own store reads `manifest.json`, containerd's `index.json`: both come last."""
    from docker.auth import INDEX_NAME  # by which containerd completes a name that has no host

    digest = hashlib.sha256(manifest).hexdigest()
    described: dict[str, Any] = {
        "mediaType": layout.MANIFEST,
        "digest": f"sha256:{digest}",
        "size": len(manifest),
        "annotations": {
            "io.containerd.image.name": f"{INDEX_NAME}/library/{name}",
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        },
    }
    legacy = {
        "Config": f"{BLOBS}/{image.id}",
        "RepoTags": [name],
        "Layers": [f"{BLOBS}/{layer.diff_id}" for layer in layers],
    }
    return {
        f"{BLOBS}/{image.id}": config,
        f"{BLOBS}/{digest}": manifest,
        "oci-layout": layout.oci_layout(),
        "index.json": json.dumps(layout.index_of([described])).encode(),
        "manifest.json": json.dumps([legacy]).encode(),
    }


def _member(path: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, 0o644
    return member


def _known(daemon: Daemon, ids: Iterable[str], name: str) -> str | None:
    """Which of `ids` the engine has, called `name` when this returns; None if it has neither."""
    from docker.errors import ImageNotFound

    for each in ids:
        with daemon_errors(daemon.host, f"look for {name}"):
            try:
                found = daemon.api.inspect_image(each)  # type: ignore[no-untyped-call]  # the stubs leave it bare
            except ImageNotFound:
                continue
            if name not in (found["RepoTags"] or ()):
                repository, _, tag = name.rpartition(":")
                daemon.api.tag(each, repository, tag)
        return each
    return None


def _inspect(daemon: Daemon, image_id: str) -> dict[str, Any]:
    with daemon_errors(daemon.host, f"look at {image_id}"):
        found: dict[str, Any] = daemon.api.inspect_image(image_id)  # type: ignore[no-untyped-call]  # bare in the stubs
    return found


def _check_room(daemon: Daemon, size: int) -> None:
    """Refuse what the engine's disk cannot take, where that is a disk of this machine.

    It unpacks the stream, then each layer out of it: twice `size`.
    """
    with daemon_errors(daemon.host, "say where it keeps images"):
        place = Path(str(daemon.api.info()["DockerRootDir"]))
    if daemon.host.startswith("unix:") and place.is_dir() and (free := shutil.disk_usage(place).free) < 2 * size:
        raise no_room(place, 2 * size, free)


def _whole(root: Path, image: Image) -> bool:
    try:
        layout.read(root, image)
    except Damaged:
        return False
    return True


def _add(root: Path, found: SavedImage, reference: str, environment: str) -> Image:
    config = folder.add(root, found.config)
    manifest = folder.add(root, layout.manifest(config, found.layers))
    return Image(environment, reference, manifest.sha256, config.sha256, found.tree)
