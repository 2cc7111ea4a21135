"""The data of the specification: frozen, validated, free of I/O.

`matrix.py` and `repro.py` produce it from files, `cells.py` expands it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Scalar = str | int | float | bool
"""A parameter's value, as TOML knows it."""


def word(value: Scalar) -> str:
    """A parameter's value as ids show it and as a script receives it: booleans as TOML writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Outcome(StrEnum):
    """How an attempt, and so a cell, ended."""

    OK = "ok"
    """Exit 0, and the witness, where one is asked for, was seen."""
    ERROR = "error"
    """The script ended by itself with another status than 0 and 125."""
    CRASH = "crash"
    """A signal ended it."""
    HANG = "hang"
    """The deadline ended it."""
    OOM = "oom"
    """Memory ran out: Python, XLA, the limit, or the kernel's kill."""
    SKIP = "skip"
    """It does not apply: exit 125, a flag this version does not know, no wheels, no such device here."""
    INCONCLUSIVE = "inconclusive"
    """It ended well and proves nothing: the trigger was not seen."""
    INFRA = "infra"
    """The machine, network or engine failed; says nothing of the version."""

    @property
    def failed(self) -> bool:
        """Whether this is a failure of the version under test."""
        return self in (Outcome.ERROR, Outcome.CRASH, Outcome.HANG, Outcome.OOM)


@dataclass(frozen=True, slots=True)
class Rule:
    """An `[[exclude]]` entry: a cell that matches every key does not run.

    Attributes:
        conditions: (axis, condition) pairs; a condition is a version specifier (`<0.8`) or a glob (`12*`).
        reason: Why, in the author's words; empty where none was given.
        line: Line in matrix.toml.
    """

    conditions: tuple[tuple[str, str], ...]
    reason: str
    line: int


@dataclass(frozen=True, slots=True)
class Override:
    """An `[[override]]` entry: settings for the environments whose id matches `select`; later entries win."""

    select: str
    python: str | None
    as_of: str | None
    packages: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...] | None
    timeout: float | None
    inherit: str  # "replace" or "append": what happens to lists and tables
    line: int


