"""What a repro is about, in the words of its author."""

from __future__ import annotations

import ast
import re

from repromatrix.report.escape import paragraph
from repromatrix.report.fit import Section
from repromatrix.results.combine import clip
from repromatrix.spec.model import Repro

_PARAGRAPHS = 2
_LENGTH = 1_200
"""Characters of a paragraph."""


def about(repro: Repro) -> Section:
    """The repro's `about`, else the first paragraphs of its docstring; empty where there is neither."""
    text = repro.about or docstring(repro.source)
    paragraphs = [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    shown = paragraphs if repro.about else paragraphs[:_PARAGRAPHS]
    if not shown:
        return Section()
    title = "## About this probe" if repro.probe else "## About this script"
    lines = [line for part in shown for line in ("", paragraph(clip(part, _LENGTH)))]
    return Section((title,), tuple((1, line) for line in lines), what="paragraphs", rank=92)


def docstring(source: str) -> str:
    """The docstring of a script; empty where it has none, or is not of this Python's syntax."""
    try:
        return ast.get_docstring(ast.parse(source)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null characters
        return ""
