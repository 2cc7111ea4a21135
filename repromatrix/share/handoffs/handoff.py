"""Hands one cell over: chosen, run where no result is kept, and written as a folder and as archives of it."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from repromatrix.envs.lockfile import read_lock
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Listener
from repromatrix.flow import run_matrix
from repromatrix.kept import known_of_one, to_show
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.results.model import CellResult
from repromatrix.share.handoffs.bundle import gz, tar, zst
from repromatrix.share.handoffs.expected import NAME
from repromatrix.share.handoffs.readme import Case, hosted_cuda
from repromatrix.share.handoffs.standalone import Files, files, refusal
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.model import Cell, Outcome, word

MOST = 20
"""Cells that an error lists."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What was written.

    Attributes:
        folder: The folder.
        archive: The same as `.tar.zst`, beside it.
        attachment: The same as `.tgz`, which GitHub takes as an attachment and every machine can unpack.
        sha256: Of the archive.
        size: Bytes of the folder's files.
    """

    case: Case
    folder: Path
    archive: Path
    attachment: Path
    sha256: str
    size: int


def hand_over(
    project: Project, request: Request, wanted: str, to: Path | None, listener: Listener, cancel: threading.Event
) -> Handed:
    """Write the folder of one cell.

    Args:
        wanted: Id of the cell, or a glob that matches one alone; empty = the failure that `invoke issue` shows.
        to: Where to; `handoff/<repro>` in the checkout if not given.

    Raises:
        UserError: No cell, or several, match; its result is nothing that can be reproduced; `to` is something else.
        InfraError: It could not be run, or the disk is full.
    """
    case = _case(project, request, wanted, listener, cancel)
    folder = (to or project.root / "handoff" / case.cell.repro.name).absolute()
    found, warnings = files(case, project, Redactor.of_this_machine(project))
    for warning in warnings:
        listener.warn(warning)
    if major := hosted_cuda(case.cell):
        twin = f"; {case.bundled} brings its own" if case.bundled else ""
        listener.warn(f"whoever gets it must have the libraries of CUDA {major} (`--cuda FOLDER`){twin}")
    if (folder / NAME).is_file():
        listener.note(f"replaces the handoff that is in {folder}")
    archive, attachment = (folder.with_name(folder.name + suffix) for suffix in (".tar.zst", ".tgz"))
    content = tar(found, folder.name)
    packed = {archive: zst(content), attachment: gz(content)}
    try:
        _write(found, folder)
        for path, compressed in packed.items():
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(compressed)
            part.replace(path)
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        raise InfraError(what, where=str(folder), hint="free space or rights") from error
    size = sum(len(content) for content, _ in found.values())
    return Handed(case, folder, archive, attachment, hashlib.sha256(packed[archive]).hexdigest(), size)


def pick(cells: Sequence[Cell], kept: Mapping[str, CellResult], wanted: str) -> Cell:
    """The cell that `wanted` names, or the failure that `to_show` takes of what is kept, or the only one there is.

    Raises:
        UserError: None or several match; lists them with what is known of them.
    """
    if wanted:
        found = [cell for cell in cells if cell.id == wanted] or [
            cell for cell in cells if fnmatchcase(cell.id, wanted.replace("[", "[[]"))
        ]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} cells match --cell {wanted}, and one is wanted"
        raise UserError(what, hint=_choices(found or cells, kept))
    shown = to_show([kept[cell.id] for cell in cells if cell.id in kept])
    if shown is not None:
        return next(cell for cell in cells if cell.id == shown.id)
    if len(cells) == 1:
        return cells[0]
    raise UserError("no failure of it is kept, so that a cell must be named", hint=_choices(cells, kept))


def _choices(cells: Sequence[Cell], kept: Mapping[str, CellResult]) -> str:
    lines = [f"{cell.id}  {kept[cell.id].outcome.value if cell.id in kept else 'not run'}" for cell in cells[:MOST]]
    more = [f"and {len(cells) - MOST} more: `uv run invoke cells`"] if len(cells) > MOST else []
    return "\n    ".join(["say which with --cell ID; the choices:", *lines, *more])


def _case(project: Project, request: Request, wanted: str, listener: Listener, cancel: threading.Event) -> Case:
    """The cell to hand over with its result, run where none is kept.

    Raises:
        UserError, InfraError: See `hand_over`.
    """
    matrix, repros = load(project)
    cells, known = known_of_one(project, matrix, repros, request)
    known = tuple(one for one in known if one.attempts and one.outcome is not Outcome.INFRA)
    # Of two engines' results that in a container comes first, and counts: it is what the reader starts.
    kept = {one.id: one for one in reversed(known)}
    shown = None if wanted else to_show(known)
    cell = pick(cells, kept, shown.id if shown else wanted)
    result = shown or kept.get(cell.id)
    if result is None:
        listener.note(f"no result of {cell.id} is kept: it is run now")
        result = _run(project, request, cell, listener, cancel)
    # What is claimed may depend on the engine that ran it.
    same = replace(request, repro=cell.repro.name, env=cell.environment.id)
    described = choose(matrix, repros, same, result.engine or matrix.run.engine).cells
    cell = next((one for one in described if one.id == cell.id), cell)
    if result.outcome is Outcome.INFRA:
        raise InfraError(f"it could not be run: {result.reason}", where=cell.id)
    if why := refusal(cell, result):
        raise UserError(f"this cell cannot be handed over: {why}", where=cell.id, hint="choose another with --cell")
    lock = read_lock(project.locks / f"{cell.environment.id}.txt", cell.environment)
    if lock.hash != result.identity:
        again = f"uv run invoke matrix --repro {cell.repro.name} --env {cell.environment.id}"
        raise UserError("its environment was locked anew since it ran", where=cell.id, hint=f"run it again: `{again}`")
    return Case(
        cell, result, lock, matrix, _bundled(cell, choose(matrix, repros, everywhere(request), result.engine).cells)
    )


def everywhere(request: Request) -> Request:
    """`request` in all environments and targets."""
    return replace(request, env="*", target="", params=(), single=False)


def _bundled(cell: Cell, others: Iterable[Cell]) -> str:
    """The id of the same cell where NVIDIA's wheels bring CUDA, of the same major if there is one; empty otherwise."""
    major = hosted_cuda(cell)
    same = [
        one
        for one in others
        if (one.repro.name, one.target, one.params) == (cell.repro.name, cell.target, cell.params)
        and one.environment.jax == cell.environment.jax
        and one.environment.cuda.isdigit()
    ]
    return min(same, key=lambda one: one.environment.cuda != major).id if major and same else ""


