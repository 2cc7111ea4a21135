"""What was seen, read once for all questions of one step."""

from __future__ import annotations

from dataclasses import dataclass

from repromatrix.search.model import History, Rules, Seen, Verdict
from repromatrix.search.verdict import Reading, Tally, read, tally, verdict

Wish = tuple[int, int]
"""A place, and how many further attempts of it are wanted."""


@dataclass(frozen=True, slots=True)
class View:
    """What was seen of a history.

    Attributes:
        width: Attempts that can run at once.
        tallies: Of every place that was tried.
        verdicts: What the search takes places for; without those that must be tried further before they say anything.
    """

    history: History
    seen: Seen
    rules: Rules
    width: int
    tallies: dict[int, Tally]
    reading: Reading
    verdicts: dict[int, Verdict]

    def tally(self, place: int) -> Tally:
        return self.tallies.get(place, Tally())

    def open(self, place: int) -> bool:
        """Whether it must be tried, or tried further, before it says anything."""
        return place not in self.verdicts

    def good(self, place: int) -> bool:
        return self.verdicts.get(place) is Verdict.GOOD

    def steers(self, place: int) -> bool:
        """Whether it is good or bad."""
        return self.verdicts.get(place) in (Verdict.GOOD, Verdict.BAD)

    def passes(self, place: int, wanted: int) -> int:
        """Attempts that a place still needs for so many passes, as far as it may have more."""
        counted = self.tally(place)
        return max(0, min(wanted - counted.good, self.rules.most - counted.attempts))

    def opening(self, place: int) -> Wish:
        """The attempts of an open place that may give it a verdict."""
        counted = self.tally(place)
        missing = self.reading.lead - abs(counted.good - counted.bad) if self.rules.symmetric else 1
        return place, max(1, min(missing, self.rules.most - counted.attempts))


def look(history: History, seen: Seen, rules: Rules, width: int) -> View:
    """Reads what was seen."""
    tallies = {place: tally(samples) for place, samples in seen.items()}
    reading = read(tallies.values(), rules, history.size)
    said = {place: verdict(counted, rules, reading) for place, counted in tallies.items()}
    known = {place: each for place, each in said.items() if each is not None}
    return View(history, seen, rules, width, tallies, reading, known)
