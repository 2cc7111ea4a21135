"""What the commands that search have in common: how sure an answer must be."""

from __future__ import annotations

from repromatrix.commands.common import count
from repromatrix.errors import UserError
from repromatrix.search.model import Rules


def rules(confidence: str, rate: str, attempts: str) -> Rules:
    """How sure an answer must be, of what the command line says; empty = as `Rules` has it.

    Raises:
        UserError: One is no number, or out of its bounds.
    """
    usual = Rules()
    return Rules(
        confidence=_share("confidence", confidence) if confidence else usual.confidence,
        rate=_share("rate", rate) if rate else usual.rate,
        most=count("attempts", attempts) or usual.most,
    )


def _share(option: str, text: str) -> float:
    """A number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UserError(f"--{option} {text!r} is not a number from 0 to below 1", hint=f"for example --{option} 0.95")
    return value
