"""Layers as they pass: out of an engine's stream into an archive, and out of the archive, each byte hashed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import zstandard

from repromatrix.carry import folder
from repromatrix.carry.format import BLOBS, Blob
from repromatrix.errors import InfraError
from repromatrix.share.archives.layout import LARGEST_DOCUMENT, Damaged, Layer
from repromatrix.share.archives.tree import CHUNK, Entry, entries, flatten, tree_hash

LEVEL = 3
THREADS = 2
"""Of zstd, for layers: fixed, so that one release of zstd makes the same blob of the same layer on every machine."""

Hear = Callable[[bytes], object]


class Tapped:
    """A stream that others hear while it is read."""

    def __init__(self, source: Any, *hear: Hear) -> None:
        self._source, self._hear = source, hear

    def read(self, size: int = -1) -> bytes:
        chunk: bytes = self._source.read(size)
        for each in self._hear:
            each(chunk)
        return chunk

    def drain(self) -> None:
        """Read what is left."""
        while self.read(CHUNK):
            pass


@dataclass(frozen=True, slots=True)
class SavedImage:
    """What an engine sent: the configuration as it is, the layers in their order, the hash of the files."""

    config: bytes
    layers: tuple[Layer, ...]
    tree: str


def read_saved(stream: IO[bytes], root: Path | None, known: Mapping[str, Layer], hear: Hear) -> SavedImage:
    """Read what `docker save` writes for one image, and put its layers into the archive at `root`.

    Every release lays that stream out in another way. So names decide little here: what is in a layer is told by its
    hash, which the configuration states.

    Args:
        root: None: nothing is written, and the blobs of the layers are empty.
        known: Layers that the archive holds, by diff id.
        hear: Told the layers' uncompressed bytes.

    Raises:
        InfraError: The stream does not hold the image, or is cut short.
        OSError: The archive cannot be written.
    """
    documents: dict[str, bytes] = {}
    layers: dict[str, Layer] = {}
    files: dict[str, tuple[Entry, ...]] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is None:
                    continue
                head: bytes = source.peek(512)[:512]  # type: ignore[attr-defined]  # a BufferedReader
                # A tar, too, may begin with a brace: its first file's name does. But zeros fill the name up.
                if head[:1] in (b"{", b"[") and b"\0" not in head and member.size <= LARGEST_DOCUMENT:
                    documents[member.name] = source.read()
                elif member.name.startswith("blobs/") or member.name.endswith("/layer.tar"):
                    name = PurePosixPath(member.name).name
                    layer, found = _take(_plain(source, head), None if name in known else root, hear)
                    layers[layer.diff_id], files[layer.diff_id] = known.get(layer.diff_id, layer), found
        Tapped(stream).drain()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InfraError(f"what the Docker daemon saved cannot be read: {error}") from error
    return _put_together(documents, layers, files)


def _put_together(
    documents: Mapping[str, bytes], layers: Mapping[str, Layer], files: Mapping[str, tuple[Entry, ...]]
) -> SavedImage:
    try:
        (about,) = json.loads(documents["manifest.json"])
        config = documents[about["Config"]]
        order = [text.removeprefix("sha256:") for text in json.loads(config)["rootfs"]["diff_ids"]]
        tree = tree_hash(flatten(files[diff_id] for diff_id in order))
        return SavedImage(config, tuple(layers[diff_id] for diff_id in order), tree)
    except (LookupError, TypeError, ValueError) as error:
        raise InfraError(
            f"what the Docker daemon saved is not one whole image (no {error})",
            hint="`docker save` it by hand and look; build the image again if that fails too",
        ) from error


def _plain(source: IO[bytes], head: bytes) -> Any:
    """The layer uncompressed: containerd's store keeps layers as a registry or BuildKit compressed them."""
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=source)
    if head[:4] == zstandard.FRAME_HEADER:
        return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
    return source


