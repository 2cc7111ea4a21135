"""What in the store is referred to: by locks, by kept results, by the tool itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from repromatrix.errors import InfraError
from repromatrix.project import TOOL_ROOT, Project
from repromatrix.results.store import Results
from repromatrix.share.upkeep.locks import LockFile, read_locks

_HASH = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class References:
    """What must stay.

    Attributes:
        wheels: SHA-256 of every wheel that is referred to.
        bases: Hash of every base from Debian packages that was chosen for a Python.
        locks: Hash of every lock that a checkout has, or a result of it came from.
        ran: Hash of every lock that attempts of this store ran with, referred to or not.
        unknown: Results whose lock no file names any more, per checkout, in words: which wheels they came from cannot
            be told.
    """

    wheels: frozenset[str]
    bases: frozenset[str]
    locks: frozenset[str]
    ran: frozenset[str]
    unknown: tuple[str, ...] = ()


def references(project: Project, roots: Iterable[Path]) -> References:
    """Read the locks and results of the checkouts in `roots`, and what the store keeps of locks and bases.

    Raises:
        InputErrors: A lock cannot be read.
        InfraError: Locks or results may not be read.
    """
    kept = {lock.hash: lock for lock in read_locks(project.store / "locks")}
    named: dict[str, LockFile] = {}
    wheels: set[str] = set()
    unknown = []
    for root in roots:
        checkout = Project(root, project.store)
        locks = read_locks(checkout.locks)
        named |= {lock.hash: lock for lock in locks}
        wheels |= _of_tool(root)
        wanted = _results(checkout)
        named |= {found: kept[found] for found in wanted if found in kept}
        if lost := wanted - named.keys():
            unknown.append(f"{root}: results from {len(lost)} locks that no file names any more")
    wheels |= _of_tool(TOOL_ROOT)
    wheels |= {wheel.sha256 for lock in named.values() for wheel in lock.wheels}
    return References(frozenset(wheels), _bases(project.store), frozenset(named), frozenset(kept), tuple(unknown))


def _of_tool(root: Path) -> set[str]:
    """Wheels that the tool in `root` needs: those that read stacks, and its own requirements."""
    found = {wheel.sha256 for lock in read_locks(root / "containers" / "tools") for wheel in lock.wheels}
    try:
        return found | set(_HASH.findall((root / "requirements.lock").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return found


def _results(checkout: Project) -> set[str]:
    """Hashes of the locks that the kept results of a checkout came from."""
    try:
        (checkout.state / "results.db").stat()  # `is_file` says no, too, where this user may not look (Python 3.14)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise InfraError(f"the results cannot be read: {error.strerror}", where=str(checkout.state)) from error
    with Results(checkout.state) as results:
        return {cell.identity for cell in results.latest_cells()} - {""}


def _bases(store: Path) -> frozenset[str]:
    """Hashes in the notes on which base was chosen, for a Python or a Debian release."""
    notes = (store / "bases").glob("*.json")
    return frozenset(found for note in notes for found in _HASH.findall(note.read_text(encoding="utf-8")))
