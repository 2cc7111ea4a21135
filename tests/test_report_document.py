from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from repromatrix.errors import InfraError, UserError
from repromatrix.report.document import document, exit_code, write_json
from repromatrix.report.schema import schemas
from repromatrix.results.codec import cell_from, cell_object
from repromatrix.spec.model import Outcome
from tests.sample_cells import ATTEMPT, RUN, SEGFAULT, broken, compiled, deaths, matrix, probed
from tests.test_report_markdown import many


def test_document_has_the_promised_shape() -> None:
    doc = document(matrix(), RUN)
    assert doc["schema"] == 1
    assert doc["run"]["attempted"] == 22
    assert doc["run"]["facts"]["cpus"] == "2"
    crash = doc["cells"][4]
    assert {
        "id": "hlo_pass_crash@jax0.6.0-cpu-py311@cpu@flag=noop_change",
        "repro": "hlo_pass_crash",
        "environment": "jax0.6.0-cpu-py311",
        "axes": {"jax": "0.6.0", "cuda": "none", "python": "3.11", "nccl": "locked"},
        "target": "cpu",
        "params": {"flag": "noop_change"},
        "engine": "venv",
        "outcome": "crash",
        "exit_status": None,
        "signal": "SIGABRT",
        "expected": "crash SIGABRT",
        "as_expected": True,
        "reason": "",
        "seconds": 2.31,
    }.items() <= crash.items()
    assert set(crash["signature"]) == {"title", "alternatives", "version"}
    assert crash["attempts"][0]["evidence"] == crash["evidence"] + "/1"


def test_document_keeps_its_schema() -> None:
    odd = replace(matrix()[0], attempts=(ATTEMPT,), params=(("a", 1), ("b", True), ("c", float("nan"))))
    written = json.loads(json.dumps(document([*broken(), *deaths(), *compiled(), *probed(), odd], RUN)))
    jsonschema.Draft202012Validator(schemas()["document.schema.json"]).validate(written)


def test_every_cell_survives_the_document() -> None:
    for cell in (*broken(), *deaths(), *compiled(), *probed(), replace(matrix()[0], attempts=(ATTEMPT,))):
        assert cell_from(json.loads(json.dumps(cell_object(cell)))) == cell


def test_rates_and_ranks_in_the_document() -> None:
    flaky = cell_object(next(cell for cell in deaths() if cell.signature == SEGFAULT))
    assert flaky["rates"] == [
        {"outcome": "ok", "title": "", "count": 2, "of": 4, "low": 0.15, "high": 0.85},
        {"outcome": "crash", "title": SEGFAULT.title, "count": 2, "of": 4, "low": 0.15, "high": 0.85},
    ]
    assert [rank["role"] for rank in flaky["attempts"][1]["ranks"]] == ["followed", "first", "stopped", ""]
    repeated = cell_object(deaths()[-1])
    assert repeated["rates"] == [{"outcome": "ok", "title": "", "count": 10, "of": 10, "low": 0.7225, "high": 1.0}]
    unattempted = cell_object(replace(matrix()[0], attempts=()))
    assert unattempted["rates"] == []


def test_results_stored_before_have_no_files_ranks_and_device_memory() -> None:
    stored = json.loads(json.dumps(cell_object(replace(matrix()[4], attempts=(ATTEMPT,)))))
    del stored["rates"], stored["different_failure"]
    for name in ("device_memory", "files", "ranks", "hlo"):
        del stored["attempts"][0][name]
    read = cell_from(stored)
    assert read.attempts == (replace(ATTEMPT, device_memory=0, files=(), ranks=(), hlo=None),)
    assert read.different_failure is False


def test_the_document_holds_the_hlo_of_attempts_and_a_comparison_per_cell() -> None:
    cells = document([*compiled(), *probed()], RUN)["cells"]
    one = cells[1]
    assert one["attempts"][0]["hlo"]["modules"][1] == {
        "name": "jit_forward",
        "before": "a" * 64,
        "after": "c" * 64,
        "changed": ["dot_decomposer", "fusion", "dce", "layout-assignment"],
        "size": 5000,
    }
    assert one["attempts"][0]["hlo"]["whole"] is False
    assert (one["hlo"]["same_before"], one["hlo"]["same_after"]) == (True, False)
    assert cells[-1]["hlo"] is None


def test_write_is_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    odd = replace(
        matrix()[0], reason="half \udc80", attempts=(replace(matrix()[0].attempts[0], metrics=(("l", float("nan")),)),)
    )
    write_json(path, document([odd], RUN))
    read = json.loads(path.read_text())
    assert read["cells"][0]["reason"] == "half \udc80"
    assert read["cells"][0]["attempts"][0]["metrics"] == [["l", "nan"]]
    before = path.read_text()
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"x": float("nan")})
    assert path.read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]
    write_json("-", {"schema": 1})
    assert json.loads(capsys.readouterr().out) == {"schema": 1}


def test_write_to_a_pipe_keeps_the_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"schema": 1})
    assert json.loads(os.read(reader, 1000)) == {"schema": 1}
    os.close(reader)
    assert pipe.is_fifo()


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file") as caught:
        write_json(tmp_path / "none" / "out.json", {})
    assert "invoke report --json" in caught.value.hint
    with pytest.raises(UserError, match="Is a directory"):
        write_json(tmp_path, {})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_the_machines_fault() -> None:
    with pytest.raises(InfraError, match="No space left"):
        write_json("/dev/full", document(matrix(), RUN))


def test_exit_codes() -> None:
    good = matrix()[4]
    infra = replace(good, outcome=Outcome.INFRA, as_expected=None)
    bad = replace(good, as_expected=False)
    unclaimed = replace(good, expected="", as_expected=None)
    skipped = replace(good, outcome=Outcome.SKIP, as_expected=None)
    assert exit_code(matrix()) == 0
    assert exit_code([]) == 0
    assert exit_code([good, skipped]) == 0
    assert exit_code([good, bad]) == 1
    assert exit_code([good, unclaimed]) == 1
    assert exit_code([replace(unclaimed, outcome=Outcome.OK)]) == 0
    assert exit_code([good, infra]) == 3
    assert exit_code([infra, bad]) == 1


def test_ten_thousand_cells_take_no_minutes(tmp_path: Path) -> None:
    cells = many(10_000)
    began = time.process_time()
    write_json(tmp_path / "out.json", document(cells, RUN))
    assert time.process_time() - began < 30  # what looks at every cell for each cell takes longer
    assert len(json.loads((tmp_path / "out.json").read_text())["cells"]) == 10_000
