"""`containers/probe.py` on small binaries made here and on real wheels, and `evidence/probe.py` on what it writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from repromatrix.evidence.probe import MEANING, Flag, Library, Probe, read_probe
from tests.conftest import ROOT
from tests.deviceless_wheels import python

PROBE = ROOT / "containers" / "probe.py"

DYNSYM, SYMTAB = 11, 2


def elf(tables: dict[int, list[str]], build_id: bytes = b"", needed: tuple[str, ...] = (), extra: bytes = b"") -> bytes:
    """A 64-bit ELF file with these symbol tables, as elf(5) describes it."""
    body = bytearray(64)
    sections = [(0, 0, 0, 0)]  # type, offset, size, link

    def add(kind: int, data: bytes, link: int = 0) -> int:
        sections.append((kind, len(body), len(data), link))
        body.extend(data)
        return len(sections) - 1

    for kind, names in tables.items():
        strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
        entries = bytes(24)
        for name in names:
            info = 4 if name.endswith(".cc") else 2  # STT_FILE, STT_FUNC
            entries += struct.pack("<IBBHQQ", strings.index(b"\0" + name.encode() + b"\0") + 1, info, 0, 1, 0, 0)
        add(kind, entries, add(3, strings))
    if build_id:
        add(7, struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id)
    if needed:
        strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
        offsets = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in needed]
        add(6, b"".join(struct.pack("<QQ", 1, offset) for offset in offsets) + bytes(16), add(3, strings))
    body.extend(extra)
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, 0) for kind, offset, size, link in sections
    )
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(sections), 0
    )
    body[:64] = header
    return bytes(body) + headers


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with one distribution, `toy`, of two libraries, the second of them stripped."""
    folder = tmp_path / "site"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy-1.0.dist-info").mkdir()
    (folder / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (folder / "toy-1.0.dist-info" / "RECORD").write_text("toy/full.so,,\ntoy/stripped.so.1.2,,\ntoy/text.so.txt,,\n")
    names = ["_ZN3xla4PassC1Ev", "_ZN3xla4PassD1Ev", "_ZTVN3xla4PassE", "Pass.cc", "main"]
    words = b"\0a-pass\0my-pass-forward\0pass-forwardsink\0\x01pass-forward and pass-forward\0abc\0"
    full = elf({DYNSYM: ["main"], SYMTAB: names}, bytes.fromhex("00ff10"), ("libc.so.6", "libm.so.6"), words)
    (folder / "toy" / "full.so").write_bytes(full)
    (folder / "toy" / "stripped.so.1.2").write_bytes(elf({DYNSYM: ["main", "_ZN3xla4PassC1Ev"]}))
    return folder


def run(site: Path | None, out: Path, *words: str, interpreter: Path | str = sys.executable) -> tuple[int, str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_", "TF_"))}
    environ |= {"PYTHONPATH": str(site)} if site else {}
    command = [str(interpreter), str(PROBE), "--out", str(out), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def test_symbols_strings_and_facts(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    words = ("--symbol", "4Pass", "--string", "pass-forward", "--word", "pass-forward", "--string", "abc")
    status, printed, stderr = run(site, out, "--package", "toy", *words)
    assert (status, stderr) == (0, "")
    probe = read_probe(out.read_text())
    assert probe.packages == (("toy", "1.0"),)
    full, stripped = probe.libraries
    assert (full.file, full.build_id, full.needed) == ("toy/full.so", "00ff10", ("libc.so.6", "libm.so.6"))
    assert (full.dynsym, full.symtab) == ((("4Pass", 0),), (("4Pass", 3),))
    assert (stripped.dynsym, stripped.symtab) == ((("4Pass", 1),), None)
    # Runs, as `strings | grep -c` counts: one line that holds the text twice is one; `abc` is too short for a run.
    assert full.strings == (("pass-forward", 3), ("abc", 0))
    assert full.words == (("pass-forward", 2),)
    assert (probe.total("symtab", "4Pass"), probe.total("dynsym", "4Pass")) == (3, 1)
    assert "REPRO_METRIC symtab/4Pass=3\n" in printed
    assert "REPRO_METRIC dynsym/4Pass=1\n" in printed
    assert "REPRO_METRIC words/pass-forward=2\n" in printed
    assert "  symtab 4Pass: no such table\n" in printed


def test_no_full_table_is_not_zero(site: Path, tmp_path: Path) -> None:
    (site / "toy" / "full.so").write_bytes((site / "toy" / "stripped.so.1.2").read_bytes())
    out = tmp_path / "probe.json"
    _, printed, _ = run(site, out, "--package", "toy", "--symbol", "4Pass")
    assert "REPRO_METRIC dynsym/4Pass=2" in printed
    assert "REPRO_METRIC symtab" not in printed
    assert read_probe(out.read_text()).total("symtab", "4Pass") is None


@pytest.mark.skipif(shutil.which("nm") is None, reason="no binutils")
def test_it_counts_as_binutils_do(tmp_path: Path) -> None:
    """On the interpreter's own library or executable, whatever this host has."""
    binary = Path(sys.executable).resolve()
    folder = tmp_path / "site"
    (folder / "own-1.dist-info").mkdir(parents=True)
    (folder / "own-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (folder / "own-1.dist-info" / "RECORD").write_text("own.so,,\n")
    shutil.copy(binary, folder / "own.so")
    out = tmp_path / "probe.json"
    run(folder, out, "--package", "own", "--symbol", "Py_Init", "--string", "Python")
    (library,) = read_probe(out.read_text()).libraries

    def count(*command: str) -> int:
        said = subprocess.run(
            [*command, str(binary)], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False
        )
        text = b"Python" if command[0] == "strings" else b"Py_Init"
        return sum(text in line for line in said.stdout.splitlines())

    assert dict(library.strings)["Python"] == count("strings", "-a")
    assert dict(library.dynsym or ()).get("Py_Init", 0) == count("nm", "-D")
    if library.symtab is not None:
        assert dict(library.symtab)["Py_Init"] == count("nm")


def test_nothing_installed_is_a_skip(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    status, printed, _ = run(None, out, "--package", "no-such-distribution", "--symbol", "a", "--flag", "xla_a")
    assert status == 125
    assert printed == "not installed: no-such-distribution\n"
    assert read_probe(out.read_text()) == Probe(absent=("no-such-distribution",))


@pytest.mark.parametrize("others", [(), ("no-such-distribution",)])
def test_where_a_package_is_missing_nothing_is_said_to_be_absent(tmp_path: Path, others: tuple[str, ...]) -> None:
    asked = [word for name in ("zstandard", *others) for word in ("--package", name)]
    strings = ["--string", "ZSTD", "--string", "this is in no binary at all"]
    status, printed, _ = run(None, tmp_path / "probe.json", *asked, *strings)
    assert status == 0
    told = dict(re.findall(r"REPRO_METRIC strings/(\w+)=(\d+)", printed))
    assert int(told["ZSTD"]) > 0
    assert told.get("this_is_in_no_binary_at_all") == (None if others else "0")


def test_a_flag_that_is_none_is_refused(tmp_path: Path) -> None:
    status, printed, stderr = run(None, tmp_path / "probe.json", "--flag", "Xfoo")
    assert (status, printed) == (2, "")
    assert "expected xla_name or xla_name=value" in stderr


def test_a_file_that_is_no_elf_is_said(site: Path, tmp_path: Path) -> None:
    (site / "toy" / "full.so").write_text("INPUT(-lc) # pass-forward")
    out = tmp_path / "probe.json"
    status, printed, _ = run(site, out, "--package", "toy", "--string", "pass-forward")
    assert status == 0
    assert "toy toy/full.so: 25 bytes, no ELF file" in printed
    assert dict(read_probe(out.read_text()).libraries[0].strings) == {"pass-forward": 1}


def test_sentences_only_for_what_was_looked_for() -> None:
    library = Library("toy", "toy/full.so", 1, dynsym=(("a", 0),), symtab=(("a", 1),))
    assert Probe(libraries=(library,)).sentences() == (MEANING["dynsym"], MEANING["symtab"])
    assert Probe(flags=(Flag("xla_a", "unknown"),)).sentences() == (MEANING["flags"],)
    assert Probe().sentences() == ()


def test_verdicts() -> None:
    assert [Flag("xla_a", verdict).accepted for verdict in ("accepted", "unknown", "value refused", "no answer")] == [
        True,
        False,
        False,
        None,
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "libraries": [{"package": "a"}]}'])
def test_what_is_no_probe_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting value|no probe\.json of schema 1|is no count"):
        read_probe(text)


# --- real wheels ----------------------------------------------------------------------------------------------------

SYMBOLS = {
    "0.4.30": 58,
    "0.4.38": 72,
    "0.6.0": 72,
    "0.6.2": 27,
    "0.8.0": 19,
    "0.10.0": 20,
    "0.10.1": 20,
    "0.10.2": 20,
}
"""Names with CollectivePipeliner in the full symbol table of the plugin."""

FLAGS = (
    "xla_gpu_enable_pipelined_collectives",
    "xla_gpu_run_post_layout_collective_pipeliner",
    "xla_gpu_enable_pipelined_all_reduce=true",
    "xla_gpu_autotune_level=maybe",
)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("jax", SYMBOLS)
def test_the_collective_pipeliner_in_real_wheels(jax: str, tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    words = [word for flag in FLAGS for word in ("--flag", flag)]
    looked = ("--symbol", "CollectivePipeliner", "--word", "collective-pipeliner-forward")
    status, printed, stderr = run(None, out, *looked, *words, interpreter=python(jax))
    assert (status, stderr) == (0, "")
    assert f"REPRO_METRIC symtab/CollectivePipeliner={SYMBOLS[jax]}\n" in printed
    assert "REPRO_METRIC dynsym/CollectivePipeliner=0\n" in printed
    assert "REPRO_METRIC words/collective-pipeliner-forward=1\n" in printed
    probe = read_probe(out.read_text())
    assert {flag.flag: flag.verdict for flag in probe.flags} == {
        FLAGS[0]: "accepted" if jax in ("0.4.30", "0.4.38") else "unknown",
        FLAGS[1]: "unknown",
        FLAGS[2]: "accepted",
        FLAGS[3]: "value refused",
    }
    (plugin,) = [library for library in probe.libraries if library.package == "jax-cuda12-pjrt"]
    assert plugin.file == "xla_cuda12/xla_cuda_plugin.so"
    assert "libc.so.6" in plugin.needed
    assert any(name.startswith("GLIBC_2.") for _, names in plugin.versions for name in names)
    assert len(json.loads(out.read_text())["packages"]) == 3


@pytest.mark.network
@pytest.mark.slow
def test_all_flags_of_a_version(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    status, _, stderr = run(None, out, "--all-flags", interpreter=python("0.6.2"))
    assert (status, stderr) == (0, "")
    known = {name: (default, kind) for name, default, kind in read_probe(out.read_text()).known}
    assert len(known) == 230
    assert known["xla_gpu_autotune_level"] == ("4", "int32")
    assert "xla_gpu_enable_pipelined_collectives" not in known
