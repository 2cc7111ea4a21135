"""What an attempt of several ranks means: a verdict on each rank, and which of them was first to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from repromatrix.engines.base import RankEnd, Raw
from repromatrix.evidence.failure import Failure
from repromatrix.evidence.model import RankResult, Signature
from repromatrix.evidence.outcome import Grade, GradeContext, grade, hung, killed, read_metrics, said
from repromatrix.evidence.signature import HANG, VERSION, before_hang, bounded, choose, sign
from repromatrix.spec.model import Outcome

MOST_ALTERNATIVES = 8
"""Titles that other ranks add to a deadlock's: enough for its different places, not one for each of 512 ranks."""


@dataclass(frozen=True, slots=True)
class RankGrades:
    """The verdicts on all ranks.

    Attributes:
        ranks: In the order of `Raw.ranks`.
        first: Place in `ranks` of the rank whose failure is the attempt's; None where none failed.
    """

    ranks: tuple[RankResult, ...] = ()
    first: int | None = None


def grade_all(
    raw: Raw, logs: Sequence[tuple[str, str]], context: GradeContext, frames: Sequence[Sequence[str]] = ()
) -> tuple[Grade, RankGrades]:
    """The verdict on an attempt of one process or of several ranks, and on each of its ranks (none for one process).

    The attempt's outcome, status, signal and signature are those of the first rank to fail. What proves an `ok` and
    the metrics may come from any rank.

    Args:
        logs: (stdout, stderr) by rank; one pair for an attempt of one process.
        frames: By rank, as `stacks.frames_for` gives them; may be shorter than `logs`.

    Raises:
        UserError: A signature rule of the project is wrong.
    """
    if not raw.ranks or raw.infra:
        stdout, stderr = _joined(logs)
        return grade(raw, stdout, stderr, context, frames[0] if frames else ()), RankGrades()
    logs = [*logs, *[("", "")] * (len(raw.ranks) - len(logs))]
    ranks = _ranks(raw, logs, replace(context, witness=None), frames)
    first = _first(ranks)
    stdout, stderr = _joined(logs)  # whole, as a witness may stand anywhere
    if first is not None:
        found = _whole(raw, ranks, first, context)
    elif all(end.exit_status == 0 for end in raw.ranks):
        found = grade(replace(raw, exit_status=0, signal=None, timed_out=False), stdout, stderr, context)
    else:
        found = Grade(Outcome.INFRA, raw.exit_status, raw.signal, None, "ranks were stopped though none had failed")
    metrics, notes = read_metrics(stdout)
    graded = tuple(_graded(rank, rank is first) for rank in ranks)
    return replace(found, metrics=metrics, notes=notes), RankGrades(graded, ranks.index(first) if first else None)


