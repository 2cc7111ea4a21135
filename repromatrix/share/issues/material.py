"""What a bug report is made of, gathered from kept results and made fit to leave this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from repromatrix import __version__
from repromatrix.engines.attempt import own_bytes
from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.model import Lock
from repromatrix.errors import UserError
from repromatrix.events import Listener
from repromatrix.evidence.stacks import INDEX, parse_index, thread_first
from repromatrix.evidence.text import condense
from repromatrix.kept import known_of_one, report_info, to_show
from repromatrix.plan import Request, load
from repromatrix.project import TOOL_ROOT, Project
from repromatrix.report.layout import Notes
from repromatrix.results.model import AttemptResult, CellResult, RunInfo
from repromatrix.share.handoffs.readme import host_setup, hosted_cuda
from repromatrix.share.handoffs.standalone import refusal
from repromatrix.share.issues.env_block import EnvironmentInfo, environment_info
from repromatrix.share.issues.history import History, histories
from repromatrix.share.issues.releases import Release, release
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.model import Cell, Outcome, Repro, word

_WORK = re.compile(r"(?:/[^\s/\"']+)*/\.repromatrix/evidence/[0-9a-f]{2}/[0-9a-f]{64}/\d+/work/")
"""The folder of an attempt on any machine: results may have come in an archive."""
_FILE = 100_000
"""Characters of a file beside the script at most."""


@dataclass(frozen=True, slots=True)
class Material:
    """All that a bug report says; nothing private is in it.

    Attributes:
        repro: With its script.
        others: (name, text) of the files that the script needs beside it.
        altered: Names of those, and of the script, in which something private was replaced.
        cells: Of the repro, of all engines.
        shown: The failing cell that the report shows, or None where none fails.
        attempt: Of `shown`, the one whose logs are shown.
        histories: Where failures begin and end.
        releases: (environment id, release) pairs of the cells in the histories.
        info: What the environment of `shown` says of itself; None where nothing fails.
        by_hand: Shell command that runs `shown` without this tool; empty where there is none.
        handoff: Command that writes `shown` as a folder that reproduces it; empty where it cannot be handed over.
        cuda: Major version of CUDA whose libraries `shown` takes from the host that it runs on; empty where none.
        setup: Variables of `shown` that are there for the GPUs of this host alone: `NAME=value`.
        logs: (what, text) of the logs and stacks of `attempt`.
        tool: Version and commit of this tool.
    """

    repro: Repro
    cells: tuple[CellResult, ...]
    run: RunInfo
    tool: str
    others: tuple[tuple[str, str], ...] = ()
    altered: tuple[str, ...] = ()
    shown: CellResult | None = None
    attempt: AttemptResult | None = None
    histories: tuple[History, ...] = ()
    releases: tuple[tuple[str, Release], ...] = ()
    info: EnvironmentInfo | None = None
    by_hand: str = ""
    handoff: str = ""
    cuda: str = ""
    setup: tuple[str, ...] = ()
    logs: tuple[tuple[str, str], ...] = ()


def gather(
    project: Project, request: Request, listener: Listener, cancel: threading.Event
) -> tuple[Material, Redactor]:
    """Gather what is known of the repro that `request` names; nothing runs but `jax.print_environment_info()`.

    Returns:
        The material, and the redactor that made it fit, for the text as a whole.

    Raises:
        UserError: The files are wrong, the request means no repro or several, or nothing is kept of it.
        InfraError: The results cannot be read.
        KeyboardInterrupt: `cancel` was set.
    """
    matrix, repros = load(project)
    selected, cells = known_of_one(project, matrix, repros, request)
    repro = selected[0].repro
    if repro.probe:
        raise UserError(
            f"{repro.name} is a probe: it runs no program that could fail",
            hint=f"`uv run invoke report` writes reports/{repro.name}.md, which shows what it found",
        )
    by_id = {cell.id: cell for cell in selected}
    if not any(cell.attempts for cell in cells):
        raise UserError(
            f"no result of {request.repro} as it is now is kept" + (" for these cells" if _narrowed(request) else ""),
            hint=f"run it first: uv run invoke matrix --repro {shlex.quote(request.repro)}",
        )
    redactor = Redactor.of_this_machine(project, (address for _, address in matrix.indexes))
    clean = redactor.all(cells)  # before anything is numbered: what is private may be all that tells two failures apart
    told = histories(clean, Notes(clean))
    ends = {cell.environment for each in told for cell in (*each.cells[:1], *each.cells[-1:], *_at_edges(each))}
    by_name = {cell.environment.id: cell.environment for cell in selected}
    environments = {same.environment: by_name[cell.environment] for cell, same in zip(cells, clean, strict=True)}
    found = Material(
        repro=repro,
        cells=clean,
        run=report_info(request.command, clean),
        tool=_tool(),
        others=tuple((name, _text(repro.path.parent / name)) for name in repro.files),
        histories=told,
        releases=tuple((name, release(environments[name], project)) for name in sorted(ends)),
    )
    if (shown := to_show(cells)) is not None:
        cell = by_id[shown.id]
        number = deciding(shown)
        same = clean[cells.index(shown)]
        lock = _lock(cell, project)
        if lock is None or dict(shown.facts).get("lock", lock.hash) != lock.hash:
            pins: tuple[str, ...] = ()
            info = EnvironmentInfo("", f"the lock of {cell.environment.id} is not the one that it ran with")
        else:
            pins = tuple(f"{wheel.name}=={wheel.version}" for wheel in lock.wheels)
            on = replace(request, engine=shown.engine)
            info = environment_info(project, matrix, cell, on, listener, cancel)
        found = replace(
            found,
            shown=same,
            attempt=same.attempts[number],
            info=info,
            by_hand=by_hand(cell, pins),
            handoff="" if refusal(cell, shown) or not pins else handoff(cell, shown),
            cuda=hosted_cuda(cell),
            setup=tuple(f"{name}={value}" for name, value in host_setup(matrix, cell)),
            logs=tuple(logs(project, shown.attempts[number])),
        )
    return fit_to_leave(found, redactor), redactor


def fit_to_leave(found: Material, redactor: Redactor) -> Material:
    """`found` with nothing private in it. Before it is rendered: what Markdown escapes, no rule would know again."""
    clean: Material = redactor.all(found)
    before = ((found.repro.path.name, found.repro.source), *found.others)
    after = (clean.repro.source, *(text for _, text in clean.others))
    altered = tuple(name for (name, old), new in zip(before, after, strict=True) if old != new)
    return replace(clean, altered=altered)


def by_hand(cell: Cell, pins: Iterable[str]) -> str:
    """The shell command that runs `cell` with nothing but Python and pip.

    Empty where plain Python cannot: a program that is compiled for GPUs that are not there, and one of several ranks.
    """
    pins = tuple(pins)
    if cell.described is not None or cell.repro.processes > 1 or not pins:
        return ""
    words = [part for name, value in cell.params for part in (f"--{name}", word(value))]
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in cell.env)
    run = " ".join(filter(None, [variables, "venv/bin/python", shlex.join([cell.repro.path.name, *words])]))
    return "\n".join(
        [
            f"python{cell.environment.python} -m venv venv &&",
            f"venv/bin/pip install --no-deps {' '.join(pins)} &&",
            run,
        ]
    )


def handoff(cell: Cell, result: CellResult) -> str:
    """The command that hands `cell` over, as `result` tells of it."""
    engine = ["--engine", result.engine] if result.engine else []
    return shlex.join(["uv", "run", "invoke", "handoff", cell.repro.name, "--cell", cell.id, *engine])


def _narrowed(request: Request) -> bool:
    return bool(request.env or request.target or request.engine)


def _at_edges(history: History) -> list[CellResult]:
    return [cell for edge in history.edges for cell in (edge.good, edge.bad)]


def _lock(cell: Cell, project: Project) -> Lock | None:
    try:
        return read_lock(project.locks / f"{cell.environment.id}.txt", cell.environment)
    except UserError:  # it has gone, or was changed by hand
        return None


def deciding(cell: CellResult) -> int:
    """The place of the first attempt that ended as the cell is said to have ended."""
    same = [place for place, one in enumerate(cell.attempts) if one.outcome is cell.outcome]
    return next((place for place in same if cell.attempts[place].signature == cell.signature), same[0])


def logs(project: Project, attempt: AttemptResult) -> Iterable[tuple[str, str]]:
    """What the attempt printed, and its stacks, what tells most first; files that were deleted since are left out."""
    folder = project.root / attempt.evidence
    first = {f"{name}.{rank.rank}" for rank in attempt.ranks if rank.role == "first" for name in ("stderr", "stdout")}
    kinds = ("stderr", "stacks/", "stdout")
    files = attempt.files or (("stderr", "stderr"), ("stdout", "stdout"))  # a result of before there was a list
    told = [(label, path) for label, path in files if path.startswith(kinds)]
    crashed = {stack.file: stack.thread for stack in parse_index(_text(folder / INDEX)).stacks}
    for label, path in sorted(told, key=lambda each: (_kind(each[1], kinds), each[1] not in first)):
        text = thread_first(_evidence(folder, path), crashed.get(path))
        if text.strip():
            yield label, _WORK.sub("", text.replace(f"{folder / 'work'}/", ""))


def _kind(path: str, kinds: Sequence[str]) -> int:
    return next(place for place, kind in enumerate(kinds) if path.startswith(kind))


def _evidence(folder: Path, path: str) -> str:
    try:
        return condense(BytesIO(own_bytes(folder, path)))
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:_FILE]
    except (OSError, UnicodeDecodeError):  # an image, an archive: its name is all that a text can say of it
        return ""


def _tool() -> str:
    """`0.1.0 (commit 477e816a5c3f)`, with the commit where this tool runs from a checkout of git."""
    if not (TOOL_ROOT / ".git").exists():
        return __version__
    try:
        asked = ("git", "-C", str(TOOL_ROOT), "rev-parse", "--short=12", "HEAD")
        commit = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} (commit {commit})"


def nothing_fails(cells: Sequence[CellResult]) -> str:
    """What the kept results say where none of them is a failure; never that a version is good which nothing proves."""
    good = sum(cell.outcome is Outcome.OK for cell in cells)
    silent = len(cells) - good
    said = f"{good} cells are ok" if good != 1 else "1 cell is ok"
    if not silent:
        return f"Nothing fails: {said}."
    others = ", ".join(
        f"{number} {outcome.value}" for outcome in Outcome if (number := sum(c.outcome is outcome for c in cells))
        and outcome is not Outcome.OK
    )  # fmt: skip
    return f"Nothing is known to fail: {said}, and of {silent} nothing is known ({others})."
