"""Whether an archive's folder holds exactly what its manifest states: every byte, and nothing else.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from repromatrix.carry.folder import BusyError, blob_path, hold
from repromatrix.carry.format import BLOBS, NAME, Blob, FormatError, Image, Manifest, SchemaError, parse
from repromatrix.carry.place import Progress, fault, no_progress, opened
from repromatrix.carry.trouble import Damaged, Problem, Refused

LARGEST_MANIFEST = 1 << 28
"""Bytes: a million files need about 200 MB."""

_PLACES = re.compile(
    r"store/wheels/[0-9a-f]{64}/[^/.][^/]*\.whl"
    r"|store/bases/[^/.][^/]*"
    r"|store/debs/[0-9a-f]{64}/[^/.][^/]*"
    r"|store/flags/[0-9a-f]{64}\.json"
    r"|results/attempts\.jsonl"
    r"|results/evidence/([0-9a-f]{2})/\1[0-9a-f]{62}/[1-9][0-9]{0,8}/.+"
    r"|tool/3\.[0-9]{1,3}/[^/.][^/]*\.whl"
    r"|project/.+"
)
"""Whole paths. What is made of wheels (trees, packs, venvs) must not come from elsewhere: nothing would check it."""

_NEVER = frozenset({".git", ".repromatrix", ".venv"})
"""Folders of a checkout that decide what runs next time, or that are this machine's own."""


def read(root: Path) -> Manifest:
    """The manifest of the archive in the folder `root`, checked in itself; no content is read.

    Raises:
        Refused: There is no archive, or a later release's.
        Damaged: The manifest is missing, damaged or dangerous.
        OSError: It cannot be read.
    """
    if not root.is_dir():
        raise Refused(f"{root}: there is no such folder")
    path = root / NAME
    try:
        with opened(path) as file:
            return parsed(_whole(file))
    except FileNotFoundError:
        if (root / BLOBS).exists():
            raise Damaged([Problem(NAME, "missing")]) from None
        raise Refused(
            f"{root} is no archive: it has no {NAME}", "give the folder of an archive, or parts of one"
        ) from None
    except OSError:
        if path.is_symlink() or not path.is_file():
            raise Damaged([Problem(NAME, "a link, or not a plain file")]) from None
        raise


def parsed(text: bytes) -> Manifest:
    """The manifest that `text` is, if an archive may have it.

    Raises:
        Refused: A later release wrote it in a form that this one does not know.
        Damaged: It is damaged or dangerous.
    """
    try:
        if len(text) > LARGEST_MANIFEST:
            raise FormatError(f"larger than {LARGEST_MANIFEST} bytes")
        manifest = parse(text)
    except SchemaError as error:
        raise Refused(
            f"{NAME}: written by a later release: {error}", "use the restore.pyz that came with it, or that release"
        ) from None
    except (FormatError, RecursionError) as error:
        raise Damaged([Problem(NAME, str(error))]) from None
    if wrong := misplaced(manifest):
        raise Damaged(wrong)
    return manifest


