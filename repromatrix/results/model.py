"""What is kept of cells and attempts, and what `--json` writes."""

from __future__ import annotations

from dataclasses import dataclass

from repromatrix.evidence.model import RankResult, Signature
from repromatrix.spec.model import Outcome, Scalar, word

INTERRUPTED = "the run was interrupted before this cell"
"""Reason of a cell without a verdict that a stopped run did not come to."""


@dataclass(frozen=True, slots=True)
class HloModule:
    """One compiled module of an attempt.

    Attributes:
        name: As the program gives it, `jit_f`; the same in all versions.
        before, after: Identity of its HLO before and after optimisation (`evidence/hlo_text.py`); empty where not seen.
        changed: Passes that changed it, each once, in order; empty where only its texts were collected.
        size: Characters of its HLO before optimisation, else after; tells the main module from helpers.
    """

    name: str
    before: str
    after: str
    changed: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class HloFacts:
    """What is known of the compiler's work in an attempt; all of it is in `hlo.json` and `hlo/` of its folder.

    Attributes:
        level: `text` or `passes`: whether the passes that changed a module were collected too.
        source: `run` (the attempt itself dumped) or `explain` (a second run of it did).
        modules: In order of compilation.
        ran: Names of the passes that ran, each once, in order; empty where there is no log of them.
        last: The last pass that began before a failure, else empty.
        notes: What is missing and why: files over a cap, flags this version does not know, an explain run that ended
            otherwise than the first.
        whole: Nothing that was asked for is missing, and a run that was made for this ended as the first did: only then
            does it count that a pass is not among those that changed a module.
    """

    level: str
    source: str
    modules: tuple[HloModule, ...] = ()
    ran: tuple[str, ...] = ()
    last: str = ""
    notes: tuple[str, ...] = ()
    whole: bool = True


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
        device_memory: Bytes, highest sum over the GPUs it was granted; 0 where unknown.
        files: (label, path within `evidence`) of what it left: logs, stacks, core.
        ranks: By rank; empty for an attempt of one process.
        hlo: None where none was collected.
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
    device_memory: int = 0
    files: tuple[tuple[str, str], ...] = ()
    ranks: tuple[RankResult, ...] = ()
    hlo: HloFacts | None = None


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
        different_failure: It failed as claimed, but with another signature, signal or exit status than the claimed one.
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
    different_failure: bool = False

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
