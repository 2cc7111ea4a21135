"""The JSON Schemas are checked in, are schemas, and agree with the formats."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from repromatrix.regressions.bisection import schema as bisection
from repromatrix.regressions.minimising import schema as minimisation
from repromatrix.report.document import document
from repromatrix.report.schema import schemas, text, write
from repromatrix.spec.block import find_block
from tests.sample_cells import RUN, broken
from tests.sample_cells import matrix as sample

ROOT = Path(__file__).resolve().parent.parent


def valid(name: str, data: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schemas()[name]).is_valid(data))


def test_what_is_checked_in_is_up_to_date() -> None:
    kept = {path.name: path.read_text() for path in (ROOT / "schemas").iterdir()}
    others = {each.NAME: text(each.schema()) for each in (bisection, minimisation)}
    assert kept == {name: text(schema) for name, schema in schemas().items()} | others, (
        "run: python -m repromatrix.report.schema, repromatrix.regressions.{bisection,minimising}.schema"
    )


def test_write(tmp_path: Path) -> None:
    write(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(schemas())


@pytest.mark.parametrize("name", ["matrix.schema.json", "repro.schema.json", "document.schema.json"])
def test_they_are_schemas_with_descriptions(name: str) -> None:
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert text(schema).count('"description"') > 20


MATRIX = """\
[matrix]
jax = ["0.8.0"]
python = ["3.11"]
"nvidia-cudnn-cu12" = ["9.10"]
as_of = "2026-01-31"
[[exclude]]
jax = "<0.8"
[[override]]
select = "*"
timeout = 5
[targets."h100:8"]
describe = "x"
[bases."3.11"]
debian = "bookworm"
[run]
timeout = "1h30m"
memory = "8GiB"
env = { A = "1" }
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jax = [", "jacks = "),
        ('["3.11"]', '["3.11.7"]'),
        ('["3.11"]', "[3.11]"),
        ("timeout = 5", "timeout = 0"),
        ('"1h30m"', '"90 minutes"'),
        ('"8GiB"', '"8GIB"'),
        ('A = "1"', '1A = "1"'),
        ("select", "selct"),
        ('bases."3.11"', "bases.new"),
        ("debian", "debain"),
        ("[run]", "[rum]"),
        ("[run]", '[run]\nengine = "dokcer"'),
        ("[run]", '[run]\nhlo = "failure"'),
        ('describe = "x"', 'describe = "x"\nautotune = 1'),
    ],
)
def test_the_matrix_schema_refuses_what_the_loader_refuses(old: str, new: str) -> None:
    assert valid("matrix.schema.json", tomllib.loads(MATRIX))
    changed = MATRIX.replace(old, new, 1)
    assert changed != MATRIX
    if new == "jacks = ":
        changed = MATRIX.replace('jax = ["0.8.0"]\n', "", 1)
    assert not valid("matrix.schema.json", tomllib.loads(changed))


def test_the_repros_that_ship_meet_their_schema() -> None:
    validator = jsonschema.Draft202012Validator(schemas()["repro.schema.json"])
    paths = [path for path in (ROOT / "repros").glob("*.py") if not path.name.startswith("_")]
    assert len(paths) >= 4
    for path in paths:
        validator.validate(tomllib.loads(find_block(path.read_text()).text))


@pytest.mark.parametrize(
    "data",
    [
        {"titel": "x"},
        {"targets": ["H100"]},
        {"jax": 0.1},
        {"params": {"n": []}},
        {"params": {"n": [[1]]}},
        {"expect": [{"when": ""}]},
        {"expect": [{"outcome": "infra"}]},
        {"issue": "39200"},
        {"expect": [{"outcome": "ok", "metrics": {"x": ">> 1"}}]},
        {"expect": [{"outcome": "ok", "metrics": {"x y": 1}}]},
        {"expect": [{"outcome": "ok", "changed": "dce"}]},
        {"flags": ["gpu_x"]},
        {"libraries": ["jax lib"]},
    ],
)
def test_the_repro_schema_refuses(data: dict[str, Any]) -> None:
    assert valid("repro.schema.json", {})
    assert not valid("repro.schema.json", data)


def test_the_repro_schema_takes_numbers_and_comparisons() -> None:
    metrics = {"x": 1, "symtab/A": ">= 20", "loss": "> 0, < 1.5e-3"}
    assert valid("repro.schema.json", {"expect": [{"outcome": "ok", "metrics": metrics, "changed": ["dce"]}]})


def test_the_document_meets_its_schema() -> None:
    written = json.loads(json.dumps(document((*sample(), *broken()), RUN)))
    jsonschema.Draft202012Validator(schemas()["document.schema.json"]).validate(written)
    written["cells"][0]["outcome"] = "green"
    assert not valid("document.schema.json", written)
    written["cells"][0]["outcome"] = "ok"
    assert valid("document.schema.json", written)
    del written["cells"][0]["reason"]
    assert not valid("document.schema.json", written)
