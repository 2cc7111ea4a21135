"""The plan for a host with eight GPUs (docs/eight-gpus.md): its parts are all cells, and it stops in time."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import eight_gpus

DOC = eight_gpus.ROOT / "docs" / "eight-gpus.md"

FAKE = """\
#!/bin/sh
echo "$@" >>"$0.log"
case $* in
*gpu:8*) sleep {slow}; exit {status} ;;
esac
"""


def script(tmp_path: Path, seconds: int, slow: str = "0", status: int = 0) -> tuple[int, list[str], str]:
    """Run the script with an `invoke` that only notes how it is called; (exit status, calls, stderr)."""
    invoke = tmp_path / "invoke"
    invoke.write_text(FAKE.format(slow=slow, status=status))
    invoke.chmod(0o755)
    done = subprocess.run(
        ["sh", eight_gpus.SCRIPT, str(seconds)],
        env={"PATH": "/usr/bin:/bin", "INVOKE": str(invoke)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    log = Path(f"{invoke}.log")
    return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stderr


def test_the_parts_are_all_cells() -> None:
    whole = {cell.id for cell in eight_gpus.cells(*eight_gpus.ALL)}
    parts = [{cell.id for cell in eight_gpus.cells(*part)} for part in eight_gpus.parts()]
    assert set().union(*parts) == whole
    assert len(whole) == 240
    assert Counter(each.split("@")[2] for each in whole) == {"gpu:8": 80, "gpu:4": 80, "gpu:2": 80}
    assert sum(map(len, parts)) == len(whole), "a cell is in two parts"


def test_a_restore_and_the_first_two_parts_fit_into_ten_minutes() -> None:
    """They hold the report's claim at tp = 8; with eight GPUs a cell has the host for itself, so that the sum is it."""
    first, second = ([eight_gpus.seconds(cell) for cell in eight_gpus.cells(*part)] for part in eight_gpus.parts()[:2])
    assert 60 + eight_gpus.PREPARE * 2 + sum(first) + sum(second) < 600


def test_every_part_is_run_in_order(tmp_path: Path) -> None:
    status, calls, said = script(tmp_path, 60)
    assert (status, said) == (0, "")
    assert [call.split()[-5::2] for call in calls] == [list(part) for part in eight_gpus.parts()]
    assert all(call.startswith("matrix --offline --engine venv --repro ") for call in calls)


@pytest.mark.parametrize("status", [1, 3])
def test_a_broken_claim_or_a_lost_cell_does_not_end_it(tmp_path: Path, status: int) -> None:
    ended, calls, _ = script(tmp_path, 60, status=status)
    assert ended == status
    assert len(calls) == len(eight_gpus.parts())


def test_wrong_input_and_an_interrupt_end_it(tmp_path: Path) -> None:
    assert script(tmp_path, 60, status=2)[0::2] == (2, "")
    assert script(tmp_path, 60, status=130)[0] == 124


def test_it_stops_when_time_is_up(tmp_path: Path) -> None:
    began = time.monotonic()
    status, calls, said = script(tmp_path, 1, slow="30")
    assert time.monotonic() - began < 20
    assert status == 124
    assert len(calls) == 1
    assert said == (
        "time is up in: windowed_einsum, jax*-cuda13local-py312, gpu:8; the same command goes on from there\n"
    )


def test_the_page_has_the_numbers() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `windowed") or "| `collective" in line]
    for part, row in zip(eight_gpus.parts(), rows, strict=True):
        repro, env, target = part
        assert [each.strip(" `") for each in row.strip("|").split("|")][:4] == [
            repro,
            env.removesuffix("-cuda13local-py312"),
            target,
            str(len(eight_gpus.cells(*part))),
        ]
