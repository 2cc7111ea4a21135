"""An archive put together from its parts: taken in any order, one at a time, whenever they come.

The folder of an archive that is coming in:

    archive/            its files, filled as parts come
    parts/00003.json    the description of a part whose content is in `archive/`, on disk

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from repromatrix.carry import part as one
from repromatrix.carry import verify
from repromatrix.carry.format import BLOBS, NAME, Manifest
from repromatrix.carry.part import Chunk, Part
from repromatrix.carry.parts import Whole
from repromatrix.carry.place import Progress, folder, need_room, no_progress, write_all
from repromatrix.carry.trouble import Damaged, Problem, Refused


def store() -> Path:
    """The store, by the rule of `project.py`; archives come in in its `incoming` unless a folder is named."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("REPROMATRIX_STORE") or cache / "repromatrix").expanduser().resolve()


def read_set(paths: Iterable[Path]) -> list[tuple[Path, Part]]:
    """The parts in the files `paths`, as their descriptions say, by number.

    Raises:
        Refused: They are of two archives, or of one that was cut in two ways; or one is no part.
        Damaged: Some are; all are looked at first.
        OSError: One cannot be read.
    """
    found: list[tuple[Path, Part]] = []
    wrong: list[Problem] = []
    for path in paths:
        try:
            found.append((path, one.read(path)))
        except Damaged as error:
            wrong += error.problems
            continue
        _agree(found[0][0].name, found[0][1], path.name, found[-1][1])
    if wrong:
        raise Damaged(wrong)
    found.sort(key=lambda item: item[1].number)
    for (path, part), (next_path, next_part) in zip(found, found[1:]):  # noqa: B905, RUF007  # Python 3.9 has neither
        _same(path.name, part, next_path.name, next_part)
    return found


def _agree(name: str, part: Part, other_name: str, other: Part) -> None:
    if part.archive != other.archive:
        raise Refused(
            f"{name} and {other_name} belong to two archives ({part.archive[:12]} and {other.archive[:12]})",
            "restore one after the other",
        )
    if part.count != other.count:
        raise Refused(
            f"{name} is one of {part.count} parts, {other_name} one of {other.count}: the archive was cut twice",
            "take all parts from the same cut",
        )


def _same(name: str, part: Part, other_name: str, other: Part) -> None:
    if part.number == other.number and part != other:
        raise Refused(f"{name} and {other_name} both are {part.name}, with other content", "take all from the same cut")