def _joined(logs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Stdout and stderr of all; a line of their own each, or two halves of two ranks might make a witness."""
    return "\n".join(stdout for stdout, _ in logs), "\n".join(stderr for _, stderr in logs)


@dataclass(frozen=True, slots=True)
class _Rank:
    """What is known of a rank.

    Attributes:
        failure: What it failed of by its own words, if it says anything.
        told: It says so, though the supervisor had to end it: an exception in a rank does not end it, as
            `jax.distributed` waits for the others at exit.
    """

    end: RankEnd
    stdout: str
    stderr: str
    frames: tuple[str, ...]
    failure: Failure | None
    told: bool
    found: Grade

    @property
    def failed(self) -> bool:
        return (not self.end.stopped or self.told) and self.found.outcome not in (Outcome.OK, Outcome.INCONCLUSIVE)

    @property
    def order(self) -> tuple[int, float, int]:
        """Who failed first: one that names another, or waited in vain, may end before the one it waited for."""
        failure = self.failure
        tier = 0 if failure is None else 2 if failure.follows else 1 if failure.waited else 0
        return tier, self.end.seconds, self.end.rank


def _ranks(
    raw: Raw, logs: Sequence[tuple[str, str]], context: GradeContext, frames: Sequence[Sequence[str]]
) -> list[_Rank]:
    by_kernel = any(_killed(end) for end in raw.ranks)
    ranks = []
    for place, end in enumerate(raw.ranks):
        stdout, stderr = map(bounded, logs[place])
        stack = tuple(frames[place]) if place < len(frames) else ()
        followed = end.stopped and not (raw.timed_out or raw.over_limit)  # stopped, as another had failed
        own = replace(
            raw,
            exit_status=end.exit_status,
            signal=end.signal,
            core=end.core,
            timed_out=raw.timed_out and end.stopped,
            over_limit=raw.over_limit and end.stopped,
            # Kills are counted for the whole attempt; they are those of the ranks that SIGKILL ended, if it ended any.
            oom_kills=raw.oom_kills if _killed(end) or not by_kernel or (raw.over_limit and end.stopped) else 0,
            seconds=end.seconds,
            ranks=(),
        )
        failure = before_hang(stderr) if end.stopped else choose(end.signal, end.exit_status, stderr, stdout)
        told = end.stopped and failure is not None and not raw.over_limit
        if not followed:
            found = grade(own, stdout, stderr, context, stack)
        elif told:  # how it ended is the supervisor's doing: what it said counts, as if it had ended by itself
            said = grade(replace(own, exit_status=1, signal=None, oom_kills=0), stdout, stderr, context, stack)
            found = replace(said, exit_status=end.exit_status, signal=end.signal)
        else:
            found = Grade(Outcome.INCONCLUSIVE, end.exit_status, end.signal, None, "stopped after another had failed")
        ranks.append(_Rank(end, stdout, stderr, stack, failure, told, found))
    return ranks


def _killed(end: RankEnd) -> bool:
    return not end.stopped and (end.signal == "SIGKILL" or end.exit_status == 137)


def _first(ranks: Sequence[_Rank]) -> _Rank | None:
    """The rank whose failure is the attempt's: of those that failed by themselves, else of those that were stopped."""
    failed = [rank for rank in ranks if rank.failed]
    if failed:
        return min(failed, key=lambda rank: rank.order)
    stuck = [rank for rank in ranks if rank.found.outcome not in (Outcome.OK, Outcome.INCONCLUSIVE)]
    return min(stuck, key=lambda rank: (_title(rank) == HANG, rank.end.rank), default=None)  # where it is known where


def _title(rank: _Rank) -> str:
    return rank.found.signature.title if rank.found.signature else ""


def _graded(rank: _Rank, first: bool) -> RankResult:
    found = rank.found
    role = "first" if first else "stopped" if rank.end.stopped else "followed" if rank.failed else ""
    return RankResult(
        rank.end.rank, found.outcome, found.exit_status, found.signal, found.signature, rank.end.seconds, role
    )


def _whole(raw: Raw, ranks: Sequence[_Rank], first: _Rank, context: GradeContext) -> Grade:
    """The attempt's grade: that of its first rank, with a reason that tells of the others."""
    found, others = first.found, [rank for rank in ranks if rank is not first]
    if raw.timed_out and first.end.stopped:
        stuck = [rank for rank in ranks if rank.end.stopped]
        words = [hung(context.timeout, ": " + (_names(stuck) if len(stuck) < len(ranks) else "all ranks"))]
        if first.told and first.failure is not None:
            words.append(f"rank {first.end.rank} had failed before: {said(first.failure)}")
        early = [rank for rank in others if not rank.end.stopped]
        words += [
            f"rank {r.end.rank} had ended with {r.end.exit_status} after {r.end.seconds:.1f} s" for r in early[:3]
        ]
        return replace(found, signature=_together(first, stuck), reason="; ".join(words) + killed(raw))
    if not first.failed:
        return found  # the limit of memory ended all of them at once
    groups = {
        "followed": [rank for rank in others if rank.failed and not rank.end.stopped],
        "had to be stopped": [rank for rank in others if rank.end.stopped],
        "ended well": [rank for rank in others if not rank.failed and not rank.end.stopped],
    }
    words = [f"rank {first.end.rank} was first" + (f": {found.reason}" if found.reason else "")]
    words += [f"{_names(group)} {verb}" for verb, group in groups.items() if group]
    return replace(found, reason="; ".join(words))


def _together(first: _Rank, stuck: Sequence[_Rank]) -> Signature | None:
    """The first rank's signature, and as alternatives where the others are stuck: which of them is named is chance.

    A title that a rule of the project gave stands alone.
    """
    signature = first.found.signature
    if signature is None or signature != sign(Outcome.HANG, None, first.stderr, first.stdout, first.frames):
        return signature
    others = dict.fromkeys(title for rank in stuck if (title := _title(rank)) and title != HANG)
    more = [title for title in others if title not in signature.titles]
    return Signature(signature.title, (*signature.alternatives, *more[:MOST_ALTERNATIVES]), VERSION)


def _names(ranks: Sequence[_Rank]) -> str:
    """`rank 3`, `ranks 0 and 2`, `ranks 0, 1, 2 and 509 more`."""
    names = [str(rank.end.rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    shown, last = (names[:-1], names[-1]) if len(names) <= 4 else (names[:3], f"{len(names) - 3} more")
    return f"ranks {', '.join(shown)} and {last}"
