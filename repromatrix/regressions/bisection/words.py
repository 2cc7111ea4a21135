"""What a bisection found, in plain sentences and rows; `report.py` makes a terminal's text or Markdown of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from packaging.version import Version

from repromatrix.envs.model import Lock, Wheel
from repromatrix.regressions.model import Bisection, FoundEdge, Tested
from repromatrix.regressions.told import attempts_spent, enough, share, time_spent
from repromatrix.report.layout import counted, duration, ending
from repromatrix.results.combine import clip
from repromatrix.results.rates import Rate, percent
from repromatrix.search.model import Verdict
from repromatrix.share.issues.releases import JAX, told_apart_by
from repromatrix.spec.model import Outcome, word

TELLS = (Verdict.GOOD, Verdict.BAD)
"""Verdicts that steer."""
_TITLE = 400
"""Characters of a failure's title."""

PHASES = {
    "end": "an end of the range",
    "sweep": "sweep",
    "bisect": "bisection",
    "confirm": "to confirm",
    "rate": "to count failures",
}
"""Why a version was tried, in words."""


def subject(found: Bisection) -> str:
    """`hlo_pass_crash on cpu flag=noop_change`."""
    return " ".join([found.repro, "on", found.target, *(f"{name}={word(value)}" for name, value in found.params)])


def failure(found: Bisection) -> str:
    """What is looked for: `crash "absl-fatal ..."`, or the words alone where they are no title that was seen.

    Empty where the search did not come to know it, as when nothing failed.
    """
    shown = clip(found.failure, _TITLE)
    rates = [rate for each in found.path if each.verdict is Verdict.BAD for rate in each.rates]
    outcome = next((rate.outcome.value for rate in rates if rate.title and rate.title == found.failure), "")
    return f'{outcome} "{shown}"' if outcome else shown


def answers(found: Bisection) -> tuple[str, ...]:
    """What there is to say of the failure, a sentence each, the most important first."""
    if found.refused:
        return (f"no search: {found.refused}",)
    said = [edge_words(found, edge) for edge in found.edges]
    if found.interrupted:
        so_far = [] if found.edges else [f"{verb(old, new)} {_span(old, new)}" for old, new in changes_seen(found)]
        return (*said, *so_far, "interrupted: what was run is kept, and the same command goes on from there")
    return tuple(said) or (_no_change(found),)


def edge_words(found: Bisection, edge: FoundEdge) -> str:
    """`begins in jax 0.7.1 (2025-08-20); last good 0.7.0 (2025-07-22)`."""
    axis = found.series.axis
    last = "last good" if edge.begins else "last bad"
    place = f"on {edge.newer.name}" if axis == "date" else f"in {axis} {dated(axis, edge.newer)}"
    said = f"{'begins' if edge.begins else 'ends'} {place}; {last} {dated(axis, edge.older)}"
    if unknown := between(found, edge):
        runs = [(why, [name for name, _ in run]) for why, run in groupby(unknown, key=lambda pair: pair[1])]
        told = [
            f"{names[0]} to {names[-1]} ({why})" if len(names) > 1 else f"{names[0]} ({why})" for why, names in runs
        ]
        more = [f"{len(told) - 8} more"] if len(told) > 8 else []
        said += f"; it may be in between, where {', '.join([*told[:8], *more])} gave no verdict on it"
    return said


def between(found: Bisection, edge: FoundEdge) -> tuple[tuple[str, str], ...]:
    """(version, mark) of those between the two of an edge of which nothing is known, oldest first.

    Those that no cell can try are among them: the change may be theirs.
    """
    order: Callable[[str], Any] = str if found.series.axis == "date" else Version
    tried = [(each.name, mark(each)) for each in edge.between]
    older, newer = order(edge.older.name), order(edge.newer.name)
    left = [(name, "left out") for name, _ in found.series.left_out if older < order(name) < newer]
    return tuple(sorted([*tried, *left], key=lambda pair: order(pair[0])))


def doubts(found: Bisection, edge: FoundEdge) -> tuple[str, ...]:
    """What speaks against an edge, a sentence each."""
    against = [edge.suspect] if edge.suspect else []
    if not enough(edge.confidence, found.rules):
        asked = percent(found.rules.confidence)
        against.append(
            f"the change is here with a probability of {share(edge.confidence)} only, and {asked} were asked for"
        )
    return tuple(against)


def verb(older: Tested, newer: Tested) -> str:
    return "begins" if newer.verdict is Verdict.BAD else "ends" if older.verdict is Verdict.BAD else "changes"


def changes_seen(found: Bisection) -> tuple[tuple[Tested, Tested], ...]:
    """Neighbours among the versions with a verdict whose verdicts differ, oldest first."""
    told = [each for each in by_version(found) if each.verdict in TELLS]
    return tuple((old, new) for old, new in pairwise(told) if old.verdict is not new.verdict)


def by_version(found: Bisection) -> tuple[Tested, ...]:
    """The versions tried, oldest first."""
    order = {version.name: place for place, version in enumerate(found.series.versions)}
    return tuple(sorted(found.path, key=lambda each: order.get(each.name, len(order))))