class _Stream:
    """The archive as its parts bring it, in order: its manifest first, which says what the rest must be."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.manifest: Manifest | None = None
        self.whole = Whole({})

    def feed(self, chunk: Chunk, at: int, data: bytes) -> None:
        if chunk.file == NAME:
            if at == len(self.text) <= verify.LARGEST_MANIFEST:
                self.text += data
        else:
            self.begin()
            self.whole.feed(chunk, at, data)

    def begin(self) -> Manifest:
        """The manifest, of which all has come by."""
        if self.manifest is None:
            self.manifest = verify.parsed(bytes(self.text))
            files = {file.path: (file.sha256, file.size) for file in self.manifest.roots}
            files.update({f"{BLOBS}/{blob.sha256}": (blob.sha256, blob.size) for blob in self.manifest.blobs})
            self.whole = Whole(files)
        return self.manifest

    def end(self, ident: str) -> list[Problem]:
        manifest = self.begin()
        other = [Problem(NAME, f"its id is {manifest.id}, the parts say {ident}")] if manifest.id != ident else []
        return other + self.whole.end()


@dataclass(frozen=True)
class Checked:
    """What reading parts to their last byte has shown.

    Attributes:
        archive: Id of their archive; empty where no part tells.
        what: What was read, in words.
        problems: What is wrong; parts that are missing too, unless one alone was named.
        manifest: Of the archive, where all parts are there and nothing is wrong.
    """

    archive: str
    what: str
    problems: tuple[Problem, ...]
    manifest: Manifest | None = None


def check_set(
    paths: Sequence[Path], expect: str = "", progress: Progress = no_progress, *, alone: bool = False
) -> Checked:
    """Read every byte of parts; where all are there, what they make together is held against the archive's manifest.

    Args:
        alone: One part was named for itself: the others may be elsewhere.

    Raises:
        Refused, OSError: See `read_set`.
    """
    count = f"{len(paths)} part{'s' * (len(paths) != 1)}"
    try:
        known = read_set(paths)
    except Damaged as error:
        return Checked("", count, error.problems)
    first = known[0][1]
    found: list[Problem] = []
    try:
        verify.check_id(first.archive, expect)
    except Damaged as error:
        found += error.problems
    lacking = one.missing(part for _, part in known)
    if not alone:
        found += [Problem(f"part {number} of {first.count}", "missing") for number in lacking]
    stream = None if lacking else _Stream()
    before = 0
    for path, part in known:
        whole = stream if part.number != before else None  # a part that is there twice comes by once
        before = part.number
        try:
            one.check(path, progress, whole.feed if whole else None)
        except Damaged as error:
            found += error.problems
            stream = None
    if stream is not None:
        try:
            found += stream.end(first.archive)
        except Damaged as error:
            found += error.problems
    what = f"{first.name if alone else count} of the archive {first.archive}"
    return Checked(first.archive, what, tuple(found), stream.begin() if stream and not found else None)


class Incoming:
    """An archive of which parts have come.

    Args:
        parent: Folder in which each such archive has a folder named by its id; made if missing.
    """

    def __init__(self, parent: Path, archive: str) -> None:
        self.id = archive
        self.root = parent / archive

    @property
    def archive(self) -> Path:
        """The archive's folder; whole when nothing is missing and `complete` has said so."""
        return self.root / "archive"

    def taken(self) -> dict[int, Part]:
        """The parts that have come, by number. A damaged note counts as none."""
        found = {}
        with suppress(FileNotFoundError):
            for path in sorted((self.root / "parts").iterdir()):
                with suppress(ValueError, OSError):
                    part = one.parse(path.read_bytes())
                    if part.archive == self.id:
                        found[part.number] = part
        return found

    def take(self, path: Path, progress: Progress = no_progress) -> Part:
        """Take a part, unless it has come already. What the disk loses of it afterwards, `complete` notices.

        Raises:
            Refused: It is no part, or of another archive or cut.
            Damaged: It is damaged; what came before is untouched.
            OSError: It cannot be read, or the disk is full.
        """
        part = one.check(path, progress)
        if part.archive != self.id:
            raise Refused(f"{path.name} is of the archive {part.archive[:12]}, not of {self.id[:12]}")
        for known in self.taken().values():
            _agree(path.name, part, known.name, known)
            _same(path.name, part, f"what came before as {known.name}", known)
            if known == part:
                return part
        self.root.mkdir(parents=True, exist_ok=True)
        need_room(self.root, part.content)
        with (
            folder(self.root, "archive", make=True) as top,
            folder(self.root, "archive", *BLOBS.split("/"), make=True) as blobs,
        ):
            self._write(path, part, top, blobs)
        with folder(self.root, "parts", make=True) as notes:
            note = os.open(".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=notes)
            with os.fdopen(note, "wb") as out:
                out.write(one.render(part))
            os.rename(".part", f"{part.number:05d}.json", src_dir_fd=notes, dst_dir_fd=notes)
        return part

    def _write(self, path: Path, part: Part, top: int, blobs: int) -> None:
        """Write the content of a part into the open folders of the archive."""
        name, out = "", -1

        def turn_to(file: str) -> int:
            nonlocal name, out
            if file != name:
                if out >= 0:
                    os.close(out)
                name, out = file, -1
            if out < 0 and file:
                place = blobs if file.startswith(BLOBS) else top
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                out = os.open(file.rpartition("/")[2], flags, 0o644, dir_fd=place)
            return out

        def write(chunk: Chunk, at: int, data: bytes) -> None:
            os.lseek(turn_to(chunk.file), at, os.SEEK_SET)
            write_all(out, data)

        try:
            one.check(path, write=write)  # once more: it may lie where it can change
        finally:
            turn_to("")

    def complete(self, progress: Progress = no_progress) -> Manifest:
        """The manifest of the archive, all of whose parts have come and every byte of which is right.

        Raises:
            Damaged: It is not; the parts that brought what is wrong count as not taken.
            OSError: It cannot be read.
        """
        try:
            manifest = verify.verify(self.archive, self.id, progress)
        except Damaged as error:
            again = self.forget({problem.where for problem in error.problems})
            wanted = [Problem(part.name, "must be taken again") for part in again]
            raise Damaged([*error.problems, *wanted]) from None
        return manifest

    def forget(self, files: Iterable[str]) -> list[Part]:
        """Remove `files` of the archive, and let the parts that hold pieces of them count as not taken."""
        wanted = set(files)
        again = [part for part in self.taken().values() if wanted & {chunk.file for chunk in part.chunks}]
        for part in again:
            (self.root / "parts" / f"{part.number:05d}.json").unlink(missing_ok=True)
            for file in wanted & {chunk.file for chunk in part.chunks}:
                (self.archive / file).unlink(missing_ok=True)
        return again

    def remove(self) -> None:
        """Remove it: what it held has been restored."""
        shutil.rmtree(self.root)


def collect(
    paths: Iterable[Path], expect: str, parent: Path, progress: Progress = no_progress
) -> tuple[Incoming, list[int]]:
    """Take the parts in the files `paths`.

    Returns:
        The archive that they belong to, and the numbers of the parts that it lacks.

    Raises:
        Refused, Damaged, OSError: See `read_set` and `Incoming.take`; what was taken before is kept.
    """
    known = read_set(paths)
    ident = known[0][1].archive
    verify.check_id(ident, expect)
    come = Incoming(parent, ident)
    for path, _ in known:
        come.take(path, progress)
    os.sync()  # whoever carries the parts may take them away now; once, as a part can have thousands of files
    return come, one.missing(come.taken().values())
