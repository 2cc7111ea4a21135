"""Archives restored: into a checkout, into a new folder, from parts, with the network cut; and refused."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repromatrix.carry import folder
from repromatrix.carry.format import Manifest
from repromatrix.carry.parts import Found
from repromatrix.carry.place import need_room
from repromatrix.carry.unpack import unpack
from repromatrix.carry.verify import read, verify
from repromatrix.envs.daemon import Daemon
from repromatrix.errors import UserError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.share.archives.restore import Archive, DamagedArchive, IncompleteArchive, checked, restore
from tests.archive_factory import FILES, WHEEL, WHEEL_PLACE, make, parts_of, rewrite, tree
from tests.conftest import MATRIX, ROOT, Checkout, plain_environment
from tests.docker_fixtures import inspect
from tests.fake_index import FakeIndex, publish_jax, serve

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    root.mkdir()
    make(root)
    manifest = read(root)
    rewrite(root, manifest, images=())  # no engine is asked here
    return root


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "matrix.toml").write_bytes(FILES["project/matrix.toml"])
    return Project(root, tmp_path / "store")


def opened(place: Path) -> Archive:
    return checked(Found(place, ()), "", place.parent / "incoming", Silent())


def cancel() -> threading.Event:
    return threading.Event()


def test_a_checkout_gets_what_it_lacks_and_keeps_what_it_has(place: Path, project: Project) -> None:
    mine = project.root / "notes.txt"
    mine.write_text("mine")
    before = (project.root / "matrix.toml").stat().st_mtime_ns
    done = restore(opened(place), project, Silent(), cancel())
    assert set(done.project) == {"repros/empty.py", "repros/one.py", "repros/copy.py"}
    assert (done.store, done.stored) == (2, len(WHEEL) + len(FILES["store/bases/bookworm.json"]))
    assert (project.store / WHEEL_PLACE.removeprefix("store/")).read_bytes() == WHEEL
    assert (project.root / "repros/one.py").read_bytes() == FILES["project/repros/one.py"]
    assert os.access(project.root / "repros/one.py", os.X_OK)
    assert mine.read_text() == "mine"
    assert (project.root / "matrix.toml").stat().st_mtime_ns == before
    after = tree(project.root.parent)
    again = restore(opened(place), project, Silent(), cancel())
    assert (again.project, again.store) == ((), 0)
    assert tree(project.root.parent) == after


def _other_file(project: Project, _: Path) -> None:
    (project.root / "repros").mkdir()
    (project.root / "repros/one.py").write_text("mine")


def _same_size(project: Project, _: Path) -> None:
    (project.root / "matrix.toml").write_bytes(FILES["project/matrix.toml"][:-2] + b"!\n")


def _linked_file(project: Project, outside: Path) -> None:
    (project.root / "repros").mkdir()
    (outside / "one.py").write_bytes(FILES["project/repros/one.py"])  # the very content: still not ours to trust
    (project.root / "repros/one.py").symlink_to(outside / "one.py")


def _dangling_link(project: Project, outside: Path) -> None:
    (project.root / "repros").mkdir()
    (project.root / "repros/one.py").symlink_to(outside / "to-be-written")


def _linked_folder(project: Project, outside: Path) -> None:
    (project.root / "repros").symlink_to(outside)


def _folder_for_a_file(project: Project, _: Path) -> None:
    (project.root / "repros/one.py").mkdir(parents=True)


def _file_for_a_folder(project: Project, _: Path) -> None:
    (project.root / "repros").write_text("mine")


def _pipe(project: Project, _: Path) -> None:
    (project.root / "repros").mkdir()
    os.mkfifo(project.root / "repros/one.py")


def _other_wheel(project: Project, _: Path) -> None:
    path = project.store / WHEEL_PLACE.removeprefix("store/")
    path.parent.mkdir(parents=True)
    path.write_bytes(WHEEL[:-1] + b"?")


def _linked_store(project: Project, outside: Path) -> None:
    project.store.mkdir()
    (project.store / "wheels").symlink_to(outside)


def _linked_wheel(project: Project, outside: Path) -> None:
    path = project.store / WHEEL_PLACE.removeprefix("store/")
    path.parent.mkdir(parents=True)
    path.symlink_to(outside / "to-be-written")


@pytest.mark.parametrize(
    "spoil",
    [
        _other_file,
        _same_size,
        _linked_file,
        _dangling_link,
        _linked_folder,
        _folder_for_a_file,
        _file_for_a_folder,
        _pipe,
        _other_wheel,
        _linked_store,
        _linked_wheel,
    ],
)
def test_nothing_gives_way_and_nothing_is_written(
    place: Path, project: Project, tmp_path: Path, spoil: Callable[[Project, Path], None]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    project.store.mkdir()
    project.store.rmdir()
    spoil(project, outside)
    project.store.mkdir(exist_ok=True)
    before = tree(tmp_path)
    with pytest.raises(UserError, match="nothing was written") as caught:
        restore(opened(place), project, Silent(), cancel())
    assert tree(tmp_path) == before
    assert caught.value.hint


@pytest.mark.parametrize("name", ["choice-3.11-0123.json", "trixie.json", f"{'b' * 64}.tar.zst"])
def test_what_this_machine_chose_or_packed_stays(place: Path, project: Project, name: str) -> None:
    manifest = read(place)
    blob = folder.add(place, b'{"id": "theirs"}')
    template = manifest.files[0]
    choice = replace(template, path=f"store/bases/{name}", sha256=blob.sha256, size=blob.size)
    rewrite(
        place,
        manifest,
        files=tuple(sorted([*manifest.files, choice], key=lambda file: file.path)),
        blobs=tuple(sorted([*manifest.blobs, blob], key=lambda each: each.sha256)),
    )
    here = project.store / "bases" / name
    here.parent.mkdir(parents=True)
    here.write_text('{"id": "ours"}')
    done = restore(opened(place), project, Silent(), cancel())
    assert here.read_text() == '{"id": "ours"}'
    assert "this machine's stays" in done.left_out[0]
    assert done.store == 2


def test_a_lock_that_is_not_the_one_of_the_wheels_is_told(place: Path, project: Project) -> None:
    done = restore(opened(place), project, Silent(), cancel())
    assert done.left_out == ["jax1.0-cpu-py311: the archive does not hold the lock that its wheels are of"]
    assert not (project.store / "locks").exists()


def test_store_only_brings_wheels_to_a_checkout_that_was_edited(place: Path, project: Project) -> None:
    """Also what somebody with another release of this tool needs: its own files are other ones than the archive's."""
    _other_file(project, project.root)
    _same_size(project, project.root)
    before = tree(project.root)
    with pytest.raises(UserError, match="2 files are others") as caught:
        restore(opened(place), project, Silent(), cancel())
    assert "--store-only" in caught.value.hint
    done = restore(opened(place), project, Silent(), cancel(), store_only=True)
    assert tree(project.root) == before
    assert (done.store, done.project, done.results) == (2, (), 0)
    assert (project.store / WHEEL_PLACE.removeprefix("store/")).read_bytes() == WHEEL
    assert "4 project files: not asked for" in done.left_out


