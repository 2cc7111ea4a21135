"""What the attempts of a cell start with: variables, what is collected of the HLO, and what it is compiled for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from repromatrix.spec import deviceless
from repromatrix.spec.model import Described, Matrix, Repro, Scalar, word
from repromatrix.spec.script import HOSTED

_DEVICES = "--xla_force_host_platform_device_count"
_LEVELS = ("off", "failures", "text", "passes")
"""Of HLO evidence, each holding what those before it hold."""


def described(matrix: Matrix, target: str) -> Described | None:
    """The GPUs that `target` is compiled for; None for one that runs on what is there.

    A target declared with its size (`[targets."h100:8"]`) counts before one of any size (`[targets.h100]`).
    """
    kind, _, count = target.partition(":")
    if kind in (*HOSTED, "wheels"):
        return None
    found = {each.name: each for each in matrix.targets}
    spec = found.get(target) or found[kind]
    assert spec.describe is not None  # matrix.toml without it is refused
    root = matrix.path.parent
    return Described(
        root / spec.describe,
        spec.describe_sha256,
        spec.topology or deviceless.topology(int(count)),
        root / spec.autotune if spec.autotune else None,
        spec.autotune_sha256,
    )


def of_target(matrix: Matrix, target: str) -> dict[str, str]:
    """The variables of real GPUs: those of `[targets.gpu]`, and over them those of its size (`[targets."gpu:2"]`)."""
    kind = target.partition(":")[0]
    found = {each.name: dict(each.env) for each in matrix.targets}
    return {**found.get(kind, {}), **found.get(target, {})} if kind == "gpu" else {}


def hlo_level(matrix: Matrix, repro: Repro, target: str) -> str:
    """What is collected of the HLO: `Cell.hlo`.

    What the repro says counts; else what its witness and claims need and what `[run]` says, whichever is more.
    """
    kind = target.partition(":")[0]
    if kind == "wheels":
        return "off"
    level = repro.hlo
    if level is None:
        needed = "off"
        if repro.witness is not None and (repro.witness.hlo or repro.witness.passes):
            needed = "text"
        if any(claim.changed or claim.unchanged for claim in repro.expect):
            needed = "passes"
        level = more(needed, matrix.run.hlo)
    return "passes" if level == "failures" and kind not in HOSTED else level


def more(level: str, other: str) -> str:
    """Of two levels of HLO evidence the one that collects more."""
    return max(level, other, key=_LEVELS.index)


def variables(
    env: Mapping[str, str],
    repro: Repro,
    target: str,
    params: tuple[tuple[str, Scalar], ...],
    gpus: Described | None = None,
) -> tuple[tuple[str, str], ...]:
    """Variables of an attempt; the repro's own win over the target's, and those over `[run]` and overrides.

    Args:
        env: What `[run]`, the overrides and the target say.
        gpus: What the cell is compiled for. It must not look for a device, so that JAX_PLATFORMS is never the repro's.
    """
    texts = {name: word(value) for name, value in params}
    kind, _, count = target.partition(":")
    found = dict(env)
    if gpus is not None:
        found |= deviceless.VARIABLES
    elif kind in ("cpu", "wheels"):
        found["JAX_PLATFORMS"] = "cpu"
    elif kind == "gpu":
        found["JAX_PLATFORMS"] = "cuda,cpu"  # left to itself, jax falls back to the CPU with a warning: a false green
    for name, value in repro.env:
        found[name] = re.sub(r"\{(\w+)\}", lambda mark: texts[mark[1]] if mark[1] in texts else mark[0], value)
    if kind == "cpu" and count:
        found["XLA_FLAGS"] = f"{found.get('XLA_FLAGS', '')} {_DEVICES}={count}".strip()
    if gpus is not None:
        asked = dict(deviceless.variables(found.get("XLA_FLAGS", ""), gpus.autotune_name))
        found |= {"XLA_FLAGS": asked["XLA_FLAGS"], "JAX_PLATFORMS": asked["JAX_PLATFORMS"]}
    found |= {f"REPRO_{name.upper()}": text for name, text in texts.items()}
    return tuple(found.items())
