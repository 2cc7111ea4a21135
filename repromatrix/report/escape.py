"""Text of unknown origin made harmless in GitHub's Markdown.

What a script printed can hold anything: pipes that break tables, HTML, backticks, and names that notify people
(`@user`, `#123`) when the page is pasted into an issue. GitHub leaves alone what stands in code.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[^`|]+")
_SPECIAL = re.compile(r"[`|\\<>&*~\[\]@#:_]")
_PROSE = re.compile(r"[\\`*\[\]~|&<>]|(?<![^\W_])_|_(?![^\W_])|@(?=\w)|#(?=\d)")
_TICKED = re.compile(r"(`{1,2})([^`]+)\1")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}


def printable(text: str) -> str:
    """Without control characters but line ends, and with `?` for half characters, which no encoding takes."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def clean(text: str) -> str:
    """One line: `printable`, and every run of white space is one space."""
    return " ".join(printable(text).split())


def code(text: str) -> str:
    """As code, also inside tables: in backticks where that is safe, else as a `code` element with entities.

    Within backticks a table still splits at pipes, and what a backslash before one means differs between parsers; all
    else stands for itself there.
    """
    text = clean(text)
    if _PLAIN.fullmatch(text):
        return f"`{text}`"
    return f"<code>{_SPECIAL.sub(lambda found: f'&#{ord(found[0])};', text)}</code>" if text else ""


def prose(text: str) -> str:
    """As running text, also inside tables: shown as it is, with no markup, no link and no notification."""
    return _PROSE.sub(lambda found: _harmless(found[0]), clean(text))


def paragraph(text: str) -> str:
    """As `prose`, but what stands in backticks, as Markdown or as reStructuredText has them, is code."""
    parts = _TICKED.split(clean(text))  # text, ticks, code, text, ticks, code, ..., text
    shown = [code(part) if place % 3 else _spaced(part) for place, part in enumerate(parts) if place % 3 != 1]
    return "".join(shown)


def _spaced(text: str) -> str:
    """`prose`, with the blanks at its ends, which stand between it and code."""
    return f"{' ' * text.startswith(' ')}{prose(text)}{' ' * (text.endswith(' ') and text != ' ')}"


def _harmless(char: str) -> str:
    return f"<code>{char}</code>" if char in "@#" else _ENTITIES.get(char, "\\" + char)


def fence(lines: list[str], language: str = "") -> tuple[str, str]:
    """Opening and closing line of a code block that `lines` cannot end."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return ticks + language, ticks
