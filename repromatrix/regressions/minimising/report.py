"""What a minimisation found: for a terminal, for an issue, and as the `--json` document."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from repromatrix.regressions.minimising.model import Item, Minimised, Smallest, Threshold, Tried
from repromatrix.report.compared import cell_hlo
from repromatrix.report.escape import clean, code, fence, paragraph, printable, prose
from repromatrix.report.fit import Section, fit, table, titled
from repromatrix.report.layout import duration, ending
from repromatrix.report.table import BOLD, GREEN, RED, YELLOW, paint
from repromatrix.results.codec import cell_object, finite, rate_object
from repromatrix.results.combine import clip
from repromatrix.results.rates import percent
from repromatrix.search.model import Verdict
from repromatrix.search.threshold import Boundary
from repromatrix.spec.model import Outcome, word

SCHEMA = 1
"""Of the document; raised when a reader of the old one would be misled."""

_KINDS = {
    "packages": ("package", "packages that differ"),
    "flags": ("flag", "XLA flags"),
    "env": ("variable", "variables"),
}
_TELLS = {"good": GREEN, "bad": RED}
_WIDE = 300
"""Characters of a reason, of a title, of a flag."""


def answer(found: Minimised) -> str:
    """In a word: `found`, `ambiguous`, `nothing` (nothing that was tried flips the verdict), or `interrupted`."""
    if found.interrupted:
        return "interrupted"
    if any(map(_ambiguous, found.parts)):
        return "ambiguous"
    return "found" if any(_found(part) for part in found.parts) else "nothing"


def exit_code(found: Minimised) -> int:
    """0 found, 1 nothing flips it or it is ambiguous, 130 interrupted."""
    return {"found": 0, "interrupted": 130}.get(answer(found), 1)


def text(found: Minimised, colour: bool = False, width: int = 0) -> str:
    """For a terminal.

    Args:
        colour: Whether to use ANSI colours.
        width: Columns to fit; 0 = those of the terminal, or 120 where there is none.
    """
    width = max(20, width or shutil.get_terminal_size((120, 24)).columns)

    def wrapped(sentence: str, indent: str = "  ") -> str:
        return textwrap.fill(clean(sentence), width, subsequent_indent=indent, break_long_words=False)

    blocks = [paint(wrapped(f"{found.cell}: {_failure(found)}"), BOLD, colour)]
    for part in found.parts:
        lines = [paint(wrapped(_sentence(part)), BOLD, colour), *map(wrapped, _doubts(part, found))]
        for headings, rows in (_needed(part), _path(part)):
            if rows:
                place = headings.index("verdict") if "verdict" in headings else -1
                shown = [[_cell(cell, colour and at == place) for at, cell in enumerate(row)] for row in rows]
                lines += ["", tabulate(shown, headings, tablefmt="simple", disable_numparse=True)]
        lines += [wrapped(line, "    ") for line in _reasons(part)]
        blocks.append("\n".join(lines))
    blocks += [wrapped(line) for line in (*_flaky(found), *(f"Hint: {hint}" for hint in found.hints))]
    blocks.append("\n".join([wrapped(_spent(found)), f"Again: {printable(found.command)}"]))
    return "\n\n".join(blocks)


def markdown(found: Minimised) -> str:
    """To paste into an issue: at most the 65,536 characters that GitHub takes."""
    sections = [
        Section((f"## {code(found.repro)}: what makes it fail", "", f"{code(found.cell)}: {code(found.failure)}"))
    ]
    for part in found.parts:
        said = [f"**{prose(_sentence(part))}**", *(f"- {paragraph(doubt)}" for doubt in _doubts(part, found))]
        sections.append(Section((f"#### {_title(part)}", "", *said)))
        headings, rows = _needed(part)
        if rows:
            sections.append(table(headings, [(1, list(map(prose, row))) for row in rows], "rows", 60))
        headings, rows = _path(part)
        made = table(headings, [(0, list(map(prose, row))) for row in rows], "tries", 40)
        why = [f"- {paragraph(clip(line, _WIDE))}" for line in _reasons(part)]
        if rows:
            head = (f"<details><summary>{len(rows)} variants were tried</summary>", "", *made.head)
            tail = (*(["", *why] if why else []), "", "</details>")
            # A boundary's rows are the answer, not the way to it.
            sections.append(made if isinstance(part, Threshold) else Section(head, made.lines, tail, "tries", 40))
    notes = [*_flaky(found), *found.hints]
    sections.append(titled("#### Notes", ((1, f"- {paragraph(note)}") for note in notes), "notes", 70))
    opening, closing = fence([found.command], "sh")
    sections.append(Section(("---", "", prose(_spent(found)), "", opening, printable(found.command), closing)))
    return fit([section for section in sections if section.head or section.lines])


def document(found: Minimised) -> dict[str, Any]:
    """All that is known, as one JSON object."""
    return {
        "schema": SCHEMA,
        "minimised": {
            "command": found.command,
            "answer": answer(found),
            "cell": found.cell,
            "repro": found.repro,
            "environment": found.environment,
            "target": found.target,
            "params": {name: finite(value) for name, value in found.params},
            "engine": found.engine,
            "outcome": found.outcome.value,
            "failure": found.failure,
            "rules": {
                "confidence": found.rules.confidence,
                "rate": found.rules.rate,
                "attempts": found.rules.most,
            },
            "parts": [_part(part) for part in found.parts],
            "rate": {"low": found.rate[0], "high": found.rate[1]},
            "hints": list(found.hints),
            "spent": {
                "total": found.spent.total,
                "running": found.spent.running,
                "waiting": found.spent.waiting,
            },
            "facts": dict(found.facts),
        },
    }


def _part(part: Smallest | Threshold) -> dict[str, Any]:
    said = {"what": part.what if isinstance(part, Smallest) else "threshold", "sentence": _sentence(part)}
    if isinstance(part, Threshold):
        return {
            **said,
            "param": part.param,
            "low": part.low,
            "high": part.high,
            "boundaries": [
                {
                    "below": one.below,
                    "above": one.above,
                    "fails": "above" if one.fails_above else "below",
                    "between": list(one.between),
                }
                for one in part.boundaries
            ],
            "rows": [{"value": value, **_tried(tried)} for value, tried in part.rows],
            "trouble": part.trouble,
        }
    return {
        **said,
        "good": part.good,
        "items": [{"name": item.name, "without": item.without, "with": item.with_it} for item in part.items],
        "needed": list(part.needed),
        "without": {name: _tried(tried) for name, tried in part.without.items()},
        "contradictions": list(part.contradictions),
        "path": [{"changed": list(tried.changed), **_tried(tried)} for tried in part.path],
        "trouble": part.trouble,
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {
        "verdict": tried.verdict.value,
        "why": tried.why,
        "attempted": tried.attempted,
        "seconds": tried.seconds,
        "rates": [rate_object(rate) for rate in tried.rates],
        "cell": {**cell_object(tried.result), "hlo": cell_hlo([tried.result])[0]},
    }


def _found(part: Smallest | Threshold) -> bool:
    return bool(part.needed if isinstance(part, Smallest) else part.boundaries)


def _ambiguous(part: Smallest | Threshold) -> bool:
    if isinstance(part, Smallest):
        return any(tried.verdict is Verdict.AMBIGUOUS for tried in part.without.values())
    sides = {value for one in part.boundaries for value in (one.below, one.above, *one.between)}
    rows = [tried for value, tried in part.rows if value in sides or not sides]
    return any(tried.verdict is Verdict.AMBIGUOUS for tried in rows)


def _title(part: Smallest | Threshold) -> str:
    return f"The parameter {code(part.param)}" if isinstance(part, Threshold) else _KINDS[part.what][1].capitalize()


def _sentence(part: Smallest | Threshold) -> str:
    """The answer in a sentence."""
    if isinstance(part, Threshold):
        return f"{part.param}: {_threshold(part)}"
    _, kinds = _KINDS[part.what]
    size = len(part.items)
    if part.trouble:
        return f"{part.what}: {part.trouble}, with no answer yet for the {size} {kinds}"
    if not part.needed:
        return f"{part.what}: it fails without any of the {size} {kinds}"
    names = [_item(part.what, item) for item in part.items if item.name in part.needed]
    where = f" in {part.good}" if part.good else ""
    if len(names) == 1:
        return f"{part.what}: {names[0]} alone makes it fail{where}, of {size} {kinds}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{part.what}: {listed} together make it fail{where}, of {size} {kinds}"


def _item(what: str, item: Item) -> str:
    """`scipy 1.12.0 -> 1.13.0`, `--xla_flag=1`, `NAME=value`."""
    if what == "flags":
        return clip(item.name, _WIDE)
    if what == "env" and not item.without:
        return f"{item.name}={clip(item.with_it, _WIDE)}"
    return f"{item.name} {_value(item.without)} -> {_value(item.with_it)}"


def _value(text: str) -> str:
    return clip(text, _WIDE) or "none"


def _threshold(part: Threshold) -> str:
    if part.trouble:
        return f"{part.trouble}, with no answer yet between {word(part.low)} and {word(part.high)}"
    if part.boundaries:
        return "; ".join(map(_boundary, part.boundaries))
    told = {tried.verdict for _, tried in part.rows} & {Verdict.GOOD, Verdict.BAD}
    if len(told) != 1:
        return f"none of the {len(part.rows)} values tried gave a verdict"
    where = f"of {len(part.rows)} values tried from {word(part.low)} to {word(part.high)}"
    return f"it fails at all {where} that gave a verdict" if Verdict.BAD in told else f"it fails at none {where}"


def _boundary(one: Boundary) -> str:
    below, above = word(one.below), word(one.above)
    exact = isinstance(one.below, int) and one.above - one.below == 1
    if exact:
        return (
            f"fails above {below}, at or below it does not"
            if one.fails_above
            else f"fails at or below {below}, above it does not"
        )
    bad, good = (above, below) if one.fails_above else (below, above)
    silent = f"; {len(one.between)} values tried between them gave no verdict" if one.between else ""
    return f"fails at {bad} and {'above' if one.fails_above else 'below'}, not at {good}{silent}"


def _doubts(part: Smallest | Threshold, found: Minimised) -> Iterator[str]:
    """What the reader must know of the answer."""
    if isinstance(part, Threshold):
        return
    for name, tried in part.without.items():
        if tried.verdict is Verdict.UNKNOWN:
            yield f"Whether {name} is needed is not known: without it {_told(tried)}."
        if tried.verdict is Verdict.AMBIGUOUS:
            yield (
                f"AMBIGUOUS without {name}: {found.rules.most} attempts do not tell at a confidence of"
                f" {percent(found.rules.confidence)}; --attempts allows more."
            )
    for sentence in part.contradictions:
        yield f"The mixture is one that metadata forbids: {sentence}."


def _told(tried: Tried) -> str:
    return clip(tried.why, _WIDE) or tried.result.outcome.value


def _needed(part: Smallest | Threshold) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(headings, rows) of what is needed, and what becomes of the rest without it."""
    if isinstance(part, Threshold) or not part.needed:
        return (), []
    items = {item.name: item for item in part.items}
    rows: list[tuple[str, ...]] = [
        (name, _value(items[name].without), _value(items[name].with_it), _mark(tried))
        for name, tried in part.without.items()
    ]
    if part.what == "flags":
        return ("flag", "without it"), [(name, mark) for name, _, _, mark in rows]
    return (_KINDS[part.what][0], "good", "failing", "without it"), rows


