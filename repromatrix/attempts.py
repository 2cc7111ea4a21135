"""An attempt before it runs: the program, the script and the files it needs, laid out in the attempt's folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from repromatrix.engines.attempt import SUPERVISOR
from repromatrix.engines.base import Attempt
from repromatrix.engines.local_cuda import CudaLibraries
from repromatrix.errors import UserError
from repromatrix.evidence.outcome import COMPILE, PROBE
from repromatrix.spec.model import Cell, Described, Repro, word

_PROGRAMS = SUPERVISOR.parent


def lay_out(
    cell: Cell,
    ident: str,
    folder: Path,
    devices: tuple[int, ...],
    *,
    cores: str,
    tools: Path | None,
    cuda: CudaLibraries | None = None,
) -> Attempt:
    """Put what runs, and the files it needs, into the attempt's folder.

    Of a deviceless cell `compile.py` runs, with the script and the description of the GPUs; of a probe `probe.py` runs;
    of any other cell the script itself.

    Raises:
        UserError: A file of the repro or of the target has gone or was changed since it was read.
    """
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    repro, gpus = cell.repro, cell.described
    script, arguments = repro.path.name, [*_parameters(cell)]
    if repro.probe:
        script, arguments = PROBE, [*_looked_up(repro)]
    else:
        _copy_repro(repro, work)
    if gpus is not None:
        description, tuned = gpus.description.name, gpus.autotune_name
        _copy_described(gpus, work)
        told = [script, description, "--topology", gpus.topology, *(["--autotune", tuned] if tuned else [])]
        script, arguments = COMPILE, [*told, "--", *arguments]
    if repro.probe or gpus is not None:
        _add(_PROGRAMS / script, work / script)
    return Attempt(
        id=ident,
        folder=folder,
        script=script,
        arguments=tuple(arguments),
        env=cell.env,
        timeout=cell.timeout,
        memory=cell.memory,
        cpus=repro.cpus,
        gpus=len(devices),
        devices=devices,
        processes=repro.processes,
        cores=cores,
        tools=tools,
        cuda=cuda,
    )


def _parameters(cell: Cell) -> Iterator[str]:
    for name, value in cell.params:
        yield from (f"--{name}", word(value))


def _looked_up(repro: Repro) -> Iterator[str]:
    """The options of `probe.py`; each with its value in one word, as a text may begin with a dash."""
    yield from (f"--package={name}" for name in repro.libraries)
    yield from (f"--string={text}" for text in repro.strings)
    yield from (f"--symbol={text}" for text in repro.symbols)
    yield from (f"--flag={flag}" for flag in repro.flags)


def _copy_repro(repro: Repro, work: Path) -> None:
    from repromatrix.spec.repro import content_hash

    for name in (repro.path.name, *repro.files):
        _copy(repro.path.parent / name, work / name)
    if content_hash(work, repro.path.name, repro.files) != repro.sha256:
        raise UserError(
            "the script or a file it needs was changed during the run", where=str(repro.path), hint="run again"
        )


def _copy_described(gpus: Described, work: Path) -> None:
    files = [(gpus.description, gpus.description.name, gpus.description_sha256)]
    if gpus.autotune is not None:
        files.append((gpus.autotune, gpus.autotune_name, gpus.autotune_sha256))
    for source, name, sha256 in files:
        _add(source, work / name)
        if hashlib.sha256((work / name).read_bytes()).hexdigest() != sha256:
            raise UserError("this file was changed during the run", where=str(source), hint="run again")


def _add(source: Path, target: Path) -> None:
    """Copy a file of the tool or of the target beside those of the repro, over none of them."""
    if target.exists():
        raise UserError(
            f"a file of the repro is called {target.name}, as one that the tool puts beside it",
            hint="give it another name",
        )
    _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        raise UserError(
            "the file has gone", where=str(source), hint="restore it, or correct what names it: `files`, `[targets]`"
        ) from None
