"""The closing lines of a run: how it ended, what contradicts a claim, where to read more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repromatrix.report.escape import clean
from repromatrix.report.layout import contradicts, counted, duration, totals, unclaimed_failure, why
from repromatrix.results.combine import clip
from repromatrix.results.model import INTERRUPTED, CellResult, RunInfo
from repromatrix.spec.model import Outcome

_MOST = 20


def summary(cells: Sequence[CellResult], run: RunInfo, reports: Path | None = None) -> str:
    """The lines, the worst news first.

    Args:
        cells: Of this run.
        run: This run.
        reports: Folder of the reports, if they were written.
    """
    unknown = [cell for cell in cells if cell.outcome is Outcome.INFRA]
    lost = [cell for cell in unknown if cell.reason != INTERRUPTED]
    waiting = len(unknown) - len(lost)
    lines = [
        *_listed(
            [cell for cell in cells if cell.as_expected is False],
            "contradicts what is claimed",
            "contradict what is claimed",
        ),
        *_listed(
            [cell for cell in cells if unclaimed_failure(cell)],
            "failed, and nothing is claimed of it",
            "failed, and nothing is claimed of them",
        ),
        *_listed(lost, "has no verdict: infrastructure failed", "have no verdict: infrastructure failed"),
    ]
    if waiting:
        lines.append(f"{waiting} cell{'s have' if waiting > 1 else ' has'} no verdict yet: the run was interrupted")
    lines.append(totals(cells))
    if run.attempted:
        on = f" on {run.engine}" if run.engine else ""
        done = f"{counted(run.attempted, 'attempt')}{on} in {duration(run.seconds)}"
        lines.append(f"{done}; {counted(run.reused, 'cell')} known before")
    elif run.reused:
        lines.append(f"nothing to do: {counted(run.reused, 'cell')} known")
    elif not unknown:
        lines.append("nothing could run here: every chosen cell is skipped")
    lines += [f"warning: {clean(warning)}" for warning in run.warnings]
    if reports is not None:
        lines.append(f"report: {reports / 'README.md'}")
    return "\n".join(lines)


def _listed(cells: Sequence[CellResult], one: str, many: str) -> list[str]:
    if not cells:
        return []
    lines = [f"1 cell {one}:" if len(cells) == 1 else f"{len(cells)} cells {many}:"]
    for cell in cells[:_MOST]:
        claimed = f", claimed {clean(clip(cell.expected, 120))}" if cell.expected and contradicts(cell) else ""
        reason = f": {clean(clip(why(cell), 200))}" if why(cell) else ""
        lines.append(
            f"  {clean(cell.id)}{' on ' + cell.engine if cell.engine else ''}: {cell.outcome.value}{claimed}{reason}"
        )
    if len(cells) > _MOST:
        lines.append(f"  and {len(cells) - _MOST} more")
    return lines
