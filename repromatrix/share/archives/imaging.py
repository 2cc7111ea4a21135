"""Images for an archive: known to an engine or built by it, and saved; an archive without an engine has none."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from repromatrix.carry.format import Image
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs.base import BaseImage, recorded, resolve_base
from repromatrix.envs.daemon import Daemon, address, connect, daemon_errors
from repromatrix.envs.image import tag
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.project import Project
from repromatrix.share.archives.gather import base_hash
from repromatrix.share.archives.images import save
from repromatrix.spec.model import Matrix


class Imaging:
    """The engine, asked once whether it answers.

    Attributes:
        bases: Official base images that were saved.
        held: Images that the archive holds, those saved now too: their layers are not written again.
    """

    def __init__(
        self,
        project: Project,
        matrix: Matrix,
        root: Path,
        held: Iterable[Image],
        listener: Listener,
        cancel: threading.Event,
    ) -> None:
        self._project, self._matrix, self._root = project, matrix, root
        self._listener, self._cancel = listener, cancel
        self.held = list(held)
        self.bases: list[Image] = []
        self._engine = DockerEngine(project, matrix)
        asked = matrix.run.engine
        why = "" if asked in ("auto", "docker") else f"engine = {asked!r}, and images are saved from Docker alone"
        why = why or self._engine.unavailable()
        self._daemon: Daemon | None = None if why else connect(address())
        if why:
            listener.note(f"no images are archived: {why}")

    def base(self, python: str) -> str:
        """What an archive calls the base of Python `python`: hash or reference; empty where none can be held.

        Raises:
            InfraError: The engine answers and has no base, or cannot save it.
        """
        if self._daemon is None:
            chosen = self._known(python)
            # An official one lies in the engine alone.
            return base_hash(chosen) if chosen is not None else ""
        chosen = resolve_base(self._matrix, python, self._daemon, self._project.store, self._listener)
        if found := base_hash(chosen):
            return found
        with daemon_errors(self._daemon.host, f"look at {chosen.reference}"):
            about = self._daemon.api.inspect_image(chosen.reference)  # type: ignore[no-untyped-call]  # bare stubs
        self.bases.append(self._save(self._daemon, str(about["Id"]), chosen.reference, ""))
        return chosen.reference

    def _known(self, python: str) -> BaseImage | None:
        try:
            return recorded(self._matrix, python, self._project.store)
        except InfraError as error:
            self._listener.note(f"no base of Python {python} is archived: {error.message}")
            return None

    def image(self, lock: Lock) -> Image | None:
        """The image of `lock`, saved; None where no engine answers.

        Raises:
            InfraError: It cannot be built or saved.
        """
        if self._daemon is None:
            return None
        made = self._engine.known(lock) or self._engine.prepare(lock, self._listener, self._cancel)
        return self._save(self._daemon, made.identity, tag(lock), lock.id)

    def _save(self, daemon: Daemon, ident: str, reference: str, environment: str) -> Image:
        image = save(daemon, ident, reference, environment, self._root, self._listener, self._cancel, beside=self.held)
        self.held.append(image)
        return image
