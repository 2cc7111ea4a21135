"""Which versions of an axis there are between two ends, and what the words for the ends mean."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from packaging.version import InvalidVersion, Version

from repromatrix.envs.lockfile import locked_versions
from repromatrix.envs.releases import built_on, releases, remembered
from repromatrix.errors import InfraError, UserError
from repromatrix.project import Project
from repromatrix.report.layout import counted
from repromatrix.spec.model import Matrix
from repromatrix.spec.words import nearest

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NAMED = 12
"""Versions that a note names."""


@dataclass(frozen=True, slots=True)
class History:
    """The versions of an axis between two ends.

    Attributes:
        names: Oldest first, both ends included.
        numbers: Of each, as in `Version`.
        meant, notes: As in `Series`.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    meant: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


class OneVersion(UserError):
    """Both ends of a range are one version."""


def days(low: str, high: str) -> History:
    """Every day from `low` to `high`, in either order, numbered by `date.toordinal`.

    Raises:
        UserError: One is no day or lies in the future.
        OneVersion: Both are the same.
    """
    first, last = sorted((past(low), past(high)))
    if first == last:
        raise _same(low, high)
    numbers = range(first.toordinal(), last.toordinal() + 1)
    return History(tuple(date.fromordinal(each).isoformat() for each in numbers), tuple(numbers))


def past(text: str) -> date:
    """The day that `text` means.

    Raises:
        UserError: It is none, or lies in the future.
    """
    day = _day(text)
    if day > datetime.now(UTC).date():
        raise UserError(f"{day} lies in the future", hint="what the index will have then is not known")
    return day


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text if _DAY.fullmatch(text) else "")
    except ValueError:
        what = f"{text!r} is no day" if text else "both ends of the range must be said"
        raise UserError(what, hint="write it as 2026-07-01") from None


def _same(low: str, high: str) -> OneVersion:
    said = f"{low} and {high} are" if low != high else f"both ends are {low}:"
    return OneVersion(f"{said} one version, and between one and itself nothing changes", hint="name two")


def released(
    package: str,
    project: Project,
    matrix: Matrix,
    low: str,
    high: str,
    cancel: threading.Event,
    *,
    offline: bool = False,
    nightly: bool = False,
) -> History:
    """The releases of `package` from `low` to `high`, in either order and both included.

    Args:
        project: Where the index's answers are kept, and the locks.
        low, high: Versions, or days: the newest release by the end of that day, or the nightly build nearest to it.
            Empty for jax: the oldest and the newest of the matrix.
        offline: As the index was last seen, and those that are locked: an archive brings locks, and no answers.
        nightly: Nightly builds too, of the index that `require_nightly` asks for.

    Raises:
        UserError: No such version.
        OneVersion: Both ends are one.
        InfraError: The index does not answer, or cannot be asked and what it has is not known.
    """
    typed = low, high
    if package == "jax":
        of_matrix = sorted(dict(matrix.axes)["jax"], key=Version)
        low, high = low or of_matrix[0], high or of_matrix[-1]
    locked = locked_versions(project.locks, package) if offline else {}

    def there(day: str = "", *, nightly: bool = False) -> tuple[str, ...]:
        own = {each for each, uploaded in locked.items() if bool(built_on(each)) == nightly}
        own = {each for each in own if not day or "" < locked[each] <= day}
        try:
            of_index = releases(package, matrix, project.store, cancel, day=day, nightly=nightly, offline=offline)
        except InfraError:
            if not own:
                raise
            of_index = ()
        return tuple(sorted({*own, *of_index}, key=Version))

    def kept(*, nightly: bool = False) -> set[str]:
        return set(() if offline else remembered(package, matrix, project.store, nightly=nightly) or ())

    before, before_builds = kept(), kept(nightly=True) if nightly else set[str]()
    known, builds = there(), there(nightly=True) if nightly else ()
    meant: dict[str, str] = {}
    for end in (low, high):
        if not _DAY.fullmatch(end):
            meant[end] = _spelled(package, end, known, builds)
        elif nightly:
            meant[end] = _nearest_build(_day(end), builds)
        else:
            meant[end] = _newest(package, there(_day(end).isoformat()), end)
    found = between(known, builds, low, high, meant)
    first, last = Version(found.names[0]), Version(found.names[-1])
    # A release that is gone changes the number of all newer ones, a build of none: builds go as a matter of course.
    gone = {each for each in before.difference(known) if Version(each) <= last}
    gone |= {each for each in before_builds.difference(builds) if first <= Version(each) <= last}
    notes = _gone(package, gone)
    of_matrix_toml = [end for said, end in zip(typed, (low, high), strict=True) if not said]
    if last in map(Version, of_matrix_toml) and not offline:
        notes += _newer(package, found.names[-1], known)
    return replace(found, notes=notes)


