"""What a page says of single attempts: repeats, ranks, findings, and where the evidence lies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from repromatrix.report.escape import code, prose
from repromatrix.report.fit import Section, titled
from repromatrix.report.layout import Notes, allowed, contradicts, duration, ending, size
from repromatrix.results.combine import clip
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.results.rates import interval, percent
from repromatrix.spec.model import Outcome, Repro

_LOGS = (("stderr", "stderr"), ("stdout", "stdout"))
"""Files of an attempt that was stored before the list of its files was."""
_DUMPS = "hlo"
"""Folder of the dumps of an attempt, also where a second run made them."""
_PROCESS = re.compile(r"\bprocess \d+\b")
_PLACES = 8
"""Cells that a finding names; of more it gives the number."""


def repeats(cells: Sequence[CellResult]) -> Section:
    """What attempts that were all ok leave possible: a line per number of attempts."""
    lines = []
    for count, many in allowed(cells).items():
        where = "1 cell" if many == 1 else f"each of {many} cells"
        most = percent(interval(0, count)[1])
        lines.append((1, f"0 of {count} failed in {where}: a failure rate up to {most} is not excluded (95 %)."))
    return Section(lines=tuple(lines), what="lines on repeats", rank=65)


def ranks(cells: Sequence[CellResult], notes: Notes) -> Section:
    """How each rank ended, for the attempts with several; one line where all were ok."""
    lines = []
    for cell in cells:
        for attempt in cell.attempts:
            if not attempt.ranks:
                continue
            text = f"- {_place(cell)}, attempt {attempt.number}"
            if all(rank.outcome is Outcome.OK for rank in attempt.ranks):
                lines.append((interest(cell), f"{text}: all {len(attempt.ranks)} ranks ok"))
                continue
            for rank in attempt.ranks:
                number = notes.number(rank)
                mark = f" [{number}]" if number is not None else ""
                role = f", {prose(rank.role)}" if rank.role else ""
                text += f"\n  - rank {rank.rank}: {prose(ending(rank))}{mark} {duration(rank.seconds)}{role}"
            lines.append((interest(cell), text))
    return titled("## Ranks", lines, "attempts with several ranks", 55)


def findings(cells: Sequence[CellResult]) -> Section:
    """Each note of the attempts once, with the cells that it belongs to; process ids make no difference."""
    texts: dict[str, set[str]] = {}
    found: dict[str, dict[int, CellResult]] = {}
    for place, cell in enumerate(cells):
        for note in (note for attempt in cell.attempts for note in attempt.notes):
            same = _PROCESS.sub("process N", note)
            texts.setdefault(same, set()).add(note)
            found.setdefault(same, {})[place] = cell
    attempted = sum(bool(cell.attempts) for cell in cells)
    lines = []
    for same, places in found.items():
        text = texts[same].pop() if len(texts[same]) == 1 else same
        named = [_place(cell) for cell in list(places.values())[:_PLACES]]
        if more := len(places) - len(named):
            named.append(f"{more} more")
        where = f"all {attempted} cells" if len(places) == attempted > 1 else ", ".join(named)
        lines.append((max(map(interest, places.values())), f"- {prose(clip(text, 400))}: {where}"))
    return titled("## Findings", lines, "findings", 58)


def evidence(repro: Repro, cells: Sequence[CellResult]) -> Section:
    """Links to everything that each attempt left; memory where it ran out or where the repro limits it."""
    lines = []
    for cell in cells:
        for attempt in cell.attempts:
            base = "../" + quote(attempt.evidence)
            links = [("folder", base)]
            links += [(clip(label, 120), f"{base}/{quote(path)}") for label, path in attempt.files or _LOGS]
            if attempt.hlo is not None and attempt.hlo.modules:
                links.append(("dumps", f"{base}/{_DUMPS}"))
            linked = ", ".join(f"[{prose(label)}]({address})" for label, address in links)
            said = [f"attempt {attempt.number}", f"{attempt.outcome.value} {duration(attempt.seconds)}"]
            if attempt.outcome is Outcome.OOM or repro.memory is not None:
                said += _memory(attempt)
            lines.append((interest(cell), f"- {_place(cell)}, {', '.join(said)}: {linked}"))
    if not lines:
        return Section()
    head = ("## Evidence", "", "<details><summary>What each attempt left</summary>", "")
    return Section(head, tuple(lines), ("", "</details>"), "attempts' links", 10)


def interest(cell: CellResult) -> int:
    """How much a reader wants to see of a cell where not all fits: broken claims first, skips last."""
    if contradicts(cell):
        return 3
    return 2 if cell.outcome.failed else 1 if cell.outcome is not Outcome.SKIP else 0


def _memory(attempt: AttemptResult) -> Iterable[str]:
    if attempt.peak_memory:
        yield f"peak {size(attempt.peak_memory)}"
    if attempt.device_memory:
        yield f"{size(attempt.device_memory)} on its GPUs"


def _place(cell: CellResult) -> str:
    engine = f" {prose(cell.engine)}" if cell.engine else ""
    return f"{code(cell.environment)} {code(clip(cell.column, 200))}{engine}"
