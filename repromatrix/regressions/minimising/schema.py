"""JSON Schema of the document of a minimisation.

`python -m repromatrix.regressions.minimising.schema` writes it beside the others, which `report/schema.py` writes.
"""

from __future__ import annotations

from pathlib import Path

from repromatrix.regressions.minimising.document import SCHEMA
from repromatrix.regressions.minimising.words import KINDS
from repromatrix.regressions.schema import CELL, NUMBER, TEXT, Shape, common, named, row, table, told, tried, whole
from repromatrix.regressions.schema import write as written
from repromatrix.spec.model import Outcome

NAME = "minimisation.schema.json"


def schema() -> Shape:
    """Of what `invoke minimise --json` writes. Cells and rates are as in `document.schema.json`."""
    return whole("What invoke minimise --json writes", SCHEMA, minimised=_minimised())


def write(folder: Path) -> None:
    """Write it into `folder`."""
    written(folder / NAME, schema())


def _minimised() -> Shape:
    return table(
        answer=told(
            {"enum": ["found", "ambiguous", "nothing", "interrupted"]},
            "`ambiguous`: something that an answer rests on has no verdict that is as sure as was asked for. `nothing`:"
            " nothing that was tried flips the verdict.",
        ),
        **common(),
        cell=told(TEXT, "Id of the cell that fails."),
        environment=told(TEXT, "Its environment."),
        outcome=told({"enum": [outcome.value for outcome in Outcome]}, "How it ends."),
        failure=told(TEXT, "What `bad` means: the title of its failure; empty where it was not seen to fail yet."),
        parts=told(row({"anyOf": [_smallest(), _threshold()]}), "One for each kind of difference that was looked at."),
        hints=told(row(TEXT), "What could be asked for besides."),
    )


def _smallest() -> Shape:
    return table(
        what={"enum": [*KINDS]},
        sentence=told(TEXT, "The answer."),
        good=told(TEXT, "Of packages: the environment that is good; else empty."),
        items=told(
            row(table(name=TEXT, without=TEXT, **{"with": TEXT})),
            "All that differ, as they are in the good one and in the failing one; empty = it has none.",
        ),
        needed=told(row(TEXT), "Names of those that make the failure together."),
        without=told(named(_variant()), "By name of each needed one, the rest without it."),
        confidence=told(
            named(NUMBER), "By name of those, probability, at least, that it is needed; absent where that is not known."
        ),
        contradictions=told(row(TEXT), "Requirements that the smallest mixture does not meet."),
        path=told(
            row(_variant(changed=told(row(TEXT), "Names of the items that are as in the failing cell."))),
            "What was tried, in that order.",
        ),
        trouble=_TROUBLE,
    )


def _threshold() -> Shape:
    boundary = table(
        below=told(NUMBER, "Largest value on the lower side."),
        above=told(NUMBER, "Smallest value on the upper side."),
        fails=told({"enum": ["above", "below"]}, "Which side fails."),
        between=told(row(NUMBER), "Values between the two that were tried and gave no verdict."),
        confidence=told(NUMBER, "Probability, at least, that the verdict changes here."),
    )
    return table(
        what={"const": "threshold"},
        sentence=told(TEXT, "The answer."),
        param=told(TEXT, "The parameter."),
        low=told(NUMBER, "Where the search began."),
        high=told(NUMBER, "Where it ended."),
        boundaries=told(row(boundary), "The smallest values first."),
        rows=told(row(_variant(value=NUMBER)), "What was tried, by value."),
        trouble=_TROUBLE,
    )


def _variant(**named: Shape) -> Shape:
    return table(**named, **tried(), cell=told(CELL, "As in document.schema.json."))


_TROUBLE = told(TEXT, "Why there is no answer; empty = there is one.")


if __name__ == "__main__":
    write(Path("schemas"))
