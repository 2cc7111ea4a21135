"""flake.nix with a real Nix and a small stand-in for nixpkgs (tests/nix): what it gives, fetches and refuses."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from repromatrix.envs.index import PLATFORM, addresses
from repromatrix.envs.lockfile import read_wheels, render_lock, write_lock
from repromatrix.envs.model import Lock, Wheel, hash_of
from repromatrix.envs.network import uv_environment
from repromatrix.envs.pack_core import build_tree
from repromatrix.spec.model import Environment
from tests.conftest import ROOT
from tests.fake_index import FakeIndex, Published

LOCKS = ROOT / "containers" / "locks"
IDS = sorted(path.stem for path in LOCKS.glob("*.txt"))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Nix:
    """A Nix with a store of its own: no substituter, no daemon, no user's configuration."""

    program: str
    home: Path

    def __call__(self, *args: str, timeout: float = 300) -> Said:
        return self.run(self.program, "--extra-experimental-features", "nix-command flakes", *args, timeout=timeout)

    def run(self, program: str, *args: str, timeout: float = 300) -> Said:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NIX_")}
        bundle = os.environ.get("NIX_SSL_CERT_FILE") or uv_environment().get("SSL_CERT_FILE", "")
        done = subprocess.run(
            [
                program,
                *("--option", "substituters", ""),
                *("--option", "build-users-group", ""),
                *("--option", "sandbox", "false"),
                *args,
            ],
            cwd=self.home,
            env={
                **inherited,
                "HOME": str(self.home),
                "NIX_STORE_DIR": str(self.home / "store"),
                "NIX_STATE_DIR": str(self.home / "state"),
                "NIX_LOG_DIR": str(self.home / "log"),
                "NIX_CONF_DIR": str(self.home / "conf"),
                **({"NIX_SSL_CERT_FILE": bundle} if bundle else {}),
            },
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Flake:
    """A copy of what flake.nix reads, with a nixpkgs to evaluate it against."""

    nix: Nix
    root: Path
    nixpkgs: Path

    def __call__(self, command: str, *args: str, timeout: float = 300) -> Said:
        return self.nix(*command.split(), "--override-input", "nixpkgs", f"path:{self.nixpkgs}", *args, timeout=timeout)

    def at(self, *attribute: str) -> str:
        """The installable of an attribute; names with dots are quoted."""
        return f"path:{self.root}#" + ".".join(f'"{name}"' for name in attribute)

    def json(self, *attribute: str) -> Any:
        said = self("eval --json", self.at(*attribute))
        assert said.code == 0, said.err
        return json.loads(said.out)

    def build(self, *attribute: str, timeout: float = 300) -> Path:
        said = self("build --json --no-link", self.at(*attribute), timeout=timeout)
        assert said.code == 0, said.err
        return Path(json.loads(said.out)[0]["outputs"]["out"])

    def host(self, wheels: dict[str, str], python: str = PYTHON) -> None:
        """Tell the stand-in where wheels are served, and give it the running interpreter."""
        told = {"addresses": wheels, "pythons": {python: str(Path(sys.executable).resolve())}}
        (self.nixpkgs / "host.json").write_text(json.dumps(told))

    def lock(self, lock: Lock, edit: Callable[[str], str] = str) -> None:
        path = write_lock(lock, self.root / "containers" / "locks")
        path.write_text(edit(path.read_text()))


@pytest.fixture(scope="session")
def nix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nix]:
    """Nix; without one the test is skipped, or fails where REPROMATRIX_REQUIRE_NIX=1."""
    if (program := shutil.which("nix")) is None:
        if os.environ.get("REPROMATRIX_REQUIRE_NIX") == "1":
            pytest.fail("REPROMATRIX_REQUIRE_NIX=1 and there is no nix (Debian's package is nix-bin)")
        pytest.skip("no nix here (Debian's package is nix-bin)")
    home = tmp_path_factory.mktemp("nix")
    (home / "store").mkdir()
    yield Nix(program, home)
    # Nix leaves its folders read-only, and pytest could not remove them.
    for folder, _, _ in os.walk(home / "store"):
        Path(folder).chmod(0o755)


