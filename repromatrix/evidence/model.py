"""What evidence gives: the identity of a failure, and the verdict on one rank."""

from __future__ import annotations

from dataclasses import dataclass

from repromatrix.spec.model import Outcome


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


@dataclass(frozen=True, slots=True)
class RankResult:
    """The verdict on one rank of an attempt with several.

    Attributes:
        outcome: Of this rank alone; `inconclusive` where another rank's failure ended it before its own end.
        exit_status, signal, signature: Of this rank alone.
        seconds: From the start of the attempt to its end.
        role: `first` (its failure is the attempt's), `followed` (failed after it, or says that another was first),
            `stopped` (ended by the supervisor), or empty for a rank that ended well.
    """

    rank: int
    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    seconds: float
    role: str
