"""Cells as the shipped repro `hlo_pass_crash` gives them, built by hand for the tests of reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.engines.base import ISOLATION
from repromatrix.evidence.model import Signature
from repromatrix.results.model import AttemptResult, CellResult, RunInfo
from repromatrix.spec.model import Expect, Outcome, Repro

TOLD = "reported that it changed the HLO but the hash of HLO was not updated."
NOOP = Signature(
    "absl-fatal hlo_pass_pipeline.cc: Pass 'layout-assignment' in pipeline 'HLO passes through layout assignment' "
    + TOLD,
    (
        f"absl-fatal hlo_pass_pipeline.cc: Pass * in pipeline * {TOLD}",
        f"absl-fatal in xla::HloPassPipeline::RunPassesInternal<T>: Pass * in pipeline * {TOLD}",
    ),
)
NOOP_OLD = Signature(
    "absl-fatal hlo_pass_pipeline.cc: Pass 'flatten-call-graph' in pipeline 'HLO passes through layout assignment' "
    + TOLD,
    (f"absl-fatal hlo_pass_pipeline.cc: Pass * in pipeline * {TOLD}",),
)
SILENT = Signature(
    "absl-fatal hlo_pass_pipeline.cc: Pass 'flatten-call-graph' in pipeline 'sharding-removal' reported that it did not"
    " change the HLO but the hash of HLO was changed from N to N.",
)
UNKNOWN = "unknown flag in XLA_FLAGS: --xla_unsupported_crash_on_hlo_pass_{}=true"

ATTEMPT = AttemptResult(
    number=1,
    outcome=Outcome.CRASH,
    exit_status=None,
    signal="SIGABRT",
    signature=Signature("crash hlo_pass_pipeline.cc", ("xla::HloPassPipeline::Run",), 1),
    reason="",
    seconds=1.25,
    started="2026-11-30T01:03:49Z",
    evidence=".repromatrix/evidence/ab/1",
    metrics=(("loss", float("inf")), ("loss", 0.5)),
    peak_memory=123,
    notes=("left 3 processes behind", "pipe | and \udc80"),
)
"""One that uses every field, with values that are hard to write down."""

REPRO = Repro(
    name="hlo_pass_crash",
    path=Path("repros/hlo_pass_crash.py"),
    source="",
    sha256="e" * 64,
    title="XLA aborts when a pass lies about having changed the HLO",
    issue="openxla/xla#12345",
    expect=(
        Expect("jax < 0.6.0", (Outcome.SKIP,), None, None, None, 8),
        Expect('flag == "noop_change" and jax >= 0.6.1 and jax < 0.7.1', (Outcome.OK,), None, None, None, 11),
        Expect('flag == "noop_change"', (Outcome.CRASH,), "SIGABRT", None, None, 14),
        Expect("", (Outcome.OK,), None, None, None, 18),
    ),
)

# version: how `noop_change` and `silent_hlo_change` end
TRUTH = {
    "0.4.30": ("skip", "skip"),
    "0.5.3": ("skip", "skip"),
    "0.6.0": ("crash", "ok"),
    "0.6.1": ("ok", "crash"),
    "0.6.2": ("ok", "crash"),
    "0.7.0": ("ok", "crash"),
    "0.7.1": ("crash", "ok"),
    "0.7.2": ("crash", "ok"),
    "0.8.3": ("crash", "ok"),
    "0.9.2": ("crash", "ok"),
    "0.10.2": ("crash", "ok"),
}

RUN = RunInfo(
    command="uv run invoke matrix --repro hlo_pass_crash",
    started="2026-11-30T01:03:49Z",
    seconds=31.2,
    tool_version="0.1.0",
    engine="venv",
    isolation=ISOLATION["venv"],
    attempted=22,
    reused=0,
    facts=(("cpu", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"), ("cpus", "2"), ("kernel", "6.1.0")),
)


def cell(jax: str, flag: str, outcome: str, *, engine: str = "venv") -> CellResult:
    signal = "SIGABRT" if outcome == "crash" else None
    status = {"ok": 0, "skip": None, "crash": None}[outcome]
    signature = None
    if outcome == "crash":
        signature = SILENT if flag == "silent_hlo_change" else NOOP_OLD if jax == "0.6.0" else NOOP
    environment = f"jax{jax}-cpu-py311"
    name = f"hlo_pass_crash@{environment}@cpu@flag={flag}"
    folder = f".repromatrix/evidence/ab/ab{jax.replace('.', '')}{flag[0]}"
    reason = UNKNOWN.format(flag) if outcome == "skip" else ""
    seconds = {"ok": 1.42, "crash": 2.31, "skip": 1.1}[outcome]
    attempt = AttemptResult(
        1, Outcome(outcome), status, signal, signature, reason, seconds, "2026-11-30T01:03:49Z", f"{folder}/1"
    )
    expected = {"crash": "crash SIGABRT", "ok": "ok", "skip": "skip"}[outcome]
    return CellResult(
        id=name,
        key="ab" + jax.replace(".", "") + flag[0],
        repro="hlo_pass_crash",
        environment=environment,
        axes=(("jax", jax), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")),
        target="cpu",
        params=(("flag", flag),),
        engine=engine,
        base="CPython 3.11.7 of this host" if engine == "venv" else "debian bookworm 9f1c0a2b (mmdebstrap)",
        identity=jax.replace(".", "") * 12,
        outcome=Outcome(outcome),
        exit_status=status,
        signal=signal,
        signature=signature,
        expected=expected,
        as_expected=True,
        reason=reason,
        seconds=seconds,
        attempts=(attempt,),
        evidence=folder,
        command=f"uv run invoke run hlo_pass_crash --env {environment} --target cpu --param flag={flag}",
        facts=(("lock", jax.replace(".", "") * 12), ("jax", jax), ("jaxlib", jax), ("numpy", "2.3.5")),
        script="e" * 64,
    )


def matrix(engine: str = "venv") -> tuple[CellResult, ...]:
    """The 22 true results."""
    flags = ("noop_change", "silent_hlo_change")
    return tuple(
        cell(jax, flag, outcome, engine=engine)
        for jax, outcomes in TRUTH.items()
        for flag, outcome in zip(flags, outcomes, strict=True)
    )


def broken() -> tuple[CellResult, ...]:
    """The same with a broken claim, a flaky hang, an infra, an engine that disagrees, and a device that is missing."""
    cells = {one.id: one for one in matrix()}
    hit = cells["hlo_pass_crash@jax0.9.2-cpu-py311@cpu@flag=noop_change"]
    different = Signature("error XlaRuntimeError INTERNAL: no such pass | table `breaker` <b>@octocat</b> #1")
    cells[hit.id] = replace(
        hit,
        outcome=Outcome.ERROR,
        exit_status=1,
        signal=None,
        signature=different,
        as_expected=False,
        reason="claimed crash SIGABRT, was error",
    )
    flaky = cells["hlo_pass_crash@jax0.8.3-cpu-py311@cpu@flag=silent_hlo_change"]
    ok = flaky.attempts[0]
    hang = replace(ok, outcome=Outcome.HANG, exit_status=None, signal="SIGABRT", seconds=60.0)
    cells[flaky.id] = replace(
        flaky,
        outcome=Outcome.HANG,
        exit_status=None,
        signal="SIGABRT",
        as_expected=False,
        seconds=60.0,
        reason="3 of 10 hang, 7 ok; claimed ok, was hang",
        attempts=tuple(replace(hang if n in {2, 5, 9} else ok, number=n) for n in range(1, 11)),
    )
    lost = cells["hlo_pass_crash@jax0.7.2-cpu-py311@cpu@flag=noop_change"]
    cells[lost.id] = replace(
        lost,
        outcome=Outcome.INFRA,
        signal=None,
        signature=None,
        as_expected=None,
        reason="the disk is full",
        seconds=0.0,
        attempts=(),
    )
    docker = [
        cell("0.10.2", "noop_change", "ok", engine="docker"),
        cell("0.10.2", "silent_hlo_change", "ok", engine="docker"),
    ]
    docker[0] = replace(docker[0], expected="crash SIGABRT", as_expected=False, reason="claimed crash SIGABRT, was ok")
    barred = replace(
        cell("0.10.2", "noop_change", "skip"),
        id="hlo_pass_crash@jax0.10.2-cpu-py311@gpu:2@flag=noop_change",
        key="",
        target="gpu:2",
        engine="",
        as_expected=None,
        expected="crash SIGABRT",
        reason="needs 2 GPUs, this host has none",
        attempts=(),
        evidence="",
        facts=(),
    )
    return (*cells.values(), *docker, barred)
