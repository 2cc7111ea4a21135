"""What evidence gives: the identity of a failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """The normalised identity of a failure.

    Attributes:
        title: Primary title: kind, site, head message.
        alternatives: Other titles under which the same bug may appear (native frames, older message formats).
        version: Of the algorithm that made it.
    """

    title: str
    alternatives: tuple[str, ...] = ()
    version: int = 1

    @property
    def titles(self) -> frozenset[str]:
        """All titles; two failures are the same when these sets meet."""
        return frozenset((self.title, *self.alternatives))
