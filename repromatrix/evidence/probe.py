"""What `containers/probe.py` found in the binaries of an environment, as data, and what it does and does not prove."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

FILE = "probe.json"
"""Name of the file in the attempt's work folder."""

SCHEMA = 1

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"

MEANING = {
    "strings": "A string that is found is in the binary, which does not prove that the code beside it runs or is "
    "reachable; names of flags stay as fields of a protocol buffer long after the flag is gone. A string that is not "
    "found proves little: it may be spelt otherwise or put together at run time.",
    "dynsym": "The dynamic symbol table (`nm -D`) holds what a library exports and asks of others. A name in it is "
    "there; a name that is absent proves nothing, since nearly all of XLA is not exported.",
    "symtab": "A name in the full symbol table (`nm`) is code or data that is present. It does not prove that it runs, "
    "and its absence or a smaller count does not prove that it is gone: inlining and identical-code folding remove "
    "names, not code. A stripped library has no such table and says nothing.",
    "flags": "A flag that is accepted is known to jaxlib's parser; that it still does something is not proved. One "
    "that is unknown is refused at the start, so no program can use it.",
}
"""Per kind of finding, what it proves and what it does not."""


@dataclass(frozen=True, slots=True)
class Library:
    """One shared library.

    Attributes:
        package: Distribution that brought it.
        file: Folder and file name.
        size: Bytes.
        build_id: Hexadecimal; empty where it has none.
        needed: Libraries it is linked with (DT_NEEDED).
        versions: (library, symbol versions asked of it): `("libc.so.6", ("GLIBC_2.27", ...))`.
        strings: (text, printable runs that hold it).
        words: The same, for texts that stand as a word of their own.
        dynsym, symtab: (text, symbols whose mangled names hold it); None where the library has no such table.
    """

    package: str
    file: str
    size: int
    build_id: str = ""
    needed: tuple[str, ...] = ()
    versions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    strings: tuple[tuple[str, int], ...] = ()
    words: tuple[tuple[str, int], ...] = ()
    dynsym: tuple[tuple[str, int], ...] | None = None
    symtab: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Flag:
    """What XLA said to a flag.

    Attributes:
        flag: As it was asked: `xla_name` or `xla_name=value`.
        verdict: `accepted`, `unknown`, `value refused` or `no answer`.
    """

    flag: str
    verdict: str

    @property
    def accepted(self) -> bool | None:
        """Whether it is accepted as asked; None where there was no answer."""
        return None if self.verdict == "no answer" else self.verdict == "accepted"


@dataclass(frozen=True, slots=True)
class Probe:
    """Everything that `probe.json` says.

    Attributes:
        packages: (distribution, version) looked at.
        absent: Distributions that are not installed.
        known: (flag, default, type) of every flag that is accepted, where all were asked for; default and type are
            empty where XLA does not tell them.
        trouble: Why flags were not, or not all, answered; else empty.
    """

    packages: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    libraries: tuple[Library, ...] = ()
    flags: tuple[Flag, ...] = ()
    known: tuple[tuple[str, str, str], ...] = ()
    trouble: str = ""

    def total(self, kind: str, text: str) -> int | None:
        """Findings of `text` in all libraries; None where none has such a table or nothing was looked for.

        Args:
            kind: `strings`, `words`, `dynsym` or `symtab`.
        """
        counts = [dict(found)[text] for library in self.libraries if text in dict(found := _table(library, kind))]
        return sum(counts) if counts else None

    def sentences(self) -> tuple[str, ...]:
        """Of each kind that was looked for, what its findings prove and what they do not."""
        kinds = []
        if any(library.strings or library.words for library in self.libraries):
            kinds.append("strings")
        if any(library.dynsym for library in self.libraries):
            kinds.append("dynsym")
        if any(library.dynsym or library.symtab for library in self.libraries):
            kinds.append("symtab")
        if self.flags or self.known:
            kinds.append("flags")
        return tuple(MEANING[kind] for kind in kinds)


def _table(library: Library, kind: str) -> tuple[tuple[str, int], ...]:
    tables = {
        "strings": library.strings,
        "words": library.words,
        "dynsym": library.dynsym,
        "symtab": library.symtab,
    }
    return tables[kind] or ()


def read_probe(text: str) -> Probe:
    """The data of a `probe.json`.

    Raises:
        ValueError: It is none: cut, or of another schema.
    """
    stored: Json = json.loads(text)
    if not isinstance(stored, Mapping) or stored.get("schema") != SCHEMA:
        raise ValueError(f"no probe.json of schema {SCHEMA}")
    return Probe(
        packages=tuple((name, str(version)) for name, version in _mapping(stored.get("packages")).items()),
        absent=_texts(stored.get("absent")),
        libraries=tuple(_library(_mapping(library)) for library in _list(stored.get("libraries"))),
        flags=tuple(Flag(flag, str(verdict)) for flag, verdict in _mapping(stored.get("flags")).items()),
        known=tuple((name, *_pair(told)) for name, told in _mapping(stored.get("accepted")).items()),
        trouble=str(stored.get("trouble") or ""),
    )


def _library(stored: Mapping[str, Json]) -> Library:
    return Library(
        package=str(stored.get("package")),
        file=str(stored.get("file")),
        size=_number(stored.get("size")),
        build_id=str(stored.get("build_id") or ""),
        needed=_texts(stored.get("needed")),
        versions=tuple((name, _texts(asked)) for name, asked in _mapping(stored.get("versions")).items()),
        strings=_counts(stored.get("strings")) or (),
        words=_counts(stored.get("words")) or (),
        dynsym=_counts(stored.get("dynsym")),
        symtab=_counts(stored.get("symtab")),
    )


def _counts(value: Json) -> tuple[tuple[str, int], ...] | None:
    if value is None:
        return None
    return tuple((text, _number(count)) for text, count in _mapping(value).items())


def _number(value: Json) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no count")
    return value


def _mapping(value: Json) -> Mapping[str, Json]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no table")
    return value or {}


def _list(value: Json) -> list[Json]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value or []


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in _list(value))


def _pair(value: Json) -> tuple[str, str]:
    default, kind = _texts(value)
    return default, kind
