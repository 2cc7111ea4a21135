"""Errors a person can act on: each carries its exit code, the place it speaks of, and what to do next."""

from __future__ import annotations


class ReproError(Exception):
    """An error shown without a traceback.

    Attributes:
        message: What happened, one sentence.
        where: The file, line, cell or address it happened at; empty when there is no better place than the message.
        hint: What to do next; empty when nothing can be advised.
        exit_code: The process's exit status (DESIGN: 1 contradicted, 2 user input, 3 infrastructure, 130 interrupted).
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head

    @property
    def line(self) -> str:
        """All of it in one line, for tables: `where: message; hint`."""
        lines = (line.strip() for line in str(self).splitlines())
        return "; ".join(filter(None, lines)).replace(":; ", ": ")


class UserError(ReproError):
    """The user's input is wrong; nothing was touched."""

    exit_code = 2


class InputErrors(UserError):
    """Every mistake of one or more files at once, in the order of the files and their lines."""

    def __init__(self, errors: list[UserError]) -> None:
        super().__init__(f"{len(errors)} mistake{'s' * (len(errors) != 1)} in the input")
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class InfraError(ReproError):
    """The machine, network, index, disk or engine failed; never the fault of a version under test."""

    exit_code = 3
