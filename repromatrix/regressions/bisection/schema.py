"""JSON Schema of the document of a bisection.

`python -m repromatrix.regressions.bisection.schema` writes it beside the others, which `report/schema.py` writes.
"""

from __future__ import annotations

from pathlib import Path

from repromatrix.regressions.bisection.document import SCHEMA
from repromatrix.regressions.bisection.words import PHASES
from repromatrix.regressions.schema import CELL, FLAG, NUMBER, TEXT, Shape, common, row, table, told, tried, whole
from repromatrix.regressions.schema import write as written

NAME = "bisection.schema.json"


def schema() -> Shape:
    """Of what `invoke bisect --json` writes. Cells and rates are as in `document.schema.json`."""
    return whole("What invoke bisect --json writes", SCHEMA, bisection=_bisection())


def write(folder: Path) -> None:
    """Write it into `folder`."""
    written(folder / NAME, schema())


def _bisection() -> Shape:
    return table(
        answer=told(
            {"enum": ["found", "suspect", "ambiguous", "no change", "refused", "interrupted"]},
            "`ambiguous`: a version has no verdict after all attempts that are allowed. `suspect`: something speaks"
            " against every edge.",
        ),
        **common(),
        axis=told(TEXT, "What differs between the versions: `jax`, `jaxlib`, `nccl`, `date`, or a package."),
        failure=told(TEXT, "What `bad` means: a title, a glob over titles, or a condition on a metric."),
        refused=told(TEXT, "Why there was no search; else empty."),
        edges=told(row(_edge()), "Oldest first."),
        path=told(row(_tested()), "The versions that were tried, in the order in which they first were."),
        versions=told(row(TEXT), "All of the range, oldest first."),
        left_out=told(row(table(name=TEXT, reason=TEXT)), "Versions of the range that no cell can try."),
        others=told(row(table(title=TEXT, versions=row(TEXT))), "Other failures that were seen."),
        notes=row(TEXT),
    )


def _edge() -> Shape:
    wheel = table(version=TEXT, file=TEXT, sha256=TEXT, uploaded=TEXT)
    side = {"anyOf": [wheel, {"type": "null"}]}
    kinds = {"enum": ["added", "removed", "changed", "other file"]}
    release = table(
        versions=row(table(name=TEXT, version=TEXT, released=told(TEXT, "A day, or empty."))),
        commit=told(TEXT, "Of jax, as its wheels have it; empty where they do not say, or are not here."),
    )
    return table(
        begins=told(FLAG, "Whether the failure begins here; else it ends."),
        good=told(TEXT, "Name of the version that is good."),
        bad=TEXT,
        older=TEXT,
        newer=TEXT,
        between=told(row(TEXT), "Versions between the two without a verdict, and those of `left_out` there."),
        confidence=told(NUMBER, "Probability, at least, that the change is here."),
        suspect=told(row(TEXT), "What speaks against it."),
        changes=told(
            row(table(name=TEXT, kind=kinds, first=side, second=side)), "Wheels that differ, from older to newer."
        ),
        releases=told(row(release), "Of the older and of the newer version."),
        compare=told(TEXT, "Address of the commits between the two, or empty."),
        triage=told(table(command=TEXT, notes=row(TEXT)), "How JAX-Toolbox's triage goes on to one commit."),
    )


def _tested() -> Shape:
    return table(
        name=TEXT,
        released=told(TEXT, "A day, or empty."),
        mark=told(TEXT, "The verdict, or in a word why there is none."),
        **tried(),
        phase=told({"enum": [*PHASES]}, "Why it was first tried."),
        metric=told({"type": ["number", "string", "null"]}, "Median of the metric that is looked at, or null."),
        lock=told(TEXT, "Hash of its environment's lock; empty where there is no environment."),
        cell=told({"anyOf": [CELL, {"type": "null"}]}, "As in document.schema.json; null where nothing could be run."),
    )


if __name__ == "__main__":
    write(Path("schemas"))
