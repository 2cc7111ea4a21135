"""Where each key and value of a TOML text stands: the lines that error messages name.

`tomllib` gives data without places. This reads a text that `tomllib` has accepted already, so it checks nothing itself.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list indexes from the root: `("expect", 1, "when")`."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'  # a closing run of four or five quotes belongs to the string
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}#\n]+")  # numbers, booleans, dates (which may hold a blank)


@dataclass(frozen=True, slots=True)
class Places:
    """Places of one TOML text.

    Attributes:
        lines: 1-based line at which a key, a table's header or a list's element begins.
        raw: Strings, numbers, booleans and dates as written: `0.10` where the value is 0.1.
        quoted: Paths whose key is written in quotes.
    """

    lines: dict[Path, int]
    raw: dict[Path, str]
    quoted: frozenset[Path]

    def line(self, path: Path) -> int:
        """Line of `path`, or of the nearest thing around it that the text holds; 1 for the root."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def locate(text: str) -> Places:
    """The places of everything in `text`, which must be valid TOML (what it gives for other texts means nothing)."""
    return _Reader(text.replace("\r\n", "\n")).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ends = [found.start() for found in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {}
        self.raw: dict[Path, str] = {}
        self.quoted: set[Path] = set()
        self.last: dict[Path, int] = {}  # index of the newest element of each array of tables

    def read(self) -> Places:
        table: Path = ()
        while self.skip(_BLANK) < len(self.text):
            start = self.at
            if self.take("[["):
                table = self.element(self.keys(), self.line(start))
                self.skip(_SPACE)
                self.take("]]")
            elif self.take("["):
                table = self.name((), self.keys(), self.line(start))
                self.skip(_SPACE)
                self.take("]")
            else:
                self.pair(table)
            if self.at == start:  # not TOML after all
                break
        return Places(self.lines, self.raw, frozenset(self.quoted))

    def line(self, offset: int) -> int:
        return bisect_right(self.ends, offset - 1) + 1

    def skip(self, pattern: re.Pattern[str]) -> int:
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return self.at

    def take(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def keys(self) -> list[tuple[str, bool]]:
        """A dotted key: (name, whether it is quoted) of each part."""
        parts: list[tuple[str, bool]] = []
        while True:
            self.skip(_SPACE)
            found = _KEY.match(self.text, self.at)
            if not found:
                return parts
            self.at = found.end()
            word = found.group()
            quoted = word[0] in "\"'"
            parts.append((tomllib.loads(f"key = {word}")["key"] if quoted else word, quoted))
            self.skip(_SPACE)
            if not self.take("."):
                return parts

    def name(self, table: Path, keys: list[tuple[str, bool]], line: int) -> Path:
        """Note `keys` below `table`, through the newest element of every array of tables on the way."""
        path = table
        for key, quoted in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if quoted:
                self.quoted.add(path)
            if path in self.last:
                path = (*path, self.last[path])
        return path

    def element(self, keys: list[tuple[str, bool]], line: int) -> Path:
        path = (*self.name((), keys[:-1], line), *(key for key, _ in keys[-1:]))
        self.lines.setdefault(path, line)
        if keys and keys[-1][1]:
            self.quoted.add(path)
        self.last[path] = self.last.get(path, -1) + 1
        path = (*path, self.last[path])
        self.lines[path] = line
        return path

    def pair(self, table: Path) -> None:
        start = self.at
        path = self.name(table, self.keys(), self.line(start))
        self.take("=")
        self.skip(_SPACE)
        self.value(path)

    def value(self, path: Path) -> None:
        if self.take("["):
            index = 0
            while self.skip(_BLANK) < len(self.text) and not self.take("]"):
                start = self.at
                self.lines[*path, index] = self.line(start)
                self.value((*path, index))
                index += 1
                self.skip(_BLANK)
                self.take(",")
                if self.at == start:
                    return
        elif self.take("{"):
            while self.skip(_BLANK) < len(self.text) and not self.take("}"):
                start = self.at
                self.pair(path)
                self.skip(_BLANK)
                self.take(",")
                if self.at == start:
                    return
        elif found := _STRING.match(self.text, self.at) or _BARE.match(self.text, self.at):
            self.raw[path] = found.group().rstrip()
            self.at = found.end()
