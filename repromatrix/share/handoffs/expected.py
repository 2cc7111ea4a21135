"""What a handed-over folder expects: how the attempt is started, and how it ended here. `expected.json` as data.

Runs in the folder too, on the environment's own Python: nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from repromatrix.evidence.model import Signature
from repromatrix.evidence.outcome import GradeContext
from repromatrix.spec.model import Outcome, SignatureRule, Witness

SCHEMA = 1
NAME = "expected.json"


@dataclass(frozen=True, slots=True)
class Start:
    """How the attempt is started, as `engines.base.Attempt` has it.

    Attributes:
        id: Of the cell.
        script, arguments, env: See `Attempt`.
        timeout: Seconds.
        memory: Bytes, or None.
        gpus: Number of GPUs it needs.
        cuda: Major version of CUDA whose libraries it takes from the machine; empty where it takes none.
    """

    id: str
    script: str
    arguments: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    timeout: float
    memory: int | None
    cpus: int | None
    gpus: int
    processes: int
    cuda: str


@dataclass(frozen=True, slots=True)
class Grading:
    """What grading needs beside the evidence, as `GradeContext` has it.

    Attributes:
        source: File in `work/` with the reporter's script.
        values: Parameters' values, which count as part of the script.
        compiled: `text` or `passes` where the witness or the claim asks what the compiler did, else empty.
    """

    source: str
    values: tuple[str, ...]
    witness: Witness | None
    rules: tuple[SignatureRule, ...]
    tool: str
    compiled: str

    def context(self, start: Start, script: str) -> GradeContext:
        """The context of the attempt `start`; `script` is the text of the reporter's script."""
        source = "\n".join([script, " ".join(self.values)])
        return GradeContext(
            env=start.env,
            source=source,
            witness=self.witness,
            timeout=start.timeout,
            memory=start.memory,
            rules=self.rules,
            tool=self.tool,
            on_gpu=start.gpus > 0,
            host_cuda=bool(start.cuda),
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """How it ended where it was recorded.

    Attributes:
        outcome, exit_status, signal, signature: Of the cell.
        claimed: Outcomes that the reporter claims, where several are, as machines differ; else empty.
        titles: Under which the failure is known: those of `signature`, and those it has where no stacks are read.
        globs: Titles of which a private part was left out, with `*` in its place.
        metrics: (name, condition) of what is claimed on numbers.
        changed, unchanged: Globs of passes, as claimed: each must name one that changed a module, or none that did.
        seconds: The attempt took.
        failed, of: So many of the attempts ended so.
        repeat: Attempts that find it with 99 %.
        where: Facts of the machine it was recorded on.
    """

    outcome: Outcome
    exit_status: int | None
    signal: str | None
    signature: Signature | None
    claimed: tuple[Outcome, ...]
    titles: tuple[str, ...]
    globs: tuple[str, ...]
    metrics: tuple[tuple[str, str], ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    seconds: float
    failed: int
    of: int
    repeat: int
    where: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """The whole of `expected.json`."""

    start: Start
    grading: Grading
    expected: Expected


def to_json(handoff: Handoff) -> str:
    """The text of `expected.json`; the same for the same data."""
    return json.dumps({"schema": SCHEMA, **asdict(handoff)}, indent=1) + "\n"


def from_json(text: str) -> Handoff:
    """Read `expected.json`.

    Raises:
        ValueError: It is no such text, or of another schema.
    """
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
        return Handoff(_start(data["start"]), _grading(data["grading"]), _expected(data["expected"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an {NAME}: {error!r}") from error


def _start(data: Mapping[str, Any]) -> Start:
    return Start(**{**data, "arguments": tuple(data["arguments"]), "env": _pairs(data["env"])})


def _grading(data: Mapping[str, Any]) -> Grading:
    witness = data["witness"]
    found = None if witness is None else Witness(**{name: tuple(value) for name, value in witness.items()})
    rules = tuple(SignatureRule(**rule) for rule in data["rules"])
    return Grading(**{**data, "values": tuple(data["values"]), "witness": found, "rules": rules})


def _expected(data: Mapping[str, Any]) -> Expected:
    told = data["signature"]
    signature = None if told is None else Signature(told["title"], tuple(told["alternatives"]), told["version"])
    return Expected(
        **{
            **data,
            "outcome": Outcome(data["outcome"]),
            "signature": signature,
            "claimed": tuple(map(Outcome, data["claimed"])),
            "titles": tuple(data["titles"]),
            "globs": tuple(data["globs"]),
            "changed": tuple(data["changed"]),
            "unchanged": tuple(data["unchanged"]),
            "metrics": _pairs(data["metrics"]),
            "where": _pairs(data["where"]),
        }
    )


def _pairs(data: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in data)
