from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.errors import InfraError, UserError
from repromatrix.results.codec import attempt_from
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.results.store import MIGRATIONS, Results
from repromatrix.spec.model import Outcome
from tests.sample_cells import ATTEMPT

KEY = "ab" * 32
ROOT = Path(__file__).parent.parent

CELL = CellResult(
    id="demo@jax0.6.0-cpu-py311@cpu",
    key=KEY,
    repro="demo",
    environment="jax0.6.0-cpu-py311",
    axes=(("jax", "0.6.0"), ("cuda", "none")),
    target="cpu",
    params=(("n", 1), ("x", 1.5), ("flag", True)),
    engine="venv",
    base="CPython 3.11.7 of this host",
    identity="f" * 64,
    outcome=Outcome.CRASH,
    exit_status=None,
    signal="SIGABRT",
    signature=ATTEMPT.signature,
    expected="crash",
    as_expected=True,
    reason="",
    seconds=1.25,
    attempts=(ATTEMPT,),
    evidence=".repromatrix/evidence/ab",
    command="true",
    facts=(("jaxlib", "0.6.0"),),
    script="e" * 64,
)


def attempts(results: Results) -> tuple[AttemptResult, ...]:
    """The attempts that answer for KEY."""
    return results.many([KEY]).get(KEY, ())


def on_record(results: Results) -> tuple[AttemptResult, ...]:
    """Every finished attempt under KEY, also those that no longer answer."""
    with sqlite3.connect(results.folder(KEY, 1).parents[3] / "results.db") as db:
        rows = db.execute("SELECT body FROM attempts WHERE key = ? AND body IS NOT NULL ORDER BY number", (KEY,))
        return tuple(attempt_from(json.loads(body)) for (body,) in rows)


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_attempts_come_back_as_they_were(tmp_path: Path) -> None:
    with Results(tmp_path / "state") as results:
        number, folder = results.new_attempt(KEY)
        assert number == 1
        assert folder == tmp_path / "state" / "evidence" / "ab" / KEY / "1"
        assert list(folder.iterdir()) == []
        assert attempts(results) == ()
        results.add(KEY, ATTEMPT, {"cell": "demo"})
        assert attempts(results) == (ATTEMPT,)
    with Results(tmp_path / "state") as results:
        assert attempts(results) == (ATTEMPT,)
        assert results.new_attempt(KEY)[0] == 2


