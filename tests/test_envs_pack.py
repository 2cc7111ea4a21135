"""Packs and trees: what is in them, that they are the same everywhere, and what is refused."""

from __future__ import annotations

import importlib.util
import io
import marshal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from repromatrix.envs import pack as pack_module
from repromatrix.envs import pack_core
from repromatrix.envs.interpreter import find_python
from repromatrix.envs.model import Wheel
from repromatrix.envs.pack import has_bytecode
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from tests.wheel_factory import contents, put, wheel_bytes

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{PYTHON.replace('.', '')}"
SITE = f"opt/env/lib/python{PYTHON}/site-packages"
CORE = Path(pack_core.__file__)

FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "import os\nNAME = {'a', 'b', 'c', 'd'}\n\n\ndef where():\n    return os.getcwd()\n",
    "demo/broken.py": "def (:\n",
    "demo/data.txt": "text",
    "demo/__pycache__/__init__.cpython-311.pyc": b"not ours",
    "demo/tool": "#!/bin/sh\n",
    "demo-1.0.data/scripts/demo-run": "#!python -E\nprint('hello')\n",
    "demo-1.0.data/scripts/demo.sh": "#!/bin/sh\n",
    "demo-1.0.data/purelib/pure.py": "x = 1\n",
    "demo-1.0.data/platlib/plat.py": "x = 2\n",
    "demo-1.0.data/data/share/man.1": "man",
    "demo-1.0.data/headers/demo.h": "int x;",
    "demo-1.0.dist-info/INSTALLER": "somebody\n",
}
DEMO = wheel_bytes("demo", FILES, {"demo/tool": 0o100755})


@pytest.fixture
def store(tmp_path: Path) -> WheelStore:
    return WheelStore(tmp_path / "store")


def plain(pack: Path) -> bytes:
    with pack.open("rb") as opened, zstandard.ZstdDecompressor().stream_reader(opened) as reader:
        return reader.read()


def test_a_pack_holds_the_installed_wheel(store: WheelStore) -> None:
    wheel = put(store, "demo", DEMO)
    pack = store.pack(wheel, PYTHON, Silent())
    assert pack == store.root / "packs" / f"{wheel.sha256}-{TAG}.tar.zst"
    assert has_bytecode(pack)
    with tarfile.open(fileobj=io.BytesIO(plain(pack))) as archive:
        entries = archive.getmembers()
        texts = {e.name: archive.extractfile(e).read() for e in entries if e.isfile()}  # type: ignore[union-attr]
    names = [entry.name for entry in entries]
    assert names == sorted(names)
    cache = f"__pycache__/{{}}.cpython-{TAG[2:]}.pyc"
    assert [name for name in names if name in texts] == sorted(
        [
            "opt/env/bin/demo-run",
            "opt/env/bin/demo.sh",
            f"opt/env/include/site/python{PYTHON}/demo/demo.h",
            "opt/env/share/man.1",
            f"{SITE}/demo/__init__.py",
            f"{SITE}/demo/{cache.format('__init__')}",
            f"{SITE}/demo/broken.py",
            f"{SITE}/demo/data.txt",
            f"{SITE}/demo/tool",
            f"{SITE}/pure.py",
            f"{SITE}/plat.py",
            f"{SITE}/{cache.format('pure')}",
            f"{SITE}/{cache.format('plat')}",
            *(f"{SITE}/demo-1.0.dist-info/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL")),
        ]
    )
    parents = ["opt", "opt/env", "opt/env/lib", f"opt/env/lib/python{PYTHON}", SITE, f"{SITE}/demo", "opt/env/bin"]
    assert all(next(e for e in entries if e.name == parent).isdir() for parent in parents)
    assert {(e.mtime, e.uid, e.gid, e.uname, e.gname) for e in entries} == {(315532800, 0, 0, "", "")}
    executable = {"opt/env/bin/demo-run", "opt/env/bin/demo.sh", f"{SITE}/demo/tool"}
    assert {e.name for e in entries if e.isfile() and e.mode == 0o755} == executable
    assert {e.mode for e in entries if e.isfile() and e.name not in executable} == {0o644}
    assert {e.mode for e in entries if e.isdir()} == {0o755}
    assert texts["opt/env/bin/demo-run"] == b"#!/usr/bin/env python3\nprint('hello')\n"
    assert texts["opt/env/bin/demo.sh"] == b"#!/bin/sh\n"
    assert texts[f"{SITE}/demo-1.0.dist-info/INSTALLER"] == b"repromatrix\n"


def test_bytecode_is_unchecked_and_names_the_source_of_the_image(store: WheelStore) -> None:
    tree = store.tree(put(store, "demo", DEMO), PYTHON, Silent())
    source = tree / SITE / "demo" / "__init__.py"
    pyc = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    assert pyc[:4] == importlib.util.MAGIC_NUMBER
    assert int.from_bytes(pyc[4:8], "little") == 0b01
    assert pyc[8:16] == importlib.util.source_hash(source.read_bytes())
    assert marshal.loads(pyc[16:]).co_filename == f"/{SITE}/demo/__init__.py"


