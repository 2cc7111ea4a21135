"""The commands behind the invoke tasks: call the flow, print, write `--json`, give the exit code."""

from __future__ import annotations

import functools
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError, ReproError, UserError
from repromatrix.events import Listener
from repromatrix.files import write_atomically
from repromatrix.output import complain, say, standard_streams
from repromatrix.plan import Request, Selection
from repromatrix.project import Project, find_project

Command = Callable[..., int]


def command(function: Command) -> Command:
    """Turn errors into messages and exit codes: nothing a user can cause ends in a traceback."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> int:
        standard_streams()
        try:
            return function(*args, **kwargs)
        except ReproError as error:
            complain(f"error: {error}")
            return error.exit_code
        except OSError as error:  # a place that nobody thought could fail: it is still the machine's trouble
            complain(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
            return InfraError.exit_code
        except KeyboardInterrupt:
            complain("interrupted: what was finished is kept; the same command continues")
            return 130

    return run


def _count(option: str, text: str) -> int:
    """A number of the command line; empty = 0.

    Raises:
        UserError: It is none, or not within bounds.
    """
    if not text:
        return 0
    most = 10_000
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise UserError(f"--{option} {text!r} is not a number from 1 to {most}", hint=f"for example --{option} 2")
    return int(text)


@command
def matrix(request: Request, json: str = "", *, jobs: str = "", repeat: str = "") -> int:
    from repromatrix.flow import run_matrix
    from repromatrix.kept import known_cells
    from repromatrix.report.document import check_path, document, exit_code, write_json
    from repromatrix.report.table import render_table
    from repromatrix.report.write import out_of_date, write_reports
    from repromatrix.ui.progress import listener, use_colour
    from repromatrix.ui.summary import summary

    request = replace(request, jobs=_count("jobs", jobs), repeat=_count("repeat", repeat))
    if json:
        check_path(json)
    project = find_project()
    with listener() as ear:
        run = run_matrix(project, request, ear, threading.Event())
        if run.info.attempted or out_of_date(project, {cell.repro for cell in run.cells}):
            repros = run.selection.repros
            write_reports(project, repros, known_cells(project, run.selection.matrix, repros), run.info)
    if json:
        write_json(json, document(run.cells, run.info))
    out = sys.stderr if json == "-" else sys.stdout
    say(render_table(run.cells, colour=use_colour(out)), stream=out)
    say(summary(run.cells, run.info, project.reports.relative_to(project.root)), stream=out)
    if run.interrupted:
        raise KeyboardInterrupt
    for cell in run.short:
        complain(f"{cell}: infrastructure failed in some attempts; the same command makes up for them")
    return exit_code(run.cells) or (InfraError.exit_code if run.short else 0)


@command
def cells(request: Request, json: str = "") -> int:
    from repromatrix.engines.choose import count_gpus
    from repromatrix.envs.lockfile import read_impossible
    from repromatrix.plan import bars, read
    from repromatrix.report.document import write_json
    from repromatrix.report.listing import listing, listing_document

    project = find_project()
    selection = read(project, request)
    not_here = bars(selection.cells, count_gpus())
    known = read_impossible(project.locks)
    for cell in selection.cells:
        if cell.environment.id in known:
            not_here.setdefault(cell, known[cell.environment.id])
    if json:
        write_json(json, listing_document(selection.cells, not_here, selection.excluded))
    if json != "-":
        say(listing(selection.cells, not_here, selection.excluded, selection.described))
    return 0


def typed() -> str:
    """The command line as the user would type it again."""
    return "uv run invoke " + shlex.join(sys.argv[1:])


@command
def lock(request: Request, *, check: bool, refresh: bool, bases: bool, json: str) -> int:
    from repromatrix.envs.lock import check as check_locks
    from repromatrix.envs.lock import lock_all
    from repromatrix.envs.model import Impossible
    from repromatrix.plan import choose, read
    from repromatrix.report.document import write_json
    from repromatrix.ui.progress import listener

    project = find_project()
    selection = read(project, request)
    if bases:
        from repromatrix.envs.base import resolve_digests
        from repromatrix.envs.daemon import address

        for python, reference in resolve_digests(selection.matrix, address()).items():
            say(f'[bases."{python}"]\nimage = "{reference}"')
        return 0
    environments = _environments(selection)
    with listener() as ear:
        if check:
            every = choose(selection.matrix, selection.repros, Request(env="*"), "")
            described = {environment.id for environment in _environments(every)}
            drifts = check_locks(environments, selection.matrix, project, ear, described=described)
            if json:
                write_json(json, {"schema": 1, "drift": [drift.as_dict() for drift in drifts]})
            for drift in drifts:
                say(drift, stream=sys.stderr if json == "-" else sys.stdout)
            return int(any(drift.serious for drift in drifts))
        locked = lock_all(environments, selection.matrix, project, ear, refresh=refresh)
    failed = 0
    rows: list[dict[str, Any]] = []
    for environment, state in locked.items():
        row: dict[str, Any] = {"environment": environment.id}
        if isinstance(state, ReproError):
            failed, row["infra"] = 3, str(state)
        elif isinstance(state, Impossible):
            row["impossible"] = state.reason
        else:
            row |= {"hash": state.hash, "wheels": len(state.wheels), "bytes": sum(w.size for w in state.wheels)}
        rows.append(row)
        if json != "-":
            say("  ".join(str(value) for value in row.values()))
    if json:
        write_json(json, {"schema": 1, "environments": rows})
    return failed


def _environments(selection: Selection) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(cell.environment for cell in selection.cells))


@command
def fetch(request: Request, json: str) -> int:
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.flow import fetch_missing
    from repromatrix.report.document import write_json
    from repromatrix.ui.progress import listener

    project = find_project()
    rows: list[dict[str, Any]] = []
    with listener() as ear:
        selection, locks = _locked(project, request, ear)
        store = WheelStore(project.store)
        for lock_ in locks:
            fetched = fetch_missing(lock_, selection.matrix, store, ear, threading.Event())
            rows.append({"environment": lock_.id, "fetched": len(fetched), "bytes": sum(w.size for w in fetched)})
    if json:
        write_json(json, {"schema": 1, "environments": rows})
    if json != "-":
        total = sum(row["bytes"] for row in rows)
        say(f"{len(rows)} environments complete in {project.store}; {total / 1e6:.0f} MB fetched")
    return 0


@command
def render(request: Request, *, check: bool, json: str) -> int:
    from repromatrix.envs.base import published
    from repromatrix.envs.image import rendered, write_rendered
    from repromatrix.report.document import write_json
    from repromatrix.ui.progress import listener

    project = find_project()
    stale: list[str] = []
    written: list[str] = []
    with listener() as ear:
        selection, locks = _locked(project, request, ear)
    for lock_ in locks:
        base = published(selection.matrix, lock_.python)
        if check:
            folder = project.rendered / lock_.id
            files = {folder / name: text for name, text in rendered(lock_, base).items()}
            stale += [str(p.relative_to(project.root)) for p, text in files.items() if not _holds(p, text)]
        else:
            written.append(str(write_rendered(lock_, base, project).relative_to(project.root)))
    if json:
        write_json(json, {"schema": 1, "written": written, "stale": stale})
    if json != "-":
        say("\n".join([*(f"out of date: {name}" for name in stale), *written]) or "every Dockerfile is up to date")
    return int(bool(stale))


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


@command
def build(request: Request, json: str) -> int:
    from repromatrix.engines.choose import choose_engine
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.flow import fetch_missing
    from repromatrix.report.document import write_json
    from repromatrix.ui.progress import listener

    project = find_project()
    rows: list[dict[str, Any]] = []
    with listener() as ear:
        selection, locks = _locked(project, request, ear)
        engine = choose_engine(request.engine or selection.matrix.run.engine, project, selection.matrix, ear)
        store = WheelStore(project.store)
        for lock_ in locks:
            known = engine.known(lock_)
            if known is None:
                fetch_missing(lock_, selection.matrix, store, ear, threading.Event(), offline=request.offline)
            made = known or engine.prepare(lock_, ear)
            rows.append({"environment": lock_.id, "identity": made.identity, "base": made.base, "built": known is None})
    if json:
        write_json(json, {"schema": 1, "engine": engine.name, "environments": rows})
    if json != "-":
        for row in rows:
            done = "built" if row["built"] else "was there"
            say(f"{row['environment']}  {done}  {row['identity'][:19]}  {row['base']}")
    return 0


def _locked(project: Project, request: Request, ear: Listener) -> tuple[Selection, list[Lock]]:
    """The selection's environments with their locks; those that cannot exist are told and left out.

    Raises:
        InfraError: An environment could not be locked.
    """
    from repromatrix.envs.lock import lock_all
    from repromatrix.envs.model import Impossible
    from repromatrix.plan import read

    selection = read(project, request)
    locks = []
    states = lock_all(_environments(selection), selection.matrix, project, ear, offline=request.offline)
    for environment, state in states.items():
        if isinstance(state, InfraError):
            raise state
        if isinstance(state, Impossible):
            ear.note(f"{environment.id} cannot exist: {state.reason}")
        else:
            locks.append(state)
    return selection, locks


@command
def run(request: Request, params: tuple[str, ...], json: str) -> int:
    from repromatrix.flow import run_matrix
    from repromatrix.report.document import check_path, document, exit_code, write_json
    from repromatrix.report.table import render_table
    from repromatrix.ui.progress import listener, use_colour

    if json:
        check_path(json)
    wanted: dict[str, str] = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name:
            raise UserError(f"--param {param!r} is not name=value", hint="for example --param per_dev=2048")
        wanted[name] = value
    project = find_project()
    with listener(live=False) as ear:
        asked = replace(request, params=tuple(wanted.items()), single=True)
        done = run_matrix(project, asked, ear, threading.Event())
    if json:
        write_json(json, document(done.cells, done.info))
    say(render_table(done.cells, colour=use_colour(sys.stderr)), stream=sys.stderr)
    if done.interrupted:
        raise KeyboardInterrupt
    return exit_code(done.cells) or (InfraError.exit_code if done.short else 0)


@command
def report(json: str) -> int:
    from repromatrix.kept import known_cells, report_info
    from repromatrix.plan import load
    from repromatrix.report.document import document, exit_code, write_json
    from repromatrix.report.write import write_reports

    project = find_project()
    matrix, repros = load(project)
    kept = known_cells(project, matrix, repros)
    info = report_info(typed(), kept)
    written = write_reports(project, repros, kept, info)
    if json:
        write_json(json, document(kept, info))
    if json != "-":
        say("\n".join(str(path.relative_to(project.root)) for path in written))
    return exit_code(kept)


@command
def regrade(json: str) -> int:
    from repromatrix.kept import regrade as grade_again
    from repromatrix.report.document import write_json

    project = find_project()
    changes, total = grade_again(project)
    if json:
        write_json(json, {"schema": 1, "attempts": total, "changed": [dict(change) for change in changes]})
    if json != "-":
        for change in changes:
            say(f"{change['cell']}#{change['attempt']}: {change['before']} -> {change['after']}")
        say(f"{total} attempts graded again, {len(changes)} changed")
    return 0


@command
def doctor(json: str) -> int:
    from dataclasses import asdict

    from repromatrix.report.document import write_json
    from repromatrix.ui.doctor import findings

    found = []
    for finding in findings(find_project()):
        found.append(finding)
        if json != "-":
            say(f"{finding.level:8} {finding.subject}: {finding.found}")
            if finding.fix:
                say(f"{'':8}   {finding.fix}")
    if json:
        write_json(json, {"schema": 1, "findings": [asdict(finding) for finding in found]})
    return 3 if any(finding.level == "problem" for finding in found) else 0


@command
def new(script: str, name: str) -> int:
    from repromatrix.spec.new import new_repro

    project = find_project()
    try:
        source = sys.stdin.read() if script == "-" else Path(script).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the script: {error}", where=script, hint="give the path of a Python file"
        ) from None
    if script == "-" and not name:
        raise UserError("a script from standard input needs a name", hint="add --name my_repro")
    name = name or Path(script).stem
    target = project.repros / f"{name}.py"
    text = new_repro(source, name, [path.stem for path in project.repros.glob("*.py")])
    write_atomically(target, text)
    say(
        f"wrote {target.relative_to(project.root)}; now: uv run invoke matrix --repro {name}\n"
        "say in its first lines what you claim: docs/repros.md"
    )
    return 0


@command
def test(only: str, quick: bool) -> int:
    import subprocess

    marks = ["-m", "not network and not container and not slow"] if quick else []
    steps = [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "."],
        ["mypy"],
        ["pytest", *marks, *shlex.split(only)],
    ]
    root = find_project().root
    for step in steps:
        say(f"$ {shlex.join(step)}")
        if code := subprocess.run([sys.executable, "-m", *step], cwd=root, check=False).returncode:
            return code
    return 0
