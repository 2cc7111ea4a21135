"""How the middle tells the edge what it is doing: phases, amounts and notes, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Task(Protocol):
    """One piece of work in progress."""

    def advance(self, amount: int) -> None:
        """Add `amount` units (bytes, files, cells: the unit given to `Listener.start`)."""

    def finish(self, note: str = "") -> None:
        """End the task; `note` says how it went. Ending twice does nothing."""


class Listener(Protocol):
    """Receives progress. Every method may be called from any thread."""

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        """Begin a task.

        Args:
            phase: One word: `lock`, `fetch`, `unpack`, `base`, `build`, `venv`, `run`, `report`, `copy`, `split`,
                `save`, `load`, `verify`, `gc`, `try`.
            name: What is worked on: a wheel's file name, an environment's id, a cell's id.
            total: Units expected, or None where unknown.
            unit: `B` for bytes, empty for a count.
        """

    def note(self, message: str) -> None:
        """Say something a reader wants to know and that is not a problem."""

    def warn(self, message: str) -> None:
        """Say something that may explain a later surprise."""


class _SilentTask:
    def advance(self, amount: int) -> None:
        pass

    def finish(self, note: str = "") -> None:
        pass


class Silent:
    """A listener that says nothing: for tests and for library use."""

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        return _SilentTask()

    def note(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        pass
