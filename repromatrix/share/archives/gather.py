"""Which files belong to an archive: looked up and listed, nothing is copied here.

A `Piece` says where a file belongs in the archive and where its content is now. What lies in the store under a hash is
listed with that hash, and is not read again.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repromatrix.carry.format import Blob, FormatError, check_path
from repromatrix.carry.trouble import shown
from repromatrix.envs.base import BaseImage
from repromatrix.envs.image import rendered, write_rendered
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.project import TOOL_ROOT, Project
from repromatrix.results.carried import Row, evidence_of
from repromatrix.spec.model import Matrix, Repro

TOOL = ("tasks.py", "pyproject.toml", "requirements.lock", "README.md", "LICENSE", "repromatrix", "schemas")
TOOL_CONTAINERS = ("tools", "handoff")
"""What a folder needs for `invoke` to work in it: these, and of `containers/` the files at its top and these."""
REST = (
    *(".ci", ".github", ".gitignore", "CHANGELOG.md", "benchmarks", "docs", "flake.lock", "flake.nix"),
    *("nix", "reports/h200", "reports/since", "tests", "tools"),
)
"""What else this tool's own checkout has."""

GIT_DEADLINE = 60
"""Seconds; listing this repository takes 0.01."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file for the archive.

    Attributes:
        path: Where it belongs, see `carry/format.py`.
        source: The file, or its content.
        blob: What it is, where that is known.
    """

    path: str
    source: Path | bytes
    blob: Blob | None = None
    executable: bool = False


# --- the checkout -----------------------------------------------------------------------------------------------------


def project_pieces(project: Project, matrix: Matrix, repros: Sequence[Repro], locks: Sequence[Lock]) -> list[Piece]:
    """The checkout without its results, and this tool where the checkout is not its own.

    Of a git checkout: what is tracked, and what is new and not ignored in `repros/`, `containers/` and the tool's own
    source. Elsewhere the same folders. In both, every script and description that the matrix names.

    Raises:
        UserError: A file is a link that leads out of the checkout, or has a name that an archive cannot hold.
        InfraError: A file cannot be read, or git fails.
    """
    root = project.root
    found = set(_listed(root))
    for repro in repros:
        found |= {repro.path, *(repro.path.parent / name for name in repro.files)}
    for target in matrix.targets:
        found |= {root / name for name in (target.describe, target.autotune) if name}
    found |= {path for lock in locks if (path := project.locks / f"{lock.id}.txt").is_file()}
    pieces = {piece.path: piece for path in sorted(found) if (piece := _file(path, root)) is not None}
    if "project/repromatrix/__init__.py" not in pieces:
        for path in sorted(_tool_files(TOOL_ROOT)):
            if (piece := _file(path, TOOL_ROOT)) is not None:
                pieces.setdefault(piece.path, piece)
    return list(pieces.values())


def rendered_pieces(lock: Lock, base: BaseImage, project: Project) -> list[Piece]:
    """The Dockerfile of an environment and what it needs; written to the checkout too, as `invoke render` does.

    Raises:
        InfraError: It cannot be written.
    """
    folder = write_rendered(lock, base, project)
    return [Piece(f"project/containers/rendered/{lock.id}/{name}", folder / name) for name in rendered(lock, base)]


def _listed(root: Path) -> Iterator[Path]:
    """Files of the checkout at `root`."""
    tracked = _git(root, "--cached")
    if "matrix.toml" in tracked:
        yield from (root / name for name in tracked)
        # The tool as it runs: a module that is not committed yet is needed all the same where it is restored.
        new = _git(root, "--others", "--exclude-standard", "--", "repros", "containers", *TOOL)
        yield from (root / name for name in new)
        return
    yield root / "matrix.toml"
    for name in ("repros", "containers"):
        yield from _walk(root / name, leave_out=root / "containers" / "rendered")
    if (root / "repromatrix" / "__init__.py").is_file():  # restored, or unpacked from a release
        yield from _tool_files(root)
        for name in REST:
            yield from _walk(root / name)


def _tool_files(root: Path) -> Iterator[Path]:
    for name in TOOL:
        yield from _walk(root / name)
    yield from (path for path in (root / "containers").iterdir() if path.is_file())
    for name in TOOL_CONTAINERS:
        yield from _walk(root / "containers" / name)


def _walk(path: Path, leave_out: Path | None = None) -> Iterator[Path]:
    """`path` if it is a file, else the files below it, without caches and hidden ones."""
    if path.is_file():
        yield path
    elif path.is_dir() and path != leave_out and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(".") and entry.name != "__pycache__":
                yield from _walk(entry, leave_out)