def test_tree_and_pack_hold_the_same_whichever_comes_first(tmp_path: Path) -> None:
    by_pack, by_tree = WheelStore(tmp_path / "a"), WheelStore(tmp_path / "b")
    wheel = put(by_pack, "demo", DEMO)
    put(by_tree, "demo", DEMO)
    packs, trees = {}, {}
    packs["a"] = by_pack.pack(wheel, PYTHON, Silent())
    by_pack.place(wheel).unlink()  # so the tree comes from the pack
    trees["a"] = by_pack.tree(wheel, PYTHON, Silent())
    trees["b"] = by_tree.tree(wheel, PYTHON, Silent())
    by_tree.place(wheel).unlink()
    packs["b"] = by_tree.pack(wheel, PYTHON, Silent())
    assert packs["a"].read_bytes() == packs["b"].read_bytes()
    assert contents(trees["a"]) == contents(trees["b"])
    assert len(contents(trees["a"])) == 17
    with tarfile.open(fileobj=io.BytesIO(plain(packs["a"]))) as archive:
        archive.extractall(tmp_path / "out", filter="tar")
    assert contents(tmp_path / "out") == contents(trees["a"])
    assert {path.stat().st_mode & 0o222 for path in trees["a"].rglob("*") if path.is_file()} == {0}
    assert [path.name for path in (tmp_path / "a" / "tmp").iterdir() if path.suffix != ".lock"] == []


def test_a_second_request_reads_nothing(store: WheelStore) -> None:
    wheel = put(store, "demo", DEMO)
    first = store.pack(wheel, PYTHON, Silent()), store.tree(wheel, PYTHON, Silent())
    store.place(wheel).unlink()
    assert (store.pack(wheel, PYTHON, Silent()), store.tree(wheel, PYTHON, Silent())) == first