def _path(part: Smallest | Threshold) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(headings, rows) of what was tried: of a threshold by value, else in the order in which it was."""
    after = ("verdict", "ended", "attempts", "time")
    if isinstance(part, Threshold):
        return (part.param, *after), [(word(value), *_row(tried)) for value, tried in part.rows]
    size = len(part.items)
    changed = [
        f"all {size}" if len(tried.changed) == size else clip(", ".join(tried.changed), 60) or "none"
        for tried in part.path
    ]
    sizes = [str(len(tried.changed)) for tried in part.path]
    rows: list[tuple[str, ...]] = [
        (n, names, *_row(tried)) for n, names, tried in zip(sizes, changed, part.path, strict=True)
    ]
    what = {"packages": "as in the failing one", "flags": "given", "env": "set"}[part.what]
    return ("n", what, *after), rows


def _row(tried: Tried) -> tuple[str, str, str, str]:
    known = "known before" if tried.result.attempts else ""
    took = duration(tried.seconds) if tried.attempted else known
    return _mark(tried), ending(tried.result), _attempts(tried), took


def _mark(tried: Tried) -> str:
    """`good`, `bad`, `AMBIGUOUS`, `other failure`, or the outcome that says nothing."""
    if tried.verdict is Verdict.AMBIGUOUS:
        return "AMBIGUOUS"
    if tried.verdict is not Verdict.UNKNOWN:
        return tried.verdict.value
    return "other failure" if tried.result.outcome.failed else _no_verdict(tried.result.outcome)


def _no_verdict(outcome: Outcome) -> str:
    return "no verdict" if outcome is Outcome.OK else outcome.value


def _attempts(tried: Tried) -> str:
    rates = sorted(tried.rates, key=lambda rate: not rate.outcome.failed)
    if len(rates) < 2:
        return str(rates[0].of) if rates else ""
    return ", ".join(f"{rate.count} of {rate.of} {rate.outcome.value}" for rate in rates)


def _reasons(part: Smallest | Threshold) -> list[str]:
    """Why variants have no verdict, and which requirements they contradict; each reason once."""
    path = [tried for _, tried in part.rows] if isinstance(part, Threshold) else part.path
    named: dict[str, list[str]] = {}
    for place, tried in enumerate(path, 1):
        if tried.why:
            who = word(part.rows[place - 1][0]) if isinstance(part, Threshold) else f"try {place}"
            named.setdefault(tried.why, []).append(who)
    return [f"{', '.join(who)}: {clip(why, _WIDE)}" for why, who in named.items()]


def _failure(found: Minimised) -> str:
    """`error "py-exc ImportError: ..."`; the words alone where its signature is how it ended: `error 3`."""
    if not found.failure:  # interrupted before
        return "not seen to fail yet"
    shown, outcome = clip(found.failure, _WIDE), found.outcome.value
    return shown if shown.partition(" ")[0] == outcome else f'{outcome} "{shown}"'


def _flaky(found: Minimised) -> Sequence[str]:
    low, high = found.rate
    if low >= 1:
        return ()
    return (f"The failure comes and goes: in {percent(low)} to {percent(high)} of the attempts of what is bad.",)


def _spent(found: Minimised) -> str:
    tried = [
        one
        for part in found.parts
        for one in (part.path if isinstance(part, Smallest) else [tried for _, tried in part.rows])
    ]
    made = sum(one.attempted for one in tried)
    spent = found.spent
    return (
        f"{len(tried)} variants tried, {made} attempts made by this search, in {duration(spent.total)}:"
        f" {duration(spent.running)} running, {duration(spent.waiting)} waiting for environments."
    )


def _cell(text: str, coloured: bool) -> str:
    text = clean(text)
    return paint(text, _TELLS.get(text, YELLOW), coloured)
