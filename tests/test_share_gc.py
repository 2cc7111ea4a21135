"""What `invoke gc` takes and leaves: never what anything refers to, whatever the store, and nobody is disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repromatrix.commands.common import size
from repromatrix.envs.daemon import LABEL, Daemon
from repromatrix.envs.lockfile import render_wheels
from repromatrix.envs.model import Wheel
from repromatrix.errors import InfraError, InputErrors, UserError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.share.upkeep.gc import GONE, STAGES, Part, Plan, finish, plan, remove
from repromatrix.share.upkeep.gc_report import Upkeep, document, text
from repromatrix.share.upkeep.parts import DAY, MONTH, measure
from repromatrix.share.upkeep.references import References, references
from repromatrix.share.upkeep.spare_images import drop, spare
from repromatrix.share.upkeep.users import alone, checkouts, forget_gone, register, using
from tests.conftest import Checkout, Said
from tests.fake_index import FakeIndex

NOW = 2_000_000_000.0

# --- the plan, over stores that are only described --------------------------------------------------------------------

NAMES = [f"part{number}" for number in range(12)]


@st.composite
def stores(draw: st.DrawFn) -> tuple[Part, ...]:
    """Parts of any kind, age and size; some must stay, some hold bytes of others."""
    kinds = [*STAGES, "notes", "other"]
    found = []
    for name in NAMES[: draw(st.integers(0, len(NAMES)))]:
        kind = draw(st.sampled_from(kinds))
        stays = kind not in STAGES or draw(st.booleans())
        found.append(
            Part(kind, (name,), draw(st.integers(0, 100)), draw(st.integers(0, 50)), kept="asked for" if stays else "")
        )
    every = [part.name for part in found]
    held = {
        name: draw(st.frozensets(st.sampled_from([n for n in every if n != name]), max_size=2)) for name in every[1:]
    }
    return tuple(
        Part(part.kind, part.paths, part.size, part.used, held.get(part.name, frozenset()), part.kept) for part in found
    )


@settings(max_examples=500, deadline=None)
@given(stores(), st.integers(0, 1300))
def test_a_plan_spares_what_must_stay_and_keeps_the_cap_or_has_nothing_left(parts: tuple[Part, ...], cap: int) -> None:
    made = plan(parts, cap)
    going = {part.name for part in made.parts}
    assert not any(part.kept for part in made.parts)
    assert len(going) == len(made.parts)
    assert made.before == sum(part.size for part in parts)
    assert made.after == sum(part.size for part in parts if part.name not in going)
    # Bytes that another part holds come free only when that goes too.
    assert all(part.holders <= going for part in made.parts if part.name in going and _asked_for(part, made))
    kept = {part.name for part in parts if part.kept}
    could = {part.name for part in parts if not part.kept and not part.holders & kept}
    assert made.over == max(0, made.after - cap)
    assert not made.over or could <= going
    assert made.parts == () or made.before > cap
    left = tuple(
        Part(part.kind, part.paths, part.size, part.used, part.holders - going, part.kept)
        for part in parts
        if part.name not in going
    )
    assert plan(left, cap).parts == () or made.over  # a second run has nothing to do
    if made.parts:  # and the last did not go in vain
        last = {made.parts[-1].name, *made.parts[-1].holders}
        assert made.after + sum(part.size for part in made.parts if part.name in last) > cap


def _asked_for(part: Part, made: Plan) -> bool:
    """Whether a part went for its own sake, not with one whose bytes it holds."""
    return not any(part.name in other.holders for other in made.parts)


def test_the_order_is_by_what_it_costs_to_have_it_again() -> None:
    parts = [
        Part("bases", ("base",), 10, 1),
        Part("wheels", ("old wheel",), 10, 1),
        Part("wheels", ("new wheel",), 10, 2),
        Part("wheels", ("locked wheel",), 10, 0, kept="a lock names it"),
        Part("packs", ("new pack",), 10, 9),
        Part("trees", ("tree",), 10, 3, holders=frozenset({"venv"})),
        Part("venvs", ("venv",), 10, 8),
        Part("packs", ("old pack",), 10, 5),
        Part("scratch", ("scratch",), 10, 50),
    ]
    # The tree is as recently used as the venv that is linked from it, and goes with it.
    order = ["scratch", "old pack", "venv", "tree", "new pack", "old wheel", "new wheel", "base"]
    assert [part.name for part in plan(parts, 0).parts] == order
    assert plan(parts, 0).over == 10
    assert [part.name for part in plan(parts, 70).parts] == order[:2]
    assert plan(parts, 90).parts == ()


# --- stores on the disk -----------------------------------------------------------------------------------------------

WHEELS = tuple(
    Wheel(f"w{number}", "1", f"w{number}-1-py3-none-any.whl", f"{number:x}" * 64, 1, "") for number in range(6)
)


@dataclass(frozen=True)
class Described:
    """A store and its checkouts.

    Attributes:
        locks: Per checkout, the numbers of the wheels that each of its locks names.
        gone: Numbers of checkouts whose folder was removed.
        stored: Number of a wheel and its size in kB, its age in seconds, and which of tree, pack and venv there are.
        bases: Ages of bases, and whether each was chosen.
        scratch: Ages of what lies in tmp/.
    """

    locks: list[list[frozenset[int]]]
    gone: frozenset[int]
    stored: dict[int, tuple[int, float, frozenset[str]]]
    bases: list[bool]
    scratch: list[float]


DESCRIBED = st.builds(
    Described,
    st.lists(st.lists(st.frozensets(st.integers(0, 5), max_size=3), max_size=2), min_size=1, max_size=3),
    st.frozensets(st.integers(1, 2), max_size=1),
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(
            st.integers(1, 40), st.floats(0, 40 * DAY), st.frozensets(st.sampled_from(["trees", "packs", "venvs"]))
        ),
    ),
    st.lists(st.booleans(), max_size=2),
    st.lists(st.floats(0, 3 * DAY), max_size=2),
)


def write(path: Path, kilobytes: int, age: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (kilobytes * 1024))
    os.utime(path, (NOW - age, NOW - age))


def lay_out(described: Described, root: Path) -> Project:
    """Make the store and its checkouts below `root`."""
    store = root / "store"
    store.mkdir()
    for number, locks in enumerate(described.locks):
        project = Project(root / f"checkout{number}", store)
        project.locks.mkdir(parents=True)
        (project.root / "matrix.toml").write_text("")
        register(project)
        for turn, wheels in enumerate(locks):
            facts = [f"lock{turn}", "python: 3.11", "platform: x86_64-manylinux_2_28", f"wheels: {len(wheels)}"]
            named = render_wheels(facts, [WHEELS[wheel] for wheel in wheels])
            (project.locks / f"lock{turn}.txt").write_text(named)
        if number in described.gone:
            for path in sorted(project.root.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            project.root.rmdir()
    for number, (kilobytes, age, made) in described.stored.items():
        wheel = WHEELS[number]
        place = store / "wheels" / wheel.sha256
        write(place / wheel.filename, kilobytes, age)
        os.utime(place, (NOW - age, NOW - age))
        tree = store / "trees" / f"{wheel.sha256}-cp311"
        if "trees" in made:
            write(tree / "opt" / "env" / "file", 2 * kilobytes, age)
            write(tree.with_name(f"{tree.name}.sum"), 1, age)
        if "packs" in made:
            write(store / "packs" / f"{wheel.sha256}-cp311.tar.zst", kilobytes, age)
        if "venvs" in made:
            venv = store / "venvs" / f"{number:x}".zfill(32)
            write(venv / "repromatrix.json", 1, age / 2)
            if "trees" in made:
                (venv / "file").hardlink_to(tree / "opt" / "env" / "file")
    for number, chosen in enumerate(described.bases):
        base = f"{number + 10:x}" * 64
        write(store / "bases" / f"{base}.tar.zst", 5, DAY)
        write(store / "bases" / f"{base}.packages", 1, DAY)
        if chosen:
            (store / "bases" / f"choice-3.11-{number}.json").write_text(json.dumps({"id": f"sha256:{base}"}))
    for number, age in enumerate(described.scratch):
        write(store / "tmp" / f"{number}.room", 3, age)
    write(store / "mine.txt", 1, 90 * DAY)
    write(store / "wheels" / "mine.whl", 1, 90 * DAY)
    return Project(root / "checkout0", store)


def disk(store: Path) -> int:
    """What `du` tells of the parts, without the folders that hold them."""
    seen, total = set(), 0
    for path in store.rglob("*"):
        state = path.lstat()
        if len(path.relative_to(store).parts) == 1 and path.is_dir():
            continue
        if state.st_ino not in seen:
            seen.add(state.st_ino)
            total += state.st_blocks * 512
    return total


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def look(project: Project) -> tuple[References, tuple[Part, ...]]:
    refers = references(project, checkouts(project))
    return refers, measure(project.store, refers, NOW, Silent())


@settings(max_examples=60, deadline=None)
@given(DESCRIBED, st.integers(0, 400))
def test_a_store_keeps_what_is_referred_to(described: Described, kilobytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = lay_out(described, Path(folder).resolve())
        store, cap = project.store, kilobytes * 1024
        before = files(store)
        _, parts = look(project)
        made = plan(parts, cap)
        assert files(store) == before  # looking removes nothing
        assert plan(look(project)[1], cap) == made
        measured = sum(part.size for part in parts if part.kind not in ("notes", "other"))
        assert measured <= disk(store)
        remove(made.parts, store, Silent())
        left = files(store)
        living = [locks for number, locks in enumerate(described.locks) if number not in described.gone]
        named = {number for locks in living for lock in locks for number in lock}
        for number in described.stored:
            place = f"wheels/{WHEELS[number].sha256}/{WHEELS[number].filename}"
            assert place in left or number not in named
        for number, chosen in enumerate(described.bases):
            assert not chosen or f"bases/{f'{number + 10:x}' * 64}.tar.zst" in left
        for number, age in enumerate(described.scratch):
            assert f"tmp/{number}.room" in left or age > DAY
        assert {"mine.txt", "wheels/mine.whl"} | {path for path in before if path.startswith("checkouts")} <= left
        assert not [path for path in left if GONE in path]
        # What stays is whole, what went is gone, and what was said of its size was true.
        goes = tuple(path for part in made.parts for path in part.paths)
        assert before - left == {path for path in before if any(path == p or path.startswith(f"{p}/") for p in goes)}
        _, again = look(project)
        assert sum(part.size for part in again) == made.after
        assert made.after <= cap or all(part.kept for part in again if part.size)
        assert plan(again, cap).parts == () or made.over


def test_results_keep_wheels_of_locks_that_have_changed(checkout: Checkout, index: FakeIndex) -> None:
    """The lock of a kept result is written again with another wheel: the first wheel stays, for the result."""
    checkout.repro("fine", "import jax; print(jax.__version__)", jax='"== 1.0.0"')
    assert checkout.invoke("matrix").code == 0
    project = Project(checkout.root, Path(checkout.environ["REPROMATRIX_STORE"]))
    (lock,) = project.locks.glob("*.txt")
    before = references(project, checkouts(project))
    old = {path.name for path in (project.store / "wheels").iterdir()}
    assert old <= before.wheels
    lock.unlink()
    index.add("jaxlib", "0.9", {"jaxlib/__init__.py": ""}, uploaded="2024-12-01T00:00:00Z")
    index.published = [item for item in index.published if item.name != "jaxlib" or item.version == "0.9"]
    assert checkout.invoke("lock").code == 0
    after = references(project, checkouts(project))
    assert old <= after.wheels
    assert len(after.locks) == 2
    assert after.unknown == ()
    # Without the note on that lock nobody can tell which wheels the result came from: then none goes.
    for note in (project.store / "locks").iterdir():
        note.unlink()
    lost = references(project, checkouts(project))
    assert not old <= lost.wheels
    assert len(lost.unknown) == 1
    parts = measure(project.store, lost, time.time(), Silent())
    assert all(part.kept for part in parts if part.kind == "wheels")
    said = checkout.invoke("gc", "--keep", "1B")
    assert said.code == 1
    assert "results from 1 locks that no file names any more; so no wheel goes that nothing names" in said.out
    assert old <= {path.name for path in (project.store / "wheels").iterdir()}


def test_after_gc_a_run_without_a_network_gives_the_same(checkout: Checkout, index: FakeIndex) -> None:
    checkout.repro("fine", "import jax; print(jax.__version__)", jax='["1.0.0", "1.1.0"]')
    first = checkout.invoke("matrix", "--json", "-")
    assert first.code == 0, first.err
    store = Path(checkout.environ["REPROMATRIX_STORE"])
    stray = store / "wheels" / ("d" * 64) / "stray-1-py3-none-any.whl"
    write(stray, 50, 0)
    shown = checkout.invoke("gc")
    assert shown.code == 0
    assert "could go" in shown.out
    assert "nothing was removed" in shown.out
    tried = checkout.invoke("gc", "--keep", "1B", "--dry-run", "--json", "-")
    assert tried.code == 1
    planned = json.loads(tried.out)
    assert stray.exists()
    assert planned["removed"] is False
    said = checkout.invoke("gc", "--keep", "1B", "--json", "-")
    assert said.code == 1
    done = json.loads(said.out)
    assert done["goes"] == planned["goes"]
    assert {row["kind"] for row in done["goes"]} == {"trees", "venvs", "wheels"}
    assert not stray.exists()
    assert list((store / "venvs").iterdir()) == []
    assert "what stays must stay" in said.err
    again = checkout.invoke("gc", "--keep", "1B", "--json", "-")
    assert json.loads(again.out)["goes"] == []
    index.refuses = 500
    known = checkout.invoke("matrix", "--offline", "--json", "-")
    rerun = checkout.invoke("matrix", "--offline", "--rerun", "--json", "-")
    assert verdicts(first) == verdicts(known) == verdicts(rerun)
    assert rerun.code == 0, rerun.err
    assert checkout.invoke("gc", "--keep", "1T").code == 0


def verdicts(said: Said) -> list[tuple[str, str]]:
    return [(cell["id"], cell["outcome"]) for cell in json.loads(said.out)["cells"]]


def test_a_checkout_that_is_gone_counts_no_longer(tmp_path: Path) -> None:
    project = lay_out(
        Described([[frozenset({0})], [frozenset({1})]], frozenset({1}), {1: (1, 0.0, frozenset())}, [], []), tmp_path
    )
    assert checkouts(project) == (project.root,)
    assert len(list((project.store / "checkouts").iterdir())) == 2
    forget_gone(project)
    assert len(list((project.store / "checkouts").iterdir())) == 1
    (project.store / "checkouts" / "abc").write_text("{")
    with pytest.raises(InfraError, match="entry of a checkout is damaged"):
        checkouts(project)


def test_a_lock_that_cannot_be_read_stops_it(tmp_path: Path) -> None:
    project = lay_out(Described([[frozenset({0, 1})]], frozenset(), {}, [], []), tmp_path)
    lock = project.locks / "lock0.txt"
    lock.write_text("\n".join(lock.read_text().splitlines()[:-1]))
    with pytest.raises(InputErrors):
        references(project, checkouts(project))


@pytest.mark.parametrize("hidden", ["checkout", "locks", "results"])
def test_what_this_user_may_not_read_is_not_taken_for_nothing(hidden: str) -> None:
    """A store that two users share, and a checkout of the other's: its wheels must not go for want of rights."""
    with tempfile.TemporaryDirectory() as room, open_to_all(Path(room)) as root, another_user():
        project = lay_out(Described([[], [frozenset({0})]], frozenset(), {}, [], []), root)
        other = Project(root / "checkout1", project.store)
        other.state.mkdir()
        (other.state / "results.db").write_bytes(b"")
        folder = {"checkout": root / "outer", "locks": other.locks, "results": other.state}[hidden]
        if hidden == "checkout":
            folder.mkdir()
            other.root.rename(folder / "checkout")
            (project.store / "checkouts" / "abc").write_text(json.dumps(str(folder / "checkout")))
        folder.chmod(0)
        try:
            with pytest.raises(InfraError, match="Permission denied"):
                references(project, checkouts(project))
        finally:
            folder.chmod(0o755)