def _gone(package: str, versions: Iterable[str]) -> tuple[str, ...]:
    if not versions:
        return ()
    names = sorted(versions, key=Version)
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"the index does not list {package} {told} any more, as it did when it was last asked;"
        " a search may try other versions than one before",
    )


def _newer(package: str, newest: str, known: Sequence[str]) -> tuple[str, ...]:
    """How to take in what is newer than the end that matrix.toml gave."""
    finals = [each for each in known if Version(each) > Version(newest) and not Version(each).is_prerelease]
    if not finals:
        return ()
    many = counted(len(finals), "newer release")
    return (f"the range ends with {package} {newest} of matrix.toml; --newest {finals[-1]} takes in {many}",)


def require_nightly(matrix: Matrix, axis: str) -> None:
    """Refuse a search among nightly builds that can have none; worth asking before a long search that ends in one.

    Raises:
        UserError: The axis is not jax, or matrix.toml names no index of them.
    """
    if axis != "jax":
        raise UserError(f"nightly builds are searched along jax, not along {axis}", hint="leave out --nightly")
    if "nightly" not in dict(matrix.indexes):
        hint = 'add nightly = "https://..." under [indexes]'
        raise UserError("no index of nightly builds is named", where=str(matrix.path), hint=hint)


def between(
    known: Sequence[str], builds: Sequence[str], low: str, high: str, meant: Mapping[str, str] | None = None
) -> History:
    """The versions from `low` to `high`, in either order and both included.

    A release's number is its place among all; a nightly build's is its day, as the index drops the old ones.
    Pre-releases count only where an end is one.

    Args:
        known: All versions, oldest first.
        builds: Nightly builds, oldest first.
        meant: Version by what was typed, for ends that are not typed as the index has them.

    Raises:
        OneVersion: Both ends are one.
    """
    meant = meant or {}
    first, last = sorted((meant.get(low, low), meant.get(high, high)), key=Version)
    if Version(first) == Version(last):
        raise _same(low, high)
    early = any(Version(end).is_prerelease and end not in builds for end in (first, last))
    numbers = {version: place for place, version in enumerate(known) if early or not Version(version).is_prerelease}
    numbers |= {version: date.fromisoformat(built_on(version)).toordinal() for version in builds}
    inside = {each for each in numbers if Version(first) <= Version(each) <= Version(last)}
    names = tuple(sorted(inside, key=Version))
    typed = tuple((asked, version) for asked, version in meant.items() if asked != version)
    return History(names, tuple(numbers[each] for each in names), typed)


def _spelled(package: str, text: str, known: Sequence[str], builds: Sequence[str]) -> str:
    """The version that `text` means, as the index spells it."""
    if not text:
        raise UserError(
            "both ends of the range must be said", hint=f"the index has {package} {known[0]} to {known[-1]}"
        )
    everything = sorted({*known, *builds}, key=Version)
    try:
        wanted = Version(text)
    except InvalidVersion:
        advice = nearest(text, everything) or f"a version like {known[-1]}, or a day like 2026-07-01"
        raise UserError(f"{text!r} is no version of {package}", hint=advice) from None
    for version in everything:
        if Version(version) == wanted:
            return version
    if wanted.is_devrelease and not builds:
        raise UserError(f"{package} {text} is a nightly build", hint="add --nightly")
    raise UserError(f"the index has no {package} {text}", hint=f"the nearest are {around(wanted, everything)}")


def around(wanted: Version, names: Sequence[str]) -> str:
    """The two names on either side of `wanted`; `names` are oldest first."""
    place = bisect_left(names, wanted, key=Version)
    return ", ".join(names[max(0, place - 2) : place + 2])


def _nearest_build(day: date, builds: Sequence[str]) -> str:
    """The build of `day`, else the nearest, the older of two equally near; of one day's builds the newest."""
    if not builds:
        hint = "it must serve versions like 0.11.0.dev20260701"
        raise UserError("the index called nightly has no nightly build", hint=hint)
    days = {version: date.fromisoformat(built_on(version)) for version in builds}
    return min(reversed(builds), key=lambda version: (abs(days[version] - day), days[version]))


def _newest(package: str, by: Sequence[str], day: str) -> str:
    finals = [version for version in by if not Version(version).is_prerelease]
    if not finals:
        raise UserError(f"no {package} was released by {day}", hint="name a later day, or a version")
    return finals[-1]
