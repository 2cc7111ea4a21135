"""What the JSON Schemas of a bisection and of a minimisation have in common, and what they are put together of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from repromatrix.report.schema import schemas, text
from repromatrix.search.model import Verdict

Shape = dict[str, Any]
TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
CELL: Shape = {"$ref": "#/$defs/cell"}
"""A cell as `document.schema.json` has it."""
COUNT: Shape = {"type": "integer"}
FLAG: Shape = {"type": "boolean"}


def whole(title: str, version: int, **found: Shape) -> Shape:
    """The schema of a whole document: `schema`, and one object under the name of what was done."""
    dialect = schemas()["document.schema.json"]["$schema"]
    return {"$schema": dialect, "title": title, **table(schema={"const": version}, **found), "$defs": {"cell": _cell()}}


def write(path: Path, schema: Shape) -> None:
    """Write `schema` as it is checked in."""
    path.write_text(text(schema))


def common() -> Shape:
    """Of what `document.common` gives."""
    return {
        "command": told(TEXT, "As it was typed."),
        "repro": TEXT,
        "target": TEXT,
        "params": _cell()["properties"]["params"],
        "engine": TEXT,
        "rules": table(
            confidence=told(NUMBER, "Least probability that an answer is right."),
            rate=told(NUMBER, "Least failure rate of what is bad to reckon with; 0 = certain until shown otherwise."),
            attempts=told(COUNT, "Of one version or variant at most."),
            symmetric=told(FLAG, "Attempts of what is good may look bad, too."),
        ),
        "rate": told(
            table(low=NUMBER, high=NUMBER),
            "Failure rates of what is bad that the attempts allow; both 1 if certain.",
        ),
        "spent": told(
            table(total=NUMBER, running=NUMBER, waiting=NUMBER),
            "Seconds of wall time: in all, while an attempt ran, and the rest.",
        ),
        "facts": told({"type": "object", "additionalProperties": TEXT}, "Of this machine."),
    }


def tried() -> Shape:
    """Of what `document.tried` gives."""
    return {
        "verdict": {"enum": [verdict.value for verdict in Verdict]},
        "why": told(TEXT, "What the verdict does not say."),
        "attempted": told(COUNT, "Attempts that this search made; 0 = all were known."),
        "seconds": told(NUMBER, "Wall time of those."),
        "rates": _cell()["properties"]["rates"],
    }


def _cell() -> Shape:
    results = cast("Shape", schemas()["document.schema.json"])
    return cast("Shape", results["properties"]["cells"]["items"])


def table(**properties: Shape) -> Shape:
    """An object that has all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def named(values: Mapping[str, Any], note: str = "") -> Shape:
    """An object with any names, whose values are all of one shape."""
    shape: Shape = {"type": "object", "additionalProperties": values}
    return told(shape, note) if note else shape


def row(item: Shape) -> Shape:
    """An array of such items."""
    return {"type": "array", "items": item}


def told(schema: Shape, note: str) -> Shape:
    """`schema` with a description."""
    return {"description": note, **schema}
