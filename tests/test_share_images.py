"""Images in an archive: the same image back, each layer once, nothing damaged believed, nothing left of what failed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.carry import folder
from repromatrix.carry.format import BLOBS, Image
from repromatrix.envs.base import BaseImage, resolve_base
from repromatrix.envs.daemon import Daemon
from repromatrix.envs.image import build, known, tag
from repromatrix.envs.model import Lock
from repromatrix.envs.wheels import Cancelled, WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent, Task
from repromatrix.project import Project
from repromatrix.share.archives import images, layers, layout
from repromatrix.share.archives.layers import read_saved
from repromatrix.share.archives.layout import Damaged
from repromatrix.share.archives.tree import Entry, entries, flatten, tree_hash
from repromatrix.spec.model import Base, Matrix
from tests.docker_fixtures import PYTHON, inspect, lock_of, stored
from tests.fake_index import make_wheel

NEVER = threading.Event()


# ---- files out of layers ---------------------------------------------------------------------------------------------


def layer(*members: tuple[str, bytes | str, dict[str, Any]]) -> bytes:
    """A tar: text is a link's target, `folder/` a folder, bytes a file; the dict sets other fields."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content, fields in members:
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.mode = 0o755 if name.endswith("/") else 0o644
            if isinstance(content, str) and not name.endswith("/"):
                info.type, info.linkname = tarfile.SYMTYPE, content
            for field, value in fields.items():
                setattr(info, field, value)
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def files(*tars: bytes) -> dict[str, Entry]:
    return flatten(entries(io.BytesIO(tar)) for tar in tars)


def test_upper_layers_replace_remove_and_empty() -> None:
    low = layer(
        ("a/", "", {}), ("a/old", b"1", {}), ("a/kept", b"2", {}), ("b/", "", {}), ("b/x", b"3", {}), ("c", b"4", {})
    )
    up = layer(("a/", "", {}), ("a/.wh.old", b"", {}), ("b/", "", {}), ("b/.wh..wh..opq", b"", {}), ("b/new", b"5", {}))
    assert sorted(files(low, up)) == ["a", "a/kept", "b", "b/new", "c"]
    # A whiteout speaks of the layers below alone, wherever it stands in its own.
    assert sorted(files(low, layer(("b/new", b"", {}), (".wh.b", b"", {})))) == ["a", "a/kept", "a/old", "b/new", "c"]
    assert sorted(files(low, layer((".wh..wh..opq", b"", {}), ("only", b"", {})))) == ["only"]
    # A link where a folder was hides what that held.
    assert sorted(files(low, layer(("a", "b", {})))) == ["a", "b", "b/x", "c"]
    assert "a/old" in files(low, layer(("a/", "", {"mode": 0o700})))


def test_a_hard_link_is_the_file_that_it_names() -> None:
    linked = layer(("x", b"same", {}), ("y", b"", {"type": tarfile.LNKTYPE, "linkname": "./x"}))
    assert tree_hash(files(linked)) == tree_hash(files(layer(("./y", b"same", {}), ("./x", b"same", {}))))


def test_what_counts_in_a_tree_and_what_does_not() -> None:
    plain = tree_hash(files(layer(("a/", "", {}), ("a/x", b"1", {}))))
    assert tree_hash(files(layer(("a/", "", {"mtime": 9}), ("a/x", b"1", {"mtime": 7, "uname": "me"})))) == plain
    assert tree_hash(files(layer(("a/", "", {})), layer(("a/x", b"1", {})))) == plain
    seen = {plain}
    for fields in (
        {"mode": 0o755},
        {"uid": 1},
        {"gid": 1},
        {"pax_headers": {"SCHILY.xattr.security.capability": "x"}},
    ):
        seen.add(tree_hash(files(layer(("a/", "", {}), ("a/x", b"1", fields)))))
    seen.add(tree_hash(files(layer(("a/", "", {}), ("a/x", b"2", {})))))
    seen.add(tree_hash(files(layer(("a/", "", {}), ("a/x", "1", {})))))
    seen.add(tree_hash(files(layer(("a/", "", {}), ("a/x/", "", {})))))
    seen.add(tree_hash(files(layer(("a/", "", {}), ("a/x", b"1", {}), ("a/\udce4", b"", {})))))
    assert len(seen) == 9


TREES = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "c/e", "f"]), st.sampled_from([b"", b"1", b"22" * 600]), min_size=1
)


