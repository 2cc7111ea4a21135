"""How two environments differ, as data: what is installed, which flags it takes, what its compiler does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repromatrix.envs.model import Lock, Wheel
from repromatrix.evidence.hlo import Hlo, Module, Ran
from repromatrix.evidence.hlo_diff import FirstDifference, Texts, first_difference
from repromatrix.evidence.pass_diff import PassChange, pipeline_diff
from repromatrix.evidence.passes import ModulePasses
from repromatrix.evidence.probe import Probe
from repromatrix.results.model import CellResult


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A project whose wheel differs; None on the side that has none of it."""

    name: str
    first: Wheel | None
    second: Wheel | None

    @property
    def kind(self) -> str:
        """`added`, `removed`, `changed`, or `other file`: the same version in another wheel."""
        if self.first is None:
            return "added"
        if self.second is None:
            return "removed"
        return "changed" if self.first.version != self.second.version else "other file"


@dataclass(frozen=True, slots=True)
class FlagChanges:
    """How the flags differ that XLA accepts.

    Attributes:
        accepted: How many each environment accepts.
        only_first, only_second: Names that one alone accepts.
        defaults: (name, default in the first, default in the second) where both tell it and they differ. From 0.7.2 on
            XLA tells only the first 15 000 characters of its list.
    """

    accepted: tuple[int, int]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    defaults: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleChanges:
    """What the two compilers made of one module.

    Attributes:
        name: The same in both.
        same_before, same_after: Whether its HLO is the same before and after optimisation; None where it was not seen
            in both, as after a compilation that failed.
        passes: Passes that ran in one alone or in another place; None where one of both has no log of them.
        first: Where the HLO first differs; None where no dump differs.
        ended: Per environment the pass that its failed compilation did not come beyond; empty where it was finished.
    """

    name: str
    same_before: bool | None
    same_after: bool | None
    passes: tuple[PassChange, ...] | None
    first: FirstDifference | None
    ended: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class CellChanges:
    """One repro with its parameters and target, run in both environments.

    Attributes:
        modules: Those that both compiled, in the order of the first.
        only_first, only_second: Names of modules that one alone compiled.
        missing: Why the HLO cannot be compared; empty where it was.
        notes: What is incomplete in the evidence, with the environment's id.
    """

    first: CellResult
    second: CellResult
    modules: tuple[ModuleChanges, ...] = ()
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that `invoke diff` shows.

    Attributes:
        flags: None where they are not known of both.
        flags_missing: Why not; empty where they are.
    """

    first: Lock
    second: Lock
    packages: tuple[PackageChange, ...]
    flags: FlagChanges | None = None
    flags_missing: str = ""
    cells: tuple[CellChanges, ...] = ()

    @property
    def same_packages(self) -> int:
        """Wheels that both have."""
        return len({wheel.sha256 for wheel in self.first.wheels} & {wheel.sha256 for wheel in self.second.wheels})


def package_changes(first: Lock, second: Lock) -> tuple[PackageChange, ...]:
    """The projects whose wheels differ, by name."""
    left, right = ({wheel.name: wheel for wheel in lock.wheels} for lock in (first, second))
    names = sorted({*left, *right})
    pairs = ((name, left.get(name), right.get(name)) for name in names)
    return tuple(PackageChange(name, a, b) for name, a, b in pairs if a is None or b is None or a.sha256 != b.sha256)


def flag_changes(first: Probe, second: Probe) -> FlagChanges:
    """How the accepted flags differ; both must have been asked for all."""
    left, right = ({name: default for name, default, _ in probe.known} for probe in (first, second))
    typed = [{name for name, _, kind in probe.known if kind} for probe in (first, second)]
    told = sorted(typed[0] & typed[1])
    return FlagChanges(
        (len(left), len(right)),
        tuple(sorted({*left} - {*right})),
        tuple(sorted({*right} - {*left})),
        tuple((name, left[name], right[name]) for name in told if left[name] != right[name]),
    )


def module_changes(
    first: Hlo, second: Hlo, texts: Texts
) -> tuple[tuple[ModuleChanges, ...], tuple[str, ...], tuple[str, ...]]:
    """(modules of both, names of the first alone, names of the second alone).

    A module whose compilation left only a pass log counts as well.
    """
    names = [_names(first), _names(second)]
    modules = ({module.name: module for module in hlo.modules} for hlo in (first, second))
    ran = ({one.module: one for one in hlo.ran} for hlo in (first, second))
    (left, right), (log_left, log_right) = modules, ran
    parts = {one.module: one for one in first_difference(first, second, texts)}
    both = [name for name in names[0] if name in names[1]]
    changes = tuple(
        ModuleChanges(
            name,
            _same(left.get(name), right.get(name), "before"),
            _same(left.get(name), right.get(name), "after"),
            _passes(log_left.get(name), log_right.get(name)),
            parts.get(name),
            (_ended(first, name), _ended(second, name)),
        )
        for name in both
    )
    alone = [tuple(name for name in names[side] if name not in names[1 - side]) for side in (0, 1)]
    return changes, alone[0], alone[1]


def _names(hlo: Hlo) -> Sequence[str]:
    return list(dict.fromkeys([*(module.name for module in hlo.modules), *(one.module for one in hlo.ran)]))


def _same(first: Module | None, second: Module | None, when: str) -> bool | None:
    if first is None or second is None:
        return None
    left, right = (one.before if when == "before" else one.after for one in (first, second))
    return left == right if left and right else None


def _ended(hlo: Hlo, name: str) -> str:
    optimised = any(one.name == name and one.after for one in hlo.modules)
    return hlo.last.name if hlo.last is not None and hlo.last.module == name.partition("#")[0] and not optimised else ""


def _passes(first: Ran | None, second: Ran | None) -> tuple[PassChange, ...] | None:
    if first is None or second is None:
        return None
    return pipeline_diff(*(ModulePasses(one.module, 0, one.pipelines, None) for one in (first, second)))