def flake_in(folder: Path, nix: Nix, locks: Iterable[Path]) -> Flake:
    root = folder / "checkout"
    (root / "containers" / "locks").mkdir(parents=True)
    (root / "repromatrix" / "envs").mkdir(parents=True)
    for name in ("flake.nix", "flake.lock", "repromatrix/envs/pack_core.py"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "nix", root / "nix")
    shutil.copytree(ROOT / "tests" / "nix", folder / "nixpkgs")
    for path in locks:
        shutil.copy(path, root / "containers" / "locks")
    return Flake(nix, root, folder / "nixpkgs")


@pytest.fixture(scope="session")
def committed(nix: Nix, tmp_path_factory: pytest.TempPathFactory) -> Flake:
    """The flake with every file of containers/locks."""
    others = [path for path in LOCKS.iterdir() if path.suffix != ".txt"]
    return flake_in(tmp_path_factory.mktemp("flake"), nix, [*others, *(LOCKS / f"{id_}.txt" for id_ in IDS)])


@pytest.fixture
def own(nix: Nix, tmp_path: Path) -> Flake:
    """The flake with no lock yet."""
    return flake_in(tmp_path, nix, ())


def lock_of(wheels: Iterable[Wheel], python: str = PYTHON) -> Lock:
    axes = (("jax", "1.0.0"), ("cuda", "none"), ("python", python), ("nccl", "locked"))
    ordered = tuple(sorted(wheels, key=lambda wheel: wheel.name))
    return Lock(Environment(axes), python, PLATFORM, "release", "2025-01-10T23:59:59Z", ordered)


def wheel_of(made: Published) -> Wheel:
    return Wheel(made.name, made.version, made.path.name, made.sha256, made.path.stat().st_size, made.uploaded)


def published(index: FakeIndex, version: str) -> Lock:
    """An environment of hand-made wheels: one has a script, one a name that its file spells otherwise.

    Nix fetches no bytes that its store has: `version` makes them new.
    """
    index.add("nvidia-nccl-cu12", "2.0", {"nvidia/nccl/__init__.py": f"version = {version!r}\n"})
    index.add(
        "greeter",
        "1.0",
        {
            "greeter/__init__.py": "import nvidia.nccl\n\n\ndef greet():\n    return 'hi ' + nvidia.nccl.version\n",
            "greeter-1.0.data/scripts/greet": "#!python\nimport greeter\nprint(greeter.greet())\n",
        },
    )
    latest = {made.name: made for made in index.published if made.version in ("1.0.0", "1.0", "2.0")}
    return lock_of(wheel_of(latest[name]) for name in ("greeter", "jax", "jaxlib", "nvidia-nccl-cu12"))


def served(index: FakeIndex, lock: Lock) -> dict[str, str]:
    return {wheel.filename: f"{index.url.removesuffix('/simple')}/files/{wheel.filename}" for wheel in lock.wheels}


# --- what the flake gives ---------------------------------------------------------------------------------------------


def test_every_output_evaluates(committed: Flake) -> None:
    said = committed("flake check --no-build", f"path:{committed.root}")
    assert said.code == 0, said.err
    shown = committed("flake show --json", f"path:{committed.root}")
    assert shown.code == 0, shown.err
    outputs = json.loads(shown.out)
    assert set(outputs["packages"]["x86_64-linux"]) == {f"{id_}-{kind}" for id_ in IDS for kind in ("wheels", "image")}
    assert not outputs["packages"].get("aarch64-linux")  # no lock says so
    for system in ("x86_64-linux", "aarch64-linux"):
        assert set(outputs["devShells"][system]) == {"default"}
        assert set(outputs["apps"][system]) == {"matrix"}
        assert set(outputs["checks"][system]) == {"locks"}


def test_the_development_shell_has_its_programs(committed: Flake) -> None:
    packages = committed.build("devShells", "x86_64-linux", "default").read_text().split()
    assert {Path(path).name.partition("-")[2] for path in packages} == {
        *("python3", "uv", "docker-client", "docker-buildx", "skopeo", "gdb", "git"),
    }


def test_wheels_and_hashes_are_those_that_the_tool_reads(committed: Flake) -> None:
    found = committed.json("lib", "locks")
    assert sorted(found) == IDS
    assert len(IDS) > 30
    for id_, lock in found.items():
        content = read_wheels(LOCKS / f"{id_}.txt", lock["python"], "")
        assert not content.errors
        assert [(w["name"], w["version"], w["filename"], w["sha256"]) for w in lock["wheels"]] == [
            (w.name, w.version, w.filename, w.sha256) for w in content.wheels
        ]
        assert lock["hash"] == hash_of(content.stated("python"), content.stated("platform"), content.wheels)
    assert json.loads(committed.build("checks", "x86_64-linux", "locks").read_text()) == found


