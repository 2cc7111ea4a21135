"""Where things are: the paths of a checkout, and of the store that all checkouts of a machine share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from repromatrix.errors import UserError

TOOL_ROOT = Path(__file__).resolve().parents[1]
"""The checkout that this tool runs from; it may be another than the one it works on."""


@dataclass(frozen=True, slots=True)
class Project:
    """The paths of one checkout and of the store it uses.

    Attributes:
        root: The folder that holds `matrix.toml`.
        store: Content-addressed wheels, unpacked trees, bases and venvs; shared by checkouts, safe to delete.
    """

    root: Path
    store: Path

    @property
    def matrix_toml(self) -> Path:
        return self.root / "matrix.toml"

    @property
    def repros(self) -> Path:
        return self.root / "repros"

    @property
    def containers(self) -> Path:
        return self.root / "containers"

    @property
    def locks(self) -> Path:
        return self.containers / "locks"

    @property
    def rendered(self) -> Path:
        return self.containers / "rendered"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def state(self) -> Path:
        """Results and evidence of this checkout; not committed, not to be deleted lightly."""
        return self.root / ".repromatrix"


def find_project(start: Path | None = None) -> Project:
    """The project around `start` (default: the working directory).

    The store is `$REPROMATRIX_STORE`, else `repromatrix` under `$XDG_CACHE_HOME`, else under `~/.cache`.

    Raises:
        UserError: No `matrix.toml` in `start` or any folder above it.
    """
    here = (start or Path.cwd()).resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    store = Path(os.environ.get("REPROMATRIX_STORE") or cache / "repromatrix").expanduser().resolve()
    for folder in (here, *here.parents):
        if (folder / "matrix.toml").is_file():
            return Project(folder, store)
    raise UserError(
        "no matrix.toml here or in any folder above", where=str(here), hint="run it inside a checkout of the project"
    )
