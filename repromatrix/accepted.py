"""Which flags the XLA of an environment accepts: asked once, by `containers/probe.py`, and kept in the store."""

from __future__ import annotations

import threading

from repromatrix.engines.base import Engine
from repromatrix.envs.disk import write_text
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Listener
from repromatrix.evidence.outcome import PROBE
from repromatrix.evidence.probe import Probe, read_probe
from repromatrix.programs import program
from repromatrix.project import Project

TIMEOUT = 300.0
"""Seconds. It takes 3 s with 0.10.2, whose list has to be guessed at, and 1 s with 0.4.30."""


def kept_flags(lock: Lock, project: Project) -> Probe | None:
    """What was found of this lock before; None where nothing was."""
    try:
        return read_probe((project.store / "flags" / f"{lock.hash}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def ask_flags(lock: Lock, project: Project, engine: Engine, listener: Listener, cancel: threading.Event) -> Probe:
    """Ask the XLA of `lock`, whose wheels are in the store, and keep the answer. No answer: `Probe.trouble` says why.

    Raises:
        InfraError: The engine failed, or the disk is full.
        KeyboardInterrupt: `cancel` was set.
    """
    asked = (PROBE, ("--all-flags",), lock, project, engine, listener, cancel)
    with program(*asked, timeout=TIMEOUT, doing=f"flags of {lock.id}") as ran:
        try:
            text = ran.text("work/probe.json")
            found = read_probe(text)
        except (OSError, ValueError) as error:
            raise InfraError(f"{PROBE} left no answer, it {ran.ending}", where=lock.id) from error
    if found.known and not found.trouble:
        write_text(project.store / "flags" / f"{lock.hash}.json", text)
    return found