def test_evidence_is_never_overwritten(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.add(KEY, ATTEMPT, {})
        with pytest.raises(ValueError, match="on record already"):
            results.add(KEY, replace(ATTEMPT, outcome=Outcome.OK), {})
        assert attempts(results) == (ATTEMPT,)


def test_infra_is_kept_and_answers_nothing(tmp_path: Path) -> None:
    infra = replace(ATTEMPT, outcome=Outcome.INFRA)
    with Results(tmp_path) as results:
        results.add(KEY, infra, {})
        assert attempts(results) == ()
        assert results.many([KEY]) == {}
        assert results.many([KEY], or_infra=True) == {KEY: (infra,)}
        assert on_record(results) == (infra,)
        assert results.new_attempt(KEY)[0] == 2
        better = replace(ATTEMPT, number=2)
        results.add(KEY, better, {})
        assert results.many([KEY], or_infra=True) == {KEY: (better,)}


def test_amend_changes_the_meaning_of_an_attempt_on_record(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.add(KEY, replace(ATTEMPT, outcome=Outcome.INFRA), {})
        results.amend(KEY, ATTEMPT)
        assert attempts(results) == (ATTEMPT,)
        with pytest.raises(ValueError, match="not on record"):
            results.amend(KEY, replace(ATTEMPT, number=2))


def test_forget_supersedes_and_keeps(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        _, folder = results.new_attempt(KEY)
        (folder / "stderr").write_text("evidence")
        results.add(KEY, ATTEMPT, {})
        assert results.forget([KEY, "other"]) == 1
        assert results.forget([KEY]) == 0
        assert attempts(results) == ()
        assert on_record(results) == (ATTEMPT,)
        assert (folder / "stderr").read_text() == "evidence"
        assert results.new_attempt(KEY)[0] == 2
        results.add(KEY, replace(ATTEMPT, number=2), {})
        assert [attempt.number for attempt in attempts(results)] == [2]


def test_many_keys_in_one_query(tmp_path: Path) -> None:
    keys = [f"{n:064x}" for n in range(10_000)]
    with Results(tmp_path) as results, results._transaction():
        body = json.dumps({**json.loads(_body(results)), "number": 1})
        results._db.executemany(
            "INSERT INTO attempts (key, number, owner, outcome, body, context) VALUES (?, 1, '', 'crash', ?, '{}')",
            [(key, body) for key in keys],
        )
    with Results(tmp_path) as results:
        began = time.monotonic()
        found = results.many(keys)
        assert time.monotonic() - began < 20  # one query each would take minutes
        assert list(found) == keys
        assert found[keys[-1]] == (ATTEMPT,)


def _body(results: Results) -> str:
    from repromatrix.results.codec import attempt_object

    return json.dumps(attempt_object(ATTEMPT))


def test_cells_by_id_and_engine(tmp_path: Path) -> None:
    docker = replace(CELL, engine="docker", outcome=Outcome.OK)
    with Results(tmp_path) as results:
        results.save_cells([CELL])
        results.save_cells([docker])
        assert results.latest_cells() == (docker, CELL)
        newer = replace(CELL, key="cd" * 32, outcome=Outcome.OK, as_expected=False)
        results.save_cells([newer, docker])
    with Results(tmp_path) as results:
        assert results.latest_cells() == (docker, newer)


def test_a_cell_never_run_gives_way_to_one_that_was(tmp_path: Path) -> None:
    skipped = replace(CELL, engine="", key="", outcome=Outcome.SKIP, attempts=(), as_expected=None)
    with Results(tmp_path) as results:
        results.save_cells([skipped])
        assert results.latest_cells() == (skipped,)
        results.save_cells([CELL])
        assert results.latest_cells() == (CELL,)


def test_folders_of_a_lost_database_are_not_used_again(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        _, folder = results.new_attempt(KEY)
        (folder / "stderr").write_text("old")
        results.add(KEY, ATTEMPT, {})
    for path in tmp_path.glob("results.db*"):
        path.unlink()
    with Results(tmp_path) as results:
        number, again = results.new_attempt(KEY)
        assert number == 2
        assert list(again.iterdir()) == []
    assert (folder / "stderr").read_text() == "old"


def test_unfinished_attempts_of_the_dead_are_set_aside(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from repromatrix.results.store import Results
results = Results(Path(sys.argv[1]))
number, folder = results.new_attempt(sys.argv[2])
(folder / "stderr").write_text("half")
(folder / "core.12").write_text("large")
(folder / "core.12.zst.part").write_text("half")
(folder / "core.d").mkdir()
print(number, flush=True)
time.sleep(60)
"""
    process = script(code, str(tmp_path), KEY)
    try:
        assert line(process) == "1"
        with Results(tmp_path) as results:
            assert results.recover() == ()  # it lives
            own, _ = results.new_attempt(KEY)
            assert own == 2
            process.kill()
            process.wait()
            (aside,) = results.recover()
            assert (aside / "stderr").read_text() == "half"
            assert sorted(path.name for path in aside.iterdir()) == ["core.d", "stderr"]
            assert aside.parent == tmp_path / "unfinished"
            assert not results.folder(KEY, 1).exists()
            assert results.folder(KEY, 2).exists()
            assert results.recover() == ()
            results.add(KEY, replace(ATTEMPT, number=own), {})
            assert len(list((tmp_path / "owners").iterdir())) == 1
    finally:
        process.kill()
    assert list((tmp_path / "owners").iterdir()) == []


def test_kill_loses_no_finished_attempt(tmp_path: Path) -> None:
    """Twelve runs are killed at ever other moments; every attempt that was reported is on record."""
    code = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.sample_cells import ATTEMPT
from repromatrix.results.store import Results
with Results(Path(sys.argv[1])) as results:
    results.recover()
    while True:
        number, folder = results.new_attempt(sys.argv[2])
        (folder / "stderr").write_text(str(number))
        results.add(sys.argv[2], replace(ATTEMPT, number=number), {})
        print(number, flush=True)
"""
    reported: list[int] = []
    for turn in range(12):
        process = script(code, str(tmp_path), KEY)
        first = line(process)
        time.sleep(0.003 * turn)
        os.kill(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        assert errors == ""
        reported += map(int, [first, *output.split()])
    with Results(tmp_path) as results:
        results.recover()
        known = {attempt.number: attempt for attempt in attempts(results)}
        assert set(reported) <= set(known)
        assert len(reported) == len(set(reported)) >= 12
        assert len(known) <= len(reported) + 12  # at most one per kill was on disk and not yet reported
        for number, attempt in known.items():
            assert attempt == replace(ATTEMPT, number=number)
            assert (results.folder(KEY, number) / "stderr").read_text() == str(number)
        folders = {int(folder.name) for folder in results.folder(KEY, 1).parent.iterdir()}
        assert folders == set(known)
        assert results._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_processes_share_numbers_and_a_new_database(tmp_path: Path) -> None:
    code = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.sample_cells import ATTEMPT
from repromatrix.results.store import Results
sys.stdin.readline()
with Results(Path(sys.argv[1])) as results:
    for _ in range(20):
        number, _ = results.new_attempt(sys.argv[2])
        results.add(sys.argv[2], replace(ATTEMPT, number=number), {})
"""
    command = [sys.executable, "-c", code, str(tmp_path), KEY]
    both = [subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"]
    time.sleep(0.5)
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
    with Results(tmp_path) as results:
        assert [attempt.number for attempt in attempts(results)] == list(range(1, 41))


def test_threads_share_one_object(tmp_path: Path) -> None:
    def work(results: Results) -> None:
        for _ in range(10):
            number, _ = results.new_attempt(KEY)
            results.add(KEY, replace(ATTEMPT, number=number), {})

    with Results(tmp_path) as results:
        threads = [threading.Thread(target=work, args=(results,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(attempts(results)) == 40


def test_one_writer_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from repromatrix.results.store import Results
with Results(Path(sys.argv[1])).writing():
    print("held", flush=True)
    time.sleep(60)
"""
    process = script(code, str(tmp_path))
    try:
        assert line(process) == "held"
        with Results(tmp_path) as results:
            told = rf"pid {process.pid}, since .* is running cells"
            with pytest.raises(UserError, match=told) as refused, results.writing(wait=False):
                pass
            assert refused.value.exit_code == 2
            said: list[str] = []
            killer = threading.Timer(0.5, process.kill)
            killer.start()
            with results.writing(announce=said.append):
                killer.join()
            assert len(said) == 1
            assert f"pid {process.pid}" in said[0]
            with results.writing(wait=False):
                assert f"pid {os.getpid()}" in (tmp_path / "writer").read_text()
    finally:
        process.kill()
        process.wait()


def test_a_newer_database_is_refused_untouched(tmp_path: Path) -> None:
    Results(tmp_path).close()
    with sqlite3.connect(tmp_path / "results.db") as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(InfraError, match=f"version {len(MIGRATIONS) + 1}, this tool knows up to {len(MIGRATIONS)}"):
        Results(tmp_path)


def test_a_damaged_database_says_how_to_keep_the_evidence(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.add(KEY, ATTEMPT, {})
    (tmp_path / "results.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(InfraError, match="damaged") as caught:
        Results(tmp_path)
    assert caught.value.exit_code == 3
    command = caught.value.hint.splitlines()[0].removeprefix("move it away: ")
    subprocess.run(["sh", "-c", command], check=True)
    with Results(tmp_path) as results:
        assert attempts(results) == ()
    assert (tmp_path / "results.db.damaged").exists()


def test_a_torn_page_is_told_too(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        for number in range(1, 200):
            results.add(KEY, replace(ATTEMPT, number=number), {})
    path = tmp_path / "results.db"
    raw = bytearray(path.read_bytes())
    raw[8192:] = b"\xff" * (len(raw) - 8192)
    path.write_bytes(raw)
    with Results(tmp_path) as results, pytest.raises(InfraError, match="damaged"):
        attempts(results)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot make the folder of results"):
        Results(tmp_path / "file" / "state")
