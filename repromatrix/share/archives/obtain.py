"""What an archive needs and the store may lack: locks, wheels of environments, of this tool and of what reads stacks,
Debian packages.

What cannot be had is told and left out, and loses nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from repromatrix.carry.format import Manifest
from repromatrix.envs import debian
from repromatrix.envs.lock import lock_all
from repromatrix.envs.model import Impossible, Lock, Wheel
from repromatrix.envs.tools import read_tools
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.plan import Selection
from repromatrix.project import Project
from repromatrix.ready import fetch_missing
from repromatrix.share.archives import gather
from repromatrix.share.archives.gather import Piece
from repromatrix.share.archives.merge import NO_READERS
from repromatrix.share.archives.tool import tool_wheels


@dataclass(slots=True)
class Obtaining:
    """One archive's wants.

    Attributes:
        old: The archive as it is.
        offline: Ask nobody.
        lacking: What was asked for and could not be had, in words.
        notes: What the archive will lack that its manifest does not show.
    """

    project: Project
    selection: Selection
    old: Manifest
    offline: bool
    listener: Listener
    cancel: threading.Event
    lacking: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def store(self) -> WheelStore:
        return WheelStore(self.project.store)

    def locks(self, *, explicit: bool) -> list[Lock]:
        """The locks of the chosen environments; what was not asked for by name is not locked for this."""
        environments = dict.fromkeys(cell.environment for cell in self.selection.cells)
        states = lock_all(
            environments,
            self.selection.matrix,
            self.project,
            self.listener,
            offline=self.offline or not explicit,
            cancel=self.cancel,
        )
        found, unlocked = [], []
        for environment, state in states.items():
            if isinstance(state, Lock):
                found.append(state)
            elif isinstance(state, Impossible):
                self.listener.note(f"{environment.id} cannot exist: {state.reason}")
            elif explicit:
                self.lack(f"{environment.id}: {state.message}")
            else:
                unlocked.append(environment.id)
        if unlocked:
            self.listener.note(f"{len(unlocked)} environments are not locked, and left out: {', '.join(unlocked)}")
        return found

    def fetched(self, lock: Lock) -> bool:
        """Whether all wheels of `lock` are in the store now."""
        try:
            fetch_missing(lock, self.selection.matrix, self.store, self.listener, self.cancel, offline=self.offline)
        except InfraError as error:
            if self.cancel.is_set():
                raise
            self.lack(f"{lock.id}: {error.line}")
            return False
        return True

    def tool(self, pythons: Iterable[str]) -> tuple[set[str], list[Piece]]:
        """What this tool needs to run: folders of the Pythons whose wheels are here, and these wheels."""
        folders: set[str] = set()
        pieces: list[Piece] = []
        for python in pythons:
            try:
                found = tool_wheels(
                    python,
                    self.selection.matrix,
                    self.project,
                    self.listener,
                    self.cancel,
                    offline=self.offline,
                )
            except InfraError as error:
                if self.cancel.is_set():
                    raise
                if any(file.path.startswith(f"tool/{python}/") for file in self.old.files):
                    self.listener.note(f"this tool on Python {python} stays as the archive has it: {error.line}")
                else:
                    self.lack(f"this tool on Python {python}: {error.line}")
                continue
            folders.add(f"tool/{python}")
            pieces += gather.tool_pieces(python, found.wheels, self.store)
        return folders, pieces

    def readers(self, pythons: Iterable[str]) -> list[Wheel]:
        """The wheels of what reads stacks; without them verdicts are the same, and evidence is poorer."""
        found: list[Wheel] = []
        for python in sorted(pythons):
            readers = read_tools(python)
            if readers is None:
                continue
            try:
                if missing := self.store.missing(readers.wheels):
                    if self.offline:
                        raise InfraError("not in the store, and --offline forbids to fetch them")
                    from repromatrix.envs.index import addresses

                    served = addresses(readers, self.selection.matrix, self.cancel)
                    self.store.fetch(missing, served, self.listener, self.cancel)
            except InfraError as error:
                if self.cancel.is_set():
                    raise
                self.notes.append(f"{NO_READERS}{python}")
                self.listener.warn(f"{self.notes[-1]}: {error.line}")
            else:
                found += readers.wheels
        return found

    def packages(self, base: str) -> None:
        """Make sure that the store has the Debian packages of the base with this hash, if they can still be had.

        An archive without them is whole: the base is held as built. Debian may have newer ones by now.
        """
        found = debian.find(base, self.project.store / "bases")
        if found is None or debian.debs(found) is not None or self.offline:
            return
        try:
            debian.fetch_debs(found, self.listener)
        except InfraError as error:
            if self.cancel.is_set():
                raise
            self.listener.warn(f"no Debian packages of the base {base[:12]}: {error.line}")

    def lack(self, what: str) -> None:
        """Tell what could not be had."""
        self.lacking.append(what)
        self.listener.warn(what)
