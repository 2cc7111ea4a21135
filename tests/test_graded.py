"""From an attempt's folder to its grade: what is read of it, what is not, and that grading again loses nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.engines.attempt import own_bytes
from repromatrix.engines.base import RankEnd, Raw
from repromatrix.evidence.stacks import INDEX
from repromatrix.graded import HOST, TEXT_SIZE, TEXTS, grade_attempt, recall, record
from repromatrix.project import Project
from repromatrix.results.model import AttemptResult
from repromatrix.spec.model import Cell, Environment, Outcome, Repro

RESULT = {
    "schema": 1, "id": "a", "exit_status": 1, "signal": None, "timed_out": False, "core": False, "oom_kills": 0,
    "peak_memory": 1, "seconds": 0.5, "started": "2026-01-01T00:00:00Z", "stdout_bytes": 0, "stderr_bytes": 0,
    "infra": "", "cancelled": "", "disk_full": False, "notes": ["closed its stdout"],
}  # fmt: skip

STACK = """\
Traceback for thread 12 (python3) [] (most recent call last):
    (Python) File "/attempt/work/bug.py", line 3, in <module>
        go()
    (C) File "???", line 0, in xla::HloVerifier::Run(xla::HloModule*) (libjax_common.so)
"""


def cell_of(processes: int = 1) -> Cell:
    axes = (("jax", "1.0.0"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked"))
    repro = Repro("bug", Path("bug.py"), "", "0" * 64, processes=processes)
    return Cell(Environment(axes), repro, (), "cpu")


def grade(folder: Path, raw: Raw, processes: int = 1) -> AttemptResult:
    project = Project(folder.parent, folder / "store")
    return grade_attempt(cell_of(processes), (), 1, folder, raw, project)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "1"
    (place / "stacks").mkdir(parents=True)
    (place / "stdout").write_text("REPRO_METRIC loss=2.5\n")
    (place / "stderr").write_text("")
    return place


def write_index(folder: Path, *pids: int, core: str = "", note: str = "", trouble: str = "") -> None:
    stacks = [
        {
            "pid": pid, "rank": 0, "command": f"python3 bug.py {pid}", "source": "core", "tool": "pystack",
            "thread": pid, "signal": "SIGSEGV", "file": f"stacks/{pid}.txt", "trouble": trouble,
        }
        for pid in pids
    ]  # fmt: skip
    cores = [{"pid": pids[0], "signal": "SIGSEGV", "file": core, "size": 9, "allocated": 9, "cut": False}]
    content = {"schema": 1, "stacks": stacks, "cores": cores, "notes": [note] if note else []}
    (folder / INDEX).write_text(json.dumps(content))


def test_stacks_give_frames_files_and_notes(folder: Path) -> None:
    write_index(folder, 12, core="core.12", note="this host hands cores to systemd", trouble="not whole: cut")
    (folder / "stacks" / "12.txt").write_text(STACK)
    (folder / "core.12.zst").write_bytes(b"packed")
    (folder / "threads").write_text("12\n")
    found = grade(folder, Raw(signal="SIGSEGV", pid=12, notes=("left 2 processes behind",), device_memory=7))
    assert found.outcome is Outcome.CRASH
    assert found.signature is not None
    assert any("HloVerifier::Run" in title for title in (found.signature.title, *found.signature.alternatives))
    assert found.files == (
        ("stdout", "stdout"),
        ("stderr", "stderr"),
        ("stacks of 12 python3 bug.py 12", "stacks/12.txt"),
        ("core of 12 SIGSEGV", "core.12.zst"),
        ("threads", "threads"),
    )
    assert found.notes == (
        "left 2 processes behind",
        "this host hands cores to systemd",
        "stacks of process 12: not whole: cut",
    )
    assert (found.device_memory, found.metrics, found.ranks) == (7, (("loss", 2.5),), ())


def test_a_core_that_could_not_be_compressed_is_still_a_file(folder: Path) -> None:
    write_index(folder, 12, core="core.12")
    (folder / "core.12").write_bytes(b"raw")
    assert ("core of 12 SIGSEGV", "core.12") in grade(folder, Raw(signal="SIGSEGV", pid=12)).files


def test_no_stacks_at_all(folder: Path) -> None:
    found = grade(folder, Raw(exit_status=0))
    assert (found.outcome, found.notes) == (Outcome.OK, ())
    assert found.files == (("stdout", "stdout"), ("stderr", "stderr"))


def test_a_damaged_index_is_said(folder: Path) -> None:
    (folder / INDEX).write_text('{"schema": 1, "stacks": [')
    (note,) = grade(folder, Raw(exit_status=1)).notes
    assert note.startswith("stacks.json cannot be read: ")


@pytest.mark.parametrize("what", ["file", "folder", "index"])
def test_links_are_not_followed(folder: Path, tmp_path: Path, what: str) -> None:
    """A script in a container may have made them: they would show it, or us, files of this host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "12.txt").write_text(STACK)
    write_index(folder, 12)
    (folder / "stacks" / "12.txt").write_text(STACK)
    assert grade(folder, Raw(signal="SIGSEGV", pid=12)).files[-1][1] == "stacks/12.txt"
    if what == "file":
        (folder / "stacks" / "12.txt").unlink()
        (folder / "stacks" / "12.txt").symlink_to(outside / "12.txt")
    elif what == "folder":
        (folder / "stacks").rename(folder / "moved")
        (folder / "stacks").symlink_to(outside)
    else:
        (folder / INDEX).rename(outside / INDEX)
        (folder / INDEX).symlink_to(outside / INDEX)
    found = grade(folder, Raw(signal="SIGSEGV", pid=12))
    assert found.files == (("stdout", "stdout"), ("stderr", "stderr"))
    assert found.signature is not None
    assert "HloVerifier" not in " ".join([found.signature.title, *found.signature.alternatives])


