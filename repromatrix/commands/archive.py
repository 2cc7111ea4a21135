"""`invoke archive`: environments, repros, results and this tool in one folder."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from repromatrix.commands.common import command, size, uses_store
from repromatrix.errors import InfraError, UserError
from repromatrix.output import say
from repromatrix.plan import Request
from repromatrix.project import find_project


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the request.

    Attributes:
        tool_python: Python versions, separated by commas; empty = this one's, `none` = none.
        split_size: `60M`; empty = no parts.
        oldest, newest: Ends of a range; both empty = none.
        axis: Of the range; empty = jax.
    """

    wheels_only: bool = False
    results: bool = True
    tool_python: str = ""
    split_size: str = ""
    oldest: str = ""
    newest: str = ""
    axis: str = ""


@command
@uses_store
def archive(request: Request, place: str, options: Options, json: str) -> int:
    from repromatrix.report.document import check_path, write_json
    from repromatrix.share.archives.archive import Archived, Wanted
    from repromatrix.share.archives.archive import archive as make
    from repromatrix.share.archives.tool import pythons
    from repromatrix.ui.progress import listener

    if not place:
        raise UserError("archive where to?", hint="for example `uv run invoke archive ../archive`")
    if options.axis and not (options.oldest or options.newest):
        raise UserError("--axis is that of a range, and there is none", hint="add --oldest and --newest")
    if json:
        check_path(json)
    project = find_project()
    wanted = Wanted(
        everything=not options.wheels_only,
        results=options.results and not options.wheels_only,
        pythons=pythons(options.tool_python),
        split_size=size("split-size", options.split_size) if options.split_size else 0,
        oldest=options.oldest,
        newest=options.newest,
        axis=options.axis or "jax",
    )
    folder, cancel = Path(place).expanduser(), threading.Event()
    with listener() as ear:
        try:
            done: Archived = make(project, request, folder, wanted, ear, cancel)
        except KeyboardInterrupt:
            cancel.set()
            raise
    manifest = done.manifest
    if json:
        document = {
            "schema": 1,
            "archive": str(folder),
            "id": manifest.id,
            "created": manifest.created,
            "bytes": manifest.size,
            "added": done.added,
            "removed": done.removed,
            "environments": [each.id for each in manifest.environments],
            "images": [image.reference for image in manifest.images],
            "lacking": list(done.lacking),
            "notes": list(manifest.notes),
            "parts": [str(part) for part in done.parts],
        }
        write_json(json, document)
    if json != "-":
        environments = f"{len(manifest.environments)} environment{'s' * (len(manifest.environments) != 1)}"
        say(f"{folder}: {environments}, {manifest.size / 1e6:.1f} MB, {done.added / 1e6:.1f} MB of them new")
        say(f"id {manifest.id}: tell it to whoever restores (--expect)")
        for note in manifest.notes:
            say(f"without: {note}")
        if done.parts:
            say(f"{len(done.parts)} parts in {done.parts[0].parent}")
        for lacking in done.lacking:
            say(f"could not be had: {lacking}")
    return InfraError.exit_code if done.lacking else 0
