"""Cores compressed in place: same bytes, holes not read, and nothing lost where it cannot be done."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Timer

import pytest
import zstandard

from repromatrix.engines.cores import HOLE, store

ROOT = Path(__file__).parents[1]


def sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> None:
    with path.open("wb") as file:
        for place, data in pieces:
            file.seek(place)
            file.write(data)
        file.truncate(size)


def unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


NOISE = random.Random(1).randbytes(300_000)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (0, ()),
        (5, ((0, b"short"),)),
        (HOLE * 3 + 17, ()),
        (HOLE * 2, ((0, NOISE), (HOLE + 4096, NOISE))),
        (HOLE * 4 + 9, ((123, NOISE), (HOLE * 3 - 1, NOISE), (HOLE * 4, b"end"))),
        (300_000, ((0, NOISE),)),
    ],
)
def test_the_same_bytes_come_back(tmp_path: Path, size: int, pieces: tuple[tuple[int, bytes], ...]) -> None:
    sparse(tmp_path / "core.12", size, *pieces)
    content = (tmp_path / "core.12").read_bytes()
    assert store(tmp_path, Event()) == ()
    assert names_in(tmp_path) == ["core.12.zst"]
    assert unpacked(tmp_path / "core.12.zst") == content


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd command here")
def test_the_zstd_command_opens_it_and_makes_the_holes_again(tmp_path: Path) -> None:
    sparse(tmp_path / "core.7", 10 * HOLE, (HOLE + 5, NOISE))
    before = (tmp_path / "core.7").read_bytes()
    store(tmp_path, Event())
    subprocess.run(["zstd", "-d", "-q", "--sparse", "core.7.zst"], cwd=tmp_path, check=True)
    assert (tmp_path / "core.7").read_bytes() == before
    assert (tmp_path / "core.7").stat().st_blocks * 512 < 4 << 20


def test_holes_are_not_read(tmp_path: Path) -> None:
    """20 GB, 3 MB of them data: reading and writing the zeros alone would take many seconds."""
    sparse(tmp_path / "core.9", 20 * 10**9, (5 * 10**9, NOISE * 5), (20 * 10**9 - 1_500_000, NOISE * 5))
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    assert store(tmp_path, Event()) == ()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    assert time.monotonic() - began < 5
    assert spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime < 1
    assert (tmp_path / "core.9.zst").stat().st_size < 6 << 20


def test_what_is_no_core_is_left_alone(tmp_path: Path) -> None:
    names = ("core", "core.txt", "core.1x", "core.3.zst", "stdout")
    for name in names:
        (tmp_path / name).write_text("text")
    assert store(tmp_path, Event()) == ()
    assert names_in(tmp_path) == sorted(names)


def test_a_second_core_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "core.5").write_bytes(b"one")
    (tmp_path / "core.5.1764486000000000000").write_bytes(b"two")
    assert store(tmp_path, Event()) == ()
    assert unpacked(tmp_path / "core.5.1764486000000000000.zst") == b"two"
    assert unpacked(tmp_path / "core.5.zst") == b"one"


def test_what_a_script_put_there(tmp_path: Path) -> None:
    folder, secret = tmp_path / "attempt", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("of the host")
    (folder / "core.1").symlink_to(secret)
    os.link(secret, folder / "core.2")
    os.mkfifo(folder / "core.3")
    (folder / "core.4").mkdir()
    (folder / "core.5").write_bytes(b"a core")
    (folder / "core.5.zst").symlink_to(secret)
    (folder / "core.5.zst.part").mkdir()
    notes = store(folder, Event())
    assert [note.split()[0] for note in notes] == ["core.1", "core.2", "core.3", "core.4"]
    assert notes[0] == "core.1 stays uncompressed: Too many levels of symbolic links"
    assert secret.read_text() == "of the host"
    assert not (folder / "core.5.zst").is_symlink()
    assert unpacked(folder / "core.5.zst") == b"a core"


FULL = """
import resource, signal, sys
from pathlib import Path
from threading import Event
from repromatrix.engines.cores import store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as on a full disk, writing ends with an error
print(*store(Path(sys.argv[1]), Event()))
"""


def test_a_core_that_does_not_fit_stays(tmp_path: Path) -> None:
    (tmp_path / "core.6").write_bytes(NOISE)
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "core.6 stays uncompressed: File too large\n"
    assert names_in(tmp_path) == ["core.6"]
    assert (tmp_path / "core.6").read_bytes() == NOISE


def test_ctrl_c_stops_it_and_leaves_nothing_half(tmp_path: Path) -> None:
    sparse(tmp_path / "core.3", 400 << 20, *((place << 20, NOISE * 3) for place in range(400)))
    cancel = Event()
    Timer(0.05, cancel.set).start()
    began = time.monotonic()
    assert store(tmp_path, cancel) == ("core.3 stays uncompressed: the run was interrupted",)
    assert time.monotonic() - began < 5
    assert names_in(tmp_path) == ["core.3"]
