"""What matrix.toml leaves to the machine: where CUDA's libraries are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from repromatrix.errors import UserError
from repromatrix.spec.model import Matrix, TargetSpec

CUDA_LIBRARIES = "REPROMATRIX_CUDA_LIBRARIES"
"""Variable that stands for `[targets.gpu] cuda_libraries` and wins over it: a committed file fits one machine alone."""


def with_host(matrix: Matrix, environ: Mapping[str, str] = os.environ) -> Matrix:
    """`matrix` with CUDA's libraries where this host has them.

    Raises:
        UserError: A folder is not given by an absolute path.
    """
    given = environ.get(CUDA_LIBRARIES, "")
    if not given:
        return matrix
    if not all(folder.startswith("/") for folder in given.split(":")):
        raise UserError(f"expected absolute paths, separated by colons, found {given!r}", where=CUDA_LIBRARIES)
    return _with_libraries(matrix, given)


def anywhere(matrix: Matrix) -> Matrix:
    """`matrix` for a host that has CUDA's libraries, whatever this one has: every environment that may be locked."""
    return _with_libraries(matrix, "/")


def _with_libraries(matrix: Matrix, folders: str) -> Matrix:
    real = next((each for each in matrix.targets if each.name == "gpu"), TargetSpec("gpu", None, None, None))
    others = tuple(each for each in matrix.targets if each.name != "gpu")
    return replace(matrix, targets=(*others, replace(real, cuda_libraries=folders)))
