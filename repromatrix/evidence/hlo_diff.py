"""Where the compiler's ways part: the first pass after which a module differs between two environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from repromatrix.evidence.hlo import Change, Hlo, Module, parse_name
from repromatrix.evidence.hlo_text import diff, identity
from repromatrix.evidence.pass_diff import common, pass_key

Texts = tuple[Callable[[str], str | None], Callable[[str], str | None]]
"""For each of two environments: the text of a kept file, or None where it was not kept."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where one module first differs.

    Attributes:
        module: Its name.
        place: `before` (the two programs differ before any pass), `pass`, `after` (only the final texts differ), or
            `schedule` (only the order in the final texts differs).
        alike: `pipeline: pass` of the last dump in which both are the same; empty where there is none.
        first, second: The dump of each environment in which they differ: `pipeline: pass`; empty without one.
        only_first, only_second: Passes that changed the module between `alike` and there in one environment alone.
        same_end: After optimisation both are the same again.
        diff: Unified diff of the canonical texts there; empty where the texts were not kept.
    """

    module: str
    place: str
    alike: str = ""
    first: str = ""
    second: str = ""
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    same_end: bool = False
    diff: str = ""

    @property
    def words(self) -> str:
        """One sentence."""
        if self.place == "before":
            return f"{self.module} differs before any pass: the programs were traced differently"
        if self.place == "schedule":
            return f"{self.module} differs after optimisation in the order of its schedule alone"
        if self.place == "after":
            return f"{self.module} differs after optimisation; no dump of a pass tells where it began"
        culprits = [
            f"{name} in the {which} alone"
            for which, names in (("first", self.only_first), ("second", self.only_second))
            for name in names[:1]
        ]
        if not culprits:
            culprits = [self.first if self.first == self.second else f"{self.first} / {self.second}"]
        since = f"; the same until after {self.alike}" if self.alike else ""
        end = "; the same again after optimisation" if self.same_end else ""
        return f"{self.module} first differs after {' and '.join(culprits)}{since}{end}"


def first_difference(a: Hlo, b: Hlo, texts: Texts) -> tuple[FirstDifference, ...]:
    """For each module that both have and that differs, where it begins, in the order of `a`.

    Dumps are matched by pipeline and pass, in order (the longest common subsequence), since a pass that changed
    nothing leaves none; identities decide. A module of one environment alone says nothing here: compare the names.

    Args:
        texts: To show the difference, and to tell whether it is one of the schedule alone.
    """
    others = {module.name: module for module in b.modules}
    found = (_module(one, others[one.name], texts) for one in a.modules if one.name in others)
    return tuple(one for one in found if one is not None)


def _module(a: Module, b: Module, texts: Texts) -> FirstDifference | None:
    same_end = bool(a.after) and a.after == b.after

    def shown(first: str | None, second: str | None) -> str:
        left, right = texts[0](first) if first else None, texts[1](second) if second else None
        return "" if left is None or right is None else diff(left, right)

    if a.before and b.before and a.before != b.before:
        there = shown(_file(a, "before"), _file(b, "before"))
        return FirstDifference(a.name, "before", same_end=same_end, diff=there)
    pairs = common([_key(one) for one in a.changes], [_key(one) for one in b.changes])
    last = (-1, -1)
    for left, right in pairs:
        first, second = a.changes[left], b.changes[right]
        if first.identity == second.identity:
            last = left, right
            continue
        only_first = _effective(a, last[0], left, {pair[0] for pair in pairs})
        only_second = _effective(b, last[1], right, {pair[1] for pair in pairs})
        alike = _title(a.changes[last[0]]) if last[0] >= 0 else ""
        return FirstDifference(
            *(a.name, "pass", alike, _title(first), _title(second), only_first, only_second),
            same_end=same_end,
            diff=shown(first.file, second.file),
        )
    if a.after and b.after and a.after != b.after:
        alike = _title(a.changes[last[0]]) if last[0] >= 0 else ""
        files = _file(a, "after"), _file(b, "after")
        return FirstDifference(a.name, _final(files, texts), alike, diff=shown(*files))
    return None


def _final(files: tuple[str | None, str | None], texts: Texts) -> str:
    """`schedule` where the final texts are the same without their schedules, else `after`."""
    left, right = (text(name) if name else None for name, text in zip(files, texts, strict=True))
    if left is None or right is None:
        return "after"
    left, right = (text.replace(", is_scheduled=true", "", 1) for text in (left, right))
    return "schedule" if identity(left) == identity(right) else "after"


def _key(change: Change) -> str:
    return f"{pass_key(change.pipeline)}: {pass_key(change.after)}"


def _title(change: Change) -> str:
    return f"{change.pipeline}: {change.after}"


def _effective(module: Module, begin: int, end: int, matched: set[int]) -> tuple[str, ...]:
    """Passes between two dumps that only this environment has and that gave the module another identity."""
    titles = []
    before = module.changes[begin].identity if begin >= 0 else module.before
    for place in range(begin + 1, end):
        change = module.changes[place]
        if place not in matched and change.identity != before and change.after != "pipeline-start":
            titles.append(_title(change))
        before = change.identity
    return tuple(titles)


def _file(module: Module, kind: str) -> str | None:
    for name in module.files:
        dump = parse_name(name)
        if dump is not None and dump.kind == kind and not dump.proto:
            return name
    return None
