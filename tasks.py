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
        *("repro", "env", "json"),
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
    _end(running.run(asked, tuple(param or ()), json))


@task(
    auto_shortflags=False,
    positional=["first", "second"],
    iterable=["param"],
    help=_help(
        *("repro", "target", "engine", "offline", "json"),
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
        *("target", "engine", "offline", "json"),
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


@task(
    auto_shortflags=False,
    positional=["repro"],
    iterable=["param"],
    help=_help(
        *("env", "target", "engine", "offline", "json"),
        repro="name of the repro",
        cell="id of the cell, or a glob that matches one alone; without it the first cell that fails",
        param="a parameter as name=value; repeatable",
        to="folder to write (handoff/REPRO); its .tar.zst lies beside it",
    ),
)
def handoff(
    _: Context,
    repro: str,
    cell: str = "",
    env: str = "",
    target: str = "",
    param: list[str] | None = None,
    engine: str = "",
    to: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Write a folder with which anyone reproduces one cell by one command, without this tool."""
    from repromatrix import plan
    from repromatrix.commands import common, handoff

    asked = plan.Request(repro, env, target, engine, offline=offline, command=common.typed())
    _end(handoff.handoff(asked, cell, tuple(param or ()), to=to, json=json))


@task(
    auto_shortflags=False,
    positional=["repro"],
    help=_help(
        *("env", "target", "engine", "offline", "json"),
        repro="name of the repro",
        to="file to write (standard output)",
    ),
)
def issue(
    _: Context,
    repro: str,
    env: str = "",
    target: str = "",
    engine: str = "",
    to: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Write the text of a bug report on a repro, from the kept results, with nothing private in it."""
    from repromatrix import plan
    from repromatrix.commands import common, issue

    asked = plan.Request(repro, env, target, engine, offline=offline, command=common.typed())
    _end(issue.issue(asked, to=to, json=json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=_help(
        *("repro", "env", "offline", "json"),
        place="folder of the archive: made, or added to",
        wheels_only="leave out images, bases, Debian packages and results",
        no_results="leave out results and evidence",
        tool_python="Python versions that the restored tool may run on, separated by commas (this one's), or none",
        split_size="write numbered parts of at most this size to PLACE.parts too, e.g. 60M",
    ),
)
def archive(
    _: Context,
    place: str,
    repro: str = "",
    env: str = "",
    wheels_only: bool = False,
    no_results: bool = False,
    tool_python: str = "",
    split_size: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Put environments, repros, results and this tool into one archive that needs no network and no tool."""
    from repromatrix import plan
    from repromatrix.commands import archive, common

    asked = plan.Request(repro, env, offline=offline, command=common.typed())
    options = archive.Options(wheels_only, not no_results, tool_python, split_size)
    _end(archive.archive(asked, place, options, json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=_help(
        "json",
        place="folder of an archive, a part, or a folder of parts; . for what the store has of this checkout's locks",
        expect="the archive's id, as its sender says",
        upstream="ask the index which wheels have vanished or been yanked",
    ),
)
def verify(_: Context, place: str, expect: str = "", upstream: bool = False, json: str = "") -> None:
    """Find every flipped, missing, swapped or added byte of an archive."""
    from repromatrix.commands import restore

    _end(restore.verify(place, expect=expect, upstream=upstream, json=json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=_help(
        "json",
        place="folder of an archive, a part, or a folder of parts",
        into="new folder for the checkout; without it this checkout gets what it lacks",
        expect="the archive's id, as its sender says",
        no_images="load no images",
        no_results="take over no results",
        store_only="bring wheels, bases and images alone; the checkout is neither compared nor changed",
    ),
)
def restore(
    _: Context,
    place: str,
    into: str = "",
    expect: str = "",
    no_images: bool = False,
    no_results: bool = False,
    store_only: bool = False,
    json: str = "",
) -> None:
    """Bring an archive's environments, repros and results to this machine, with no network."""
    from repromatrix.commands import restore

    kept = {"images": not no_images, "results": not no_results, "store_only": store_only}
    _end(restore.restore(place, into=into, expect=expect, json=json, **kept))


@task(
    auto_shortflags=False,
    help=_help("json", keep="largest size of the store, e.g. 20G", dry_run="say what would go, and remove nothing"),
)
def gc(_: Context, keep: str = "", dry_run: bool = False, json: str = "") -> None:
    """Bring the store under a size without breaking what a lock, a result or an archive refers to."""
    from repromatrix.commands import upkeep

    _end(upkeep.gc(keep, dry_run=dry_run, json=json))


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


@task(
    auto_shortflags=False,
    help=_help("json", write_cdi="write a CDI specification of this host's GPUs into this folder"),
)
def doctor(_: Context, write_cdi: str = "", json: str = "") -> None:
    """Check this host: engine, GPUs, disk, shared memory, core pattern, registry, index."""
    from repromatrix.commands import host

    _end(host.doctor(json, write_cdi))


@task(auto_shortflags=False, help={"script": "path of the script, or - for stdin", "name": "name of the repro"})
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
