"""The metadata block of a script: TOML in comments, the form of PEP 723."""

from __future__ import annotations

import re
from dataclasses import dataclass

OPEN = "# /// repro"
CLOSE = "# ///"
_NEARLY = re.compile(r"\s*#+\s*/{2,}\s*repros?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Block:
    """The metadata block of one script.

    Attributes:
        text: The TOML text.
        first: 1-based line of the opening in the script; line n of the text is line `first + n` of the script.
        last: Line of the closing.
    """

    text: str
    first: int
    last: int


class BlockError(Exception):
    """The script has no block, or not a whole one.

    Attributes:
        line: 1-based; 0 where the script has no block at all.
    """

    def __init__(self, line: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.hint = hint


def find_block(source: str) -> Block:
    """The one metadata block of `source` (lines ended by newline characters).

    Raises:
        BlockError: There is none, it is not closed, holds a line that is no comment, or there is a second one.
    """
    lines = [line.rstrip() for line in source.split("\n")]
    if OPEN not in lines:
        for number, line in enumerate(lines, 1):
            if _NEARLY.fullmatch(line):
                raise BlockError(number, f"expected `{OPEN}`, found `{line}`", "the spelling is that of PEP 723")
        raise BlockError(0, "no metadata", f"there is no `{OPEN}` block; `invoke new SCRIPT` makes a repro of a script")
    first = lines.index(OPEN) + 1
    last = next((number for number in range(first + 1, len(lines) + 1) if lines[number - 1] == CLOSE), 0)
    for number in range(first + 1, last or len(lines) + 1):
        line = lines[number - 1]
        if line == OPEN:
            raise BlockError(first, "this block does not end", f"close it with `{CLOSE}`")
        if line != "#" and not line.startswith("# "):
            if not last:
                break
            hint = "every line of the block begins with `# `, also an empty one with `#`"
            raise BlockError(number, f"expected a comment within the block, found `{line}`", hint)
    if not last:
        raise BlockError(first, "this block does not end", f"close it with `{CLOSE}`")
    for number in range(last + 1, len(lines) + 1):
        if lines[number - 1] == OPEN:
            raise BlockError(number, "a second block", f"the first is at line {first}; a script has one")
    return Block("\n".join(line[2:] for line in source.split("\n")[first : last - 1]) + "\n", first, last)
