"""What environments need of an engine for containers: its images, found, pulled, imported and built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from repromatrix.errors import InfraError
from repromatrix.events import Listener

Steps = Callable[[str], bool]
"""Takes the lines that a build prints, one after the other; True where a step has ended."""


@dataclass(frozen=True, slots=True)
class Build:
    """One image to be built from a Dockerfile.

    Attributes:
        files: Folder with the `Dockerfile`.
        wheels: Folder of packs, the build's context `wheels`.
        iid: File into which the image's id is written.
        tag: Readable name of the image.
        base: What `FROM` shall say, and the label with it.
        local: What the engine calls that image.
        epoch: Seconds since 1970: when the image says that it was made.
    """

    files: Path
    wheels: Path
    iid: Path
    tag: str
    base: str
    local: str
    epoch: int


class Images(ABC):
    """The images of a Docker daemon or of podman."""

    host: str
    """Where they are, for messages."""

    @property
    @abstractmethod
    def called(self) -> str:
        """What messages call the engine."""

    @property
    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """What its own command line begins with."""

    @property
    @abstractmethod
    def run_options(self) -> tuple[str, ...]:
        """What its `run` needs on every host."""

    @abstractmethod
    def labelled(self, labels: Sequence[str], name: str = "") -> list[str]:
        """Ids (`sha256:...`) of the images with all of `labels` (`key=value`), and with this name where one is given.

        Raises:
            InfraError: The engine does not answer.
        """

    @abstractmethod
    def id_of(self, reference: str) -> str | None:
        """Id (`sha256:...`) of the image with this name or id, or None; asks no registry.

        Raises:
            InfraError: The engine does not answer.
        """

    @abstractmethod
    def obtain(self, reference: str, listener: Listener) -> str:
        """Pull an image; returns why it cannot be had, or nothing.

        Raises:
            InfraError: The engine does not answer.
        """

    @abstractmethod
    def import_tar(self, tar: IO[bytes], reference: str, changes: Sequence[str]) -> None:
        """Make an image of a root file system; `changes` are lines of a Dockerfile.

        Raises:
            InfraError: The engine does not answer, or refuses it.
        """

    @abstractmethod
    def build_command(self, build: Build) -> list[str]:
        """The command that builds it; may write into `build.files`.

        Raises:
            InfraError: A file cannot be read or written.
        """

    @abstractmethod
    def steps(self) -> Steps:
        """What counts the steps of one build."""

    @property
    @abstractmethod
    def build_hint(self) -> str:
        """What to do where the program that builds is not installed."""

    @abstractmethod
    def trouble(self, output: str, doing: str) -> InfraError:
        """The error for what its command line printed; `doing` is an infinitive."""

    @abstractmethod
    def drop_copies(self) -> None:
        """Drop what builds have copied of their contexts, where the engine keeps that.

        Raises:
            InfraError: The engine does not answer.
        """
