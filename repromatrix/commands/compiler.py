"""Commands on what the compiler does: two environments held against each other, and GPUs described."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from repromatrix.commands.common import command, pairs, uses_store
from repromatrix.errors import InfraError, UserError
from repromatrix.output import complain, say
from repromatrix.plan import Request
from repromatrix.project import find_project
from repromatrix.spec.model import Outcome


@command
@uses_store
def diff(
    first: str, second: str, request: Request, params: tuple[str, ...], *, flags: bool, markdown: str, json: str
) -> int:
    from repromatrix.compare import compare
    from repromatrix.files import write_atomically
    from repromatrix.report import diff as report
    from repromatrix.report.document import check_path, write_json
    from repromatrix.ui.progress import listener

    request = replace(request, params=pairs(params))
    if (request.target or request.params) and not request.repro:
        raise UserError("--target and --param choose cells of a repro", hint="add --repro NAME")
    for path in filter(None, (json, markdown)):
        check_path(path)
    project = find_project()
    with listener() as ear:
        found = compare(project, first, second, request, ear, threading.Event(), flags=flags)
    if json:
        write_json(json, report.document(found, request.command))
    if markdown:
        write_atomically(Path(markdown), report.markdown(found))
    say(report.text(found), stream=sys.stderr if json == "-" else sys.stdout)
    ran = [cell for changes in found.cells for cell in (changes.first, changes.second)]
    if any(cell.outcome is Outcome.INFRA for cell in ran):
        return InfraError.exit_code
    if ran and all(
        changes.missing and not (changes.first.attempts and changes.second.attempts) for changes in found.cells
    ):
        complain("error: no cell could be compiled in both environments; the reasons are above")
        return UserError.exit_code
    return 0


@command
@uses_store
def target(name: str, request: Request, params: tuple[str, ...], json: str) -> int:
    from repromatrix.capture import capture
    from repromatrix.report.document import check_path, write_json
    from repromatrix.ui.progress import listener

    if not name:
        raise UserError("nothing to do", hint="--capture NAME describes the GPU of this machine as target NAME")
    if json:
        check_path(json)
    project = find_project()
    with listener() as ear:
        found = capture(project, name, replace(request, params=pairs(params)), ear, threading.Event())
    paths = {"describe": found.description, **({"autotune": found.autotune} if found.autotune else {})}
    named = {key: str(path.relative_to(project.root)) for key, path in paths.items()}
    if json:
        write_json(json, {"schema": 1, "environment": found.environment, "target": name, **named})
    if json != "-":
        lines = [f'{key} = "{path}"' for key, path in named.items()]
        say("\n".join([found.said, "now in matrix.toml:", "", f"[targets.{name}]", *lines]))
    return 0
