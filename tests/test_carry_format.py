"""The manifest of an archive: one text for one manifest, and nothing in it that would be unsafe to restore."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.carry.format import (
    SCHEMA,
    Blob,
    Carried,
    File,
    FormatError,
    Image,
    Manifest,
    check_path,
    folded,
    parse,
    render,
)

A, B, C = (letter * 64 for letter in "abc")
WHEEL = File(f"store/wheels/{A}/jax-0.10.2-py3-none-any.whl", A, 3)
ONE = Carried("jax0.10.2-cpu-py311", "d" * 64, "3.11", "x86_64-manylinux_2_28", (A,))
MANIFEST = Manifest(
    tool="0.1.0",
    created="2026-11-30T10:00:00Z",
    environments=(ONE,),
    files=(File("project/repros/crash.py", B, 5, executable=True), WHEEL),
    images=(Image("jax0.10.2-cpu-py311", "repromatrix:jax0.10.2-cpu-py311", B, C, "e" * 64),),
    blobs=(Blob(A, 3), Blob(B, 5), Blob(C, 0)),
    roots=(File("README.md", C, 7),),
    notes=("no Debian packages",),
)


def test_what_is_written_is_read_again() -> None:
    assert parse(render(MANIFEST)) == MANIFEST
    assert json.loads(render(MANIFEST))["sha256"] == MANIFEST.id
    assert MANIFEST.size == 8


@given(st.lists(st.text(max_size=8), max_size=3), st.booleans(), st.integers(0, 1 << 40))
def test_the_text_is_plain_json(notes: list[str], program: bool, size: int) -> None:
    """Written by hand for speed, and the bytes of `json.dumps` all the same: the id depends on each."""
    file = File("".join(notes), A, size, executable=program)
    manifest = replace(MANIFEST, notes=tuple(notes), files=(file, *MANIFEST.files), images=())
    body = {"schema": SCHEMA, **asdict(manifest)}
    text = json.dumps(body, indent=1, sort_keys=True, ensure_ascii=True).encode()
    assert hashlib.sha256(text).hexdigest() == manifest.id
    assert render(manifest) == b'{"sha256": "%s", "manifest":\n%s}\n' % (manifest.id.encode(), text)


@given(st.data())
def test_every_changed_byte_is_found(data: st.DataObject) -> None:
    text = bytearray(render(MANIFEST))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        parse(bytes(text))


@given(st.integers(0, len(render(MANIFEST)) - 1))
def test_every_cut_is_found(at: int) -> None:
    with pytest.raises(FormatError):
        parse(render(MANIFEST)[:at])


@pytest.mark.parametrize("text", [b"[]", b"{}", b"null", b'{"sha256": "", "manifest": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_told(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse(text)


def test_a_later_schema_is_told() -> None:
    text = render(MANIFEST).replace(b'"schema": %d' % SCHEMA, b'"schema": 99')
    with pytest.raises(FormatError, match="schema 99; this version reads 1"):
        parse(text)


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "project/../../x", "project/./x", "project//x", "project/", "project", "", "."),
        *("other/x", "project/a\\b", "project/a\nb", "project/a\0b", "project/\ud800", "project/" + "a" * 256),
        *("project/" + "a/" * 600 + "b", "project/.git/hooks/pre-commit", "project/x/.GIT/config"),
    ],
)
def test_dangerous_paths_are_refused(path: str) -> None:
    with pytest.raises(FormatError):
        check_path(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": (WHEEL, WHEEL)}, "files are not sorted, or one is there twice"),
        ({"files": (replace(WHEEL, size=4),)}, "its content is not among the blobs"),
        ({"files": (replace(WHEEL, path=f"store/wheels/{B}/x.whl"),)}, "not the wheel that its place says"),
        ({"files": (File("project/x", B, 5), File("project/x/y", B, 5), WHEEL)}, "a file lies where its folder"),
        ({"files": (MANIFEST.files[0],)}, "1 of its wheels are not carried"),
        ({"blobs": (Blob(A, 3), Blob(B, 5), Blob(C, -1))}, "of -1 bytes"),
        ({"blobs": (Blob(A, 3), Blob(B, 5))}, "its manifest or configuration is not among the blobs"),
        ({"files": (MANIFEST.files[0], File("tool/3.11/x.whl", A, 3))}, "1 of its wheels are not carried"),
        ({"environments": (replace(ONE, image=B),)}, "its image is not carried"),
        ({"environments": (replace(ONE, base=B),)}, "no .packages and no .tar.zst"),
        ({"environments": (replace(ONE, base="python:3.11@sha256:1"),)}, "its base python:3.11@sha256:1 is not"),
        ({"roots": (File("evil.sh", C, 7),)}, "evil.sh: not a file of an archive"),
    ],
)
def test_a_manifest_whose_hash_is_right_may_still_be_wrong(change: dict[str, tuple[object, ...]], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse(render(replace(MANIFEST, **change)))  # type: ignore[arg-type]  # each field has its own type


def test_paths_that_differ_in_case_are_told() -> None:
    assert folded([File("project/A", A, 1), File("project/b", A, 1), File("project/a", A, 1)]) == ["project/a"]
