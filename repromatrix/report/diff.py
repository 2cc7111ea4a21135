"""How two environments differ, for a terminal, for an issue, and as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from repromatrix.envs.model import Wheel
from repromatrix.evidence.pass_diff import PassChange
from repromatrix.report.escape import code, fence, printable, prose
from repromatrix.report.fit import Section, fit, table
from repromatrix.results.difference import CellChanges, Difference, FlagChanges, ModuleChanges, PackageChange
from repromatrix.results.model import CellResult

SCHEMA = 1

MOST_PASSES = 60
"""Lines on passes per module. From 0.10.1 to 0.10.2 there are 21, from 0.8.0 to 0.10.2 about twice that."""

MOST_LINES = 60
"""Lines of an HLO difference in a terminal; four times as many in Markdown. `--json` has all of it."""

WIDEST = 240
"""Characters of a line of HLO; those of custom calls have thousands."""

_SAME = {True: "the same", False: "different", None: "not known"}


@dataclass(slots=True)
class _Part:
    """A heading with sentences, rows of a table, and a block of HLO."""

    title: str
    says: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    block: list[str] = field(default_factory=list)


def text(difference: Difference) -> str:
    """For a terminal."""
    lines = [f"{difference.first.id} -> {difference.second.id}"]
    for part in _parts(difference, MOST_LINES):
        widths = [max(map(len, column)) for column in zip(*part.rows, strict=True)]
        rows = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in part.rows)
        lines += ["", part.title, *(f"  {sentence}" for sentence in part.says)]
        lines += [*(f"  {row.rstrip()}" for row in rows), *(f"    {line}" for line in part.block)]
    return printable("\n".join(lines))


def markdown(difference: Difference) -> str:
    """To paste into an issue: never more than GitHub takes, lines of HLO go first."""
    page = [Section((f"# {code(difference.first.id)} and {code(difference.second.id)}",))]
    for part in _parts(difference, 4 * MOST_LINES):
        page.append(Section((f"## {prose(part.title)}",)))
        page += [Section((prose(sentence),)) for sentence in part.says]
        if part.rows:
            rows = [(0, [prose(cell) for cell in row]) for row in part.rows]
            page.append(table(part.columns, rows, "lines of this table", rank=50))
        if part.block:
            begin, end = fence(part.block, "diff")
            block = tuple((0, printable(line)) for line in part.block)
            page.append(Section((begin,), block, (end,), "lines of HLO", rank=10))
    return fit(page)


def document(difference: Difference, command: str) -> dict[str, Any]:
    """All of it as one JSON object."""
    flags = difference.flags
    return {
        "schema": SCHEMA,
        "command": command,
        "environments": [
            {"id": lock.id, "lock": lock.hash, "as_of": lock.as_of, "cutoff": lock.cutoff}
            for lock in (difference.first, difference.second)
        ],
        "packages": [change_object(change) for change in difference.packages],
        "flags": None if flags is None else _flags_object(flags),
        "flags_missing": difference.flags_missing,
        "cells": [_cell_object(cell) for cell in difference.cells],
    }


def _parts(difference: Difference, most: int) -> Iterator[_Part]:
    yield _packages(difference)
    yield _flags(difference)
    told: dict[tuple[PassChange, ...], str] = {}
    for cell in difference.cells:
        yield from _cell(cell, told, most)


def _packages(difference: Difference) -> _Part:
    counts = Counter(each.kind for each in difference.packages)
    said = [f"{counts[kind]} {kind}" for kind in ("changed", "added", "removed", "other file") if counts[kind]]
    return _Part(
        f"packages: {', '.join([*said, f'{difference.same_packages} the same'])}",
        columns=("change", "package", difference.first.id, "", difference.second.id),
        rows=[
            (
                each.kind,
                each.name,
                _version(each.first),
                "->" if each.first and each.second else "",
                _version(each.second),
            )
            for each in difference.packages
        ],
    )


def _version(wheel: Wheel | None) -> str:
    if wheel is None:
        return ""
    return f"{wheel.version} ({wheel.uploaded[:10]})" if wheel.uploaded else wheel.version


def _flags(difference: Difference) -> _Part:
    flags = difference.flags
    if flags is None:
        return _Part(f"flags: {difference.flags_missing}")
    part = _Part(f"flags that XLA accepts: {flags.accepted[0]} -> {flags.accepted[1]}", columns=("accepted", "flag"))
    for lock, names in ((difference.first, flags.only_first), (difference.second, flags.only_second)):
        part.rows += [(f"in {lock.id} alone", f"--{name}") for name in names]
    part.says += [
        f"other default: --{name}={left or '(empty)'} -> {right or '(empty)'}" for name, left, right in flags.defaults
    ]
    return part


def _cell(cell: CellChanges, told: dict[tuple[PassChange, ...], str], most: int) -> Iterator[_Part]:
    title = f"{cell.first.repro} {cell.first.column}"
    part = _Part(f"{title}: {cell.first.outcome.value} -> {cell.second.outcome.value}")
    part.says += [f"{each.environment}: {why}" for each in (cell.first, cell.second) if (why := _why(each))]
    part.says += [f"the HLO cannot be compared: {why}" for why in cell.missing]
    part.says += [f"note: {note}" for note in cell.notes]
    if cell.missing:
        yield part
        return
    # What an earlier module showed of the passes is not shown again for one whose program is the same in the end.
    known, worth = set(told), []
    for module in cell.modules:
        if not _alike(module) or (module.passes and module.passes not in known):
            worth.append(module)
            known.add(module.passes or ())
    if quiet := [module for module in cell.modules if module not in worth]:
        part.says.append(f"the same before and after optimisation: {_names(module.name for module in quiet)}")
        sources = dict.fromkeys(told[module.passes] for module in quiet if module.passes in told)
        part.says += [f"their passes differ as for {source}" for source in sources]
    for environment, names in ((cell.first.environment, cell.only_first), (cell.second.environment, cell.only_second)):
        if names:
            part.says.append(f"compiled in {environment} alone: {_names(names)}")
    if not cell.modules:
        part.says.append("no module was compiled in both")
    yield part
    for module in worth:
        yield from _module(title, module, told, most)


def _alike(module: ModuleChanges) -> bool:
    return module.same_before is True and module.same_after is True


def _why(cell: CellResult) -> str:
    title = f'"{cell.signature.title}"' if cell.signature is not None else ""
    return "; ".join(filter(None, (title, cell.reason)))


def _module(title: str, module: ModuleChanges, told: dict[tuple[PassChange, ...], str], most: int) -> Iterator[_Part]:
    name = f"{module.name} of {title}"
    same = f"HLO before optimisation {_SAME[module.same_before]}, after optimisation {_SAME[module.same_after]}"
    passes = _Part(f"{name}: {same}")
    for which, ended in zip(("first", "second"), module.ended, strict=True):
        if ended:
            passes.says.append(f"in the {which} the compilation ended in or after the pass {ended}")
    if module.passes is None:
        passes.says.append("passes: no log of both")
    elif not module.passes:
        passes.says.append("passes: the same ran in the same order")
    elif module.passes in told:
        passes.says.append(f"passes: as for {told[module.passes]}")
    else:
        told[module.passes] = name
        counts = Counter(change.kind for change in module.passes)
        passes.says.append("passes: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
        # A compilation that failed did not come to its later passes: that they did not run says nothing of a version.
        hidden = {kind for kind, ended in zip(("added", "removed"), module.ended, strict=True) if ended}
        passes.says += [
            f"those {kind} are not shown: the compilation that failed did not come to all" for kind in hidden
        ]
        shown = [change for change in module.passes if change.kind not in hidden]
        passes.columns = ("change", "pass")
        passes.rows = [(change.kind, change.words) for change in shown[:MOST_PASSES]]
        if len(shown) > MOST_PASSES:
            passes.says.append(f"{len(shown) - MOST_PASSES} more are in --json")
    yield passes
    if module.first is not None:
        block = list(_shown(module.first.diff.splitlines(), most))
        yield _Part(module.first.words, block=block)


def _shown(lines: Sequence[str], most: int) -> Iterator[str]:
    """A unified difference without its file names, cut in both directions."""
    body = lines[2:]  # the two lines of file names
    for line in body[:most]:
        yield line if len(line) <= WIDEST else f"{line[:WIDEST]} ... ({len(line) - WIDEST} characters more)"
    if len(body) > most:
        yield f"... {len(body) - most} lines more, in --json"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(listed[:8]) + more


def change_object(change: PackageChange) -> dict[str, Any]:
    """A project whose wheel differs, as `--json` has it."""
    return {
        "name": change.name,
        "kind": change.kind,
        "first": _wheel(change.first),
        "second": _wheel(change.second),
    }


def _wheel(wheel: Wheel | None) -> dict[str, str] | None:
    if wheel is None:
        return None
    return {"version": wheel.version, "file": wheel.filename, "sha256": wheel.sha256, "uploaded": wheel.uploaded}


def _flags_object(flags: FlagChanges) -> dict[str, Any]:
    return {
        "accepted": list(flags.accepted),
        "only_first": list(flags.only_first),
        "only_second": list(flags.only_second),
        "defaults": {name: [left, right] for name, left, right in flags.defaults},
    }


def _cell_object(cell: CellChanges) -> dict[str, Any]:
    return {
        "cells": [
            {"id": each.id, "outcome": each.outcome.value, "reason": each.reason, "evidence": each.evidence}
            for each in (cell.first, cell.second)
        ],
        "missing": list(cell.missing),
        "notes": list(cell.notes),
        "only_first": list(cell.only_first),
        "only_second": list(cell.only_second),
        "modules": [_module_object(module) for module in cell.modules],
    }


def _module_object(module: ModuleChanges) -> dict[str, Any]:
    first = module.first
    return {
        "name": module.name,
        "same_before": module.same_before,
        "same_after": module.same_after,
        "ended": list(module.ended),
        "passes": None if module.passes is None else [_pass_object(change) for change in module.passes],
        "first_difference": first
        and {
            "words": first.words,
            "place": first.place,
            "alike": first.alike,
            "first": first.first,
            "second": first.second,
            "only_first": list(first.only_first),
            "only_second": list(first.only_second),
            "same_end": first.same_end,
            "diff": first.diff,
        },
    }


def _pass_object(change: PassChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "name": change.name,
        "pipeline": change.pipeline,
        "where": change.where,
        "side": change.side,
        "crossed": list(change.crossed),
        "words": change.words,
    }
