"""The command that keeps the store small."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

from repromatrix.commands.common import command, size, typed
from repromatrix.errors import UserError
from repromatrix.output import say
from repromatrix.project import find_project


@command
def gc(keep: str, *, dry_run: bool, json: str) -> int:
    from repromatrix.report.document import check_path, write_json
    from repromatrix.share.upkeep import gc_report, spare_images
    from repromatrix.share.upkeep.gc import finish, plan, remove
    from repromatrix.share.upkeep.parts import measure
    from repromatrix.share.upkeep.references import references
    from repromatrix.share.upkeep.users import alone, checkouts, forget_gone
    from repromatrix.ui.progress import listener

    if dry_run and not keep:
        raise UserError("--dry-run needs --keep", hint="`uv run invoke gc` alone tells what the store holds")
    cap = size("keep", keep) if keep else 0  # without a cap: all that could go
    removes = bool(keep) and not dry_run
    if json:
        check_path(json)
    project = find_project()
    with listener() as ear, alone(project, typed()) if removes else nullcontext():
        if removes:
            finish(project.store)
            forget_gone(project)
        roots = checkouts(project)
        refers = references(project, roots)
        parts = measure(project.store, refers, time.time(), ear)
        planned = plan(parts, cap)
        engine = spare_images.engine()
        images = spare_images.spare(engine, refers) if engine is not None else None
        dropped = spare_images.drop(engine, images, ear) if removes and engine is not None and images else ()
        if removes:
            remove(planned.parts, project.store, ear)
    seen = gc_report.Upkeep(project.store, roots, refers.unknown, parts, planned, bool(keep), removes, images, dropped)
    if json:
        write_json(json, gc_report.document(seen))
    say(gc_report.text(seen), stream=sys.stderr if json == "-" else sys.stdout)
    return int(bool(keep and planned.over))
