"""The podman engine against a real podman: environments, attempts and GPUs come out as Docker's do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.engines.attempt import CANCELLED, owner, read_raw
from repromatrix.engines.base import Attempt, Prepared, Raw
from repromatrix.engines.cdi import Access, Specification, podman_access, specification
from repromatrix.engines.choose import choose_engine
from repromatrix.engines.container import NO_CORE, Options, flags
from repromatrix.engines.local_cuda import find_libraries
from repromatrix.engines.podman import PodmanEngine
from repromatrix.envs import image
from repromatrix.envs.base import published, resolve_base
from repromatrix.envs.daemon import LABEL
from repromatrix.envs.model import Lock
from repromatrix.envs.podman import Podman, dockerfile, full_name
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError, UserError
from repromatrix.events import Silent
from repromatrix.project import Project
from repromatrix.spec.model import Base, Environment, Matrix, Outcome
from tests.conftest import Checkout
from tests.deaths import DEATHS, SOON, STUCK, Death
from tests.docker_fixtures import PYTHON, lock_of, stored
from tests.dying import Place, cell_of, check, cores_in, die, needs_cores, stacks_of
from tests.fake_index import make_wheel
from tests.gpu_nodes import GPU_SCRIPT, host_with_gpus
from tests.tools_fixture import readers

ROOT = Path(__file__).resolve().parents[1]

CDI = Path("/var/run/cdi")
"""Where podman looks (4.3.1 takes no other folder); what lies there is gone with the next boot."""


# ---- what needs no podman ----


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("sha256:" + "0" * 64, "sha256:" + "0" * 64),
        ("repromatrix-base:1f", "localhost/repromatrix-base:1f"),
        ("localhost/repromatrix:x", "localhost/repromatrix:x"),
        ("python:3.11-slim@sha256:12", "docker.io/library/python@sha256:12"),
        ("acme/python:3.11@sha256:12", "docker.io/acme/python@sha256:12"),
        ("registry.invalid/python:3.11@sha256:12", "registry.invalid/python@sha256:12"),
        ("localhost:5000/a/b@sha256:12", "localhost:5000/a/b@sha256:12"),
    ],
)
def test_names_mean_what_they_mean_to_docker(reference: str, name: str) -> None:
    assert full_name(reference) == name


def test_a_dockerfile_for_podman(tiny_lock: Lock, docker_project: Project, docker_matrix: Matrix) -> None:
    text = image.render(tiny_lock, published(docker_matrix, PYTHON))
    packs = {f"{wheel.filename}.tar": f"hash-of-{wheel.name}" for wheel in tiny_lock.wheels}
    found = dockerfile(text, "localhost/base:1", packs)
    assert "requirements.txt" in text.partition("ARG BASE")[2]
    assert "requirements.txt" not in found.partition("ARG BASE")[2]  # the stage that downloads
    assert re.findall(r"^FROM .*", found, re.MULTILINE) == ["FROM localhost/base:1"]
    assert "--network" not in found.replace("# ", "")
    runs = [line for line in found.splitlines() if line.lstrip().startswith("for pack in")]
    assert [line.partition("done # ")[2] for line in runs] == ["hash-of-greeter", "hash-of-jax"]
    # Everything else stays as it is.
    kept = text.partition("FROM ${BASE}\n")[2].replace("RUN --network=none", "RUN")
    assert re.sub(r" # hash-of-\w+", "", found).partition("FROM localhost/base:1\n")[2] == kept


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: writing blob: write /var/x: no space left on device", "disk is full.*podman image prune"),
        ("Error: cannot find newuidmap: exec: not found in $PATH", "could not start: cannot find.*package uidmap"),
        ("Error: crun: cgroups in hybrid mode not supported, drop", "could not start: crun.*install runc"),
        ("Error: runc: error setting rlimit type 6: not permitted", "could not start: runc.*default_ulimits"),
        ("Error: something else\n", "^podman could not start: something else$"),
    ],
)
def test_podmans_words_come_with_a_fix(said: str, told: str) -> None:
    error = Podman().trouble(said, "start")
    assert re.search(told, f"{error.message} {error.hint}".strip())


def test_gpus_are_had_by_cdi_alone() -> None:
    told = Specification(Path("/etc/cdi/nvidia.yaml"), ("0", "1", "all"), "/usr/local/nvidia/lib64")
    why = "CDI: podman reads /etc/cdi/nvidia.yaml, which describes 0, 1, all"
    assert podman_access([told]) == Access("cdi", why, ("nvidia.com/gpu=all",), "/usr/local/nvidia/lib64")
    assert podman_access([replace(told, devices=("0", "1"))]).devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    for nothing in ([], [replace(told, devices=("GPU-1f",))]):
        assert podman_access(nothing).how == ""
        assert "--write-cdi" in podman_access(nothing).why


def test_limits_are_those_that_the_host_can_give(tmp_path: Path) -> None:
    attempt = Attempt("a", tmp_path, "script.py", (), (), 1.0)

    def limits(files: int, *refused: str) -> set[str]:
        info = {"Limits": {"nofile": files, "nproc": 1000}}
        made = flags("podman", attempt, Options.of(info, frozenset(refused), Access("", "")))
        return {word.removeprefix("--ulimit=") for word in made if word.startswith("--ulimit=")}

    assert limits(4096) == {"core=-1", "nofile=4096", "nproc=1000"}
    assert limits(1 << 20) == {"core=-1", "nofile=65536", "nproc=1000"}
    assert limits(4096, NO_CORE[1]) == {"nofile=4096", "nproc=1000"}


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def nothing_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("nothing_answers")
def test_auto_says_in_one_line_what_it_passed_over(docker_project: Project, docker_matrix: Matrix) -> None:
    notes = Notes()
    assert choose_engine("auto", docker_project, docker_matrix, notes).name == "venv"
    assert notes.notes == ["engine venv, as docker and podman cannot be used here: `invoke doctor` says why"]
    with pytest.raises(InfraError, match="engine podman does not answer: podman is not installed"):
        choose_engine("podman", docker_project, docker_matrix, Silent())
    with pytest.raises(UserError, match="not built yet") as caught:
        choose_engine("slurm", docker_project, docker_matrix, Silent())
    assert caught.value.hint == "use one of: auto, docker, podman, venv"


# ---- what needs one ----


@pytest.fixture(scope="module")
def engine(podman: Podman, docker_project: Project, docker_matrix: Matrix) -> PodmanEngine:
    return PodmanEngine(docker_project, docker_matrix)


@pytest.fixture(scope="module")
def prepared(engine: PodmanEngine, tiny_lock: Lock) -> Prepared:
    return engine.prepare(tiny_lock, Silent())


@pytest.fixture(scope="module")
def place(engine: PodmanEngine, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(engine, prepared, tmp_path_factory.mktemp("evidence"))


def containers(podman: Podman, label: str = f"owner={owner()}") -> list[str]:
    argv = ("ps", "--all", "--quiet", f"--filter=label={LABEL}{label}")
    return podman.ask(*argv, doing="list its containers").split()


def attempt_of(folder: Path, script: str, *arguments: str, timeout: float = 60) -> Attempt:
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "script.py").write_text(textwrap.dedent(script))
    return Attempt("a", folder, "script.py", arguments, (("GREETING", "hello"),), timeout)


def run(engine: PodmanEngine, prepared: Prepared, attempt: Attempt) -> Raw:
    return engine.run(prepared, attempt, threading.Event())


@pytest.mark.container
def test_prepared_twice_is_known(engine: PodmanEngine, prepared: Prepared, tiny_lock: Lock) -> None:
    assert engine.unavailable() == ""
    assert engine.known(tiny_lock) == prepared
    assert engine.prepare(tiny_lock, Silent()) == prepared
    assert (prepared.engine, prepared.location[:7]) == ("podman", "sha256:")
    assert engine.basis(PYTHON, Silent()) == prepared.base


@pytest.mark.container
def test_another_wheel_of_the_same_name_is_not_taken_from_the_cache(
    engine: PodmanEngine, prepared: Prepared, docker_project: Project, tiny_lock: Lock, tmp_path: Path
) -> None:
    """Podman's builder compares words, not what is mounted: a layer of another content would be a false verdict."""
    store = WheelStore(docker_project.store)
    other = make_wheel(tmp_path, "greeter", "1.0", {"greeter/__init__.py": "def greet(name):\n    return 'ho'\n"})
    jax = next(wheel for wheel in tiny_lock.wheels if wheel.name == "jax")
    lock = lock_of(stored(store, other, "2024-05-01T00:00:00Z"), jax)
    made = engine.prepare(lock, Silent())
    raw = run(engine, made, attempt := attempt_of(tmp_path / "a", "import greeter\nprint(greeter.greet('you'))"))
    assert (raw.exit_status, (attempt.folder / "stdout").read_text()) == (0, "ho\n")


