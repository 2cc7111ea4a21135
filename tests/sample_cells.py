"""Cells as the shipped repro `hlo_pass_crash` gives them, built by hand for the tests of reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from repromatrix.engines.base import ISOLATION
from repromatrix.evidence.model import RankResult, Signature
from repromatrix.results.assemble import judged
from repromatrix.results.model import AttemptResult, CellResult, HloFacts, HloModule, RunInfo
from repromatrix.spec.model import Expect, Outcome, Repro, Witness

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
    device_memory=456,
    files=(("stderr of rank 0", "stderr.0"), ("core of 12 SIGSEGV", "core.12.zst"), ("threads", "threads")),
    ranks=(
        RankResult(0, Outcome.CRASH, None, "SIGABRT", Signature("crash a", ("b",)), 1.25, "first"),
        RankResult(1, Outcome.ERROR, 1, None, None, 1.5, "followed"),
    ),
    hlo=HloFacts(
        "passes",
        "explain",
        (HloModule("jit_f", "a" * 64, "", ("dce", "cse"), 812),),
        ("dce", "cse"),
        "fusion",
        ("cut",),
        False,
    ),
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
        reason="3 of 10 hang (11 % to 60 %), 7 ok; claimed ok, was hang",
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


MISSING = "no core of process {} (SIGABRT): core_pattern names the folder /cores, which does not exist"
SEGFAULT = Signature("signal SIGSEGV in ncclKernel_AllReduce", ("signal SIGSEGV in ncclGroupEnd",))
PEER = Signature("xla-status UNAVAILABLE: Task * heartbeat timeout", ("xla-status ABORTED: a peer has gone",))


def deaths() -> tuple[CellResult, ...]:
    """Ways to die and what they leave: another failure than the claimed one, ranks, repeats, cores, memory."""
    cells = {one.id: one for one in matrix()}

    def change(jax: str, flag: str, attempts: tuple[AttemptResult, ...], **more: object) -> None:
        one = cells[f"hlo_pass_crash@jax{jax}-cpu-py311@cpu@flag={flag}"]
        placed = [
            replace(attempt, number=number, evidence=f"{one.evidence}/{number}")
            for number, attempt in enumerate(attempts, 1)
        ]
        claims: dict[str, object] = {"expected": one.expected, **more}
        first = max(placed, key=lambda attempt: attempt.outcome.failed)
        values = {name: getattr(first, name) for name in ("outcome", "exit_status", "signal", "signature", "seconds")}
        cells[one.id] = replace(one, attempts=tuple(placed), **{**values, **claims})

    ok = cells["hlo_pass_crash@jax0.6.0-cpu-py311@cpu@flag=silent_hlo_change"].attempts[0]
    crash = cells["hlo_pass_crash@jax0.10.2-cpu-py311@cpu@flag=noop_change"].attempts[0]
    logs = (("stdout", "stdout"), ("stderr", "stderr"))
    cored = replace(
        crash,
        files=(
            *logs,
            ("stacks of 12 python3 hlo_pass_crash.py --flag [noop](x)", "stacks/12.txt"),
            ("core of 12 SIGABRT", "core.12.zst"),
        ),
    )
    change("0.10.2", "noop_change", (cored,))
    change("0.9.2", "noop_change", (replace(crash, files=logs, notes=(MISSING.format(12),)),))
    change(
        "0.8.3", "noop_change", (replace(crash, files=logs, notes=(MISSING.format(8123), "left 3 processes behind")),)
    )
    other = Signature("xla-status INTERNAL: no such pass | `x` <b>@octocat</b> #1")
    change(
        "0.7.2",
        "noop_change",
        (replace(crash, signature=other),),
        expected='crash SIGABRT "*hash of HLO was not updated*"',
        as_expected=False,
        different_failure=True,
        reason=f'a different failure: "{other.title}"',
    )
    killed = replace(
        ok,
        outcome=Outcome.OOM,
        exit_status=None,
        signal="SIGKILL",
        signature=Signature("oom kernel kill"),
        peak_memory=8_500_000_000,
        device_memory=310 << 20,
    )
    change("0.7.1", "silent_hlo_change", (killed,), as_expected=False, reason="claimed ok, was oom")
    change("0.10.2", "silent_hlo_change", (ok,) * 10)
    change("0.9.2", "silent_hlo_change", (ok,) * 10)
    change("0.6.0", "silent_hlo_change", (ok,) * 3)
    fell = replace(
        ok,
        outcome=Outcome.CRASH,
        exit_status=None,
        signal="SIGSEGV",
        signature=SEGFAULT,
        seconds=2.5,
        ranks=(
            RankResult(0, Outcome.ERROR, 1, None, PEER, 12.0, "followed"),
            RankResult(1, Outcome.CRASH, None, "SIGSEGV", SEGFAULT, 2.5, "first"),
            RankResult(2, Outcome.INCONCLUSIVE, None, "SIGABRT", None, 14.0, "stopped"),
            RankResult(3, Outcome.OK, 0, None, None, 1.5, ""),
        ),
        files=tuple((f"{log} of rank {rank}", f"{log}.{rank}") for log in ("stdout", "stderr") for rank in range(4)),
    )
    well = replace(ok, ranks=tuple(RankResult(rank, Outcome.OK, 0, None, None, 1.4, "") for rank in range(4)))
    change(
        "0.8.3",
        "silent_hlo_change",
        (well, fell, fell, well),
        as_expected=False,
        reason=f'2 of 4 crash "{SEGFAULT.title}" (15 % to 85 %), 2 ok; claimed ok, was crash',
    )
    return tuple(cells.values())


PIPELINER = Repro(
    name="collective_pipeliner",
    path=Path("repros/collective_pipeliner.py"),
    source='# one line\n"""Compile a scan with all flags and look for the pass `collective-pipeliner`.\n\nNo such file '
    'means *unchanged*, not absent | <b>.\n\nA third paragraph."""\nimport jax\n',
    sha256="c" * 64,
    title="The collective pipeliner runs in every version and leaves a tensor-parallel MLP as it was",
    issue="openxla/xla#44228",
    targets=("h100:8",),
    witness=Witness(passes=("collective-pipeliner-*",)),
    expect=(
        Expect('model == "tp_mlp"', (Outcome.OK,), None, None, None, 8, unchanged=("collective-pipeliner-*",)),
        Expect("", (Outcome.OK,), None, None, None, 12, changed=("collective-pipeliner-forward",)),
    ),
)
FORWARD, BACKWARD = "collective-pipeliner-forward", "collective-pipeliner-backward"
COMMON = ("call-inliner", "dot_decomposer", "algsimp", "fusion", "dce", "layout-assignment")


