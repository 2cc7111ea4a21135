"""Archives that came from elsewhere: looked through, and restored."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repromatrix.commands.common import command, typed
from repromatrix.errors import UserError
from repromatrix.events import Listener
from repromatrix.output import complain, say
from repromatrix.project import Project, find_project

if TYPE_CHECKING:
    from repromatrix.carry.trouble import Problem
    from repromatrix.envs.model import Wheel
    from repromatrix.envs.upstream import Loss


@dataclass(frozen=True, slots=True)
class Looked:
    """What looking through something has shown.

    Attributes:
        archive: Id, or empty where it is none.
        what: What was looked at, in words.
        problems: All that is wrong.
        wheels: Of the environments in it; None where only some parts of it are here.
        holder: Who has the wheels, for a sentence; empty where nobody may.
    """

    archive: str
    what: str
    problems: tuple[Problem, ...]
    wheels: tuple[Wheel, ...] | None
    holder: str = ""


@command
def verify(place: str, *, expect: str, upstream: bool, json: str) -> int:
    from repromatrix.report.document import write_json
    from repromatrix.share.archives.upstream import rows, text
    from repromatrix.ui.progress import listener

    with listener() as ear:
        looked = _look(Path(place).expanduser(), expect, ear)
        lost = _ask_upstream(looked, ear) if upstream else ()
    out = sys.stderr if json == "-" else sys.stdout
    for problem in looked.problems:
        say(problem, stream=out)
    count = len(looked.problems)
    say(f"{looked.what}: {f'{count} wrong' if count else 'all as it was written'}", stream=out)
    document: dict[str, Any] = {
        "schema": 1,
        "archive": looked.archive or None,
        "problems": [{"where": problem.where, "what": problem.what} for problem in looked.problems],
    }
    if upstream:
        say(text(lost, len(looked.wheels or ()), looked.holder), stream=out)
        document["upstream"] = rows(lost)
    if json:
        write_json(json, document)
    return int(bool(looked.problems or lost))


@command
def restore(
    place: str, *, into: str, expect: str, images: bool, results: bool, json: str, store_only: bool = False
) -> int:
    from repromatrix.carry.incoming import store
    from repromatrix.carry.parts import find
    from repromatrix.carry.trouble import shown
    from repromatrix.carry.unpack import check_place, goes_on
    from repromatrix.report.document import write_json
    from repromatrix.share.archives import restore as job
    from repromatrix.share.upkeep.users import using
    from repromatrix.ui.progress import listener

    if into and store_only:
        raise UserError("--into and --store-only contradict each other", hint="leave one of them out")
    project = Project(Path(into).expanduser().absolute(), store()) if into else find_project()
    document: dict[str, Any] = {"schema": 1, "archive": None, "problems": [], "missing_parts": []}
    cancel = threading.Event()
    try:
        with listener() as ear, job.plain_errors(Path(place)):
            if into:
                check_place(project.root)
            found = find([Path(place).expanduser()])
            with using(project, typed(), complain):
                archive = job.checked(found, expect, project.store / "incoming", ear)
                for note in archive.manifest.notes:
                    ear.note(f"the archive says: {shown(note)}")
                new = bool(into) and not goes_on(archive.manifest, project.root)
                wanted = {"new": new, "images": images, "results": results, "store_only": store_only}
                done = job.restore(archive, project, ear, cancel, **wanted)
                if archive.come is not None and not done.left_out:
                    archive.come.remove()
    except KeyboardInterrupt:
        cancel.set()
        raise
    except (job.IncompleteArchive, job.DamagedArchive) as error:
        if json:
            write_json(json, document | error.as_dict())
        raise
    if json:
        write_json(json, document | {"archive": archive.manifest.id, **done.as_dict()})
    if json != "-":
        say(f"archive {archive.manifest.id}")
        say(done.text(project.root))
        if archive.manifest.environments:
            from repromatrix.share.archives.roots import chosen

            say(f"run what it holds: invoke matrix --offline --env '{chosen(archive.manifest)}'")
    return 0


def _look(place: Path, expect: str, ear: Listener) -> Looked:
    """Look through an archive or parts, or through what the locks of a checkout name."""
    from repromatrix.share.upkeep.users import using

    if (place / "matrix.toml").is_file() and not (place / "archive.json").exists():
        project = find_project(place)
        with using(project, typed(), complain):
            return _locks(project, expect, ear)
    return _archive(place, expect, ear)


def _archive(place: Path, expect: str, ear: Listener) -> Looked:
    """Look through an archive, a part, or a folder of parts."""
    from repromatrix.carry.incoming import check_set
    from repromatrix.carry.parts import find
    from repromatrix.share.archives.restore import DamagedArchive, checked, plain_errors
    from repromatrix.share.archives.upstream import archived

    with plain_errors(place):
        found = find([place])
        if found.archive is None:
            task = ear.start("verify", str(place), sum(path.stat().st_size for path in found.parts), "B")
            try:
                seen = check_set(found.parts, expect, task.advance, alone=found.alone)
            finally:
                task.finish()
            wheels = archived(seen.manifest) if seen.manifest else None
            return Looked(seen.archive, seen.what, seen.problems, wheels, "the archive")
        try:
            archive = checked(found, expect, place, ear)
        except DamagedArchive as error:
            return Looked("", str(place), error.problems, None)
    manifest = archive.manifest
    held = f"{len(manifest.environments)} environments, {manifest.size / 1e6:.1f} MB"
    return Looked(manifest.id, f"archive {manifest.id}, {held}", (), archived(manifest), "the archive")


def _locks(project: Project, expect: str, ear: Listener) -> Looked:
    """Look through what the store has of the wheels that the checkout's locks name."""
    from repromatrix.carry.place import fault
    from repromatrix.carry.trouble import Problem
    from repromatrix.envs.wheels import WheelStore
    from repromatrix.share.archives.upstream import locked

    if expect:
        raise UserError("--expect is for an archive", hint="name its place: invoke verify PLACE --expect ID")
    store = WheelStore(project.store)
    wheels = {wheel.sha256: wheel for wheel in locked(project)}
    here = [wheel for wheel in wheels.values() if store.place(wheel).exists()]
    task = ear.start("verify", str(project.store), sum(wheel.size for wheel in here), "B")
    try:
        found = []
        for wheel in here:
            place = store.place(wheel)
            if what := fault(place, wheel.sha256, wheel.size or place.stat().st_size, task.advance):
                found.append(Problem(str(place), what))
    finally:
        task.finish()
    what = f"{len(here)} of the {len(wheels)} wheels that the locks name are in {project.store}"
    return Looked("", what, tuple(found), tuple(wheels.values()))


def _ask_upstream(looked: Looked, ear: Listener) -> tuple[Loss, ...]:
    """Which of the wheels the index has lost."""
    from repromatrix.envs.upstream import losses
    from repromatrix.spec.matrix import load_matrix

    if looked.wheels is None:
        raise UserError(
            f"{looked.what}: which wheels to ask for is not known", hint="give a whole and undamaged archive"
        )
    try:
        matrix = load_matrix(find_project().matrix_toml)  # its indexes count too
    except UserError:
        matrix = None
    return losses(looked.wheels, matrix, ear, threading.Event())
