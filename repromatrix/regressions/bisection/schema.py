"""JSON Schema of the document of a bisection.

`python -m repromatrix.regressions.bisection.schema` writes it beside the others, which `report/schema.py` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from repromatrix.regressions.bisection.document import SCHEMA
from repromatrix.regressions.bisection.words import PHASES
from repromatrix.report.schema import schemas as of_results
from repromatrix.report.schema import text
from repromatrix.search.model import Verdict

NAME = "bisection.schema.json"
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_FLAG: dict[str, Any] = {"type": "boolean"}


def schema() -> dict[str, Any]:
    """Of what `invoke bisect --json` writes. Cells and rates are as in `document.schema.json`."""
    results = cast("dict[str, Any]", of_results()["document.schema.json"])
    cell = results["properties"]["cells"]["items"]
    return {
        "$schema": results["$schema"],
        "title": "What invoke bisect --json writes",
        **_table(schema={"const": SCHEMA}, bisection=_bisection(cell)),
    }


def write(folder: Path) -> None:
    """Write it into `folder`."""
    (folder / NAME).write_text(text(schema()))


def _bisection(cell: dict[str, Any]) -> dict[str, Any]:
    return _table(
        command=_told(_TEXT, "As it was typed."),
        answer=_told(
            {"enum": ["found", "suspect", "ambiguous", "no change", "refused", "interrupted"]},
            "`ambiguous`: a version has no verdict after all attempts that are allowed. `suspect`: something speaks"
            " against every edge.",
        ),
        repro=_TEXT,
        target=_TEXT,
        params=cell["properties"]["params"],
        engine=_TEXT,
        axis=_told(_TEXT, "What differs between the versions: `jax`, `jaxlib`, `nccl`, `date`, or a package."),
        failure=_told(_TEXT, "What `bad` means: a title, a glob over titles, or a condition on a metric."),
        rules=_table(
            confidence=_told(_NUMBER, "Least probability that an edge is where it is said to be."),
            rate=_told(
                _NUMBER, "Least failure rate of a bad version to reckon with; 0 = certain until shown otherwise."
            ),
            attempts=_told({"type": "integer"}, "Of one version at most."),
            symmetric=_told(_FLAG, "Attempts of good versions may look bad, too."),
        ),
        refused=_told(_TEXT, "Why there was no search; else empty."),
        edges=_told(_list(_edge()), "Oldest first."),
        path=_told(_list(_tested(cell)), "The versions that were tried, in the order in which they first were."),
        versions=_told(_list(_TEXT), "All of the range, oldest first."),
        left_out=_told(_list(_table(name=_TEXT, reason=_TEXT)), "Versions of the range that no cell can try."),
        rate=_told(
            _table(low=_NUMBER, high=_NUMBER),
            "Failure rates of bad versions that the attempts allow; both 1 if certain.",
        ),
        others=_told(_list(_table(title=_TEXT, versions=_list(_TEXT))), "Other failures that were seen."),
        notes=_list(_TEXT),
        spent=_told(
            _table(total=_NUMBER, running=_NUMBER, waiting=_NUMBER),
            "Seconds of wall time: in all, while an attempt ran, and the rest.",
        ),
        facts=_told({"type": "object", "additionalProperties": _TEXT}, "Of this machine."),
    )


def _edge() -> dict[str, Any]:
    wheel = _table(version=_TEXT, file=_TEXT, sha256=_TEXT, uploaded=_TEXT)
    side = {"anyOf": [wheel, {"type": "null"}]}
    kinds = {"enum": ["added", "removed", "changed", "other file"]}
    release = _table(
        versions=_list(_table(name=_TEXT, version=_TEXT, released=_told(_TEXT, "A day, or empty."))),
        commit=_told(_TEXT, "Of jax, as its wheels have it; empty where they do not say, or are not here."),
    )
    return _table(
        begins=_told(_FLAG, "Whether the failure begins here; else it ends."),
        good=_told(_TEXT, "Name of the version that is good."),
        bad=_TEXT,
        older=_TEXT,
        newer=_TEXT,
        between=_told(_list(_TEXT), "Versions between the two without a verdict, and those of `left_out` there."),
        confidence=_told(_NUMBER, "Probability, at least, that the change is here."),
        suspect=_told(_list(_TEXT), "What speaks against it."),
        changes=_told(
            _list(_table(name=_TEXT, kind=kinds, first=side, second=side)), "Wheels that differ, from older to newer."
        ),
        releases=_told(_list(release), "Of the older and of the newer version."),
        compare=_told(_TEXT, "Address of the commits between the two, or empty."),
        triage=_told(_table(command=_TEXT, notes=_list(_TEXT)), "How JAX-Toolbox's triage goes on to one commit."),
    )


def _tested(cell: dict[str, Any]) -> dict[str, Any]:
    return _table(
        name=_TEXT,
        released=_told(_TEXT, "A day, or empty."),
        verdict={"enum": [verdict.value for verdict in Verdict]},
        mark=_told(_TEXT, "The verdict, or in a word why there is none."),
        why=_told(_TEXT, "What the verdict does not say."),
        phase=_told({"enum": [*PHASES]}, "Why it was first tried."),
        attempted=_told({"type": "integer"}, "Attempts that this search made; 0 = all were known."),
        seconds=_told(_NUMBER, "Wall time of those."),
        metric=_told({"type": ["number", "string", "null"]}, "Median of the metric that is looked at, or null."),
        rates=cell["properties"]["rates"],
        lock=_told(_TEXT, "Hash of its environment's lock; empty where there is no environment."),
        cell=_told({"anyOf": [cell, {"type": "null"}]}, "As in document.schema.json; null where nothing could be run."),
    )


def _table(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _told(schema: dict[str, Any], note: str) -> dict[str, Any]:
    return {"description": note, **schema}


if __name__ == "__main__":
    write(Path("schemas"))
