"""Archives through the command line, on stand-in wheels from a loopback index: made, added to, killed, refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repromatrix.carry.folder import blob_path, read_manifest
from repromatrix.carry.format import Manifest
from repromatrix.carry.verify import verify
from repromatrix.envs.tools import read_tools
from repromatrix.plan import load
from repromatrix.project import Project
from repromatrix.share.archives.gather import project_pieces
from tests.conftest import MATRIX, RELEASES, ROOT, Checkout, Said, plain_environment
from tests.fake_index import FakeIndex, publish_jax, serve

FAILS_IN_1_1 = "import sys, jax\nprint('ran', jax.__version__)\nsys.exit(jax.__version__ == '1.1.0')"
CLAIM = '[[expect]]\nwhen = "jax == 1.1.0"\noutcome = "error"\n[[expect]]\noutcome = "ok"'
NO_TOOL = ("--tool-python", "none")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
DATED = {"SOURCE_DATE_EPOCH": "1760000000"}


def archive(checkout: Checkout, place: Path | str, *args: str, **environ: str) -> Said:
    return checkout.invoke("archive", str(place), *NO_TOOL, *args, **environ)


def made(checkout: Checkout, place: Path, *args: str, **environ: str) -> Manifest:
    """The archive after the command, every byte of it verified."""
    said = archive(checkout, place, *args, **environ)
    assert said.code == 0, said.err + said.out
    return verify(place)


def state_of(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Inode, time and content of every file."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def carried(manifest: Manifest, place: Path, path: str) -> bytes:
    """The content of a carried file."""
    file = next(file for file in manifest.files if file.path == path)
    return blob_path(place, file.sha256).read_bytes()


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Checkout, FakeIndex]]:
    """A checkout with a repro, its three environments locked and fetched; its index."""
    folder = tmp_path_factory.mktemp("warmed")
    with serve(folder / "index") as index:
        publish_jax(index, RELEASES)
        root = folder / "checkout"
        (root / "repros").mkdir(parents=True)
        (root / "matrix.toml").write_text(MATRIX)
        places = {"UV_CACHE_DIR": str(folder / "uv-cache"), "REPROMATRIX_STORE": str(folder / "store")}
        found = Checkout(root, plain_environment({"UV_DEFAULT_INDEX": index.url, "NO_COLOR": "1", **places}))
        found.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
        assert found.invoke("fetch", "--env", "*").code == 0
        yield found, index


@pytest.fixture
def ready(warmed: tuple[Checkout, FakeIndex], tmp_path: Path) -> Checkout:
    """A copy of `warmed`, with a store of its own."""
    shutil.copytree(warmed[0].root, tmp_path / "checkout")
    shutil.copytree(warmed[0].environ["REPROMATRIX_STORE"], tmp_path / "store")
    return Checkout(tmp_path / "checkout", {**warmed[0].environ, "REPROMATRIX_STORE": str(tmp_path / "store")})


def test_an_archive_holds_everything_and_needs_nothing(checkout: Checkout, tmp_path: Path) -> None:
    script = checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    assert checkout.invoke("matrix").code == 0
    place = tmp_path / "archive"
    said = archive(checkout, place, "--json", str(tmp_path / "out.json"))
    assert said.code == 0, said.err
    manifest = verify(place)
    told: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert (told["id"], told["bytes"], told["added"]) == (manifest.id, manifest.size, manifest.size)
    assert manifest.id in said.out
    assert told["lacking"] == []
    assert told["notes"] == list(manifest.notes)

    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    assert [each.id for each in manifest.environments] == [f"jax1.{minor}.0-cpu-{python}" for minor in range(3)]
    store = tmp_path / "store" / "wheels"
    paths = {file.path: file for file in manifest.files}
    for environment in manifest.environments:
        lock = (checkout.root / "containers" / "locks" / f"{environment.id}.txt").read_text()
        assert len(environment.wheels) == 2
        for sha256 in environment.wheels:
            assert sha256 in lock
            (wheel,) = (store / sha256).iterdir()
            assert paths[f"store/wheels/{sha256}/{wheel.name}"].size == wheel.stat().st_size
    assert carried(manifest, place, "project/repros/breaks.py") == script.read_bytes()
    assert carried(manifest, place, "project/matrix.toml").decode() == MATRIX
    for name in (
        "tasks.py",
        "repromatrix/share/archives/archive.py",
        "containers/supervise.py",
        "containers/tools/py311.txt",
    ):
        assert carried(manifest, place, f"project/{name}") == (ROOT / name).read_bytes()
    dockerfile = f"project/containers/rendered/{manifest.environments[0].id}/Dockerfile"
    assert b"jax==1.0.0" in carried(manifest, place, dockerfile.replace("Dockerfile", "requirements.txt"))
    assert carried(manifest, place, dockerfile).startswith(b"# ")

    rows = [json.loads(line) for line in carried(manifest, place, "results/attempts.jsonl").splitlines()]
    outcomes = {row["cell"]["environment"]: row["cell"]["outcome"] for row in rows if "cell" in row}
    assert list(outcomes.values()) == ["ok", "error", "ok"]
    evidence = [row["attempt"]["body"]["evidence"] for row in rows if "attempt" in row]
    assert len(evidence) == 3
    for folder in evidence:
        inside = folder.removeprefix(".repromatrix/")
        assert carried(manifest, place, f"results/{inside}/stdout").startswith(b"ran 1.")
        assert f"results/{inside}/result.json" in paths

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(place / "restore.pyz"), str(place), "--verify", "--expect", manifest.id],
        capture_output=True, text=True, check=False, env={}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert manifest.id in done.stdout


def test_the_same_command_again_writes_nothing(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    first = made(ready, place)
    before = state_of(place)
    said = archive(ready, place)
    assert said.code == 0
    assert "0.0 MB of them new" in said.out
    assert state_of(place) == before
    assert read_manifest(place) == first


def test_two_machines_make_the_same_archive(ready: Checkout, tmp_path: Path) -> None:
    one = made(ready, tmp_path / "one", **DATED)
    two = made(ready, tmp_path / "elsewhere" / "two", **DATED)
    assert one.id == two.id
    contents = [{name: sha for name, (_, _, sha) in state_of(place).items()} for place in tmp_path.glob("**/one")]
    assert contents == [{name: sha for name, (_, _, sha) in state_of(tmp_path / "elsewhere" / "two").items()}]


def test_adding_a_release_writes_its_wheels_alone(
    ready: Checkout, warmed: tuple[Checkout, FakeIndex], tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    old = made(ready, place)
    before = state_of(place / "blobs")
    publish_jax(warmed[1], {"1.3.0": "2025-04-10"})
    (ready.root / "matrix.toml").write_text(MATRIX.replace('"1.2.0"]', '"1.2.0", "1.3.0"]'))
    new = made(ready, place, "--env", "jax1.3.0-*")
    assert [each.id for each in new.environments][:3] == [each.id for each in old.environments]
    assert len(new.environments) == 4
    after = state_of(place / "blobs")
    assert {name: after[name] for name in before.keys() & after.keys()} == {
        name: before[name] for name in before.keys() & after.keys()
    }
    fresh = {file.path for file in new.files if f"sha256/{file.sha256}" in after.keys() - before.keys()}
    ident = new.environments[3].id
    wheels = {path for path in fresh if path.startswith("store/wheels/")}
    assert {path.rpartition("/")[2] for path in wheels} == {
        "jax-1.3.0-py3-none-any.whl",
        "jaxlib-1.3.0-py3-none-any.whl",
    }
    rendered = f"project/containers/rendered/{ident}"
    assert fresh - wheels == {
        "project/matrix.toml",
        f"project/containers/locks/{ident}.txt",
        f"{rendered}/Dockerfile",
        f"{rendered}/requirements.txt",
    }
    # The matrix.toml of before is named by nothing any more.
    assert [name for name in before if name not in after] == [f"sha256/{hashlib.sha256(MATRIX.encode()).hexdigest()}"]


@pytest.mark.network
def test_what_reads_stacks_is_carried_with_the_wheels(ready: Checkout, tmp_path: Path) -> None:
    readers = read_tools(PYTHON)
    if readers is None:
        pytest.skip(f"nothing reads the stacks of Python {PYTHON}")
    index = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    real = Checkout(ready.root, {k: v for k, v in ready.environ.items() if not k.startswith("UV_")} | index)
    manifest = made(real, tmp_path / "archive", "--wheels-only")
    locked = {wheel.sha256 for wheel in readers.wheels}
    assert locked <= {file.sha256 for file in manifest.files if file.path.startswith("store/wheels/")}
    assert not any("stacks" in note for note in manifest.notes)


def test_two_hundredths_more_than_the_unique_bytes(ready: Checkout, tmp_path: Path) -> None:
    """What an archive has beside the wheels and the checkout, each content once: manifest, statement, restorer."""
    with serve(tmp_path / "index") as index:
        for minor in range(3):
            body = f"# {os.urandom(12 << 20).hex()}\n"
            publish_jax(index, {f"1.{minor}.0": f"2025-0{minor + 1}-10"}, body=body)
        shutil.rmtree(ready.root / "containers")
        large = Checkout(ready.root, {**ready.environ, "UV_DEFAULT_INDEX": index.url})
        place = tmp_path / "archive"
        assert large.invoke("lock").code == 0
        manifest = made(large, place)
    unique = sum({file.sha256: file.size for file in manifest.files}.values())
    assert unique > 3 * (12 << 20)
    assert sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) <= 1.02 * unique


def test_results_of_two_machines_meet_in_one_archive(checkout: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    assert checkout.invoke("matrix", "--env", "jax1.0.0-*").code == 0
    made(checkout, place)
    shutil.move(checkout.root / ".repromatrix", tmp_path / "moved")  # another machine, which has run other cells
    assert checkout.invoke("matrix", "--env", "jax1.1.0-*").code == 0
    manifest = made(checkout, place)
    rows = [json.loads(line) for line in carried(manifest, place, "results/attempts.jsonl").splitlines()]
    assert [row["cell"]["outcome"] for row in rows if "cell" in row] == ["ok", "error"]
    assert len([file for file in manifest.files if file.path.endswith("/1/result.json")]) == 2
    made(checkout, place, "--no-results")
    assert carried(verify(place), place, "results/attempts.jsonl") == carried(manifest, place, "results/attempts.jsonl")


def test_wheels_only_leaves_out_results(checkout: Checkout, tmp_path: Path) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    assert checkout.invoke("matrix").code == 0
    manifest = made(checkout, tmp_path / "archive", "--wheels-only")
    assert {file.path.split("/")[0] for file in manifest.files} == {"project", "store"}
    assert {file.path.split("/")[1] for file in manifest.files if file.path.startswith("store")} == {"wheels"}
    # Wheels, too: without them a crash has no native stacks where this is restored. This index has none of them.
    assert f"nothing that reads stacks on Python {PYTHON}" in manifest.notes


def test_a_chosen_environment_alone(ready: Checkout, tmp_path: Path) -> None:
    manifest = made(ready, tmp_path / "archive", "--env", "jax1.1.0-*")
    assert [each.id[:8] for each in manifest.environments] == ["jax1.1.0"]
    names = [file.path.rpartition("/")[2] for file in manifest.files if file.path.startswith("store/wheels/")]
    assert sorted(names) == ["jax-1.1.0-py3-none-any.whl", "jaxlib-1.1.0-py3-none-any.whl"]


def test_parts_beside_the_archive(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    said = archive(ready, place, "--split-size", "1100k", "--json", str(tmp_path / "out.json"))
    assert said.code == 0, said.err
    parts = [Path(part) for part in json.loads((tmp_path / "out.json").read_text())["parts"]]
    assert len(parts) > 1
    assert all(part.parent == tmp_path / "archive.parts" and part.stat().st_size <= 1_100_000 for part in parts)
    verify(place)


KILLER = """
import os, signal, sys, threading
from pathlib import Path
from repromatrix.carry.format import FormatError
from repromatrix.carry.folder import read_manifest, holds
from repromatrix.events import Silent
from repromatrix.plan import Request
from repromatrix.project import find_project
from repromatrix.share.archives.archive import Wanted, archive

