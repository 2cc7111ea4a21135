"""Tasks that carry cells and environments elsewhere."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import end, told


@task(
    auto_shortflags=False,
    positional=["repro"],
    iterable=["param"],
    help=told(
        *("env", "target", "engine", "offline", "json"),
        repro="name of the repro",
        cell="id of the cell, or a glob that matches one alone; without it the failure that `invoke issue` shows",
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
    end(handoff.handoff(asked, cell, tuple(param or ()), to=to, json=json))


@task(
    auto_shortflags=False,
    positional=["repro"],
    help=told(
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
    end(issue.issue(asked, to=to, json=json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=told(
        *("repro", "env", "offline", "json"),
        place="folder of the archive: made, or added to",
        wheels_only="leave out images, bases, Debian packages and results",
        no_results="leave out results and evidence",
        tool_python="Python versions that the restored tool may run on, separated by commas (this one's), or none",
        split_size="write numbered parts of at most this size to PLACE.parts too, e.g. 60M",
        oldest="with every release from here on, as `invoke bisect` tries them: a version or a day",
        newest="to here",
        axis="what --oldest and --newest are versions of (jax), as for `invoke bisect`",
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
    oldest: str = "",
    newest: str = "",
    axis: str = "",
    offline: bool = False,
    json: str = "",
) -> None:
    """Put environments, repros, results and this tool into one archive that needs no network and no tool."""
    from repromatrix import plan
    from repromatrix.commands import archive, common

    asked = plan.Request(repro, env, offline=offline, command=common.typed())
    options = archive.Options(wheels_only, not no_results, tool_python, split_size, oldest, newest, axis)
    end(archive.archive(asked, place, options, json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=told(
        "json",
        place="folder of an archive, a part, or a folder of parts; . for what the store has of this checkout's locks",
        expect="the archive's id, as its sender says",
        upstream="ask the index which wheels have vanished or been yanked",
    ),
)
def verify(_: Context, place: str, expect: str = "", upstream: bool = False, json: str = "") -> None:
    """Find every flipped, missing, swapped or added byte of an archive."""
    from repromatrix.commands import restore

    end(restore.verify(place, expect=expect, upstream=upstream, json=json))


@task(
    auto_shortflags=False,
    positional=["place"],
    help=told(
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
    end(restore.restore(place, into=into, expect=expect, json=json, **kept))


@task(
    auto_shortflags=False,
    help=told("json", keep="largest size of the store, e.g. 20G", dry_run="say what would go, and remove nothing"),
)
def gc(_: Context, keep: str = "", dry_run: bool = False, json: str = "") -> None:
    """Bring the store under a size without breaking what a lock, a result or an archive refers to."""
    from repromatrix.commands import upkeep

    end(upkeep.gc(keep, dry_run=dry_run, json=json))