def _whole(file: BinaryIO) -> bytes:
    """The content of an open manifest, or the beginning of one that is too large."""
    parts, left = [], LARGEST_MANIFEST + 1
    while data := file.read(min(left, 1 << 20)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def misplaced(manifest: Manifest) -> list[Problem]:
    """Files whose place is none that an archive may fill."""
    found = []
    for file in manifest.files:
        inside = file.path.split("/")[1:]
        if not _PLACES.fullmatch(file.path) or (
            file.path.startswith("project/") and (inside[0].casefold() in _NEVER or _git(inside))
        ):
            found.append(Problem(file.path, "no place that an archive may fill"))
    return found


def _git(names: list[str]) -> bool:
    return any(name.casefold() == ".git" for name in names)


def check_id(ident: str, expect: str) -> None:
    """Compare the archive's id with what its sender says; an empty `expect` agrees with all.

    Raises:
        Refused: `expect` is no id.
        Damaged: It is another.
    """
    if not expect:
        return
    if not re.fullmatch(r"[0-9a-f]{64}", expect.lower()):
        raise Refused(f"--expect {expect!r} is no archive's id", "an id has 64 characters, 0-9 and a-f")
    if expect.lower() != ident:
        raise Damaged([Problem(NAME, f"the archive's id is {ident}, expected {expect.lower()}")])


def problems(root: Path, manifest: Manifest, progress: Progress = no_progress) -> tuple[Problem, ...]:
    """Everything in the folder that is not as `manifest` states, sorted; empty where all is well.

    Finds every byte, file, folder and link that was changed, removed, exchanged or added. Rights, times and owners are
    not the archive's. One thread per core: 1.2 GB/s each where SHA-256 has instructions of its own.

    Raises:
        BusyError: Somebody is writing into the archive.
        OSError: A file may not be read, so nobody knows.
    """
    with _at_rest(root):
        return _problems(root, manifest, progress)


@contextmanager
def _at_rest(root: Path) -> Iterator[None]:
    """Keep writers out meanwhile, where the file system has locks: what they do would be taken for damage."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(root, writing=False))
        except BusyError:
            raise
        except OSError:
            pass
        yield


def _problems(root: Path, manifest: Manifest, progress: Progress) -> tuple[Problem, ...]:
    listed = [(f"{BLOBS}/{blob.sha256}", blob) for blob in manifest.blobs]
    listed += [(file.path, Blob(file.sha256, file.size)) for file in manifest.roots]
    found = list(_strays(root, {path for path, _ in listed}))
    stop = threading.Event()

    def count(amount: int) -> None:
        if stop.is_set():
            raise InterruptedError("stopped")
        progress(amount)

    def check(item: tuple[str, Blob]) -> Problem | None:
        path, blob = item
        what = fault(root / path, blob.sha256, blob.size, count)
        return Problem(path, what) if what else None

    largest_first = sorted(listed, key=lambda item: -item[1].size)  # so that the threads end together
    with ThreadPoolExecutor(_cores()) as pool:
        try:
            found += [problem for problem in pool.map(check, largest_first) if problem]
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    sizes = {blob.sha256: blob.size for blob in manifest.blobs}
    if not found:
        for image in manifest.images:
            found += _image(root, image, sizes)
    return tuple(sorted(set(found), key=lambda problem: (problem.where, problem.what)))


def _cores() -> int:
    """Cores that this process may use; macOS cannot tell, and has them all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def verify(root: Path, expect: str = "", progress: Progress = no_progress) -> Manifest:
    """The manifest of the archive in `root`, of which every byte was read and is right.

    Raises:
        Refused, Damaged, OSError: See `read`, `check_id` and `problems`.
    """
    manifest = read(root)
    check_id(manifest.id, expect)
    if found := problems(root, manifest, progress):
        raise Damaged(found)
    return manifest


def _strays(root: Path, files: set[str]) -> Iterator[Problem]:
    """What lies in the folder and is none of `files`."""
    folders = [*BLOBS.split("/")]
    known = {"/".join(folders[: n + 1]) for n in range(len(folders))}
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = list(os.scandir(root / below))
        except NotADirectoryError:
            continue  # exchanged meanwhile: its files are then missing
        for entry in entries:
            path = f"{below}{entry.name}"
            if path in known:
                if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
                    yield Problem(path, "a link or a file lies where a folder should be")
                else:
                    pending.append(f"{path}/")
            elif path not in files and path != NAME:
                kind = "a link" if entry.is_symlink() else "a folder" if entry.is_dir() else "a file"
                yield Problem(path, f"{kind} that does not belong to it")


def _image(root: Path, image: Image, sizes: dict[str, int]) -> Iterator[Problem]:
    """Whether an image's manifest names its configuration, and layers that are in the archive."""
    where = f"{BLOBS}/{image.manifest}"
    try:
        with opened(blob_path(root, image.manifest)) as file:
            content = json.loads(_whole(file))
        named = [content["config"], *content["layers"]]
        digests = [(str(each["digest"]), each["size"]) for each in named]
    except (ValueError, LookupError, TypeError, RecursionError):
        yield Problem(where, f"not a manifest of the image {image.reference}")
        return
    if digests[0][0] != f"sha256:{image.id}":
        yield Problem(where, f"{image.reference}: another configuration than the archive states")
    for digest, size in digests:
        kind, _, sha256 = digest.partition(":")
        if kind != "sha256" or sizes.get(sha256) != size:
            yield Problem(where, f"{image.reference}: {digest} of {size} bytes is not in the archive")
