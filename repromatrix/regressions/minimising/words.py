"""What a minimisation found, in sentences and rows; `report.py` makes a terminal's text or Markdown of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repromatrix.regressions.minimising.model import Item, Minimised, Smallest, Threshold, Tried
from repromatrix.regressions.told import attempts_spent, sure, time_spent
from repromatrix.report.layout import counted, duration, ending
from repromatrix.results.combine import clip
from repromatrix.results.rates import percent
from repromatrix.search.model import Verdict
from repromatrix.search.threshold import Boundary
from repromatrix.spec.model import Outcome, word

KINDS = {
    "packages": ("package", "packages that differ"),
    "flags": ("flag", "XLA flags"),
    "env": ("variable", "variables"),
}
_ONE = {"packages": "package that differs", "flags": "XLA flag", "env": "variable"}
TITLES = {"packages": "Packages that differ", "flags": "XLA flags", "env": "Variables"}
WIDE = 300
"""Characters of a reason, of a title, of a flag."""


def sentence(part: Smallest | Threshold) -> str:
    """The answer in a sentence."""
    if isinstance(part, Threshold):
        return f"{part.param}: {_threshold(part)}"
    size = len(part.items)
    kinds = _ONE[part.what] if size == 1 else KINDS[part.what][1]
    if part.trouble:
        return f"{part.what}: {part.trouble}, with no answer yet for the {size} {kinds}"
    if not part.needed:
        return f"{part.what}: it fails without any of the {size} {kinds}"
    names = [_item(part.what, item) for item in part.items if item.name in part.needed]
    where = f" in {part.good}" if part.good else ""
    certain = f" ({sure(min(part.confidence.values()))})" if part.confidence else ""
    if len(names) == 1:
        return f"{part.what}: {names[0]} alone makes it fail{where}, of {size} {kinds}{certain}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{part.what}: {listed} together make it fail{where}, of {size} {kinds}{certain}"


def _item(what: str, item: Item) -> str:
    """`scipy 1.12.0 -> 1.13.0`, `--xla_flag=1`, `NAME=value`."""
    if what == "flags":
        return clip(item.name, WIDE)
    if what == "env" and not item.without:
        return f"{item.name}={clip(item.with_it, WIDE)}"
    return f"{item.name} {_value(item.without)} -> {_value(item.with_it)}"


def _value(text: str) -> str:
    return clip(text, WIDE) or "none"


def _threshold(part: Threshold) -> str:
    if part.trouble:
        return f"{part.trouble}, with no answer yet between {word(part.low)} and {word(part.high)}"
    if part.boundaries:
        both = zip(part.boundaries, part.confidence, strict=True)
        return "; ".join(f"{_boundary(one)} ({sure(confidence)})" for one, confidence in both)
    told = {tried.verdict for _, tried in part.rows} & {Verdict.GOOD, Verdict.BAD}
    if len(told) != 1:
        return f"none of the {counted(len(part.rows), 'value')} tried gave a verdict"
    where = f"of {counted(len(part.rows), 'value')} tried from {word(part.low)} to {word(part.high)}"
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
    silent = f"; {counted(len(one.between), 'value')} tried between them gave no verdict" if one.between else ""
    return f"fails at {bad} and {'above' if one.fails_above else 'below'}, not at {good}{silent}"


def doubts(part: Smallest | Threshold, found: Minimised) -> Iterator[str]:
    """What the reader must know of the answer."""
    most = found.rules.most
    verb = "does" if most == 1 else "do"
    few = f"{counted(most, 'attempt')} {verb} not tell at a confidence of {percent(found.rules.confidence)}"
    if names := ambiguous(part):
        where = "at" if isinstance(part, Threshold) else "without"
        yield f"AMBIGUOUS {where} {', '.join(names)}: {few}; --attempts allows more."
    if isinstance(part, Threshold):
        return
    for name, tried in part.without.items():
        if tried.verdict is Verdict.UNKNOWN:
            yield f"Whether {name} is needed is not known: without it {_told(tried)}."
    for sentence in part.contradictions:
        yield f"The mixture is one that metadata forbids: {sentence}."


def ambiguous(part: Smallest | Threshold) -> tuple[str, ...]:
    """Needed items, or values, on which the answer rests and of which the attempts that are allowed do not tell."""
    if isinstance(part, Smallest):
        return tuple(name for name, tried in part.without.items() if tried.verdict is Verdict.AMBIGUOUS)
    sides = {value for one in part.boundaries for value in (one.below, one.above, *one.between)}
    rows = [(value, tried) for value, tried in part.rows if value in sides or not sides]
    return tuple(word(value) for value, tried in rows if tried.verdict is Verdict.AMBIGUOUS)


def _told(tried: Tried) -> str:
    return clip(tried.why, WIDE) or tried.result.outcome.value


def needed(part: Smallest | Threshold) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
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
    return (KINDS[part.what][0], "good", "failing", "without it"), rows


def path(part: Smallest | Threshold) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
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


def reasons(part: Smallest | Threshold) -> list[str]:
    """Why variants have no verdict, and which requirements they contradict; each reason once."""
    path = [tried for _, tried in part.rows] if isinstance(part, Threshold) else part.path
    named: dict[str, list[str]] = {}
    for place, tried in enumerate(path, 1):
        if tried.why:
            who = word(part.rows[place - 1][0]) if isinstance(part, Threshold) else f"try {place}"
            named.setdefault(tried.why, []).append(who)
    return [f"{', '.join(who)}: {clip(why, WIDE)}" for why, who in named.items()]


def failure(found: Minimised) -> str:
    """`error "py-exc ImportError: ..."`; the words alone where its signature is how it ended: `error 3`."""
    if not found.failure:  # interrupted before
        return "not seen to fail yet"
    shown, outcome = clip(found.failure, WIDE), found.outcome.value
    return shown if shown.partition(" ")[0] == outcome else f'{outcome} "{shown}"'


def flaky(found: Minimised) -> Sequence[str]:
    low, high = found.rate
    if low >= 1:
        return ()
    return (f"The failure comes and goes: in {percent(low)} to {percent(high)} of the attempts of what is bad.",)


def spent(found: Minimised) -> str:
    rows = (part.path if isinstance(part, Smallest) else [tried for _, tried in part.rows] for part in found.parts)
    tried = {one.result.id: one for row in rows for one in row}.values()  # the failing cell is in each part
    total = sum(len(one.result.attempts) for one in tried)
    made = sum(one.attempted for one in tried)
    return (
        f"{counted(len(tried), 'variant')} tried by {found.engine}, {attempts_spent(total, made)},"
        f" in {time_spent(found.spent)}."
    )