def _run(project: Project, request: Request, cell: Cell, listener: Listener, cancel: threading.Event) -> CellResult:
    """Run `cell` as `invoke run` does, by as many attempts as it asks for.

    Raises:
        KeyboardInterrupt: It was interrupted.
        InfraError: There is no engine, no disk, no network.
    """
    params = tuple((name, word(value)) for name, value in cell.params)
    asked = replace(
        request, repro=cell.repro.name, env=cell.environment.id, target=cell.target, params=params, single=True
    )
    done = run_matrix(project, asked, listener, cancel)
    if done.interrupted:
        raise KeyboardInterrupt
    return done.cells[0]


def _strange(found: Files, folder: Path) -> list[str]:
    """Files in `folder` that no handoff has: they would be lost."""
    if not folder.is_dir():
        return []
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    sometimes = {"Dockerfile.wheels", "stacks.py", "stacks.txt"}  # not every cell has them
    tops = {Path(name).parts[0] for name in found} | sometimes
    return sorted(name for name in names if Path(name).parts[0] not in tops)


def _write(found: Files, folder: Path) -> None:
    """Put `found` at `folder`, in the place of an earlier one.

    Raises:
        UserError: Something else lies there.
        OSError: The disk failed or is full; what lay there is as it was.
    """
    if folder.exists() and not (folder / NAME).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("something else is there already", where=str(folder), hint="give another folder with --to")
    if strange := _strange(found, folder):
        raise UserError(
            f"files of yours are there: {', '.join(strange[:3])}",
            where=str(folder),
            hint="give another folder with --to",
        )
    part, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old"))
    for leftover in (part, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        for name, (content, executable) in found.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if executable else 0o644)
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
    finally:
        for leftover in (part, old):
            shutil.rmtree(leftover, ignore_errors=True)
