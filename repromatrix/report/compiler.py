"""What a page says of the compiler's work: the HLO before and after, the passes, and what was only compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial

from repromatrix.report.attempts import interest
from repromatrix.report.compared import Column, Compared, columns
from repromatrix.report.escape import code, prose
from repromatrix.report.fit import Section, table
from repromatrix.report.layout import contradicts, letters
from repromatrix.results.combine import clip
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Repro

_COLUMNS = 12
"""Columns that get a table; of more, those with the worst news."""
_FEW = 5
"""Passes that stand in a table as they are; longer lists stand folded below it."""
_ASKED = 6
"""Passes that get a column of their own."""
_NOTES = 6
_NONE = "–"

_LETTERS = (
    "**before** is what JAX gives to XLA, **after** is what XLA makes of it. One letter is one program, whatever its "
    "names, ids, layouts and metadata are, and whatever is in constants of more than ten elements; A is the "
    "reference's, – was not seen. The same before and another after: "
    "the compiler works differently. The same after and another result: look at libraries and the runtime. "
    "[What is compared, and what text cannot say](../docs/evidence.md#the-compilers-work)."
)
_EXPLAINED = (
    "Marked *explained*: the HLO is of a second run of the same command with dumps on, made after the verdict, which "
    "is that of the first run without."
)


def what_the_compiler_did(repro: Repro, cells: Sequence[CellResult]) -> tuple[Section, ...]:
    """A table for each target and parameters of which HLO was collected; nothing where none was."""
    found = columns(cells)
    if not found:
        return ()
    worst = sorted(range(len(found)), key=lambda place: -max(interest(one.cell) for one in found[place].cells))
    shown = [found[place] for place in sorted(worst[:_COLUMNS])]
    explained = any(one.hlo.source == "explain" for column in shown for one in column.cells)
    head = ["## What the compiler did", "", _LETTERS, *(["", _EXPLAINED] if explained else [])]
    if more := len(found) - len(shown):
        head += ["", f"{more} more columns are left out; `--json` has everything."]
    globs = _asked(repro)
    parts = [part for column in shown for part in (_table(column, globs), _lists(column))]
    return (Section(tuple(head)), *(part for part in parts if part.lines))


def compiled_only(cells: Sequence[CellResult]) -> Section:
    """What a cell that was compiled for GPUs which are not there can say, and what it cannot."""
    targets = dict.fromkeys(cell.target for cell in cells if cell.attempts and deviceless(cell.target))
    if not targets:
        return Section()
    text = (
        f"**Compiled, not run** ({', '.join(map(code, targets))}): each version's CUDA plugin compiled the program for "
        "a description of the GPU, on a machine without one. Nothing ran, so wrong results, hangs and failures at run "
        "time are not seen. Nothing was autotuned unless results of autotuning are given: kernels and fusions may "
        "differ from those on the device. Compiling ahead of time takes another path than `jax.jit` does, and may "
        "leave out what that would do. So an `ok` here does not prove that it works on the device. "
        "[What can be seen this way](../docs/deviceless.md)."
    )
    return Section((text,))


def deviceless(target: str) -> bool:
    """Whether cells of `target` are compiled for devices that are only described."""
    return target.partition(":")[0] not in ("cpu", "gpu", "wheels")


def _asked(repro: Repro) -> tuple[str, ...]:
    """The globs of passes that the repro's claims and witness speak of."""
    globs = [glob for expect in repro.expect for glob in (*expect.changed, *expect.unchanged)]
    return tuple(dict.fromkeys([*globs, *(repro.witness.passes if repro.witness else ())]))


def _named(column: Column, globs: Iterable[str]) -> list[str]:
    """The passes that ran anywhere in a column and match a glob; a glob that matches none stands for itself."""
    seen = dict.fromkeys(name for one in column.cells for name in (*one.hlo.ran, *_changed(one)))
    named: dict[str, None] = {}
    for glob in globs:
        named |= dict.fromkeys([name for name in seen if fnmatchcase(name, glob)] or [glob])
    return list(named)[:_ASKED]


def _table(column: Column, globs: Sequence[str]) -> Section:
    modules = [one.module for one in column.cells if one.module is not None]
    if column.reference is not None and column.reference.module is not None:
        modules.insert(0, column.reference.module)
    before, after = _letters(module.before for module in modules), _letters(module.after for module in modules)
    fields: list[tuple[str, Callable[[Compared], str]]] = [
        ("environment", _environment(column)),
        *((code(clip(name, 100)), partial(_did, name)) for name in _named(column, globs)),
        ("passes that changed it", lambda one: _passes(one, column.reference)),
        ("last pass before the failure", lambda one: code(clip(one.hlo.last, 200)) if _failed(one) else ""),
        ("before", lambda one: before[one.module.before] if one.module else _NONE),
        ("after", lambda one: after[one.module.after] if one.module else _NONE),
    ]
    if not any(_failed(one) and one.hlo.last for one in column.cells):
        fields = [(title, value) for title, value in fields if not title.startswith("last pass")]
    rows = [(1 + 2 * contradicts(one.cell), [value(one) for _, value in fields]) for one in column.cells]
    made = table([title for title, _ in fields], rows, "rows on the compiler's work", 45)
    head = (f"### {code(clip(column.name, 200))}", "", _compared(column), "", *made.head)
    notes = _notes(column)
    return Section(head, made.lines, ("", *notes) if notes else (), made.what, made.rank)