def test_a_new_checkout(place: Path, project: Project, tmp_path: Path) -> None:
    into = tmp_path / "new"
    done = restore(opened(place), Project(into, project.store), Silent(), cancel(), new=True)
    assert set(done.project) == {p.removeprefix("project/") for p in FILES if p.startswith("project/")}
    before = tree(tmp_path)
    with pytest.raises(UserError, match="exists already"):
        restore(opened(place), Project(into, project.store), Silent(), cancel(), new=True)
    assert tree(tmp_path) == before


def test_a_store_that_must_not_be_touched_leaves_no_new_checkout(place: Path, project: Project, tmp_path: Path) -> None:
    _other_wheel(project, tmp_path)
    with pytest.raises(UserError, match="nothing was written"):
        restore(opened(place), Project(tmp_path / "new", project.store), Silent(), cancel(), new=True)
    assert not (tmp_path / "new").exists()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_is_written_of_an_archive_that_was_changed(place: Path, project: Project, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(p for p in place.rglob("*") if p.is_file() and p.stat().st_size)))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :])
    before = tree(place.parent)
    with pytest.raises(DamagedArchive):
        restore(opened(place), project, Silent(), cancel())
    assert tree(place.parent) == before
    path.write_bytes(content)


def test_an_archive_that_changes_after_it_was_verified(place: Path, project: Project) -> None:
    archive = opened(place)
    blob = folder.blob_path(place, next(file.sha256 for file in archive.manifest.files if file.path == WHEEL_PLACE))
    blob.write_bytes(WHEEL[:-1] + b"?")
    with pytest.raises(DamagedArchive, match="changed while it was copied"):
        restore(archive, project, Silent(), cancel())
    assert not (project.store / WHEEL_PLACE.removeprefix("store/")).exists()
    assert list((project.store / "tmp").iterdir()) == []


