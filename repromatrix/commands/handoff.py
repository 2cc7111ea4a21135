"""The command that hands a cell over to whoever must believe it."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from repromatrix.commands.common import command, pairs, uses_store
from repromatrix.output import say
from repromatrix.plan import Request
from repromatrix.project import find_project


@command
@uses_store
def handoff(request: Request, cell: str, params: tuple[str, ...], *, to: str, json: str) -> int:
    from repromatrix.report.document import check_path, write_json
    from repromatrix.share.handoffs.handoff import hand_over
    from repromatrix.ui.progress import listener

    if json:
        check_path(json)
    project = find_project()
    asked = replace(request, params=pairs(params))
    with listener(live=False) as ear:
        done = hand_over(project, asked, cell, Path(to) if to else None, ear, threading.Event())
    result = done.case.result
    title = result.signature.title if result.signature is not None else ""
    if json:
        write_json(
            json,
            {
                "schema": 1,
                "cell": result.id,
                "outcome": result.outcome.value,
                "signature": title,
                "folder": str(done.folder),
                "archive": str(done.archive),
                "attachment": str(done.attachment),
                "sha256": done.sha256,
                "bytes": done.size,
            },
        )
    said = [f"{result.id}: {result.outcome.value} {title}".rstrip()]
    said.append(f"wrote {done.folder}, {done.archive.name} and {done.attachment.name} (to attach to an issue)")
    said.append("whoever gets one of them runs `sh reproduce.sh` there")
    said.append(f"sha256 of the archive: {done.sha256}")
    say("\n".join(said), stream=sys.stderr if json == "-" else sys.stdout)
    return 0
