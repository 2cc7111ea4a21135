"""What the tasks share: the help of options that several have, and the exit code."""

from __future__ import annotations

from invoke.exceptions import Exit

HELP = {
    "repro": "repros to take: globs over their names, separated by commas, or the path of a script",
    "env": "environments: globs over the matrix's ids ('*' = all), or exact ids of locked ones, separated by commas",
    "target": "targets to take: globs, separated by commas",
    "engine": "auto, docker, podman or venv",
    "jobs": "attempts at once",
    "repeat": "attempts per cell",
    "rerun": "run again what is known already",
    "offline": "touch no network: locks and wheels must be here",
    "json": "write the result as one JSON document to this path ('-' = standard output)",
}


def told(*names: str, **more: str) -> dict[str, str]:
    """The help of a task: of the shared options named, and of its own."""
    return {**{name: HELP[name] for name in names}, **more}


def end(code: int) -> None:
    """End the task with an exit code; 0 lets invoke go on to the next task.

    Raises:
        Exit: It is another.
    """
    if code:
        raise Exit(code=code)