@given(TREES, st.data())
@settings(max_examples=60, deadline=None)
def test_the_tree_is_the_same_however_layers_hold_it(tree: dict[str, bytes], data: st.DataObject) -> None:
    """Files in one layer, or spread over three in any order with others that are removed again."""
    whole = tree_hash(files(layer(*((path, content, {}) for path, content in sorted(tree.items())))))
    order = data.draw(st.permutations(sorted(tree)))
    cut = data.draw(st.integers(0, len(order)))
    noise: tuple[str, bytes, dict[str, Any]] = ("c/noise", b"x", {})
    parts = [
        layer(noise, *((path, b"older", {}) for path in order[cut:])),
        layer(*((path, tree[path], {}) for path in order[:cut])),
        layer(("c/.wh.noise", b"", {}), *((path, tree[path], {}) for path in order[cut:])),
    ]
    assert tree_hash(files(*parts)) == whole


# ---- what engines save -----------------------------------------------------------------------------------------------

ONE, TWO = layer(("a", b"1" * 5000, {})), layer(("{b", b"2", {}), (".wh.a", b"", {}))


def config_of(*tars: bytes) -> bytes:
    diff_ids = [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    return json.dumps({"rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()


def saved_stream(*packed: bytes, config: bytes, legacy: bool = False) -> io.BytesIO:
    """What `docker save` writes: since 25 an OCI layout, before that a folder for each layer."""
    names = [
        f"{n}/layer.tar" if legacy else f"blobs/sha256/{hashlib.sha256(p).hexdigest()}" for n, p in enumerate(packed)
    ]
    digest = hashlib.sha256(config).hexdigest()
    name = f"{digest}.json" if legacy else f"blobs/sha256/{digest}"
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": names}]).encode()
    members = dict([*zip(names, packed, strict=True), (name, config), ("manifest.json", manifest), ("VERSION", b"1.0")])
    return io.BytesIO(layer(*((path, content, {}) for path, content in members.items())))


def test_every_release_and_store_of_docker_saves_the_same_image(tmp_path: Path) -> None:
    config = config_of(ONE, TWO)
    zipped = zstandard.ZstdCompressor(level=9).compress(TWO)
    streams = [
        saved_stream(ONE, TWO, config=config),
        saved_stream(gzip.compress(ONE, mtime=1), zipped, config=config),
        saved_stream(TWO, ONE, config=config, legacy=True),
    ]
    found = []
    for n, stream in enumerate(streams):
        root = tmp_path / str(n)
        root.mkdir()
        found.append(read_saved(stream, root, {}, len))
        assert [path.stat().st_mode & 0o777 for path in (root / BLOBS).iterdir()] == [0o644, 0o644]
    assert found[0] == found[1] == found[2]
    assert [each.diff_id for each in found[0].layers] == [hashlib.sha256(tar).hexdigest() for tar in (ONE, TWO)]
    assert found[0].tree == tree_hash(files(ONE, TWO))


def test_a_layer_that_the_configuration_does_not_state(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="not one whole image"):
        read_saved(saved_stream(ONE, ONE[:512] + TWO, config=config_of(ONE, TWO)), tmp_path, {}, len)


@pytest.mark.parametrize("cut", [700, 12_000, 21_000])
def test_a_stream_that_ends_early(tmp_path: Path, cut: int) -> None:
    whole = saved_stream(gzip.compress(os.urandom(9000), mtime=1), ONE, config=config_of(ONE, TWO)).getvalue()
    with pytest.raises(InfraError, match="the Docker daemon saved"):
        read_saved(io.BytesIO(whole[:cut]), tmp_path, {}, len)
    assert list(tmp_path.rglob("*.part")) == []


def test_a_layer_is_packed_the_same_however_it_arrives(tmp_path: Path) -> None:
    """Chunks of a stream vary; the blob must not, or an archive would hold a layer twice."""

    class Drops(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 700) if size and size > 0 else size)

    big = layer(*((f"f{n}", os.urandom(100) * 3000, {}) for n in range(12)))
    config = config_of(big)
    blobs = set()
    for n, kind in enumerate((io.BytesIO, Drops)):
        (tmp_path / str(n)).mkdir()
        stream = kind(saved_stream(big, config=config).getvalue())
        blobs.add(read_saved(stream, tmp_path / str(n), {}, len).layers[0].blob)
    assert len(blobs) == 1


# ---- what an archive says --------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Image]:
    """An archive of one image of two layers, as an engine saved it."""
    root = tmp_path / "archive"
    root.mkdir()
    found = read_saved(saved_stream(ONE, TWO, config=config_of(ONE, TWO)), root, {}, len)
    return root, images._add(root, found, "repromatrix:small", "small")


def test_the_layout_names_every_blob(small: tuple[Path, Image]) -> None:
    root, image = small
    blobs = layout.blobs_of(root, image)
    assert {blob.sha256 for blob in blobs} == {path.name for path in (root / BLOBS).iterdir()}
    assert all(folder.hash_of(folder.blob_path(root, blob.sha256)) == blob for blob in blobs)
    assert images.tree_in(root, image, NEVER) == image.tree
    (listed,) = json.loads(layout.index(root, [image]))["manifests"]
    assert listed["digest"] == f"sha256:{image.manifest}"
    assert listed["size"] == blobs[0].size
    assert listed["annotations"] == {"org.opencontainers.image.ref.name": "repromatrix:small"}


@pytest.mark.parametrize(
    "reference", ["ubuntu:latest", "python:3.11", "registry.test/x/repromatrix:a", "repromatrix:a b", ""]
)
def test_an_image_never_takes_the_name_of_anothers(small: tuple[Path, Image], reference: str) -> None:
    with pytest.raises(Damaged, match="not loaded"):
        layout.name_of(replace(small[1], reference=reference))


def test_names() -> None:
    image = Image("", "repromatrix:jax0.6.0-cpu-py311", "", "", "")
    assert layout.name_of(image) == "repromatrix:jax0.6.0-cpu-py311"
    official = replace(image, reference=f"python:3.11-slim-bookworm@sha256:{'1' * 64}")
    assert layout.name_of(official) == f"repromatrix-base:{'1' * 64}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", -1),
        ("size", float("inf")),
        ("size", "12"),
        ("digest", "sha256:../../../etc/passwd"),
        ("digest", None),
        ("mediaType", "application/vnd.oci.image.layer.v1.tar"),
        ("annotations", {layout.SIZE: str(1 << 70)}),
        ("annotations", {layout.SIZE: "-5"}),
        ("annotations", []),
    ],
)
def test_a_hostile_manifest_is_refused(small: tuple[Path, Image], key: str, value: object) -> None:
    root, image = small
    manifest = json.loads(folder.blob_path(root, image.manifest).read_bytes())
    manifest["layers"][1][key] = value
    changed = folder.add(root, json.dumps(manifest).encode())
    with pytest.raises(Damaged, match="not understood"):
        layout.read(root, replace(image, manifest=changed.sha256))


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"{}", b"[]", b"\xff", b'{"config": {"digest": 1}}', b'{"config": []}']
)
def test_a_document_that_is_no_manifest(small: tuple[Path, Image], text: bytes) -> None:
    root, image = small
    with pytest.raises(Damaged):
        layout.read(root, replace(image, manifest=folder.add(root, text).sha256))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_change_of_a_blob_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("archive")
    found = read_saved(saved_stream(ONE, TWO, config=config_of(ONE, TWO)), root, {}, len)
    image = images._add(root, found, "repromatrix:small", "small")
    path = data.draw(st.sampled_from(sorted((root / BLOBS).iterdir())))
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "append", "frame", "swap", "link", "remove"]))
    if how == "flip":
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    elif how == "append":
        content += data.draw(st.binary(min_size=1, max_size=9))
    elif how == "frame":
        content += zstandard.ZstdCompressor().compress(b"")  # unpacks to the same bytes
    elif how == "swap":
        other = data.draw(st.sampled_from(sorted({*(root / BLOBS).iterdir()} - {path})))
        content = bytearray(other.read_bytes())
    path.unlink()
    if how == "link":
        (root / "elsewhere").write_bytes(content)
        path.symlink_to(root / "elsewhere")
    elif how != "remove":
        path.write_bytes(content)
    with pytest.raises(Damaged):
        images.tree_in(root, image, NEVER)


