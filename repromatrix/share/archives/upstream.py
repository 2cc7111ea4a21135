"""What an archive or the locks of a checkout hold that the index has lost: which wheels to ask for, and the answer."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from repromatrix.carry.format import Manifest
from repromatrix.envs.model import Wheel
from repromatrix.envs.upstream import Loss
from repromatrix.errors import UserError
from repromatrix.project import Project
from repromatrix.share.upkeep.locks import read_locks

_PLACE = "store/wheels/"


def archived(manifest: Manifest) -> tuple[Wheel, ...]:
    """The wheels of environments that an archive holds, for `envs/upstream.losses`; not those of this tool.

    Raises:
        UserError: A file among them is no wheel.
    """
    found = []
    for file in manifest.files:
        if file.path.startswith(_PLACE):
            filename = file.path.rpartition("/")[2]
            try:
                name, version, _, _ = parse_wheel_filename(filename)
            except InvalidWheelFilename as error:
                raise UserError(f"the archive's file is no wheel: {error}", where=file.path) from None
            found.append(Wheel(name, str(version), filename, file.sha256, file.size, ""))
    return tuple(found)


def locked(project: Project) -> tuple[Wheel, ...]:
    """Every wheel that a lock file of the checkout names, whatever the matrix says now.

    Raises:
        InputErrors: Lock files that cannot be read.
    """
    return tuple(wheel for lock in read_locks(project.locks) for wheel in lock.wheels)


def text(losses: Iterable[Loss], asked: int, holder: str) -> str:
    """A table of what the index has lost, and what to do.

    Args:
        asked: Wheels that the index was asked for.
        holder: Who still holds them: `the archive`, or empty where nobody may.
    """
    lost = tuple(losses)
    if not lost:
        return f"the index serves all {asked} wheels as they were locked"
    lines = [f"{loss.kind:9}{loss.wheel.name} {loss.wheel.version}  {loss}" for loss in lost]
    end = f"{holder} still holds them" if holder else "archive those that the store has: uv run invoke archive PLACE"
    return "\n".join([*lines, f"{len(lost)} of {asked} wheels are lost to the index; {end}"])


def rows(losses: Iterable[Loss]) -> list[dict[str, str]]:
    """The same for `--json`."""
    return [
        {
            "kind": loss.kind,
            "name": loss.wheel.name,
            "version": loss.wheel.version,
            "filename": loss.wheel.filename,
            "sha256": loss.wheel.sha256,
            "reason": loss.reason,
        }
        for loss in losses
    ]
