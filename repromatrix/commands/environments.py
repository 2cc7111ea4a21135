"""The steps before a run, on their own: locks, wheels, Dockerfiles, images and venvs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from repromatrix.commands.common import command, uses_store
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError, ReproError
from repromatrix.events import Listener
from repromatrix.output import say
from repromatrix.plan import Request, Selection
from repromatrix.project import Project, find_project
from repromatrix.report.layout import counted
from repromatrix.spec.model import Environment


@command
def lock(request: Request, *, check: bool, refresh: bool, bases: bool, json: str) -> int:
    from repromatrix.envs.lock import check as check_locks
    from repromatrix.envs.lock import lock_all
    from repromatrix.envs.model import Impossible
    from repromatrix.envs.upstream import KINDS
    from repromatrix.plan import choose, read
    from repromatrix.report.document import write_json
    from repromatrix.spec.host import anywhere
    from repromatrix.ui.progress import listener

    project = find_project()
    selection = read(project, request)
    if bases:
        from repromatrix.envs.base import resolve_digests
        from repromatrix.envs.daemon import address

        for python, reference in resolve_digests(selection.matrix, address()).items():
            say(f'[bases."{python}"]\nimage = "{reference}"')
        return 0
    environments = environments_of(selection)
    with listener() as ear:
        if check:
            every = choose(anywhere(selection.matrix), selection.repros, Request(env="*"), "")
            described = {environment.id for environment in environments_of(every)}
            drifts = check_locks(environments, selection.matrix, project, ear, described=described)
            if json:
                write_json(json, {"schema": 1, "drift": [drift.as_dict() for drift in drifts]})
            for drift in drifts:
                say(drift, stream=sys.stderr if json == "-" else sys.stdout)
            if any(drift.kind in KINDS for drift in drifts):
                say(
                    "keep what the index has lost while the store has it: uv run invoke archive PLACE",
                    stream=sys.stderr if json == "-" else sys.stdout,
                )
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


def environments_of(selection: Selection) -> tuple[Environment, ...]:
    return tuple(dict.fromkeys(cell.environment for cell in selection.cells))


@command
@uses_store
def fetch(request: Request, json: str) -> int:
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.ready import fetch_missing
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
        say(f"{counted(len(rows), 'environment')} complete in {project.store}; {total / 1e6:.0f} MB fetched")
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
@uses_store
def build(request: Request, json: str) -> int:
    from repromatrix.engines.choose import choose_engine
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.ready import fetch_missing
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
    states = lock_all(environments_of(selection), selection.matrix, project, ear, offline=request.offline)
    for environment, state in states.items():
        if isinstance(state, InfraError):
            raise state
        if isinstance(state, Impossible):
            ear.note(f"{environment.id} cannot exist: {state.reason}")
        else:
            locks.append(state)
    return selection, locks
