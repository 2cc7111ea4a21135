"""Tasks that end in cells: run them, list them, report them."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import HELP, end, told


@task(default=True, auto_shortflags=False, help=HELP)
def matrix(
    _: Context,
    repro: str = "",
    env: str = "",
    target: str = "",
    engine: str = "",
    jobs: str = "",
    repeat: str = "",
    rerun: bool = False,
    offline: bool = False,
    json: str = "",
) -> None:
    """Run every chosen cell and report: locks, fetches, builds, runs, grades. The main job."""
    from repromatrix import plan
    from repromatrix.commands import common, running

    asked = plan.Request(repro, env, target, engine, rerun=rerun, offline=offline, command=common.typed())
    end(running.matrix(asked, json, jobs=jobs, repeat=repeat))


@task(auto_shortflags=False, help=told("repro", "env", "target", "json"))
def cells(_: Context, repro: str = "", env: str = "", target: str = "", json: str = "") -> None:
    """List what would run, and why each excluded cell does not."""
    from repromatrix import plan
    from repromatrix.commands import running

    end(running.cells(plan.Request(repro, env, target), json))


@task(
    auto_shortflags=False,
    iterable=["param"],
    help=told(
        *("env", "target", "engine", "offline", "json"),
        repro="name of the repro",
        param="a parameter as name=value; repeatable",
    ),
)
def run(
    _: Context,
    repro: str,
    env: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Run one cell and stream its output."""
    from repromatrix import plan
    from repromatrix.commands import common, running

    asked = plan.Request(repro, env or "*", target, engine, offline=offline, command=common.typed())
    end(running.run(asked, tuple(param or ()), json))


@task(auto_shortflags=False, help=told("json"))
def report(_: Context, json: str = "") -> None:
    """Write reports/ again from the kept results."""
    from repromatrix.commands import running

    end(running.report(json))


@task(auto_shortflags=False, help=told("json"))
def regrade(_: Context, json: str = "") -> None:
    """Compute outcomes and signatures again from the kept evidence, and say what changed."""
    from repromatrix.commands import running

    end(running.regrade(json))
