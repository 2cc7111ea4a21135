"""What the attempts of one cell mean together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from repromatrix.evidence.model import Signature
from repromatrix.results.model import AttemptResult
from repromatrix.results.rates import Rate, interval, percent
from repromatrix.spec.model import Outcome

# Where attempts disagree and none failed, the one that claims least counts: 9 ok and 1 without the witness do not prove
# that the version is good.
_LEAST_CLAIMING = (Outcome.INCONCLUSIVE, Outcome.SKIP, Outcome.OK)


@dataclass(frozen=True, slots=True)
class Combined:
    """The fields of a `CellResult` that its attempts decide.

    Attributes:
        reason: One sentence; where attempts disagree, the counts of each way to end and the rates they allow.
        seconds: Median of the attempts that decided.
    """

    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    reason: str
    seconds: float


def combine(attempts: Sequence[AttemptResult]) -> Combined:
    """The verdict of a cell.

    Agreeing attempts give theirs. Of disagreeing ones the most frequent failure counts, however rare (of equally
    frequent ones the earliest), and the reason gives all counts. Infra attempts count only where there is no other.

    Raises:
        ValueError: There are no attempts.
    """
    groups = tally(attempts)
    failures = [group for group in groups if group[0].outcome.failed]
    deciding = failures[0] if failures else min(groups, key=lambda group: _claims(group[0].outcome))
    first = deciding[0]
    endings = Counter((attempt.exit_status, attempt.signal) for attempt in deciding)
    (exit_status, signal), _ = endings.most_common(1)[0]
    reasons = []
    if len(groups) > 1:
        reasons.append(counts(groups))
    if len(endings) > 1 and first.outcome.failed and first.outcome is not Outcome.HANG:
        reasons.append("ended by " + ", ".join(f"{_ending(*how)} {n}x" for how, n in endings.most_common()))
    if own := next((attempt.reason for attempt in deciding if attempt.reason), ""):
        reasons.append(own)
    if aside := len(attempts) - sum(map(len, groups)):
        reasons.append(f"{aside} more attempt{'s' * (aside > 1)} ended as infra and did not count")
    seconds = median(attempt.seconds for attempt in deciding)
    return Combined(first.outcome, exit_status, signal, first.signature, "; ".join(reasons), seconds)


def tally(attempts: Sequence[AttemptResult]) -> list[list[AttemptResult]]:
    """The attempts that count, grouped by how they ended, the largest group first, else in order.

    Two attempts ended the same way when their outcomes agree and, for failures, their signatures meet or, where neither
    has one, their exit status and signal agree (but for a hang: there our own kill chose the signal).

    Raises:
        ValueError: There are no attempts.
    """
    if not attempts:
        raise ValueError("a cell without attempts has no combined outcome")
    counting = [attempt for attempt in attempts if attempt.outcome is not Outcome.INFRA] or list(attempts)
    groups: list[tuple[frozenset[object], list[AttemptResult]]] = []
    for attempt in counting:
        names, members = marks(attempt), [attempt]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names |= group[0]
            members = [*group[1], *members]
        groups.append((names, members))
    order = {id(attempt): place for place, attempt in enumerate(counting)}
    return sorted((members for _, members in groups), key=lambda group: (-len(group), order[id(group[0])]))


def rates(attempts: Sequence[AttemptResult]) -> tuple[Rate, ...]:
    """How often each way to end was seen, in the order of `tally`; empty where there are no attempts."""
    groups = tally(attempts) if attempts else []
    total = sum(map(len, groups))
    found = []
    for group in groups:
        first = group[0]
        title = first.signature.title if first.signature is not None else ""
        found.append(Rate(first.outcome, title, len(group), total, *interval(len(group), total)))
    return tuple(found)


def counts(groups: Sequence[Sequence[AttemptResult]], *, brief: bool = False) -> str:
    """`3 of 10 hang (11 % to 60 %), 7 ok`: failures first, with titles and the 95 % intervals of their rates.

    Args:
        groups: From `tally`.
        brief: The counts alone: `3 of 10 hang, 7 ok`.
    """
    total = sum(map(len, groups))
    parts: list[str] = []
    for group in sorted(groups, key=lambda group: not group[0].outcome.failed):
        outcome, signature = group[0].outcome, group[0].signature
        part = f"{len(group)} of {total} {outcome.value}" if not parts else f"{len(group)} {outcome.value}"
        if not brief and signature is not None:
            part += f' "{clip(signature.title, 80)}"'
        if not brief and outcome is not Outcome.OK:
            low, high = interval(len(group), total)
            part += f" ({percent(low)} to {percent(high)})"
        parts.append(part)
    return ", ".join(parts)


def clip(text: str, length: int) -> str:
    """`text`, cut to `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _claims(outcome: Outcome) -> int:
    return _LEAST_CLAIMING.index(outcome) if outcome in _LEAST_CLAIMING else -1


def marks(attempt: AttemptResult) -> frozenset[object]:
    """What names the way an attempt ended; two ended the same way where these meet, see `tally`."""
    outcome = attempt.outcome
    if not outcome.failed:
        return frozenset({outcome})
    if attempt.signature is not None:
        return frozenset((outcome, title) for title in attempt.signature.titles)
    return frozenset({outcome if outcome is Outcome.HANG else (outcome, attempt.exit_status, attempt.signal)})


def _ending(exit_status: int | None, signal: str | None) -> str:
    return signal or f"status {exit_status}"