@contextmanager
def open_to_all(folder: Path) -> Iterator[Path]:
    """Not pytest's own folder, whose parents only this user may enter; the folder for temporary files may be root's."""
    folder.chmod(0o777)
    yield folder


@contextmanager
def another_user() -> Iterator[None]:
    """Not be root, to whom rights mean nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_unfinished_work_waits_a_day_and_parts_of_an_archive_a_month(tmp_path: Path) -> None:
    project = lay_out(Described([[]], frozenset(), {}, [], []), tmp_path)
    store = project.store
    for age in (0, 2 * DAY, 2 * MONTH):
        write(store / "incoming" / str(age) / "part", 1, age)
        os.utime(store / "incoming" / str(age), (NOW - age, NOW - age))
        write(store / "tmp" / f"{age}.part", 1, age)
    write(store / "incoming" / "begun long ago" / "parts" / "00002.json", 1, 0)  # and a part came now
    os.utime(store / "incoming" / "begun long ago", (NOW - 2 * MONTH, NOW - 2 * MONTH))
    os.utime(store / "incoming" / "begun long ago" / "parts", (NOW, NOW))
    (store / "tmp" / "x.lock").touch()
    write(store / "tmp" / f"{GONE}1-0-x" / "file", 1, 0)
    going = [part.name for part in plan(look(project)[1], 0).parts]
    assert going == [f"tmp/{GONE}1-0-x", f"tmp/{2 * MONTH}.part", f"tmp/{2 * DAY}.part", f"incoming/{2 * MONTH}"]
    finish(store)
    assert not (store / "tmp" / f"{GONE}1-0-x").exists()
    assert (store / "tmp" / "0.part").exists()


def test_one_that_is_killed_leaves_all_that_is_left_whole(tmp_path: Path) -> None:
    store = tmp_path / "store"
    parts = [Part("trees", (f"trees/{number}", f"trees/{number}.sum"), 1, 0.0) for number in range(400)]
    for part in parts:
        for name in "abcde":
            write(store / part.name / "opt" / name, 1, 0)
        write(store / f"{part.name}.sum", 1, 0)
    names = repr([part.paths for part in parts])
    code = f"""
