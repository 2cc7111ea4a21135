"""The image an interpreter comes from: an official one pinned by digest, or the same kind built from Debian packages.

What was chosen is written down in the store, so that runs without a network use the same base, and results stay
comparable.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from repromatrix.envs import debian
from repromatrix.envs.daemon import connect
from repromatrix.envs.disk import write_text
from repromatrix.envs.images import Images
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.spec.model import Base, Matrix


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that holds an interpreter and what wheels need of the system.

    Attributes:
        id: What decides its content: the digest, or `sha256:` and the hash of the list of Debian packages.
        description: For reports: `Debian bookworm 9f1c2ab34d5e (mmdebstrap)`, or the reference.
        reference: What `FROM` takes.
        python: Minor version, `3.11`.
        zstd: Whether its `tar` can read zstd, so that packs can be sent compressed.
    """

    id: str
    description: str
    reference: str
    python: str
    zstd: bool = False


def declared(matrix: Matrix, python: str) -> Base:
    """What matrix.toml says of `python`, or the Debian release that has it.

    Raises:
        InfraError: Neither.
    """
    for base in matrix.bases:
        if base.python == python:
            return base
    if python in debian.RELEASES:
        return Base(python, None, debian.RELEASES[python])
    raise InfraError(
        f"no base image is known for Python {python}",
        where=str(matrix.path),
        hint=f'add [bases."{python}"] with `image = "python:{python}-slim-bookworm@sha256:..."`',
    )


def published(matrix: Matrix, python: str) -> BaseImage:
    """The base that committed Dockerfiles name: the same on every machine, with no engine asked.

    Raises:
        InfraError: See `declared`.
    """
    base = declared(matrix, python)
    if base.image is not None:
        return _official(base.image, python)
    # Whoever builds it passes what `resolve_base` found here: `--build-arg BASE=...`.
    return BaseImage("", f"Debian {base.debian}", f"repromatrix-base:{base.debian}", python, zstd=True)


def recorded(matrix: Matrix, python: str, store: Path) -> BaseImage | None:
    """The base that earlier runs of this machine chose for the same entry of matrix.toml; asks no one.

    Raises:
        InfraError: See `declared`; or the record is damaged.
    """
    path = _record(declared(matrix, python), store)
    try:
        return BaseImage(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise InfraError(
            f"the record of the chosen base is damaged: {error}",
            where=str(path),
            hint="delete it; the base is chosen anew",
        ) from error


def resolve_base(matrix: Matrix, python: str, images: Images, store: Path, listener: Listener) -> BaseImage:
    """A base that the engine has when this returns: pulled, imported or built if it must be.

    The official image where the engine has it or the registry gives it, else one from Debian packages.

    Args:
        store: Root of the store; `bases/` in it keeps what was built and what was chosen.

    Raises:
        InfraError: Neither can be had here; says what was tried.
    """
    base = declared(matrix, python)
    before = recorded(matrix, python, store)
    if base.image is not None and (before is None or before.reference == base.image):
        why = _obtain(base.image, images, listener)
        if not why:
            return _remember(_official(base.image, python), base, store)
        if base.debian is None:
            raise InfraError(
                f"the base image of Python {python} cannot be had: {why}",
                where=base.image,
                hint="connect the engine to a registry or mirror, `docker load` the image, or name a Debian release in "
                f'[bases."{python}"] to build one from packages',
            )
        listener.note(f"{base.image}: {why}; Python {python} comes from Debian {base.debian} packages instead")
    assert base.debian is not None
    made = debian.build(base.debian, store / "bases", listener)
    reference = debian.import_image(made, images)
    chosen = BaseImage(
        f"sha256:{made.hash}", f"Debian {base.debian} {made.hash[:12]} (mmdebstrap)", reference, python, zstd=True
    )
    if before is not None and before.id != chosen.id:
        listener.warn(f"the base of Python {python} changed: {before.description} -> {chosen.description}")
    return _remember(chosen, base, store)


def restored_name(reference: str) -> str:
    """What an official image is called that came out of an archive: `repromatrix-base:<digest>`.

    Only a pull gives an image its registry's digest, so that no engine finds a loaded one by its reference.
    """
    return f"repromatrix-base:{reference.rpartition('@sha256:')[2]}"


def local_name(base: BaseImage, images: Images) -> str:
    """The name under which the engine has `base`: its reference, or `restored_name`.

    Raises:
        InfraError: The engine does not answer.
    """
    if "@sha256:" not in base.reference or images.id_of(base.reference):
        return base.reference
    restored = restored_name(base.reference)
    return restored if images.id_of(restored) else base.reference


def resolve_digests(matrix: Matrix, host: str) -> dict[str, str]:
    """What the tags of the official images stand for today: reference with digest, by Python version.

    Args:
        host: Address of the Docker daemon, which asks the registry with its own mirrors and credentials.

    Raises:
        InfraError: No registry or no daemon answers.
    """
    found = {}
    for base in matrix.bases:
        if base.image is None:
            continue
        tag = base.image.partition("@")[0]
        why, digest = connect(host).digest(tag)
        if why:
            raise InfraError(
                f"the digest of {tag} cannot be had: {why}", hint="try again where a registry is reachable"
            )
        found[base.python] = f"{tag}@{digest}"
    return found


def _official(reference: str, python: str) -> BaseImage:
    return BaseImage(reference.rpartition("@")[2], reference, reference, python)


def _obtain(reference: str, images: Images, listener: Listener) -> str:
    """Make sure that the engine has the image; returns why not, or nothing."""
    if images.id_of(reference) or images.id_of(restored_name(reference)):
        return ""
    return images.obtain(reference, listener)


def _record(base: Base, store: Path) -> Path:
    key = hashlib.sha256(repr((base.python, base.image, base.debian, debian.RECIPE)).encode()).hexdigest()[:16]
    return store / "bases" / f"choice-{base.python}-{key}.json"


def _remember(chosen: BaseImage, base: Base, store: Path) -> BaseImage:
    path = _record(base, store)
    text = json.dumps(asdict(chosen), indent=1)
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
    return chosen