def test_every_wheel_is_a_fixed_output_derivation(committed: Flake) -> None:
    """Read from the derivations themselves: the name that Nix stores the file by, and the hash that it must have."""
    said = committed(
        "show-derivation --recursive", *(committed.at("packages", "x86_64-linux", f"{id_}-wheels") for id_ in IDS)
    )
    assert said.code == 0, said.err
    derivations = json.loads(said.out)
    for id_ in IDS:
        (farm,) = (made for path, made in derivations.items() if path.endswith(f"-{id_}-wheels.drv"))
        fetched = {made["env"]["name"]: made for made in map(derivations.get, farm["inputDrvs"])}
        hashes = {name: made["outputs"]["out"].get("hash") for name, made in fetched.items()}
        assert {made["outputs"]["out"].get("hashAlgo") for made in fetched.values()} == {"sha256"}
        locked = read_wheels(LOCKS / f"{id_}.txt", "3.11", "").wheels
        assert {name: as_hex(found) for name, found in hashes.items()} == {w.filename: w.sha256 for w in locked}


def as_hex(found: str) -> str:
    """Nix shows hashes in hexadecimal, newer ones as `sha256-<base64>`."""
    return base64.b64decode(found.removeprefix("sha256-")).hex() if found.startswith("sha256-") else found


def test_no_address_and_no_host_is_written_down() -> None:
    files = [ROOT / "flake.nix", *(ROOT / "nix").iterdir(), *(ROOT / "tests" / "nix").glob("*.nix")]
    assert len(files) >= 5
    assert not [path.name for path in files if re.search(r"https?:", path.read_text())]


def test_the_lock_of_the_flake_is_the_revision_it_names(committed: Flake) -> None:
    """A lock that did not fit would be made anew, which asks the network; this is offline, with no override."""
    said = committed.nix("flake", "metadata", "--json", "--offline", f"path:{committed.root}")
    assert said.code == 0, said.err
    locked = json.loads(said.out)["locks"]["nodes"]["nixpkgs"]["locked"]
    assert locked == json.loads((ROOT / "flake.lock").read_text())["nodes"]["nixpkgs"]["locked"]
    (revision,) = re.findall(r"github:NixOS/nixpkgs/([0-9a-f]{40})\"", (ROOT / "flake.nix").read_text())
    assert locked["rev"] == revision
    assert len(base64.b64decode(locked["narHash"].removeprefix("sha256-"), validate=True)) == 32


# --- locks ------------------------------------------------------------------------------------------------------------


def test_a_new_lock_needs_no_edit(own: Flake) -> None:
    lock = lock_of(
        [
            Wheel("jax", "1.0.0", "jax-1.0.0-py3-none-any.whl", "a" * 64, 1, ""),
            Wheel("jaxlib", "1.0.0", "jaxlib-1.0.0-2-cp311-cp311-manylinux_2_27_aarch64.whl", "b" * 64, 1, ""),
        ],
        "3.11",
    )
    own.lock(replace(lock, platform="aarch64-manylinux_2_28"))
    shown = own("flake show --json", f"path:{own.root}")
    assert shown.code == 0, shown.err
    packages = json.loads(shown.out)["packages"]
    assert set(packages["aarch64-linux"]) == {"jax1.0.0-cpu-py311-wheels", "jax1.0.0-cpu-py311-image"}
    assert not packages.get("x86_64-linux")
    # The build tag is part of the name that is fetched.
    (folder,) = json.loads(
        own("show-derivation", own.at("packages", "aarch64-linux", f"{lock.id}-wheels")).out
    ).values()
    assert any("jaxlib-1.0.0-2-cp311-cp311" in path for path in folder["inputDrvs"])


def test_a_python_that_nixpkgs_has_not_is_named(own: Flake) -> None:
    own.lock(lock_of([Wheel("jax", "1.0.0", "jax-1.0.0-py3-none-any.whl", "a" * 64, 1, "")], "3.9"))
    said = own("build --dry-run", own.at("packages", "x86_64-linux", "jax1.0.0-cpu-py39-image"))
    assert said.code != 0
    assert "jax1.0.0-cpu-py39: this nixpkgs has no python39" in said.err
    assert own("build --dry-run", own.at("packages", "x86_64-linux", "jax1.0.0-cpu-py39-wheels")).code == 0


