"""The Markdown pages: one per repro, made to be pasted into an issue, and their index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from repromatrix.engines.base import ISOLATION
from repromatrix.report.about import about
from repromatrix.report.attempts import evidence, findings, interest, ranks, repeats
from repromatrix.report.compiler import compiled_only, what_the_compiler_did
from repromatrix.report.escape import code, fence, paragraph, printable, prose
from repromatrix.report.fit import LIMIT, Section, fit, table, titled
from repromatrix.report.layout import (
    Grid,
    Notes,
    contradicts,
    disagreements,
    ending,
    grids,
    newest_first,
    short,
    totals,
    unclaimed_failure,
    verdict,
    why,
)
from repromatrix.report.probes import ANCHOR, what_was_found
from repromatrix.report.system_info import MACHINE, hosts, system_info
from repromatrix.results.combine import clip
from repromatrix.results.judge import claim
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.spec.model import Outcome, Repro

_WIDE = 4_000
"""Characters of a heading row beyond which a table has a line per cell instead."""


def repro_page(repro: Repro, cells: Sequence[CellResult], run: RunInfo, limit: int = LIMIT) -> str:
    """The page of one repro.

    Args:
        repro: Whose page it is.
        cells: Its cells only, of any engines.
        run: What it is reported of.
        limit: Characters the page may have.
    """
    notes = Notes(cells)
    tables = grids(cells)
    sections = [
        Section(_heading(repro, cells)),
        about(repro),
        *(version_table(grid, notes, named=len(tables) > 1, link=ANCHOR if repro.probe else "") for grid in tables),
        *what_was_found(repro, cells),
        compiled_only(cells),
        repeats(cells),
        *_contradictions(cells, notes),
        _disagreements(cells, notes),
        failures(notes),
        reasons(notes),
        *what_the_compiler_did(repro, cells),
        findings(cells),
        ranks(cells, notes),
        _claims(repro),
        environments(cells),
        system_info(cells, run),
        _commands(cells),
        evidence(repro, cells),
        _footer(cells, run),
    ]
    return fit([section for section in sections if section.head or section.lines], limit)


def index_page(repros: Sequence[Repro], cells: Sequence[CellResult], run: RunInfo, limit: int = LIMIT) -> str:
    """The page that leads to those of `repros`, with their totals and every broken claim."""
    by_repro: dict[str, list[CellResult]] = {repro.name: [] for repro in repros}
    for cell in cells:
        by_repro.setdefault(cell.repro, []).append(cell)
    rows = []
    for repro in repros:
        own = by_repro[repro.name]
        link = f"[{prose(repro.name)}]({quote(repro.name)}.md)"
        what = paragraph(clip(repro.title, 200))
        row = [link, what, issue_link(repro), str(len(own)), _outcomes(own), _held(repro, own)]
        rows.append((int(any(map(contradicts, own))), row))
    made = table(["repro", "what", "issue", "cells", "outcomes", "claims"], rows, "repros", 90)
    head = ("# Reports", "", totals(cells) + ".", *(("", *made.head) if rows else ()))
    sections = [
        Section(head, made.lines, what=made.what, rank=made.rank),
        *_contradictions(cells, Notes(cells), whole=True),
        _footer(cells, run),
    ]
    return fit([section for section in sections if section.head or section.lines], limit)


def _held(repro: Repro, cells: Sequence[CellResult]) -> str:
    """Whether the claims on `cells` held, the worst alone: `**2 not as claimed**`, `5 as claimed`."""
    if broken := sum(cell.as_expected is False for cell in cells):
        return f"**{broken} not as claimed**"
    if failed := sum(map(unclaimed_failure, cells)):
        return f"**{failed} failed, nothing claimed**"
    return f"{sum(cell.as_expected is True for cell in cells)} as claimed" if repro.expect else "nothing claimed"


def _heading(repro: Repro, cells: Sequence[CellResult]) -> tuple[str, ...]:
    title = paragraph(clip(repro.title or repro.name, 300))
    parts = [code(repro.name), *([issue_link(repro)] if repro.issue else []), totals(cells) + "."]
    return (f"# {title}", "", " · ".join(parts))


def issue_link(repro: Repro) -> str:
    """A link where the issue is one that GitHub would know, or an address; else the text."""
    issue = repro.issue.strip()
    project, _, number = issue.partition("#")
    if number.isdigit() and project.count("/") == 1 and not set(project) - _NAME:
        return f"[{prose(project)} {number}](https://github.com/{project}/issues/{number})"
    if issue.startswith(("https://", "http://")):
        return f"<{quote(issue, safe=_ADDRESS)}>"
    return prose(clip(issue, 300))


_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
_ADDRESS = ":/?#@!$&'()*+,;=%~"


def version_table(grid: Grid, notes: Notes, *, named: bool, link: str = "") -> Section:
    """The table of one engine; each cell that was attempted leads to `link`."""
    sentence = ISOLATION.get(grid.engine, "")
    head = [f"## {code(grid.engine)}", ""] if named else []
    if grid.engine:
        head += [f"Engine {code(grid.engine)}" + (f": {prose(sentence)}" if sentence else "."), ""]
    texts = {place: _cell(cell, notes, link) for place, cell in grid.cells.items()}
    bad = {place for place, cell in grid.cells.items() if contradicts(cell)}
    titles = [code(clip(column, 200)) for column in grid.columns]
    if sum(map(len, titles)) <= _WIDE:
        rows = [
            (
                1 + 2 * any((env, column) in bad for column in grid.columns),
                [code(env), *(texts.get((env, column), "") for column in grid.columns)],
            )
            for env in grid.rows
        ]
        made = table(["environment", *titles], rows, "environments", 90)
    else:
        rows = [
            (1 + 2 * ((env, column) in bad), [code(env), title, texts[env, column]])
            for env in grid.rows
            for column, title in zip(grid.columns, titles, strict=True)
            if (env, column) in texts
        ]
        made = table(["environment", "target and parameters", "result"], rows, "cells", 90)
    return Section((*head, *made.head), made.lines, what=made.what, rank=made.rank)


def _cell(cell: CellResult, notes: Notes, link: str = "") -> str:
    words = verdict(cell)
    shown = prose(short(cell, notes)).replace("\\[", "[").replace("\\]", "]")
    if link and cell.attempts:
        shown = f"[{shown}]({link})"
    if cell.as_expected is False:
        words = f"**{words}**"
    if words and cell.as_expected is not True:
        words += f" ({code(clip(cell.expected, 60))})"  # where it held, the claim is what stands before it
    return ", ".join(part for part in (shown, words) if part)


def _contradictions(cells: Sequence[CellResult], notes: Notes, *, whole: bool = False) -> Iterator[Section]:
    """Broken claims, and failures of which nothing is claimed.

    Args:
        whole: Of several repros: a cell is named in full, and its failure has no number.
    """
    for title, what, bad in (
        ("## Not as claimed", "broken claims", lambda cell: cell.as_expected is False),
        ("## Failed, and nothing was claimed", "failures without a claim", unclaimed_failure),
    ):
        lines = [(1, _broken(cell, notes, whole=whole)) for cell in filter(bad, cells)]
        yield titled(title, lines, what, 95)


def _broken(cell: CellResult, notes: Notes, *, whole: bool) -> str:
    place = code(cell.id) if whole else f"{code(cell.environment)} {code(cell.column)}"
    claimed = f"claimed {code(clip(cell.expected, 300))}, was " if cell.expected else ""
    engine = f" on {code(cell.engine)}" if cell.engine else ""
    text = f"- {place}{engine}: {claimed}{code(ending(cell))}"
    if cell.signature is not None and cell.outcome.failed:
        mark = "" if whole else f" [{notes.number(cell)}]"
        text += f" {code(clip(cell.signature.title, 160))}{mark}"
    return text + (f": {prose(clip(why(cell), 300))}" if why(cell) else "")


def _disagreements(cells: Sequence[CellResult], notes: Notes) -> Section:
    lines = []
    for group in disagreements(cells, notes):
        said = "; ".join(f"{code(cell.engine)} {_cell(cell, notes)}" for cell in group)
        lines.append((1, f"- {code(group[0].environment)} {code(group[0].column)}: {said}"))
    return titled("## Engines disagree", lines, "disagreements", 80)


def failures(notes: Notes) -> Section:
    lines = []
    for failure in notes.failures:
        others = sorted(failure.titles - {failure.title})
        also = f"; also {', '.join(code(clip(title, 160)) for title in others[:5])}" if others else ""
        many = f" ({failure.cells} cells)" if failure.cells > 1 else ""
        lines.append((failure.cells, f"- **[{failure.number}]** {code(clip(failure.title, 400))}{many}{also}"))
    return titled("## Failures", lines, "failures", 70)


def reasons(notes: Notes) -> Section:
    lines = [(1, f"- **[{letter}]** {prose(clip(reason, 400))}") for letter, reason in notes.reasons]
    return titled("## Notes", lines, "notes", 60)


def _claims(repro: Repro) -> Section:
    lines: list[tuple[int, str]] = []
    for expect in repro.expect:
        where = f"when {code(clip(expect.when, 300))}" if expect.when else "otherwise" if lines else "always"
        lines.append((1, f"- {where}: {code(clip(claim(expect), 1_000))}"))
    if not lines:
        lines = [(1, "Nothing is claimed: every failure counts.")]
    return titled("## What was claimed", lines, "claims", 50)


def environments(cells: Sequence[CellResult]) -> Section:
    """Base, lock and versions of each environment and engine; what is the same in all rows stands below once."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell in cells:
        if cell.engine:
            row = {"engine": cell.engine, "base": cell.base, "identity": _hash(cell.identity)}
            facts = ((name, value) for name, value in cell.facts if name not in MACHINE)
            row |= {name: _hash(value) if name == "lock" else value for name, value in facts}
            rows.setdefault((cell.environment, cell.engine), row)
    if not rows:
        return Section()
    if all(row["identity"] == row.get("lock") for row in rows.values()):
        for row in rows.values():
            del row["identity"]
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    same = [name for name in names if len(rows) > 1 and len({row.get(name) for row in rows.values()}) == 1]
    shown = [name for name in names if name not in same]
    order = {env: place for place, env in enumerate(newest_first(cell for cell in cells if cell.engine))}
    made = table(
        ["environment", *map(prose, shown)],
        [
            (1, [code(env), *(prose(clip(row.get(name, ""), 120)) for name in shown)])
            for (env, _), row in sorted(rows.items(), key=lambda item: (order[item[0][0]], item[0][1]))
        ],
        "environments",
        40,
    )
    first = next(iter(rows.values()))
    everywhere = "; ".join(f"{prose(name)} {prose(clip(first[name], 200))}" for name in same)
    tail = ("", f"The same in all: {everywhere}.") if everywhere else ()
    return Section(("## Environments", "", *made.head), made.lines, tail, "environments", 40)


