"""What an archive holds after an addition: manifests put together, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from repromatrix.carry.format import Blob, Carried, File, Image, Manifest, folded

EMPTY = Manifest("", "", (), (), (), (), ())
"""The archive before its first addition."""

NO_READERS = "nothing that reads stacks on Python "
"""Beginning of the note on a Python for which an archive lacks them; the version follows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Addition:
    """What an addition brings.

    Attributes:
        environments, files, images: New, or in the place of what had the same id, path or reference.
        whole: Folders: what the archive had in them and `files` does not name is gone.
        notes: What is missing that the manifest itself does not show; those on results begin with `results/`, those on
            what reads stacks with `NO_READERS`.
    """

    environments: tuple[Carried, ...]
    files: tuple[File, ...]
    images: tuple[Image, ...]
    whole: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def merged(old: Manifest, new: Addition, blobs_of: Callable[[Image], Iterable[Blob]], tool: str) -> Manifest:
    """The manifest after `new` was added to `old`, without its time and the files beside it.

    An environment that was locked anew takes the place of the old one: wheels that no other needs, and its image, go.
    One that comes without image or base keeps what the archive had of the same lock.

    Args:
        blobs_of: All blobs of an image, `share/archives/layout.py`.
        tool: Version of this tool.
    """
    before = {each.id: each for each in old.environments}
    environments = before | {each.id: _filled(each, before.get(each.id)) for each in new.environments}
    kept = {each.image for each in environments.values()}
    images = {image.reference: image for image in old.images if not image.environment or image.id in kept}
    images |= {image.reference: image for image in new.images}
    new = replace(new, files=tuple(_coming(old, new)))
    files = {file.path: file for file in _staying(old, new, environments)}
    files |= {file.path: file for file in new.files}
    blobs = {file.sha256: Blob(file.sha256, file.size) for file in files.values()}
    for image in images.values():
        blobs |= {blob.sha256: blob for blob in blobs_of(image)}
    found = Manifest(
        tool=tool,
        created="",
        environments=_by_key(environments),
        files=_by_key(files),
        images=_by_key(images),
        blobs=_by_key(blobs),
        roots=(),
    )
    seen = {f"{NO_READERS}{each.python}" for each in new.environments}
    stays = {note for note in old.notes if note.startswith(("results/", NO_READERS)) and note not in seen}
    notes = {*lacks(found), *new.notes, *stays}
    return replace(found, notes=tuple(sorted(notes)))


def _coming(old: Manifest, new: Addition) -> Iterator[File]:
    """Files of `new` without the locks of environments that only `old` holds: its wheels fit the lock that it has."""
    others = {each.id for each in old.environments} - {each.id for each in new.environments}
    theirs = {f"project/containers/locks/{ident}.txt" for ident in others}
    return (file for file in new.files if file.path not in theirs or not _has(old, file.path))


def _has(manifest: Manifest, path: str) -> bool:
    return any(file.path == path for file in manifest.files)


def _staying(old: Manifest, new: Addition, environments: Mapping[str, Carried]) -> Iterator[File]:
    """Files of `old` that `new` neither replaces nor ends."""
    given_up = _given_up(old, environments) - {file.sha256 for file in new.files}
    brought = {file.path for file in new.files}
    folders = {folder for path in brought for folder in _above(path)}
    for file in old.files:
        if file.path in brought or file.path in folders:  # a file then, a folder now
            continue
        if file.path.startswith("store/wheels/") and file.sha256 in given_up:
            continue
        if not any(folder in new.whole or folder in brought for folder in _above(file.path)):
            yield file


def _above(path: str) -> Iterator[str]:
    """`a`, `a/b` for `a/b/c`."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def lacks(manifest: Manifest) -> list[str]:
    """What an archive does not hold or cannot do, in words."""
    bases = sorted({each.base for each in manifest.environments if _is_hash(each.base)})
    paths = [file.path for file in manifest.files]
    found = [
        f"no Debian packages of the base {base}: it is held as built, and cannot be built anew from this archive"
        for base in bases
        if not any(path.startswith(f"store/debs/{base}/") for path in paths)
    ]
    if without := [each.id for each in manifest.environments if not each.image]:
        found.append(f"no image of {', '.join(without)}: built from the wheels where it is restored")
    if without := [each.id for each in manifest.environments if not each.base]:
        found.append(f"no base image for {', '.join(without)}: needs a registry or Debian packages, or engine venv")
    found += [f"a file system that folds case cannot hold {path} beside another" for path in folded(manifest.files)]
    if not any(path.startswith("tool/") for path in paths):
        found.append("no wheels of this tool: it must be installed where the archive is restored")
    return found


def _filled(new: Carried, old: Carried | None) -> Carried:
    """`new` with what the archive had of the same lock; an image on another base than the new one is none of it."""
    if old is None or old.lock != new.lock:
        return new
    base = new.base or old.base
    return replace(new, base=base, image=new.image or (old.image if old.base == base else ""))


def _is_hash(base: str) -> bool:
    return len(base) == 64 and base.isalnum()


def _given_up(old: Manifest, environments: Mapping[str, Carried]) -> set[str]:
    """Wheels of environments of `old` that none of `environments` has."""
    held = {sha256 for each in environments.values() for sha256 in each.wheels}
    return {sha256 for each in old.environments for sha256 in each.wheels} - held


def _by_key(found: Mapping[str, T]) -> tuple[T, ...]:
    return tuple(found[key] for key in sorted(found))
