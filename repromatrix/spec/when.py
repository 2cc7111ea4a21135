"""Conditions: the language of `expect.when`, and the specifiers and globs of excludes.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | comparison
    comparison = NAME ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) VALUE
               | NAME [ "not" ] "in" "(" VALUE { "," VALUE } ")"

A value is a quoted string, a version or number as it is (`0.10.2`, `-1`, `1e-3`), `true` or `false`. What a comparison
means is the fact's type: versions by PEP 440, numbers by size, words by equality; words have no order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from repromatrix.errors import UserError
from repromatrix.spec.words import nearest

Fact = str | int | float | bool | Version
"""What a name stands for in one cell."""

_ORDER: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_EQUAL: dict[str, Callable[[object, object], bool]] = {"==": eq, "!=": ne}
_KEYWORDS = ("and", "or", "not", "in", "true", "false")
_DEEPEST = 50  # nesting; the parser and the evaluation recurse
_FOREIGN = {"=": "==", "&&": "and", "||": "or", "!": "not", "&": "and", "|": "or", "~=": ">= and <"}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<value>[-+]?\.?[0-9][0-9A-Za-z.!_]*(?:(?<=[eE])[-+][0-9]+|[-+][0-9A-Za-z.]+)*)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*)
  | (?P<mark>==|!=|<=|>=|&&|\|\||~=|[<>(),=!&|])
    )""",
    re.VERBOSE,
)


class WhenError(UserError):
    """A condition is wrong.

    Attributes:
        column: 1-based place in the condition.
    """

    def __init__(self, text: str, column: int, message: str, advice: str = "") -> None:
        pointer = f"{text}\n  {' ' * (column - 1)}^" if text.isprintable() else ""
        super().__init__(f"column {column}: {message}", hint="\n  ".join(part for part in (pointer, advice) if part))
        self.column = column


