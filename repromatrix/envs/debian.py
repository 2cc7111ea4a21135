"""A base image from Debian packages: for machines where no registry answers.

mmdebstrap unpacks the packages; the list of their names, versions and architectures is the identity. The tar is kept in
the store, so that every later run, offline too, uses the very same base; the packages are kept beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.command import run_command
from repromatrix.envs.daemon import LABEL
from repromatrix.envs.debs import complete, identities, local_source, readable, write_index
from repromatrix.envs.images import Images
from repromatrix.errors import InfraError
from repromatrix.events import Listener

RELEASES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""Debian release whose `python3` is this minor version (3.12 is in none)."""

PACKAGES = (
    "python3",
    "python3-venv",  # ensurepip: the stage of the Dockerfile that downloads wheels takes its pip from there
    "libstdc++6",
    "ca-certificates",
    "zstd",
    "tini",
    # Instead of usrmerge, which needs all of Perl: 206 MB become 130 MB.
    "usr-is-merged",
)
EPOCH = "1577836800"
"""SOURCE_DATE_EPOCH, 2020-01-01: any fixed time gives the same bytes. Python then compiles hash-based bytecode."""

HOOKS = (
    # Copied from the host by mmdebstrap, or written at build time: not the same on two machines.
    'rm -rf "$1"/etc/resolv.conf "$1"/etc/hosts "$1"/etc/hostname "$1"/etc/apt/sources.list "$1"/etc/machine-id '
    '"$1"/var/cache/ldconfig/aux-cache "$1"/var/log/apt "$1"/var/log/*.log "$1"/var/cache/debconf/*-old',
    # Mount points of every container: where they are missing, each build step makes them and changes the time of /etc.
    'touch "$1"/etc/resolv.conf "$1"/etc/hosts "$1"/etc/hostname',
    'ln -s /usr/bin/python3 "$1"/usr/local/bin/python',
)
EXCLUDES = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
RECIPE = "recipe " + hashlib.sha256(repr((PACKAGES, EPOCH, HOOKS, EXCLUDES)).encode()).hexdigest()[:16]
"""Part of the identity: the same packages prepared in another way are another base."""

_SUITE = re.compile(r"(?:bullseye|bookworm|trixie|forky|sid|unstable|testing|stable|oldstable)(-updates|-security)?")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True)
class DebianBase:
    """A built base: `hash` identifies it, `archive` holds its files (tar, zstd)."""

    release: str
    hash: str
    archive: Path


def apt_lines(release: str, targets: str, keyring: Path | None) -> list[str]:
    """Sources of `release`, made from the machine's own Debian sources by exchanging the suite.

    Args:
        targets: What `apt-get indextargets` prints in the format of `machine_targets`.
        keyring: Keyring that signs the archive, or None for apt's own trust.
    """
    option = f"[signed-by={keyring}] " if keyring else ""
    lines = []
    for target in targets.splitlines():
        address, suite, component, origin = [*target.split("|"), "", "", "", ""][:4]
        match = _SUITE.fullmatch(suite)
        # Origin is unknown (left as `$(ORIGIN)`) until the lists are fetched.
        if match and component == "main" and (origin == "Debian" or origin.startswith("$")):
            lines.append(f"deb {option}{address} {release}{match[1] or ''} main")
    return list(dict.fromkeys(lines))


def machine_targets() -> str:
    """The machine's package sources: `address|suite|component|origin` lines.

    Raises:
        InfraError: Not a machine with apt.
    """
    shape = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    status, output = run_command(
        ["apt-get", "indextargets", "--format", shape, "Created-By: Packages"],
        timeout=30,
        hint="a base from Debian packages needs apt; use a registry instead (`image` in [bases] of matrix.toml)",
    )
    if status:
        raise InfraError("apt cannot list its sources", where=output.strip()[-500:])
    return output