def test_a_layer_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    """A bomb: a terabyte of zeros takes 30 MB; no more than the stated size is ever unpacked."""
    bomb = bytes(1 << 26)
    packed = folder.add(tmp_path, zstandard.ZstdCompressor().compress(bomb))
    config = folder.add(tmp_path, config_of(bomb))
    lying = layout.Layer(hashlib.sha256(bomb).hexdigest(), 10240, packed)
    manifest = folder.add(tmp_path, layout.manifest(config, [lying]))
    image = Image("x", "repromatrix:x", manifest.sha256, config.sha256, "")
    with layers.checked(tmp_path, lying, "x") as stream:
        assert len(stream.read(4096) + stream.read(4096)) == 8192
        with pytest.raises(Damaged, match="does not unpack to the 10240 bytes"):
            stream.read(4096)
    with pytest.raises(Damaged):
        images.tree_in(tmp_path, image, NEVER)


# ---- with an engine --------------------------------------------------------------------------------------------------


class Stops(Silent):
    """Sets `cancel` when the first bytes have passed."""

    def __init__(self) -> None:
        self.cancel = threading.Event()

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        return self

    def advance(self, amount: int) -> None:
        self.cancel.set()

    def finish(self, note: str = "") -> None:
        pass


@dataclass(frozen=True, slots=True)
class Two:
    """Two environments that share a wheel, in the engine and, in `root`, in an archive.

    Attributes:
        wrote: Names of the blobs that the second one added to those of the first.
    """

    base: BaseImage
    locks: tuple[Lock, ...]
    ids: tuple[str, ...]
    root: Path
    images: tuple[Image, ...]
    wrote: frozenset[str]


