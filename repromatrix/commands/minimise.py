"""`invoke minimise`: the smallest difference that flips the verdict."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from repromatrix.commands.common import command, count, pairs, uses_store
from repromatrix.commands.searching import Places, Sure, page_name
from repromatrix.errors import UserError
from repromatrix.plan import Request
from repromatrix.project import find_project

if TYPE_CHECKING:
    from repromatrix.search.threshold import Number

_DIGITS = 18
"""Of a whole number: what a script can hold in 64 bits."""


@command
@uses_store
def minimise(
    request: Request,
    sure: Sure,
    params: tuple[str, ...],
    *,
    cell: str,
    good: str,
    what: str,
    jobs: str,
    markdown: str,
    json: str,
) -> int:
    from repromatrix.regressions.minimising import report
    from repromatrix.regressions.minimising.document import document, exit_code
    from repromatrix.regressions.minimising.minimise import minimise as search
    from repromatrix.regressions.minimising.model import Wanted
    from repromatrix.ui.progress import listener

    values, ranges = _params(params)
    wanted = Wanted(cell, good, _what(what), ranges)
    asked = replace(request, jobs=count("jobs", jobs), params=pairs(values))
    rules, places = sure.rules(), Places(markdown, json)
    places.check()
    project = find_project()
    with listener() as ear:
        found = search(project, asked, wanted, rules, ear, threading.Event())
    name = "" if exit_code(found) else page_name("minimise", found.repro, found.target, found.params)
    places.publish(
        *(project, name, report.markdown(found)),
        text=lambda colour: report.text(found, colour=colour),
        document=lambda: document(found),
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return exit_code(found)


def _what(text: str) -> tuple[str, ...]:
    """`packages,env` as names.

    Raises:
        UserError: One is unknown.
    """
    from repromatrix.regressions.minimising.model import WHAT
    from repromatrix.spec.words import nearest

    names = tuple(filter(None, map(str.strip, text.split(","))))
    for name in names:
        if name not in WHAT:
            hint = nearest(name, WHAT) or f"there are: {', '.join(WHAT)}"
            raise UserError(f"--what {name!r} is nothing that can be minimised", hint=hint)
    return names


def _params(params: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, Number, Number], ...]]:
    """(parameters with a value, those with a range).

    Raises:
        UserError: A range is none.
    """
    values, ranges = [], {}
    for param in params:
        name, _, text = param.partition("=")
        if (ends := re.fullmatch(r"([+-]?[\d.]*\d(?:e[+-]?\d+)?)\.\.(\S+)", text, re.ASCII | re.IGNORECASE)) is None:
            values.append(param)
            continue
        low, high = _number(param, ends[1]), _number(param, ends[2])
        if not low < high:
            raise UserError(f"--param {param!r}: the first number must be the smaller one")
        ranges[name] = (name, low, high)
    return tuple(values), tuple(ranges.values())


def _number(param: str, text: str) -> Number:
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        if len(text.lstrip("+-0")) > _DIGITS:
            raise UserError(
                f"--param {param!r}: {text} is too large", hint=f"whole numbers have {_DIGITS} digits at most"
            )
        return int(text)
    real = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", text, re.ASCII | re.IGNORECASE)
    if real and isfinite(value := float(text)):
        return value
    raise UserError(f"--param {param!r}: {text!r} is no number", hint="for example --param size=1..4096")
