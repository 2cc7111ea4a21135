"""Variants of one cell, each tried as often as its verdict needs; what `minimise.py` asks its questions of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.regressions.failure import Failure, ended, sample, title_of
from repromatrix.regressions.minimising.model import Tried
from repromatrix.regressions.trials import Trials
from repromatrix.results.combine import rates
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.search import verdict as grading
from repromatrix.search.model import Rules, Sample, Verdict
from repromatrix.spec.model import Cell, Environment, Outcome

_GONE = 2
"""Tries in a row for which infrastructure failed: then it is not the mixture that cannot be built."""


@dataclass(slots=True)
class _Seen:
    """What is known of one variant.

    Attributes:
        attempts: Those with a verdict.
        lost: Attempts that infrastructure cost, or that there cannot be.
        attempted: Attempts that this search made.
        seconds: Wall time of those.
    """

    result: CellResult
    attempts: tuple[AttemptResult, ...] = ()
    lost: int = 0
    attempted: int = 0
    seconds: float = 0.0


class Tries:
    """Tries cells and says what their attempts mean together.

    The first bad attempt of a cell proves it bad. A pass proves little once a cell was seen to fail and to pass: then
    the failure is counted, and a cell is good after as many passes as `search/verdict.py` asks for.

    Args:
        failure: What `bad` means.
    """

    def __init__(
        self,
        trials: Trials,
        failure: Failure,
        rules: Rules,
        listener: Listener,
    ) -> None:
        self.trials = trials
        self.failure = failure
        self.rules = rules
        self.listener = listener
        self.given: dict[Environment, Lock] = {}
        """Locks of mixtures."""
        self.seen: dict[Cell, _Seen] = {}
        self._gone = 0

    def verdict(self, cell: Cell) -> Verdict | None:
        """What its attempts mean together; None where there are too few to say."""
        if cell not in self.seen:
            return None
        counted = self._tally(cell)
        said = grading.verdict(counted, self.rules, self.reading)
        if said is not Verdict.GOOD or counted.good >= self.reading.lean:
            return said or Verdict.UNKNOWN  # no attempt has a verdict: infrastructure, or no such environment
        return None if counted.attempts < self.rules.most else Verdict.AMBIGUOUS

    @property
    def reading(self) -> grading.Reading:
        """How attempts are to be read, given all that were seen."""
        return grading.read(map(self._tally, self.seen), self.rules, max(2, len(self.seen)))

    @property
    def rate(self) -> tuple[float, float]:
        """(lowest, highest) failure rate of bad cells that the attempts allow; both 1 where none came and went."""
        return grading.allowed_rates(self.reading, self.rules)

    def decide(self, cells: Sequence[Cell], names: Mapping[Cell, str]) -> None:
        """Try these until each has a verdict.

        Args:
            names: What a line of progress calls them.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was finished is kept.
            InfraError: The machine, the network or the engine failed twice in a row.
        """
        while todo := [cell for cell in cells if self.verdict(cell) is None]:
            self._count_failures(names)
            tallies = {cell: self._tally(cell) for cell in todo}
            lacking = {cell: max(1, self.reading.lean - counted.good) for cell, counted in tallies.items()}
            wanted = {cell: min(self.rules.most, counted.attempts + lacking[cell]) for cell, counted in tallies.items()}
            self._run(wanted, names)

    def attempt(self, cell: Cell, count: int) -> None:
        """Try `cell` until it has so many attempts; raises as `decide`."""
        self._run({cell: count}, {})

    def sure(self, bad: Cell, good: Sequence[Cell], names: Mapping[Cell, str]) -> bool:
        """Try `bad` and each of `good` until their verdicts have the confidence asked for.

        Returns:
            Whether they still are what they were. If not, the search must go on with what is known now.

        Raises:
            KeyboardInterrupt, InfraError: As `decide`.
        """
        before = [self.verdict(cell) for cell in (bad, *good)]
        while good and self.rules.confidence > 0:
            now = self.reading
            if now.flaky:
                self._count_failures(names)
                passes = min(self.reading.passes, self.rules.most)
                tallies = {cell: self._tally(cell) for cell in good}
                wanted = {
                    cell: min(self.rules.most, counted.attempts + passes - counted.good)
                    for cell, counted in tallies.items()
                    if counted.good < passes and counted.attempts < self.rules.most
                }
            else:
                failures, passes = self._confirmations()
                lacking = {bad: 1 + failures - self._tally(bad).bad}
                lacking |= {cell: 1 + passes - self._tally(cell).good for cell in good}
                wanted = {
                    cell: min(self.rules.most, self._tally(cell).attempts + more)
                    for cell, more in lacking.items()
                    if more > 0 and self._tally(cell).attempts < self.rules.most
                }
            if not wanted or [self.verdict(cell) for cell in (bad, *good)] != before:
                break
            self._run(wanted, names)
        return [self.verdict(cell) for cell in (bad, *good)] == before

    def confidence(self, bad: Cell, good: Cell) -> float:
        """Probability, at least, that of these two, found side by side, the one fails and the other does not."""
        return grading.edge_confidence(self._tally(good), self._tally(bad), self.rules, self.reading)

    def final(self, cell: Cell) -> Verdict:
        """Its verdict as it is told: where more passes are needed than attempts are allowed, it is not good."""
        said, now = self.verdict(cell) or Verdict.UNKNOWN, self.reading
        few = now.flaky and now.passes > self.rules.most and self._tally(cell).good < now.passes
        return Verdict.AMBIGUOUS if said is Verdict.GOOD and few else said

    def tried(self, cell: Cell, changed: tuple[str, ...], why: str = "", *, unsure: bool = False) -> Tried:
        """What is known of `cell`, as it is reported.

        Args:
            unsure: The answer rests on it, and is not as sure as it was asked to be.
        """
        seen = self.seen[cell]
        return Tried(
            changed,
            Verdict.AMBIGUOUS if unsure else self.final(cell),
            "; ".join(filter(None, (self._why(cell), why))),
            rates(seen.attempts),
            seen.result,
            seen.attempted,
            round(seen.seconds, 3),
        )

    def how(self, cell: Cell) -> str:
        """How it ended, and what that says: `error "ImportError at ..."  bad`."""
        seen = self.seen[cell]
        says = {Verdict.GOOD: "good", Verdict.BAD: "bad", Verdict.AMBIGUOUS: "AMBIGUOUS"}
        said = says.get(self.verdict(cell) or Verdict.UNKNOWN, "says nothing")
        return f"{ended(seen.attempts, seen.result.reason)}  {said}"

    def _confirmations(self) -> tuple[int, int]:
        """Further attempts of what is bad, and of each that is good, that must agree with the first."""
        count = self.rules.confirmations
        while grading.agreement(count - count // 2, count // 2) > 1 - self.rules.confidence:
            count += 1  # where it is odd, one side has one more than is best
        return count - count // 2, count // 2

    def _why(self, cell: Cell) -> str:
        seen = self.seen[cell]
        strange = [one for one in seen.attempts if sample(one, self.failure) is Sample.NOTHING]
        failed = [one for one in strange if one.outcome.failed]
        if failed:
            return f"another failure: {title_of(failed[0])}"
        if strange or not seen.attempts:
            return f"{seen.result.outcome.value}: {seen.result.reason}".rstrip(": ")
        return ""

    def _tally(self, cell: Cell) -> grading.Tally:
        if cell not in self.seen:
            return grading.Tally()
        seen = self.seen[cell]
        return grading.tally(
            (*(sample(attempt, self.failure) for attempt in seen.attempts), *[Sample.NOTHING] * seen.lost)
        )

    def _count_failures(self, names: Mapping[Cell, str]) -> None:
        """Let what is bad fail often enough that its rate is known, where it comes and goes."""
        for cell in list(self.seen):
            while self._tally(cell).bad and not self._rate_known():
                counted, now = self._tally(cell), self.reading
                left = self.rules.most - counted.attempts
                if left <= 0:
                    break
                self._run({cell: counted.attempts + min(left, max(3, grading.FAILURES - now.failed))}, names)

    def _rate_known(self) -> bool:
        """Whether it is certain, or counted well enough."""
        now = self.reading
        return not now.flaky or grading.rate_known(now.failed, now.further, now.refuted, self.rules)

    def _run(self, wanted: Mapping[Cell, int], names: Mapping[Cell, str]) -> None:
        task = self.listener.start("try", "; ".join(names.get(cell, cell.id) for cell in wanted))
        known = {cell: {one.number for one in kept} for cell, kept in self.trials.kept(wanted, self.given).items()}
        try:
            found = self.trials.run(wanted, self.given)
        finally:
            task.finish()
        for cell, result in found.items():
            self._take(cell, result, known.get(cell, ()), wanted[cell])
        gone = [cell for cell, result in found.items() if result.outcome is Outcome.INFRA]
        self._gone = self._gone + len(gone) if len(gone) == len(found) else 0
        if self._gone >= _GONE:
            raise InfraError(
                found[gone[-1]].reason,
                where=gone[-1].id,
                hint="what was finished is kept, the same command continues",
            )

    def _take(self, cell: Cell, result: CellResult, known: Collection[int], wanted: int) -> None:
        seen = self.seen.setdefault(cell, _Seen(result))
        seen.result = result
        seen.attempts = tuple(attempt for attempt in result.attempts if attempt.outcome is not Outcome.INFRA)
        new = [one for one in seen.attempts if one.number not in known and self.trials.made(cell, one.number)]
        seen.attempted += len(new)
        seen.seconds += sum(attempt.seconds for attempt in new)
        seen.lost += max(0, wanted - len(seen.attempts) - seen.lost)
