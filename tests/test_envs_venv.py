"""The venv of an environment: shared files, nothing written on import, true paths, hosts without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

import pytest
from uv import find_uv_bin

from repromatrix.envs import interpreter as interpreters
from repromatrix.envs.interpreter import NoInterpreter, find_python, obtain_python
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.network import uv_environment
from repromatrix.envs.venv import known, materialise
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from tests.wheel_factory import Heard, a_lock, as_wheel, put, wheel_bytes

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{PYTHON}/site-packages"

ALPHA = wheel_bytes(
    "alpha",
    {
        "alpha/__init__.py": "def fail():\n    raise RuntimeError('alpha failed')\n",
        "shared/__init__.py": "",
        "shared/who.py": "NAME = 'alpha'\n",
        "alpha-1.0.data/scripts/alpha-run": "#!python\nimport alpha; print(alpha.__file__)\n",
    },
)
BETA = wheel_bytes("beta", {"beta.py": "x = 1\n", "shared/__init__.py": "", "shared/who.py": "NAME = 'beta'\n"})


@pytest.fixture
def store(tmp_path: Path) -> WheelStore:
    return WheelStore(tmp_path / "store")


def clean() -> dict[str, str]:
    """This process's variables without any that change what Python writes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [venv / "bin" / "python", *arguments], capture_output=True, text=True, env=clean(), cwd=venv.parent, check=False
    )


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """(inode, size, time in ns) of everything below `folder`, folders too: a file written and removed shows as well."""
    return {
        str(path.relative_to(folder)): (s.st_ino, s.st_size, s.st_mtime_ns)
        for path in folder.rglob("*")
        for s in [path.lstat()]
    }


