"""Mixtures of two environments: the wheels of one, with some of those that differ taken from the other."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from graphlib import CycleError, TopologicalSorter

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import UserError
from repromatrix.results.difference import PackageChange, package_changes
from repromatrix.spec.model import Environment

Needs = Mapping[str, tuple[Requirement, ...]]
"""By a wheel's sha256: what its metadata requires (`Requires-Dist`); absent where it was not read."""

_NOT_PACKAGES = ("cuda", "python", "nccl")
"""Axes whose values are no version of a package of that name."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """Two environments and what lies between them.

    Attributes:
        good, bad: Their locks.
        changes: Wheels that differ, by name; `first` is the good environment's.
        groups: Their names in the order in which they are halved; those of one group are moved together first.
        needs: What the wheels of both require.
    """

    good: Lock
    bad: Lock
    changes: tuple[PackageChange, ...]
    groups: tuple[tuple[str, ...], ...]
    needs: Needs

    def mixture(self, moved: Iterable[str]) -> Lock:
        """The good environment with the wheels called `moved` as the bad one has them.

        With nothing and with everything moved it is one of the two themselves, and so shares their results.
        """
        names = frozenset(moved)
        taken = [change for change in self.changes if change.name in names]
        if not taken:
            return self.good
        if len(taken) == len(self.changes):
            return self.bad
        wheels = {wheel.name: wheel for wheel in self.good.wheels}
        for change in taken:
            wheels.pop(change.name, None)
            if change.second is not None:
                wheels[change.name] = change.second
        mixed = tuple(wheels[name] for name in sorted(wheels))
        return replace(self.good, environment=_environment(self.good.environment, taken), wheels=mixed)

    def contradictions(self, lock: Lock) -> tuple[str, ...]:
        """What wheels of `lock` require and it does not hold, but for what the two environments lack themselves.

        One sentence each: `flax 0.8.2 requires jax>=0.4.19, and 0.4.16 is there`.
        """
        usual = {text for own in (self.good, self.bad) for text in unmet(own, self.needs)}
        return tuple(text for text in unmet(lock, self.needs) if text not in usual)


def mixing(good: Lock, bad: Lock, store: WheelStore) -> Mixing:
    """Hold two environments against each other.

    Raises:
        UserError: They are for different Pythons or kinds of CUDA, or do not differ.
    """
    for what, first, second in (
        ("Python", good.python, bad.python),
        ("platform", good.platform, bad.platform),
        ("CUDA", good.environment.cuda, bad.environment.cuda),
    ):
        if first != second:
            raise UserError(
                f"{good.id} and {bad.id} cannot be mixed: their {what} differs, {first} and {second}",
                hint="name a good environment that differs in packages alone",
            )
    changes = package_changes(good, bad)
    if not changes:
        raise UserError(f"{good.id} and {bad.id} have the same wheels", hint="name another good environment")
    needs = {}
    for wheel in (*good.wheels, *bad.wheels):
        if (found := requirements(wheel, store)) is not None:
            needs[wheel.sha256] = found
    return Mixing(good, bad, changes, groups(changes, needs), needs)


def requirements(wheel: Wheel, store: WheelStore) -> tuple[Requirement, ...] | None:
    """What the metadata of `wheel` requires; None where the store has not the wheel, or it cannot be read."""
    if (path := store.path(wheel)) is None:
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            text = archive.read(min(inside, key=len)).decode("utf-8", "replace") if inside else ""
    except (OSError, zipfile.BadZipFile):  # it is hashed when it is unpacked: the run will tell
        return None
    found = []
    for line in HeaderParser().parsestr(text).get_all("Requires-Dist", []):
        try:
            found.append(Requirement(line))
        except InvalidRequirement:  # old wheels have some that no tool of today reads
            continue
    return tuple(found)


def unmet(lock: Lock, needs: Needs) -> tuple[str, ...]:
    """What wheels of `lock` require and it does not hold, a sentence each; extras are not asked for."""
    machine = lock.platform.partition("-")[0]
    facts = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{lock.python}.0",
        "python_version": lock.python,
        "sys_platform": "linux",
    }
    found = []
    for wheel in lock.wheels:
        for need in needs.get(wheel.sha256, ()):
            if need.marker is not None and not need.marker.evaluate(facts):
                continue
            version = lock.version(canonicalize_name(need.name))
            asked = f"{wheel.name} {wheel.version} requires {need.name}{need.specifier}"
            if version is None:
                found.append(f"{asked}, and it is not there")
            elif not need.specifier.contains(version, prereleases=True):
                found.append(f"{asked}, and {version} is there")
    return tuple(found)


def groups(changes: Sequence[PackageChange], needs: Needs) -> tuple[tuple[str, ...], ...]:
    """The names of what changed: those bound by an exact requirement together, and what is required before the rest.

    jax[cuda12] and its plugin are of one version, and the plugin's pjrt too: apart they mostly cannot be imported. A
    newer package mostly wants newer dependencies, so that a prefix of this order is more often one that works.
    """
    both = {change.name: [wheel for wheel in (change.first, change.second) if wheel] for change in changes}
    group = {name: {name} for name in both}
    required: dict[str, set[str]] = {name: set() for name in both}
    for name, wheels in both.items():
        for need in (need for wheel in wheels for need in needs.get(wheel.sha256, ())):
            other = canonicalize_name(need.name)
            if other not in both or other == name:
                continue
            required[name].add(other)
            if any(part.operator in ("==", "===") and "*" not in part.version for part in need.specifier):
                joined = group[name] | group[other]
                for member in joined:
                    group[member] = joined
    order = _dependencies_first(required)
    return tuple(tuple(sorted(group[name])) for name in order if name == min(group[name], key=order.index))


def _dependencies_first(required: Mapping[str, set[str]]) -> list[str]:
    """Names, what is required before what requires it; by name where they require each other."""
    graph: TopologicalSorter[str] = TopologicalSorter({name: sorted(required[name]) for name in sorted(required)})
    try:
        return list(graph.static_order())
    except CycleError:
        return sorted(required)


def _environment(good: Environment, taken: Sequence[PackageChange]) -> Environment:
    """What the mixture is called: the good environment, with what was moved as axes and among its packages.

    By `===`, which no file of a user asks for: else a mixture could have the name of an environment of the matrix.
    """
    versions = {change.name: change.second.version if change.second else "none" for change in taken}
    axes = tuple(
        (name, value if name in _NOT_PACKAGES else versions.get(canonicalize_name(name), value))
        for name, value in good.axes
    )
    kept = [text for text in good.packages if canonicalize_name(Requirement(text).name) not in versions]
    named = [f"{name}==={version}" for name, version in versions.items()]
    return replace(good, axes=axes, packages=tuple(sorted({*kept, *named})))
