"""What a minimisation found, for a terminal and for an issue: the answer first, then the way to it."""

from __future__ import annotations

import shutil
import textwrap

from tabulate import tabulate

from repromatrix.regressions.minimising import words
from repromatrix.regressions.minimising.model import Minimised, Smallest, Threshold
from repromatrix.regressions.told import host
from repromatrix.report.escape import clean, code, fence, paragraph, printable, prose
from repromatrix.report.fit import Section, fit, table, titled
from repromatrix.report.layout import counted
from repromatrix.report.table import BOLD, GREEN, RED, YELLOW, paint
from repromatrix.results.combine import clip

_TELLS = {"good": GREEN, "bad": RED}


def text(found: Minimised, colour: bool = False, width: int = 0) -> str:
    """For a terminal.

    Args:
        colour: Whether to use ANSI colours.
        width: Columns to fit; 0 = those of the terminal, or 120 where there is none.
    """
    width = max(20, width or shutil.get_terminal_size((120, 24)).columns)

    def wrapped(sentence: str, indent: str = "  ") -> str:
        return textwrap.fill(clean(sentence), width, subsequent_indent=indent, break_long_words=False)

    blocks = [paint(wrapped(f"{found.cell}: {words.failure(found)}"), BOLD, colour)]
    for part in found.parts:
        lines = [paint(wrapped(words.sentence(part)), BOLD, colour), *map(wrapped, words.doubts(part, found))]
        for headings, rows in (words.needed(part), words.path(part)):
            if rows:
                place = headings.index("verdict") if "verdict" in headings else -1
                shown = [[_cell(cell, colour and at == place) for at, cell in enumerate(row)] for row in rows]
                lines += ["", tabulate(shown, headings, tablefmt="simple", disable_numparse=True)]
        lines += [wrapped(line, "    ") for line in words.reasons(part)]
        blocks.append("\n".join(lines))
    blocks += [wrapped(line) for line in (*words.flaky(found), *(f"Hint: {hint}" for hint in found.hints))]
    blocks.append("\n".join([wrapped(words.spent(found)), f"Again: {printable(found.command)}"]))
    return "\n\n".join(blocks)


def markdown(found: Minimised) -> str:
    """To paste into an issue: at most the 65,536 characters that GitHub takes."""
    sections = [
        Section((f"## {code(found.repro)}: what makes it fail", "", f"{code(found.cell)}: {code(found.failure)}"))
    ]
    for part in found.parts:
        said = [f"**{prose(words.sentence(part))}**", *(f"- {paragraph(doubt)}" for doubt in words.doubts(part, found))]
        sections.append(Section((f"#### {_title(part)}", "", *said)))
        headings, rows = words.needed(part)
        if rows:
            sections.append(table(headings, [(1, list(map(prose, row))) for row in rows], "rows", 60))
        headings, rows = words.path(part)
        made = table(headings, [(0, list(map(prose, row))) for row in rows], "tries", 40)
        why = [f"- {paragraph(clip(line, words.WIDE))}" for line in words.reasons(part)]
        if rows:
            head = (f"<details><summary>{counted(len(rows), 'variant')} tried</summary>", "", *made.head)
            tail = (*(["", *why] if why else []), "", "</details>")
            # A boundary's rows are the answer, not the way to it.
            sections.append(made if isinstance(part, Threshold) else Section(head, made.lines, tail, "tries", 40))
    notes = [*words.flaky(found), *found.hints]
    sections.append(titled("#### Notes", ((1, f"- {paragraph(note)}") for note in notes), "notes", 70))
    opening, closing = fence([found.command], "sh")
    footer = ["---", "", prose(words.spent(found)), "", opening, printable(found.command), closing]
    sections.append(Section((*footer, *(["", host(found.facts)] if found.facts else []))))
    return fit([section for section in sections if section.head or section.lines])


def _title(part: Smallest | Threshold) -> str:
    return f"The parameter {code(part.param)}" if isinstance(part, Threshold) else words.TITLES[part.what]


def _cell(text: str, coloured: bool) -> str:
    text = clean(text)
    return paint(text, _TELLS.get(text, YELLOW), coloured)
