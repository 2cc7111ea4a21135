"""The format of matrix.toml."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from repromatrix.spec.fields import (
    Condition,
    Count,
    Cudas,
    Duration,
    Memory,
    Nccls,
    Package,
    Pythons,
    PythonText,
    Spelled,
    Table,
    Text,
    Variables,
    Versions,
    refuse,
)
from repromatrix.spec.words import nearest, shown


def _as_of(value: object) -> object:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()  # TOML has dates of its own: `as_of = 2026-01-31`
    if value in ("release", "latest") or (isinstance(value, str) and _is_date(value)):
        return value
    advice = nearest(value, ["release", "latest"]) if isinstance(value, str) else ""
    return refuse(f'expected "release", "latest" or a date such as "2026-01-31", found {shown(value)}', advice)


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _index(value: str) -> str:
    try:
        address = urlsplit(value)
        secret = address.username or address.password
    except ValueError:
        refuse(f"expected an address, found {shown(value)}")
    if address.scheme not in ("http", "https", "file") or not (address.netloc or address.path):
        refuse(f'expected an address that begins with "https://", found {shown(value)}')
    if secret:
        refuse("an address in a committed file must hold no credentials", "keep them in uv's settings or in ~/.netrc")
    return value


AsOf = Annotated[
    str,
    BeforeValidator(_as_of),
    WithJsonSchema({"anyOf": [{"enum": ["release", "latest"]}, {"type": "string", "format": "date"}]}),
]
Image = Annotated[
    str,
    Spelled(
        r"[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}",
        "an image pinned by digest",
        "a tag can move: add @sha256: and the image's 64 hex digits; `invoke lock --bases` finds them",
    ),
]
IndexName = Annotated[str, Spelled("[a-z][a-z0-9-]*", "a lower-case name")]
Topology = Annotated[str, Spelled("[1-9][0-9]*(x[1-9][0-9]*){2}", 'partitions x hosts x devices, as "1x1x8"')]


class AxesTable(Table):
    """Axes. Any other key is the name of a package, with exact versions; in quotes where it is near an axis' name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Versions]

    jax: Versions = Field(description="Releases of jax; each implies the jaxlib of that release.")
    python: Pythons = Field(description="Minor versions of Python.")
    jaxlib: Versions | None = Field(None, description="Releases of jaxlib, where it shall differ from jax's own.")
    cuda: Cudas = Field(
        ["none"], description='"none" = CPU wheels; "12" = jax[cuda12]; "12-local" = jax[cuda12-local].'
    )
    nccl: Nccls = Field(["locked"], description='"locked" = as resolved, or exact versions of nvidia-nccl-cuNN.')
    as_of: AsOf = Field("release", description="The day as of which every other dependency is resolved.")


class ExcludeTable(Table):
    """Conditions on axes, `repro` and `target`: version specifiers or globs."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Condition]

    reason: str = Field("", description="Why, for `invoke cells`.")


class OverrideTable(Table):
    select: Text = Field(description="Glob of environment ids, as they are without overrides and packages.")
    inherit: Literal["replace", "append"] = Field("replace", description="What happens to lists and tables.")
    python: PythonText | None = Field(None, description="Python of these environments.")
    as_of: AsOf | None = Field(None, description="As in [matrix].")
    packages: list[Package] | None = Field(None, description="Further requirements.")
    env: Variables | None = Field(None, description="Environment variables of every attempt.")
    timeout: Duration | None = Field(None, description="Limit of one attempt.")


class BaseTable(Table):
    image: Image | None = Field(None, description="Image pinned by digest.")
    debian: Annotated[str, Spelled("[a-z]+", 'a release name such as "bookworm"')] | None = Field(
        None, description="Debian release whose packages give this Python."
    )


class TargetTable(Table):
    describe: Text | None = Field(None, description="File that describes the target, for deviceless compilation.")
    topology: Topology | None = Field(None, description="Partitions x hosts x devices.")
    autotune: Text | None = Field(None, description="File of autotune results to compile with.")
    cuda_libraries: Annotated[str, Spelled("/[^:]*(:/[^:]*)*", "an absolute path")] | None = Field(
        None,
        description="Where CUDA's libraries are on this host, for `12-local` and `13-local`: a CUDA toolkit, or a "
        "site-packages with NVIDIA's wheels; several are separated by colons.",
    )
    env: Variables = Field({}, description="Environment variables of every attempt on real GPUs.")


class SignatureTable(Table):
    match: Text = Field(description="What the failure's text or frames hold.")
    title: Text = Field(description="Title that such a failure gets.")


class RunTable(Table):
    engine: Literal["auto", "docker", "podman", "venv", "slurm"] = Field("auto", description="What runs attempts.")
    timeout: Duration = Field(600.0, description="Limit of one attempt.")
    repeat: Count = Field(1, description="Attempts per cell.")
    jobs: Annotated[int, Field(ge=0)] = Field(0, description="Attempts at once; 0 = one per two CPUs.")
    memory: Memory | None = Field(None, description="Memory that one attempt may use.")
    cores: Literal["stacks", "keep", "off"] = Field(
        "stacks",
        description="`keep`: core files stay in the evidence; `stacks` (not read yet), `off`: none is kept.",
    )
    hlo: Literal["failures", "text", "passes", "off"] = Field(
        "failures",
        description="What is collected of the HLO: of failures alone (in a second run), or of every attempt.",
    )
    env: Variables = Field({}, description="Environment variables of every attempt.")
    default: list[Text] = Field([], description="Globs of environment ids that run when none is asked for.")


class MatrixFile(Table):
    """matrix.toml: the axes, environments, targets and engine settings."""

    matrix: AxesTable
    exclude: list[ExcludeTable] = Field([], description="A cell that matches every key of one entry does not run.")
    override: list[OverrideTable] = Field([], description="Settings of the environments that `select` matches.")
    bases: dict[PythonText, BaseTable] = Field({}, description="Where the interpreter of a Python comes from.")
    targets: dict[str, TargetTable] = Field({}, description="Targets beside cpu and gpu.")
    indexes: dict[IndexName, Annotated[str, AfterValidator(_index)]] = Field(
        {}, description="Further indexes; `nightly` serves versions like 0.11.0.dev20260701."
    )
    signature: list[SignatureTable] = Field([], description="Titles of known failures.")
    run: RunTable = Field(RunTable.model_validate({}), description="How attempts run.")
