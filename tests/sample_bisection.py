"""Bisections of the shipped repro `hlo_pass_crash`, from its true results and the locks in the repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.axes.model import Series, Version
from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.model import Lock
from repromatrix.project import Project
from repromatrix.regressions.bisection.found import found_edges
from repromatrix.regressions.model import Bisection, Spent, Tested
from repromatrix.results.combine import combine, rates
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.search.model import Answer, Edge, Rules, Verdict
from repromatrix.spec.model import Cell, Environment, Outcome
from tests.conftest import ROOT
from tests.sample_cells import NOOP, REPRO, TRUTH, cell

VERDICTS = {"ok": Verdict.GOOD, "crash": Verdict.BAD, "skip": Verdict.UNKNOWN}
COMMAND = "uv run invoke bisect hlo_pass_crash --oldest 0.4.30 --newest 0.10.2 --param flag=noop_change"
FLAG = "--xla_unsupported_crash_on_hlo_pass_noop_change=true"


def environment(jax: str) -> Environment:
    return Environment((("jax", jax), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")))


def kept_lock(jax: str) -> Lock:
    """As it is checked in."""
    made = environment(jax)
    return read_lock(ROOT / "containers" / "locks" / f"{made.id}.txt", made)


def tried(jax: str, outcome: str, phase: str, attempted: int = 1) -> Tested:
    """A version that was tried once."""
    result = cell(jax, "noop_change", outcome)
    seen = rates(result.attempts)
    why = f"skip: {result.reason}" if outcome == "skip" else ""
    return Tested(
        jax, VERDICTS[outcome], why, seen, result, kept_lock(jax), phase, attempted, result.seconds * attempted
    )


def repeated(tested: Tested, *outcomes: Outcome) -> Tested:
    """The same, tried as often; what fails does so as its cell did, or else as `noop_change` does."""
    assert tested.result is not None
    shape = tested.result.attempts[0]
    crash = replace(shape, outcome=Outcome.CRASH, exit_status=None, signal="SIGABRT", signature=NOOP)
    fine = replace(shape, outcome=Outcome.OK, exit_status=0, signal=None, signature=None)
    made = tuple(
        replace({Outcome.OK: fine, Outcome.CRASH: crash}[outcome], number=number)
        for number, outcome in enumerate(outcomes, 1)
    )
    return with_attempts(tested, *made)


def with_attempts(tested: Tested, *attempts: AttemptResult) -> Tested:
    assert tested.result is not None
    all_of_them = combine(attempts)
    result = replace(
        tested.result,
        **{name: getattr(all_of_them, name) for name in ("outcome", "exit_status", "signal", "signature", "reason")},
        attempts=attempts,
    )
    return replace(tested, result=result, rates=rates(attempts), attempted=len(attempts), seconds=2.0 * len(attempts))


def series(*versions: str) -> Series:
    repro = replace(REPRO, env=(("XLA_FLAGS", "--xla_unsupported_crash_on_hlo_pass_{flag}=true"),))
    made = (
        Version(name, Cell(environment(name), repro, (("flag", "noop_change"),), "cpu", (("XLA_FLAGS", FLAG),)), number)
        for number, name in enumerate(versions, 5)
    )
    return Series("jax", tuple(made), (("0.6.5", "the index has no such release"), ("0.7.7", "yanked: it broke")))


PHASES = {"0.4.30": "end", "0.10.2": "end", "0.5.3": "sweep", "0.6.2": "sweep", "0.7.2": "sweep", "0.9.2": "sweep"}
EDGES = (
    Edge(2, 3, Verdict.GOOD, (), 0.9922),
    Edge(5, 6, Verdict.BAD, (), 0.9922),
)
"""Of `noop_change`: it ends from 0.6.0 to 0.6.1, and begins from 0.7.0 to 0.7.1."""


def path() -> dict[int, Tested]:
    """By place: ends first, then the sweep, then what was between."""
    places = {name: place for place, name in enumerate(TRUTH)}
    made = {name: tried(name, outcomes[0], PHASES.get(name, "bisect")) for name, outcomes in TRUTH.items()}
    made["0.8.3"] = replace(made["0.8.3"], attempted=0, seconds=0.0)  # an earlier run knew it
    for name in ("0.6.0", "0.6.1", "0.7.0", "0.7.1"):  # the edges were confirmed
        made[name] = repeated(made[name], *([made[name].rates[0].outcome] * 5))
    ordered = sorted(made.values(), key=lambda each: ("end", "sweep", "bisect").index(each.phase))
    return {places[each.name]: each for each in ordered}


def bisection(
    store: Path, tested: dict[int, Tested] | None = None, edges: tuple[Edge, ...] = EDGES, rules: Rules | None = None
) -> Bisection:
    """What was found over all releases of the sample; `store` holds wheels, or none."""
    seen = path() if tested is None else tested
    answer = Answer(edges, {place: each.verdict for place, each in seen.items()})
    return Bisection(
        repro="hlo_pass_crash",
        target="cpu",
        params=(("flag", "noop_change"),),
        engine="venv",
        series=series(*TRUTH),
        failure=NOOP.title,
        rules=rules or Rules(),
        edges=found_edges(Project(ROOT, store), answer, seen),
        path=tuple(seen.values()),
        spent=Spent(183.4, 52.1, 131.3),
        command=COMMAND,
        others=(("xla-status INTERNAL: no such pass | `x` <b>@octocat</b> #1", ("0.7.2",)),),
        notes=("`nightly` is no index here | <i>",),
        facts=(("cpu", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"), ("cpus", "2")),
    )


def result_of(tested: Tested) -> CellResult:
    assert tested.result is not None
    return tested.result