@dataclass(frozen=True, slots=True)
class Kind:
    """What a name can be compared with.

    Attributes:
        types: Types its facts have: Version, float (any number), bool, str.
        words: All the words it can be, where that is known; a comparison with another word is a misspelling.
    """

    types: frozenset[type]
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A value as written."""

    text: str
    quoted: bool
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return '"' + re.sub(r'(["\\])', r"\\\1", self.text) + '"' if self.quoted else self.text

    def like(self, fact: Fact) -> Fact | None:
        """This value as the type of `fact`, or None where it cannot be one."""
        if isinstance(fact, str):
            return self.text
        if isinstance(fact, Version):
            return _version(self.text)
        if isinstance(fact, bool):
            return {"true": True, "false": False}.get(self.text)
        return _number(self.text)

    def fits(self, kind: type) -> bool:
        samples: dict[type, Fact] = {Version: Version("0"), bool: True, float: 0.0, str: ""}
        return self.like(samples[kind]) is not None


class When:
    """A condition, parsed; `str()` gives a text that parses to the same condition."""

    __slots__ = ()

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Whether the condition is true of `facts`, which must hold every name (see `misuse`)."""
        raise NotImplementedError

    def comparisons(self) -> Iterator[Compare]:
        """Every comparison, from left to right."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Always(When):
    """The empty condition."""

    def __str__(self) -> str:
        return ""

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        return True

    def comparisons(self) -> Iterator[Compare]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Compare(When):
    """`jax >= 0.6.1`, `flag in ("a", "b")`."""

    name: str
    operator: str
    values: tuple[Value, ...]
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        values = ", ".join(map(str, self.values))
        return f"{self.name} {self.operator} " + (f"({values})" if self.operator.endswith("in") else values)

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        fact = facts[self.name]
        values = [value.like(fact) for value in self.values]
        if self.operator in _ORDER:  # a word such as nccl's "locked" is neither above nor below a version
            return not isinstance(fact, str) and values[0] is not None and _ORDER[self.operator](fact, values[0])
        if self.operator in _EQUAL:
            return _EQUAL[self.operator](fact, values[0])
        return (fact in values) == (self.operator == "in")

    def comparisons(self) -> Iterator[Compare]:
        yield self


@dataclass(frozen=True, slots=True)
class Not(When):
    part: When

    def __str__(self) -> str:
        return f"not {_within(self.part, And, Or)}"

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        return not self.part.holds(facts)

    def comparisons(self) -> Iterator[Compare]:
        return self.part.comparisons()


@dataclass(frozen=True, slots=True)
class And(When):
    parts: tuple[When, ...]

    def __str__(self) -> str:
        return " and ".join(_within(part, Or) for part in self.parts)

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        return all(part.holds(facts) for part in self.parts)

    def comparisons(self) -> Iterator[Compare]:
        return (found for part in self.parts for found in part.comparisons())


@dataclass(frozen=True, slots=True)
class Or(When):
    parts: tuple[When, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        return any(part.holds(facts) for part in self.parts)

    def comparisons(self) -> Iterator[Compare]:
        return (found for part in self.parts for found in part.comparisons())


def parse_when(text: str) -> When:
    """Parse the condition `text`; blank means always.

    Raises:
        WhenError: It is no condition; the error points at the column.
    """
    return _Parser(text).parse() if text.strip() else Always()


def misuse(text: str, when: When, kinds: Mapping[str, Kind]) -> list[WhenError]:
    """What in `when` (parsed from `text`) cannot be meant: unknown names, values of another type, unknown words."""
    errors = []
    for part in when.comparisons():
        kind = kinds.get(part.name)
        if kind is None:
            advice = nearest(part.name, kinds) or f"names here: {', '.join(kinds)}"
            errors.append(WhenError(text, part.column, f"unknown name `{part.name}`", advice))
        elif part.operator in _ORDER and kind.types == {str}:
            message = f"`{part.name}` is a word and has no order; use ==, != or in"
            errors.append(WhenError(text, part.column, message))
        else:
            errors += [error for value in part.values if (error := _misfit(text, part.name, value, kind))]
    return errors


def matches(condition: str, value: str) -> bool:
    """Whether an axis value meets `condition`: a PEP 440 specifier (`>=0.6,<0.7`), else a version or a glob.

    A specifier looks at the number of `12-local` and is never met by a word (`none`, `locked`). A version without an
    operator means that version, however it is written: `0.8` is met by `0.8.0`.
    """
    found = _specifier(condition)
    if found is not None:
        version = _version(value.removesuffix("-local"))
        return version is not None and found.contains(version, prereleases=True)
    wanted = _version(condition)
    return fnmatchcase(value, condition) or (wanted is not None and wanted == _version(value))


def condition_error(condition: str) -> str:
    """Why `condition` is nothing that `matches` understands; empty if it does."""
    if not condition.strip():
        return "expected a version specifier (`<0.8`) or a glob (`12*`), found nothing"
    try:
        _specifier(condition)
    except InvalidSpecifier:
        return f'expected a version specifier (`<0.8`, `>=0.6,<0.7`) or a glob (`12*`), found "{condition}"'
    return ""


@lru_cache(maxsize=4096)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


@lru_cache(maxsize=256)
def _specifier(text: str) -> SpecifierSet | None:
    return SpecifierSet(text) if text.lstrip()[:1] in tuple("<>=!~") else None


def _number(text: str) -> int | float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return None


def _within(part: When, *looser: type) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


def _misfit(text: str, name: str, value: Value, kind: Kind) -> WhenError | None:
    if not any(value.fits(each) for each in kind.types):
        called = {Version: "a version", float: "a number", bool: "true or false", str: "a word"}
        expected = " or ".join(sorted(called[each] for each in kind.types))
        return WhenError(text, value.column, f"`{name}` is compared with {expected}, found {value}")
    if kind.types == {str} and kind.words and value.text not in kind.words:
        advice = nearest(value.text, kind.words) or f"it can be: {', '.join(kind.words)}"
        return WhenError(text, value.column, f'`{name}` is never "{value.text}"', advice)
    return None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # string, value, name, mark or end
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.scan())
        self.at = 0
        self.depth = 0

    def scan(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            found = _TOKEN.match(self.text, at)
            if not found or not found.lastgroup:
                start = at + len(self.text[at:]) - len(self.text[at:].lstrip())
                what = "a string that does not end" if self.text[start] in "\"'" else f"`{self.text[start]}`"
                raise WhenError(self.text, start + 1, f"expected a name, a value or an operator, found {what}")
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup) + 1)
            at = found.end()
        yield _Token("end", "", end + 1)

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def fail(self, expected: str, advice: str = "") -> WhenError:
        known = _FOREIGN.get(self.token.text) if self.token.kind == "mark" else None
        advice = f"write `{known}`" if known else advice
        return WhenError(self.text, self.token.column, f"expected {expected}, found {self.token}", advice)

    def take(self, *texts: str) -> _Token | None:
        token = self.token
        if token.kind in ("name", "mark") and token.text in texts:
            self.at += 1
            return token
        return None

    def parse(self) -> When:
        when = self.any_of()
        if self.token.kind != "end":
            raise self.fail("`and`, `or` or the end")
        return when

    def any_of(self) -> When:
        parts = [self.all_of()]
        while self.take("or"):
            parts.append(self.all_of())
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))]
        return Or(tuple(flat)) if len(flat) > 1 else flat[0]

    def all_of(self) -> When:
        parts = [self.one()]
        while self.take("and"):
            parts.append(self.one())
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
        return And(tuple(flat)) if len(flat) > 1 else flat[0]

    def one(self) -> When:
        opening = self.take("not", "(")
        if not opening:
            return self.comparison()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise WhenError(self.text, opening.column, f"nested deeper than {_DEEPEST}")
        if opening.text == "not":
            inner: When = Not(self.one())
        else:
            inner = self.any_of()
            if not self.take(")"):
                raise self.fail("`)`")
        self.depth -= 1
        return inner

    def comparison(self) -> When:
        name = self.token
        if name.kind != "name" or name.text in _KEYWORDS:
            advice = "a comparison starts with a name: `jax >= 0.6 and jax < 0.8`" if name.kind == "value" else ""
            raise self.fail("a name", advice)
        self.at += 1
        if operator := self.take("==", "!=", "<", "<=", ">", ">="):
            return Compare(name.text, operator.text, (self.value(),), name.column)
        negated = self.take("not")
        if not self.take("in"):
            raise self.fail("`in`" if negated else "==, !=, <, <=, >, >= or in")
        if not self.take("("):
            raise self.fail("`(`")
        values = [self.value()]
        while self.take(",") and not (self.token.kind == "mark" and self.token.text == ")"):
            values.append(self.value())
        if not self.take(")"):
            raise self.fail("`,` or `)`")
        return Compare(name.text, "not in" if negated else "in", tuple(values), name.column)

    def value(self) -> Value:
        token = self.token
        if token.kind == "string":
            self.at += 1
            return Value(re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL), True, token.column)
        if token.kind == "value" or token.text in ("true", "false"):
            self.at += 1
            return Value(token.text, False, token.column)
        word = token.kind == "name" and token.text not in _KEYWORDS
        raise self.fail("a value", f'words stand in quotes: "{token.text}"' if word else "")