def _take(plain: Any, root: Path | None, hear: Hear) -> tuple[Layer, tuple[Entry, ...]]:
    digest, size = hashlib.sha256(), 0

    def count(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)

    with nullcontext() if root is None else _new_blob(root) as blob:
        tapped = Tapped(plain, digest.update, count, hear, *([blob[0]] if blob else []))
        found = tuple(entries(tapped))
        tapped.drain()
        return Layer(digest.hexdigest(), size, blob[1]() if blob else Blob("", 0)), found


class _Packed:
    """The compressed side of a new blob: hashed while it is written."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._digest, self.size = out, hashlib.sha256(), 0

    def write(self, chunk: bytes) -> int:
        self._digest.update(chunk)
        self.size += len(chunk)
        return self._out.write(chunk)

    @property
    def blob(self) -> Blob:
        return Blob(self._digest.hexdigest(), self.size)


@contextmanager
def _new_blob(root: Path) -> Iterator[tuple[Hear, Callable[[], Blob]]]:
    """(write, finish) of a new blob: what is written is compressed; without `finish` nothing is left of it."""
    (root / BLOBS).mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".layer-", suffix=folder.PART, dir=root / BLOBS)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            packed = _Packed(out)
            compressor = zstandard.ZstdCompressor(level=LEVEL, threads=THREADS, write_checksum=True)
            writer = compressor.stream_writer(packed, closefd=False)  # type: ignore[arg-type]  # it needs no more

            def finish() -> Blob:
                writer.close()  # type: ignore[no-untyped-call]  # bare in the stubs
                out.close()
                if folder.holds(root, packed.blob):
                    return packed.blob
                part.chmod(0o644)
                part.replace(folder.blob_path(root, packed.blob.sha256))
                return packed.blob

            yield writer.write, finish
    finally:
        part.unlink(missing_ok=True)


class _Checked:
    """A layer of the archive, uncompressed while it is read; its last byte is given when every byte was right."""

    def __init__(self, packed: IO[bytes], layer: Layer, where: str) -> None:
        self._layer, self._where = layer, where
        self._packed, self._plain, self._size = hashlib.sha256(), hashlib.sha256(), 0
        tapped: Any = Tapped(packed, self._packed.update)
        self._reader = zstandard.ZstdDecompressor().stream_reader(tapped, read_size=CHUNK, read_across_frames=True)

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer at the end; at most `CHUNK` where `size` is negative.

        Raises:
            Damaged: The layer is not what it should be.
        """
        chunk = self._next(size if size >= 0 else CHUNK)
        self._plain.update(chunk)
        self._size += len(chunk)
        if self._size >= self._layer.size or len(chunk) < size:
            self._check()
        return chunk

    def _next(self, size: int) -> bytes:
        try:
            return self._reader.read(size)
        except zstandard.ZstdError as error:
            raise self._damaged(f"cannot be unpacked: {error}") from error

    def _check(self) -> None:
        """All of it is read: no byte may be left, none may be wrong."""
        if self._size != self._layer.size or self._next(1):
            raise self._damaged(f"does not unpack to the {self._layer.size} bytes that it should have")
        if self._plain.hexdigest() != self._layer.diff_id or self._packed.hexdigest() != self._layer.blob.sha256:
            raise self._damaged("is not what its hash says")

    def _damaged(self, how: str) -> Damaged:
        return Damaged(f"its layer {self._layer.blob.sha256} {how}", where=self._where)


@contextmanager
def checked(root: Path, layer: Layer, where: str) -> Iterator[Tapped]:
    """The uncompressed bytes of a layer of the archive, each checked before the last is given.

    Args:
        where: The image that it is read for.

    Raises:
        Damaged: Also while it is read: it is not what its blob's hash, its size and its diff id say.
    """
    path = folder.blob_path(root, layer.blob.sha256)
    try:
        # Not through a link, which may lead to something else when it is next read.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise Damaged(f"its layer {layer.blob.sha256} cannot be read: {error.strerror}", where=where) from error
    with os.fdopen(handle, "rb") as packed:
        yield Tapped(_Checked(packed, layer, where))