def marks(found: Bisection) -> tuple[tuple[str, str], ...]:
    """(version, mark) of every version tried, oldest first."""
    return tuple((each.name, mark(each)) for each in by_version(found))


def mark(tested: Tested) -> str:
    """`good`, `bad`, `AMBIGUOUS`, or why nothing is known: `skip`, `inconclusive`, `infra`, `other failure`."""
    if tested.verdict is Verdict.AMBIGUOUS:
        return "AMBIGUOUS"
    if tested.verdict in TELLS:
        return tested.verdict.value
    if tested.result is None:
        return "impossible"
    if tested.result.outcome.failed:
        return "other failure"
    return "no verdict" if tested.result.outcome is Outcome.OK else tested.result.outcome.value


def dated(axis: str, tested: Tested) -> str:
    """`0.7.1 (2025-08-20)`, with the day where the lock knows it."""
    day = released(axis, tested.lock)
    return f"{tested.name} ({day})" if day else tested.name


def released(axis: str, lock: Lock | None) -> str:
    """The day on which what the axis names was uploaded; empty where that is not known."""
    if lock is None or axis == "date":
        return ""
    name = r"nvidia-nccl-cu\d+" if axis == "nccl" else re.escape(axis)
    return next((wheel.uploaded[:10] for wheel in lock.wheels if re.fullmatch(name, wheel.name)), "")


def path_table(found: Bisection) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """(headings, rows) of the path, in the order in which versions were first tried.

    Columns that no row fills (the day of a release where the axis is a date, the metric) are left out.
    """
    axis = found.series.axis
    headings = (axis, "released", "verdict", "ended", "attempts", "median", "tried for", "time")
    rows = [
        (
            each.name,
            released(axis, each.lock),
            mark(each),
            ending(each.result) if each.result is not None else "",
            attempts(each),
            "" if each.metric is None else f"{each.metric:g}",
            PHASES.get(each.phase, each.phase),
            _time(each),
        )
        for each in found.path
    ]
    kept = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    return tuple(headings[column] for column in kept), tuple(tuple(row[column] for column in kept) for row in rows)


def _time(tested: Tested) -> str:
    if tested.attempted:
        return duration(tested.seconds)
    return "known before" if tested.rates else ""


def attempts(tested: Tested) -> str:
    """`1`, `7`, or where they disagree `3 of 10 crash (11 % to 60 %), 7 ok`, failures first."""
    rates = sorted(tested.rates, key=lambda rate: not rate.outcome.failed)
    if len(rates) < 2:
        return str(rates[0].of) if rates else ""
    return ", ".join(_rate(rate, first=place == 0) for place, rate in enumerate(rates))


def _rate(rate: Rate, *, first: bool) -> str:
    said = f"{rate.count} of {rate.of} {rate.outcome.value}" if first else f"{rate.count} {rate.outcome.value}"
    return said + (f" ({percent(rate.low)} to {percent(rate.high)})" if rate.outcome.failed else "")