def test_pipes_and_folders_are_no_logs(folder: Path) -> None:
    (folder / "stdout").unlink()
    os.mkfifo(folder / "stdout")
    (folder / "stderr").unlink()
    (folder / "stderr").mkdir()
    found = grade(folder, Raw(exit_status=0))
    assert found.files == ()
    assert found.notes == tuple(
        f"{name} is no file that can be read: it counts as empty" for name in ("stdout", "stderr")
    )


def test_a_socket_is_no_file_and_costs_no_verdict(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "threads"))
        found = grade(folder, Raw(exit_status=1))
    assert (found.outcome, found.files) == (Outcome.ERROR, (("stdout", "stdout"), ("stderr", "stderr")))


def test_a_log_that_may_not_be_read_costs_no_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path, name: str, limit: int) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr("repromatrix.graded.own_bytes", refuse)
    found = grade(folder, Raw(exit_status=0))
    assert found.files == ()
    assert found.notes[0] == "stdout is no file that can be read: it counts as empty"


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("/a/b/python bug.py", "stacks of 12 python bug.py"),
        ("/usr/bin/true", "stacks of 12 true"),
        ("/a/long/place/of/a/venv" + "/folder" * 8, "stacks of 12"),  # 79 characters of it
    ],
)
def test_label_of_stacks(folder: Path, command: str, label: str) -> None:
    write_index(folder, 12)
    text = (folder / INDEX).read_text().replace("python3 bug.py 12", command)
    (folder / INDEX).write_text(text)
    (folder / "stacks" / "12.txt").write_text(STACK)
    assert grade(folder, Raw(signal="SIGSEGV", pid=12)).files[-1] == (label, "stacks/12.txt")


def test_own_bytes(folder: Path) -> None:
    (folder / "stacks" / "1.txt").write_bytes(b"0123456789")
    assert own_bytes(folder, "stacks/1.txt") == b"0123456789"
    assert own_bytes(folder, "stacks/1.txt", 4) == b"0123"
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("stacks", "stacks/2.txt", "nothing/1.txt", "stdout/1.txt"):
        with pytest.raises(OSError, match="Errno"):
            own_bytes(folder, name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_texts_are_bounded(folder: Path) -> None:
    """The one that matters comes first in the index, and its beginning first in its text."""
    write_index(folder, *range(12, 12 + TEXTS + 5))
    (folder / "stacks" / "12.txt").write_text(STACK + "x" * (3 * TEXT_SIZE))
    for pid in range(13, 12 + TEXTS + 5):
        (folder / "stacks" / f"{pid}.txt").write_text("y" * (3 * TEXT_SIZE))
    found = grade(folder, Raw(signal="SIGSEGV", pid=12))
    assert found.signature is not None
    assert "HloVerifier::Run" in " ".join([found.signature.title, *found.signature.alternatives])
    assert len(found.files) == 2 + TEXTS + 5


def test_ranks(folder: Path) -> None:
    for rank in (0, 1):
        (folder / f"stdout.{rank}").write_text(f"REPRO_METRIC rank{rank}=1\n")
        (folder / f"stderr.{rank}").write_text("Traceback (most recent call last):\nValueError: only in one\n" * rank)
    ends = (RankEnd(0, 11, None, "SIGABRT", False, 3.0, False), RankEnd(1, 12, 1, None, False, 2.0, False))
    found = grade(folder, Raw(exit_status=1, pid=12, ranks=ends), processes=2)
    assert found.outcome is Outcome.ERROR
    assert found.signature is not None
    assert "only in one" in found.signature.title
    assert [(rank.rank, rank.role, rank.outcome) for rank in found.ranks] == [
        (0, "followed", Outcome.CRASH),
        (1, "first", Outcome.ERROR),
    ]
    assert found.metrics == (("rank0", 1.0), ("rank1", 1.0))
    assert found.files == (
        ("stdout of rank 0", "stdout.0"),
        ("stderr of rank 0", "stderr.0"),
        ("stdout of rank 1", "stdout.1"),
        ("stderr of rank 1", "stderr.1"),
    )


def test_ranks_of_earlier_evidence(folder: Path) -> None:
    """Their ends are unknown; the logs of all are read as one."""
    for rank in (0, 1):
        (folder / f"stdout.{rank}").write_text("")
        (folder / f"stderr.{rank}").write_text("Traceback (most recent call last):\nValueError: only in one\n" * rank)
    (folder / "result.json").write_text(json.dumps(RESULT))
    found = grade(folder, recall(folder), processes=2)
    assert found.signature is not None
    assert "only in one" in found.signature.title
    assert found.ranks == ()


def test_recall_gives_back_what_the_host_found(folder: Path) -> None:
    (folder / "result.json").write_text(json.dumps(RESULT))
    plain = recall(folder)
    assert (plain.notes, plain.device_memory) == (("closed its stdout",), 0)
    (folder / HOST).symlink_to("/etc/hostname")  # by the script
    raw = Raw(1, peak_memory=1, seconds=0.5, started="2026-01-01T00:00:00Z", notes=("a", "b"), device_memory=5 << 30)
    record(folder, raw)
    assert recall(folder) == raw
    broken = replace(raw, gpus_idle=True, infra="GPU 1: the kernel's log has a new Xid 79 of it")
    record(folder, broken)
    assert recall(folder) == broken
    (folder / HOST).write_text("{")
    assert recall(folder).infra.startswith("host.json cannot be read: ")
