"""The command line with which JAX-Toolbox's triage goes on from two releases to one commit.

It builds jax and XLA at commits between the two within an image of JAX-Toolbox and runs a test command in each: exit 0
passes, anything else fails. It looks for a failure that begins, and for nothing else.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from repromatrix.regressions.model import FoundEdge
from repromatrix.share.issues.releases import Release, tag, told_apart_by
from repromatrix.spec.model import Cell, word

_FOLDER = "/repros"
"""Where the repro's folder stands in the container."""


@dataclass(frozen=True, slots=True)
class Triage:
    """How to go on.

    Attributes:
        command: For a shell, in a checkout; empty where there is none.
        fill_in: Sentences: what stands for the words in capitals and what else to know, or why there is no command.
    """

    command: str
    fill_in: tuple[str, ...]


def triage(edge: FoundEdge, cell: Cell, times: int = 1) -> Triage:
    """How to go on from `edge`, of whose history any cell will do: its script, parameters and variables count.

    Args:
        times: Runs of the script in each version, of which none may fail: more than 1 where the failure comes and goes.
    """
    if edge.source is None:
        return Triage("", ())
    if cell.described is not None or cell.repro.processes > 1:
        what = "one process on GPUs that are there" if cell.described is not None else "a single process"
        return Triage("", (f"JAX-Toolbox's triage runs {what}: for this repro there is no command line.",))
    of = _Source.of_jaxlib if told_apart_by(*edge.releases) == "jaxlib" else _Source.of_jax
    ends = [of(release) for release in edge.releases]
    words = [
        *("jax-toolbox-triage", "--container-runtime", "docker", "--failing-container", "IMAGE"),
        *("--passing-versions", ends[0].versions, "--failing-versions", ends[1].versions),
    ]
    command = f'{shlex.join(words)} -v "$PWD/repros:{_FOLDER}" -- {shlex.join(_test(edge, cell, times))}'
    return Triage(command, tuple(_fill_in(edge, ends)))


@dataclass(frozen=True, slots=True)
class _Source:
    """The commits of jax and XLA of one end, or what stands for them where they are not known."""

    jax: str
    xla: str

    @classmethod
    def of_jax(cls, release: Release) -> _Source:
        """XLA is in jaxlib: where that is another release than jax, it pins the commit."""
        at = tag(release.version("jaxlib")) or release.reference[:12]
        return cls(release.commit or f"JAX_AT_{release.reference}", f"XLA_AT_{at}")

    @classmethod
    def of_jaxlib(cls, release: Release) -> _Source:
        """The tool builds jax and jaxlib from one checkout."""
        return cls(release.jaxlib_commit, f"XLA_AT_{release.jaxlib_commit[:12]}")

    @property
    def versions(self) -> str:
        return f"jax:{self.jax},xla:{self.xla}"


def _test(edge: FoundEdge, cell: Cell, times: int) -> list[str]:
    variables = [f"{name}={value}" for name, value in cell.env]
    params = [part for name, value in cell.params for part in (f"--{name}", word(value))]
    run = [*(["env", *variables] if variables else []), "python3", f"{_FOLDER}/{cell.repro.path.name}", *params]
    if times > 1:
        fails, passes = (1, 0) if edge.begins else (0, 1)
        loop = f"for i in $(seq {times}); do {shlex.join(run)} || exit {fails}; done; exit {passes}"
        return ["sh", "-c", loop]
    return run if edge.begins else ["sh", "-c", f"! {shlex.join(run)}"]


def _fill_in(edge: FoundEdge, ends: list[_Source]) -> list[str]:
    tags = [end for end in ends if end.jax.startswith("JAX_AT_")]
    names = ", ".join(end.jax for end in tags)
    commits = [f"{names}: `git rev-list -n 1 TAG` in a checkout of jax"] if tags else []
    xla = (
        f"{', '.join(dict.fromkeys(end.xla for end in ends))}: the commit in third_party/xla/revision.bzl (in older"
        " releases workspace.bzl) of jax there"
    )
    said = [f"To fill in: {'; '.join(['IMAGE: an image of JAX-Toolbox from about those days', *commits, xla])}."]
    if told_apart_by(*edge.releases) == "jaxlib":
        said.append(
            "The commits of jax are those that jaxlib was built from. It builds jax from them too, which stayed"
            f" {edge.releases[0].jax} in this search: see first that the two ends pass and fail there."
        )
    said.append("Any exit status but 0 counts as this failure there: look at the first one that it shows.")
    if not edge.begins:
        said.append(
            "It looks for a failure that begins, so that the test is turned round: it passes where the repro fails."
        )
    return said
