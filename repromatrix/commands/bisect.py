"""`invoke bisect`: since when a repro fails, and until when."""

from __future__ import annotations

import threading
from dataclasses import replace

from repromatrix.commands.common import command, count, pairs, uses_store
from repromatrix.commands.searching import Places, Sure, page_name
from repromatrix.plan import Request
from repromatrix.project import find_project
from repromatrix.regressions.model import Wanted


@command
@uses_store
def bisect(
    request: Request, wanted: Wanted, sure: Sure, params: tuple[str, ...], *, jobs: str, markdown: str, json: str
) -> int:
    from repromatrix.regressions.bisection import report
    from repromatrix.regressions.bisection.bisect import bisect as search
    from repromatrix.regressions.bisection.document import document, exit_code
    from repromatrix.ui.progress import listener

    asked = replace(request, jobs=count("jobs", jobs), params=pairs(params))
    rules, places = sure.rules(), Places(markdown, json)
    places.check()
    project = find_project()
    with listener() as ear:
        found = search(project, asked, wanted, rules, ear, threading.Event())
    answered = not found.refused and not found.interrupted
    name = (
        page_name("bisect", found.repro, found.target, found.params, found.series.axis)
        if answered and found.edges
        else ""
    )
    places.publish(
        *(project, name, report.markdown(found)),
        text=lambda colour: report.text(found, colour=colour),
        document=lambda: document(found),
    )
    if found.interrupted:
        raise KeyboardInterrupt
    if found.trouble is not None:
        raise found.trouble
    return exit_code(found)