@pytest.mark.container
def test_exit_status_output_and_surroundings(engine: PodmanEngine, prepared: Prepared, tmp_path: Path) -> None:
    attempt = attempt_of(
        tmp_path / "a",
        """
        import greeter, json, os, resource, socket, sys
        facts = {"greet": greeter.greet(os.environ["GREETING"]), "argv": sys.argv[1:]}
        facts["uid"], facts["cwd"] = os.getuid(), os.getcwd()
        facts["prefix"], facts["pid1"] = sys.prefix, open("/proc/1/comm").read().strip()
        facts["interfaces"] = [name for _, name in socket.if_nameindex()]
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        facts["caps"], facts["no_new"] = status["CapBnd"].strip(), status["NoNewPrivs"].strip()
        facts["shm"] = os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks
        facts["core"] = resource.getrlimit(resource.RLIMIT_CORE)[1]
        facts["host"], facts["proxies"] = socket.gethostname(), [name for name in os.environ if "proxy" in name.lower()]
        facts["packs"] = os.listdir("/dev/shm")
        open("here", "w").close()
        print(json.dumps(facts))
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """,
        "--n",
        "3",
    )
    raw = run(engine, prepared, attempt)
    assert (raw.exit_status, raw.signal, raw.timed_out, raw.infra) == (7, None, False, "")
    facts = json.loads((attempt.folder / "stdout").read_text())
    pid1 = facts.pop("pid1")
    assert pid1 in ("catatonit", "tini-static", "podman-init") or any("PID 1" in note for note in raw.notes)
    user = os.getuid() if os.geteuid() == 0 else 0
    assert facts == {
        "greet": "hi hello",
        "argv": ["--n", "3"],
        "uid": user,
        "cwd": "/attempt/work",
        "prefix": "/opt/env",
        "interfaces": ["lo"],
        "caps": "0" * 16,
        "no_new": "1",
        "shm": 2 << 30,
        "core": -1,
        "host": "localhost",
        "proxies": [],
        "packs": [],
    }
    assert (attempt.folder / "stderr").read_text() == "to stderr\n"
    assert (attempt.folder / "work" / "here").stat().st_uid == os.getuid()

    command = engine.command(prepared, attempt)
    assert command.startswith("podman run --rm ")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["argv"]) == (7, ["--n", "3"]), done.stderr


