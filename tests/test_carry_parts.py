"""Parts: cut to size, whole in themselves, taken in any order, one at a time, and never mixed."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.carry import part as one
from repromatrix.carry.format import Manifest
from repromatrix.carry.incoming import Incoming, check_set, collect
from repromatrix.carry.part import Chunk, Part
from repromatrix.carry.parts import SMALLEST, cut, find, write
from repromatrix.carry.trouble import Damaged, Refused
from repromatrix.carry.verify import verify
from tests.archive_factory import FILES, make, tree

PLAIN = settings(deadline=None, max_examples=100)

NOISE = random.Random(5).randbytes(3_300_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "archive"
    root.mkdir()
    small = {f"project/many/{n}": b"%d" % n for n in range(300)}
    make(root, {**FILES, **small, "project/large": NOISE, "project/larger": NOISE[: 1 << 20]})
    return root


@pytest.fixture(scope="module")
def parts(whole: Path) -> list[Path]:
    return list(write(whole, verify(whole), whole.parent / "archive.parts", "tiny", SMALLEST))


@contextmanager
def scratch() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


@PLAIN
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 9 << 20)), max_size=40),
    limit=st.integers(SMALLEST, 20 << 20),
)
def test_cuts_cover_every_byte_once_and_no_part_is_too_large(sizes: list[int], limit: int) -> None:
    files = [(f"blobs/sha256/{n:064x}", size) for n, size in enumerate(sizes)]
    plan = cut(files, limit)
    assert all(plan) or not files
    reached = dict.fromkeys((path for path, _ in files), 0)
    seen = []
    for number, pieces in enumerate(plan, 1):
        chunks = tuple(Chunk(piece.file, piece.offset, piece.length, "f" * 64) for piece in pieces)
        part = Part("a" * 64, number, len(plan), chunks)
        assert part.size <= limit
        assert one.parse(one.render(part)) == part
        for piece in pieces:
            assert piece.offset == reached[piece.file]
            reached[piece.file] += piece.length
            seen.append(piece.file)
    assert reached == dict(files)
    assert list(dict.fromkeys(seen)) == [path for path, _ in files]


def test_a_large_file_in_a_large_part() -> None:
    plan = cut([("blobs/sha256/" + "a" * 64, 3 << 30)], 8 << 30)
    assert [[piece.length for piece in pieces] for pieces in plan] == [[1 << 30] * 3]


def test_parts_have_the_size_asked_for_and_the_sums_hold(whole: Path, parts: list[Path]) -> None:
    assert [path.name for path in parts] == [f"tiny.{n:04d}-of-{len(parts):04d}.part" for n in range(1, len(parts) + 1)]
    assert len(parts) > 4
    assert all(path.stat().st_size <= SMALLEST for path in parts)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "tiny.sha256"],
        cwd=parts[0].parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": OK") == len(parts)


def test_the_first_part_carries_the_manifest(whole: Path, parts: list[Path]) -> None:
    with tarfile.open(parts[0]) as tar:
        member = tar.extractfile("archive.json+0000000000000")
        assert member is not None
        assert member.read() == (whole / "archive.json").read_bytes()


def test_plain_tar_and_cat_get_the_files_too(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    """Should this tool be lost: `tar -xf` of every part, then `cat FILE+*`."""
    for path in parts:
        subprocess.run(["tar", "-xf", path], cwd=tmp_path, check=True)
    found: dict[str, bytes] = {}
    for piece in sorted(p for p in tmp_path.rglob("*+*")):
        name = str(piece.relative_to(tmp_path)).rpartition("+")[0]
        found[name] = found.get(name, b"") + piece.read_bytes()
    assert found == {str(p.relative_to(whole)): p.read_bytes() for p in whole.rglob("*") if p.is_file()}


def test_same_archive_same_parts(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    again = write(whole, verify(whole), tmp_path / "again", "tiny", SMALLEST)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in parts]


def test_new_parts_take_the_place_of_old_ones_and_of_nothing_else(whole: Path, tmp_path: Path) -> None:
    manifest, into = verify(whole), tmp_path / "parts"
    write(whole, manifest, into, "tiny", SMALLEST)
    fewer = write(whole, manifest, into, "tiny", 60_000_000)
    assert sorted(path.name for path in into.iterdir()) == [fewer[0].name, "tiny.sha256"]
    (into / "letter.txt").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(Refused, match=r"letter\.txt"):
        write(whole, manifest, into, "tiny", SMALLEST)
    with pytest.raises(Refused, match="too small"):
        write(whole, manifest, into, "tiny", SMALLEST - 1)
    assert tree(tmp_path) == before


def test_a_damaged_archive_is_not_cut(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    shutil.copytree(whole, root)
    manifest = verify(root)
    large = root / "blobs/sha256" / hashlib.sha256(NOISE).hexdigest()
    large.write_bytes(NOISE[:-1] + bytes([NOISE[-1] ^ 1]))
    before = tree(tmp_path)
    with pytest.raises(Damaged, match=large.name):
        write(root, manifest, tmp_path / "parts", "tiny", SMALLEST)
    assert tree(tmp_path) == before


@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_any_order_one_at_a_time_some_twice(whole: Path, parts: list[Path], data: st.DataObject) -> None:
    order = data.draw(st.permutations(parts))
    order += data.draw(st.lists(st.sampled_from(parts), max_size=3))
    with scratch() as incoming:
        taken: set[Path] = set()
        for path in order:
            come, lacking = collect([path], "", incoming)
            taken.add(path)
            assert len(lacking) == len(parts) - len(taken)
        assert come.complete() == verify(whole)
        assert tree(come.archive) == tree(whole)


@PLAIN
@given(data=st.data())
def test_every_changed_byte_of_a_part_is_found_in_it_alone(parts: list[Path], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(parts))
    content = path.read_bytes()
    # Most bytes are noise of chunks: half of the tries go to the tar's headers and the description.
    at = data.draw(st.integers(0, 6000) | st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = {
        "flip": content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :],
        "cut": content[:at],
        "insert": content[:at] + b"\0" * 512 + content[at:],
        "append": content + b"\0" * 512,
        "member": content[:-1024] + one.entry("extra", 0) + b"\0" * 1024,
        "swap": content[: at // 512 * 512] + content[at // 512 * 512 + 512 :] + content[at // 512 * 512 :][:512],
    }[data.draw(st.sampled_from(["flip", "cut", "insert", "append", "member", "swap"]))]
    if changed == content:
        return
    with scratch() as folder:
        spoiled = folder / path.name
        spoiled.write_bytes(changed)
        with pytest.raises(Damaged):
            one.check(spoiled)
        assert check_set([spoiled], alone=True).problems
        (folder / "incoming").mkdir()
        with pytest.raises(Damaged):
            collect([spoiled], "", folder / "incoming")
        assert tree(folder / "incoming") == {}


def test_what_is_no_part(tmp_path: Path) -> None:
    for name, content in (("letter", b"Dear all"), ("empty", b""), ("a.tar", one.entry("x", 0) + one.END)):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(Refused, match="neither an archive nor a part"):
            one.read(path)
    with pytest.raises(Refused, match="no such file"):
        find([tmp_path / "nothing"])


def test_a_renamed_part_is_one(parts: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "download (3)"
    shutil.copy(parts[2], path)
    assert one.check(path).number == 3


def test_parts_of_two_archives_never_mix(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make(tmp_path / "other", {"project/large": NOISE})
    other = list(write(tmp_path / "other", verify(tmp_path / "other"), tmp_path / "o.parts", "tiny", SMALLEST))
    with pytest.raises(Refused, match="two archives"):
        collect([parts[0], other[1]], "", tmp_path / "incoming")
    coarse = list(write(whole, verify(whole), tmp_path / "coarse", "tiny", 2 * SMALLEST))
    with pytest.raises(Refused, match="cut twice"):
        collect([parts[0], coarse[1]], "", tmp_path / "incoming")
    assert not (tmp_path / "incoming").exists()
    come, _ = collect([parts[0]], "", tmp_path / "incoming")
    before = tree(tmp_path / "incoming")
    with pytest.raises(Refused, match="cut twice"):
        collect([coarse[1]], "", tmp_path / "incoming")
    with pytest.raises(Refused, match="of the archive"):
        come.take(other[0])
    with pytest.raises(Damaged, match="expected"):
        collect([parts[1]], "f" * 64, tmp_path / "incoming")
    assert tree(tmp_path / "incoming") == before


def forged(path: Path, part: Part, contents: dict[Chunk, bytes]) -> Path:
    """A part that is right in itself, with the content that somebody hostile wants."""
    chunks = tuple(replace(chunk, sha256=hashlib.sha256(contents[chunk]).hexdigest()) for chunk in part.chunks)
    text = one.render(replace(part, chunks=chunks))
    out = one.entry(one.HEADER, len(text)) + text + b"\0" * one.padding(len(text))
    for chunk in part.chunks:
        data = contents[chunk]
        out += one.entry(chunk.member, len(data)) + data + b"\0" * one.padding(len(data))
    path.write_bytes(out + one.END)
    return path


def contents_of(path: Path) -> dict[Chunk, bytes]:
    found: dict[Chunk, bytes] = {}

    def keep(chunk: Chunk, _: int, data: bytes) -> None:
        found[chunk] = found.get(chunk, b"") + data

    part = one.check(path, write=keep)
    return {chunk: found.get(chunk, b"") for chunk in part.chunks}


@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_a_forged_part_is_found_when_all_are_here_and_can_be_replaced(
    whole: Path, parts: list[Path], data: st.DataObject
) -> None:
    victim = data.draw(st.sampled_from(parts))
    contents = contents_of(victim)
    chunk = data.draw(st.sampled_from([chunk for chunk in contents if contents[chunk]]))
    contents[chunk] = bytes([contents[chunk][0] ^ 1]) + contents[chunk][1:]
    with scratch() as folder:
        fake = forged(folder / victim.name, one.read(victim), contents)
        one.check(fake)
        every = [fake if path == victim else path for path in parts]
        assert [problem.where for problem in check_set(every).problems] == [chunk.file]
        come, lacking = collect(every, "", folder / "incoming")
        assert not lacking
        with pytest.raises(Damaged, match="must be taken again") as caught:
            come.complete()
        assert chunk.file in {problem.where for problem in caught.value.problems}
        collect(parts, "", folder / "incoming")
        assert come.complete() == verify(whole)
        assert tree(come.archive) == tree(whole)


BAD_CHUNKS = [
    Chunk("../outside", 0, 1, "0" * 64),
    Chunk("/etc/passwd", 0, 1, "0" * 64),
    Chunk("blobs/sha256/../../x", 0, 1, "0" * 64),
    Chunk("blobs/sha256/" + "A" * 64, 0, 1, "0" * 64),
    Chunk("blobs/sha256/" + "a" * 64, -1, 1, "0" * 64),
    Chunk("blobs/sha256/" + "a" * 64, 0, 1 << 40, "0" * 64),
    Chunk("blobs/sha256/" + "a" * 64, 1 << 60, 1, "0" * 64),
    Chunk("blobs/sha256/" + "a" * 64, 0, 1, "x"),
    Chunk("part.json", 0, 1, "0" * 64),
    Chunk(".bashrc", 0, 1, "0" * 64),
    Chunk("archive.json", True, 1, "0" * 64),
]


@pytest.mark.parametrize("chunk", BAD_CHUNKS, ids=range(len(BAD_CHUNKS)))
def test_chunks_that_no_part_may_hold(chunk: Chunk) -> None:
    with pytest.raises(ValueError, match=r"no file of an archive|bytes at|not the description"):
        one.parse(one.render(Part("a" * 64, 1, 1, (chunk,))))


def test_chunks_twice_or_over_one_another() -> None:
    blob = "blobs/sha256/" + "a" * 64
    for chunks in (
        (Chunk(blob, 0, 5, "0" * 64), Chunk(blob, 0, 5, "0" * 64)),
        (Chunk(blob, 0, 5, "0" * 64), Chunk(blob, 4, 5, "0" * 64)),
        (Chunk(blob, 0, 0, "0" * 64), Chunk(blob, 0, 0, "0" * 64)),
        (Chunk(blob, 5, 5, "0" * 64), Chunk("archive.json", 0, 5, "0" * 64)),
    ):
        with pytest.raises(ValueError, match="out of order"):
            one.parse(one.render(Part("a" * 64, 1, 1, chunks)))
    one.parse(one.render(Part("a" * 64, 1, 1, (Chunk(blob, 0, 5, "0" * 64), Chunk(blob, 5, 5, "0" * 64)))))


@pytest.mark.parametrize("numbers", [(0, 1), (2, 1), (1, 100_000), (-1, 3)])
def test_numbers_that_no_part_may_have(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="number"):
        one.parse(one.render(Part("a" * 64, *numbers, ())))


def test_nothing_is_written_through_links_where_parts_come_in(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    ident, outside = verify(whole).id, tmp_path / "outside"
    outside.mkdir()
    for place in ("archive", "parts", "archive/blobs", "archive/archive.json"):
        incoming = tmp_path / f"incoming-{place.replace('/', '-')}"
        link = incoming / ident / place
        link.parent.mkdir(parents=True)
        link.symlink_to(outside / "archive.json" if place.endswith(".json") else outside)
        with pytest.raises(OSError, match=r"link|symbolic"):
            collect(parts, "", incoming)
        assert tree(outside) == {}


def test_a_set_that_is_not_complete_says_what_is_missing(parts: list[Path]) -> None:
    lacking = check_set([parts[0], parts[3]])
    assert [problem.where for problem in lacking.problems] == [
        f"part {n} of {len(parts)}" for n in range(1, len(parts) + 1) if n not in (1, 4)
    ]
    assert len(check_set([parts[3]]).problems) == len(parts) - 1
    assert check_set([parts[3]], alone=True).problems == ()
    assert check_set([parts[3]], alone=True).what.startswith(f"part 4 of {len(parts)} of the archive ")
    assert check_set(parts).problems == ()
    assert check_set([*parts, parts[2]]).problems == ()


def test_a_second_copy_of_a_part_is_read_too(parts: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / parts[1].name
    content = bytearray(parts[1].read_bytes())
    content[-2000] ^= 1
    copy.write_bytes(content)
    assert [problem.where for problem in check_set([*parts, copy]).problems] == [copy.name]


def test_killed_while_it_takes_a_part(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    """Half of a part is on disk and no note says so: it is taken again, whole."""
    come, _ = collect(parts[:2], "", tmp_path)
    third = one.read(parts[2])
    for chunk in third.chunks:
        with (come.archive / chunk.file).open("ab") as file:
            file.write(b"torn")
    (come.root / "parts" / ".part").write_bytes(b'{"torn')
    come, lacking = collect(parts[2:], "", tmp_path)
    assert lacking == []
    with suppress(Damaged):  # bytes after the end of a file were none that a part brings
        come.complete()
    come, lacking = collect(parts, "", tmp_path)
    assert come.complete() == verify(whole)


def test_find(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    assert find([whole]).archive == whole
    assert find([parts[0].parent]).parts == tuple(parts)
    assert find([parts[1], parts[0]]).parts == (parts[1], parts[0])
    assert [find(each).alone for each in ([whole], [parts[0].parent], parts[:2], parts[:1])] == [False] * 3 + [True]
    with pytest.raises(Refused, match="taken together"):
        find([whole, parts[0]])
    assert find([tmp_path]).archive == tmp_path  # which `read` refuses, with its reason


def test_manifest_of_a_complete_set(whole: Path, parts: list[Path]) -> None:
    manifest: Manifest | None = check_set(parts).manifest
    assert manifest == verify(whole)
    assert check_set(parts[:2]).manifest is None


def test_incoming_forgets_a_damaged_note(parts: list[Path], tmp_path: Path) -> None:
    come, lacking = collect(parts, "", tmp_path)
    assert lacking == []
    (come.root / "parts" / "00002.json").write_text("{}")
    assert one.missing(Incoming(tmp_path, come.id).taken().values()) == [2]