from pathlib import Path
from repromatrix.events import Silent
from repromatrix.share.upkeep.gc import Part, remove
print("begins", flush=True)
remove([Part("trees", paths, 1, 0.0) for paths in {names}], Path({str(store)!r}), Silent())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    while len(list((store / "trees").iterdir())) > 600:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    left = [path for path in (store / "trees").iterdir() if path.is_dir()]
    assert left, "it was not killed in time"
    assert all(len(list((path / "opt").iterdir())) == 5 for path in left)
    finish(store)
    assert list((store / "tmp").iterdir()) == []
    remove(parts, store, Silent())
    assert list((store / "trees").iterdir()) == []


def test_what_was_not_looked_at_is_said(tmp_path: Path) -> None:
    made = Plan((Part("packs", ("packs/x",), 3_000_000, 0.0),), 4_000_000, 1_000_000, 500_000)
    parts = (*made.parts, Part("wheels", ("wheels/y",), 1_000_000, 0.0, kept="a lock names it"))
    seen = Upkeep(tmp_path, (tmp_path / "a",), (), parts, made, True, False, None)
    told = text(seen)
    assert "would go:\n  packs         1     3.0 MB" in told
    assert "stays:\n  wheels        1     1.0 MB  a lock names it" in told
    assert "no Docker daemon answers" in told
    assert "that is 500.0 kB over the 500.0 kB asked for" in told
    assert document(seen)["stays"] == [{"kind": "wheels", "parts": 1, "bytes": 1_000_000, "why": "a lock names it"}]