def test_the_build_stage_writes_the_same_bytes(store: WheelStore, tmp_path: Path) -> None:
    """As in a Dockerfile: the one file, alone in a folder, another working folder, hash seed and time zone."""
    wheel = put(store, "demo", DEMO)
    alone = tmp_path / "context"
    alone.mkdir()
    (alone / "pack.py").write_bytes(CORE.read_bytes())
    said = subprocess.run(
        [sys.executable, "-I", alone / "pack.py", tmp_path / "out", store.place(wheel)],
        cwd=tmp_path,
        env={"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "42"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{wheel.filename}.tar"]
    assert (tmp_path / "out" / f"{wheel.filename}.tar").read_bytes() == plain(store.pack(wheel, PYTHON, Silent()))


def test_bytecode_does_not_depend_on_how_the_work_is_split(tmp_path: Path) -> None:
    sources = {
        f"many/m{n}.py": f"def f{n}(a, b={{'x', 'y', 'z{n}'}}):\n    return a in ('q', {n}, 2.5)\n" for n in range(80)
    }
    data = wheel_bytes("many", sources)
    trees = []
    for jobs in (1, 2):
        root = tmp_path / str(jobs)
        root.mkdir()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            pack_core.unpack(archive, root, PYTHON)
        assert pack_core.compile_tree(root, PYTHON, sys.executable, jobs) == []
        trees.append(contents(root))
    assert trees[0] == trees[1]
    assert sum(path.endswith(".pyc") for path in trees[0]) == 80


@pytest.mark.parametrize("minor", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_bytecode_is_compiled_by_the_python_that_will_run_it(store: WheelStore, minor: str) -> None:
    interpreter = find_python(minor)
    if interpreter is None:
        pytest.skip(f"no CPython {minor} on this host")
    tree = store.tree(put(store, "demo", DEMO), minor, Silent())
    site = tree / pack_core.site_packages(minor)
    script = f"""
import sys
sys.path.insert(0, {str(site)!r})
import demo
print(demo.__cached__, demo.where.__code__.co_filename)
"""
    said = subprocess.run([interpreter, "-v", "-c", script], capture_output=True, text=True, check=True)
    pyc = site / "demo" / "__pycache__" / f"__init__.cpython-{minor.replace('.', '')}.pyc"
    assert said.stdout.split() == [str(pyc), str(site / "demo" / "__init__.py")]
    assert f"code object from '{pyc}'" in said.stderr
    assert not [line for line in said.stderr.splitlines() if line.startswith("# wrote") and str(site) in line]


def test_without_an_interpreter_there_is_no_bytecode_and_it_is_told(store: WheelStore) -> None:
    assert find_python("3.99") is None
    wheel = put(store, "demo", DEMO)
    pack = store.pack(wheel, "3.99", Silent())
    assert pack.name == f"{wheel.sha256}-cp399-source.tar.zst"
    assert not has_bytecode(pack)
    assert not [name for name in contents(store.tree(wheel, "3.99", Silent())) if name.endswith(".pyc")]


def test_no_code_of_the_wheel_runs(store: WheelStore, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    evil = f"open({str(witness)!r}, 'w')\n"
    names = ("json.py", "sitecustomize.py", "marshal.py", "evil/__init__.py")
    shadowed = dict.fromkeys(names, evil)
    wheel = put(store, "evil", wheel_bytes("evil", {**shadowed, "evil.pth": f"import os; {evil}"}))
    tree = store.tree(wheel, PYTHON, Silent())
    assert (tree / SITE / "__pycache__" / f"json.cpython-{TAG[2:]}.pyc").is_file()
    assert not witness.exists()


def _raw(name: str, content: bytes = b"x", mode: int = 0o100644) -> bytes:
    return wheel_bytes("bad", {name: content}, {name: mode})


def _twice() -> bytes:
    out = io.BytesIO(_raw("bad/a.py"))
    with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("bad/a.py", "y")
    return out.getvalue()


def _lying(old: int, new: int) -> bytes:
    """A wheel whose headers give another size than its data has."""
    data = _raw("bad/a.bin", bytes(old))
    assert data.count(old.to_bytes(4, "little")) == 2
    return data.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little"))


REFUSED: list[tuple[str, Callable[[], bytes], str]] = [
    ("absolute", lambda: _raw("/etc/passwd"), "unsafe path '/etc/passwd'"),
    ("above", lambda: _raw("bad/../../../x"), "unsafe path"),
    ("data above", lambda: _raw("bad-1.0.data/data/../../x"), "unsafe path"),
    ("backslash", lambda: _raw("bad\\x.py"), "unsafe path"),
    ("empty part", lambda: _raw("bad//x.py"), "unsafe path"),
    ("link", lambda: _raw("bad/link", b"/etc/passwd", 0o120777), "is a link"),
    ("device", lambda: _raw("bad/dev", b"", 0o020666), "special file"),
    ("twice", _twice, "two files for"),
    ("twice by scheme", lambda: wheel_bytes("bad", {"a.py": "", "bad-1.0.data/purelib/a.py": ""}), "two files for"),
    ("file and folder", lambda: wheel_bytes("bad", {"bad": "", "bad/a.py": ""}), "both a file and a folder"),
    ("unknown scheme", lambda: _raw("bad-1.0.data/boot/x"), "unknown .data folder 'boot'"),
    ("two infos", lambda: _raw("other-1.0.dist-info/METADATA"), "2 .dist-info folders"),
    ("more than promised", lambda: _lying(7_654_321, 1_000), "cannot be unpacked"),
    ("less than promised", lambda: _lying(7_654_321, 17_654_321), "cannot be unpacked|its header says"),
    ("no zip", lambda: b"hello", "not a zip"),
]


@pytest.mark.parametrize(("make", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_wheel_that_would_do_harm_is_refused(store: WheelStore, make: Callable[[], bytes], message: str) -> None:
    wheel = put(store, "bad", make())
    with pytest.raises(InfraError, match=message) as caught:
        store.tree(wheel, PYTHON, Silent())
    assert caught.value.where == wheel.filename
    with pytest.raises(InfraError, match=message):
        store.pack(wheel, PYTHON, Silent())
    assert [path.name for path in store.root.rglob("*") if path.name.startswith(wheel.sha256)] == [
        wheel.sha256,
        f"{wheel.sha256}-{TAG}.lock",
    ]


def test_what_is_larger_than_the_disk_is_refused_before_it_is_written(store: WheelStore) -> None:
    out = io.BytesIO(_raw("bad/a.bin"))
    with zipfile.ZipFile(out) as archive:
        assert pack_core.unpacked_size(archive) > 0
    # zip64: one entry whose header promises an exabyte
    data = _zip64_promise(10**18)
    with pytest.raises(InfraError, match=r"not enough room: 1000000000000\.\d MB needed"):
        store.tree(put(store, "bad", data), PYTHON, Silent())


def _zip64_promise(size: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("bad-1.0.dist-info/METADATA", "")
        archive.writestr("bad/a.bin", "x")
        archive.infolist()[1].file_size = size
    return out.getvalue()


def test_a_damaged_pack_is_removed_and_told(store: WheelStore) -> None:
    wheel = put(store, "demo", DEMO)
    pack = store.pack(wheel, PYTHON, Silent())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(InfraError, match="the pack was damaged"):
        store.tree(wheel, PYTHON, Silent())
    assert not pack.exists()
    assert len(contents(store.tree(wheel, PYTHON, Silent()))) == 17


def test_a_killed_build_leaves_nothing_for_the_next(store: WheelStore) -> None:
    wheel = put(store, "demo", DEMO)
    room = store.tmp / f"{wheel.sha256}-{TAG}.room"
    (room / "tree" / "opt").mkdir(parents=True)
    (room / "tree" / "opt" / "half").write_text("")
    assert "opt/half" not in contents(store.tree(wheel, PYTHON, Silent()))
    assert not room.exists()


def test_a_compiler_that_dies_is_infrastructure(store: WheelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel: Wheel = put(store, "demo", DEMO)
    monkeypatch.setattr(pack_module, "find_python", lambda python: Path("/bin/false"))
    with pytest.raises(InfraError, match="compiling bytecode failed: /bin/false ended with status 1") as caught:
        store.tree(wheel, PYTHON, Silent())
    assert caught.value.exit_code == 3
    assert not (store.root / "trees").exists()