def build(release: str, folder: Path, listener: Listener) -> DebianBase:
    """The base of `release`, from the store where it is there, else built (about 20 s and 40 MB of packages).

    Where the store has its packages and not itself, it is made of those, and is the same.

    Args:
        folder: `bases` of the store; the packages come into `debs` beside it.

    Raises:
        InfraError: mmdebstrap is missing, may not run here, or failed; the sources name no Debian archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder / f"{release}.lock"):
        if (found := _kept(release, folder)) is not None and found.archive.is_file():
            return found
        if found is not None and (packages := debs(found)) is not None:
            try:
                with readable(packages) as repository:
                    return _build(release, folder, [local_source(repository)], listener, expected=found.hash)
            except InfraError as error:
                hint = f"it was to be made of the packages in {packages}; without that folder they are fetched anew"
                raise InfraError(error.message, where=error.where, hint=hint) from error
        return _build(release, folder, _sources(release), listener)


def find(identity: str, folder: Path) -> DebianBase | None:
    """The base with this hash, if `folder` notes it as that of a release and holds it."""
    for release in RELEASES.values():
        base = _kept(release, folder)
        if base is not None and base.hash == identity and base.archive.is_file():
            return base
    return None


def debs(base: DebianBase) -> Path | None:
    """The folder with every package of `base`, a repository; None where it was built before packages were kept."""
    place = _debs_place(base)
    return place if complete(place) else None


def fetch_debs(base: DebianBase, listener: Listener) -> Path:
    """The folder of `debs`; where it is missing, the packages are fetched by building the base again.

    Raises:
        InfraError: As `build`; or Debian has newer packages by now, so that another base came out; `base` stays.
    """
    folder = base.archive.parent
    with _exclusive(folder / f"{base.release}.lock"):
        if (found := debs(base)) is None:
            _build(base.release, folder, _sources(base.release), listener, expected=base.hash)
            found = debs(base)
    if found is None:
        raise InfraError(f"mmdebstrap did not leave the packages of {base.release}", where=str(_debs_place(base)))
    return found


def _debs_place(base: DebianBase) -> Path:
    return base.archive.parent.parent / "debs" / base.hash


def _kept(release: str, folder: Path) -> DebianBase | None:
    """The base that was chosen for `release`; its archive may have been deleted since."""
    try:
        note = json.loads((folder / f"{release}.json").read_text())
    except FileNotFoundError:
        return None
    if note["recipe"] != RECIPE:
        return None
    return DebianBase(release, note["packages"], folder / f"{note['packages']}.tar.zst")


def _sources(release: str) -> list[str]:
    sources = os.environ.get("REPROMATRIX_DEBIAN_SOURCE", "").splitlines()
    sources = sources or apt_lines(release, machine_targets(), KEYRING if KEYRING.exists() else None)
    if not sources:
        raise InfraError(
            f"this machine's apt sources name no Debian archive, so Debian {release} cannot be had",
            hint="set REPROMATRIX_DEBIAN_SOURCE to a line of sources.list for it (`deb ADDRESS "
            f"{release} main`), or use a registry (`image` in [bases] of matrix.toml)",
        )
    return sources


def _build(release: str, folder: Path, sources: list[str], listener: Listener, expected: str = "") -> DebianBase:
    """Build and keep the base; `expected` is its hash, where only that one will do."""
    task = listener.start("base", f"debian {release}")
    note = "failed"
    room = folder.parent / "debs" / f".{release}"  # no one else's: the caller holds the lock
    try:
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir(parents=True)
        tar = room / "base.tar"
        _mmdebstrap(release, tar, room, sources, folder)
        made = _keep(release, tar, room, folder, expected, listener)
        note = made.hash[:12]
        return made
    except OSError as error:
        raise InfraError(f"cannot keep the base: {error.strerror}", where=str(folder), hint="free some disk") from error
    finally:
        task.finish(note)
        shutil.rmtree(room, ignore_errors=True)


def _mmdebstrap(release: str, tar: Path, packages: Path, sources: list[str], folder: Path) -> None:
    argv = [
        "mmdebstrap",
        "--variant=apt",
        f"--include={','.join(PACKAGES)}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",
        # The packages are copied out before they are cleaned away. Not in HOOKS: it changes no byte of the base.
        "--skip=essential/unlink",
        f"--customize-hook=sync-out /var/cache/apt/archives {shlex.quote(str(packages))}",
        *(f"--dpkgopt={option}" for option in EXCLUDES),
        *(f"--customize-hook={hook}" for hook in HOOKS),
        release,
        str(tar),
        *sources,
    ]
    status, output = run_command(
        argv,
        timeout=900,
        env={"SOURCE_DATE_EPOCH": EPOCH},
        hint="`apt-get install mmdebstrap zstd` (as root), or use a registry (`image` in [bases] of matrix.toml)",
    )
    if status:
        hint = "see the lines above; `apt-get update` first where packages were not found"
        if os.geteuid() != 0 and re.search(r"unshare|newuidmap|subuid|user namespace|mode", output):
            hint = "run it once as root, or allow user namespaces (package uidmap, entries in /etc/subuid and subgid)"
        raise InfraError(
            f"mmdebstrap could not build Debian {release}:\n{output.strip()[-2000:]}", where=str(folder), hint=hint
        )


def _keep(release: str, tar: Path, room: Path, folder: Path, expected: str, listener: Listener) -> DebianBase:
    import zstandard

    packages = package_list(tar)
    identity = hashlib.sha256(packages.encode()).hexdigest()
    made = DebianBase(release, identity, folder / f"{identity}.tar.zst")
    if expected and identity != expected:
        raise InfraError(
            f"Debian {release} has other packages by now: they make the base {identity[:12]}, not {expected[:12]}",
            where=str(folder),
            hint="fetch the old ones where they are still kept (a snapshot of Debian: REPROMATRIX_DEBIAN_SOURCE), or "
            "go on without them: the base itself is kept",
        )
    _keep_debs(made, room, packages, listener)
    if not made.archive.is_file():
        partial = made.archive.with_suffix(f".{os.getpid()}.part")
        try:
            with tar.open("rb") as plain, partial.open("wb") as target:
                zstandard.ZstdCompressor(level=6, write_checksum=True).copy_stream(plain, target)
                target.flush()
                os.fsync(target.fileno())
            (folder / f"{identity}.packages").write_text(packages)
            partial.replace(made.archive)
        finally:
            partial.unlink(missing_ok=True)
    note = folder / f"{release}.json.{os.getpid()}"
    note.write_text(json.dumps({"packages": identity, "recipe": RECIPE}))
    note.replace(folder / f"{release}.json")
    return made


def _keep_debs(base: DebianBase, room: Path, packages: str, listener: Listener) -> None:
    """Keep the packages in `room`, where they are exactly those of the base: less could not make it again."""
    place = _debs_place(base)
    if complete(place):
        return
    folder = room / "debs"
    folder.mkdir()
    for path in room.glob("*.deb"):
        path.rename(folder / path.name)
        (folder / path.name).chmod(0o644)
    if write_index(folder, base.release) != packages.splitlines()[1:]:
        listener.warn(f"debian {base.release}: mmdebstrap did not leave all packages; none is kept for archives")
        return
    shutil.rmtree(place, ignore_errors=True)  # not whole
    folder.replace(place)


def package_list(tar: Path) -> str:
    """`name=version=architecture` of every installed package in a root file system's tar, sorted, after the recipe."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name.removeprefix("./") == "var/lib/dpkg/status":
                data = archive.extractfile(member)
                assert data is not None
                return "\n".join([RECIPE, *identities(data.read().decode()), ""])
    raise InfraError("the root file system has no list of packages", where=str(tar))


def import_image(base: DebianBase, images: Images) -> str:
    """Make sure that the engine has `base`; returns its reference, `repromatrix-base:<hash>`.

    Raises:
        InfraError: The engine failed, or the archive in the store is damaged.
    """
    import zstandard

    reference = f"repromatrix-base:{base.hash}"
    changes = [
        f"LABEL {LABEL}base={base.hash}",
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENV LANG=C.UTF-8",
        'CMD ["python3"]',
    ]
    # Of two imports at once the images differ, and what is built on the one shares no layer with the other's.
    with _exclusive(base.archive.parent / f"{base.release}.lock"):
        if images.labelled([f"{LABEL}base={base.hash}"], reference):
            return reference
        try:
            with base.archive.open("rb") as packed:
                # Unpacked here: dockerd 26.1.5 dies of a nil pointer in its own zstd reader.
                tar = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(packed), 1 << 20)
                images.import_tar(tar, reference, changes)
        except zstandard.ZstdError as error:
            raise InfraError(
                f"the base is damaged: {error}", where=str(base.archive), hint="delete it; the next run builds it again"
            ) from error
    return reference


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
