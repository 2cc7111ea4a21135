"""Tasks that look for the cause: since when, and because of what."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import end, told

_SURE = {
    "confidence": "least probability that an answer is right (0.99); 0 = nothing is repeated",
    "rate": "least rate at which a bad version fails (0.1); else it counts as certain until it does not",
    "attempts": "attempts of one version at most (50)",
}


@task(
    auto_shortflags=False,
    positional=["repro"],
    iterable=["param"],
    help=told(
        *("env", "target", "engine", "jobs", "rerun", "offline", "json"),
        repro="name of the repro",
        good="a version that is good",
        bad="a version that is bad",
        oldest="where the search begins, if nothing is known of that version",
        newest="where the search ends, if nothing is known of that version",
        axis="what changes: jax, jaxlib, nccl, any package, or date (of all that nothing pins)",
        signature="the failure that is looked for: a glob over its title (that of the bad version)",
        metric="a REPRO_METRIC: NAME>1.5 is bad where that holds, NAME alone where it is nearer to the bad version's",
        find="regression, fix, or any",
        sweep="versions looked at first: all, minor (the last of each minor release), a number, or 0",
        nightly="go on with nightly builds of the index called nightly",
        param="a parameter as name=value; repeatable",
        no_prefetch="make nothing ready that is not needed yet",
        markdown="write the report as Markdown to this path",
        **_SURE,
    ),
)
def bisect(
    _: Context,
    repro: str,
    good: str = "",
    bad: str = "",
    oldest: str = "",
    newest: str = "",
    axis: str = "jax",
    signature: str = "",
    metric: str = "",
    find: str = "any",
    sweep: str = "minor",
    nightly: bool = False,
    env: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    jobs: str = "",
    confidence: str = "",
    rate: str = "",
    attempts: str = "",
    no_prefetch: bool = False,
    rerun: bool = False,
    offline: bool = False,
    markdown: str = "",
    json: str = "",
) -> None:
    """Find since when a repro fails, and until when: sweep over the releases, then bisect each change."""
    from repromatrix import plan
    from repromatrix.commands import bisect, common
    from repromatrix.commands.searching import Sure
    from repromatrix.regressions.model import Wanted

    asked = plan.Request(repro, env, target, engine, rerun=rerun, offline=offline, command=common.typed())
    wanted = Wanted(good, bad, oldest, newest, axis, signature, metric, find, sweep, nightly, not no_prefetch)
    sure = Sure(confidence, rate, attempts)
    end(bisect.bisect(asked, wanted, sure, tuple(param or ()), jobs=jobs, markdown=markdown, json=json))


@task(
    auto_shortflags=False,
    positional=["repro"],
    iterable=["param"],
    help=told(
        *("target", "engine", "jobs", "offline", "json"),
        repro="name of the repro",
        cell="id of the failing cell, or a glob that matches one alone; without it the first that fails",
        env="environment of the failing cell",
        good="environment that is good: the packages are looked for that make the difference to the failing one's",
        what="packages, flags, env, threshold, separated by commas (all that apply)",
        param="name=value of the failing cell, or name=LOW..HIGH for the threshold between; repeatable",
        markdown="write the report as Markdown to this path",
        **_SURE,
    ),
)
def minimise(
    _: Context,
    repro: str,
    cell: str = "",
    env: str = "",
    good: str = "",
    what: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    jobs: str = "",
    confidence: str = "",
    rate: str = "",
    attempts: str = "",
    offline: bool = False,
    markdown: str = "",
    json: str = "",
) -> None:
    """Find the smallest difference that flips the verdict: packages, XLA flags, variables, a parameter's threshold."""
    from repromatrix import plan
    from repromatrix.commands import common, minimise
    from repromatrix.commands.searching import Sure

    asked = plan.Request(repro, env, target, engine, offline=offline, command=common.typed())
    sure, params = Sure(confidence, rate, attempts), tuple(param or ())
    end(
        minimise.minimise(asked, sure, params, cell=cell, good=good, what=what, jobs=jobs, markdown=markdown, json=json)
    )
