"""What `bad` means in a search, and what one attempt says by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repromatrix.errors import UserError
from repromatrix.results.combine import clip, counts, marks, tally
from repromatrix.results.judge import matches
from repromatrix.results.model import AttemptResult
from repromatrix.search.model import Sample
from repromatrix.spec.metrics import condition_error, holds
from repromatrix.spec.model import Outcome

_BARE = re.compile(r"(exit|error) (\d+|\?)|(signal|crash) SIG\w+|hang")
"""Titles in which no message and no place stands."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What `bad` means, in one of three ways.

    Attributes:
        marks: By the way an attempt ended: bad where its `results/combine.marks` meet these.
        title: Of that failure, or how it ended.
        glob: By a glob over the titles of its signature.
        metric: By a number that it printed.
        condition: On that number, as in `spec/metrics.py`: bad where it holds.
    """

    marks: frozenset[object] = frozenset()
    title: str = ""
    glob: str = ""
    metric: str = ""
    condition: str = ""


def sample(attempt: AttemptResult, failure: Failure) -> Sample:
    """What `attempt` says of its version.

    Another failure says nothing, nor does a skip, an attempt without its witness, or trouble of the machine. Where a
    number decides, so does an attempt that failed or did not print it.
    """
    if failure.metric:
        value = measured(attempt, failure.metric)
        if value is None:
            return Sample.NOTHING
        return Sample.BAD if holds(failure.condition, value) else Sample.GOOD
    if attempt.outcome is Outcome.OK:
        return Sample.GOOD
    if not attempt.outcome.failed:
        return Sample.NOTHING
    if failure.glob:
        same = attempt.signature is not None and matches(failure.glob, attempt.signature)
    else:
        same = bool(marks(attempt) & failure.marks)
    return Sample.BAD if same else Sample.NOTHING


def measured(attempt: AttemptResult, metric: str) -> float | None:
    """The number called `metric` that a good attempt printed, or None."""
    return dict(attempt.metrics).get(metric) if attempt.outcome is Outcome.OK else None


def failure_of(attempts: Sequence[AttemptResult]) -> Failure | None:
    """The most frequent failure of `attempts`, of equally frequent ones the earliest; None where none failed."""
    failed = [attempt for attempt in attempts if attempt.outcome.failed]
    if not failed:
        return None
    group = tally(failed)[0]
    return Failure(frozenset().union(*map(marks, group)), title_of(group[0]))


def title_of(attempt: AttemptResult) -> str:
    """`signal SIGSEGV at ...`, as its signature says; else how it ended: `crash SIGKILL`, `error 3`, `hang`."""
    if attempt.signature is not None:
        return attempt.signature.title
    how = "" if attempt.outcome is Outcome.HANG else attempt.signal or attempt.exit_status
    return f"{attempt.outcome.value} {how}".rstrip() if how not in ("", None) else attempt.outcome.value


def ended(attempts: Sequence[AttemptResult], reason: str) -> str:
    """How attempts ended, in a few words: `crash "signal SIGSEGV at ..." 2x`; where there are none, the reason."""
    groups = tally(attempts) if attempts else []
    if len(groups) > 1:
        return counts(groups, brief=True)
    if not groups:
        return clip(reason, 100)
    group = groups[0]
    title = group[0].signature.title if group[0].signature is not None else ""
    said = group[0].outcome.value + (f' "{clip(title, 60)}"' if title else "")
    return said + (f" {len(group)}x" if len(group) > 1 else "")


def by_metric(text: str) -> Failure:
    """What `--metric NAME>1.5` asks for; without a condition it is open still, see `by_change`.

    Raises:
        UserError: It is no name followed by a condition.
    """
    name, condition = (part.strip() for part in re.split(r"(?=[<>=!])|$", text, maxsplit=1))
    wrong = "expected the name of a metric" if not name else condition and condition_error(condition)
    if wrong:
        raise UserError(f"--metric {text!r}: {wrong}", hint="for example --metric seconds or --metric 'seconds>1.5'")
    return Failure(metric=name, condition=condition)


def by_change(metric: str, good: Sequence[AttemptResult], bad: Sequence[AttemptResult]) -> Failure:
    """Bad is what lies nearer to the bad version's number than to the good one's: beyond the middle of their medians.

    Raises:
        UserError: One has not printed it, or the numbers of both overlap.
    """
    sides = [[value for one in side if (value := measured(one, metric)) is not None] for side in (good, bad)]
    for name, numbers in zip(("good", "bad"), sides, strict=True):
        if not numbers:
            raise UserError(
                f"no attempt of the {name} version that ended well printed a metric called {metric}",
                hint=f"the script must print `REPRO_METRIC {metric}=number`",
            )
    low, high = sorted(sides, key=median)
    if max(low) >= min(high):
        told = " and ".join(f"{min(numbers):g} to {max(numbers):g}" for numbers in sides)
        raise UserError(
            f"{metric} does not tell the good version from the bad one: {told}",
            hint=f"say what is bad, for example --metric '{metric}>{max(low):g}'",
        )
    middle = (median(low) + median(high)) / 2
    return Failure(metric=metric, condition=f"{'>' if low is sides[0] else '<'} {middle:.6g}")


def likeness(failure: Failure | None) -> tuple[str, ...]:
    """What must be known of a failure that nothing but the way it ended tells from others; empty of any other."""
    if failure is None or not _BARE.fullmatch(failure.title):
        return ()
    return (
        f"the failure is known by how it ends alone, `{failure.title}`: whatever else ends so is taken for the same;"
        " a last line on standard error that says what failed tells them apart",
    )


def words(failure: Failure) -> str:
    """What `bad` means, for people."""
    if failure.metric:
        return f"{failure.metric} {failure.condition}"
    return failure.glob or failure.title
