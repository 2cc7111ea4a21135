"""What an attempt means: outcome, reason, signature and metrics, from how it ended and what it printed.

Pure: the same kept evidence gives the same grade, so `regrade` can be run at any time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from repromatrix.engines.base import Raw
from repromatrix.evidence.failure import Failure, failures
from repromatrix.evidence.model import Signature
from repromatrix.evidence.rules import apply_rules
from repromatrix.evidence.signature import before_hang, bounded, choose, shell_signal, sign
from repromatrix.evidence.witness import Compiled, lacking
from repromatrix.spec.model import Cell, Outcome, SignatureRule, Witness

_EXECUTABLE_STACK = "cannot enable executable stack"
"""jaxlib 0.5.1 where glibc is 2.41 or newer: `dlopen` no longer makes the stack executable (seen with Debian's)."""

SKIP = 125
"""Exit status of a script that does not apply, as in `git bisect run`."""

COMPILE, PROBE = "compile.py", "probe.py"
"""Programs of the tool that run in the place of the script: of deviceless cells, and of probes."""

_COMPILED = re.compile(r"(?m)^compiled in \d")

_UNABLE = ("cannot compile without a device: ", "not installed: ")
"""What these programs print before they end with `SKIP`."""

_NO_GPU = re.compile(
    r"(?:failed call to cuInit|Driver/library version mismatch|kernel version \S+ does not match DSO version"
    r"|CUDA driver version is insufficient for CUDA runtime version|no supported devices found for platform CUDA"
    r"|No visible GPU devices|CUDA_ERROR_(?:NO_DEVICE|DEVICE_UNAVAILABLE|DEVICE_NOT_LICENSED|SYSTEM_\w+"
    r"|COMPAT_NOT_SUPPORTED_ON_DEVICE|STUB_LIBRARY|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)\b)[^\n]*"
)
"""What says that the driver or a GPU of this host is at fault. Recorded with jax 0.4.30 to 0.10.2 where libcuda is
missing (`UNKNOWN ERROR (303)`) or refuses. CUDA_ERROR_NOT_INITIALIZED is not among them: it was jax's own
(jax-ml/jax#20722)."""

_NO_CUDA = re.compile(
    r"Unable to load \w+\. Is it installed\?|Could not find cuda drivers on your machine"
    r"|Outdated \w+ installation found"
)
"""What says that a library of CUDA is not there or too old: jax 0.6.2 to 0.10.2 print the first two where libcudart
does not load, with or without a driver. It is the host's fault where the libraries are the host's."""

_NO_BACKEND = re.compile(
    r"Unable to initialize backend '(?:cuda|gpu)'|[Bb]ackend '(?:cuda|gpu)' (?:is not in the list|failed to initialize)"
    r"|Unknown backend:? '(?:cuda|gpu)'|Unable to use CUDA"
)

_MISMATCHED = re.compile(r"is not compatible with the installed jaxlib|Mismatched PJRT plugin")
"""Wheels of the environment that do not go together: jax then leaves CUDA out, and says the same of the backend."""


@dataclass(frozen=True, slots=True)
class GradeContext:
    """What grading needs to know of a cell.

    Attributes:
        env: Variables of the attempt, the tool's own included.
        source: The script's text: flags that it sets itself are as much ours as those of `env`.
        witness: What must be seen for an `ok` to count.
        timeout: Seconds until the deadline.
        memory: Bytes allowed, or None.
        rules: The project's rules on signatures.
        tool: `COMPILE` or `PROBE` where that program runs instead of the script; else empty.
        compiled: What is known of the compiler's work; None where nothing was collected.
        on_gpu: It runs on real GPUs.
        host_cuda: CUDA's libraries are the host's, not the environment's.
    """

    env: tuple[tuple[str, str], ...] = ()
    source: str = ""
    witness: Witness | None = None
    timeout: float = 0.0
    memory: int | None = None
    rules: tuple[SignatureRule, ...] = ()
    tool: str = ""
    compiled: Compiled | None = None
    on_gpu: bool = False
    host_cuda: bool = False

    @classmethod
    def of(cls, cell: Cell, rules: Sequence[SignatureRule] = ()) -> GradeContext:
        # A parameter's value is part of what the author set: a script may build a flag's name from it.
        values = " ".join(str(value) for _, value in cell.params)
        source = f"{cell.repro.source}\n{values}"
        tool = PROBE if cell.repro.probe else COMPILE if cell.described else ""
        on_gpu = cell.target.partition(":")[0] == "gpu"
        hosted = on_gpu and cell.environment.cuda.endswith("-local")
        return cls(
            env=cell.env,
            source=source,
            witness=cell.repro.witness,
            timeout=cell.timeout,
            memory=cell.memory,
            rules=tuple(rules),
            tool=tool,
            on_gpu=on_gpu,
            host_cuda=hosted,
        )


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one attempt.

    Attributes:
        exit_status: The script's own, None when a signal ended it.
        signal: Name of the signal that ended it, or None.
        reason: One sentence: why this outcome, where the status alone does not say; else empty.
        metrics: Last value of every `REPRO_METRIC name=value` line, in order of first appearance.
        notes: Further findings, such as metrics that could not be read.
    """

    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    reason: str
    metrics: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Verdict:
    outcome: Outcome
    reason: str = ""
    killed_for_memory: bool = False


def grade(raw: Raw, stdout: str, stderr: str, cell: Cell | GradeContext, frames: Sequence[str] = ()) -> Grade:
    """The verdict on an attempt that ended as `raw` says and printed `stdout` and `stderr`.

    Args:
        frames: Frames of the thread that matters, innermost first, where stacks were taken.

    Raises:
        UserError: A signature rule of the project is wrong.
    """
    context = GradeContext.of(cell) if isinstance(cell, Cell) else cell
    metrics, notes = read_metrics(stdout)
    verdict = _judge(raw, stdout, stderr, context)
    stdout, stderr = bounded(stdout), bounded(stderr)
    ended = raw.signal if raw.exit_status is None else None
    signature = sign(
        verdict.outcome,
        ended,
        stderr,
        stdout,
        frames,
        exit_status=raw.exit_status,
        killed_for_memory=verdict.killed_for_memory,
    )
    if signature is not None:
        signature = apply_rules(context.rules, signature, stderr, stdout, frames)
    return Grade(verdict.outcome, raw.exit_status, ended, signature, verdict.reason, metrics, notes)


def _judge(raw: Raw, stdout: str, stderr: str, context: GradeContext) -> _Verdict:
    if raw.infra:
        return _Verdict(Outcome.INFRA, raw.infra)
    if raw.timed_out:
        before = before_hang(bounded(stderr))
        words = f", after {said(before)}" if before else ""
        return _Verdict(Outcome.HANG, hung(context.timeout, words + killed(raw)))
    if raw.exit_status is None and raw.signal is None:
        return _Verdict(Outcome.INFRA, "the supervisor left neither an exit status nor a signal")
    if raw.exit_status == 0:
        return _finished(raw, stdout, stderr, context)
    if context.tool and (verdict := _by_tool(raw, stdout, stderr, context.tool)):
        return verdict
    if raw.exit_status == SKIP:
        return _Verdict(Outcome.SKIP, "the script says that it does not apply (exit status 125)")
    stdout, stderr = bounded(stdout), bounded(stderr)  # not before: a witness may stand anywhere
    failure = choose(raw.signal if raw.exit_status is None else None, raw.exit_status, stderr, stdout)
    if failure is not None and failure.kind == "flag" and (reason := _refused(failure, stderr, context)):
        return _Verdict(Outcome.SKIP, reason)
    if failure is not None and failure.kind == "setup" and _EXECUTABLE_STACK in failure.message:
        return _Verdict(Outcome.SKIP, "the C library here refuses the executable stack that one of its libraries wants")
    return _memory(raw, failure, context) or _without_gpu(raw, failure, stderr, context) or _failed(raw)


def hung(timeout: float, words: str = "") -> str:
    """The reason of a hang; `words` tell more of it."""
    return "still running at the deadline" + (f" of {timeout:g} s" if timeout else "") + words


def killed(raw: Raw) -> str:
    """The kernel's kills for memory, as the end of a reason; empty where there were none."""
    return f"; {_processes(raw.oom_kills)} of it killed by the kernel for memory" if raw.oom_kills else ""


def said(failure: Failure) -> str:
    """A failure in its own words, for a reason."""
    return (f"{failure.site}: {failure.message}" if failure.message else failure.site).rstrip(".")[:200]


def _finished(raw: Raw, stdout: str, stderr: str, context: GradeContext) -> _Verdict:
    """Exit 0: well, unless what proves it is missing. What was printed as errors counts for nothing."""
    if context.tool == COMPILE and not _COMPILED.search(stdout):
        return _Verdict(
            Outcome.INCONCLUSIVE, "exit 0, but nothing was compiled: the script ended before its program was"
        )
    if context.on_gpu and not raw.device_memory and (cause := _no_gpu(bounded(stderr), context)):
        return _Verdict(Outcome.INFRA, f"exit 0, but not on a GPU: {cause}")
    if context.on_gpu and raw.gpus_idle:
        # Without a device node jax takes the CPU, though JAX_PLATFORMS=cuda,cpu (0.4.38 to 0.10.2), and says nothing.
        return _Verdict(Outcome.INCONCLUSIVE, "exit 0, but no memory of its GPUs was used: it ran on the CPU")
    if context.witness and (missing := lacking(context.witness, stdout, stderr, context.compiled)):
        return _Verdict(Outcome.INCONCLUSIVE, f"exit 0, but {missing}")
    if raw.oom_kills:
        return _Verdict(Outcome.OK, f"exit 0, though the kernel killed {_processes(raw.oom_kills)} of it for memory")
    return _Verdict(Outcome.OK)


def _by_tool(raw: Raw, stdout: str, stderr: str, tool: str) -> _Verdict | None:
    """The verdict where the tool's own program says that there is none of the version; else None."""
    if raw.exit_status == SKIP:
        words = [line for line in stdout.splitlines() if line.startswith(_UNABLE)]
        return _Verdict(Outcome.SKIP, words[-1][:500]) if words else None
    # What compiles ends with 1 where the script or XLA failed; what probes runs no script, and XLA only to ask it.
    if raw.exit_status == 2 or (raw.exit_status == 1 and tool == PROBE):
        said = [line.strip() for line in stderr.splitlines() if line.strip()] or [f"exit status {raw.exit_status}"]
        return _Verdict(Outcome.INCONCLUSIVE, f"{tool} found nothing out: {said[-1][:500]}")
    return None


def _refused(failure: Failure, stderr: str, context: GradeContext) -> str:
    """Why a refused flag is no fault of the version; empty where it may be one.

    A flag of the environment is refused by every process of the attempt, so whatever else failed came of it. One that
    only the script's text names may have been a child's, tried on purpose: then nothing else may have failed.
    """
    names = [flag.partition("=")[0].lstrip("-") for flag in failure.flags]
    alone = all(f.kind == "flag" or (f.kind == "signal" and not f.message) for f in failures(stderr))
    known = "\n".join([value for _, value in context.env] + [context.source] * alone)
    if not names or not all(name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", known) for name in names):
        return ""
    flags = " ".join(failure.flags)
    if failure.site == "unknown":
        return f"this version does not know {flags}"
    if failure.site == "value refused":
        return f"this version does not accept the value in {flags}"
    return f"XLA took {flags} for a file of flags, as it does not begin with --"


def _without_gpu(raw: Raw, failure: Failure | None, stderr: str, context: GradeContext) -> _Verdict | None:
    """The verdict where the host's GPU, driver or CUDA is what failed, and not what was run on it; else None."""
    if not context.on_gpu or (failure is not None and failure.kind == "flag"):
        return None
    message = failure.message if failure is not None else ""
    cause = _no_gpu(message, context)
    if cause or raw.gpus_idle or _NO_BACKEND.search(message):
        cause = _no_gpu(stderr, context) or cause  # cuInit's own words come first there
    return _Verdict(Outcome.INFRA, f"the host's GPUs did not serve: {cause}, {_ended(raw)}") if cause else None


def _no_gpu(text: str, context: GradeContext) -> str:
    """What `text` says of a GPU, driver or CUDA of this host that is not there; empty where nothing."""
    if _MISMATCHED.search(text):
        return ""
    found = _NO_GPU.search(text) or (_NO_CUDA.search(text) if context.host_cuda else None)
    return found[0].strip()[:200] if found else ""


def _memory(raw: Raw, failure: Failure | None, context: GradeContext) -> _Verdict | None:
    """The verdict where memory ran out: by the failure's own words, or by a kill that was counted."""
    ended = _ended(raw)
    if failure is not None and failure.memory:
        return _Verdict(Outcome.OOM, f"memory ran out ({said(failure)}), {ended}")
    if not raw.oom_kills and not raw.over_limit:
        return None
    if failure is not None and raw.signal != "SIGKILL" and not failure.follows:
        return None  # it died of something else; the kill is told in `_failed`
    if raw.over_limit:
        limit = f"limit of {_bytes(context.memory)}" if context.memory else "memory limit"
        killed, known = f"killed at the {limit}", [("peak", raw.peak_memory)]
    else:
        killed = f"{_processes(raw.oom_kills)} killed by the kernel for memory"
        known = [("limit", context.memory or 0), ("peak", raw.peak_memory)]
    sizes = ", ".join(f"{name} {_bytes(size)}" for name, size in known if size)
    return _Verdict(Outcome.OOM, killed + (f" ({sizes})" if sizes else "") + f", {ended}", killed_for_memory=True)


def _failed(raw: Raw) -> _Verdict:
    if raw.exit_status is None:
        unknown = "killed from outside: no kernel kill for memory was counted" if raw.signal == "SIGKILL" else ""
        return _Verdict(Outcome.CRASH, (unknown + killed(raw)).removeprefix("; "))
    stands_for = shell_signal(raw.exit_status)
    words = (
        f"exit status {raw.exit_status} stands for {stands_for} of a child, as shells pass it on" if stands_for else ""
    )
    return _Verdict(Outcome.ERROR, (words + killed(raw)).removeprefix("; "))


def _ended(raw: Raw) -> str:
    return f"ended by {raw.signal}" if raw.exit_status is None else f"exit status {raw.exit_status}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


_METRIC = re.compile(r"^REPRO_METRIC\b(?P<rest>.*)$", re.MULTILINE)
_ASSIGNED = re.compile(r"\s+(?P<name>[A-Za-z_][\w.:/-]*)\s*=\s*(?P<value>\S+)\s*$")


MOST_METRICS = 1000
"""Names kept of one attempt: a script that prints a new one in each step must not fill the database."""


def read_metrics(stdout: str) -> tuple[tuple[tuple[str, float], ...], tuple[str, ...]]:
    """Metrics of the `REPRO_METRIC name=value` lines, the last of each name; and a note for each line that is none."""
    values: dict[str, float] = {}
    notes: list[str] = []
    left_out = 0
    for line in _METRIC.finditer(stdout):
        assigned = _ASSIGNED.match(line["rest"])
        try:
            value = float(assigned["value"]) if assigned else math.nan
        except ValueError:
            value = math.nan
        if assigned is None or not math.isfinite(value):
            if len(notes) < 5:
                notes.append(f"not a metric: {line[0].strip()[:100]!r} (REPRO_METRIC name=number, finite)")
            continue
        if assigned["name"] in values or len(values) < MOST_METRICS:
            values[assigned["name"]] = value
        else:
            left_out += 1
    if left_out:
        notes.append(f"{left_out} metrics left out: more than {MOST_METRICS} names")
    return tuple(values.items()), tuple(notes)
