"""A base image from Debian packages: for machines where no registry answers.

mmdebstrap unpacks the packages; the list of their names, versions and architectures is the identity. The tar is kept in
the store, so that every later run, offline too, uses the very same base.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repromatrix.envs.command import run_command
from repromatrix.envs.daemon import LABEL, Daemon, daemon_errors
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

    Args:
        folder: `bases` of the store.

    Raises:
        InfraError: mmdebstrap is missing, may not run here, or failed; the sources name no Debian archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder / f"{release}.lock"):
        if (found := _kept(release, folder)) is not None:
            return found
        task = listener.start("base", f"debian {release}")
        try:
            made = _build(release, folder)
        except BaseException:
            task.finish("failed")
            raise
        task.finish(made.hash[:12])
        return made


def _kept(release: str, folder: Path) -> DebianBase | None:
    try:
        note = json.loads((folder / f"{release}.json").read_text())
    except FileNotFoundError:
        return None
    archive = folder / f"{note['packages']}.tar.zst"
    if note["recipe"] != RECIPE or not archive.is_file():
        return None
    return DebianBase(release, note["packages"], archive)


def _build(release: str, folder: Path) -> DebianBase:
    sources = os.environ.get("REPROMATRIX_DEBIAN_SOURCE", "").splitlines()
    sources = sources or apt_lines(release, machine_targets(), KEYRING if KEYRING.exists() else None)
    if not sources:
        raise InfraError(
            f"this machine's apt sources name no Debian archive, so Debian {release} cannot be had",
            hint="set REPROMATRIX_DEBIAN_SOURCE to a line of sources.list for it (`deb ADDRESS "
            f"{release} main`), or use a registry (`image` in [bases] of matrix.toml)",
        )
    scratch = folder / f".{release}-{os.getpid()}.tar"
    argv = [
        "mmdebstrap",
        "--variant=apt",
        f"--include={','.join(PACKAGES)}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",
        *(f"--dpkgopt={option}" for option in EXCLUDES),
        *(f"--customize-hook={hook}" for hook in HOOKS),
        release,
        str(scratch),
        *sources,
    ]
    try:
        status, output = run_command(
            argv,
            timeout=900,
            env={"SOURCE_DATE_EPOCH": EPOCH},
            hint="`apt-get install mmdebstrap zstd` (as root), or use a registry (`image` in [bases] of matrix.toml)",
        )
        if status:
            hint = "see the lines above; `apt-get update` first where packages were not found"
            if os.geteuid() != 0 and re.search(r"unshare|newuidmap|subuid|user namespace|mode", output):
                hint = (
                    "run it once as root, or allow user namespaces (package uidmap, entries in /etc/subuid and subgid)"
                )
            raise InfraError(
                f"mmdebstrap could not build Debian {release}:\n{output.strip()[-2000:]}", where=str(folder), hint=hint
            )
        return _keep(release, scratch, folder)
    except OSError as error:
        raise InfraError(f"cannot keep the base: {error.strerror}", where=str(folder), hint="free some disk") from error
    finally:
        scratch.unlink(missing_ok=True)


def _keep(release: str, tar: Path, folder: Path) -> DebianBase:
    import zstandard

    packages = package_list(tar)
    identity = hashlib.sha256(packages.encode()).hexdigest()
    archive = folder / f"{identity}.tar.zst"
    partial = archive.with_suffix(f".{os.getpid()}.part")
    try:
        with tar.open("rb") as source, partial.open("wb") as target:
            zstandard.ZstdCompressor(level=6, write_checksum=True).copy_stream(source, target)
            target.flush()
            os.fsync(target.fileno())
        (folder / f"{identity}.packages").write_text(packages)
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    note = folder / f"{release}.json.{os.getpid()}"
    note.write_text(json.dumps({"packages": identity, "recipe": RECIPE}))
    note.replace(folder / f"{release}.json")
    return DebianBase(release, identity, archive)


def package_list(tar: Path) -> str:
    """`name=version=architecture` of every installed package in a root file system's tar, sorted, after the recipe."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name.removeprefix("./") == "var/lib/dpkg/status":
                data = archive.extractfile(member)
                assert data is not None
                return f"{RECIPE}\n" + "".join(sorted(_package_lines(data.read().decode())))
    raise InfraError("the root file system has no list of packages", where=str(tar))


def _package_lines(status: str) -> Iterator[str]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture): (.*)$", paragraph, re.MULTILINE))
        if fields:
            yield f"{fields['Package']}={fields['Version']}={fields['Architecture']}\n"


def import_image(base: DebianBase, daemon: Daemon) -> str:
    """Make sure that the engine has `base`; returns its reference, `repromatrix-base:<hash>`.

    Raises:
        InfraError: The engine failed, or the archive in the store is damaged.
    """
    import zstandard

    reference = f"repromatrix-base:{base.hash}"
    with daemon_errors(daemon.host, f"import the base image {base.release}"):
        if daemon.api.images(name=reference, filters={"label": f"{LABEL}base={base.hash}"}):
            return reference
        changes = [
            f"LABEL {LABEL}base={base.hash}",
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "ENV LANG=C.UTF-8",
            'CMD ["python3"]',
        ]
        try:
            with base.archive.open("rb") as packed:
                # Unpacked here: dockerd 26.1.5 dies of a nil pointer in its own zstd reader.
                tar = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(packed), 1 << 20)
                answer = daemon.api.import_image_from_stream(
                    tar, repository="repromatrix-base", tag=base.hash, changes=changes
                )
        except zstandard.ZstdError as error:
            raise InfraError(
                f"the base is damaged: {error}", where=str(base.archive), hint="delete it; the next run builds it again"
            ) from error
    events = [json.loads(line) for line in str(answer).splitlines() if line.strip()]
    for event in events:
        if "error" in event:
            raise InfraError(f"the Docker daemon could not import the base image: {event['error']}", where=daemon.host)
    return reference


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
