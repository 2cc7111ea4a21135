"""The invoke tasks: arguments in, exit code out. What they do is in `repromatrix/commands/`.

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
    from repromatrix import plan
    from repromatrix.commands import common, running

    asked = plan.Request(repro, env, target, engine, rerun=rerun, offline=offline, command=common.typed())
    _end(running.matrix(asked, json, jobs=jobs, repeat=repeat))


@task(auto_shortflags=False, help=_help("repro", "env", "target", "json"))
def cells(_: Context, repro: str = "", env: str = "", target: str = "", json: str = "") -> None:
    """List what would run, and why each excluded cell does not."""
    from repromatrix import plan
    from repromatrix.commands import running

    _end(running.cells(plan.Request(repro, env, target), json))


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
    from repromatrix import plan
    from repromatrix.commands import environments

    _end(environments.lock(plan.Request(repro, env), check=check, refresh=refresh, bases=bases, json=json))


@task(auto_shortflags=False, help=_help("repro", "env", "json"))
def fetch(_: Context, repro: str = "", env: str = "", json: str = "") -> None:
    """Download the wheels of the chosen environments into the store."""
    from repromatrix import plan
    from repromatrix.commands import environments

    _end(environments.fetch(plan.Request(repro, env), json))


@task(auto_shortflags=False, help=_help("repro", "env", "json", check="fail if a Dockerfile on disk is out of date"))
def render(_: Context, repro: str = "", env: str = "", check: bool = False, json: str = "") -> None:
    """Write one Dockerfile per chosen environment to containers/rendered/."""
    from repromatrix import plan
    from repromatrix.commands import environments

    _end(environments.render(plan.Request(repro, env), check=check, json=json))


@task(auto_shortflags=False, help=_help("repro", "env", "engine", "offline", "json"))
def build(_: Context, repro: str = "", env: str = "", engine: str = "", offline: bool = False, json: str = "") -> None:
    """Make the chosen environments ready: images for docker, venvs for venv."""
    from repromatrix import plan
    from repromatrix.commands import environments

    _end(environments.build(plan.Request(repro, env, engine=engine, offline=offline), json))


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
    from repromatrix import plan
    from repromatrix.commands import common, running

    asked = plan.Request(repro, env or "*", target, engine, offline=offline, command=common.typed())
    _end(running.run(asked, tuple(param or ()), json))


@task(
    auto_shortflags=False,
    positional=["first", "second"],
    iterable=["param"],
    help=_help(
        "repro",
        "target",
        "engine",
        "offline",
        "json",
        first="an environment's id, a glob that matches one alone, or a version of jax",
        second="the other one",
        param="a parameter as name=value; repeatable",
        flags="ask which flags each XLA accepts, where that is not known (some seconds each, kept in the store)",
        markdown="write the comparison as Markdown to this path",
    ),
)
def diff(
    _: Context,
    first: str,
    second: str,
    repro: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    flags: bool = False,
    offline: bool = False,
    markdown: str = "",
    json: str = "",
) -> None:
    """Compare two environments: packages, flags and, with --repro, what each compiler does to its program."""
    from repromatrix import plan
    from repromatrix.commands import common, compiler

    asked = plan.Request(repro, "", target, engine, offline=offline, command=common.typed())
    _end(compiler.diff(first, second, asked, tuple(param or ()), flags=flags, markdown=markdown, json=json))


@task(
    auto_shortflags=False,
    iterable=["param"],
    help=_help(
        "target",
        "engine",
        "offline",
        "json",
        capture="name of the target to write: containers/targets/NAME.txtpb",
        autotune="a repro to run: the results of its autotuning are written too",
        env="environment to do it in (the newest jax with NVIDIA's wheels)",
        param="a parameter of the repro as name=value; repeatable",
    ),
)
def target(
    _: Context,
    capture: str = "",
    autotune: str = "",
    env: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Describe the GPU of this machine, to compile for it on machines without one."""
    from repromatrix import plan
    from repromatrix.commands import common, compiler

    asked = plan.Request(autotune, env, target, engine, offline=offline, command=common.typed())
    _end(compiler.target(capture, asked, tuple(param or ()), json))


@task(auto_shortflags=False, help=_help("json"))
def report(_: Context, json: str = "") -> None:
    """Write reports/ again from the kept results."""
    from repromatrix.commands import running

    _end(running.report(json))


@task(auto_shortflags=False, help=_help("json"))
def regrade(_: Context, json: str = "") -> None:
    """Compute outcomes and signatures again from the kept evidence, and say what changed."""
    from repromatrix.commands import running

    _end(running.regrade(json))


@task(auto_shortflags=False, help=_help("json"))
def doctor(_: Context, json: str = "") -> None:
    """Check this host: engine, GPUs, disk, shared memory, core pattern, registry, index."""
    from repromatrix.commands import host

    _end(host.doctor(json))


@task(
    auto_shortflags=False, help={"script": "path of the script, or - for standard input", "name": "name of the repro"}
)
def new(_: Context, script: str, name: str = "") -> None:
    """Turn a script into a repro in repros/."""
    from repromatrix.commands import host

    _end(host.new(script, name))


@task(
    auto_shortflags=False,
    help={"only": "arguments for pytest, e.g. '-k spec'", "quick": "leave out network, container and slow tests"},
)
def test(_: Context, only: str = "", quick: bool = False) -> None:
    """Run the whole test suite: format, lint, types, tests."""
    from repromatrix.commands import host

    _end(host.test(only, quick))
