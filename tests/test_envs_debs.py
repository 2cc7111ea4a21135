"""The packages of a base: kept whole, listed the same, and enough to make the very same base with no network."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from repromatrix.envs import debian
from repromatrix.envs.debs import complete, identities, local_source, write_index
from repromatrix.errors import InfraError
from repromatrix.events import Silent

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")


def package(folder: Path, name: str, version: str) -> Path:
    """A real package that holds nothing."""
    tree = folder / f"tree-{name}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
        "Description: nothing\n at all\n"
    )
    path = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    argv = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    shutil.rmtree(tree)
    return path


def test_the_identity_of_a_base_stays() -> None:
    """Stores, images and results of earlier releases refer to it: what is kept beside a base must not change it."""
    assert debian.RECIPE == "recipe 223fe64b488da15f"


def test_identities_of_what_dpkg_says() -> None:
    status = (
        "Package: b\nStatus: install ok installed\nVersion: 1:2-3\nArchitecture: amd64\nDescription: x\n Version: 9\n\n"
        "Package: a\nArchitecture: all\nVersion: 1\n\n\n"
    )
    assert identities(status) == ["a=1=all", "b=1:2-3=amd64"]


@pytest.fixture
def root_tar(tmp_path: Path) -> Path:
    """A root file system in which one package is installed."""
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as tar:
        for name, text in (("./etc/x", b""), ("./var/lib/dpkg/status", b"Package: a\nVersion: 1\nArchitecture: all\n")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return path


def test_a_list_of_packages_out_of_a_root(root_tar: Path) -> None:
    assert debian.package_list(root_tar) == f"{debian.RECIPE}\na=1=all\n"


def test_another_base_is_not_taken_for_one_that_was_lost(root_tar: Path, tmp_path: Path) -> None:
    """Debian has newer packages by now: the base that results refer to stays what it was."""
    bases = tmp_path / "bases"
    bases.mkdir()
    with pytest.raises(InfraError, match="other packages by now") as caught:
        debian._keep("bookworm", root_tar, tmp_path, bases, "2" * 64, Silent())
    assert "REPROMATRIX_DEBIAN_SOURCE" in caught.value.hint
    assert list(bases.iterdir()) == []


@needs_dpkg
def test_packages_that_are_not_all_are_not_kept(root_tar: Path, tmp_path: Path) -> None:
    said: list[str] = []

    class Warnings(Silent):
        def warn(self, message: str) -> None:
            said.append(message)

    bases, room = tmp_path / "store" / "bases", tmp_path / "store" / "debs" / "room"
    bases.mkdir(parents=True)
    room.mkdir(parents=True)
    package(room, "b", "1")
    made = debian._keep("bookworm", root_tar, room, bases, "", Warnings())
    assert debian.debs(made) is None
    assert len(said) == 1
    assert "did not leave all packages" in said[0]
    package(room, "a", "1")
    (room / "b_1_all.deb").unlink(missing_ok=True)
    shutil.rmtree(room / "debs")
    assert debian._keep("bookworm", root_tar, room, bases, made.hash, Warnings()) == made
    kept = debian.debs(made)
    assert kept is not None
    assert sorted(path.name for path in kept.iterdir()) == ["Packages", "Release", "a_1_all.deb"]
    assert len(said) == 1


@needs_dpkg
def test_an_index_of_packages(tmp_path: Path) -> None:
    package(tmp_path, "two", "1:2.0-1")
    package(tmp_path, "one", "1.0~rc1")
    assert write_index(tmp_path, "bookworm") == ["one=1.0~rc1=all", "two=1:2.0-1=all"]
    packages, release = (tmp_path / "Packages").read_bytes(), (tmp_path / "Release").read_text()
    assert f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n" in release
    assert "Codename: bookworm\n" in release
    assert packages.count(b"\nFilename: ./") == 2
    write_index(tmp_path, "bookworm")
    assert (tmp_path / "Packages").read_bytes() == packages


@needs_dpkg
@pytest.mark.parametrize("harm", ["missing", "short", "no index", "empty index"])
def test_half_a_repository_is_none(tmp_path: Path, harm: str) -> None:
    """A restore that was killed leaves such."""
    path = package(tmp_path, "one", "1")
    write_index(tmp_path, "bookworm")
    assert complete(tmp_path)
    if harm == "missing":
        path.unlink()
    elif harm == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        (tmp_path / "Packages").unlink()
        if harm == "empty index":
            (tmp_path / "Packages").write_text("")
    assert not complete(tmp_path)


@needs_dpkg
def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    path = package(tmp_path, "one", "1")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InfraError, match="dpkg-deb cannot read the package") as caught:
        write_index(tmp_path, "bookworm")
    assert str(path) in caught.value.where


@needs_dpkg
def test_apt_reads_it(tmp_path: Path) -> None:
    """Also below a folder whose name needs quoting."""
    if shutil.which("apt-get") is None:
        pytest.skip("no apt here")
    folder = tmp_path / "with space"
    folder.mkdir()
    package(folder, "one", "1:1.0")
    write_index(folder, "bookworm")
    root = tmp_path / "apt"
    for name in (
        "etc/apt/preferences.d",
        "etc/apt/apt.conf.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/lib/dpkg",
    ):
        (root / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (root / "etc/apt/sources.list").write_text(local_source(folder) + "\n")
    options = [
        "-o",
        f"Dir={root}",
        "-o",
        f"Dir::State::status={root}/var/lib/dpkg/status",
        "-o",
        "APT::Sandbox::User=root",
    ]
    subprocess.run(["apt-get", *options, "update", "--error-on=any"], check=True, capture_output=True)
    subprocess.run(["apt-get", *options, "download", "one"], check=True, capture_output=True, cwd=root)
    assert (root / "one_1%3a1.0_all.deb").read_bytes() == (folder / "one_1%3a1.0_all.deb").read_bytes()


def test_no_packages_of_a_base_built_before_they_were_kept(tmp_path: Path) -> None:
    base = debian.DebianBase("bookworm", "1" * 64, tmp_path / "bases" / f"{'1' * 64}.tar.zst")
    assert debian.debs(base) is None
    assert debian.find("1" * 64, tmp_path / "bases") is None


@pytest.mark.slow
@pytest.mark.network
def test_a_base_is_made_again_of_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, from the packages alone: the sources are asked for nothing."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no mmdebstrap here")
    bases = tmp_path / "store" / "bases"
    made = debian.build("bookworm", bases, Silent())
    packages = debian.debs(made)
    assert packages is not None
    listed = (bases / f"{made.hash}.packages").read_text().splitlines()[1:]
    assert identities((packages / "Packages").read_text()) == listed
    assert len(list(packages.glob("*.deb"))) == len(listed)
    assert debian.find(made.hash, bases) == made
    content = hashlib.sha256(made.archive.read_bytes()).hexdigest()
    assert [path.name for path in (tmp_path / "store" / "debs").iterdir()] == [made.hash]

    monkeypatch.setenv("REPROMATRIX_DEBIAN_SOURCE", "deb http://mirror.invalid/debian bookworm main")
    made.archive.unlink()
    assert debian.find(made.hash, bases) is None
    again = debian.build("bookworm", bases, Silent())
    assert again == made
    assert hashlib.sha256(again.archive.read_bytes()).hexdigest() == content

    assert debian.fetch_debs(made, Silent()) == packages
