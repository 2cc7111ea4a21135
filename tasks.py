"""The invoke tasks. Their arguments are in `repromatrix/tasks/`, what they do is in `repromatrix/commands/`.

In a checkout `uv run invoke TASK` sets up the tool and runs a task.
"""

from __future__ import annotations

from repromatrix.tasks.compiler import diff, target
from repromatrix.tasks.environments import build, fetch, lock, render
from repromatrix.tasks.host import doctor, new, test
from repromatrix.tasks.running import cells, matrix, regrade, report, run
from repromatrix.tasks.searching import bisect, minimise
from repromatrix.tasks.sharing import archive, gc, handoff, issue, restore, verify

__all__ = [
    "archive",
    "bisect",
    "build",
    "cells",
    "diff",
    "doctor",
    "fetch",
    "gc",
    "handoff",
    "issue",
    "lock",
    "matrix",
    "minimise",
    "new",
    "regrade",
    "render",
    "report",
    "restore",
    "run",
    "target",
    "test",
    "verify",
]
