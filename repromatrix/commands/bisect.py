"""`invoke bisect`."""

from __future__ import annotations

from repromatrix.commands.common import command, uses_store
from repromatrix.plan import Request
from repromatrix.regressions.model import Wanted
from repromatrix.search.model import Rules


@command
@uses_store
def bisect(
    request: Request, wanted: Wanted, sure: Rules, params: tuple[str, ...], *, jobs: str, markdown: str, json: str
) -> int:
    raise NotImplementedError