def _git(root: Path, *options: str) -> tuple[str, ...]:
    """Files that git lists at `root`; none where it is no checkout, or git is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", *options], capture_output=True, timeout=GIT_DEADLINE, check=False
        )
    except FileNotFoundError:
        return ()
    except subprocess.TimeoutExpired:
        raise InfraError(f"git did not list its files within {GIT_DEADLINE} s", where=str(root)) from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()
        if "not a git repository" in words:
            return ()
        raise InfraError(f"git cannot list the files of this checkout: {words}", where=str(root))
    return tuple(name.decode(errors="surrogateescape") for name in done.stdout.split(b"\0") if name)


def _file(path: Path, root: Path) -> Piece | None:
    """The piece of a file of the checkout; None for what is deleted, and for folders (submodules)."""
    inside = path.relative_to(root) if path.is_relative_to(root) else None
    if inside is None or ".." in inside.parts:
        raise UserError("lies outside of the checkout, so an archive cannot hold it", where=str(path), hint="move it")
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        real = path
    if not real.is_relative_to(root.resolve()) or (path.is_symlink() and not real.is_file()):
        raise UserError(
            f"is a link to {real}, which an archive cannot follow", where=str(path), hint="replace it by the file"
        )
    if not real.is_file():
        return None
    name = f"project/{inside.as_posix()}"
    try:
        check_path(name)
    except FormatError as error:
        raise UserError(f"an archive cannot hold a file of this name: {error}", hint="rename it") from None
    return Piece(name, real, executable=bool(real.stat().st_mode & 0o111))


# --- the store --------------------------------------------------------------------------------------------------------


def wheel_pieces(wheels: Iterable[Wheel], store: WheelStore) -> list[Piece]:
    """Wheels of the store, each once.

    Raises:
        InfraError: One is not there.
    """
    unique = {wheel.sha256: wheel for wheel in wheels}
    return [_stored(f"store/wheels/{wheel.sha256}/{wheel.filename}", wheel, store) for wheel in unique.values()]


def tool_pieces(python: str, wheels: Iterable[Wheel], store: WheelStore) -> list[Piece]:
    """Wheels that this tool needs to run on Python `python`.

    Raises:
        InfraError: One is not in the store.
    """
    return [_stored(f"tool/{python}/{wheel.filename}", wheel, store) for wheel in wheels]


def _stored(path: str, wheel: Wheel, store: WheelStore) -> Piece:
    place = store.path(wheel) or store.verify(wheel)  # which says why it is not here
    return Piece(path, place, Blob(wheel.sha256, place.stat().st_size))


def base_hash(base: BaseImage) -> str:
    """Hash of the packages of a base from Debian packages; empty for an official image."""
    return base.id.removeprefix("sha256:") if base.reference.startswith("repromatrix-base:") else ""


def base_pieces(base: BaseImage, store: Path) -> list[Piece]:
    """What the store keeps of a base: which one was chosen, and of one from Debian packages its files and packages.

    Raises:
        InfraError: They are not in the store.
    """
    folder, found = store / "bases", base_hash(base)
    names = [path.name for path in sorted(folder.glob(f"choice-{base.python}-*.json")) if _id_in(path) == base.id]
    if found:
        names += [f"{found}.packages", f"{found}.tar.zst"]
        # `bookworm.json` says which base a release stands for now: another one would be built or chosen otherwise.
        names += [path.name for path in sorted(folder.glob("*.json")) if _packages_in(path) == found]
    if lacking := [name for name in names if not (folder / name).is_file()]:
        raise InfraError(
            f"the base of Python {base.python} is not whole in the store: {', '.join(lacking)} is missing",
            where=str(folder),
            hint=f"delete {folder / 'choice-'}{base.python}-*.json and build an environment again: it is made anew",
        )
    debs = sorted((store / "debs" / found).glob("*")) if found else []
    return [
        *(Piece(f"store/bases/{name}", folder / name) for name in names),
        *(Piece(f"store/{path.relative_to(store).as_posix()}", path) for path in debs if path.is_file()),
    ]


def flag_pieces(locks: Iterable[Lock], store: Path) -> list[Piece]:
    """What is known of the flags that each environment's XLA accepts (`accepted.py`)."""
    places = {f"flags/{lock.hash}.json" for lock in locks}
    return [Piece(f"store/{name}", store / name) for name in sorted(places) if (store / name).is_file()]


def _id_in(choice: Path) -> str:
    return str(_object(choice).get("id", ""))


def _packages_in(note: Path) -> str:
    return str(_object(note).get("packages", ""))


def _object(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# --- results ----------------------------------------------------------------------------------------------------------


def evidence_pieces(rows: Iterable[Row], state: Path) -> tuple[list[Piece], list[str]]:
    """The evidence of the attempts in `rows`, and what of it cannot be carried, in words.

    A script may leave anything in its folder: links, pipes, names that no archive holds. They are told and left out.

    Raises:
        InfraError: Evidence cannot be read.
    """
    pieces: list[Piece] = []
    odd: list[str] = []
    for row in rows:
        if not (place := evidence_of(row)):
            continue
        folder = state / "evidence" / place
        for path in _everything(folder):
            name = f"results/evidence/{place}/{path.relative_to(folder).as_posix()}"
            try:
                check_path(name)
            except FormatError:
                odd.append(f"{shown(name)}: a name that an archive cannot hold")
                continue
            if path.is_symlink() or not path.is_file():
                odd.append(f"{shown(name)}: not a file")
            else:
                pieces.append(Piece(name, path))
    return pieces, odd


def _everything(folder: Path) -> Iterator[Path]:
    """All below `folder` but folders; links are not followed."""
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError:
        return  # deleted by its owner: the verdict stands
    except OSError as error:
        raise InfraError(f"the evidence cannot be read: {error.strerror}", where=str(folder)) from error
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            yield from _everything(path)
        else:
            yield path