@dataclass(frozen=True, slots=True)
class Base:
    """Where the interpreter of one Python minor version comes from.

    Attributes:
        python: Minor version, `3.11`.
        image: Image reference pinned by digest, or None.
        debian: Debian release whose packages give this Python, or None.
    """

    python: str
    image: str | None
    debian: str | None


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A `[targets."name"]` entry: a description for deviceless compilation, or where the host's CUDA libraries are.

    Attributes:
        describe: Path of the GPU's description, relative to matrix.toml.
        topology: `1x1x8`; None for a target without a size, whose cells bring theirs.
        cuda_libraries: Folders of the host's CUDA libraries, separated by colons, or None.
        autotune: Path of autotune results to compile with, or None.
        describe_sha256, autotune_sha256: Of the files' content when they were read; empty where there is no file.
        env: Environment variables of every attempt on real GPUs.
    """

    name: str
    describe: str | None
    topology: str | None
    cuda_libraries: str | None
    autotune: str | None = None
    describe_sha256: str = ""
    autotune_sha256: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SignatureRule:
    """A `[[signature]]` entry: a failure whose text or frames match `match` gets the title `title`."""

    match: str
    title: str


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The `[run]` table.

    Attributes:
        engine: `auto`, `docker`, `podman`, `venv` or `slurm`.
        timeout: Seconds an attempt may take.
        repeat: Attempts per cell.
        jobs: Attempts at once; 0 = one per two CPUs, at least one.
        memory: Bytes an attempt may use, or None for no limit.
        cores: `stacks`, `keep` or `off`: what is kept of core files.
        env: Environment variables of every attempt.
        default: Globs of environment ids that run when no environment and no repro is asked for; empty = all.
        hlo: `failures`, `text`, `passes` or `off`: as in `Cell`, where neither a repro nor its claims ask for another.
    """

    engine: str = "auto"
    timeout: float = 600.0
    repeat: int = 1
    jobs: int = 0
    memory: int | None = None
    cores: str = "stacks"
    env: tuple[tuple[str, str], ...] = ()
    default: tuple[str, ...] = ()
    hlo: str = "failures"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The whole of matrix.toml.

    Attributes:
        path: The file.
        axes: (axis, values) in the order of the file; always holds `jax`, `cuda`, `python` and `nccl`.
        as_of: `release`, `latest`, or an ISO date.
        locked: Every environment of which a lock is in the checkout; no part of the file.
    """

    path: Path
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    as_of: str
    excludes: tuple[Rule, ...] = ()
    overrides: tuple[Override, ...] = ()
    bases: tuple[Base, ...] = ()
    targets: tuple[TargetSpec, ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    signatures: tuple[SignatureRule, ...] = ()
    run: RunSettings = field(default_factory=RunSettings)
    locked: tuple[Environment, ...] = ()


@dataclass(frozen=True, slots=True)
class Expect:
    """One claim of the reporter; the first whose `when` holds counts.

    Attributes:
        when: Condition over axes, parameters, `target` and `engine`; empty = always.
        outcome: Outcomes that keep the claim; more than one only where machines differ (a crash here, a hang there).
        signal: Signal name that must have ended it, or None.
        exit_status: Exit status it must have ended with, or None.
        signature: Glob over the failure's signature titles, or None.
        line: Line in the script.
        metrics: (name, condition) pairs over numbers that the attempt printed or found; see `spec/metrics.py`.
        changed: Globs of passes; each must name one that changed a module.
        unchanged: Globs of passes of which none may have changed a module.
    """

    when: str
    outcome: tuple[Outcome, ...]
    signal: str | None
    exit_status: int | None
    signature: str | None
    line: int
    metrics: tuple[tuple[str, str], ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """What must be seen for an `ok` to count: patterns in the HLO, names of passes, patterns in the output."""

    hlo: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisChoice:
    """A repro's word on one axis: `specifier` narrows the matrix's values, `values` replaces them (so it can widen)."""

    specifier: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repro:
    """One script of `repros/` with its metadata.

    Attributes:
        name: File name without suffix.
        path: The script.
        source: Its text.
        sha256: Hash of the script and of the `files` it needs.
        body: Hash of what decides a result: the script without its metadata, the `files`, and the witness. A claim or
            a title can be corrected without running anything again.
        probe: True where it has no body of its own: strings, symbols and flags looked up in the installed wheels.
        env: Variables for the script; `{name}` of a declared parameter is replaced by its value.
        params: (name, values) pairs; their product multiplies the cells.
        timeout, memory, repeat: None = as `[run]` says.
        cpus: Size of the CPU set, or None for all.
        processes: Ranks started in one attempt.
        hlo: `text`, `passes`, `off`, or None for the default.
        targets: A probe has one, `wheels`.
        strings, symbols, flags: What a probe looks up; empty for other repros.
        libraries: Projects whose binaries a probe looks into, names normalised; empty = all of jax's own.
        about: What was claimed and what is true, in paragraphs; empty = the script's docstring says it.
    """

    name: str
    path: Path
    source: str
    sha256: str
    title: str = ""
    issue: str = ""
    targets: tuple[str, ...] = ("cpu",)
    timeout: float | None = None
    env: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()
    witness: Witness | None = None
    expect: tuple[Expect, ...] = ()
    packages: tuple[str, ...] = ()
    jax: AxisChoice | None = None
    python: AxisChoice | None = None
    cuda: AxisChoice | None = None
    processes: int = 1
    cpus: int | None = None
    memory: int | None = None
    hlo: str | None = None
    repeat: int | None = None
    files: tuple[str, ...] = ()
    body: str = ""
    probe: bool = False
    strings: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    about: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.sha256))  # cells are keys of many tables; the whole text need not be hashed


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment must hold, before it is locked.

    Attributes:
        axes: (axis, value) in canonical order: jax, jaxlib, cuda, python, nccl, then other packages by name.
        as_of: `release`, `latest`, or an ISO date.
        packages: Further requirements, sorted.
    """

    axes: tuple[tuple[str, str], ...]
    as_of: str = "release"
    packages: tuple[str, ...] = ()

    def axis(self, name: str) -> str | None:
        """The value on axis `name`, or None."""
        return dict(self.axes).get(name)

    @property
    def jax(self) -> str:
        return dict(self.axes)["jax"]

    @property
    def cuda(self) -> str:
        return dict(self.axes)["cuda"]

    @property
    def python(self) -> str:
        return dict(self.axes)["python"]

    @property
    def id(self) -> str:
        """Readable and unique: `jax0.10.2-cuda12-py312`, `jax0.10.2-cpu-py311-nccl2.28.9-x1a2b3c`."""
        parts = [f"jax{self.jax}"]
        if (jaxlib := self.axis("jaxlib")) is not None:
            parts.append(f"jaxlib{jaxlib}")
        parts.append("cpu" if self.cuda == "none" else "cuda" + self.cuda.replace("-", ""))
        parts.append("py" + self.python.replace(".", ""))
        for name, value in self.axes:
            if name == "nccl" and value != "locked":
                parts.append(f"nccl{value}")
            elif name not in ("jax", "jaxlib", "cuda", "python", "nccl"):
                parts.append(re.sub(r"[^a-z0-9.]+", "_", name.lower()) + value)
        if self.as_of != "release":
            parts.append("latest" if self.as_of == "latest" else "asof" + self.as_of.replace("-", ""))
        if self.packages:
            parts.append("x" + hashlib.sha256("\n".join(self.packages).encode()).hexdigest()[:6])
        return "-".join(parts)