place, step = Path(sys.argv[1]), int(sys.argv[2])
project = find_project()


def run(limit):
    '''Archive, and be killed before the change number `limit` of a file in the archive; whether it came to its end.'''
    child = os.fork()
    if not child:
        seen = 0

        def hook(event, details):
            nonlocal seen
            if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(place) in str(details[0]):
                seen += 1
                if seen == limit:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        archive(project, Request(offline=True), place, Wanted(), Silent(), threading.Event())
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


killed, limit = 0, 1
while (ended := run(limit)) == -signal.SIGKILL:
    killed += 1
    limit += step
    try:
        manifest = read_manifest(place)
    except FileNotFoundError:
        continue
    assert all(holds(place, blob) for blob in manifest.blobs), f"killed at {limit}: it names a blob that is not there"
assert ended == 0, ended
print(killed)
"""


def test_killed_at_any_moment_it_heals(ready: Checkout, tmp_path: Path) -> None:
    place, never_killed = tmp_path / "archive", tmp_path / "smooth"
    environ = {**ready.environ, **DATED, "PYTHONPATH": str(ROOT)}
    python = [sys.executable, "-c", KILLER, str(place), "19"]
    done = subprocess.run(python, cwd=ready.root, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
    assert verify(place) == made(ready, never_killed, "--offline", **DATED)
    # And while something is added, with a file that changed: the old archive is whole until the new one is.
    ready.repro("breaks", FAILS_IN_1_1 + "\n# changed", expect=CLAIM)
    done = subprocess.run(python, cwd=ready.root, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert verify(place) == made(ready, never_killed, "--offline", **DATED)


def test_a_blob_that_power_loss_cut_is_written_again(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    whole = made(ready, place, **DATED)
    victim = next(file for file in whole.files if file.path == "project/repros/breaks.py")
    (place / "archive.json").unlink()  # it died before its first manifest, and one file's blocks never came to the disk
    blob_path(place, victim.sha256).write_bytes(b"\0" * victim.size)
    assert made(ready, place, **DATED) == whole


def test_two_writers_do_not_meet(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    place.mkdir()
    folder = os.open(place, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        said = archive(ready, place)
    finally:
        os.close(folder)
    assert said.code == 3
    assert "another process is writing" in said.err
    assert list(place.iterdir()) == []


def test_ctrl_c_leaves_no_litter(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    driver = textwrap.dedent(
        """
        import os, signal, sys, threading
        seen = 0

        def hook(event, details):
            global seen
            if event == "os.rename" and sys.argv[-1] in str(details[0]):
                seen += 1
                if seen == 20:
                    os.kill(os.getpid(), signal.SIGINT)

        from repromatrix.commands.archive import Options, archive
        from repromatrix.plan import Request

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.addaudithook(hook)
        sys.exit(archive(Request(offline=True), sys.argv[-1], Options(tool_python="none"), ""))
        """
    )
    environ = {**ready.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", driver, str(place)],
        cwd=ready.root,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "the same command continues" in done.stderr
    assert not (place / "archive.json").exists()
    assert [path for path in place.rglob("*") if path.name.startswith(".")] == []
    made(ready, place)


def test_a_damaged_wheel_of_the_store_is_found(ready: Checkout, tmp_path: Path) -> None:
    (wheel,) = (tmp_path / "store" / "wheels").glob("*/jax-1.1.0-*.whl")
    data = bytearray(wheel.read_bytes())
    data[-1] ^= 1
    wheel.write_bytes(data)
    place = tmp_path / "archive"
    said = archive(ready, place)
    assert said.code == 3
    assert f"{wheel}: the stored wheel is damaged and was removed" in said.err
    assert not (place / "archive.json").exists()
    assert "Traceback" not in said.err
    made(ready, place)  # fetched anew


def test_what_cannot_be_had_is_told_and_costs_nothing_else(ready: Checkout, tmp_path: Path) -> None:
    (wheel,) = (tmp_path / "store" / "wheels").glob("*/jax-1.1.0-*.whl")
    wheel.unlink()
    place = tmp_path / "archive"
    said = archive(ready, place, "--offline")
    assert said.code == 3
    assert "could not be had: jax1.1.0-cpu" in said.out
    assert [each.id[:8] for each in verify(place).environments] == ["jax1.0.0", "jax1.2.0"]
    said = ready.invoke("archive", str(place), "--offline")  # and the tool: the loopback's index never had it
    assert said.code == 3
    assert "could not be had: this tool on Python" in said.out


def test_a_cut_blob_of_the_archive_is_never_named_again(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    old = made(ready, place)
    gone = next(file for file in old.files if file.path.endswith("jax-1.0.0-py3-none-any.whl"))
    blob_path(place, gone.sha256).unlink()
    said = archive(ready, place, "--env", "jax1.2.0-*")
    assert said.code == 1
    assert "the archive is damaged" in said.err
    assert read_manifest(place) == old
    assert made(ready, place) == old  # its environment is here: the wheel is put back


@pytest.mark.parametrize("where", ["repros/archive", "containers/archive", ".repromatrix/archive"])
def test_an_archive_is_no_part_of_itself(ready: Checkout, where: str) -> None:
    said = archive(ready, ready.root / where)
    assert said.code == 2
    assert "an archive cannot lie there" in said.err
    assert not (ready.root / where).exists()


def test_a_folder_of_something_else_is_left_alone(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter1.txt").write_text("years of work")
    said = archive(ready, place)
    assert (said.code, sorted(path.name for path in place.iterdir())) == (2, ["chapter1.txt"])
    assert "holds something else: chapter1.txt" in said.err
    said = archive(ready, place / "chapter1.txt")
    assert said.code == 2
    assert (place / "chapter1.txt").read_text() == "years of work"


def test_a_damaged_manifest_is_not_overwritten(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    made(ready, place)
    text = (place / "archive.json").read_bytes()
    (place / "archive.json").write_bytes(text.replace(b"1.0.0", b"1.0.1", 1))
    said = archive(ready, place)
    assert said.code == 1
    assert "the archive is damaged" in said.err
    assert (place / "archive.json").read_bytes() == text.replace(b"1.0.0", b"1.0.1", 1)


def test_links_are_followed_within_the_checkout_alone(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    (ready.root / "repros" / "again.py").symlink_to("breaks.py")
    manifest = made(ready, place)
    assert carried(manifest, place, "project/repros/again.py") == (ready.root / "repros" / "breaks.py").read_bytes()
    secret = tmp_path / "secret"
    secret.write_text("token")
    (ready.root / "repros" / "notes.txt").symlink_to(secret)
    said = archive(ready, place)
    assert said.code == 2
    assert "notes.txt: is a link to" in said.err
    assert verify(place) == manifest


def test_of_a_git_checkout_what_is_tracked_and_new_repros(ready: Checkout, tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", *args], cwd=ready.root, check=True, capture_output=True)

    git("init", "--quiet")
    (ready.root / ".gitignore").write_text("repros/private.py\n")
    (ready.root / "notes.md").write_text("tracked\n")
    git("add", "matrix.toml", "notes.md", ".gitignore", "containers")
    (ready.root / "diary.md").write_text("not tracked\n")
    (ready.root / "repros" / "data.csv").write_text("new, beside the repro\n")
    (ready.root / "tasks.py").write_text("# a tool of its own, not committed yet\n")
    ready.repro("private", "import jax")
    manifest = made(ready, tmp_path / "archive")
    mine = {file.path for file in manifest.files if file.path.startswith("project/")}
    assert carried(manifest, tmp_path / "archive", "project/tasks.py").startswith(b"# a tool of its own")
    assert {"project/notes.md", "project/.gitignore", "project/repros/breaks.py", "project/repros/data.csv"} <= mine
    assert "project/repros/private.py" in mine  # a repro of the matrix, whatever git thinks of it
    assert not [path for path in mine if "diary" in path or "/.git/" in path]


def test_where_there_is_no_git_the_same_files_are_found(tmp_path: Path) -> None:
    """As in a restored checkout, from which archives are made too."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("these tests run outside of a git checkout")
    copy = tmp_path / "copy"
    tracked = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    project = Project(copy, tmp_path / "store")
    matrix, repros = load(project)
    pieces = project_pieces(project, matrix, repros, ())
    assert {piece.path.removeprefix("project/") for piece in pieces} == set(tracked) - {"reports/.gitkeep"}
    assert all((copy / piece.path.removeprefix("project/")) == piece.source for piece in pieces)
    assert {piece.path for piece in pieces if piece.executable} >= {"project/.ci/engine", "project/.ci/run"}


