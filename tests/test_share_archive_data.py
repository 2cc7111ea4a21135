"""The data of archives: blobs in a folder, manifests put together, the two statements of origin, the program inside."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.carry.folder import (
    BusyError,
    ContentError,
    add,
    blob_path,
    hold,
    holds,
    read_manifest,
    sweep,
    write_manifest,
)
from repromatrix.carry.format import Blob, Carried, File, FormatError, Image, Manifest, check
from repromatrix.share.archives.merge import EMPTY, NO_READERS, Addition, lacks, merged
from repromatrix.share.archives.provenance import sbom, statement
from repromatrix.share.archives.roots import restore_program
from tests.conftest import ROOT

PLATFORM = "x86_64-manylinux_2_28"
BASE = "b" * 64


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


# --- blobs ------------------------------------------------------------------------------------------------------------


def test_a_blob_is_written_once_and_read_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789" * 300_000)
    root, wrote = tmp_path / "archive", list[int]()
    blob = add(root, source, wrote=wrote.append)
    assert (blob, sum(wrote), len(wrote)) == (Blob(sha(source.read_bytes()), 3_000_000), 3_000_000, 3)
    place = blob_path(root, blob.sha256)
    assert place.read_bytes() == source.read_bytes()
    assert not place.samefile(source)  # a copy: an archive outlives a damaged store
    before = place.stat()
    assert add(root, source) == add(root, source.read_bytes()) == blob
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    source.unlink()
    assert add(root, source, blob) == blob  # known by its hash: not looked for
    assert holds(root, blob)
    assert not holds(root, replace(blob, size=blob.size + 1))


@pytest.mark.parametrize("wrong", [Blob(sha("other"), 7), Blob(sha("content"), 6), Blob(sha("content"), 8)])
def test_what_is_not_what_it_should_be_is_not_taken(tmp_path: Path, wrong: Blob) -> None:
    with pytest.raises(ContentError, match=f"expected {wrong.size} bytes"):
        add(tmp_path, b"content", wrong)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_one_writer_or_several_readers(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(BusyError), hold(tmp_path, writing=False):
        pass
    with hold(tmp_path, writing=False), hold(tmp_path, writing=False), pytest.raises(BusyError), hold(tmp_path):
        pass
    with hold(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_sweep_takes_what_nothing_names(tmp_path: Path) -> None:
    kept, gone = add(tmp_path, b"kept"), add(tmp_path, b"gone!")
    for litter in (tmp_path / ".archive.json.part", tmp_path / "blobs" / "sha256" / f".{gone.sha256}.part"):
        litter.write_bytes(b"half")
    assert sweep(tmp_path) == 0
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {kept.sha256, gone.sha256}
    assert sweep(tmp_path, {kept.sha256}) == 5
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {kept.sha256}


# --- manifests --------------------------------------------------------------------------------------------------------


def wheel(name: str) -> File:
    return File(f"store/wheels/{sha(name)}/{name}-1.0-py3-none-any.whl", sha(name), len(name))


def environment(ident: str, *wheels: str, lock: str = "", base: str = "", image: str = "") -> Carried:
    hashes = tuple(sorted(sha(name) for name in wheels))
    return Carried(ident, lock or sha("".join(hashes)), "3.11", PLATFORM, hashes, base, image)


def base_files() -> tuple[File, ...]:
    return tuple(File(f"store/bases/{BASE}{end}", sha(end), len(end)) for end in (".packages", ".tar.zst"))


def an_image(ident: str) -> Image:
    return Image(ident, f"repromatrix:{ident}", sha(f"{ident} manifest"), sha(f"{ident} config"), sha(f"{ident} tree"))


def blobs_of(image: Image) -> tuple[Blob, ...]:
    return (Blob(image.manifest, 10), Blob(image.id, 20), Blob(sha("a shared layer"), 30))


def after(old: Manifest, new: Addition) -> Manifest:
    found = merged(old, new, blobs_of, "1.0")
    check(found)
    return found


NAMES = st.sampled_from(["jax", "jaxlib", "numpy", "scipy", "ml_dtypes"])


@st.composite
def additions(draw: st.DrawFn) -> Addition:
    chosen = draw(st.dictionaries(st.sampled_from(["one", "two", "three"]), st.sets(NAMES, min_size=1), max_size=3))
    imaged = draw(st.sets(st.sampled_from(sorted(chosen)))) if chosen else set()
    environments = [
        environment(
            ident, *names, base=BASE if ident in imaged else "", image=an_image(ident).id if ident in imaged else ""
        )
        for ident, names in sorted(chosen.items())
    ]
    scripts = draw(st.dictionaries(st.sampled_from(["a.py", "b.py"]), st.text(max_size=3), max_size=2))
    files = [wheel(name) for name in sorted({name for names in chosen.values() for name in names})]
    files += base_files() if imaged else ()
    files += [File(f"project/{path}", sha(text), len(text.encode())) for path, text in sorted(scripts.items())]
    return Addition(tuple(environments), tuple(files), tuple(an_image(ident) for ident in sorted(imaged)))


@given(additions(), additions())
def test_an_addition_is_all_there_and_loses_nothing(first: Addition, second: Addition) -> None:
    """`check` holds for every manifest (in `after`), so no wheel, file or image is named whose content is not."""
    old = after(EMPTY, first)
    new = after(old, second)
    assert {each.id for each in new.environments} == {each.id for each in (*first.environments, *second.environments)}
    found = {each.id: each for each in new.environments}
    assert all(found[each.id].wheels == each.wheels for each in second.environments)
    assert {file for file in second.files if file in new.files} == set(second.files)
    changed = {file.path for file in second.files}
    kept = [file for file in old.files if file.path not in changed and not file.path.startswith("store/")]
    assert set(kept) <= set(new.files)
    assert {image.id for image in new.images} >= {each.image for each in new.environments} - {""}
    named = {file.sha256 for file in new.files} | {blob.sha256 for image in new.images for blob in blobs_of(image)}
    assert {blob.sha256 for blob in new.blobs} == named
    assert after(new, second) == new


@given(additions(), additions())
def test_the_order_of_additions_does_not_matter(first: Addition, second: Addition) -> None:
    mine = {each.id for each in first.environments}
    apart = replace(
        second,
        environments=tuple(each for each in second.environments if each.id not in mine),
        files=tuple(file for file in second.files if file.path.startswith("store/")),
        images=tuple(image for image in second.images if image.environment not in mine),
    )
    assert after(after(EMPTY, first), apart) == after(after(EMPTY, apart), first)


def test_an_environment_locked_anew_gives_up_its_wheels_and_its_image() -> None:
    config = an_image("one").id
    one = environment("one", "jax", "numpy", base=BASE, image=config)
    two = environment("two", "numpy")
    old = after(EMPTY, Addition((one, two), (wheel("jax"), wheel("numpy"), *base_files()), (an_image("one"),)))
    new = after(old, Addition((environment("one", "jaxlib"),), (wheel("jaxlib"),), ()))
    wheels = {file.path for file in new.files if file.path.startswith("store/wheels/")}
    assert {path.rpartition("/")[2].partition("-")[0] for path in wheels} == {"jaxlib", "numpy"}
    assert new.images == ()
    assert new.environments[0].image == ""
    # The same lock, added with --wheels-only: what was there stays.
    same = after(old, Addition((environment("one", "jax", "numpy"),), (wheel("jax"), wheel("numpy")), ()))
    assert replace(same, notes=()) == replace(old, notes=())


def test_an_image_stays_where_no_engine_gives_it_again() -> None:
    """A machine without Docker has the base in its store, and adds results or wheels to what another one wrote."""
    files = (wheel("jax"), *base_files())
    one = environment("one", "jax", base=BASE, image=an_image("one").id)
    old = after(EMPTY, Addition((one,), files, (an_image("one"),)))
    new = after(old, Addition((replace(one, image=""),), files, ()))
    assert replace(new, notes=()) == replace(old, notes=())
    other = "c" * 64
    moved = (File(f"store/bases/{other}.packages", sha("x"), 1), File(f"store/bases/{other}.tar.zst", sha("y"), 1))
    on_another = after(old, Addition((replace(one, image="", base=other),), (wheel("jax"), *moved), ()))
    assert on_another.environments[0].image == ""
    assert on_another.images == ()


def test_the_lock_of_an_environment_changes_with_its_wheels_alone() -> None:
    """Locked anew in the checkout, and not archived again: restored, its wheels must still be those of its lock."""
    path = "project/containers/locks/one.txt"
    lock, newer = File(path, sha("lock"), 4), File(path, sha("newer lock"), 10)
    one, again = environment("one", "jax"), environment("one", "jaxlib")
    old = after(EMPTY, Addition((one,), (wheel("jax"), lock), ()))
    two = Addition((environment("two", "numpy"),), (wheel("numpy"), newer), ())
    assert lock in after(old, two).files
    assert newer in after(EMPTY, two).files
    both = Addition((again, *two.environments), (wheel("jaxlib"), *two.files), ())
    assert newer in after(old, both).files


def test_the_wheels_of_the_tool_are_replaced_as_a_whole() -> None:
    old_tool = File("tool/3.11/rich-15.0.0-py3-none-any.whl", sha("rich 15"), 3)
    other = File("tool/3.12/rich-15.0.0-py3-none-any.whl", sha("rich 15"), 3)
    new_tool = File("tool/3.11/rich-16.0.0-py3-none-any.whl", sha("rich 16"), 3)
    old = after(EMPTY, Addition((), (old_tool, other), ()))
    new = after(old, Addition((), (new_tool,), (), whole=frozenset({"tool/3.11"})))
    assert new.files == (new_tool, other)


def test_a_file_may_become_a_folder_and_the_other_way_round() -> None:
    def project(*paths: str) -> tuple[File, ...]:
        return tuple(File(f"project/{path}", sha(path), 1) for path in paths)

    old = after(EMPTY, Addition((), project("docs/nix", "repros/a.py", "repros/b/c"), ()))
    new = after(old, Addition((), project("docs/nix/index.md", "repros/b"), ()))
    assert [file.path for file in new.files] == [
        "project/docs/nix/index.md",
        "project/repros/a.py",
        "project/repros/b",
    ]


def test_evidence_of_the_same_attempt_is_never_mixed() -> None:
    def evidence(number: int, *names: str) -> tuple[File, ...]:
        return tuple(File(f"results/evidence/ab/{'ab' * 32}/{number}/{name}", sha(name), 1) for name in names)

    old = after(EMPTY, Addition((), (*evidence(1, "core.zst", "stdout"), *evidence(10, "stdout")), ()))
    replaced = frozenset({f"results/evidence/ab/{'ab' * 32}/1"})
    new = after(old, Addition((), evidence(1, "stdout"), (), whole=replaced))
    assert new.files == (*evidence(1, "stdout"), *evidence(10, "stdout"))


def test_a_manifest_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    good = after(EMPTY, Addition((), (File("project/x", sha(b""), 0),), ()))
    write_manifest(tmp_path, good)
    for bad in (replace(good, blobs=()), replace(good, files=(File("elsewhere/x", sha(b""), 0),))):
        with pytest.raises(FormatError):
            write_manifest(tmp_path, bad)
    assert read_manifest(tmp_path) == good


def test_what_is_not_held_is_said() -> None:
    one = environment("one", "jax", base=BASE, image=an_image("one").id)
    debs = File(f"store/debs/{BASE}/tini_0.19.0-1_amd64.deb", sha("tini"), 4)
    tool = File("tool/3.11/rich-15.0.0-py3-none-any.whl", sha("rich"), 4)
    whole = after(EMPTY, Addition((one,), (wheel("jax"), debs, tool, *base_files()), (an_image("one"),)))
    assert lacks(whole) == []
    assert whole.notes == ()
    bare = after(EMPTY, Addition((environment("one", "jax"),), (wheel("jax"),), ()))
    assert [note.partition(" of ")[0].partition(" for ")[0] for note in bare.notes] == [
        "no base image",
        "no image",
        "no wheels",
    ]


def test_what_reads_stacks_is_missed_until_it_comes() -> None:
    note = f"{NO_READERS}3.11"
    one, other = environment("one", "jax"), replace(environment("two", "jax"), python="3.12")
    old = after(EMPTY, Addition((one,), (wheel("jax"),), (), notes=(note,)))
    assert note in after(old, Addition((other,), (wheel("jax"),), ())).notes
    assert note not in after(old, Addition((one,), (wheel("jax"),), ())).notes


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    blob = add(tmp_path, b"content")
    manifest = replace(
        after(EMPTY, Addition((), (File("project/x", blob.sha256, blob.size),), ())), created="2026-01-01"
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


# --- origin -----------------------------------------------------------------------------------------------------------


def an_archive() -> Manifest:
    cuda = File(
        f"store/wheels/{sha('nccl')}/nvidia_nccl_cu12-2.28.9+local.1-py3-none-manylinux_2_18_x86_64.whl", sha("nccl"), 9
    )
    one = environment("one", "jax", "nccl", base=BASE, image=an_image("one").id)
    files = (
        wheel("jax"),
        cuda,
        File("tool/3.11/rich-15.0.0-py3-none-any.whl", sha("rich"), 4),
        File("project/containers/locks/one.txt", sha("lock"), 4),
        File(f"store/bases/{BASE}.tar.zst", sha("base"), 4),
        File(f"store/bases/{BASE}.packages", sha("list"), 4),
        File(f"store/debs/{BASE}/openssl_1%3a3.0-1_amd64.deb", sha("openssl"), 4),
    )
    return replace(after(EMPTY, Addition((one,), files, (an_image("one"),))), created="2026-01-01T00:00:00Z")


def test_the_bill_of_materials_names_every_wheel_and_package() -> None:
    packages = {BASE: "recipe 0123456789abcdef\nlibc6=2.36-9+deb12u9=amd64\nopenssl=1:3.0-1=amd64\n"}
    document = json.loads(sbom(an_archive(), packages))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"
    found = {component.get("purl", component["name"]): component for component in document["components"]}
    assert sorted(found) == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64&distro=bookworm",
        "pkg:deb/debian/openssl@1:3.0-1?arch=amd64&distro=bookworm",
        "pkg:pypi/jax@1.0?file_name=jax-1.0-py3-none-any.whl",
        "pkg:pypi/nvidia-nccl-cu12@2.28.9%2Blocal.1"
        "?file_name=nvidia_nccl_cu12-2.28.9%2Blocal.1-py3-none-manylinux_2_18_x86_64.whl",
        "pkg:pypi/rich@15.0.0?file_name=rich-15.0.0-py3-none-any.whl",
        "repromatrix:one",
    ]
    hashes = {purl: [each["content"] for each in entry.get("hashes", ())] for purl, entry in found.items()}
    assert hashes["pkg:pypi/jax@1.0?file_name=jax-1.0-py3-none-any.whl"] == [sha("jax")]
    assert hashes["pkg:deb/debian/openssl@1:3.0-1?arch=amd64&distro=bookworm"] == [sha("openssl")]
    assert hashes["pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64&distro=bookworm"] == []  # its file is not held
    assert hashes["repromatrix:one"] == [an_image("one").manifest]
    assert found["pkg:pypi/rich@15.0.0?file_name=rich-15.0.0-py3-none-any.whl"]["properties"] == [
        {"name": "repromatrix:environment", "value": "repromatrix on Python 3.11"}
    ]
    references = [component["bom-ref"] for component in document["components"]]
    assert len(set(references)) == len(references)
    assert sbom(an_archive(), packages) == sbom(an_archive(), packages)


def test_the_statement_names_what_is_carried_and_what_decided_it() -> None:
    manifest = an_archive()
    document = json.loads(statement(manifest))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {entry["name"]: entry["digest"]["sha256"] for entry in document["subject"]}
    assert subjects == {
        "jax-1.0-py3-none-any.whl": sha("jax"),
        "nvidia_nccl_cu12-2.28.9+local.1-py3-none-manylinux_2_18_x86_64.whl": sha("nccl"),
        "rich-15.0.0-py3-none-any.whl": sha("rich"),
        f"{BASE}.tar.zst": sha("base"),
        "repromatrix:one": an_image("one").manifest,
    }
    definition = document["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"environments": ["one"]}
    assert definition["internalParameters"]["locks"] == {"one": manifest.environments[0].lock}
    assert definition["resolvedDependencies"] == [
        {"name": "containers/locks/one.txt", "digest": {"sha256": sha("lock")}}
    ]
    assert document["predicate"]["runDetails"]["metadata"] == {"finishedOn": "2026-01-01T00:00:00Z"}
    assert statement(manifest) == statement(manifest)


def test_the_program_inside_is_this_source_and_runs_alone(tmp_path: Path) -> None:
    program = tmp_path / "restore.pyz"
    program.write_bytes(restore_program(ROOT / "repromatrix"))
    assert program.read_bytes() == restore_program(ROOT / "repromatrix")
    with zipfile.ZipFile(program) as archive:
        names = archive.namelist()
        for name in names:
            if name != "__main__.py":
                assert archive.read(name) == (ROOT / name).read_bytes()
    assert names == sorted(
        [
            "__main__.py",
            "repromatrix/__init__.py",
            *(f"repromatrix/carry/{p.name}" for p in (ROOT / "repromatrix/carry").glob("*.py")),
        ]
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program), str(tmp_path), "--verify"],
        capture_output=True, text=True, check=False, cwd="/", env={},
    )  # fmt: skip
    assert done.returncode == 2
    assert "no archive" in done.stderr
    assert "Traceback" not in done.stderr