def compiled() -> tuple[CellResult, ...]:
    """Cells compiled without a device, whose HLO was collected, and some of an explain run on the CPU."""

    def one(jax: str, model: str, hlo: HloFacts | None, signature: Signature | None = None) -> CellResult:
        shape = cell(jax, "x", "ok")
        environment = f"jax{jax}-cuda12local-py311"
        folder = f".repromatrix/evidence/cd/cd{jax.replace('.', '')}{model[0]}"
        ended = (Outcome.OK, 0) if signature is None else (Outcome.ERROR, 1)
        attempt = replace(
            shape.attempts[0],
            outcome=ended[0],
            exit_status=ended[1],
            signature=signature,
            evidence=f"{folder}/1",
            hlo=hlo,
        )
        made = replace(
            shape,
            id=f"collective_pipeliner@{environment}@h100:8@model={model}",
            repro="collective_pipeliner",
            environment=environment,
            target="h100:8",
            params=(("model", model),),
            attempts=(attempt,),
            evidence=folder,
            command=f"uv run invoke run collective_pipeliner --env {environment} --target h100:8 --param model={model}",
        )
        return judged(made, PIPELINER.expect[model != "tp_mlp"])

    def facts(before: str, after: str, changed: tuple[str, ...], **more: object) -> HloFacts:
        helper = HloModule("jit_convert", "9" * 64, "8" * 64, ("dce",), 200)
        main = HloModule("jit_forward", before * 64, after * 64, changed, 5000)
        told = {"modules": (helper, main), "ran": (*COMMON, FORWARD, BACKWARD)}
        return HloFacts("passes", "run", **{**told, **more})  # type: ignore[arg-type]

    broken = Signature("xla-status INTERNAL: no such fusion")
    cut = ("2 files over 64 MiB | <i>",)
    return (
        one("0.4.38", "tp_mlp", facts("b", "d", COMMON[1:])),
        one("0.8.0", "tp_mlp", facts("a", "c", ("dot_decomposer", *COMMON[3:]), notes=cut, whole=False)),
        one("0.10.1", "tp_mlp", facts("a", "", ("algsimp",), last=FORWARD), broken),
        one("0.10.2", "tp_mlp", facts("a", "e", COMMON)),
        one("0.4.38", "dp_grad", facts("b", "d", (*COMMON, FORWARD, BACKWARD), ran=())),
        one("0.8.0", "dp_grad", None),
        one("0.10.1", "dp_grad", facts("a", "c", COMMON)),
        one("0.10.2", "dp_grad", facts("a", "c", (*COMMON, FORWARD))),
    )


