"""Every mistake of a file at once: where it stands, what was expected, and the nearest right word."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec import locate
from repromatrix.spec.fields import Table
from repromatrix.spec.words import nearest, shown

T = TypeVar("T", bound=Table)


class Mistakes:
    """The mistakes of one TOML text, which may be a part of a file.

    Attributes:
        file: Name as shown.
        offset: Lines of the file above the text.
        indent: Columns of the file left of the text.
        places: Of the keys and values; empty until `parse`.
    """

    def __init__(self, file: Path, text: str, offset: int = 0, indent: int = 0) -> None:
        self.file = shown_path(file)
        self.offset = offset
        self.indent = indent
        self.text = text
        self.places = locate.Places({}, {}, frozenset())
        self._found: list[tuple[int, UserError]] = []

    def parse(self) -> dict[str, Any] | None:
        """The data of the text; None, and a mistake noted, where it is not TOML."""
        try:
            data = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            found = re.fullmatch(r"(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
            message = found[1] if found else str(error)
            line = int(found[2]) if found and found[2] else self.text.rstrip("\n").count("\n") + 1
            column = f"column {int(found[3]) + self.indent}: " if found and found[3] else ""
            source = self.text.split("\n")[line - 1]
            bare = re.search(r"(?<![\w.\"'])\d+\.\d+\.[\w.]+(?![\w.\"'])", source.partition("#")[0])
            hint = f'versions are strings: write "{bare.group()}"' if bare else source.strip()
            self.at_line(line, f"not TOML: {column}{message[:1].lower()}{message[1:]}", hint)
            return None
        except RecursionError:
            self.at_line(1, "not TOML that can be read: nested too deeply")
            return None
        self.places = locate.locate(self.text)
        return data

    def validate(self, model: type[T], data: dict[str, Any]) -> T | None:
        """`data` as a `model`; None, and every mistake noted, where it is none."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path = _path(details["loc"], data)
                self.add(path, *_explain(details, model, path, self.places.raw.get(path)))
            return None

    def line(self, path: locate.Path) -> int:
        """Line of the file at which the key `path` stands."""
        return self.places.line(path) + self.offset

    def at_line(self, line: int, message: str, hint: str = "") -> None:
        """Note a mistake at a line of the text."""
        line += self.offset
        self._found.append((line, UserError(message, where=f"{self.file}:{line}", hint=hint)))

    def add(self, path: locate.Path, message: str, hint: str = "") -> None:
        """Note a mistake at the key `path`."""
        self.at_line(self.places.line(path), f"{dotted(path)}: {message}", hint)

    def stop(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            InputErrors: Every mistake, by line.
        """
        if self._found:
            raise InputErrors([error for _, error in sorted(self._found, key=lambda pair: pair[0])])


def dotted(path: Iterable[str | int]) -> str:
    """`expect[1].when`, `bases."3.11".image`; elements are counted from 0."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]+", part, re.ASCII) else json.dumps(part, ensure_ascii=False)
            text += f".{name}" if text else name
    return text


def shown_path(path: Path) -> str:
    """`path` relative to the working directory where it lies below it."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def inside(root: Path, folder: Path, name: str) -> tuple[Path | None, str]:
    """The file that a value names, relative to `folder`: (path, "") or (None, what is wrong with it).

    It must be a file and lie within `root`, also where symbolic links lead.
    """
    if Path(name).is_absolute():
        return None, f"expected a path relative to this file, found {shown(name)}"
    path = (folder / name).resolve()
    if not path.is_relative_to(root.resolve()):
        return None, f"{shown(name)} leaves the project's folder"
    if not path.is_file():
        return None, f"there is no file {shown_path(folder / name)}"
    return path, ""


def _path(loc: tuple[str | int, ...], data: Any) -> locate.Path:
    """Pydantic's place as a path into the file: parts that the data does not have are pydantic's own."""
    path: locate.Path = ()
    for number, part in enumerate(loc):
        below = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if below:
            data = data[part]
        elif not (number == len(loc) - 1 and isinstance(data, dict) and part != "[key]"):  # else a missing key
            continue
        path = (*path, part)
    return path


def _explain(details: ErrorDetails, model: type[BaseModel], path: locate.Path, raw: str | None) -> tuple[str, str]:
    """(message, hint) for one of pydantic's errors."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    found = raw or shown(value)
    hint = ""
    match kind:
        case "refused":
            return context["message"], context["hint"]
        case "extra_forbidden":
            known = _keys(model, path[:-1])
            return "unknown key", nearest(str(path[-1]), known) or f"keys here: {', '.join(known)}"
        case "missing":
            return "this key is missing", ""
        case "too_short":
            return "expected at least one, found an empty list", ""
        case "string_too_short":
            return "expected a text, found an empty string", ""
        case "literal_error":
            words = re.findall(r"'([^']*)'", context["expected"])
            hint = nearest(value, words) if isinstance(value, str) else ""
            expected = f"one of {', '.join(words)}"
        case "string_type":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            hint = f'write it in quotes: "{found}"' if number else ""
            expected = "a string"
        case "list_type":
            hint = f"write [{found}]" if raw else ""
            expected = "a list"
        case "dict_type" | "model_type":
            expected = "a table"
        case "int_type":
            expected = "a whole number"
        case "bool_type":
            expected = "true or false"
        case "greater_than_equal":
            expected = f"at least {context['ge']}"
        case "less_than_equal":
            expected = f"at most {context['le']}"
        case _:
            return details["msg"], ""
    return f"expected {expected}, found {found}", hint


def _keys(model: type[BaseModel], path: locate.Path) -> tuple[str, ...]:
    """Keys that the table at `path` may have."""
    kind: object = model
    for part in path:
        kind = _bare(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:  # an element of a list, a value of a table
            kind = get_args(kind)[-1]
    kind = _bare(kind)
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _bare(kind: object) -> object:
    """`kind` without `Annotated` and `| None`."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind
