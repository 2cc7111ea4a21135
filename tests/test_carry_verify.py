"""Whatever is changed in an archive is found, and an archive in which anything is changed is not restored."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.carry import folder
from repromatrix.carry.format import Blob, File
from repromatrix.carry.place import fault
from repromatrix.carry.trouble import Damaged, Problem, Refused, listed, shown
from repromatrix.carry.unpack import unpack
from repromatrix.carry.verify import problems, read, verify
from tests.archive_factory import FILES, make, rewrite, tree

PLAIN = settings(deadline=None, max_examples=200)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "archive"
    root.mkdir()
    make(root)
    return root


@contextmanager
def copied(whole: Path) -> Iterator[Path]:
    """A copy of the archive to spoil, with nothing else around it."""
    with TemporaryDirectory() as scratch:
        root = Path(scratch) / "archive"
        shutil.copytree(whole, root)
        yield root


def refused(root: Path) -> tuple[Problem, ...]:
    """What `verify` finds; unpacking what it refuses must not be tried, so nothing is written."""
    before = tree(root.parent)
    with pytest.raises(Damaged) as caught:
        unpack(root, verify(root), root.parent / "new", None)
    assert tree(root.parent) == before
    assert caught.value.problems
    return caught.value.problems


def test_whole_archive_is_well(whole: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    manifest = verify(whole, expect=read(whole).id.upper(), progress=seen.append)
    assert sum(seen) == manifest.size + sum(file.size for file in manifest.roots)
    written = unpack(whole, manifest, tmp_path / "new", None)
    assert set(written) == {path.removeprefix("project/") for path in FILES if path.startswith("project/")}
    assert (tmp_path / "new/repros/one.py").read_bytes() == FILES["project/repros/one.py"]
    assert (tmp_path / "new/repros/one.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "new/repros/copy.py").stat().st_mode & 0o777 == 0o644


@PLAIN
@given(data=st.data())
def test_every_flipped_cut_or_added_byte_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as root:
        path = data.draw(st.sampled_from(sorted(p for p in root.rglob("*") if p.is_file())))
        content = path.read_bytes()
        changes: list[Callable[[], bytes]] = [lambda: content + data.draw(st.binary(min_size=1, max_size=9))]
        if content:
            at = data.draw(st.integers(0, len(content) - 1))
            flip = data.draw(st.integers(1, 255))
            changes.append(lambda: content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
            changes.append(lambda: content[:at])
            changes.append(lambda: content[:at] + b"\0" + content[at:])
        path.write_bytes(data.draw(st.sampled_from(changes))())
        where = str(path.relative_to(root))
        assert [problem.where for problem in refused(root)] == [where]


@PLAIN
@given(data=st.data())
def test_every_other_thing_in_the_folder_is_found(whole: Path, data: st.DataObject) -> None:
    with copied(whole) as root:
        files = sorted(p for p in root.rglob("*") if p.is_file())
        one, two = data.draw(st.lists(st.sampled_from(files), min_size=2, max_size=2, unique=True))
        into = data.draw(st.sampled_from([root, root / "blobs", root / "blobs/sha256"]))
        name = data.draw(
            st.sampled_from(["x", ".x.part", "f" * 64, "README.MD", "archive.json.bak", "\udcff", "blobs2"])
        )
        outside = root.parent / "outside"
        outside.write_bytes(one.read_bytes())

        def swap() -> None:
            one.rename(root / "aside")
            two.rename(one)
            (root / "aside").rename(two)

        def link() -> None:
            one.unlink()
            one.symlink_to(outside)  # the very content

        def link_folder() -> None:
            (root / "blobs").rename(root.parent / "blobs")
            (root / "blobs").symlink_to(root.parent / "blobs")

        def exchange_for_folder() -> None:
            one.unlink()
            one.mkdir()

        def exchange_for_pipe() -> None:
            one.unlink()
            os.mkfifo(one)

        changes: list[Callable[[], object]] = [
            one.unlink,
            swap,
            link,
            link_folder,
            exchange_for_folder,
            lambda: one.rename(into / name),
            lambda: shutil.copy(one, into / name),
            lambda: os.link(one, into / name),
            (into / name).mkdir,
            lambda: (into / name).symlink_to(one),
            lambda: (into / name).symlink_to("nowhere"),
            lambda: os.mkfifo(into / name),
            lambda: shutil.rmtree(root / "blobs"),
            exchange_for_pipe,
        ]
        change = data.draw(st.sampled_from(changes))
        if change is swap and one.read_bytes() == two.read_bytes():
            return
        change()
        refused(root)


def test_an_archive_that_is_being_written_is_not_called_damaged(whole: Path) -> None:
    manifest = read(whole)
    with folder.hold(whole), pytest.raises(folder.BusyError, match="writing into this archive"):
        problems(whole, manifest)
    with folder.hold(whole, writing=False):
        assert problems(whole, manifest) == ()


def test_what_is_no_archive_is_not_called_damaged(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(Refused):
            read(place)


def test_an_archive_of_a_later_release_is_not_called_damaged(whole: Path) -> None:
    """Only where it has the hash that it states: a flipped byte makes no later release."""
    path = whole / "archive.json"
    text = path.read_bytes()
    before, _, body = text.partition(b'"manifest":\n')
    later = body.replace(b'"schema": 1', b'"schema": 2')
    stated = hashlib.sha256(later[:-2]).hexdigest().encode()
    try:
        path.write_bytes(b'{"sha256": "%s", "manifest":\n%s' % (stated, later))
        with pytest.raises(Refused, match="written by a later release: schema 2"):
            read(whole)
        path.write_bytes(before + b'"manifest":\n' + later)
        with pytest.raises(Damaged):
            read(whole)
    finally:
        path.write_bytes(text)


def test_other_id(whole: Path) -> None:
    with pytest.raises(Damaged, match="expected"):
        verify(whole, expect="0" * 64)
    with pytest.raises(Refused, match="is no archive's id"):
        verify(whole, expect="abc")


HOSTILE = [
    "../outside",
    "/etc/passwd",
    "project/../../outside",
    "project//x",
    "project/.",
    "project/a\nb",
    "project/a\0b",
    "project/a\\b",
    "project/\udcff",
    "elsewhere/x",
    "project",
    "project/.git/hooks/post-checkout",
    "project/deep/.GIT/config",
    "project/.venv/bin/python",
    "project/.repromatrix/results.db",
    "project/matrix.toml/x",
    "store/venvs/x/bin/python",
    "store/trees/x",
    "store/tmp/x.lock",
    "store/wheels/" + "0" * 64 + "/x.whl",
    "store/wheels/" + "0" * 64 + "/a/x.whl",
    "store/bases/.hidden",
    "store/debs/x",
    "results/results.db",
    "results/evidence/00/" + "1" * 64 + "/1/stderr",
    "results/evidence/11/" + "1" * 64 + "/0/stderr",
    "tool/3.11/sub/x.whl",
    "tool/2.7/x.whl",
    "tool/3.11/x.tar.gz",
    "project/" + "a/" * 600 + "b",
]


@pytest.mark.parametrize("path", HOSTILE, ids=range(len(HOSTILE)))
def test_places_that_no_archive_may_fill(whole: Path, path: str) -> None:
    with copied(whole) as root:
        manifest = read(root)
        template = next(file for file in manifest.files if file.path == "project/repros/one.py")
        files = sorted([*manifest.files, replace(template, path=path)], key=lambda file: file.path)
        try:
            rewrite(root, manifest, files=tuple(files))
        except UnicodeEncodeError:
            pytest.skip("cannot be written down at all")
        assert {problem.where for problem in refused(root)} <= {"archive.json", path}


def test_sizes_that_the_manifest_does_not_state(whole: Path) -> None:
    with copied(whole) as root:
        manifest = read(root)
        blobs = tuple(replace(blob, size=blob.size + 1) for blob in manifest.blobs)
        files = tuple(replace(file, size=file.size + 1) for file in manifest.files)
        rewrite(root, manifest, blobs=blobs, files=files)
        assert len(refused(root)) == len(blobs)


def test_blobs_that_nothing_in_the_archive_hashes_to(whole: Path) -> None:
    with copied(whole) as root:
        manifest = read(root)
        for change in (
            {"blobs": (*manifest.blobs[:-1], Blob("f" * 64, 1 << 50))},
            {"blobs": tuple(reversed(manifest.blobs))},
            {"blobs": (manifest.blobs[0], *manifest.blobs)},
            {"files": (*manifest.files, manifest.files[-1])},
            {"roots": (File("../README.md", "0" * 64, 1),)},
            {"roots": (File("blobs", "0" * 64, 1),)},
            {"images": (replace(manifest.images[0], manifest="e" * 64),)},
            {"images": (replace(manifest.images[0], id=manifest.blobs[0].sha256),)},
        ):
            rewrite(root, manifest, **change)
            refused(root)


def test_image_with_a_layer_that_is_not_carried(whole: Path) -> None:
    with copied(whole) as root:
        manifest = read(root)
        image = manifest.images[0]
        document = json.loads(folder.blob_path(root, image.manifest).read_bytes())
        document["layers"][0]["digest"] = "sha256:" + "a" * 64
        other = folder.add(root, json.dumps(document).encode())
        folder.blob_path(root, image.manifest).unlink()
        blobs = {blob.sha256: blob for blob in manifest.blobs if blob.sha256 != image.manifest} | {other.sha256: other}
        rewrite(
            root,
            manifest,
            images=(replace(image, manifest=other.sha256),),
            blobs=tuple(blobs[sha256] for sha256 in sorted(blobs)),
        )
        assert "is not in the archive" in listed(refused(root))


@PLAIN
@given(data=st.data())
def test_manifest_with_any_field_changed_and_hashed_anew(whole: Path, data: st.DataObject) -> None:
    """Somebody who can compute hashes gains nothing but another id, or a refusal."""
    with copied(whole) as root:
        manifest = read(root)
        document = json.loads((root / "archive.json").read_bytes())
        body = document["manifest"]
        place = data.draw(
            st.sampled_from(["schema", "tool", "files", "blobs", "images", "roots", "environments", "notes"])
        )
        junk = st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.just("0" * 64),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
            max_leaves=4,
        )
        target = body[place]
        if isinstance(target, list) and target:
            item = data.draw(st.sampled_from(target))
            if isinstance(item, dict):
                item[data.draw(st.sampled_from(sorted(item)))] = data.draw(junk)
            else:
                target[0] = data.draw(junk)
        else:
            body[place] = data.draw(junk)
        text = json.dumps(body, indent=1, sort_keys=True, ensure_ascii=True).encode()
        sha256 = hashlib.sha256(text).hexdigest()
        (root / "archive.json").write_bytes(b'{"sha256": "%s", "manifest":\n%s}\n' % (sha256.encode(), text))
        before = tree(root.parent)
        if type(body["schema"]) is int and body["schema"] > 1:
            with pytest.raises(Refused):
                verify(root)
            return
        try:
            other = verify(root)
        except Damaged:
            assert tree(root.parent) == before
            return
        if other != manifest:
            with pytest.raises(Damaged):
                verify(root, expect=manifest.id)


def test_manifest_nested_beyond_measure(whole: Path) -> None:
    with copied(whole) as root:
        (root / "archive.json").write_bytes(b"[" * 200_000)
        assert [problem.where for problem in refused(root)] == ["archive.json"]


def test_names_in_problems_cannot_command_a_terminal() -> None:
    assert shown("a\x1b[2Jb\n\udcff") == "a\\x1b[2Jb\\n\\udcff"
    assert str(Problem("é", "x")) == "é: x"


def test_speed(tmp_path: Path) -> None:
    """500 MB/s a core, with room for a busy machine: a plain loop over `hashlib` is the measure."""
    path = tmp_path / "large"
    block = os.urandom(1 << 20)
    path.write_bytes(block * 100)
    digest = hashlib.sha256()
    start = time.process_time()
    for _ in range(100):
        digest.update(block)
    bare = time.process_time() - start
    start = time.process_time()
    assert fault(path, digest.hexdigest(), 100 << 20) == ""
    assert time.process_time() - start < 2 * bare + 0.1
