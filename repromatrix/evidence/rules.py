"""A project's own words on signatures: `[[signature]]` rules that merge failures under one title or split them.

`match` is a glob, or a regular expression between slashes. It is searched in the titles, in the frames, and in every
line of stderr and stdout. `title` may take up what a `*` or a group matched: `\\1`, `\\g<name>`. The first rule that
fits decides, and its title stands alone: an automatic alternative would merge again what the rule splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from repromatrix.errors import UserError
from repromatrix.evidence.model import Signature
from repromatrix.evidence.signature import VERSION, bounded
from repromatrix.evidence.text import shorten
from repromatrix.spec.model import SignatureRule


@lru_cache(maxsize=256)
def pattern(rule: SignatureRule) -> re.Pattern[str]:
    """The rule as a regular expression to search in a line.

    Raises:
        UserError: The expression is wrong, or the title speaks of a group that it does not have.
    """
    text = rule.match
    regular = len(text) > 1 and text.startswith("/") and text.endswith("/")
    try:
        compiled = re.compile(text[1:-1] if regular else _glob(text))
        re.compile(f"(?:{compiled.pattern})|").search("").expand(rule.title)  # type: ignore[union-attr]  # always matches
    except (re.error, IndexError) as error:
        raise UserError(
            f"[[signature]] match = {text!r}, title = {rule.title!r}: {error}",
            where="matrix.toml",
            hint=r"a glob, or a regular expression between slashes; \1 in the title is what the first * or group found",
        ) from error
    return compiled


def apply_rules(
    rules: Iterable[SignatureRule], signature: Signature, stderr: str, stdout: str = "", frames: Sequence[str] = ()
) -> Signature:
    """`signature`, or the one that the first fitting rule gives.

    Raises:
        UserError: A rule is wrong.
    """
    lines: list[str] | None = None
    for rule in rules:
        compiled = pattern(rule)
        if lines is None:
            texts = (line for text in (stderr, stdout) for line in bounded(text).split("\n"))
            lines = [signature.title, *signature.alternatives, *frames, *texts]
        for line in lines:
            if (found := compiled.search(line[:20_000])) is not None:
                return Signature(shorten(found.expand(rule.title)), (), VERSION)
    return signature


def _glob(text: str) -> str:
    """A glob found anywhere in a line, every `*` a group; a `*` at the very end takes the rest of the line."""
    escaped = "".join("(.*?)" if char == "*" else "." if char == "?" else re.escape(char) for char in text)
    return escaped[: -len("(.*?)")] + "(.*)" if text.endswith("*") else escaped
