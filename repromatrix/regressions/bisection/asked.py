"""What a search was asked for, made definite: its range, what is said of the ends, what `bad` means, the width."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from repromatrix.axes.model import Series
from repromatrix.axes.versions import place
from repromatrix.engines.choose import count_gpus
from repromatrix.errors import UserError
from repromatrix.plan import Request, gpus_wanted
from repromatrix.regressions.failure import Failure, by_metric
from repromatrix.regressions.model import Wanted
from repromatrix.search.model import Verdict
from repromatrix.spec.model import Cell, Matrix

Said = Mapping[int, Verdict]
"""What the ends are said to be, by place."""


def failure_said(wanted: Wanted) -> Failure | None:
    """What `bad` means, as far as it was said.

    Raises:
        UserError: It is said twice, or not understood.
    """
    if wanted.signature and wanted.metric:
        raise UserError("--signature and --metric both say what is bad", hint="give one of them")
    if wanted.signature:
        return Failure(glob=wanted.signature)
    if not wanted.metric:
        return None
    found = by_metric(wanted.metric)
    if found.condition:
        return found
    if not (wanted.good and wanted.bad):
        raise UserError(
            f"--metric {found.metric} alone compares with a good and a bad version, and both are to be named",
            hint=f"give --good and --bad, or say what is bad: --metric '{found.metric}>1.5'",
        )
    return None


def ends(wanted: Wanted) -> tuple[str, str]:
    """Both ends, as typed; which one is older is for `series` to say where nothing else tells.

    Raises:
        UserError: There are more than two, or they speak of the same end.
    """
    if wanted.find not in ("regression", "fix", "any"):
        raise UserError(f"--find {wanted.find!r} is none of regression, fix, any")
    given = [name for name in ("good", "bad", "oldest", "newest") if getattr(wanted, name)]
    if len(given) > 2:
        raise UserError(
            f"the range has two ends, and {len(given)} are given: {', '.join(f'--{name}' for name in given)}"
        )
    if wanted.good and wanted.bad:
        return wanted.good, wanted.bad
    low, high = wanted.oldest, wanted.newest
    if one := wanted.good or wanted.bad:
        is_newer = bool(wanted.bad) != (wanted.find == "fix")
        return (low, one) if low or (is_newer and not high) else (one, high)
    return low, high


def check_nightly(wanted: Wanted, matrix: Matrix) -> None:
    """Refuse `--nightly` before the search among the releases where it cannot follow.

    Raises:
        UserError: There is no index of nightly builds, or they are not along this axis.
    """
    if wanted.nightly and wanted.axis != "jax":
        raise UserError(f"nightly builds are searched along jax, not along {wanted.axis}", hint="leave out --nightly")
    if wanted.nightly and "nightly" not in dict(matrix.indexes):
        where, hint = str(matrix.path), 'add nightly = "https://..." under [indexes]'
        raise UserError("no index of nightly builds is named", where=where, hint=hint)


def claims(wanted: Wanted, line: Series) -> Said:
    """What is said of the ends.

    Raises:
        UserError: They are not in the order of what is to be found.
    """
    said = {
        place(line, name): verdict for name, verdict in ((wanted.good, Verdict.GOOD), (wanted.bad, Verdict.BAD)) if name
    }
    if len(said) == 2 and wanted.find != "any" and wanted.find != _kind(said[0]):
        raise UserError(
            f"{line.versions[0].name} is older and said to be {said[0].value}, so this is no {wanted.find}",
            hint=f"--find {_kind(said[0])}, or leave it out",
        )
    return said


def turned(wanted: Wanted, line: Series) -> tuple[str, ...]:
    """That an end is the other one than it is called."""
    last = len(line.versions) - 1
    ends = ("oldest", wanted.oldest, 0), ("newest", wanted.newest, last)
    if all(not end or place(line, end) == at for _, end, at in ends):
        return ()
    told = " and ".join(f"--{name} {end}" for name, end, at in ends if end and place(line, end) != at)
    names = [version.name for version in line.versions]
    return (f"{told}: taken the other way round, from {names[0]} to {names[-1]}",)


def claimed(line: Series) -> frozenset[int]:
    """Places on both sides of each change of what the repro itself claims: the likeliest places of a change."""
    claims = [version.cell.expect for version in line.versions]
    changes = [place for place, (older, newer) in enumerate(pairwise(claims), 1) if older != newer]
    return frozenset(place for change in changes for place in (change - 1, change))


def _kind(older: Verdict) -> str:
    """What a change is called after which the verdict is no longer `older`."""
    return "regression" if older is Verdict.GOOD else "fix"


def width(request: Request, matrix: Matrix, cell: Cell) -> int:
    """Versions to be tried at once."""
    jobs = request.jobs or matrix.run.jobs or 1
    at_once = jobs // min(jobs, cell.repro.cpus or 1)
    if gpus := gpus_wanted(cell.target):
        at_once = min(at_once, count_gpus() // gpus)
    return max(1, at_once)