@pytest.mark.parametrize(
    ("change", "by", "message"),
    [
        ("sha256:a", "sha256:A", ":11: not a locked wheel: 'jax==1.0.0 --hash=sha256:A"),
        ("sha256:aa", "sha256:a", ":11: not a locked wheel"),
        ("sha256:", "sha1:", ":11: not a locked wheel"),
        (" 1 -\n", " 1\n", ":11: not a locked wheel"),
        ("any.whl 1", "$(id).whl 1", ":11: not a locked wheel"),
        ("\njaxlib", "\n\njaxlib", ":12: not a locked wheel: ''"),
        ("# jax-1.0.0", "# jaks-1.0.0", ":11: jaks-1.0.0-py3-none-any.whl is no wheel of jax"),
        ("-none-any.whl", "-any.whl", ":11: jax-1.0.0-py3-any.whl is no wheel of jax"),
        ("2_27_x86_64", "2_27_aarch64", ":12: jaxlib-1.0.0-cp311-cp311-manylinux_2_27_aarch64.whl does not fit x86_64"),
        ("jaxlib==1.0.0", "jax==1.0.0", ":12: jaxlib-1.0.0-cp311-cp311-manylinux_2_27_x86_64.whl is no wheel of jax"),
        ("# platform: x86_64-manylinux_2_28\n", "", ": the header does not say 'platform: ...', or not in one way"),
        ("x86_64-manylinux_2_28", "windows", ": the header does not say 'platform: ...', or not in one way"),
    ],
)
def test_a_broken_lock_is_refused_as_the_tool_refuses_it(own: Flake, change: str, by: str, message: str) -> None:
    broken_by(own, lambda text: text.replace(change, by, 1) if change != "# jax-1.0.0" else text.replace(change, by))
    path = own.root / "containers" / "locks" / "jax1.0.0-cpu-py311.txt"
    assert read_wheels(path, "3.11", "").errors
    refused(own, message)


