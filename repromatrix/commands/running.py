"""Commands that end in cells: run them, list them, report them."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

from repromatrix.commands.common import command, count, pairs, typed, uses_store
from repromatrix.errors import InfraError
from repromatrix.output import complain, say
from repromatrix.plan import Request
from repromatrix.project import find_project


@command
@uses_store
def matrix(request: Request, json: str = "", *, jobs: str = "", repeat: str = "") -> int:
    from repromatrix.flow import run_matrix
    from repromatrix.kept import known_cells
    from repromatrix.report.document import check_path, document, exit_code, write_json
    from repromatrix.report.table import render_table
    from repromatrix.report.write import out_of_date, write_reports
    from repromatrix.ui.progress import listener, use_colour
    from repromatrix.ui.summary import summary

    request = replace(request, jobs=count("jobs", jobs), repeat=count("repeat", repeat))
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


@command
@uses_store
def run(request: Request, params: tuple[str, ...], json: str) -> int:
    from repromatrix.flow import run_matrix
    from repromatrix.report.document import check_path, document, exit_code, write_json
    from repromatrix.report.table import render_table
    from repromatrix.ui.progress import listener, use_colour

    if json:
        check_path(json)
    wanted = pairs(params)
    project = find_project()
    with listener(live=False) as ear:
        asked = replace(request, params=wanted, single=True)
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