@pytest.mark.container
def test_an_image_of_a_registry_is_pulled_by_its_digest(
    registry: str,
    podman: Podman,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    name = f"{registry}/python:3.11-slim"
    podman.ask("push", f"--digestfile={tmp_path}/digest", prepared.location, name, doing="push it")
    reference = f"{name}@{(tmp_path / 'digest').read_text()}"
    assert podman.id_of(reference) is None
    matrix = Matrix(tmp_path / "matrix.toml", (), "release", bases=(Base("3.11", reference, None),))
    chosen = resolve_base(matrix, "3.11", podman, tmp_path / "store", Silent())
    assert (chosen.reference, chosen.description) == (reference, reference)
    assert podman.id_of(reference) == prepared.location
    stale = replace(matrix, bases=(Base("3.11", f"{name}@sha256:{'1' * 64}", None),))
    with pytest.raises(InfraError, match="cannot be had: the registry does not give it"):
        resolve_base(stale, "3.11", podman, tmp_path / "store", Silent())


NAMES = (
    *("exit_3", "os_abort", "segfault_in_c", "killed_by_itself", "behind_a_shell", "killed_for_memory"),
    *("a_child_killed_for_memory", "hang_in_python", "kills_its_supervisor", "stops_its_supervisor_politely"),
    "ten_thousand_at_once",
)
"""Of each kind of death those that the engine has a part in."""


LIMITED = pytest.mark.skipif(os.geteuid() != 0, reason="whether a rootless podman has limits is the host's affair")


@pytest.mark.container
@pytest.mark.parametrize(
    "death",
    [
        pytest.param(death, id=death.name, marks=[LIMITED] if death.engines == ("docker",) else [])
        for death in DEATHS
        if death.name in NAMES
    ],
)
def test_it_is_told_how_it_died(place: Place, death: Death, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(die(place, cell_of(place, tmp_path, death.name, death.script, *death.metadata)), death)
    assert not (tmp_path / "oom").exists()  # conmon's, where podman was called


@pytest.mark.container
@pytest.mark.network
@needs_cores
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the readers are those of the Python that runs the tests")
def test_cores_and_stacks(place: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    tools = readers(tmp_path_factory.mktemp("tools"), PYTHON)
    script = "import ctypes, faulthandler\nfaulthandler.disable()\ndef peek():\n    ctypes.string_at(0)\npeek()"
    ended = die(place, cell_of(place, tmp_path / "c", "peeks", script), cores="stacks", tools=tools)
    assert (ended.result.outcome, ended.result.signal, ended.raw.core) == (Outcome.CRASH, "SIGSEGV", True)
    assert ended.result.signature is not None
    assert ended.result.signature.title == "signal SIGSEGV at __init__.py string_at from peeks.py peek"
    assert cores_in(ended) == []
    ended = die(place, cell_of(place, tmp_path / "h", "hangs", STUCK, *SOON), cores="stacks", tools=tools)
    (stack,) = stacks_of(ended).stacks
    assert (stack.source, stack.tool, stack.trouble) == ("live", "pystack", "")
    assert "in stuck" in ended.text(stack.file)


@pytest.mark.container
def test_cancel_ends_it_at_once(engine: PodmanEngine, prepared: Prepared, podman: Podman, tmp_path: Path) -> None:
    cancel = threading.Event()
    threading.Timer(1.5, cancel.set).start()
    began = time.monotonic()
    raw = engine.run(prepared, attempt_of(tmp_path / "a", "import time; time.sleep(600)"), cancel)
    assert raw.infra == CANCELLED
    assert 1.4 < time.monotonic() - began < 12
    assert containers(podman) == []


@pytest.mark.container
def test_first_attempts_started_together(
    docker_project: Project, docker_matrix: Matrix, prepared: Prepared, tmp_path: Path
) -> None:
    """What podman refuses is learnt by several attempts at once, and none of them is lost for it."""
    fresh = PodmanEngine(docker_project, docker_matrix)
    attempts = [attempt_of(tmp_path / str(number), "print('ran')") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda attempt: run(fresh, prepared, attempt), attempts))
    assert [(raw.exit_status, raw.infra) for raw in found] == [(0, "")] * 4


@pytest.mark.container
def test_a_lost_supervisor_is_ended_from_outside(
    engine: PodmanEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repromatrix.engines.in_container.AFTERMATH", -14.0)
    script = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)"
    raw = run(engine, prepared, attempt_of(tmp_path / "a", script, timeout=1))
    assert "killed from outside; the engine says: status 137" in raw.infra


@pytest.mark.container
def test_ranks_can_be_repeated_by_hand(engine: PodmanEngine, prepared: Prepared, tmp_path: Path) -> None:
    script = "import os, sys; sys.exit(3 + int(os.environ['REPRO_RANK']))"
    attempt = replace(attempt_of(tmp_path / "a", script), processes=2)
    said = subprocess.run(engine.command(prepared, attempt), shell=True, check=False, capture_output=True, text=True)
    assert said.returncode != 0  # no spec.json yet
    assert [end.exit_status for end in run(engine, prepared, attempt).ranks] == [3, 4]
    said = subprocess.run(engine.command(prepared, attempt), shell=True, check=True, stdout=subprocess.PIPE, text=True)
    assert [end.exit_status for end in read_raw(Path(said.stdout.strip())).ranks] == [3, 4]


@pytest.mark.container
def test_what_cannot_start_is_infra(
    engine: PodmanEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(prepared, identity="sha256:" + "0" * 64, location="sha256:" + "0" * 64)
    raw = run(engine, gone, attempt_of(tmp_path / "a", "print(1)"))
    assert "podman could not create the container" in raw.infra
    monkeypatch.setattr("repromatrix.engines.container.SUPERVISOR", tmp_path / "not there")
    raw = run(engine, prepared, attempt_of(tmp_path / "b", "print(1)"))
    assert "no such file or directory" in raw.infra


@pytest.mark.container
def test_no_init(engine: PodmanEngine, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repromatrix.engines.container.INITS", ())
    monkeypatch.setattr(engine, "_refused", set(engine._refused))
    raw = run(engine, prepared, attempt_of(tmp_path / "a", "import os; os.abort()"))
    assert (raw.signal, raw.infra) == ("SIGABRT", "")
    if not Path("/usr/libexec/podman/catatonit").exists():
        assert any("the supervisor was PID 1" in note for note in raw.notes)


@pytest.mark.container
def test_reap(engine: PodmanEngine, prepared: Prepared, podman: Podman, tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path / "a", "import time; time.sleep(600)")
    code = f"""
import sys, threading
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from repromatrix.engines.base import Attempt, Prepared
from repromatrix.engines.podman import PodmanEngine
from repromatrix.project import Project
from repromatrix.spec.model import Matrix
root = Path({str(tmp_path)!r})
engine = PodmanEngine(Project(root, root / "store"), Matrix(root / "matrix.toml", (), "release"))
prepared = Prepared(None, "podman", {prepared.identity!r}, "", {prepared.location!r})
attempt = Attempt("orphan", Path({str(attempt.folder)!r}), "script.py", (), (), 600.0)
engine.run(prepared, attempt, threading.Event())
"""
    other = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while not (attempt.folder / "stdout").exists():
        assert time.monotonic() < deadline
        assert other.poll() is None
        time.sleep(0.1)
    assert [said for said in engine.reap() if "orphan" in said] == []  # its owner lives
    other.kill()
    other.wait()
    late = [f"--label={LABEL}{key}" for key in ("attempt=late", "owner=another machine 0 0 0", "deadline=1000")]
    podman.ask("create", "--network=none", *late, prepared.location, "sleep", "600", doing="create one")
    ended = engine.reap()
    assert len(ended) == 2
    assert any("repromatrix-orphan-" in said and "its owner is dead" in said for said in ended)
    assert any("its deadline has passed" in said for said in ended)
    assert containers(podman, "attempt") == []


@pytest.mark.container
def test_the_command_line_and_ctrl_c(
    checkout: Checkout, podman: Podman, prepared: Prepared, docker_project: Project
) -> None:
    """The base is that of `prepared`, in the store of `docker_project`."""
    text = (checkout.root / "matrix.toml").read_text()
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    (checkout.root / "matrix.toml").write_text(text.replace(f'"{minor}"', f'"{PYTHON}"').replace('"venv"', '"podman"'))
    store = Path(checkout.environ["REPROMATRIX_STORE"])
    store.mkdir()
    (store / "bases").symlink_to((docker_project.store / "bases").resolve())
    checkout.repro("stays", "import jax, time\nprint('began', flush=True)\ntime.sleep(600)")
    checkout.repro("wrong", "import jax, sys\nsys.exit(3)")
    said = checkout.invoke("matrix", "--env", "jax1.0.0*", "--repro", "wrong", "--json", "out.json")
    assert (said.code, "Traceback" in said.err) == (1, False), said.err
    (cell,) = json.loads((checkout.root / "out.json").read_text())["cells"]
    assert (cell["engine"], cell["outcome"], cell["exit_status"]) == ("podman", "error", 3)
    evidence = checkout.root / cell["attempts"][0]["evidence"]
    assert (evidence / "command").read_text().startswith("podman run --rm ")
    running = subprocess.Popen(
        checkout.command("run", "stays", "--env", "jax1.0.0*"),
        cwd=checkout.root,
        env=checkout.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    printed = ""
    while "began" not in printed:
        line = running.stdout.readline()
        assert line, printed
        printed += line
    assert len(containers(podman, "attempt")) == 1
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert containers(podman, "attempt") == []


# ---- GPUs ----


@pytest.fixture
def cdi(tmp_path: Path) -> Iterator[Path]:
    """A CDI specification of device nodes that stand for GPUs, where podman looks, for the length of a test."""
    target = CDI / "nvidia.json"
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    if target.exists() or list(Path("/etc/cdi").glob("*")):
        pytest.skip("this host has CDI specifications of its own")
    made = not CDI.is_dir()
    CDI.mkdir(parents=True, exist_ok=True)
    yield target
    target.unlink(missing_ok=True)
    if made:
        CDI.rmdir()


@pytest.mark.container
def test_gpus_by_cdi_and_the_hosts_cuda(engine: PodmanEngine, prepared: Prepared, cdi: Path, tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path / "n", "")
    raw = run(engine, prepared, replace(attempt, gpus=1))
    assert raw.infra.startswith("there is no CDI specification of GPUs for podman: install")

    host = host_with_gpus(tmp_path / "host")
    cdi.write_text(json.dumps(specification(host / "driver", host / "dev")))
    nodes = [str(host / "dev" / name) for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")]
    axes = dict(prepared.lock.environment.axes) | {"cuda": "13-local"}
    local = replace(prepared, lock=replace(prepared.lock, environment=Environment(tuple(axes.items()))))
    text = f"NODES = {nodes!r}\nLIBRARIES = {['libcuda.so.1', 'libcudart.so.13']!r}\n{GPU_SCRIPT}"
    attempt = replace(
        attempt_of(tmp_path / "a", text),
        gpus=2,
        devices=(0, 1),
        cuda=find_libraries(str(host / "site-packages")),
    )
    raw = run(engine, local, attempt)
    assert (raw.exit_status, raw.infra) == (0, ""), (attempt.folder / "stderr").read_text()
    seen = json.loads((attempt.folder / "stdout").read_text())
    inside = "/opt/repromatrix/cuda/0/cu13"
    assert seen == {
        "LD_LIBRARY_PATH": f"{inside}/lib:/usr/local/nvidia/lib64",
        "CUDA_ROOT": inside,
        "PATH": f"/opt/env/bin:{inside}/bin:/usr/local/bin:/usr/bin:/bin",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "nodes": nodes,
    }
    assert f"GPUs by CDI: podman reads {cdi}, which describes 0, 1, all" in raw.notes
    assert any(note.startswith("loaded: cudart ") for note in raw.notes)

    command = engine.command(local, attempt)
    assert "--device=nvidia.com/gpu=all" in command
    by_hand = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert by_hand.returncode == 0, (command, by_hand.stderr)
    assert json.loads(by_hand.stdout) == seen

    described = specification(host / "driver", host / "dev")
    described["containerEdits"]["mounts"][0]["hostPath"] = "/no/such/libcuda.so.535.104.05"
    cdi.write_text(json.dumps(described))
    raw = run(engine, local, replace(attempt_of(tmp_path / "b", text), gpus=2, devices=(0, 1)))
    assert "libcuda.so.535.104.05" in raw.infra
