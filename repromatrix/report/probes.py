"""What a page says of a probe: what was looked up in the installed binaries, and what that proves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repromatrix.evidence.probe import MEANING
from repromatrix.report.attempts import interest
from repromatrix.report.escape import code, paragraph, prose
from repromatrix.report.fit import Section, table
from repromatrix.report.layout import ending, newest_first
from repromatrix.results.combine import clip
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome, Repro

HEADING = "What was found"
ANCHOR = "#what-was-found"
"""Where GitHub puts `HEADING`."""

_WIDE = 8
"""Things looked up beyond which each has a row instead of a column."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One thing that a probe looks up.

    Attributes:
        title: As a table shows it, escaped.
        metric: Name under which `containers/probe.py` tells what it found.
        missing: What it means where it told nothing.
    """

    title: str
    metric: str
    missing: str


def what_was_found(repro: Repro, cells: Sequence[CellResult]) -> tuple[Section, ...]:
    """The table of a probe, and what each kind of finding does and does not prove; nothing for other repros."""
    looked = [cell for cell in _ordered(cells) if cell.attempts]
    if not repro.probe or not looked:
        return ()
    lookups = list(_lookups(repro))
    places = [(cell, _place(cell, looked)) for cell in looked]
    if len(lookups) <= _WIDE:
        rows = [(interest(cell), [place, *(_value(one, cell) for one in lookups)]) for cell, place in places]
        found = table(["environment", *(one.title for one in lookups)], rows, "environments", 85)
    else:
        rows = [(1, [one.title, *(_value(one, cell) for cell in looked)]) for one in lookups]
        found = table(["looked up", *(place for _, place in places)], rows, "things looked up", 85)
    legend = (
        "Numbers are counts over all binaries that were looked into: runs of text for a string, names for a symbol "
        "(`nm`: full table, `nm -D`: dynamic table)."
    )
    meant = tuple((1, f"- {paragraph(MEANING[kind])}") for kind in _kinds(repro))
    return (
        Section((f"## {HEADING}", "", legend, "", *found.head), found.lines, what=found.what, rank=found.rank),
        Section(("What this proves, and what it does not:", ""), meant, what="kinds of findings", rank=84),
    )


def _lookups(repro: Repro) -> Iterator[Lookup]:
    for text in repro.strings:
        yield Lookup(f"string {code(clip(text, 120))}", f"strings/{_metric(text)}", "not told")
    for text in repro.symbols:
        yield Lookup(f"{code(clip(text, 120))} in `nm`", f"symtab/{_metric(text)}", "no such table")
        yield Lookup(f"{code(clip(text, 120))} in `nm -D`", f"dynsym/{_metric(text)}", "no such table")
    for flag in repro.flags:
        name = flag.lstrip("-").partition("=")[0]
        yield Lookup(f"flag {code(clip(flag, 160))}", f"flag/{_metric(name)}", "no answer")


def _metric(text: str) -> str:
    """As `containers/probe.py` writes a text in the name of a metric."""
    return re.sub(r"[^\w.:/-]", "_", text)


def _value(lookup: Lookup, cell: CellResult) -> str:
    values = [value for name, value in cell.attempts[-1].metrics if name == lookup.metric]
    if not values:  # `ok` means that the probe looked to its end
        return lookup.missing if cell.outcome is Outcome.OK else ending(cell)
    if lookup.metric.startswith("flag/"):
        return ", ".join(dict.fromkeys("accepted" if value else "refused" for value in values))
    return ", ".join(dict.fromkeys(f"{value:.0f}" for value in values))


def _kinds(repro: Repro) -> Iterator[str]:
    if repro.strings:
        yield "strings"
    if repro.symbols:
        yield from ("symtab", "dynsym")
    if repro.flags:
        yield "flags"


def _ordered(cells: Sequence[CellResult]) -> list[CellResult]:
    order = {environment: place for place, environment in enumerate(newest_first(cells))}
    return sorted(cells, key=lambda cell: (order[cell.environment], cell.engine))


def _place(cell: CellResult, looked: Sequence[CellResult]) -> str:
    several = len({one.engine for one in looked}) > 1
    return code(cell.environment) + (f" {prose(cell.engine)}" if several else "")