def test_rows_that_are_no_results_are_damage(place: Path, tmp_path: Path) -> None:
    manifest = read(place)
    blob = folder.add(place, b'{"attempt": {"key": "../.."}}\n')
    rows = replace(manifest.files[0], path="results/attempts.jsonl", sha256=blob.sha256, size=blob.size)
    rewrite(
        place,
        manifest,
        files=tuple(sorted([*manifest.files, rows], key=lambda file: file.path)),
        blobs=tuple(sorted([*manifest.blobs, blob], key=lambda each: each.sha256)),
    )
    with pytest.raises(DamagedArchive, match="not a result"):
        opened(place)


def test_no_room(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not enough room"):
        need_room(tmp_path, 1 << 60)


def test_missing_parts_are_told_and_those_that_came_are_kept(place: Path, project: Project, tmp_path: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()
    make(place, {**FILES, "project/large": random.Random(2).randbytes(3 << 20)})
    rewrite(place, read(place), images=())
    parts = parts_of(place, read(place), tmp_path / "parts")
    with pytest.raises(IncompleteArchive) as caught:
        checked(Found(None, (parts[2],)), "", tmp_path / "incoming", Silent())
    assert caught.value.missing == (1, 2, 4)
    shutil.rmtree(tmp_path / "parts", ignore_errors=False)
    parts = parts_of(place, read(place), tmp_path / "parts")
    parts[2].unlink()
    archive = checked(Found(None, (parts[3], parts[0], parts[1])), "", tmp_path / "incoming", Silent())
    assert archive.manifest == read(place)
    assert restore(archive, project, Silent(), cancel()).store == 2


# --- through the command line -----------------------------------------------------------------------------------------


def plain(tmp_path: Path) -> Checkout:
    root = tmp_path / "mine"
    (root / "repros").mkdir(parents=True)
    (root / "matrix.toml").write_text(MATRIX)
    return Checkout(root, plain_environment({"REPROMATRIX_STORE": str(tmp_path / "mystore"), "NO_COLOR": "1"}))


def test_commands_say_what_is_wrong_by_their_status(place: Path, tmp_path: Path) -> None:
    checkout, out = plain(tmp_path), tmp_path / "out.json"
    ident = read(place).id
    said = checkout.invoke("verify", "--place", str(place), "--expect", ident, "--json", str(out))
    assert (said.code, json.loads(out.read_text())["archive"]) == (0, ident), said.err
    assert f"{ident}" in said.out
    assert checkout.invoke("verify", "--place", str(place), "--expect", "0" * 64).code == 1
    assert checkout.invoke("verify", str(place), "--expect", "x").code == 2
    assert checkout.invoke("verify", "--place", str(tmp_path / "nothing")).code == 2
    assert checkout.invoke("restore", str(checkout.root)).code == 2
    assert checkout.invoke("restore", str(place)).code == 2  # its matrix.toml is another
    said = checkout.invoke("restore", str(place), "--into", str(tmp_path / "new"), "--json", "-")
    told = json.loads(said.out)
    assert (said.code, told["archive"], told["store"]["files"]) == (0, ident, 2), said.err
    (place / "README.md").write_text("other")
    before = tree(tmp_path)
    said = checkout.invoke("verify", str(place), "--json", "-")
    assert said.code == 1
    assert [problem["where"] for problem in json.loads(said.out)["problems"]] == ["README.md"]
    said = checkout.invoke("restore", str(place), "--into", str(tmp_path / "new2"))
    assert said.code == 1
    assert "README.md: 5 bytes" in said.err
    assert {path: what for path, what in tree(tmp_path).items() if "mystore/" not in path} == {
        path: what for path, what in before.items() if "mystore/" not in path
    }


def test_into_a_checkout_that_it_made_it_goes_on(place: Path, tmp_path: Path) -> None:
    """As after an interrupt: the checkout appears first and whole, and the store still lacks everything."""
    checkout, new = plain(tmp_path), tmp_path / "new"
    unpack(place, read(place), new, None)
    (new / "notes.txt").write_text("mine")
    before = tree(new)
    command = ("restore", str(place), "--into", str(new), "--json", "-")
    said = checkout.invoke(*command)
    told = json.loads(said.out)
    assert (said.code, told["project"], told["store"]["files"]) == (0, [], 2), said.err
    assert tree(new) == before
    (new / "repros/one.py").write_text("edited")
    before = tree(tmp_path)
    said = checkout.invoke(*command)
    assert (said.code, "repros/one.py: 6 bytes, expected" in said.err) == (2, True), said.err
    assert "name a new folder" in said.err
    assert tree(new) == {path.removeprefix("new/"): what for path, what in before.items() if path.startswith("new/")}


def test_verify_of_a_checkout_reads_the_wheels_of_the_locks(checkout: Checkout) -> None:
    checkout.repro("one", "import jax")
    assert checkout.invoke("fetch", "--env", "*").code == 0
    said = checkout.invoke("verify", ".")
    assert said.code == 0, said.err
    assert "6 of the 6 wheels" in said.out
    wheel = sorted(Path(checkout.environ["REPROMATRIX_STORE"]).glob("wheels/*/*.whl"))[0]
    content = wheel.read_bytes()
    wheel.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said = checkout.invoke("verify", "--place", str(checkout.root))
    assert said.code == 1
    assert f"{wheel}: other content than its hash says" in said.out
    assert wheel.exists()


def test_upstream_tells_what_only_the_archive_still_has(checkout: Checkout, index: FakeIndex, tmp_path: Path) -> None:
    checkout.repro("one", "import jax")
    assert checkout.invoke("fetch", "--env", "*").code == 0
    place, out = tmp_path / "archive", tmp_path / "out.json"
    assert checkout.invoke("archive", str(place), "--tool-python", "none").code == 0
    asked = ("verify", "--place", str(place), "--upstream")
    said = checkout.invoke(*asked)
    assert (said.code, "serves all 6 wheels" in said.out) == (0, True), said.err + said.out
    gone = next(each for each in index.published if (each.name, each.version) == ("jaxlib", "1.1.0"))
    index.published.remove(gone)
    said = checkout.invoke(*asked, "--json", str(out))
    assert said.code == 1, said.err
    assert "the archive still holds them" in said.out
    assert [row["sha256"] for row in json.loads(out.read_text())["upstream"]] == [gone.sha256]
    said = checkout.invoke(*asked, UV_DEFAULT_INDEX="http://127.0.0.1:9/simple")
    assert said.code == 3, said.out + said.err


# --- a machine with nothing, and no route out -------------------------------------------------------------------------

CUT = ("unshare", "-n", "-r", "--")
"""A network namespace with no route out."""


def cut_off(home: Path, *command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty home and the network cut."""
    bare = {"PATH": os.defpath + ":/usr/local/bin", "HOME": str(home), "LANG": "C.UTF-8", **environ}
    return subprocess.run([*CUT, *command], cwd=cwd, env=bare, capture_output=True, text=True, timeout=300, check=False)


def needs_namespaces() -> None:
    if subprocess.run([*CUT, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host allows no network namespaces")


def verdicts(path: Path) -> dict[str, tuple[str, str]]:
    cells = json.loads(path.read_text())["cells"]
    return {cell["id"]: (cell["outcome"], (cell["signature"] or {}).get("title", "")) for cell in cells}


def with_tool(checkout: Checkout, *args: str) -> None:
    """Archive what is locked and fetched, with this tool's own wheels from the index that the machine has."""
    index = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_"))}
    environ = {name: value for name, value in checkout.environ.items() if name != "UV_DEFAULT_INDEX"} | index
    done = subprocess.run(
        checkout.command("archive", *args),
        cwd=checkout.root,
        env=environ,
        capture_output=True,
        text=True,
        timeout=400,  # the packages of a base are fetched and unpacked once: 65 s, more on a busy machine
        check=False,
    )
    assert done.returncode == 0, done.stderr


FAILS = "import sys, jax\nprint('ran', jax.__version__)\nassert jax.__version__ != '1.1.0', 'broken'"


@pytest.mark.network
def test_from_parts_on_a_machine_with_nothing(checkout: Checkout, tmp_path: Path) -> None:
    needs_namespaces()
    checkout.repro("breaks", FAILS)
    assert checkout.invoke("matrix", "--json", str(tmp_path / "before.json")).code == 1
    place, home = tmp_path / "archive", tmp_path / "home"
    home.mkdir()
    with_tool(checkout, str(place), "--split-size", "12M")
    ident = verify(place).id
    parts = sorted((tmp_path / "archive.parts").glob("*.part"))
    assert len(parts) > 2
    random.Random(1).shuffle(parts)
    shutil.rmtree(place)
    shutil.rmtree(checkout.root)
    shutil.rmtree(tmp_path / "store")
    restorer = tmp_path / "archive.parts" / "restore.pyz"

    def bring(*args: str) -> subprocess.CompletedProcess[str]:
        return cut_off(home, sys.executable, str(restorer), *args, "--into", "new", "--expect", ident, cwd=tmp_path)

    for path in parts[:-1]:
        said = bring(str(path), "--no-results")
        assert said.returncode == 1, said.stderr
        assert "missing:" in said.stdout
        assert not (tmp_path / "new").exists()
        path.unlink()  # as if there were one stick for all
    said = bring(str(parts[-1]), "--no-results")
    assert said.returncode == 0, said.stderr + said.stdout
    assert ident in said.stdout

    after = tmp_path / "after.json"
    run = (".venv/bin/invoke", "matrix", "--offline", "--engine", "venv", "--json", str(after))
    said = cut_off(home, *run, cwd=tmp_path / "new")
    assert said.returncode == 1, said.stderr
    assert "3 attempts on venv" in said.stdout
    assert verdicts(after) == verdicts(tmp_path / "before.json")
    assert len(verdicts(after)) == 3


@pytest.mark.network
def test_results_come_along(checkout: Checkout, tmp_path: Path) -> None:
    needs_namespaces()
    checkout.repro("breaks", FAILS)
    assert checkout.invoke("matrix").code == 1
    place, home = tmp_path / "archive", tmp_path / "home"
    home.mkdir()
    with_tool(checkout, str(place))
    restorer = (sys.executable, str(place / "restore.pyz"), str(place), "--into", "new")
    said = cut_off(home, *restorer, cwd=tmp_path)
    assert said.returncode == 0, said.stderr + said.stdout
    assert "3 results" in said.stdout
    wheels = home / ".cache/repromatrix/wheels"
    held = {path.name for path in wheels.iterdir()}
    shutil.rmtree(wheels)  # as if it had been interrupted before these came
    said = cut_off(home, *restorer, cwd=tmp_path)
    assert (said.returncode, " 0 project files" in said.stdout) == (0, True), said.stderr + said.stdout
    assert {path.name for path in wheels.iterdir()} == held
    locks = home / ".cache" / "repromatrix" / "locks"  # which keep the wheels, when the checkout's have changed
    assert {path.stem for path in locks.iterdir()} == {each.lock for each in read(place).environments}
    said = cut_off(home, ".venv/bin/invoke", "matrix", "--offline", "--engine", "venv", cwd=tmp_path / "new")
    assert "nothing to do: 3 cells known" in said.stdout, said.stdout + said.stderr
    evidence = sorted((tmp_path / "new/.repromatrix/evidence").rglob("stdout"))
    assert [path.read_text().split()[0] for path in evidence].count("ran") == len(evidence) > 0


@pytest.mark.network
@pytest.mark.parametrize("wrong", ["flip", "python"])
def test_restorer_refuses_and_leaves_nothing(checkout: Checkout, tmp_path: Path, wrong: str) -> None:
    needs_namespaces()
    checkout.repro("breaks", FAILS)
    assert checkout.invoke("fetch", "--env", "*").code == 0
    place, home = tmp_path / "archive", tmp_path / "home"
    home.mkdir()
    if wrong == "python":
        made = checkout.invoke("archive", str(place), "--tool-python", "none")
        assert made.code == 0, made.err
    else:
        with_tool(checkout, str(place))
        wheel = next(file for file in read(place).files if file.path.startswith(f"tool/{PYTHON}/invoke-"))
        path = folder.blob_path(place, wheel.sha256)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = tree(tmp_path)
    said = cut_off(home, sys.executable, str(place / "restore.pyz"), str(place), "--into", "new", cwd=tmp_path)
    expected = {"flip": (1, "other content than its hash says"), "python": (2, f"this is Python {PYTHON}")}[wrong]
    assert (said.returncode, expected[1] in said.stderr) == (expected[0], True), said.stderr
    assert tree(tmp_path) == before


@pytest.mark.container
@pytest.mark.network
@pytest.mark.slow
def test_images_come_along(engine: Daemon, tmp_path: Path) -> None:
    needs_namespaces()
    with serve(tmp_path / "index") as index:
        publish_jax(index, {"1.0.0": "2025-01-10"}, body=f"TOKEN = '{uuid.uuid4()}'\n")  # no image of another test
        root, store = tmp_path / "checkout", tmp_path / "store"
        (root / "repros").mkdir(parents=True)
        matrix = MATRIX.replace('["1.0.0", "1.1.0", "1.2.0"]', '["1.0.0"]').replace('"venv"', '"docker"')
        (root / "matrix.toml").write_text(matrix)
        store.mkdir()
        if kept := os.environ.get("REPROMATRIX_TEST_BASES"):
            (store / "bases").symlink_to(kept)
            Path(f"{kept}-debs").mkdir(exist_ok=True)
            (store / "debs").symlink_to(f"{kept}-debs")
        places = {"UV_CACHE_DIR": str(tmp_path / "uv-cache"), "REPROMATRIX_STORE": str(store)}
        checkout = Checkout(root, plain_environment({"UV_DEFAULT_INDEX": index.url, "NO_COLOR": "1", **places}))
        checkout.repro("works", "import jax\nprint(jax.TOKEN)")
        said = checkout.invoke("matrix", "--json", str(tmp_path / "before.json"))
        assert said.code == 0, said.err
        place, home = tmp_path / "archive", tmp_path / "home"
        home.mkdir()
        with_tool(checkout, str(place))
    manifest: Manifest = verify(place)
    (image,) = [image for image in manifest.images if image.environment]
    was = inspect(engine, image.reference)["Id"]
    engine.api.remove_image(image.reference, force=True)
    shutil.rmtree(store)
    docker = {"DOCKER_HOST": engine.host}
    restorer = (sys.executable, str(place / "restore.pyz"), str(place))
    try:
        brought = cut_off(home, *restorer, "--into", "new", "--no-results", cwd=tmp_path, **docker)
        assert brought.returncode == 0, brought.stderr + brought.stdout
        assert inspect(engine, image.reference)["Id"] == was == f"sha256:{image.id}"
        after = tmp_path / "after.json"
        run = (".venv/bin/invoke", "matrix", "--offline", "--engine", "docker", "--json", str(after))
        brought = cut_off(home, *run, cwd=tmp_path / "new", **docker)
        assert brought.returncode == 0, brought.stderr
        assert "1 attempt" in brought.stdout
        assert verdicts(after) == verdicts(tmp_path / "before.json")
        assert inspect(engine, image.reference)["Id"] == was
    finally:
        engine.api.remove_image(image.reference, force=True)


@pytest.mark.network
@pytest.mark.slow
def test_a_real_jax_crashes_again(tmp_path: Path) -> None:
    """One environment with the wheels of jax 0.10.2: 110 MB, and a pass of XLA that aborts."""
    needs_namespaces()
    root, place, home = tmp_path / "checkout", tmp_path / "archive", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    for name in ("repros", "containers"):
        shutil.copytree(ROOT / name, root / name)
    matrix = (ROOT / "matrix.toml").read_text()
    (root / "matrix.toml").write_text(re.sub(r"engine +=.*", 'engine = "venv"', matrix))
    checkout = Checkout(root, dict(os.environ))  # the wheels of the user's own store
    asked = ("--repro", "hlo_pass_crash", "--env", "jax0.10.2-cpu-py311")
    said = checkout.invoke("matrix", *asked, "--engine", "venv", "--json", str(tmp_path / "before.json"))
    assert said.code == 0, said.err
    with_tool(checkout, str(place), *asked, "--no-results", "--split-size", "30M")
    shutil.rmtree(place)
    restorer = (sys.executable, "archive.parts/restore.pyz", "archive.parts")
    brought = cut_off(home, *restorer, "--into", "new", cwd=tmp_path)
    assert brought.returncode == 0, brought.stderr + brought.stdout
    after = tmp_path / "after.json"
    run = (".venv/bin/invoke", "matrix", *asked, "--offline", "--engine", "venv", "--json", str(after))
    again = cut_off(home, *run, cwd=tmp_path / "new")
    assert again.returncode == 0, again.stderr
    found = verdicts(after)
    assert found == verdicts(tmp_path / "before.json")
    assert {outcome for outcome, _ in found.values()} == {"crash", "ok"}
