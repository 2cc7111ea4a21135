"""`invoke issue`: the text of a bug report, from kept results."""

from __future__ import annotations

import threading
from pathlib import Path

from repromatrix.commands.common import command, uses_store
from repromatrix.errors import InfraError
from repromatrix.output import complain, say
from repromatrix.plan import Request
from repromatrix.project import find_project


@command
@uses_store
def issue(request: Request, *, to: str, json: str) -> int:
    from repromatrix.envs.disk import write_text
    from repromatrix.report.document import check_path, document, write_json
    from repromatrix.share.issues.issue import issue_text, issue_title
    from repromatrix.share.issues.material import gather, nothing_fails
    from repromatrix.ui.progress import listener

    for path in filter(None, (to, json)):
        check_path(path)
    project = find_project()
    with listener() as ear:
        found, redactor = gather(project, request, ear, threading.Event())
    text, title = issue_text(found, redactor), issue_title(found)
    if to and to != "-":
        write_text(Path(to), text)
    if json:
        made = {"title": title, "text": text, "altered": list(found.altered), "tool": found.tool}
        write_json(json, {**document(found.cells, found.run), "issue": made})
    if to in ("", "-") and json != "-":
        say(text.rstrip("\n"))
    complain(f"title: {title}")
    if found.handoff:
        complain(f"attach handoff/{found.repro.name}.tgz, which this writes: {found.handoff}")
    if found.altered:
        complain(f"private words were replaced in {', '.join(found.altered)}: what the report shows may not run")
    if found.shown is None:
        complain(f"error: {nothing_fails(found.cells)}")
        return 1
    if found.info is not None and not found.info.text:
        complain(f"error: the environment block is missing: {found.info.trouble}")
        return InfraError.exit_code
    return 0
