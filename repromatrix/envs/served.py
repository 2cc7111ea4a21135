"""Where an index serves the wheels of a lock, and which of them it has with other bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from repromatrix.envs.model import Lock, Locked, Wheel
from repromatrix.errors import InfraError


class Served(dict[str, str]):
    """URL by SHA-256, with credentials where the index has some.

    Attributes:
        others: (wheel, SHA-256 that the index has under its name), by the SHA-256 that is locked.
    """

    def __init__(self, lock: Locked, urls: Mapping[str, str], others: Mapping[str, tuple[Wheel, str]]) -> None:
        super().__init__(urls)
        self.lock = lock
        self.others = others

    def __missing__(self, sha256: str) -> str:
        """Tell whoever needs that one wheel why it is not here.

        Raises:
            InfraError: The index serves another file under its name.
            KeyError: It serves none.
        """
        if sha256 not in self.others:
            raise KeyError(sha256)
        wheel, other = self.others[sha256]
        raise InfraError(
            f"the index serves another file under this name: the lock has sha256 {sha256}, the index has {other}",
            where=wheel.filename,
            hint="restore the lock if it was changed by hand, or the file from an archive (`invoke restore`)"
            + self._again,
        )

    @property
    def _again(self) -> str:
        """Plain `invoke lock` would keep a lock that is there; the wheels of tools are no environment's."""
        if not isinstance(self.lock, Lock):
            return ""
        return f", or lock it again: uv run invoke lock --env {self.lock.id} --refresh"


def served(lock: Locked, files: Iterable[tuple[str, str, str]]) -> Served:
    """Of what an index has, what `lock` asks for.

    Args:
        files: (file name, SHA-256, URL) of each; where there is no hash, nothing is known of the file.
    """
    known = [file for file in files if file[1]]
    named = {name: sha256 for name, sha256, _ in known}
    urls = {sha256: url for _, sha256, url in known}
    wanted = {wheel.sha256: wheel for wheel in lock.wheels}
    return Served(
        lock,
        {sha256: urls[sha256] for sha256 in wanted if sha256 in urls},
        {
            sha256: (wheel, named[wheel.filename])
            for sha256, wheel in wanted.items()
            if sha256 not in urls and wheel.filename in named
        },
    )
