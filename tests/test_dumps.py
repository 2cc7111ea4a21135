"""The dump folder of a script that may have put anything there."""

# ruff: noqa: E501 (so are command lines)
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from repromatrix.engines import dumps
from repromatrix.engines.dumps import collect, dropped, flags, variables

MB = 1 << 20
BEFORE = "module_0001.jit_f.before_optimizations.txt"
AFTER = "module_0001.jit_f.cpu_after_optimizations.txt"
PASS = "module_0001.jit_f.{:04d}.fusion.after_dce.before_cse.txt"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    return folder


def read(path: Path) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()


def test_what_matters_comes_first(dump: Path, tmp_path: Path) -> None:
    names = [
        *("a.ll", "module_0001.jit_f.debug_options", PASS.format(2), PASS.format(10), AFTER, BEFORE),
        *(BEFORE.replace(".txt", ".hlo.pb"), "module_0001.jit_f/module.mlir"),
    ]
    for name in names:
        (dump / name).parent.mkdir(exist_ok=True)
        (dump / name).write_text(name * 100)
    found = collect(dump, tmp_path / "hlo", cap=MB)
    assert [one.name for one in found.kept] == [
        *(BEFORE.replace(".txt", ".hlo.pb"), BEFORE, AFTER, PASS.format(2), PASS.format(10)),
        *("a.ll", "module_0001.jit_f.debug_options", "module_0001.jit_f/module.mlir"),
    ]
    assert found.left_out == ()
    for one in found.kept:
        stored = tmp_path / "hlo" / f"{one.name}.zst"
        assert read(stored) == one.name.encode() * 100
        assert (one.size, one.stored) == (len(one.name) * 100, stored.stat().st_size)
    assert not dump.exists(), "the folder is freed"


def test_over_the_cap_there_are_no_holes(dump: Path, tmp_path: Path) -> None:
    for place in range(4):
        (dump / PASS.format(place)).write_bytes(os.urandom(1000 if place != 2 else 5000))
    (dump / BEFORE).write_text("x")
    found = collect(dump, tmp_path / "hlo", cap=4000)
    assert [one.name for one in found.kept] == [BEFORE, PASS.format(0), PASS.format(1)]
    assert found.left_out == tuple((PASS.format(n), "over the 0.004 MB that all may have together") for n in (2, 3))
    assert sorted(path.name for path in (tmp_path / "hlo").iterdir()) == sorted(f"{one.name}.zst" for one in found.kept)


def test_one_file_that_is_too_large_does_not_end_it(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "PER_FILE", MB)
    (dump / BEFORE).write_bytes(bytes(3 * MB))
    (dump / AFTER).write_text("x")
    found = collect(dump, tmp_path / "hlo", cap=MB)
    assert [one.name for one in found.kept] == [AFTER]
    assert found.left_out == ((BEFORE, "3 MB, over the 1 MiB that one file may have"),)


def test_traps_are_left_alone(dump: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / BEFORE).write_text("secret")
    (dump / BEFORE).symlink_to(secret / BEFORE)
    (dump / "folder").symlink_to(secret)
    os.mkfifo(dump / AFTER)
    (dump / "new\nline.txt").write_text("x")
    Path(os.fsdecode(os.fsencode(dump) + b"/\xff.txt")).write_text("x")
    found = collect(dump, tmp_path / "hlo", cap=MB)
    assert found.kept == ()
    assert dict(found.left_out) == {
        BEFORE: "it is a link",
        "folder": "it is a link",
        AFTER: "it is no regular file",
        "new\\x0aline.txt": "its name is no text",
        "\\xff.txt": "its name is no text",
    }
    assert (secret / BEFORE).read_text() == "secret"
    assert not dump.exists()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / BEFORE).write_text("secret")
    (tmp_path / "dump").symlink_to(secret)
    found = collect(tmp_path / "dump", tmp_path / "hlo", cap=MB)
    assert (found.kept, found.left_out) == ((), (("dump", "it is no folder"),))
    assert not (tmp_path / "dump").is_symlink()
    assert (secret / BEFORE).exists()


