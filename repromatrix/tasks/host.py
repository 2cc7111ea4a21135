"""Tasks on this host and this checkout."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import end, told


@task(
    auto_shortflags=False,
    help=told("json", write_cdi="write a CDI specification of this host's GPUs into this folder"),
)
def doctor(_: Context, write_cdi: str = "", json: str = "") -> None:
    """Check this host: engine, GPUs, disk, shared memory, core pattern, registry, index."""
    from repromatrix.commands import host

    end(host.doctor(json, write_cdi))


@task(auto_shortflags=False, help={"script": "path of the script, or - for stdin", "name": "name of the repro"})
def new(_: Context, script: str, name: str = "") -> None:
    """Turn a script into a repro in repros/."""
    from repromatrix.commands import host

    end(host.new(script, name))


@task(
    auto_shortflags=False,
    help={"only": "arguments for pytest, e.g. '-k spec'", "quick": "leave out network, container and slow tests"},
)
def test(_: Context, only: str = "", quick: bool = False) -> None:
    """Run the whole test suite: format, lint, types, tests."""
    from repromatrix.commands import host

    end(host.test(only, quick))
