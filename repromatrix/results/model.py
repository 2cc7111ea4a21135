"""What is kept of cells and attempts, and what `--json` writes."""

from __future__ import annotations

from dataclasses import dataclass

from repromatrix.evidence.model import Signature
from repromatrix.spec.model import Outcome, Scalar, word


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt, graded.

    Attributes:
        number: 1-based within its cell.
        exit_status: The script's own, None when a signal ended it.
        signal: Signal name, or None.
        reason: One sentence: why this outcome, where the status alone does not say.
        seconds: Wall time.
        started: RFC 3339.
        evidence: Folder of the attempt, relative to the project's root.
        metrics: (name, value) pairs printed as `REPRO_METRIC name=value`.
        peak_memory: Bytes; 0 where unknown.
        notes: Further findings.
    """

    number: int
    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    reason: str
    seconds: float
    started: str
    evidence: str
    metrics: tuple[tuple[str, float], ...] = ()
    peak_memory: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell with all its attempts, as stored and as reported.

    The cell's `outcome` is that of its attempts where they agree; where they do not, the most frequent failure counts
    and `reason` gives the counts. A cell never attempted (no device, impossible environment) has no attempts.

    Attributes:
        id: `Cell.id`.
        key: Hash of everything that decides the result; empty for a cell that was never attempted.
        repro, environment, axes, target, params: Of the cell.
        engine: That ran it; empty if none did.
        base: Where the interpreter came from.
        identity: Hash of the environment's lock.
        script: Hash of the repro when it ran.
        expected: The claim in words (`error "FAILED_PRECONDITION *"`), or empty.
        as_expected: Whether the claim held; None where there is none or where nothing was attempted.
        evidence: Folder of the cell's attempts, relative to the project's root.
        command: Shell command to run the cell again.
        facts: Environment facts: locked versions that matter, CPU or GPU, kernel.
    """

    id: str
    key: str
    repro: str
    environment: str
    axes: tuple[tuple[str, str], ...]
    target: str
    params: tuple[tuple[str, Scalar], ...]
    engine: str
    base: str
    identity: str
    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    expected: str
    as_expected: bool | None
    reason: str
    seconds: float
    attempts: tuple[AttemptResult, ...] = ()
    evidence: str = ""
    command: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    script: str = ""

    @property
    def column(self) -> str:
        """Heading of the cell's column: target and parameters."""
        return " ".join([self.target, *(f"{name}={word(value)}" for name, value in self.params)])


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that a document speaks of: the `run` object of `--json`."""

    command: str
    started: str
    seconds: float
    tool_version: str
    engine: str
    isolation: str
    attempted: int
    reused: int
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