def test_no_folder_is_nothing(tmp_path: Path) -> None:
    assert collect(tmp_path / "dump", tmp_path / "hlo", cap=MB) == dumps.Collected((), ())
    assert not (tmp_path / "hlo").exists()


def test_many_files(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MOST_FILES", 3)
    for place in range(5):
        (dump / PASS.format(place)).write_text("x")
    found = collect(dump, tmp_path / "hlo", cap=MB)
    assert [one.name for one in found.kept] == [PASS.format(place) for place in range(3)]
    assert found.left_out == tuple((PASS.format(place), "only 3 files are looked at") for place in (3, 4))


def test_an_error_of_writing_is_said(dump: Path, tmp_path: Path) -> None:
    """A limit on the size of files ends the write in the middle."""
    (dump / BEFORE).write_text("x")
    (dump / AFTER).write_bytes(os.urandom(2 * MB))
    program = (
        "import pathlib, resource, signal, sys\n"
        "from repromatrix.engines.dumps import collect\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({MB}, {MB}))\n"
        "found = collect(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), cap=1 << 30)\n"
        "print([one.name for one in found.kept], found.left_out)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program, str(dump), str(tmp_path / "hlo")],
        capture_output=True, text=True, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.stdout.strip() == f"['{BEFORE}'] (('{AFTER}', 'File too large'),)"
    assert [path.name for path in (tmp_path / "hlo").iterdir()] == [f"{BEFORE}.zst"], "no half file is left"


def test_flags() -> None:
    assert flags("text", "/a/dump") == "--xla_dump_to=/a/dump --xla_dump_hlo_as_text --xla_dump_hlo_as_proto --xla_dump_disable_metadata"  # fmt: skip
    assert flags("passes", "/a b") == "--xla_dump_to='/a b' --xla_dump_hlo_as_text --xla_dump_hlo_as_proto --xla_dump_disable_metadata --xla_dump_hlo_pass_re=.*"  # fmt: skip
    assert "disable_metadata" not in flags("text", "/a", frozenset({"xla_dump_disable_metadata"}))


def test_variables_keep_what_the_script_has() -> None:
    own = (
        ("A", "1"),
        ("XLA_FLAGS", " --xla_gpu_autotune_level=0 --xla_dump_to='x y' --xla_dump_hlo_as_url --xla_cpu_x=2 "),
        ("TF_CPP_VMODULE", "hlo_pass_pipeline=3,autotuner=2"),
        ("TF_CPP_MIN_LOG_LEVEL", "3"),
    )
    env, notes = variables("text", "/d", own)
    assert dict(env) == {
        "A": "1",
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_cpu_x=2 {flags('text', '/d')}",
        "TF_CPP_VMODULE": "autotuner=2,hlo_pass_pipeline=1",
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    assert notes == ()
    assert dict(variables("text", "/d", ())[0])["XLA_FLAGS"] == flags("text", "/d")


def test_a_file_of_flags_is_left_alone() -> None:
    env, notes = variables("text", "/d", (("XLA_FLAGS", "flags.txt"),))
    assert dict(env) == {"XLA_FLAGS": "flags.txt", "TF_CPP_VMODULE": "hlo_pass_pipeline=1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    assert notes == ("no HLO: XLA_FLAGS names a file, dump flags cannot be added to it",)


@pytest.mark.parametrize(
    ("stderr", "names"),
    [
        ("F1130 01:10:46.894770 1816 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_dump_disable_metadata\n", {"xla_dump_disable_metadata"}),
        ("2026-11-30 01:10:15.275521: F x.cc:224] Unknown flags in XLA_FLAGS: --xla_dump_hlo_pass_re=.* --xla_other=1 \n", {"xla_dump_hlo_pass_re"}),
        ("F1130 01:10:46.894770 1816 x.cc:234] Unknown flag in XLA_FLAGS: --xla_no_such_flag=1\n", set()),
        ("", set()),
    ],
)  # fmt: skip
def test_flags_that_a_version_lacks(stderr: str, names: set[str]) -> None:
    assert dropped(stderr) == names