@pytest.fixture(scope="module")
def two(
    engine: Daemon, debian_base: BaseImage, docker_project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    made, store = tmp_path_factory.mktemp("wheels"), WheelStore(docker_project.store)
    plain = make_wheel(made, "carried", "1.0", {"carried/__init__.py": "def speak():\n    return 'still here'\n"})
    wheel = stored(store, plain, "2024-05-01T00:00:00Z")
    locks: list[Lock] = []
    ids: list[str] = []
    kept: list[Image] = []
    root = tmp_path_factory.mktemp("archive")
    before: set[str] = set()
    for version in ("0.0.71", "0.0.72"):
        jax = make_wheel(made, "jax", version, {"jax/__init__.py": f"__version__ = {version!r}\n"})
        lock = lock_of(wheel, stored(store, jax, "2025-04-16T00:00:00Z"), jax=version)
        locks.append(lock)
        forget(engine, lock, debian_base)
        ids.append(build(lock, debian_base, store, engine, Silent()))
        before = blob_names(root)
        kept.append(images.save(engine, ids[-1], tag(lock), lock.id, root, Silent(), NEVER, kept))
    wrote = frozenset(blob_names(root) - before)
    yield Two(debian_base, tuple(locks), tuple(ids), root, tuple(kept), wrote)
    for lock in locks:
        forget(engine, lock, debian_base)


def blob_names(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


def forget(engine: Daemon, lock: Lock, base: BaseImage) -> None:
    """Make the engine have no image of `lock`, of earlier sessions neither: they have other ids on other bases."""
    while (found := known(lock, base, engine)) is not None:
        engine.api.remove_image(found, force=True)


@pytest.mark.container
def test_the_same_image_comes_back(engine: Daemon, two: Two) -> None:
    image, lock, ident = two.images[0], two.locks[0], two.ids[0]
    assert f"sha256:{image.id}" == ident
    assert (image.reference, image.environment) == (tag(lock), lock.id)
    assert image.tree == images.tree_in(two.root, image, NEVER)
    forget(engine, lock, two.base)
    assert known(lock, two.base, engine) is None
    assert images.load(engine, two.root, image, Silent(), NEVER) == ident
    # The environment is known again by its labels: nothing has to be built.
    assert known(lock, two.base, engine) == ident
    assert images.tree_of(engine, ident, Silent(), NEVER) == image.tree
    assert inspect(engine, image.reference)["Id"] == ident
    argv = ["docker", "--host", engine.host, "run", "--rm", "--network=none", image.reference, "python", "-c"]
    argv += ["import carried; print(carried.speak())"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "still here\n"


@pytest.mark.container
def test_what_the_engine_has_is_not_sent_again(engine: Daemon, two: Two) -> None:
    image, ident = two.images[0], two.ids[0]
    images.load(engine, two.root, image, Silent(), NEVER)
    engine.api.tag(ident, "repromatrix", "another-name-71")
    engine.api.remove_image(image.reference)
    stops = Stops()
    assert images.load(engine, two.root, image, stops, stops.cancel) == ident
    assert not stops.cancel.is_set()
    assert image.reference in inspect(engine, ident)["RepoTags"]
    engine.api.remove_image("repromatrix:another-name-71")


@pytest.mark.container
def test_a_shared_layer_is_there_once(engine: Daemon, two: Two, tmp_path: Path) -> None:
    first, second = two.images
    # Manifest, configuration, and the layer with jax itself; the base and what both have is not written again.
    assert len(two.wrote) == 3
    assert sum(folder.blob_path(two.root, name).stat().st_size for name in two.wrote) < 20_000
    shared = set(layout.blobs_of(two.root, first)) & set(layout.blobs_of(two.root, second))
    assert sum(blob.size for blob in shared) > 30e6
    # In an archive of its own it has the same blobs: zstd is deterministic.
    images_ = [images.save(engine, two.ids[1], tag(two.locks[1]), two.locks[1].id, tmp_path, Silent(), NEVER)]
    assert images_ == [second]
    assert blob_names(tmp_path) == {blob.sha256 for blob in layout.blobs_of(two.root, second)}
    # What an archive holds whole is not asked of the engine again.
    stops = Stops()
    again = images.save(engine, two.ids[1], "repromatrix:b", "b", tmp_path, stops, stops.cancel, images_)
    assert again == replace(second, reference="repromatrix:b", environment="b")
    assert not stops.cancel.is_set()


@pytest.mark.container
def test_a_flipped_byte_is_refused(engine: Daemon, two: Two, tmp_path: Path) -> None:
    image = two.images[1]
    for blob in layout.blobs_of(two.root, image):
        folder.add(tmp_path, folder.blob_path(two.root, blob.sha256))
    forget(engine, two.locks[1], two.base)
    # In the last layer: all the others were sent when it is found.
    path = folder.blob_path(tmp_path, layout.read(tmp_path, image)[1][-2].blob.sha256)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match=path.name):
        images.load(engine, tmp_path, image, Silent(), NEVER)
    assert known(two.locks[1], two.base, engine) is None
    assert images.load(engine, two.root, image, Silent(), NEVER) == two.ids[1]


@pytest.mark.container
def test_cancelled_half_way_leaves_nothing(engine: Daemon, two: Two, tmp_path: Path) -> None:
    stops = Stops()
    with pytest.raises(Cancelled):
        images.save(engine, two.ids[0], "repromatrix:a", "a", tmp_path, stops, stops.cancel)
    assert blob_names(tmp_path) == set()
    forget(engine, two.locks[0], two.base)
    stops = Stops()
    with pytest.raises(Cancelled):
        images.load(engine, two.root, two.images[0], stops, stops.cancel)
    assert known(two.locks[0], two.base, engine) is None
    assert images.load(engine, two.root, two.images[0], Silent(), NEVER) == two.ids[0]


@pytest.mark.container
def test_an_image_that_is_not_there(engine: Daemon, tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="No such image"):
        images.save(engine, f"sha256:{'0' * 64}", "repromatrix:a", "a", tmp_path, Silent(), NEVER)


@pytest.mark.container
def test_an_official_base_comes_back_without_its_registry(
    engine: Daemon, debian_base: BaseImage, two: Two, docker_project: Project, tmp_path: Path
) -> None:
    container = engine.api.create_container(debian_base.reference)["Id"]
    ident = str(engine.api.commit(container, changes=["LABEL published=yes"])["Id"])
    engine.api.remove_container(container)
    reference = f"registry.invalid/python:3.11-slim@sha256:{hashlib.sha256(ident.encode()).hexdigest()}"
    base = images.save(engine, ident, reference, "", tmp_path, Silent(), NEVER, two.images)
    engine.api.remove_image(ident)
    matrix = Matrix(tmp_path / "matrix.toml", (), "release", bases=(Base(PYTHON, reference, None),))
    with pytest.raises(InfraError, match="cannot be had"):
        resolve_base(matrix, PYTHON, engine, tmp_path / "store", Silent())
    # No engine takes the digest of a registry for an image that it did not pull, so that it gets another name.
    assert images.load(engine, tmp_path, base, Silent(), NEVER) == ident
    chosen = resolve_base(matrix, PYTHON, engine, tmp_path / "store", Silent())
    assert (chosen.reference, chosen.zstd) == (reference, False)
    lock = replace(two.locks[0], as_of="latest")
    made = build(lock, chosen, WheelStore(docker_project.store), engine, Silent())
    found = inspect(engine, made)
    assert found["Config"]["Labels"]["org.repromatrix.base"] == reference
    assert found["Config"]["Labels"]["published"] == "yes"
    assert known(lock, chosen, engine) == made
    engine.api.remove_image(made, force=True)
    engine.api.remove_image(layout.name_of(base), force=True)
