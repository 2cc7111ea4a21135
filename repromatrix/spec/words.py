"""The nearest right word, values as messages show them, and the words with a meaning of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches

AXES = ("jax", "jaxlib", "cuda", "python", "nccl")
"""Axes with a meaning of their own, in canonical order; any other axis is a package."""
_SHOWN = 3
ENGINES = ("docker", "podman", "venv", "slurm")


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean "python"?`, or nothing where no known word is near (`cutoff`: difflib's ratio, 0 to 1)."""
    spelled = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), spelled, n=1, cutoff=cutoff)
    return f'did you mean "{spelled[found[0]]}"?' if found else ""


def longer(start: str, known: Iterable[str]) -> str:
    """`did you mean "jax0.10.2*"? It matches ...`: the glob of the words that begin so; nothing where none does."""
    found = [word for word in known if start and word.startswith(start) and word != start]
    if not found:
        return ""
    if len(found) == 1:
        return f'did you mean "{found[0]}"?'
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f'did you mean "{start}*"? It matches {", ".join(found[:_SHOWN])}{more}'


def shown(value: object) -> str:
    """A TOML value as a message shows it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
