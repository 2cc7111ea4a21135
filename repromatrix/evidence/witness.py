"""Whether the trigger was exercised: what a witness asks for, looked for in the output and in what was compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from repromatrix.spec.model import Witness


@dataclass(frozen=True, slots=True)
class Compiled:
    """What an attempt compiled, as far as a witness needs it.

    Attributes:
        optimised: Texts of the modules after optimisation.
        unread: Such texts that are not among them: too many, too large, or not kept.
        ran: Names of the passes that ran.
        trouble: Why something, or all of it, is missing; empty where nothing is known to be.
    """

    optimised: tuple[str, ...] = ()
    unread: int = 0
    ran: tuple[str, ...] = ()
    trouble: str = ""


def lacking(witness: Witness, stdout: str, stderr: str, compiled: Compiled | None) -> str:
    """What of `witness` was not seen, in words; empty where all of it was.

    Args:
        compiled: None where nothing of the HLO was collected.
    """
    if unsaid := [wanted for wanted in witness.output if not seen(wanted, (stdout, stderr))]:
        return "the output lacks " + _listed(unsaid)
    if not (witness.hlo or witness.passes):
        return ""
    if compiled is None:
        return "the HLO was not collected, so the witness cannot be checked"
    told = f" ({compiled.trouble})" if compiled.trouble else ""
    if absent := [wanted for wanted in witness.hlo if not seen(wanted, compiled.optimised)]:
        if not compiled.optimised:
            return f"no optimised HLO was collected{told}, so the witness cannot be checked"
        return f"{_modules(compiled)} without {_listed(absent)}{told}"
    # All of it in one module: a loop in one and a collective in another is not a loop with the collective.
    if witness.hlo and not any(all(seen(wanted, (text,)) for wanted in witness.hlo) for text in compiled.optimised):
        return f"{_modules(compiled)}, none with all of {_listed(witness.hlo)}{told}"
    if idle := [name for name in witness.passes if not any(fnmatchcase(one, name) for one in compiled.ran)]:
        if not compiled.ran:
            return f"no log of passes was collected{told}, so the witness cannot be checked"
        return f"these passes did not run: {_listed(idle)}{told}"
    return ""


def seen(wanted: str, texts: Iterable[str]) -> bool:
    """Whether `wanted` is in one of the texts: as it stands, or as a regular expression that is found."""
    texts = tuple(texts)
    if any(wanted in text for text in texts):
        return True
    try:
        pattern = re.compile(wanted)
    except re.error:
        return False
    return any(pattern.search(text) for text in texts)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))


def _modules(compiled: Compiled) -> str:
    count = len(compiled.optimised)
    words = ("1 module" if count == 1 else f"{count} modules") + " after optimisation"
    return words + (f" ({compiled.unread} more not read)" if compiled.unread else "")
