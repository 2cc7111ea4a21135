"""Images that this tool built for locks which nothing refers to any more, as far as an engine tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from repromatrix.envs.daemon import LABEL, Daemon, address, connect, daemon_errors
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.share.upkeep.references import References

PATIENCE = 4
"""Seconds that an engine has to answer; without one nothing is said of images."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image with this tool's label.

    Attributes:
        names: Tags; empty for one that lost them to a newer build.
        size: Bytes as the engine tells, layers that other images share counted in.
        lock: Hash of its lock.
    """

    id: str
    names: tuple[str, ...]
    size: int
    lock: str


def engine() -> Daemon | None:
    """The Docker daemon, or None where none answers."""
    try:
        return connect(address(), timeout=PATIENCE)
    except InfraError:
        return None


def spare(daemon: Daemon, refers: References) -> tuple[Image, ...]:
    """Images of locks that this store's checkouts ran with once, and that neither a lock nor a result names now.

    Those of any other lock are left alone: the engine may serve other stores.

    Raises:
        InfraError: The engine failed.
    """
    with daemon_errors(daemon.host, "list its images"):
        listed = daemon.api.images(filters={"label": f"{LABEL}lock"})
    found = []
    for image in listed:
        lock = (image.get("Labels") or {}).get(f"{LABEL}lock", "")
        if lock in refers.ran and lock not in refers.locks:
            names = tuple(sorted(name for name in image.get("RepoTags") or () if name != "<none>:<none>"))
            found.append(Image(str(image["Id"]), names, int(image["Size"]), lock))
    return tuple(sorted(found, key=lambda image: image.id))


def drop(daemon: Daemon, images: Iterable[Image], listener: Listener) -> tuple[Image, ...]:
    """Remove `images`; those that a container uses stay, and the listener is told. Returns what went."""
    gone = []
    for image in images:
        try:
            with daemon_errors(daemon.host, f"remove the image {image.id[7:19]}"):
                # By its names where it has some: an id with two names is refused without force, which takes more.
                for name in image.names or (image.id,):
                    daemon.api.remove_image(name)
        except InfraError as error:
            listener.warn(error.line)
        else:
            gone.append(image)
    return tuple(gone)
