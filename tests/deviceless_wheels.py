"""Environments with the CUDA plugin alone (`cuda = "12-local"`), from the committed locks and the user's own store.

Each is 240 to 330 MB to download on a fresh machine, so that tests use four of them (1.2 GB). With
REPROMATRIX_ALL_VERSIONS=1 they use every one that is locked (2.5 GB).
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

import pytest

from repromatrix.envs.index import addresses
from repromatrix.envs.lockfile import read_lock
from repromatrix.envs.venv import materialise
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.project import find_project
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Environment
from tests.conftest import ROOT

VERSIONS = ("0.4.38", "0.6.0", "0.6.2", "0.8.0", "0.8.2", "0.10.0", "0.10.1", "0.10.2")
"""Of the committed locks, those that compile without a device."""

ALL = os.environ.get("REPROMATRIX_ALL_VERSIONS") == "1"

CHOSEN = tuple(jax for jax in VERSIONS if ALL or jax in ("0.4.38", "0.6.2", "0.10.1", "0.10.2"))
"""Those that tests use: the oldest, the last that makes the loop of a windowed einsum, the two of the GPU reports."""


@cache
def python(jax: str) -> Path:
    """The interpreter of the venv with this jax and its CUDA plugin; about 300 MB to download the first time.

    Skips the test where this version is not among those that tests use.
    """
    if not ALL and jax not in CHOSEN:
        pytest.skip(f"jax {jax} with REPROMATRIX_ALL_VERSIONS=1 alone")
    project = find_project(ROOT)
    axes = (("jax", jax), ("cuda", "12-local"), ("python", "3.11"), ("nccl", "locked"))
    environment = Environment(axes)
    lock = read_lock(project.locks / f"{environment.id}.txt", environment)
    store = WheelStore(project.store)
    if missing := store.missing(lock.wheels):
        cancel = threading.Event()
        store.fetch(missing, addresses(lock, load_matrix(project.matrix_toml), cancel), Silent(), cancel)
    return materialise(lock, store, Silent()) / "bin" / "python"
