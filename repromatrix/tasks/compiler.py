"""Tasks on what the compiler does."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from repromatrix.tasks.common import end, told


@task(
    auto_shortflags=False,
    positional=["first", "second"],
    iterable=["param"],
    help=told(
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
    end(compiler.diff(first, second, asked, tuple(param or ()), flags=flags, markdown=markdown, json=json))


@task(
    auto_shortflags=False,
    iterable=["param"],
    help=told(
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
    end(compiler.target(capture, asked, tuple(param or ()), json))