def reasons(found: Bisection) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(reason, versions) of what the verdicts do not say, each reason once."""
    named: dict[str, list[str]] = {}
    for each in by_version(found):
        if each.why:
            named.setdefault(each.why, []).append(each.name)
    return tuple((why, tuple(names)) for why, names in named.items())


def flaky(found: Bisection) -> str:
    """How often bad versions fail, where some attempt of one did not; else empty."""
    low, high = found.rate
    if low >= 1:
        return ""
    sure = percent(found.rules.confidence)
    return (
        f"The failure comes and goes: a bad version fails in {percent(low)} to {percent(high)} of its attempts"
        f" (interval of {sure})."
    )


def ambiguous(found: Bisection) -> str:
    """Which versions stay open after all attempts that are allowed, and what would settle them; empty where none."""
    names = [
        f"{each.name} ({_attempts_in_words(each)})" for each in by_version(found) if each.verdict is Verdict.AMBIGUOUS
    ]
    if not names:
        return ""
    more = f"more than {counted(found.rules.most, 'attempt')} (`--attempts`), or a lower `--confidence`"
    if not found.rules.symmetric:
        more += ", or a least failure rate to reckon with (`--rate`)"
    sure = percent(found.rules.confidence)
    return f"AMBIGUOUS at a confidence of {sure}: {_listed(names)}. What would settle it: {more}."


def _attempts_in_words(tested: Tested) -> str:
    if len(tested.rates) != 1:
        return attempts(tested)
    (rate,) = tested.rates
    return f"{counted(rate.of, 'time')} {rate.outcome.value}"


def wheels(edge: FoundEdge) -> tuple[tuple[str, ...], ...]:
    """(change, package, older, newer) of every wheel that differs."""
    return tuple((each.kind, each.name, _wheel(each.first), _wheel(each.second)) for each in edge.changes)


def _wheel(wheel: Wheel | None) -> str:
    if wheel is None:
        return ""
    return f"{wheel.version} ({wheel.uploaded[:10]})" if wheel.uploaded else wheel.version


def compare(edge: FoundEdge) -> str:
    """Address of the range of commits in the repository of jax; empty where it is not known."""
    return f"{JAX}/compare/{'...'.join(edge.source)}" if edge.source is not None else ""


def commits(edge: FoundEdge) -> tuple[str, ...]:
    """Where to look for the cause: what the wheels say of their commits, and what they do not."""
    return (*_pythons(edge), *_commits(edge))


def _pythons(edge: FoundEdge) -> tuple[str, ...]:
    older, newer = (each.lock.python if each.lock is not None else "" for each in (edge.older, edge.newer))
    if not (older and newer) or older == newer:
        return ()
    return (f"Python changes here, too, from {older} to {newer}: the change may be Python's.",)


def _commits(edge: FoundEdge) -> tuple[str, ...]:
    if edge.source is None:
        if any(change.name in ("jax", "jaxlib") for change in edge.changes):
            return ("Which commits to look at is not known: nothing says from which ones these wheels were built.",)
        return ("jax and jaxlib are the same on both sides: what to look at are the wheels that changed.",)
    said = list(_built_from(edge))
    said.append(
        "XLA's commit is not in the wheels: third_party/xla/revision.bzl of jax pins it (workspace.bzl in older ones)."
    )
    return tuple(said)


def _built_from(edge: FoundEdge) -> Iterator[str]:
    """Of the two releases: of jaxlib where jax is the same in both."""
    if told_apart_by(*edge.releases) == "jaxlib":
        for release in edge.releases:
            yield f"jaxlib {release.version('jaxlib')} was built from jax's commit {release.jaxlib_commit}."
        return
    pairs = list(zip((edge.older, edge.newer), edge.releases, strict=True))
    for each, release in pairs:
        if release.commit:
            yield f"The wheels of {each.name} were built from jax's commit {release.commit}."
    if silent := [each.name for each, release in pairs if not release.commit]:
        yield f"No commit of jax was found in the wheels of {' and '.join(silent)}."
    for each, release in pairs:
        if not release.commit and release.jaxlib_commit:
            yield (
                f"The jaxlib of {each.name} is {release.version('jaxlib')}: the commit that it was built from"
                f" ({release.jaxlib_commit[:12]}) is not that of jax {release.jax}."
            )


def spent(found: Bisection) -> str:
    """`8 of 31 versions tried by venv, 12 attempts (4 of them known before), in 5m: 3m running, ...`"""
    total = sum(len(each.result.attempts) for each in found.path if each.result is not None)
    made = sum(each.attempted for each in found.path)
    return (
        f"{len(found.path)} of {counted(len(found.series.versions), 'version')} tried by {found.engine or 'no engine'},"
        f" {attempts_spent(total, made)}, in {time_spent(found.spent)}."
    )


def handover(found: Bisection) -> str:
    """The command that makes a maintainer's folder of the bad version of the newest edge; empty where there is none.

    With a metric there is none either: the run itself ended well.
    """
    bad = found.edges[-1].bad.result if found.edges else None
    if bad is None or found.rules.symmetric:
        return ""
    said = ["uv", "run", "invoke", "handoff", bad.repro, "--env", bad.environment, "--target", bad.target]
    return shlex.join([*said, *(part for name, value in bad.params for part in ("--param", f"{name}={word(value)}"))])


def others(found: Bisection) -> tuple[tuple[str, str], ...]:
    """(title, versions) of the failures that were seen besides."""
    return tuple((clip(title, _TITLE), ", ".join(names)) for title, names in found.others)


def left_out(found: Bisection) -> tuple[tuple[str, str], ...]:
    """(reason, versions) of those that no cell can try."""
    named: dict[str, list[str]] = {}
    for name, reason in found.series.left_out:
        named.setdefault(reason, []).append(name)
    return tuple((reason, _listed(names)) for reason, names in named.items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _span(older: Tested, newer: Tested) -> str:
    return f"between {older.name} and {newer.name}, as far as is known"


def _no_change(found: Bisection) -> str:
    told = [each for each in by_version(found) if each.verdict in TELLS]
    if seen := changes_seen(found):
        said = ", ".join(f"{verb(*pair)} {_span(*pair)}" for pair in seen)
        return f"no change of the kind that was looked for: it {said}"
    if any(each.verdict is Verdict.AMBIGUOUS for each in found.path):
        bad = f"bad: {_listed([each.name for each in told])}; " if told and told[0].verdict is Verdict.BAD else ""
        return f"AMBIGUOUS: {bad}whether others are good the attempts that are allowed do not tell"
    if not told:
        return "nothing can be said: no version that was tried has a verdict"
    axis = found.series.axis
    all_of_them = f"all {len(told)} versions" if len(told) > 1 else "the one version"
    last = "" if told[0].verdict is Verdict.GOOD else "; no good version is known"
    return f"no change found: {told[0].verdict.value} in {all_of_them} with a verdict, {_range(axis, told)}{last}"


def _range(axis: str, told: Iterable[Tested]) -> str:
    first, *_, last = (*told, *told)
    return dated(axis, first) if first is last else f"from {dated(axis, first)} to {dated(axis, last)}"
