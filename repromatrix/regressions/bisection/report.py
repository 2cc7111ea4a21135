"""What a bisection found, for a terminal and for an issue: the answer first, then the way to it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, log, log1p

from tabulate import tabulate

from repromatrix.regressions.bisection import words
from repromatrix.regressions.bisection.triage import Triage, triage
from repromatrix.regressions.model import Bisection, FoundEdge
from repromatrix.regressions.told import host, sure
from repromatrix.report.escape import clean, code, fence, paragraph, printable, prose
from repromatrix.report.fit import Section, fit, table, titled
from repromatrix.report.layout import counted
from repromatrix.report.table import BOLD, GREEN, RED, YELLOW, paint
from repromatrix.results.combine import clip

_REASON = 400
"""Characters of a reason."""
_REASONS = 30
"""Reasons on a page; a range of many nightly builds may have as many."""
_GO_ON = "To go on to one commit, with JAX-Toolbox's triage:"
_IN_REPORT = "To go on to one commit: the Markdown report has the command for JAX-Toolbox's triage."
_HEADS = ("change", "package", "older", "newer")


def text(found: Bisection, colour: bool = False, width: int = 0) -> str:
    """For a terminal.

    Args:
        colour: Whether to use ANSI colours.
        width: Columns to fit; 0 = those of the terminal, or 120 where there is none.
    """
    page = _Terminal(width or shutil.get_terminal_size((120, 24)).columns, colour)
    blocks = [
        page.answer(found),
        page.path(found),
        *(page.edge(found, edge) for edge in found.edges),
        page.listed("Other failures, which did not steer", words.others(found)),
        page.listed("Versions that no cell can try", words.left_out(found)),
        page.said(found),
        page.end(found),
    ]
    return "\n\n".join(block for block in blocks if block)


class _Terminal:
    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = max(width, 20), colour

    def answer(self, found: Bisection) -> str:
        head = f"{words.subject(found)}: {words.failure(found)}".rstrip()
        said = words.answers(found)
        against = {place: words.doubts(found, edge) for place, edge in enumerate(found.edges)}
        lines = [self.wrapped(f"{head} {said[0]}" if len(said) == 1 else head, "  ", bold=True)]
        for place, sentence in enumerate(said):
            if len(said) > 1:
                lines.append(self.wrapped(f"  {sentence}", "    ", bold=True))
            lines += [self.wrapped(f"    SUSPECT: {doubt}", "      ", colour=RED) for doubt in against.get(place, ())]
        if row := self.marks(found):
            lines.append(row)
        lines += [self.wrapped(sentence) for sentence in (words.flaky(found), words.ambiguous(found)) if sentence]
        return "\n".join(lines)

    def marks(self, found: Bisection) -> str:
        """`0.5.3 skip | 0.6.0 bad | 0.6.1 good`, in as many lines as it needs."""
        lines: list[list[tuple[str, str]]] = [[]]
        used = 0
        for name, mark in words.marks(found):
            size = len(name) + len(mark) + 4
            if lines[-1] and used + size > self.width:
                lines.append([])
                used = 0
            lines[-1].append((name, mark))
            used += size
        rows = (" | ".join(f"{clean(name)} {self.mark(mark)}" for name, mark in line) for line in lines if line)
        return " |\n".join(rows)

    def mark(self, mark: str) -> str:
        return paint(mark, {"good": GREEN, "bad": RED}.get(mark, YELLOW), self.colour)

    def path(self, found: Bisection) -> str:
        headings, rows = words.path_table(found)
        if not rows:
            return ""
        place = headings.index("verdict")
        shown = [[self.mark(cell) if n == place else clean(cell) for n, cell in enumerate(row)] for row in rows]
        lines = [
            tabulate(shown, headings, tablefmt="simple", disable_numparse=True),
            *(self.wrapped(f"{', '.join(names)}: {clip(why, _REASON)}", "    ") for why, names in words.reasons(found)),
        ]
        return "\n".join(lines)

    def edge(self, found: Bisection, edge: FoundEdge) -> str:
        lines = [self.wrapped(_between(found, edge), "  ", bold=True)]
        if rows := words.wheels(edge):
            lines.append(tabulate(rows, _HEADS, tablefmt="simple", disable_numparse=True))
        else:
            lines.append("No wheel differs.")
        if address := words.compare(edge):
            lines.append(f"Commits to look at: {address}")
        lines += map(self.wrapped, words.commits(edge))
        how = _triage(found, edge)
        if how.command:
            lines.append(self.wrapped(_IN_REPORT))
        else:
            lines += map(self.wrapped, how.fill_in)
        return "\n".join(lines)

    def listed(self, title: str, pairs: Sequence[tuple[str, str]]) -> str:
        lines = [self.wrapped(f"  {names}: {clip(what, _REASON)}", "    ") for what, names in pairs]
        return "\n".join([f"{title}:", *lines]) if lines else ""

    def said(self, found: Bisection) -> str:
        return "\n".join(self.wrapped(f"Note: {note}", "  ") for note in found.notes)

    def end(self, found: Bisection) -> str:
        lines = [self.wrapped(words.spent(found)), f"Again: {printable(found.command)}"]
        if command := words.handover(found):
            lines.append(f"For a maintainer: {printable(command)}")
        return "\n".join(lines)

    def wrapped(self, sentence: str, indent: str = "", *, bold: bool = False, colour: str = "") -> str:
        lead = sentence[: len(sentence) - len(sentence.lstrip(" "))]
        filled = textwrap.fill(
            lead + clean(sentence), self.width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
        return paint(filled, BOLD if bold else colour, self.colour and (bold or bool(colour)))


def markdown(found: Bisection) -> str:
    """To paste into an issue: at most the 65,536 characters that GitHub takes."""
    sections = [
        Section((f"## {code(found.repro)} on {code(words.subject(found).partition(' on ')[2])}: since when",)),
        Section(tuple(_answer(found))),
        *(section for edge in found.edges for section in _edge(found, edge)),
        _path(found),
        titled(
            "#### Other failures, which did not steer",
            ((1, f"- {prose(names)}: {code(title)}") for title, names in words.others(found)),
            "failures",
            40,
        ),
        titled(
            "#### Versions that no cell can try",
            ((1, f"- {prose(names)}: {prose(clip(reason, _REASON))}") for reason, names in words.left_out(found)),
            "versions",
            30,
        ),
        titled("#### Notes", ((1, f"- {paragraph(clip(note, _REASON))}") for note in found.notes), "notes", 60),
        Section(tuple(_footer(found))),
    ]
    return fit([section for section in sections if section.head or section.lines])


def _answer(found: Bisection) -> Iterator[str]:
    if found.failure:
        yield f"Looked for: {_failure(found)}."
        yield ""
    for place, sentence in enumerate(words.answers(found)):
        yield f"- **{prose(sentence)}**"
        if place < len(found.edges):
            for doubt in words.doubts(found, found.edges[place]):
                yield f"  - **Suspect:** {prose(doubt)}."
    if row := words.marks(found):
        yield ""
        yield prose(" | ".join(f"{name} {mark}" for name, mark in row))
    for sentence in (words.flaky(found), words.ambiguous(found)):
        if sentence:
            yield ""
            yield paragraph(sentence)


def _failure(found: Bisection) -> str:
    outcome, quote, title = words.failure(found).partition(' "')
    return f"{prose(outcome)} {code(title.removesuffix(quote[-1:]))}" if quote else code(outcome)


def _edge(found: Bisection, edge: FoundEdge) -> Iterator[Section]:
    said = []
    if edge.source is not None:
        said.append(f"- [Commits to look at]({words.compare(edge)}): {prose(' to '.join(edge.source))}.")
    said += [f"- {prose(sentence)}" for sentence in words.commits(edge)]
    yield Section((f"#### {prose(_between(found, edge))}", "", *said))
    rows = [(0, [prose(cell) for cell in row]) for row in words.wheels(edge)]
    if rows:
        made = table(_HEADS, rows, "wheels", 55)
        yield _folded(f"{counted(len(rows), 'wheel')} differ{'s' * (len(rows) == 1)}", made)
    how = _triage(found, edge)
    if how.command:
        opening, closing = fence([how.command], "sh")
        lines = (_GO_ON, "", opening, printable(how.command), closing, "")
        yield Section((*lines, *(f"- {paragraph(sentence)}" for sentence in how.fill_in)))
    elif how.fill_in:
        yield Section(tuple(map(paragraph, how.fill_in)))


def _path(found: Bisection) -> Section:
    headings, rows = words.path_table(found)
    if not rows:
        return Section()
    made = table(
        headings,
        [(row[headings.index("verdict")] in ("good", "bad"), list(map(prose, row))) for row in rows],
        "versions",
        35,
    )
    told = words.reasons(found)
    why = [f"- {prose(', '.join(names))}: {prose(clip(why, _REASON))}" for why, names in told[:_REASONS]]
    if len(told) > _REASONS:
        why.append(f"- {counted(len(told) - _REASONS, 'more reason')} in `--json`.")
    return _folded(
        f"The path of the search: {counted(len(rows), 'version')}, in the order in which they were tried", made, why
    )


def _folded(summary: str, section: Section, after: Iterable[str] = ()) -> Section:
    head = (f"<details><summary>{prose(summary)}</summary>", "", *section.head)
    more = [*after]
    tail = (*(["", *more] if more else []), "", "</details>")
    return Section(head, section.lines, tail, section.what, section.rank)


def _footer(found: Bisection) -> Iterator[str]:
    yield from ("---", "", prose(words.spent(found)), "")
    handover = words.handover(found)
    commands = [found.command, *([f"{handover}   # a folder for a maintainer, with one command"] if handover else [])]
    opening, closing = fence(commands, "sh")
    yield from (opening, *map(printable, commands), closing)
    if found.facts:
        yield from ("", host(found.facts))


def _between(found: Bisection, edge: FoundEdge) -> str:
    """`From jax 0.7.0 to 0.7.1, where it begins (99.2 % sure)`."""
    where = "begins" if edge.begins else "ends"
    confirmed = sure(edge.confidence)
    confirmed += ", or between the two" if words.between(found, edge) else ""
    return f"From {found.series.axis} {edge.older.name} to {edge.newer.name}, where it {where} ({confirmed})"


def _triage(found: Bisection, edge: FoundEdge) -> Triage:
    if found.rules.symmetric:
        return Triage(
            "", ("JAX-Toolbox's triage is given no command: it goes by exit statuses, and not by this metric.",)
        )
    # Often enough that a bad version which fails as seldom as may be passes all of them in one search of a hundred.
    times = ceil(log(0.01) / log1p(-low)) if 0 < (low := found.rate[0]) < 1 else 1
    return triage(edge, found.series.versions[0].cell, times)