def test_the_interpreter_answers_with_the_version_asked_for() -> None:
    found = find_python(PYTHON)
    assert found is not None
    assert not found.is_symlink()
    said = subprocess.run(
        [found, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == PYTHON
    assert found.is_relative_to(sys.base_prefix)
    assert find_python("3.99") is None


def test_impostors_on_path_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in {
        "python3.99": f'exec {sys.executable} "$@"',
        "python3.98": "exit 127",
        "python3.97": "echo hello",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for minor in ("3.99", "3.98", "3.97"):
        assert interpreters.interpreter.__wrapped__(minor) is None


def test_the_interpreter_of_pyenv_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_python(PYTHON)
    assert real is not None
    place = tmp_path / "versions" / f"{PYTHON}.0" / "bin" / f"python{PYTHON}"
    place.parent.mkdir(parents=True)
    place.symlink_to(real)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert place in list(interpreters._candidates(PYTHON))


def test_a_venv_holds_the_wheels_and_nothing_else(store: WheelStore) -> None:
    lock = a_lock(PYTHON, put(store, "alpha", ALPHA), put(store, "beta", BETA))
    assert known(lock, store) is None
    venv = materialise(lock, store, Silent())
    assert venv.parent == store.root / "venvs"
    assert venv.name.startswith(lock.hash[:32] + "-")
    assert known(lock, store) == venv
    said = run(venv, "-c", "import importlib.metadata as m; print(sorted(d.name for d in m.distributions()))")
    assert said.stdout.strip() == "['alpha', 'beta']"
    said = run(
        venv, "-c", "import sys; print(sys.prefix, sys.base_prefix != sys.prefix, [p for p in sys.path if 'site' in p])"
    )
    assert said.stdout.strip() == f"{venv} True ['{venv / SITE}']"
    assert run(venv, "-m", "pip").returncode != 0
    environ = {**clean(), "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    said = subprocess.run([venv / "bin" / "alpha-run"], capture_output=True, text=True, env=environ, check=False)
    assert said.stdout.strip() == str(venv / SITE / "alpha" / "__init__.py")


def test_importing_writes_nothing_and_tracebacks_show_where_the_file_is(store: WheelStore) -> None:
    venv = materialise(a_lock(PYTHON, put(store, "alpha", ALPHA)), store, Silent())
    before = stamps(venv)
    said = run(venv, "-v", "-c", "import alpha, shared.who; alpha.fail()")
    assert said.returncode == 1
    assert f'File "{venv / SITE}/alpha/__init__.py", line 2, in fail\n    raise RuntimeError' in said.stderr
    assert f"# code object from '{venv / SITE}/alpha/__pycache__/" in said.stderr
    assert stamps(venv) == before


def test_files_are_shared_with_the_store_and_read_only(store: WheelStore) -> None:
    wheel = put(store, "alpha", ALPHA)
    venv = materialise(a_lock(PYTHON, wheel), store, Silent())
    source = store.tree(wheel, PYTHON, Silent()) / "opt" / "env" / SITE / "alpha" / "__init__.py"
    target = venv / SITE / "alpha" / "__init__.py"
    assert target.samefile(source)
    assert target.stat().st_mode & 0o777 == 0o444
    if os.getuid() != 0:
        with pytest.raises(PermissionError):
            target.write_text("")


def test_where_links_are_impossible_files_are_copied(store: WheelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    wheel = put(store, "alpha", ALPHA)
    venv = materialise(a_lock(PYTHON, wheel), store, Silent())
    target = venv / SITE / "alpha" / "__init__.py"
    assert target.stat().st_nlink == 1
    assert target.stat().st_mode & 0o777 == 0o444
    assert run(venv, "-c", "import alpha").returncode == 0


def test_a_file_of_several_wheels_is_told_where_it_differs(store: WheelStore) -> None:
    lock, heard = a_lock(PYTHON, put(store, "alpha", ALPHA), put(store, "beta", BETA)), Heard()
    venv = materialise(lock, store, heard)
    assert run(venv, "-c", "import shared.who as w; print(w.NAME)").stdout.strip() == "beta"
    assert (
        f"{SITE}/shared/who.py comes in several wheels; the one of beta-1.0-py3-none-any.whl counts"
        in heard.warnings[0]
    )
    assert not any("__init__.py" in warning for warning in heard.warnings)


def test_a_venv_without_its_marker_is_made_anew(store: WheelStore) -> None:
    lock = a_lock(PYTHON, put(store, "alpha", ALPHA))
    venv = materialise(lock, store, Silent())
    (venv / "repromatrix.json").unlink()
    (venv / SITE / "alpha" / "__init__.py").unlink()
    assert known(lock, store) is None
    assert materialise(lock, store, Silent()) == venv
    assert run(venv, "-c", "import alpha").returncode == 0


@pytest.mark.parametrize("how", ["removed", "edited", "installed", "no python"])
def test_a_venv_that_was_changed_is_made_anew(store: WheelStore, how: str) -> None:
    lock = a_lock(PYTHON, put(store, "alpha", ALPHA))
    venv = materialise(lock, store, Silent())
    module = venv / SITE / "alpha" / "__init__.py"
    before = module.read_text()
    if how == "removed":
        module.unlink()
    elif how == "edited":  # in place, and so in the store too
        module.chmod(0o644)
        module.write_text(before.replace("failed", "FAILED"))
    elif how == "installed":
        (venv / SITE / "numpy.py").write_text("")
    else:
        (venv / "bin" / "python").unlink()
    assert known(lock, store) is None
    assert materialise(lock, store, Silent()) == venv
    assert module.read_text() == before
    assert not (venv / SITE / "numpy.py").exists()
    assert run(venv, "-c", "import alpha").returncode == 0
    assert known(lock, store) == venv


def test_a_tree_that_was_changed_is_unpacked_again(store: WheelStore) -> None:
    wheel = put(store, "alpha", ALPHA)
    heard = Heard()
    tree = store.tree(wheel, PYTHON, heard)
    found = stamps(tree)
    next(tree.rglob("who.py")).unlink()
    assert {path for path, _ in stamps(store.tree(wheel, PYTHON, heard)).items()} == set(found)
    assert any("it is unpacked again" in note for note in heard.warnings)


def test_threads_that_ask_at_once_get_one_venv(store: WheelStore) -> None:
    lock, made = a_lock(PYTHON, put(store, "alpha", ALPHA)), []
    threads = [threading.Thread(target=lambda: made.append(materialise(lock, store, Silent()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert set(made) == {known(lock, store)}


def test_a_missing_interpreter_is_a_property_of_the_host(store: WheelStore) -> None:
    lock = a_lock("3.99", put(store, "alpha", ALPHA))
    assert known(lock, store) is None
    with pytest.raises(NoInterpreter, match=r"no CPython 3\.99 on this host") as caught:
        materialise(lock, store, Silent())
    assert isinstance(caught.value, InfraError)
    assert "uv python install 3.99" in caught.value.hint
    assert not (store.root / "trees").exists()


def test_a_missing_wheel_leaves_no_venv(store: WheelStore) -> None:
    lock = a_lock(PYTHON, as_wheel("alpha", ALPHA))
    with pytest.raises(InfraError, match="not in the store"):
        materialise(lock, store, Silent())
    assert known(lock, store) is None


def test_a_disk_error_is_infrastructure(store: WheelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", full)
    lock = a_lock(PYTHON, put(store, "alpha", ALPHA))
    with pytest.raises(InfraError, match="the disk is full"):
        materialise(lock, store, Silent())
    assert known(lock, store) is None


def _jax_lock(folder: Path) -> tuple[Lock, dict[str, str]]:
    requirement, result = folder / "jax.in", folder / "pylock.toml"
    requirement.write_text("jax==0.6.2\n")
    options = [
        "--python-version",
        "3.11",
        "--python-platform",
        "x86_64-manylinux_2_28",
        "--exclude-newer",
        "2025-06-18",
    ]
    command: list[str | Path] = [find_uv_bin(), "pip", "compile", requirement, "--only-binary", ":all:", *options]
    subprocess.run(
        [*command, "--format", "pylock.toml", "-o", result, "-q"], check=True, env=uv_environment(), cwd=folder
    )
    wheels, urls = [], {}
    for package in tomllib.loads(result.read_text())["packages"]:
        entry = package["wheels"][0]
        digest, name = entry["hashes"]["sha256"], entry["url"].rsplit("/", 1)[1]
        wheels.append(Wheel(package["name"], package["version"], name, digest, entry.get("size", 0), ""))
        urls[digest] = entry["url"]
    return a_lock("3.11", *wheels), urls


@pytest.mark.network
@pytest.mark.slow
def test_the_real_jax_runs_in_its_venv_and_writes_nothing(store: WheelStore, tmp_path: Path) -> None:
    if find_python("3.11") is None:
        pytest.skip("no CPython 3.11 on this host")
    lock, urls = _jax_lock(tmp_path)
    assert {"jax", "jaxlib", "numpy", "scipy"} < {wheel.name for wheel in lock.wheels}
    store.fetch(lock.wheels, urls, Silent(), threading.Event())
    packs = [store.pack(wheel, "3.11", Silent()) for wheel in lock.wheels]
    assert all(pack.stat().st_size > 1000 for pack in packs)
    venv = materialise(lock, store, Silent())
    before = stamps(venv)
    said = run(
        venv, "-v", "-c", "import jax; print(jax.__version__, jax.numpy.ones(3).sum(), jax.jit.__code__.co_filename)"
    )
    site = venv / "lib/python3.11/site-packages"
    assert said.stdout.split() == ["0.6.2", "3.0", f"{site}/jax/_src/api.py"]
    assert stamps(venv) == before
    compiled = {line.split("'")[1] for line in said.stderr.splitlines() if line.startswith("# code object from")}
    assert [path for path in compiled if str(site) in path and not path.endswith(".pyc")] == []
    assert sum(str(site / "jax") in path for path in compiled) > 100


def test_no_project_around_binds_the_uv_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called in a project that demands another release of uv, and whose temporary folders lie in it."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n[tool.uv]\nrequired-version = "==0.1"'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("PATH", str(Path(sys.base_prefix, "bin")))
    assert interpreters._ask_uv(PYTHON) is not None
    with pytest.raises(NoInterpreter) as caught:
        obtain_python("3.99", Silent())
    assert "Required uv version" not in str(caught.value)


def test_an_interpreter_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(NoInterpreter) as caught:
        obtain_python("3.99", Silent())
    assert "no CPython 3.99 on this host, and uv installs none" in str(caught.value)
    assert "container engine" in caught.value.hint
