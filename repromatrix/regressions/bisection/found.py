"""The edges of a search as facts: what changed between their two versions, and what speaks against them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from repromatrix.engines.loaded import WHEELS
from repromatrix.project import Project
from repromatrix.regressions.model import FoundEdge, Tested
from repromatrix.results.difference import PackageChange, package_changes
from repromatrix.results.model import AttemptResult
from repromatrix.search.model import Answer, Edge, Verdict
from repromatrix.share.issues.releases import Release, release_of, source_range

_LOADED = "loaded: "
"""How the note of `engines/loaded.py` begins, which goes on with `NAME VERSION, NAME VERSION`."""
_WHOLE = ("cudart", "nccl")
"""Of these one file is the whole library; cuBLAS and cuDNN have further ones, which may come from elsewhere."""
_NAMED = re.compile(rf"(?:^|, )({'|'.join(WHEELS)}) ")

Modules = tuple[str, ...]
"""Identity after optimisation of every module that a program compiled, sorted. Not their names: what 0.6.2 calls
`jit__lambda_` is `jit__lambda` in 0.7.0."""


def found_edges(project: Project, answer: Answer, tested: Mapping[int, Tested]) -> tuple[FoundEdge, ...]:
    """The edges of `answer`, oldest first.

    Args:
        project: Whose store may hold the wheels, in which commits stand.
        tested: By place; those that `answer` speaks of.
    """
    return tuple(_found(project, edge, tested) for edge in answer.edges)


def _found(project: Project, edge: Edge, tested: Mapping[int, Tested]) -> FoundEdge:
    older, newer = tested[edge.before], tested[edge.after]
    begins = edge.becomes is Verdict.BAD
    changes: tuple[PackageChange, ...] = ()
    if older.lock is not None and newer.lock is not None:
        changes = package_changes(older.lock, newer.lock)
    releases = _release(older, project), _release(newer, project)
    return FoundEdge(
        good=older if begins else newer,
        bad=newer if begins else older,
        between=tuple(tested[place] for place in edge.between if place in tested),
        begins=begins,
        confidence=edge.confidence,
        changes=changes,
        releases=releases,
        source=source_range(*releases),
        suspect="; ".join(_against(older, newer, changes)),
    )


def _release(tested: Tested, project: Project) -> Release:
    return release_of(tested.lock, project) if tested.lock is not None else Release((), "")


def _against(older: Tested, newer: Tested, changes: tuple[PackageChange, ...]) -> Iterator[str]:
    """Why the two cannot differ. Only what is certain: HLO that was not collected proves nothing."""
    if older.lock is not None and newer.lock is not None and older.lock.hash == newer.lock.hash:
        yield (
            f"{older.name} and {newer.name} have the same lock, wheel for wheel, so that only chance, the machine or"
            " the time can tell them apart: run both again, more often"
        )
    elif same := _unused(older, newer, changes):
        yield f"only {', '.join(change.name for change in changes)} changed, and both had the same in memory ({same})"
    mine, other = compiled(older), compiled(newer)
    if mine is not None and mine == other:
        many = f"all {len(mine)} modules" if len(mine) > 1 else "the one module"
        yield (
            f"the optimised HLO of {many} is the same in {older.name} and {newer.name}, so that XLA's passes did the"
            " same in both: look below and beside them, at code generation, the runtime and the libraries, or at chance"
        )


def compiled(tested: Tested) -> Modules | None:
    """What the compiler made of the program; None where that was not seen as a whole, or differs between attempts."""
    attempts = tested.result.attempts if tested.result is not None else ()
    seen = {modules for attempt in attempts if (modules := _modules(attempt))}
    return seen.pop() if len(seen) == 1 else None


def _modules(attempt: AttemptResult) -> Modules:
    """Empty where a module is missing, as after a compilation that failed, or where nothing was collected."""
    hlo = attempt.hlo
    if hlo is None or not hlo.whole or not all(module.after for module in hlo.modules):
        return ()
    return tuple(sorted(module.after for module in hlo.modules))


def _unused(older: Tested, newer: Tested, changes: tuple[PackageChange, ...]) -> str:
    """What stood in memory in place of all that changed, `nccl 2.26.2 of the host`; empty where that is not certain.

    The versions of CUDA's libraries alone are looked at while attempts run, and only on GPUs. One that is loaded from
    elsewhere (the host, a preloaded copy) is the same whatever its wheel is.
    """
    told = [_libraries(each) for each in (older, newer)]
    said = []
    for change in changes:
        names = [name for name in _WHOLE if re.fullmatch(WHEELS[name], change.name)]
        versions = {each.get(name, "") for each in told for name in names}
        if change.kind == "other file" or len(versions) != 1 or "" in versions:
            return ""
        said.append(f"{names[0]} {versions.pop()}")
    return ", ".join(said)


def _libraries(tested: Tested) -> dict[str, str]:
    """Library -> version, of those that had the same in every attempt; empty where one attempt was not looked at."""
    attempts = tested.result.attempts if tested.result is not None else ()
    notes = [next((note for note in attempt.notes if note.startswith(_LOADED)), "") for attempt in attempts]
    found = [_parsed(note.removeprefix(_LOADED)) for note in notes]
    if not found:
        return {}
    return {name: version for name, version in found[0].items() if all(each.get(name) == version for each in found)}


def _parsed(listing: str) -> dict[str, str]:
    """Of `cublas 12.9.1.4 of the host, nccl as libnccl.so.2, of the system`, where a version may have a comma."""
    parts = _NAMED.split(listing)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
