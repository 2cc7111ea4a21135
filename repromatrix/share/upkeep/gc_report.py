"""What `invoke gc` says: what goes, what stays and why, as text and as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repromatrix.share.upkeep.gc import Part, Plan, staying
from repromatrix.share.upkeep.spare_images import Image


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A look at the store, and what was done.

    Attributes:
        checkouts: Whose locks and results count.
        unknown: See `References.unknown`.
        plan: Without a cap: all that could go.
        capped: Whether there is a cap.
        removed: Whether the plan was carried out.
        images: Those that nothing refers to; None where no engine told.
        dropped: Those of them that were removed.
    """

    store: Path
    checkouts: tuple[Path, ...]
    unknown: tuple[str, ...]
    parts: tuple[Part, ...]
    plan: Plan
    capped: bool
    removed: bool
    images: tuple[Image, ...] | None
    dropped: tuple[Image, ...] = ()


def amount(size: int) -> str:
    """`20.3 GB`, `512 MB`, `12 kB`."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} B"


def document(seen: Upkeep) -> dict[str, Any]:
    """For `--json`; sizes in bytes."""
    plan = seen.plan
    return {
        "schema": 1,
        "store": str(seen.store),
        "checkouts": [str(root) for root in seen.checkouts],
        "unknown": list(seen.unknown),
        "cap": plan.cap if seen.capped else None,
        "before": plan.before,
        "after": plan.after,
        "over": plan.over if seen.capped else 0,
        "removed": seen.removed,
        "goes": [{"kind": part.kind, "name": part.name, "bytes": part.size} for part in plan.parts],
        "stays": [
            {"kind": kind, "parts": count, "bytes": size, "why": why}
            for (kind, why), (count, size) in sorted(staying(seen.parts, plan).items())
        ],
        "images": None
        if seen.images is None
        else [
            {
                "id": image.id,
                "names": list(image.names),
                "bytes": image.size,
                "lock": image.lock,
                "removed": image in seen.dropped,
            }
            for image in seen.images
        ],
    }


def text(seen: Upkeep) -> str:
    """For people."""
    plan = seen.plan
    lines = [f"{seen.store}: {amount(plan.before)}, used by", *(f"  {root}" for root in seen.checkouts)]
    lines.append("Another checkout counts once a command like `invoke matrix` has run in it. Archives are copies.")
    lines += [f"{trouble}; so no wheel goes that nothing names" for trouble in seen.unknown]
    going: dict[tuple[str, str], tuple[int, int]] = {}
    for part in plan.parts:
        count, size = going.get((part.kind, ""), (0, 0))
        going[part.kind, ""] = count + 1, size + part.size
    stays = {
        (kind, why or "may go under a smaller cap"): found for (kind, why), found in staying(seen.parts, plan).items()
    }
    goes = "went" if seen.removed else "would go" if seen.capped else "could go"
    lines += _table(goes, going) + _table("stays", stays)
    lines += _images(seen)
    if not seen.capped:
        least = f"with --keep at least {amount(plan.after)} stays"
        return "\n".join([*lines, f"nothing was removed; {least}"])
    now = "is" if seen.removed else "would be"
    lines.append(f"the store {now} {amount(plan.after)}, {amount(plan.before - plan.after)} less")
    if plan.over:
        lines.append(f"that is {amount(plan.over)} over the {amount(plan.cap)} asked for: what stays must stay")
    return "\n".join(lines)


def _table(title: str, rows: Mapping[tuple[str, str], tuple[int, int]]) -> list[str]:
    shown = [(kind, why, count, size) for (kind, why), (count, size) in rows.items() if size]
    shown.sort(key=lambda row: (-row[3], row[0]))
    return [f"{title}:" if shown else f"{title}: nothing"] + [
        f"  {kind:9}{count:6}  {amount(size):>9}  {why}".rstrip() for kind, why, count, size in shown
    ]


def _images(seen: Upkeep) -> Iterable[str]:
    if seen.images is None:
        return ["no Docker daemon answers: its images were not looked at"]
    if not seen.images:
        return []
    lines = ["images of locks that nothing names any more (the engine's sizes, shared layers counted in each):"]
    for image in seen.images:
        name = ", ".join(image.names) or image.id[7:19]
        lines.append(f"  {name}  {amount(image.size)}  {'went' if image in seen.dropped else 'is there'}")
    return lines