# --- who uses the store -----------------------------------------------------------------------------------------------


def test_a_running_command_keeps_gc_out_until_it_ends_or_dies(checkout: Checkout) -> None:
    checkout.repro("slow", "import time; print('up', flush=True); time.sleep(30)", jax='"== 1.0.0"')
    run = subprocess.Popen(
        checkout.command("matrix"),
        cwd=checkout.root,
        env=checkout.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    store = Path(checkout.environ["REPROMATRIX_STORE"])
    try:
        deadline = time.monotonic() + 60
        while not (store / "venvs").is_dir() and time.monotonic() < deadline:
            time.sleep(0.1)
        said = checkout.invoke("gc", "--keep", "1B")
        assert said.code == 2
        assert "the store is in use by `uv run invoke " in said.err
        assert str(checkout.root) in said.err
        assert checkout.invoke("gc").code == 0  # looking disturbs nobody
        assert checkout.invoke("cells").code == 0
        assert list((store / "venvs").iterdir())
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
    assert checkout.invoke("gc", "--keep", "1B").code == 1
    assert list((store / "users").iterdir()) == []


def test_who_comes_while_gc_works_waits(tmp_path: Path) -> None:
    project = lay_out(Described([[]], frozenset(), {}, [], []), tmp_path)
    told: list[str] = []
    order: list[str] = []

    def come() -> None:
        with using(project, "invoke matrix", told.append):
            order.append("used")

    with alone(project, "invoke gc --keep 1G"):
        thread = threading.Thread(target=come)
        thread.start()
        deadline = time.monotonic() + 20
        while not told and time.monotonic() < deadline:
            time.sleep(0.02)
        order.append("removed")
    thread.join()
    assert order == ["removed", "used"]
    assert len(told) == 1
    assert told[0].startswith("waiting for `invoke gc --keep 1G` (pid")


def test_several_commands_use_the_store_at_once_and_gc_names_them(tmp_path: Path) -> None:
    project = lay_out(Described([[]], frozenset(), {}, [], []), tmp_path)
    crowd = using(project, "invoke matrix", pytest.fail), using(project, "invoke diff", pytest.fail)
    refused = pytest.raises(UserError, match=r"in use by `invoke (matrix|diff)`.* and by `invoke")
    with crowd[0], crowd[1], refused, alone(project, "gc"):
        pytest.fail("it had the store for itself")
    with alone(project, "gc"), pytest.raises(UserError, match="in use by `gc`"), alone(project, "gc"):
        pytest.fail("two of them had it")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_only_be_read_is_used_without_registering(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "store")
    project.store.mkdir(mode=0o555)
    with using(project, "invoke matrix", pytest.fail):
        assert list(project.store.iterdir()) == []


# --- the engine's images ----------------------------------------------------------------------------------------------


@pytest.mark.container
def test_images_go_whose_lock_nothing_names(engine: Daemon, tmp_path: Path) -> None:
    mark = hashlib.sha256(str(tmp_path).encode()).hexdigest()
    locks = {name: hashlib.sha256(f"{mark}{name}".encode()).hexdigest() for name in ("spare", "named", "foreign")}
    for name, lock in locks.items():
        engine.api.import_image_from_data(
            b"\0" * 10240,
            repository="repromatrix-test-gc",
            tag=f"{mark[:12]}-{name}",
            changes=[f"LABEL {LABEL}lock={lock}"],
        )
    tags = {name: f"repromatrix-test-gc:{mark[:12]}-{name}" for name in locks}
    try:
        refers = References(
            frozenset(), frozenset(), frozenset({locks["named"]}), frozenset({locks["named"], locks["spare"]})
        )
        found = spare(engine, refers)
        assert [image.names for image in found] == [(tags["spare"],)]
        assert drop(engine, found, Silent()) == found
        left = {name for image in engine.api.images(name="repromatrix-test-gc") for name in image["RepoTags"]}
        assert tags["spare"] not in left
        assert {tags["named"], tags["foreign"]} <= left
    finally:
        for name in ("named", "foreign"):
            engine.api.remove_image(tags[name])


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20G", 20 * 10**9),
        ("500MB", 500 * 10**6),
        ("8GiB", 8 << 30),
        ("1.5 T", 1_500_000_000_000),
        ("64k", 64_000),
        ("1024", 1024),
        ("1B", 1),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size("keep", text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1G", "20X", "G", "1iB", "1e9", "nan", "٣G", "20GG", "0.1"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        size("keep", text)


def test_wrong_options(checkout: Checkout) -> None:
    assert checkout.invoke("gc", "--keep", "much").code == 2
    assert checkout.invoke("gc", "--dry-run").code == 2
    assert "nothing was removed" in checkout.invoke("gc").out
    assert not Path(checkout.environ["REPROMATRIX_STORE"]).exists()  # looking makes nothing
