"""JSON Schemas of the three formats: matrix.toml, the block of a repro, and the `--json` document.

`python -m repromatrix.report.schema` writes them to `schemas/`; editors read them there.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from repromatrix.results.model import CellResult, RunInfo
from repromatrix.results.rates import Rate
from repromatrix.spec.matrix_file import MatrixFile
from repromatrix.spec.model import Outcome
from repromatrix.spec.repro_file import ReproFile

Schema = dict[str, object]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schemas() -> dict[str, Schema]:
    """The schemas by file name."""
    return {
        "matrix.schema.json": _of_model(MatrixFile, "matrix.toml"),
        "repro.schema.json": _of_model(ReproFile, "Metadata of a repro"),
        "document.schema.json": _document(),
    }


def write(folder: Path) -> None:
    """Write the schemas into `folder`, which is made where it is missing."""
    folder.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (folder / name).write_text(text(schema))


def text(schema: Schema) -> str:
    """A schema as it is checked in."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _of_model(model: type[BaseModel], title: str) -> Schema:
    found = _plainer(model.model_json_schema())
    assert isinstance(found, dict)
    return {"$schema": _DIALECT, "title": title, **found}


def _plainer(schema: object) -> object:
    """Without the titles that pydantic makes of field names, and without null, which TOML does not have."""
    if isinstance(schema, list):
        return [_plainer(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain: Schema = {}
    for key, value in schema.items():
        if key == "anyOf" and {"type": "null"} in value:
            choices = [_plainer(each) for each in value if each != {"type": "null"}]
            only = choices[0] if len(choices) == 1 else {"anyOf": choices}
            assert isinstance(only, dict)
            plain |= only
        elif key == "patternProperties":
            plain |= {key: _plainer(value), "additionalProperties": False}
        elif key in ("properties", "$defs"):
            plain[key] = {name: _plainer(each) for name, each in value.items()}
        elif not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None):
            plain[key] = _plainer(value)
    return plain


def _document() -> Schema:
    return {
        "$schema": _DIALECT,
        "title": "What --json writes",
        "type": "object",
        "properties": {
            "schema": {"const": 1},
            "run": _of_dataclass(RunInfo),
            "cells": {"type": "array", "items": _of_dataclass(CellResult, rates=_rates(), hlo=_cell_hlo())},
            "issue": _issue(),
        },
        "required": ["schema", "run", "cells"],
        "additionalProperties": False,
    }


def _issue() -> Schema:
    """What `invoke issue` adds."""
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "Of `invoke issue` alone: the report that it wrote, and the files in it that were redacted.",
        "properties": {"title": text, "text": text, "altered": {"type": "array", "items": text}, "tool": text},
        "required": ["title", "text", "altered", "tool"],
        "additionalProperties": False,
    }


def _of_dataclass(kind: type, **further: Schema) -> Schema:
    """The schema of a data class of `results/` as its codec writes it; descriptions are its docstring's.

    Args:
        further: What the codec adds to the fields.
    """
    hints = typing.get_type_hints(kind)
    notes = _notes(kind.__doc__ or "")
    properties: dict[str, Schema] = {}
    for field in dataclasses.fields(kind):
        special = _SPECIAL.get(field.name)
        schema = special() if special else _of_type(hints[field.name])
        properties[field.name] = {"description": notes[field.name], **schema} if field.name in notes else schema
    properties |= further
    return {
        "description": (kind.__doc__ or "").strip().split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _metrics() -> Schema:
    """Pairs, since a script may print one name several times; a number that JSON lacks (NaN) is a string."""
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": ["number", "string"]}], "minItems": 2}
    return {"type": "array", "items": {**pair, "maxItems": 2}}


def _files() -> Schema:
    """Objects, since two files may have one label."""
    properties = {name: {"type": "string"} for name in ("label", "path")}
    item = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "array", "items": item}


def _rates() -> Schema:
    note = "How often each way to end was seen; empty for a cell without attempts."
    return {"description": note, "type": "array", "items": _of_dataclass(Rate)}


def _cell_hlo() -> Schema:
    """Of the main module of a cell; null where no HLO was collected."""
    same: Schema = {"type": ["boolean", "null"]}
    texts = {
        "module": "Name of the module that is compared: the largest of the reference; empty where none was compiled.",
        "reference": "Id of the cell compared with: of this repro, target and parameters the newest that is ok, "
        "or the newest.",
        "before": "Identity of this cell's module before optimisation; empty where it was not seen.",
        "after": "The same after optimisation.",
    }
    properties: dict[str, Schema] = {name: {"description": note, "type": "string"} for name, note in texts.items()}
    for when in ("before", "after"):
        note = f"Whether its HLO {when} optimisation is that of the reference; null where one of the two was not seen."
        properties[f"same_{when}"] = {"description": note, **same}
    table: Schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {
        "description": "The HLO of its main module, held against a reference; null where none was collected.",
        "anyOf": [{**table, "additionalProperties": False}, {"type": "null"}],
    }


_SPECIAL: dict[str, Callable[[], Schema]] = {"metrics": _metrics, "files": _files}
"""Pairs that are no tables: a name may come twice."""


def _of_type(hint: object) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Outcome):
        return {"enum": [word.value for word in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _of_dataclass(hint)
    if origin in (types.UnionType, typing.Union):
        if all(each in _PLAIN for each in arguments):
            return {"type": [_PLAIN[each] for each in arguments]}
        return {"anyOf": [_of_type(each) for each in arguments]}
    if origin is tuple:
        inner = arguments[0]
        if typing.get_origin(inner) is tuple:  # pairs: a table
            return {"type": "object", "additionalProperties": _of_type(typing.get_args(inner)[1])}
        return {"type": "array", "items": _of_type(inner)}
    raise TypeError(f"no schema for {hint}")


def _notes(docstring: str) -> dict[str, str]:
    """The `Attributes:` of a docstring."""
    _, _, section = docstring.partition("Attributes:\n")
    notes: dict[str, str] = {}
    for names, note in re.findall(r"^ {8}([\w, ]+): (.+(?:\n {12}.+)*)", section, re.MULTILINE):
        for name in names.split(", "):
            notes[name] = re.sub(r"\s+", " ", note)
    return notes


if __name__ == "__main__":
    write(Path("schemas"))
