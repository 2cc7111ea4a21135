"""The data of a minimisation: what was tried, and the smallest difference that flips the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repromatrix.regressions.model import Spent
from repromatrix.results.model import CellResult
from repromatrix.results.rates import Rate
from repromatrix.search.model import Rules, Verdict
from repromatrix.search.threshold import Boundary, Number
from repromatrix.spec.model import Outcome, Scalar

WHAT = ("packages", "flags", "env", "threshold")
"""What can be minimised, in the order in which it is done."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `invoke minimise` was asked for, as typed.

    Attributes:
        cell: Id of the failing cell, or a glob that matches one alone; empty = the first that fails.
        good: Environment that is good: an id, a glob, a version of jax, or a date, `release` or `latest` for the
            failing one's as it stood then; empty = none, and packages are left alone.
        what: Of `WHAT`; empty = all that apply.
        ranges: (parameter, lowest, highest value) of thresholds.
    """

    cell: str = ""
    good: str = ""
    what: tuple[str, ...] = ()
    ranges: tuple[tuple[str, Number, Number], ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that differs.

    Attributes:
        name: A package, a flag as it was given, or the name of a variable.
        without, with_it: What stands there in the good one and in the failing one: `1.12.0`, `--xla_...=1`; empty =
            nothing.
    """

    name: str
    without: str
    with_it: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One variant of the failing cell.

    Attributes:
        changed: Names of the items that are as in the failing cell; of a threshold the value alone.
        why: What the verdict does not say: another failure's title, a reason, the requirements that it contradicts.
        attempted: Attempts that this search made; 0 = all were known.
        seconds: Wall time of those.
    """

    changed: tuple[str, ...]
    verdict: Verdict
    why: str
    rates: tuple[Rate, ...]
    result: CellResult
    attempted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest part of one kind of difference.

    Attributes:
        what: `packages`, `flags` or `env`.
        items: All that differ.
        needed: Names of those that make the failure together; empty where it fails without any, or nothing was found.
        without: By name of each needed one, what became of the rest without it.
        confidence: By name of those, probability, at least, that it is needed; absent where the rest gave no verdict.
        path: What was tried, in that order.
        good: The environment that is good, of packages.
        trouble: Why there is no answer; empty = there is one.
        contradictions: What requirements the smallest mixture contradicts.
    """

    what: str
    items: tuple[Item, ...]
    needed: tuple[str, ...]
    without: Mapping[str, Tried]
    confidence: Mapping[str, float]
    path: tuple[Tried, ...]
    good: str = ""
    trouble: str = ""
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where along a parameter the verdict changes.

    Attributes:
        param: Its name.
        low, high: Ends of the search.
        boundaries: The smallest values first.
        confidence: Of each boundary, probability, at least, that the verdict changes there.
        rows: What was tried, by value.
    """

    param: str
    low: Number
    high: Number
    boundaries: tuple[Boundary, ...]
    confidence: tuple[float, ...]
    rows: tuple[tuple[Number, Tried], ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Minimised:
    """A finished or interrupted minimisation.

    Attributes:
        cell: Id of the failing cell.
        outcome: Of the failing cell.
        failure: Title of its failure: what `bad` means.
        parts: One for each kind of difference that was looked at.
        hints: What could be asked for besides.
    """

    cell: str
    repro: str
    environment: str
    target: str
    params: tuple[tuple[str, Scalar], ...]
    engine: str
    outcome: Outcome
    failure: str
    rules: Rules
    parts: tuple[Smallest | Threshold, ...]
    spent: Spent
    command: str
    rate: tuple[float, float] = (1.0, 1.0)
    hints: tuple[str, ...] = ()
    interrupted: bool = False
    facts: tuple[tuple[str, str], ...] = ()