PROBE = Repro(
    name="pipeliner_probe",
    path=Path("repros/pipeliner_probe.py"),
    source='"""The docstring, which `about` replaces."""\n',
    sha256="d" * 64,
    title="Where the collective pipeliner is",
    issue="openxla/xla#44228",
    targets=("wheels",),
    probe=True,
    about="It was claimed that 0.6 lost the pass, since `nm -D` finds no name of it.\n\nNo version exports any.",
    strings=("collective-pipeliner-forward",),
    symbols=("CollectivePipeliner",),
    flags=("--xla_gpu_enable_pipelined_all_reduce=true", "xla_gpu_enable_pipelined_collectives"),
    expect=(Expect("", (Outcome.OK,), None, None, None, 9, (("symtab/CollectivePipeliner", ">= 20"),)),),
)


def probed() -> tuple[CellResult, ...]:
    """What `containers/probe.py` finds in jax-cuda12-pjrt; in one version the flags and the table are missing."""
    found = {"0.4.38": (72, 1.0), "0.6.2": (27, 0.0), "0.8.0": (19, 0.0), "0.10.2": (None, None)}
    cells = []
    for jax, (names, old) in found.items():
        environment = f"jax{jax}-cuda12local-py311"
        shape, folder = cell(jax, "x", "ok"), f".repromatrix/evidence/ef/ef{jax.replace('.', '')}"
        metrics: list[tuple[str, float]] = [
            ("strings/collective-pipeliner-forward", 1.0),
            ("dynsym/CollectivePipeliner", 0.0),
            ("flag/xla_gpu_enable_pipelined_all_reduce", 1.0),
        ]
        metrics += [("symtab/CollectivePipeliner", float(names))] if names is not None else []
        metrics += [("flag/xla_gpu_enable_pipelined_collectives", old)] if old is not None else []
        made = replace(
            shape,
            id=f"pipeliner_probe@{environment}@wheels",
            repro="pipeliner_probe",
            environment=environment,
            target="wheels",
            params=(),
            attempts=(replace(shape.attempts[0], evidence=f"{folder}/1", metrics=tuple(metrics)),),
            evidence=folder,
            command=f"uv run invoke run pipeliner_probe --env {environment} --target wheels",
        )
        cells.append(judged(made, PROBE.expect[0]))
    return tuple(cells)
