"""The data of a bisection of cells: the versions, the path that the search took, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field

from repromatrix.axes.model import Series
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.results.difference import PackageChange
from repromatrix.results.model import CellResult
from repromatrix.results.rates import Rate
from repromatrix.search.model import Rules, Verdict
from repromatrix.share.issues.releases import Release
from repromatrix.spec.model import Scalar


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `invoke bisect` was asked for, as typed; empty = not said.

    Attributes:
        good, bad: Versions (or dates) that are said to be so.
        oldest, newest: Ends of the range where nothing is said of them.
        axis: `jax`, `jaxlib`, `nccl`, `date`, or a package.
        signature: Glob over titles: what `bad` means.
        metric: `NAME`, or `NAME` and a condition as in `spec/metrics.py`: what `bad` means.
        find: `regression` (the failure begins), `fix` (it ends) or `any`.
        sweep: `all`, `minor`, or a number of versions to look at first.
        nightly: Go on with nightly builds between the releases found.
        prefetch: Make ready what is probably needed next.
    """

    good: str = ""
    bad: str = ""
    oldest: str = ""
    newest: str = ""
    axis: str = "jax"
    signature: str = ""
    metric: str = ""
    find: str = "any"
    sweep: str = "minor"
    nightly: bool = False
    prefetch: bool = True


@dataclass(frozen=True, slots=True)
class Tested:
    """One version that was tried.

    Attributes:
        verdict: What its attempts mean together.
        why: One sentence where the verdict does not say enough: another failure's title, why it was skipped.
        rates: How often each way to end was seen.
        result: Of its cell; None where the environment cannot exist.
        lock: Of its environment; None as above.
        phase: Why it was first tried: `end`, `sweep`, `bisect`, `confirm` or `rate`.
        attempted: Attempts that this search made; 0 = all were known.
        seconds: Wall time of those.
        metric: Median of the metric that is looked at, or None.
    """

    name: str
    verdict: Verdict
    why: str
    rates: tuple[Rate, ...]
    result: CellResult | None
    lock: Lock | None
    phase: str
    attempted: int
    seconds: float
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class FoundEdge:
    """Two versions between which the verdict changes, and what else changes there.

    Attributes:
        good, bad: The one that is good and the one that is bad.
        between: Versions between them without a verdict, oldest first.
        begins: Whether the failure begins here; else it ends here.
        confidence: Probability, at least, that the change is here.
        changes: Wheels that differ, from the older to the newer.
        releases: Of the older and the newer.
        source: What their sources are called in the repository of jax, or None.
        suspect: Why the two cannot differ and something else must be at work; empty = nothing speaks against it.
    """

    good: Tested
    bad: Tested
    between: tuple[Tested, ...]
    begins: bool
    confidence: float
    changes: tuple[PackageChange, ...]
    releases: tuple[Release, Release]
    source: tuple[str, str] | None = None
    suspect: str = ""

    @property
    def older(self) -> Tested:
        return self.good if self.begins else self.bad

    @property
    def newer(self) -> Tested:
        return self.bad if self.begins else self.good


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall time of a search, in seconds.

    Attributes:
        total: From its start to its end.
        running: While at least one attempt ran.
        waiting: The rest: environments that were not ready, and the search itself.
    """

    total: float
    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Bisection:
    """A finished or interrupted search.

    Attributes:
        repro, target, params, engine: Of all cells.
        failure: Title, or words, of the failure that is looked for: what `bad` means.
        edges: Oldest first.
        path: Versions in the order they were first tried.
        rate: (lowest, highest) failure rate of bad versions that the attempts allow.
        refused: Why there was no search.
        others: Titles of other failures that were seen, with the versions.
        notes: What the reader must know besides.
        trouble: Why the nightly builds between the releases were not searched to the end, or None.
    """

    repro: str
    target: str
    params: tuple[tuple[str, Scalar], ...]
    engine: str
    series: Series
    failure: str
    rules: Rules
    edges: tuple[FoundEdge, ...]
    path: tuple[Tested, ...]
    spent: Spent
    command: str
    rate: tuple[float, float] = (1.0, 1.0)
    refused: str = ""
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    trouble: InfraError | None = None
    facts: tuple[tuple[str, str], ...] = field(default=())
