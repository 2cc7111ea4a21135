"""The repros that ship and the matrix they run in: they load, claim something of every cell, and are plain scripts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from repromatrix.evidence.outcome import GradeContext, grade
from repromatrix.engines.base import Raw
from repromatrix.spec.cells import Expansion, expand
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Cell, Matrix, Outcome, Repro
from repromatrix.spec.repro import load_repros
from repromatrix.spec.when import parse_when

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "repros").glob("*.py"))
GPU = ("collective_pipeliner", "windowed_einsum")
NO_ISSUE = ("hlo_pass_crash",)  # two debugging flags of XLA; nobody reported them
