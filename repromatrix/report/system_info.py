"""The environments that failed, in the form of `jax.print_environment_info()`, and the machines: from what is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from repromatrix.report.escape import fence, printable, prose
from repromatrix.report.fit import Section
from repromatrix.report.layout import newest_first
from repromatrix.results.combine import clip
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.spec.script import HOSTED

_MACHINE = (("cpu", "cpu"), ("cpus", "usable CPUs"))
_GPUS = (
    ("driver", "Driver Version"),
    ("driver's CUDA", "CUDA Version"),
    ("gpus", "GPUs of the host"),
    ("GPU compute capability", "compute capability"),
    ("GPU links", "links"),
    ("MIG", "MIG"),
    ("persistence", "persistence"),
)
"""Facts of a machine by the names of `results/key.py`, and what the block calls them: as nvidia-smi does its two."""
MACHINE = frozenset({"kernel", "isa", "memory", "GPU access", *(name for name, _ in (*_MACHINE, *_GPUS))})
"""All names of facts on a machine; a result that has some has all that are known, and a page says them once."""
_SAID = ("built with ", "loaded: ")
"""How the notes of `engines/built.py` and `engines/loaded.py` begin."""
_CUDA = re.compile(r"nvidia-.*|jax-cuda\d+-(plugin|pjrt)|.* of the host")
"""Facts on CUDA's libraries."""
_WIDE = 400


def system_info(cells: Sequence[CellResult], run: RunInfo) -> Section:
    """A block, folded, for each environment and engine that failed, of the first of its cells that did."""
    failed: dict[tuple[str, str], CellResult] = {}
    for cell in cells:
        if cell.outcome.failed and cell.attempts:
            failed.setdefault((cell.environment, cell.engine), cell)
    if not failed:
        return Section()
    head = (
        "## System info of what failed",
        "",
        "In the form of `jax.print_environment_info()`, from what was kept with the results. Never kept: the machine's"
        " name, its variables, and the table of `nvidia-smi`.",
        "",
    )
    order = newest_first(failed.values())
    ranked = sorted(failed.values(), key=lambda cell: (order.index(cell.environment), cell.engine))
    return Section(head, tuple((1, _folded(cell, run)) for cell in ranked), what="environments that failed", rank=35)


def _folded(cell: CellResult, run: RunInfo) -> str:
    host = dict(run.facts) if made_in(cell, run) else {}
    lines = [printable(clip(line, _WIDE)).replace("\n", " ") for line in block(cell, host)]
    opening, closing = fence(lines)
    place = prose(" ".join([cell.environment, clip(cell.column, 200), cell.engine]))
    return "\n".join([f"<details><summary>{place}</summary>", "", opening, *lines, closing, "", "</details>"])


def block(cell: CellResult, host: Mapping[str, str]) -> tuple[str, ...]:
    """What is known of the environment of `cell`, a line each, as `jax.print_environment_info()` puts it.

    Args:
        cell: One that was attempted.
        host: Facts of the machine that it ran on (`results/key.py`); empty where that is not known.
    """
    known = {**host, **dict(cell.facts)}
    on_gpu = cell.target.partition(":")[0] == "gpu"
    version = re.search(r"CPython (\S+)", cell.base)
    lines = [
        *(f"{name + ':':7} {known[name]}" for name in ("jax", "jaxlib", "numpy") if name in known),
        f"python: {version[1] if version else dict(cell.axes)['python']}",
        f"device info: {_devices(cell, known)}",
        f"process_count: {_processes(cell)}",
        f"platform: Linux {known.get('kernel', '')}".rstrip(),
    ]
    machine = (*_MACHINE, *(_GPUS if on_gpu else ()))
    lines += [f"{said}: {known[name]}" for name, said in machine if name in known]
    lines += [f"{name}: {value}" for name, value in cell.facts if _CUDA.fullmatch(name)]
    lines += dict.fromkeys(note for attempt in cell.attempts for note in attempt.notes if note.startswith(_SAID))
    missing = [said for name, said in (("kernel", "kernel"), *machine) if name not in known]
    return (*lines, *([f"not kept of its machine: {', '.join(missing)}"] if missing else []))


def made_in(cell: CellResult, run: RunInfo) -> bool:
    """Whether `cell` has an attempt of this very run, so that the run's facts are of the machine that it ran on."""
    began = datetime.fromisoformat(run.started)
    started = (attempt.started for attempt in cell.attempts if attempt.started)
    return bool(run.attempted) and any(datetime.fromisoformat(time) >= began for time in started)


def hosts(cells: Sequence[CellResult], run: RunInfo) -> tuple[str, ...]:
    """Sentences on the machines that `cells` ran on, as far as it is known which those were.

    Results that were known before the run that writes may be restored from another machine, so that the run's facts
    are theirs only if they say so themselves.
    """
    attempted = [cell for cell in cells if cell.attempts]
    kept = Counter(tuple(fact for fact in cell.facts if fact[0] in MACHINE) for cell in attempted)
    if kept and () not in kept:
        many = len(kept) > 1
        return tuple(f"Host{_of(count) if many else ''}: {_told(facts)}" for facts, count in kept.items())
    if not run.facts:
        return ()
    own = {made_in(cell, run) for cell in attempted}
    if own == {True}:
        return (f"Host: {_told(run.facts)}",)
    return (f"{'Host of what this run attempted:' if True in own else 'Written on a host with'} {_told(run.facts)}",)


def _of(count: int) -> str:
    return f" of {count} cell{'s' * (count != 1)}"


def _told(facts: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{prose(name)} {prose(clip(value, 200))}" for name, value in facts) + "."


def _processes(cell: CellResult) -> int:
    return max([1, *(len(attempt.ranks) for attempt in cell.attempts)])


def _devices(cell: CellResult, known: Mapping[str, str]) -> str:
    """`NVIDIA H200-2, 2 local devices`; of several processes it is not known how they share the devices."""
    kind, _, count = cell.target.partition(":")
    if kind not in HOSTED:
        return f"none: compiled for {cell.target}, which is described"
    if _processes(cell) > 1:
        return "of each process not kept"
    model = "cpu" if kind == "cpu" else known.get("gpus", "GPU").partition(", ")[0]
    return f"{model}-{count or 1}, {count or 1} local devices"