def _hash(value: str) -> str:
    return value.removeprefix("sha256:")[:12]


def _commands(cells: Sequence[CellResult]) -> Section:
    commands = {cell.command: cell for cell in reversed(cells) if cell.command and (cell.attempts or cell.key)}
    if not commands:
        return Section()
    lines = [(interest(cell), printable(command)) for command, cell in reversed(commands.items())]
    opening, closing = fence([text for _, text in lines], "sh")
    head = ("## Run one cell again", "", "<details><summary>A command for each cell</summary>", "", opening)
    return Section(head, tuple(lines), (closing, "", "</details>"), "commands", 20)


def _footer(cells: Sequence[CellResult], run: RunInfo) -> Section:
    counts = f"{run.attempted} attempted, {run.reused} known before"
    head = [
        f"Made by {code(run.command)} with Repromatrix {prose(run.tool_version)} on {prose(run.started)}: {counts}."
    ]
    for host in hosts(cells, run):
        head += ["", host]
    for warning in run.warnings:
        head += ["", f"Warning: {prose(clip(warning, 400))}"]
    return Section(("---", "", *head))


def _outcomes(cells: Sequence[CellResult]) -> str:
    numbers = {outcome: sum(cell.outcome is outcome for cell in cells) for outcome in Outcome}
    return ", ".join(f"{number} {outcome.value}" for outcome, number in numbers.items() if number)
