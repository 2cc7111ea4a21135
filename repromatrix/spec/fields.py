"""Types of values that the two file formats share, as pydantic checks them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from repromatrix.spec.when import condition_error
from repromatrix.spec.words import nearest, shown

_UNITS = (3600.0, 60.0, 1.0)
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}


def refuse(message: str, hint: str = "") -> NoReturn:
    """Refuse a value from within a pydantic validator."""
    raise PydanticCustomError("refused", "{message}", {"message": message, "hint": hint})


@dataclass(frozen=True)
class Spelled:
    """Marks a string that must match `expression` as a whole.

    Attributes:
        expected: The same in words, for the message.
        hint: What to do about a wrong one.
        known: Frequent right ones; the nearest is the hint where one is near.
    """

    expression: str
    expected: str
    hint: str = ""
    known: tuple[str, ...] = ()

    def check(self, value: str) -> str:
        if not re.fullmatch(self.expression, value, re.ASCII):
            refuse(f"expected {self.expected}, found {shown(value)}", nearest(value, self.known) or self.hint)
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {**handler(schema), "pattern": f"^({self.expression})$"}


def unique(values: list[str]) -> list[str]:
    """Refuse a list that says the same twice, versions compared as versions."""
    seen: set[str] = set()
    for value in values:
        if (same := canonicalize_version(value)) in seen:
            refuse(f"{shown(value)} is listed twice")
        seen.add(same)
    return values


def _duration(value: object) -> object:
    expected = 'expected a duration such as "10m", "90s", "1h30m" or a number of seconds'
    if isinstance(value, str):
        found = re.fullmatch(r"(?=.)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", value, re.ASCII)
        if not found:
            refuse(f"{expected}, found {shown(value)}")
        value = sum(float(part) * unit for part, unit in zip(found.groups("0"), _UNITS, strict=True))
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{expected}, found {shown(value)}")
    if not 0 < value <= 7 * 86400:
        refuse(f"expected a duration above 0 and of at most a week, found {value:g} s")
    return float(value)


def _memory(value: object) -> object:
    expected = 'expected an amount such as "8GiB", "500MB" or a number of bytes'
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", value, re.ASCII)
        if not found or found[2] not in _BYTES:
            refuse(f"{expected}, found {shown(value)}", nearest(found[2], _BYTES) if found else "")
        value = int(float(found[1]) * _BYTES[found[2]])
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(f"{expected}, found {shown(value)}")
    if value < 1 << 20:
        refuse(f"expected at least 1 MiB, found {value} bytes")
    return value


def _version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        refuse(f"expected an exact version such as 0.10.2, found {shown(value)}")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        refuse("a variable's value cannot hold the character U+0000")
    return value


def _nccl(value: str) -> str:
    try:
        if value != "locked":
            Version(value)
    except InvalidVersion:
        advice = nearest(value, ["locked"])
        refuse(f'expected "locked" or an exact version such as 2.28.9, found {shown(value)}', advice)
    return value


def _condition(value: str) -> str:
    if error := condition_error(value):
        refuse(error)
    return value


def _requirement(value: str) -> str:
    try:
        found = Requirement(value)
    except InvalidRequirement:
        refuse(f'expected a requirement such as "equinox==0.11.7", found {shown(value)}')
    if found.url:
        refuse(f"{found.name} is asked for by address, which no index can serve again", "name a version instead")
    if canonicalize_name(found.name) in ("jax", "jaxlib"):
        refuse(f"{found.name} is an axis, not a further package")
    return value


class Table(BaseModel):
    """A TOML table: no unknown keys, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^(?=.)(\d+h)?(\d+m)?(\d+(\.\d+)?s)?$"},
                {"type": "number", "exclusiveMinimum": 0},
            ]
        }
    ),
]
"""Seconds, from `"10m"`, `"90s"`, `"1h30m"` or a number."""
Memory = Annotated[
    int,
    BeforeValidator(_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\d+(\.\d+)? ?([kMGT]|[KMGT]i)?B$"},
                {"type": "integer", "minimum": 1 << 20},
            ]
        }
    ),
]
"""Bytes, from `"8GiB"`, `"500MB"` or a number."""
Text = Annotated[str, Field(min_length=1)]
VersionText = Annotated[str, AfterValidator(_version)]
PythonText = Annotated[
    str, Spelled("3\\.[0-9]{1,2}", 'a minor version of Python such as "3.12"', "the base decides the patch release")
]
CudaText = Annotated[
    str,
    Spelled(
        "none|[1-9][0-9](-local)?",
        '"none", "12", "13", "12-local" or "13-local"',
        known=("none", "12", "12-local", "13", "13-local"),
    ),
]
NcclText = Annotated[str, AfterValidator(_nccl)]
Versions = Annotated[list[VersionText], Field(min_length=1), AfterValidator(unique)]
Pythons = Annotated[list[PythonText], Field(min_length=1), AfterValidator(unique)]
Cudas = Annotated[list[CudaText], Field(min_length=1), AfterValidator(unique)]
Nccls = Annotated[list[NcclText], Field(min_length=1), AfterValidator(unique)]
Condition = Annotated[str, AfterValidator(_condition)]
Package = Annotated[str, AfterValidator(_requirement)]
Project = Annotated[
    str,
    Spelled("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", 'the name of a project such as "jax-cuda12-pjrt"'),
    AfterValidator(canonicalize_name),
]
"""Name of a project on an index, normalised."""
Variables = dict[
    Annotated[str, Spelled("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")],
    Annotated[str, AfterValidator(_no_nul)],
]
MOST = 10_000
"""Of what is counted: attempts of a cell, processes. More is a slip of the keyboard that would take days."""

Count = Annotated[int, Field(ge=1, le=MOST)]