def _letters(identities: Iterable[str]) -> dict[str, str]:
    """A letter for each identity: A is the first."""
    known = dict.fromkeys(identity for identity in identities if identity)
    return {"": _NONE} | {identity: letters(place).upper() for place, identity in enumerate(known)}


def _compared(column: Column) -> str:
    """Which module is compared with that of which cell."""
    text = "No module was compiled."
    if column.reference is not None:
        cell = column.reference.cell
        ok = cell.outcome.value == "ok"
        why = "the newest that is ok" if ok else "the newest with HLO, since none that is ok has any"
        name = code(clip(column.module, 200)) or "without a name"
        text = f"Compared: module {name}, the largest in the reference, {code(cell.environment)} ({why})."
    if column.without:
        text += f" Of {column.without} attempted cell{'s' * (column.without != 1)} no HLO was collected."
    return text


def _environment(column: Column) -> Callable[[Compared], str]:
    several = len({one.cell.engine for one in column.cells}) > 1

    def value(one: Compared) -> str:
        engine = f" {prose(one.cell.engine)}" if several else ""
        explained = " *explained*" if one.hlo.source == "explain" else ""
        return f"{code(one.cell.environment)}{engine}{explained}"

    return value


def _failed(one: Compared) -> bool:
    return one.cell.outcome.failed


def _changed(one: Compared) -> set[str]:
    """The passes that changed any of its modules."""
    return {name for module in one.hlo.modules for name in module.changed}


def _did(name: str, one: Compared) -> str:
    """Whether a pass ran and whether it changed any module: two things that the dumps alone do not tell apart."""
    if name in _changed(one):
        return "**changed a module**"
    if one.hlo.level != "passes":
        idle = "what it changed was not collected"
    else:
        idle = "changed nothing" if one.hlo.whole else "no change was seen, but not all was collected"
    if name in one.hlo.ran:
        return f"ran, {idle}"
    if not one.hlo.ran:
        return f"{idle}; no log of what ran"
    return "did not run" if one.hlo.whole else "was not seen to run, but not all was collected"


def _passes(one: Compared, reference: Compared | None) -> str:
    if one.hlo.level != "passes":
        return "not collected"
    if one.module is None:
        return _NONE
    names = one.module.changed
    if not names:
        return "none" if one.hlo.whole else "none seen, but not all was collected"
    if len(names) <= _FEW:
        return _codes(names)
    others = reference.module.changed if reference and reference.module and reference is not one else ()
    if names == others:
        return f"the same {len(names)} as in the reference"
    words = f"{len(names)} passes"
    if others:
        more = [name for name in names if name not in others]
        # One that failed half way lacks all that would have come.
        whole = one.hlo.whole and not _failed(one)
        less = [name for name in others if name not in names] if whole else []
        words += "".join(
            f"; {where}: {_codes(found[:3])}" + (f" and {len(found) - 3} more" if len(found) > 3 else "")
            for where, found in (("not in the reference", more), ("only in the reference", less))
            if found
        )
        if not more and not less and whole:
            words += ", those of the reference in another order"
    return words


def _lists(column: Column) -> Section:
    """The passes that changed the module, in order, where they are too many for the table; equal lists once."""
    found: dict[tuple[str, ...], list[Compared]] = {}
    for one in column.cells:
        if one.module is not None and len(one.module.changed) > _FEW:
            found.setdefault(one.module.changed, []).append(one)
    place = _environment(column)
    lines = [
        (max(interest(one.cell) for one in same), f"- {', '.join(map(place, same))}: {_codes(names)}")
        for names, same in found.items()
    ]
    head = ("<details><summary>Passes that changed it, in order</summary>", "")
    return Section(head, tuple(lines), ("", "</details>"), "lists of passes", 15)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(code(clip(name, 120)) for name in names)


def _notes(column: Column) -> list[str]:
    """Each note once, with the cells it belongs to."""
    found: dict[str, list[str]] = {}
    for one in column.cells:
        for note in one.hlo.notes:
            found.setdefault(note, []).append(code(one.cell.environment))
    lines = []
    for note, where in list(found.items())[:_NOTES]:
        all_of = len(where) == len(column.cells) > 1
        named = where[:4] + ([f"{len(where) - 4} more"] if len(where) > 4 else [])
        lines.append(f"- {prose(clip(note, 300))}: {'all of these cells' if all_of else ', '.join(named)}")
    if more := len(found) - len(lines):
        lines.append(f"- {more} more notes are in `--json`")
    return lines
