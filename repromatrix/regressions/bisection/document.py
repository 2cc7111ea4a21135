"""The `--json` document of a bisection, and the exit code that goes with it."""

from __future__ import annotations

from typing import Any

from repromatrix.regressions.bisection.triage import triage
from repromatrix.regressions.bisection.words import between, compare, doubts, mark, released
from repromatrix.regressions.document import common, tried
from repromatrix.regressions.model import Bisection, FoundEdge, Tested
from repromatrix.report.compared import cell_hlo
from repromatrix.report.diff import change_object
from repromatrix.results.codec import cell_object, finite
from repromatrix.search.model import Verdict
from repromatrix.share.issues.releases import Release

SCHEMA = 1
"""Of this document, which has a shape of its own; raised when a reader of the old one would be misled."""


def document(found: Bisection) -> dict[str, Any]:
    """All that is known of a search, as one JSON object; `schemas/bisection.schema.json` describes it."""
    return {
        "schema": SCHEMA,
        "bisection": {
            "answer": answer(found),
            **common(found),
            "axis": found.series.axis,
            "failure": found.failure,
            "refused": found.refused,
            "edges": [_edge(found, edge) for edge in found.edges],
            "path": _path(found),
            "versions": [version.name for version in found.series.versions],
            "left_out": [{"name": name, "reason": reason} for name, reason in found.series.left_out],
            "others": [{"title": title, "versions": list(names)} for title, names in found.others],
            "notes": list(found.notes),
        },
    }


def answer(found: Bisection) -> str:
    """In a word: `interrupted`, `refused`, `no change`, `ambiguous`, `suspect`, or `found`.

    `ambiguous`: one version at least has no verdict after all attempts that are allowed; what was found elsewhere
    stands all the same. `suspect`: something speaks against every edge.
    """
    if found.interrupted:
        return "interrupted"
    if found.refused:
        return "refused"
    if any(each.verdict is Verdict.AMBIGUOUS for each in found.path):
        return "ambiguous"
    if not found.edges:
        return "no change"
    return "suspect" if all(doubts(found, edge) for edge in found.edges) else "found"


def exit_code(found: Bisection) -> int:
    """0 found; 1 no change, or none that is certain; 2 refused, since an end is not what it is said to be; 130."""
    return {"found": 0, "refused": 2, "interrupted": 130}.get(answer(found), 1)


def _edge(found: Bisection, edge: FoundEdge) -> dict[str, Any]:
    how = triage(edge, found.series.versions[0].cell)
    return {
        "begins": edge.begins,
        "good": edge.good.name,
        "bad": edge.bad.name,
        "older": edge.older.name,
        "newer": edge.newer.name,
        "between": [name for name, _ in between(found, edge)],
        "confidence": edge.confidence,
        "suspect": list(doubts(found, edge)),
        "changes": [change_object(change) for change in edge.changes],
        "releases": [_release(release) for release in edge.releases],
        "compare": compare(edge),
        "triage": {"command": how.command, "notes": list(how.fill_in)},
    }


def _release(release: Release) -> dict[str, Any]:
    return {
        "versions": [{"name": name, "version": version, "released": day} for name, version, day in release.versions],
        "commit": release.commit,
    }


def _path(found: Bisection) -> list[dict[str, Any]]:
    results = [each.result for each in found.path if each.result is not None]
    hlo = {result.id: told for result, told in zip(results, cell_hlo(results), strict=True)}
    return [_tested(found.series.axis, each, hlo.get(each.result.id if each.result else "")) for each in found.path]


def _tested(axis: str, tested: Tested, hlo: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": tested.name,
        "released": released(axis, tested.lock),
        "mark": mark(tested),
        **tried(tested),
        "phase": tested.phase,
        "metric": None if tested.metric is None else finite(tested.metric),
        "lock": tested.lock.hash if tested.lock is not None else "",
        "cell": {**cell_object(tested.result), "hlo": hlo} if tested.result is not None else None,
    }
