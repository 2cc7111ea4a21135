"""Conditions on numbers that an attempt printed or found: `72`, `>= 20`, `> 0, <= 0.5`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from operator import eq, ge, gt, le, lt, ne

_TESTS: dict[str, Callable[[float, float], bool]] = {
    "": eq,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_PART = r" *(==|!=|<=|>=|<|>)? *([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?) *"

PATTERN = f"^{_PART}(,{_PART})*$"
"""A condition, as a JSON Schema says it."""


def holds(condition: str, value: float) -> bool:
    """Whether `value` meets every part of `condition`; a number alone is met by that number, exactly.

    Raises:
        ValueError: `condition` is none (`condition_error` tells before).
    """
    return all(_TESTS[operator](value, number) for operator, number in _parts(condition))


def condition_error(condition: str) -> str:
    """Why `condition` is nothing that `holds` understands; empty if it does."""
    try:
        fits = all(math.isfinite(number) for _, number in _parts(condition))
    except ValueError:
        fits = False
    return "" if fits else 'expected a number, or comparisons such as ">= 20" or "> 0, < 1"'


def _parts(condition: str) -> Iterator[tuple[str, float]]:
    for part in condition.split(","):
        found = re.fullmatch(_PART, part)
        if not found:
            raise ValueError(f"{condition!r} is no condition on a number")
        yield found[1] or "", float(found[2])
