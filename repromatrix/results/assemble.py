"""A cell, its attempts and its environment, put together as one result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from repromatrix.envs.model import Lock
from repromatrix.results.combine import combine
from repromatrix.results.judge import claim, judge
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.spec.model import Cell, Expect, Outcome

TELLING = re.compile(
    r"jax|jaxlib|numpy|scipy|ml-dtypes|jax-cuda\d+-(plugin|pjrt)|nvidia-(nccl|cudnn|cublas|cuda-runtime).*"
)
"""Packages whose versions a maintainer asks for first."""


def assemble(
    cell: Cell,
    key: str,
    attempts: Sequence[AttemptResult],
    absent: tuple[Outcome, str],
    *,
    engine: str,
    base: str,
    lock: Lock | None,
    command: str,
    host: tuple[tuple[str, str], ...] = (),
) -> CellResult:
    """The result of `cell`.

    Args:
        key: Result key; empty for a cell that cannot be attempted here.
        attempts: Those kept under the key.
        absent: Outcome and reason where there are no attempts.
        engine, base: What ran it, or would have.
        lock: Of its environment, where there is one.
        command: Shell command that runs it again.
        host: What its attempts take from the host, by name: versions of CUDA's libraries.
    """
    outcome, reason = absent
    result = CellResult(
        id=cell.id,
        key=key,
        repro=cell.repro.name,
        environment=cell.environment.id,
        axes=cell.environment.axes,
        target=cell.target,
        params=cell.params,
        engine=engine,
        base=base,
        identity=lock.hash if lock is not None else "",
        script=cell.repro.body,
        outcome=outcome,
        exit_status=None,
        signal=None,
        signature=None,
        expected=claim(cell.expect),
        as_expected=None,  # nothing was attempted, so nothing was learnt of the claim
        reason=reason,
        seconds=0.0,
        command=command,
        facts=(*facts(lock), *host),
    )
    return with_attempts(result, cell.expect, attempts) if attempts else result


def with_attempts(result: CellResult, expect: Expect | None, attempts: Sequence[AttemptResult]) -> CellResult:
    """`result` with the verdict of these attempts, held against the claim."""
    whole = combine(attempts)
    kept, why, different = judge(expect, whole.outcome, whole.exit_status, whole.signal, whole.signature, attempts)
    tell = kept is False or (kept is None and expect is not None and whole.outcome in expect.outcome)
    return replace(
        result,
        outcome=whole.outcome,
        exit_status=whole.exit_status,
        signal=whole.signal,
        signature=whole.signature,
        as_expected=kept,
        different_failure=different,
        reason="; ".join(filter(None, (whole.reason, why if tell else ""))),
        seconds=round(whole.seconds, 3),
        attempts=tuple(attempts),
        evidence=attempts[-1].evidence.rpartition("/")[0],
    )


def judged(result: CellResult, expect: Expect | None) -> CellResult:
    """`result` held against the claim as it is now."""
    renewed = replace(result, expected=claim(expect))
    return with_attempts(renewed, expect, result.attempts) if result.attempts else renewed


def facts(lock: Lock | None) -> tuple[tuple[str, str], ...]:
    """The lock's hash and the versions that matter, by name."""
    if lock is None:
        return ()
    versions = ((wheel.name, wheel.version) for wheel in lock.wheels if TELLING.fullmatch(wheel.name))
    return (("lock", lock.hash), ("cutoff", lock.cutoff or "none"), *versions)
