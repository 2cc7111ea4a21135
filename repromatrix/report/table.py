"""The table a terminal shows at the end of a run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from repromatrix.report.escape import clean
from repromatrix.report.layout import Grid, Notes, contradicts, disagreements, grids, short, verdict
from repromatrix.results.combine import clip
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Outcome

RED, GREEN, YELLOW, BOLD = "31", "32", "33", "1"


def render_table(cells: Sequence[CellResult], width: int = 0, *, colour: bool = False) -> str:
    """A table per repro and engine, then failures and reasons.

    Args:
        cells: In the order in which repros and columns shall stand.
        width: Columns to fit; 0 = those of the terminal, or 120 where there is none.
        colour: Whether to use ANSI colours.
    """
    width = width or shutil.get_terminal_size((120, 24)).columns
    notes = Notes(cells)
    by_repro: dict[str, list[CellResult]] = {}
    for cell in cells:
        by_repro.setdefault(cell.repro, []).append(cell)
    blocks = []
    for repro, own in by_repro.items():
        for grid in grids(own):
            title = clean(repro) + (f" ({grid.engine})" if grid.engine else "")
            blocks.append(paint(title, BOLD, colour) + "\n" + _render(grid, notes, width, colour))
        blocks += [
            textwrap.fill(
                f"engines disagree on {clean(group[0].id)}: "
                + ", ".join(f"{c.engine} {short(c, notes)}" for c in group),
                max(width, 20),
                subsequent_indent="    ",
            )
            for group in disagreements(own, notes)
        ]
    shown = [failure for failure in notes.failures if failure.cells]  # those of ranks alone: the page has them
    marks = [(str(failure.number), failure.title) for failure in shown] + list(notes.reasons)
    if marks:
        blocks.append("\n".join(_note(mark, text, width) for mark, text in marks))
    return "\n\n".join(blocks)


def _render(grid: Grid, notes: Notes, width: int, colour: bool) -> str:
    """The grid in as many blocks of columns as its width needs; each block names the environments again."""
    texts = {place: _text(cell, notes) for place, cell in grid.cells.items()}
    names = max(map(len, (*grid.rows, "environment")))
    blocks: list[list[str]] = [[]]
    used = names
    for column in grid.columns:
        size = 2 + max(len(clean(column)), *(len(texts.get((env, column), "")) for env in grid.rows))
        if blocks[-1] and used + size > width:
            blocks.append([])
            used = names
        blocks[-1].append(column)
        used += size
    return "\n\n".join(_block(grid, block, texts, width, names, colour) for block in blocks)


def _block(
    grid: Grid, columns: list[str], texts: dict[tuple[str, str], str], width: int, names: int, colour: bool
) -> str:
    rows = [
        [env, *(_coloured(grid.cells.get((env, c)), texts.get((env, c), ""), colour) for c in columns)]
        for env in grid.rows
        if any((env, c) in texts for c in columns)
    ]
    room = max(20, width - names - 2)
    headers = ["environment", *("\n".join(textwrap.wrap(clean(c), room)) for c in columns)]
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


def _text(cell: CellResult, notes: Notes) -> str:
    loud = {"not as claimed": "NOT as claimed", "a different failure": "a DIFFERENT failure"}
    words = verdict(cell)
    return ", ".join(part for part in (short(cell, notes), loud.get(words, words)) if part)


def _coloured(cell: CellResult | None, text: str, colour: bool) -> str:
    if cell is None:
        return text
    if contradicts(cell) or cell.outcome is Outcome.INFRA:
        return paint(text, RED, colour)
    if cell.outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE):
        return paint(text, YELLOW, colour)
    return paint(text, GREEN, colour and (cell.as_expected is True or cell.outcome is Outcome.OK))


def paint(text: str, code: str, colour: bool) -> str:
    """`text` in a colour of ANSI, `RED` and so on, where `colour` says so."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and text else text


def _note(mark: str, text: str, width: int) -> str:
    lead = f"[{mark}] "
    return textwrap.fill(
        clip(clean(text), 600),
        max(width, 20),
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=True,
    )