@pytest.mark.parametrize(
    ("change", "by", "message"),
    [
        ("# python: 3.11\n", "", ": the header does not say 'python: ...', or not in one way"),
        (
            "# python: 3.11\n",
            "# python: 3.11\n# python: 3.12\n",
            ": the header does not say 'python: ...', or not in one way",
        ),
        ("# wheels: 2", "# wheels: 3", ": the header does not count the 2 wheels below it"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(own: Flake, change: str, by: str, message: str) -> None:
    broken_by(own, lambda text: text.replace(change, by, 1))
    refused(own, message)


def test_a_package_locked_twice_is_refused(own: Flake) -> None:
    broken_by(own, lambda text: text.replace("# wheels: 2", "# wheels: 3") + text.splitlines(keepends=True)[-1])
    assert read_wheels(own.root / "containers" / "locks" / "jax1.0.0-cpu-py311.txt", "3.11", "").errors
    refused(own, ": a package is locked twice")


def test_random_damage_is_never_read_otherwise_than_by_the_tool(nix: Nix, tmp_path: Path) -> None:
    """400 damaged copies of a lock, in one evaluation: each is refused by a message of our own, or is the same data."""
    text = (LOCKS / "jax0.10.1-cuda12-py311.txt").read_text()
    folder = tmp_path / "locks"
    folder.mkdir()
    chance = random.Random(5)
    for number in range(400):
        (folder / f"{number}.txt").write_text(damaged(text, chance))
    (folder / "empty.txt").write_text("")
    (folder / "whole.txt").write_text(text)
    every = f"import {ROOT / 'nix' / 'locks.nix'} {folder}"
    said = nix(
        *("eval", "--json", "--impure", "--expr"),
        f"builtins.mapAttrs (_: lock: (builtins.tryEval (builtins.deepSeq lock lock)).value) ({every})",
    )
    assert said.code == 0, said.err
    found = json.loads(said.out)
    accepted = {name: lock for name, lock in found.items() if lock}
    assert "whole" in accepted
    assert 0 < len(accepted) - 1 < 399
    for name, lock in found.items():
        content = read_wheels(folder / f"{name}.txt", "3.11", "")
        if lock:
            # Nix leaves to the tool whether versions agree and whether this Python takes the tags.
            assert all(re.search(r"is no wheel of|does not fit|[Ii]nvalid", error.message) for error in content.errors)
            assert {(w["name"], w["version"], w["filename"], w["sha256"]) for w in lock["wheels"]} == {
                (w.name, w.version, w.filename, w.sha256) for w in content.wheels
            }
        elif not content.errors:
            # Left are what `read_lock` refuses, the count and the Python, and names that Nix cannot store a file by.
            counted = content.stated("wheels") == str(len(content.wheels)) and content.stated("python") == "3.11"
            assert not counted or any(re.search(r"[^\w.+-]", wheel.filename) for wheel in content.wheels)


def damaged(text: str, chance: random.Random) -> str:
    """One character or line lost, doubled, moved or replaced."""
    if chance.random() < 0.3:
        lines = text.splitlines(keepends=True)
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        taken = [lines[at]] * chance.choice((0, 1, 2))
        rest = lines[:at] + lines[at + 1 :]
        return "".join([*rest[:to], *taken, *rest[to:]])
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(["", text[at] * 2, chance.choice("aA0-_.:# \n")]) + text[at + 1 :]


def broken_by(flake: Flake, edit: Callable[[str], str]) -> None:
    lock = lock_of(
        [
            Wheel("jax", "1.0.0", "jax-1.0.0-py3-none-any.whl", "a" * 64, 1, ""),
            Wheel("jaxlib", "1.0.0", "jaxlib-1.0.0-cp311-cp311-manylinux_2_27_x86_64.whl", "b" * 64, 1, ""),
        ],
        "3.11",
    )
    flake.lock(lock)
    assert len(flake.json("lib", "locks", lock.id)["wheels"]) == 2
    assert edit(render_lock(lock)) != render_lock(lock)
    flake.lock(lock, edit)


def refused(flake: Flake, message: str) -> None:
    said = flake("flake check --no-build", f"path:{flake.root}")
    assert said.code != 0
    assert f"containers/locks/jax1.0.0-cpu-py311.txt{message}" in said.err
    assert "lock it again: invoke lock --env jax1.0.0-cpu-py311 --refresh" in said.err


# --- what Nix fetches and builds --------------------------------------------------------------------------------------


def test_wheels_are_fetched_and_become_an_environment(own: Flake, index: FakeIndex, tmp_path: Path) -> None:
    lock = published(index, "two")
    own.lock(lock)
    own.host(served(index, lock))
    wheels = own.build("packages", "x86_64-linux", f"{lock.id}-wheels")
    assert {path.name: path.read_bytes() for path in wheels.iterdir()} == {
        wheel.filename: (index.folder / wheel.filename).read_bytes() for wheel in lock.wheels
    }

    image = own.build("packages", "x86_64-linux", f"{lock.id}-image")
    assert (image / "reference").read_text() == f"repromatrix:{lock.id}-nix\n"
    config = json.loads((image / "config.json").read_text())
    assert config["Labels"]["org.repromatrix.lock"] == lock.hash
    assert config["User"] == "1000:1000"
    assert "/usr/lib/x86_64-linux-gnu" in next(text for text in config["Env"] if text.startswith("LD_LIBRARY_PATH="))
    root = image / "root"
    assert (root / "tmp").is_dir()
    assert (root / "lib64" / "ld-linux-x86-64.so.2").is_symlink()
    # The files of the tool's own trees, byte for byte, bytecode too.
    compiled = 0
    for wheel in lock.wheels:
        tree = tmp_path / wheel.name
        with (index.folder / wheel.filename).open("rb") as source:
            build_tree(source, tree, lock.python, str(Path(sys.executable).resolve()))
        for path in filter(Path.is_file, tree.rglob("*")):
            assert (root / path.relative_to(tree)).read_bytes() == path.read_bytes()
            compiled += path.suffix == ".pyc"
    assert compiled
    assert python(root, "import greeter, jax, sys; print(greeter.greet(), jax.__version__, sys.prefix)") == (
        f"hi two 1.0.0 {root / 'opt' / 'env'}"
    )


def python(root: Path, code: str) -> str:
    """What the interpreter of an image's root prints."""
    done = subprocess.run(
        [root / "opt" / "env" / "bin" / "python", "-I", "-c", code],
        env={"JAX_PLATFORMS": "cpu", "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_other_bytes_than_the_lock_promises_are_refused(own: Flake, index: FakeIndex) -> None:
    lock = published(index, "three")
    own.lock(lock)
    own.host(served(index, lock))
    index.broken.add("nvidia_nccl_cu12-2.0-py3-none-any.whl")
    said = own("build --json --no-link", own.at("packages", "x86_64-linux", f"{lock.id}-wheels"))
    assert said.code != 0
    assert "hash mismatch" in said.err
    assert "nvidia_nccl_cu12-2.0-py3-none-any.whl" in said.err
    index.broken.clear()
    own.build("packages", "x86_64-linux", f"{lock.id}-wheels")


def test_wheels_of_the_tool_s_store_need_no_network(own: Flake, index: FakeIndex) -> None:
    """What a restored archive holds: Nix finds a wheel by name and hash, wherever it came from."""
    lock = published(index, "four")
    own.lock(lock)
    own.host({})
    wheels = own.at("packages", "x86_64-linux", f"{lock.id}-wheels")
    assert own("build --no-link", wheels).code != 0
    added = own.nix.run("nix-store", "--add-fixed", "sha256", *(str(index.folder / w.filename) for w in lock.wheels))
    assert added.code == 0, added.err
    said = own("build --no-link", wheels)
    assert said.code == 0, said.err


def test_the_app_runs_the_matrix_of_the_checkout(own: Flake, tmp_path: Path) -> None:
    program = own.json("apps", "x86_64-linux", "matrix", "program")
    said = own("run", f"path:{own.root}#matrix", "--", "--repro", "a b")
    assert said.code == 2, said.err
    assert "no checkout of Repromatrix here" in said.err

    # What it hands to uv: a program of that name that prints its arguments stands in for it.
    checkout = tmp_path / "there"
    (checkout / "repros").mkdir(parents=True)
    (checkout / "tasks.py").write_text("")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    uv.chmod(0o755)
    done = subprocess.run(
        [program, "--repro", "a b"],
        cwd=checkout,
        env={"PATH": f"{uv.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "<run><--no-progress><invoke><matrix><--repro><a b>"), done.stderr


# --- a real environment -----------------------------------------------------------------------------------------------


def smallest() -> Lock:
    """The committed CPU environment with the fewest bytes; of the running Python, where there is one."""
    found = []
    for path in LOCKS.glob("*-cpu-*.txt"):
        content = read_wheels(path, PYTHON, "")
        lock = replace(lock_of(content.wheels, content.stated("python")), platform=content.stated("platform"))
        found.append((lock.python != PYTHON, sum(wheel.size for wheel in lock.wheels), path.stem, lock))
    return min(found, key=lambda entry: entry[:3])[3]


@pytest.mark.network
@pytest.mark.slow
def test_nix_fetches_a_real_environment_and_it_runs(own: Flake) -> None:
    lock = smallest()
    own.lock(lock)
    told = addresses(lock)
    own.host({wheel.filename: told[wheel.sha256] for wheel in lock.wheels}, lock.python)
    wheels = own.build("packages", "x86_64-linux", f"{lock.id}-wheels", timeout=600)
    assert {path.name: path.stat().st_size for path in wheels.iterdir()} == {w.filename: w.size for w in lock.wheels}
    if lock.python == PYTHON:
        root = own.build("packages", "x86_64-linux", f"{lock.id}-image", timeout=600) / "root"
        code = "import jax, jax.numpy as jnp; print(jax.__version__, jax.jit(lambda x: x @ x)(jnp.ones((2, 2))).sum())"
        assert python(root, code) == f"{lock.version('jax')} 8.0"


@pytest.mark.network
def test_nix_refuses_a_real_wheel_with_a_wrong_hash(own: Flake) -> None:
    lock = smallest()
    small = min(lock.wheels, key=lambda wheel: wheel.size)
    told = addresses(replace(lock, wheels=(small,)))
    wrong = replace(small, sha256="0" * 64)
    alone = replace(lock, wheels=(wrong,))
    own.lock(alone)
    own.host({wrong.filename: told[small.sha256]}, lock.python)
    said = own("build --no-link", own.at("packages", "x86_64-linux", f"{lock.id}-wheels"))
    assert said.code != 0
    assert "hash mismatch" in said.err
    assert base64.b64encode(bytes.fromhex(small.sha256)).decode() in said.err  # what it got instead
