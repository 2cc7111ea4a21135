"""One history walked: the pure search says what to try, the trials try it, and what they gave is kept by place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from repromatrix.axes.model import Series, Version
from repromatrix.errors import InfraError
from repromatrix.events import Listener, Task
from repromatrix.regressions.failure import Failure, ended, failure_of, measured, sample, title_of
from repromatrix.regressions.model import Tested
from repromatrix.regressions.trials import Trials
from repromatrix.report.layout import counted
from repromatrix.results.combine import rates, tally
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.search.bisect import step
from repromatrix.search.model import Answer, History, Rules, Sample, Seen, Step, Try, Verdict
from repromatrix.search.verdict import verdicts as so_far
from repromatrix.spec.model import Cell, Outcome

_GONE = 3
"""Versions in a row for which infrastructure failed: then it is not one wheel that cannot be had."""


@dataclass(slots=True)
class Place:
    """What is known of one version.

    Attributes:
        phase: Why it was first tried.
        attempts: Those with a verdict.
        result: Of its cell.
        lost: Attempts that infrastructure cost.
        attempted: Attempts that this search made.
        seconds: Wall time of those.
    """

    phase: str
    attempts: tuple[AttemptResult, ...] = ()
    result: CellResult | None = None
    lost: int = 0
    attempted: int = 0
    seconds: float = 0.0

    @property
    def gone(self) -> bool:
        """Infrastructure failed, and nothing else is known."""
        return self.result is not None and self.result.outcome is Outcome.INFRA

    @property
    def reason(self) -> str:
        """Why there is no verdict, as its cell says."""
        return f"{self.result.outcome.value}: {self.result.reason}".rstrip(": ") if self.result is not None else ""


class Walk:
    """A series and what is known of its versions.

    Args:
        width: Attempts at once.
        prefetch: Make ready what is probably needed next.
    """

    def __init__(
        self, trials: Trials, series: Series, rules: Rules, width: int, listener: Listener, *, prefetch: bool
    ) -> None:
        self.trials = trials
        self.series = series
        self.rules = rules
        self.width = width
        self.listener = listener
        self.prefetch = prefetch
        self.places: dict[int, Place] = {}
        """In the order they were first tried."""
        self.failure: Failure | None = None
        self._gone = 0

    @property
    def versions(self) -> tuple[Version, ...]:
        return self.series.versions

    def recall(self, phase: Callable[[int], str]) -> None:
        """Take up what is kept of the versions, in the order in which it was tried.

        Args:
            phase: Why a place was tried, as far as that can still be told.
        """
        kept = self.trials.kept(version.cell for version in self.versions)
        numbers = {version.cell: number for number, version in enumerate(self.versions)}
        for cell in sorted(kept, key=lambda cell: kept[cell][0].started):
            self.places[numbers[cell]] = Place(phase(numbers[cell]), kept[cell])
        for cell, result in self.trials.run({cell: len(attempts) for cell, attempts in kept.items()}).items():
            self.places[numbers[cell]].result = result

    def samples(self) -> Seen:
        """What the attempts of each place say. Before it is known what `bad` means, a failure says nothing."""
        failure = self.failure or Failure()
        found = {}
        for number, place in self.places.items():
            told = tuple(sample(attempt, failure) for attempt in place.attempts) + (Sample.NOTHING,) * place.lost
            found[number] = told or (Sample.NOTHING,)
        return found

    def search(
        self, history: History, decide: Callable[[], Failure | None], base: int = 0, until: tuple[str, ...] = ()
    ) -> Step | Answer:
        """Try versions until the answer is there.

        Args:
            history: Of all versions, or of some that follow each other.
            decide: What `bad` means, of what was tried so far; None = not known yet.
            base: Place here of the first version of `history`.
            until: Phases that are not begun; the first step of one is returned instead of an answer.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was finished is in `places`.
            InfraError: The machine, the network or the engine failed for an end, or for everything.
        """
        now = self._next(history, decide, base)
        while isinstance(now, Step) and now.phase not in until:
            tries = [replace(one, place=one.place + base) for one in now.tries]
            task = self.attempt(tries, now.phase, [place + base for place in now.soon])
            now = self._next(history, decide, base)
            self.tell(task, tries, self._progress(now, base))
        return now

    def _next(self, history: History, decide: Callable[[], Failure | None], base: int) -> Step | Answer:
        self.failure = self.failure or decide()
        seen = {place - base: told for place, told in self.samples().items() if 0 <= place - base < history.size}
        now = step(history, seen, self.rules, self.width)
        if isinstance(now, Step) and now.phase == "confirm":
            # Hardly one contradicts, so they are asked for together: each run of its own costs a second or two.
            now = step(history, seen, self.rules, max(self.width, self.rules.confirmations))
        return now

    def attempt(self, tries: Sequence[Try], phase: str, soon: Iterable[int] = ()) -> Task:
        """Run these, and keep what they gave.

        Returns:
            To be ended by `tell`.

        Raises:
            KeyboardInterrupt, InfraError: As `search`.
        """
        places = {one.place: self.places.setdefault(one.place, Place(phase)) for one in tries}
        wanted = {self.versions[one.place].cell: len(places[one.place].attempts) + one.attempts for one in tries}
        ahead = [self.versions[place].cell for place in soon if self.prefetch]
        names = ", ".join(self.versions[place].name for place in places)
        more = sum(one.attempts for one in tries)
        task = self.listener.start("try", names if more == len(tries) else f"{names}, {more} attempts")
        try:
            # The HLO of a failure takes a second run of the script: worth it where an edge is confirmed.
            found = self.trials.run(wanted, soon=ahead, hlo=phase == "confirm")
        except KeyboardInterrupt:
            task.finish("interrupted")
            self._save(places)
            raise
        except BaseException:
            task.finish("failed")
            raise
        for number, place in places.items():
            cell = self.versions[number].cell
            self._take(place, cell, found[cell], wanted[cell])
        self._check(places, task)
        return task

    def _save(self, places: Mapping[int, Place]) -> None:
        """Take up what an interrupted run finished."""
        kept = self.trials.kept(self.versions[number].cell for number in places)
        found = self.trials.run({cell: len(attempts) for cell, attempts in kept.items()})
        for number, place in places.items():
            cell = self.versions[number].cell
            if (result := found.get(cell)) is not None:
                self._take(place, cell, result, len(result.attempts))
            elif place.result is None:
                del self.places[number]

    def tell(self, task: Task, tries: Sequence[Try], progress: str = "") -> None:
        """End the task of these tries with a line for each version."""
        lines = [(self.versions[one.place].name, self.how(one.place)) for one in tries]
        if len(lines) == 1:
            task.finish(f"{lines[0][1]}{progress and '   '}{progress}")
            return
        for name, how in lines:
            self.listener.note(f"{name}  {how}")
        task.finish(progress)

    def _progress(self, now: Step | Answer, base: int) -> str:
        """How far the search has come: `between 0.6.2 and 0.7.1; about 2 versions left`."""
        if isinstance(now, Answer):
            return ""
        older, newer = (self.versions[place + base].name for place in now.bounds)
        left = f"; about {counted(now.left, 'version')} left" if now.left else ""
        return f"between {older} and {newer}{left}"

    def how(self, number: int) -> str:
        """How a version ended, and what that says: `crash "signal SIGSEGV at ..."  bad`."""
        place, told = self.places[number], self.samples()[number]
        how = ended(place.attempts, place.reason)
        if self.failure is None and any(attempt.outcome.failed for attempt in place.attempts):
            return how
        says = {Sample.BAD: "bad", Sample.GOOD: "good"}
        word = says[Sample.BAD] if Sample.BAD in told else says.get(told[0], "says nothing")
        return f"{how}  {word}"

    def tested(self, verdicts: Mapping[int, Verdict]) -> dict[int, Tested]:
        """What is known of every version that was tried, in that order.

        Args:
            verdicts: By place, of the answer; empty = what the attempts so far mean.
        """
        said = verdicts or so_far(self.samples(), self.rules, len(self.versions))
        return {number: self._tested(number, said.get(number, Verdict.UNKNOWN)) for number in self.places}

    def others(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Titles of failures that are not the one looked for, with their versions, oldest first."""
        failure = self.failure or Failure()
        strange = [
            (number, attempt)
            for number, place in sorted(self.places.items())
            for attempt in place.attempts
            if attempt.outcome.failed and sample(attempt, failure) is not Sample.BAD
        ]
        groups = tally([attempt for _, attempt in strange]) if strange else []
        owner = {id(attempt): self.versions[number].name for number, attempt in strange}
        return tuple(
            (title_of(group[0]), tuple(dict.fromkeys(owner[id(attempt)] for attempt in group))) for group in groups
        )

    def most_shown(self) -> Failure | None:
        """The failure that most versions show; None where none failed."""
        shown = [found for place in self.places.values() if (found := failure_of(place.attempts)) is not None]
        best: Failure | None = None
        most = 0
        for failure in shown:
            same = [other for other in shown if other.marks & failure.marks]
            if len(same) > most:
                best = Failure(frozenset().union(*(other.marks for other in same)), failure.title)
                most = len(same)
        return best

    def _tested(self, number: int, verdict: Verdict) -> Tested:
        place, version = self.places[number], self.versions[number]
        metric = self.failure.metric if self.failure is not None else ""
        values = [value for one in place.attempts if metric and (value := measured(one, metric)) is not None]
        exists = bool(place.attempts) or place.gone or place.lost
        return Tested(
            name=version.name,
            verdict=verdict,
            why=self._why(number),
            rates=rates(place.attempts),
            result=place.result if exists else None,
            lock=self.trials.lock(version.cell) if place.attempts else None,
            phase=place.phase,
            attempted=place.attempted,
            seconds=round(place.seconds, 3),
            metric=median(values) if values else None,
        )

    def _why(self, number: int) -> str:
        place, told = self.places[number], self.samples()[number]
        strange = [one for one, said in zip(place.attempts, told, strict=False) if said is Sample.NOTHING]
        failed = [one for one in strange if one.outcome.failed]
        if failed and self.failure is not None:
            if self.failure.metric:
                return f"it failed: {title_of(failed[0])}"
            return f"another failure: {title_of(failed[0])}"
        if strange or not place.attempts:
            return place.reason
        if not place.lost:
            return ""
        return f"{counted(place.lost, 'attempt')} {'was' if place.lost == 1 else 'were'} lost to infrastructure"

    def _check(self, places: Mapping[int, Place], task: Task) -> None:
        """End the search where infrastructure fails for an end, or for one version after the other.

        Raises:
            InfraError: It does.
        """
        gone = [number for number, place in places.items() if place.gone]
        self._gone = self._gone + len(gone) if len(gone) == len(places) else 0
        ends = [number for number in gone if number in (0, len(self.versions) - 1)]
        if ends or self._gone >= _GONE:
            number = (ends or gone)[0]
            task.finish("infra")
            raise InfraError(
                places[number].result.reason,  # type: ignore[union-attr]
                where=self.versions[number].cell.id,
                hint="nothing is known of the version; what was finished is kept, the same command continues",
            )

    def _take(self, place: Place, cell: Cell, result: CellResult, wanted: int) -> None:
        known = {attempt.number for attempt in place.attempts}
        place.attempts = tuple(attempt for attempt in result.attempts if attempt.outcome is not Outcome.INFRA)
        new = [one for one in place.attempts if one.number not in known and self.trials.made(cell, one.number)]
        place.attempted += len(new)
        place.seconds += sum(attempt.seconds for attempt in new)
        if place.attempts or result.outcome is Outcome.INFRA:
            place.lost += wanted - len(place.attempts) if wanted > len(place.attempts) else 0
        place.result = result
