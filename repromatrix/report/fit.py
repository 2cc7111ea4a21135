"""Pages that fit GitHub: the least interesting lines go first, and the page says what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

LIMIT = 65_536
"""Characters of an issue's or comment's text that GitHub takes."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        head: Before the lines; never cut, left out with the last line.
        lines: (interest, text) pairs; lines of low interest are cut first, of equal ones the last.
        tail: After the lines.
        what: The lines in words, plural: `commands`.
        rank: Sections of low rank are cut first.
    """

    head: tuple[str, ...] = ()
    lines: tuple[tuple[int, str], ...] = ()
    tail: tuple[str, ...] = ()
    what: str = ""
    rank: int = 100


def titled(title: str, lines: Iterable[tuple[int, str]], what: str, rank: int) -> Section:
    """A section under a heading; empty where there are no lines."""
    kept = tuple(lines)
    return Section((title, ""), kept, what=what, rank=rank) if kept else Section()


def table(headers: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], what: str, rank: int) -> Section:
    """A Markdown table as a section, whose lines may be cut.

    Args:
        rows: (interest, cells of the row) pairs.
    """
    text = tabulate([row for _, row in rows], headers, tablefmt="github", disable_numparse=True).split("\n")
    lines = tuple((interest, line) for (interest, _), line in zip(rows, text[2:], strict=True))
    return Section(tuple(text[:2]), lines, what=what, rank=rank)


def fit(sections: Sequence[Section], limit: int = LIMIT) -> str:
    """The page, at most `limit` characters long."""
    page = _page(sections)
    if len(page) <= limit:
        return page
    sections = [_squeezed(section) for section in sections]
    cut: dict[int, int] = {}
    for place in sorted(range(len(sections)), key=lambda place: sections[place].rank):
        if (excess := len(_page(sections, cut)) - limit) <= 0:
            break
        section = sections[place]
        order = sorted(range(len(section.lines)), key=lambda line: (section.lines[line][0], -line))
        dropped: set[int] = set()
        freed = -160  # the note that says so
        for line in order:
            if freed >= excess:
                break
            dropped.add(line)
            freed += len(section.lines[line][1]) + 1
        kept = tuple(text for line, text in enumerate(section.lines) if line not in dropped)
        sections[place] = Section(section.head, kept, section.tail, section.what, section.rank)
        cut[place] = len(dropped)
    page = _page(sections, cut)
    return page if len(page) <= limit else page[: limit - 40].rpartition("\n")[0] + "\n\nThe rest was cut.\n"


def _page(sections: Sequence[Section], cut: dict[int, int] | None = None) -> str:
    blocks = []
    for place, section in enumerate(sections):
        dropped = (cut or {}).get(place, 0)
        if section.lines or not dropped:
            blocks.append("\n".join([*section.head, *(text for _, text in section.lines), *section.tail]))
        if dropped:
            blocks.append(f"Left out to fit {LIMIT:,} characters: {dropped} {section.what}; `--json` has everything.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _squeezed(section: Section) -> Section:
    """Tables without the padding that makes their source readable."""
    lines = tuple((interest, _squeeze(text)) for interest, text in section.lines)
    return Section(tuple(map(_squeeze, section.head)), lines, section.tail, section.what, section.rank)


def _squeeze(line: str) -> str:
    if not line.startswith("|"):
        return line
    return (
        re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", line))
        if set(line) <= set("|-: ")
        else re.sub(r" +\|", " |", line)
    )
