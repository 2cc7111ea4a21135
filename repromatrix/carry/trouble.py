"""What can be wrong with an archive or with what is asked of it, as data and as exceptions.

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
        where: The file, relative to the archive's folder, or the part's name.
        what: What is wrong with it, in words.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return shown(f"{self.where}: {self.what}")


class Damaged(Exception):
    """An archive, or a part of one, is not what it states; nothing of it was used."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Refused(Exception):
    """What was asked cannot be done as asked; nothing was written.

    Attributes:
        hint: What to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def shown(text: str) -> str:
    """`text` in one line that a terminal takes for text alone: an archive's names may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def listed(problems: Iterable[Problem], most: int = 20) -> str:
    """The first `most` problems, one indented line each, and how many more there are."""
    every = list(problems)
    lines = [f"  {problem}" for problem in every[:most]]
    if len(every) > most:
        lines.append(f"  and {len(every) - most} more")
    return "\n".join(lines)
