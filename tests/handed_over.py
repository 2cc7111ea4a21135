"""What the tests of handed-over folders share: a case in a checkout, and a machine with little on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from tests.conftest import RELEASES, Checkout, Said, new_checkout
from tests.fake_index import FakeIndex, publish_jax, serve

PROGRAMS = (
    "sh", "cat", "chmod", "cp", "dirname", "env", "grep", "head", "mkdir", "mktemp", "rm", "rmdir", "sed", "sleep",
    "uname", "wc",
)  # fmt: skip
"""What reproduce.sh asks of a machine beside Docker or uv."""

FAILS_IN_1_1 = """
import jax
print("version", jax.__version__)
if jax.__version__ == "1.1.0":
    raise ArithmeticError("the sum of 3 values is wrong")
print("the sum is right")
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A folder of programs, an empty home, and nothing else of this process' environment."""

    path: Path
    home: Path

    def run(self, folder: Path, *options: str, wrap: Sequence[str] = (), **environ: str) -> Said:
        """Run reproduce.sh in `folder`."""
        environ = {"PATH": str(self.path), "HOME": str(self.home), "TMPDIR": str(self.home), **environ}
        argv = [*wrap, str(self.path / "sh"), "reproduce.sh", *options]
        done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
        return Said(done.returncode, done.stdout, done.stderr)


def machine(place: Path, programs: Iterable[str], shell: str = "sh") -> Machine:
    """A machine with a POSIX shell's programs and `programs`; `uv` is that of this project, with an interpreter.

    Args:
        shell: What `sh` is there.
    """
    found = {name: shutil.which(name) for name in (*PROGRAMS, *programs)} | {"sh": shutil.which(shell)}
    if "uv" in found:
        # uv would fetch an interpreter; one that is there spares the download.
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found |= {"uv": uv.find_uv_bin(), version: str(Path(sys._base_executable).resolve())}  # type: ignore[attr-defined]  # CPython's
    for name in ("path", "home"):
        (place / name).mkdir(parents=True)
    for name, program in found.items():
        assert program is not None, name
        (place / "path" / name).symlink_to(program)
    return Machine(place / "path", place / "home")


WITNESS = '{ output = ["the sum is right"] }'


@dataclass(frozen=True, slots=True)
class Case:
    """A failure that jax 1.1.0 alone has, handed over, and how 1.2.0 is well.

    Attributes:
        index: Still serves the wheels.
        failing, well: The folders.
    """

    checkout: Checkout
    index: FakeIndex
    failing: Path
    well: Path


@contextmanager
def case_of(place: Path) -> Iterator[Case]:
    """The case, made in `place`."""
    with serve(place / "index") as index:
        publish_jax(index, RELEASES)
        checkout = new_checkout(place, index)
        checkout.repro("wrong_sum", FAILS_IN_1_1, witness=WITNESS)
        failing = hand_over(checkout, "wrong_sum", "--cell", "*1.1.0*")
        failing = failing.rename(place / "failing")
        well = hand_over(checkout, "wrong_sum", "--cell", "*1.2.0*").rename(place / "well")
        yield Case(checkout, index, failing, well)


def hand_over(checkout: Checkout, name: str, *options: str, **environ: str) -> Path:
    """The folder that `invoke handoff` writes."""
    said = checkout.invoke("handoff", name, *options, **environ)
    assert said.code == 0, said.err
    return checkout.root / "handoff" / name


def unshare() -> list[str]:
    """What cuts a command off every network; the test is skipped where that may not be done."""
    argv = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*argv, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    return [shutil.which("unshare") or "", *argv[1:]]


def change(folder: Path, name: str, before: str, after: str) -> None:
    """Replace text in a file of the folder."""
    path = folder / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def expected(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "expected.json").read_text())["expected"]
    return found


def last(said: Said) -> str:
    """The line with the verdict."""
    return said.out.strip().splitlines()[-1] if said.out.strip() else f"nothing was said; {said.err}"
