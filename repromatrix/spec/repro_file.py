"""The format of a repro's metadata block."""

from __future__ import annotations

import math
import signal
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from repromatrix.spec.fields import (
    Condition,
    Count,
    Cudas,
    Duration,
    Memory,
    Package,
    Project,
    Pythons,
    Spelled,
    Table,
    Text,
    Variables,
    Versions,
    refuse,
    unique,
)
from repromatrix.spec.metrics import PATTERN, condition_error
from repromatrix.spec.model import word
from repromatrix.spec.words import nearest, shown


def _choice(value: object) -> object:
    """A string narrows, a list replaces: told apart here, checked as fields of the `…Choice` tables."""
    return {"specifier": value} if isinstance(value, str) else {"values": value}


def _some(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _scalars(values: list[object]) -> list[object]:
    seen: set[str] = set()
    for value in values:
        if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
            said = word(value)
            if not said.isprintable():
                refuse(f"{shown(value)} cannot be shown in one line")
            if said in seen:
                refuse(f"{said} is listed twice")
            seen.add(said)
        else:
            refuse(f"expected a string, a finite number, true or false, found {shown(value)}")
    return values


def _signal(value: str) -> str:
    names = [each.name for each in signal.Signals]
    if value not in names:
        refuse(f'expected a signal such as "SIGSEGV", found {shown(value)}', nearest(value, names))
    return value


def _metric(value: object) -> object:
    text = repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        refuse(f'expected a number or a comparison such as ">= 20", found {shown(value)}')
    if error := condition_error(text):
        refuse(f"{error}, found {shown(value)}")
    return text.strip()


Issue = Annotated[str, Spelled(r"[\w.-]+/[\w.-]+#[0-9]+|https?://\S+", '"owner/repository#number" or an address')]
Target = Annotated[
    str,
    Spelled(
        "(cpu|gpu)(:[1-9][0-9]*)?|[a-z][a-z0-9_]*:[1-9][0-9]*",
        'a target such as "cpu", "cpu:8", "gpu:2" or "h100:8"',
        known=("cpu", "gpu"),
    ),
]
OutcomeWord = Literal["ok", "error", "crash", "hang", "oom", "skip", "inconclusive"]  # infra says nothing of a version
Outcomes = Annotated[
    list[OutcomeWord],
    BeforeValidator(_some, json_schema_input_type=OutcomeWord | list[OutcomeWord]),
    Field(min_length=1),
    AfterValidator(unique),
]
Metrics = dict[
    Annotated[
        str,
        Spelled(
            "[A-Za-z_][A-Za-z0-9_.:/-]*",
            'the name of a metric such as "loss" or "symtab/CollectivePipeliner"',
            "`_` stands for every other character",
        ),
    ],
    Annotated[
        str,
        BeforeValidator(_metric),
        WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": PATTERN}]}),
    ],
]
Passes = Annotated[
    list[Annotated[str, Spelled(r"\S+", 'the name of a pass, or a glob such as "collective-pipeliner-*"')]],
    AfterValidator(unique),
]
Flag = Annotated[str, Spelled(r"(--)?xla_\w+(=\S*)?", 'a flag such as "xla_name" or "xla_name=value"')]
Printable = Annotated[str, Spelled(r"[\t -~]+", "text in ASCII without line breaks: others are no strings of a binary")]
Scalars = Annotated[list[object], Field(min_length=1), AfterValidator(_scalars)]
_SCALARS = {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean"]}}


class VersionChoice(Table):
    specifier: Condition | None = None
    values: Versions | None = None


class PythonChoice(Table):
    specifier: Condition | None = None
    values: Pythons | None = None


class CudaChoice(Table):
    specifier: Condition | None = None
    values: Cudas | None = None


_CHOICE = WithJsonSchema(
    {
        "description": "A specifier or glob narrows the matrix's values; a list replaces them.",
        "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "string"}}],
    }
)


class WitnessTable(Table):
    hlo: list[Text] = Field([], description="Patterns that the HLO must hold.")
    passes: list[Text] = Field([], description="Names of passes that must have run.")
    output: list[Text] = Field([], description="Patterns that the output must hold.")


class ExpectTable(Table):
    when: str = Field("", description="Condition over axes, params, `target` and `engine`; empty = always.")
    outcome: Outcomes = Field(description="The outcome claimed, or several where machines differ.")
    signal: Annotated[str, AfterValidator(_signal)] | None = Field(None, description="Signal that ends it.")
    exit_status: Annotated[int, Field(ge=0, le=255)] | None = Field(None, description="Exit status it ends with.")
    signature: Text | None = Field(None, description="Glob over the titles of the failure's signature.")
    metrics: Metrics = Field(
        {}, description="Numbers that it prints or finds: one exactly, or comparisons such as '>= 20' or '> 0, < 1'."
    )
    changed: Passes = Field([], description="Globs of passes; each must name one that changed a module.")
    unchanged: Passes = Field([], description="Globs of passes of which none may have changed a module.")


class ReproFile(Table):
    """The metadata block of a script in repros/."""

    title: str = Field("", description="What goes wrong, in one line.")
    about: str = Field("", description="What was claimed and what is true, in paragraphs; else the docstring says it.")
    issue: Issue | None = Field(None, description="owner/repository#number, or an address.")
    targets: Annotated[list[Target], Field(min_length=1), AfterValidator(unique)] = Field(
        ["cpu"], description="cpu, cpu:N, gpu, gpu:N, or NAME:N of a target in matrix.toml."
    )
    timeout: Duration | None = None
    env: Variables = Field({}, description="Variables of the script; {name} of a parameter is replaced by its value.")
    params: Annotated[dict[str, Scalars], WithJsonSchema({"type": "object", "additionalProperties": _SCALARS})] = Field(
        {}, description="Parameters: every value is a cell."
    )
    witness: WitnessTable | None = Field(None, description="What must be seen for an `ok` to count.")
    expect: list[ExpectTable] = Field([], description="Claims; the first whose `when` holds counts.")
    packages: list[Package] = Field([], description="Further requirements.")
    jax: Annotated[VersionChoice, BeforeValidator(_choice), _CHOICE] | None = None
    python: Annotated[PythonChoice, BeforeValidator(_choice), _CHOICE] | None = None
    cuda: Annotated[CudaChoice, BeforeValidator(_choice), _CHOICE] | None = None
    processes: Count = Field(1, description="Ranks started in one attempt.")
    cpus: Count | None = Field(None, description="Size of the CPU set.")
    memory: Memory | None = None
    hlo: Literal["text", "passes", "off"] | None = Field(None, description="What is collected of the HLO.")
    repeat: Count | None = Field(None, description="Attempts per cell.")
    files: list[Text] = Field([], description="Files beside the script that it needs.")
    probe: bool = Field(False, description="No script: strings, symbols and flags are looked up in the wheels.")
    strings: list[Printable] = Field([], description="Texts that a probe looks for in the binaries.")
    symbols: list[Printable] = Field([], description="Parts of symbols' names that a probe looks for.")
    flags: list[Flag] = Field([], description="XLA flags of which a probe asks whether they are known.")
    libraries: Annotated[list[Project], AfterValidator(unique)] = Field(
        [], description="Projects whose binaries a probe looks into; none = all of jax's own."
    )
