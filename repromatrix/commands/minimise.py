"""`invoke minimise`."""

from __future__ import annotations

from repromatrix.commands.common import command, uses_store
from repromatrix.plan import Request
from repromatrix.search.model import Rules


@command
@uses_store
def minimise(
    request: Request,
    sure: Rules,
    params: tuple[str, ...],
    *,
    cell: str,
    good: str,
    what: str,
    jobs: str,
    markdown: str,
    json: str,
) -> int:
    raise NotImplementedError
