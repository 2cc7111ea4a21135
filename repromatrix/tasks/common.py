"""What the tasks share: the help of options that several have, and the exit code."""

from __future__ import annotations

from invoke.exceptions import Exit

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


def told(*names: str, **more: str) -> dict[str, str]:
    return {**{name: HELP[name] for name in names}, **more}


def end(code: int) -> None:
    if code:
        raise Exit(code=code)