def test_odd_evidence_is_told_and_left_out(checkout: Checkout, tmp_path: Path) -> None:
    body = "import os\nos.symlink('/etc/passwd', 'link')\nopen('a\\nb', 'w').close()\nopen('kept', 'w').write('x')"
    checkout.repro("odd", body, expect='[[expect]]\noutcome = "ok"')
    assert checkout.invoke("matrix", "--env", "jax1.0.0-*").code == 0
    place = tmp_path / "archive"
    manifest = made(checkout, place)
    evidence = {file.path.rpartition("/")[2] for file in manifest.files if file.path.startswith("results/evidence")}
    assert "stdout" in evidence
    assert not {"link", "a\nb"} & evidence
    if next((checkout.root / ".repromatrix" / "evidence").rglob("kept"), None):  # as `run` keeps a script's files
        assert "kept" in evidence
        assert [note.rpartition("/")[2] for note in manifest.notes if note.startswith("results/")] == [
            r"a\nb: a name that an archive cannot hold",
            "link: not a file",
        ]


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare to mount a small disk with")
def test_a_full_disk_is_told_before_it_is_full(ready: Checkout, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    command = " ".join(map(repr, ready.command("archive", str(place / "archive"), *NO_TOOL, "--offline")))
    enter = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user", "--user"]
    inside = f"mount -t tmpfs -o size=1m none {place} || exit 99; {command}; code=$?; ls -A {place}/archive; exit $code"
    done = subprocess.run(
        [*enter, "sh", "-c", inside], cwd=ready.root, env=ready.environ, capture_output=True, text=True, check=False
    )
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip("no right to mount here")
    assert done.returncode == 3
    assert "not enough room" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--split-size", "60 apples"), "--split-size '60 apples' is not a size"),
        (("--split-size", "1k"), "parts of 1000 bytes are too small"),
        (("--env", "jax9*"), "matches nothing"),
    ],
)
def test_wrong_options_are_refused(ready: Checkout, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    said = archive(ready, tmp_path / "archive", *args)
    assert said.code == 2
    assert words in said.err


def test_a_wrong_python_is_refused(ready: Checkout, tmp_path: Path) -> None:
    said = ready.invoke("archive", str(tmp_path / "archive"), "--tool-python", "2.7")
    assert said.code == 2
    assert "--tool-python '2.7' is not a Python that this tool runs on" in said.err
