"""Tasks for the steps before a run."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import end, told


@task(
    auto_shortflags=False,
    help=told(
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

    end(environments.lock(plan.Request(repro, env), check=check, refresh=refresh, bases=bases, json=json))


@task(auto_shortflags=False, help=told("repro", "env", "json"))
def fetch(_: Context, repro: str = "", env: str = "", json: str = "") -> None:
    """Download the wheels of the chosen environments into the store."""
    from repromatrix import plan
    from repromatrix.commands import environments

    end(environments.fetch(plan.Request(repro, env), json))


@task(auto_shortflags=False, help=told("repro", "env", "json", check="fail if a Dockerfile on disk is out of date"))
def render(_: Context, repro: str = "", env: str = "", check: bool = False, json: str = "") -> None:
    """Write one Dockerfile per chosen environment to containers/rendered/."""
    from repromatrix import plan
    from repromatrix.commands import environments

    end(environments.render(plan.Request(repro, env), check=check, json=json))


@task(auto_shortflags=False, help=told("repro", "env", "engine", "offline", "json"))
def build(_: Context, repro: str = "", env: str = "", engine: str = "", offline: bool = False, json: str = "") -> None:
    """Make the chosen environments ready: images for docker and podman, venvs for venv."""
    from repromatrix import plan
    from repromatrix.commands import environments

    end(environments.build(plan.Request(repro, env, engine=engine, offline=offline), json))