@dataclass(frozen=True, slots=True)
class Described:
    """The GPUs that a deviceless cell is compiled for.

    Attributes:
        description: File with the text proto of the GPU.
        description_sha256: Of its content when matrix.toml was read.
        topology: Partitions x hosts x devices, `1x1x8`.
        autotune: File of autotune results, or None: nothing is autotuned.
        autotune_sha256: As `description_sha256`; empty without a file.
    """

    description: Path
    description_sha256: str
    topology: str
    autotune: Path | None = None
    autotune_sha256: str = ""

    @property
    def autotune_name(self) -> str:
        """Name under which the autotune results lie in the attempt's work folder; empty where there are none.

        XLA tells text by the name's ending, and not all versions know the same ones: a text called `.txtpb` is refused
        by 0.4.38 and read by 0.10.2, one called `.txt` is read by both (measured).
        """
        if self.autotune is None:
            return ""
        text = self.autotune.suffix in (".txt", ".txtpb", ".textproto", ".textpb", ".pbtxt", ".prototxt")
        return "autotune_results.txt" if text else "autotune_results.pb"


@dataclass(frozen=True, slots=True)
class Cell:
    """Environment x repro x parameters x target.

    Attributes:
        env: Variables of the attempt, parameters already put in.
        timeout: Seconds.
        expect: The claim that applies, or None.
        hlo: What is collected of the HLO: `text` (modules before and after optimisation, and which passes ran),
            `passes` (also the module after each pass that changed it), `failures` (as `passes`, of failed attempts
            alone) or `off`. Never `failures` for a deviceless cell, whose first run is the one that dumps.
        described: What a deviceless cell is compiled for; None for all others.
    """

    environment: Environment
    repro: Repro
    params: tuple[tuple[str, Scalar], ...]
    target: str
    env: tuple[tuple[str, str], ...] = ()
    timeout: float = 600.0
    memory: int | None = None
    repeat: int = 1
    expect: Expect | None = None
    hlo: str = "failures"
    described: Described | None = None

    @property
    def id(self) -> str:
        """`hlo_pass_crash@jax0.6.0-cpu-py311@cpu@flag=noop_change`: unique, shell-safe for plain parameter values."""
        parts = [self.repro.name, self.environment.id, self.target, *(f"{n}={word(v)}" for n, v in self.params)]
        return "@".join(parts)


@dataclass(frozen=True, slots=True)
class Excluded:
    """A cell that the files describe and that does not run, with the reason."""

    cell: Cell
    reason: str
