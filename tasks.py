"""The invoke tasks: arguments in, exit code out. What they do is in `repromatrix/commands.py`.

In a checkout `uv run invoke TASK` sets up the tool and runs a task.
"""

from __future__ import annotations

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

HELP = {
    "repro": "repros to take: globs over their names, separated by commas, or the path of a script",
    "env": "environments to take: globs over their ids, separated by commas ('*' = all)",
    "target": "targets to take: globs, separated by commas",
    "engine": "auto, docker or venv",
    "jobs": "attempts at once",
    "repeat": "attempts per cell",
    "rerun": "run again what is known already",
    "offline": "touch no network: locks and wheels must be here",
    "json": "write the result as one JSON document to this path ('-' = standard output)",
}


def _help(*names: str, **more: str) -> dict[str, str]:
    return {**{name: HELP[name] for name in names}, **more}


def _end(code: int) -> None:
    if code:
        raise Exit(code=code)


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
    from repromatrix import commands, plan

    asked = plan.Request(repro, env, target, engine, rerun=rerun, offline=offline, command=commands.typed())
    _end(commands.matrix(asked, json, jobs=jobs, repeat=repeat))


@task(auto_shortflags=False, help=_help("repro", "env", "target", "json"))
def cells(_: Context, repro: str = "", env: str = "", target: str = "", json: str = "") -> None:
    """List what would run, and why each excluded cell does not."""
    from repromatrix import commands, plan

    _end(commands.cells(plan.Request(repro, env, target), json))


@task(
    auto_shortflags=False,
    help=_help(
        "repro",
        "env",
        "json",
        check="compare the locks with what the index gives now; fail on drift",
        refresh="resolve again what is locked already",
        bases="resolve the digests of the base images again",
    ),
)
def lock(
    _: Context,
    repro: str = "",
    env: str = "",
    check: bool = False,
    refresh: bool = False,
    bases: bool = False,
    json: str = "",
) -> None:
    """Fix every wheel of the chosen environments in containers/locks/."""
    from repromatrix import commands, plan

    _end(commands.lock(plan.Request(repro, env), check=check, refresh=refresh, bases=bases, json=json))


@task(auto_shortflags=False, help=_help("repro", "env", "json"))
def fetch(_: Context, repro: str = "", env: str = "", json: str = "") -> None:
    """Download the wheels of the chosen environments into the store."""
    from repromatrix import commands, plan

    _end(commands.fetch(plan.Request(repro, env), json))


@task(auto_shortflags=False, help=_help("repro", "env", "json", check="fail if a Dockerfile on disk is out of date"))
def render(_: Context, repro: str = "", env: str = "", check: bool = False, json: str = "") -> None:
    """Write one Dockerfile per chosen environment to containers/rendered/."""
    from repromatrix import commands, plan

    _end(commands.render(plan.Request(repro, env), check=check, json=json))


@task(auto_shortflags=False, help=_help("repro", "env", "engine", "offline", "json"))
def build(_: Context, repro: str = "", env: str = "", engine: str = "", offline: bool = False, json: str = "") -> None:
    """Make the chosen environments ready: images for docker, venvs for venv."""
    from repromatrix import commands, plan

    _end(commands.build(plan.Request(repro, env, engine=engine, offline=offline), json))


@task(
    auto_shortflags=False,
    iterable=["param"],
    help=_help(
        "env",
        "target",
        "engine",
        "offline",
        "json",
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
    from repromatrix import commands, plan

    asked = plan.Request(repro, env or "*", target, engine, offline=offline, command=commands.typed())
    _end(commands.run(asked, tuple(param or ()), json))


@task(auto_shortflags=False, help=_help("json"))
def report(_: Context, json: str = "") -> None:
    """Write reports/ again from the kept results."""
    from repromatrix import commands

    _end(commands.report(json))


@task(auto_shortflags=False, help=_help("json"))
def regrade(_: Context, json: str = "") -> None:
    """Compute outcomes and signatures again from the kept evidence, and say what changed."""
    from repromatrix import commands

    _end(commands.regrade(json))


@task(auto_shortflags=False, help=_help("json"))
def doctor(_: Context, json: str = "") -> None:
    """Check this host: engine, GPUs, disk, shared memory, core pattern, registry, index."""
    from repromatrix import commands

    _end(commands.doctor(json))


@task(
    auto_shortflags=False, help={"script": "path of the script, or - for standard input", "name": "name of the repro"}
)
def new(_: Context, script: str, name: str = "") -> None:
    """Turn a script into a repro in repros/."""
    from repromatrix import commands

    _end(commands.new(script, name))


@task(
    auto_shortflags=False,
    help={"only": "arguments for pytest, e.g. '-k spec'", "quick": "leave out network, container and slow tests"},
)
def test(_: Context, only: str = "", quick: bool = False) -> None:
    """Run the whole test suite: format, lint, types, tests."""
    from repromatrix import commands

    _end(commands.test(only, quick))
