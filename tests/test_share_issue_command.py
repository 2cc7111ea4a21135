"""`invoke issue` through the command line, on stand-in wheels from a loopback index."""

from __future__ import annotations

import json
import runpy
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from repromatrix.envs.daemon import Daemon
from repromatrix.envs.lockfile import write_lock
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.plan import Request
from repromatrix.project import Project
from repromatrix.share.issues.env_block import environment_info
from repromatrix.share.privacy.redact import redact
from repromatrix.spec.model import Cell, Matrix
from tests.conftest import ROOT, Checkout
from tests.docker_fixtures import lock_of, stored
from tests.fake_index import FakeIndex, make_wheel, publish_jax
from tests.sample_cells import REPRO

FAILS_FROM_1_1 = """\
import sys, jax
print('ran', jax.__version__)
sys.exit(jax.__version__ != '1.0.0' and 'ValueError: it broke')
"""
TELLS = "def print_environment_info(return_string=False):\n    return f'jax:    {__version__}\\ntold by jax itself'\n"
PROGRAM = ROOT / "containers" / "environment_info.py"


@pytest.fixture
def told(index: FakeIndex, checkout: Checkout) -> Checkout:
    """A checkout whose newest jax can say what its environment is."""
    publish_jax(index, {"1.3.0": "2025-04-10"}, TELLS)
    text = (checkout.root / "matrix.toml").read_text()
    (checkout.root / "matrix.toml").write_text(text.replace('"1.1.0", "1.2.0"', '"1.1.0", "1.3.0"'))
    return checkout


def test_a_run_becomes_a_bug_report(told: Checkout) -> None:
    told.repro("breaks", FAILS_FROM_1_1, issue='"jax-ml/jax#1"')
    assert told.invoke("matrix").code == 1
    said = told.invoke("issue", "breaks", "--to", "issue.md", "--json", "issue.json")
    assert said.code == 0, said.err
    assert said.out == ""
    assert "title: A test (jax 1.1.0 to 1.3.0, ok in 1.0.0)" in said.err
    text = (told.root / "issue.md").read_text()
    assert "**last good** jax 1.0.0 (2025-01-10), **first bad** jax 1.1.0 (2025-02-10)" in text
    assert "[jax-v1.0.0...jax-v1.1.0](https://github.com/jax-ml/jax/compare/jax-v1.0.0...jax-v1.1.0)" in text
    assert "told by jax itself" in text
    assert "In `jax1.3.0-cpu-py" in text
    assert "error 1" in text
    assert FAILS_FROM_1_1.strip() in text
    assert "venv/bin/pip install --no-deps jax==1.3.0 jaxlib==1.3.0 &&" in text
    document = json.loads((told.root / "issue.json").read_text())
    assert document["issue"]["text"] == text
    assert document["issue"]["altered"] == []
    assert len(document["cells"]) == 3
    again = told.invoke("issue", "breaks")
    assert again.out.partition("Made by")[0] == text.partition("Made by")[0]
    assert "environment of jax1.3.0" in said.err
    assert "environment of jax1.3.0" not in again.err
    assert not list((told.root / ".repromatrix" / "programs").iterdir())


def test_where_jax_cannot_tell_the_installed_versions_are_shown(checkout: Checkout) -> None:
    """The stand-in for jax has no `print_environment_info`, as a jax that cannot be imported has none."""
    checkout.repro("breaks", FAILS_FROM_1_1)
    checkout.invoke("matrix")
    said = checkout.invoke("issue", "breaks")
    assert said.code == 0, said.err
    assert "`jax.print_environment_info()` could not be had of this environment: AttributeError: module" in said.out
    assert "jaxlib: 1.2.0" in said.out


def test_nothing_private_leaves(told: Checkout, tmp_path: Path) -> None:
    """Secrets planted in the script, the title, the output, the evidence and the variables of whoever reports."""
    home = tmp_path / "people" / "asmith42"
    home.mkdir(parents=True)
    mine = {
        "HOME": str(home),
        "USER": "asmith42",
        "HOSTNAME": "login7.hpc.example.org",
        "LAB_TOKEN": "lab/Token+0815",
        "UV_INDEX": "https://reader:s3cr3tpw@wheels.example.net/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    planted = [
        *(f"{home}/data/set.npz", "asmith42", "login7.hpc.example.org", "lab/Token+0815", "ada.smith@example.org"),
        *("/home/bjones/.cache/x", "ghp_" + "a1B2c3D4" * 5, "tcp://10.20.30.40:8471", "login8.hpc.example.org"),
        *("https://reader:s3cr3tpw@wheels.example.net/simple/jax", str(told.root / "repros"), "PASSWORD=hunter2x"),
        *("Bearer abcdef0123456789", str(tmp_path / "store" / "wheels"), socket.gethostname() + "@x"),
    ]
    printed = [*planted, *(quote(word, safe="") for word in planted), *(json.dumps({"at": word}) for word in planted)]
    body = "\n".join(
        [
            "import sys, jax",
            f"# {planted[0]} by ada.smith@example.org",
            *(f"print({word!r}); print({word!r}, file=sys.stderr)" for word in printed),
            f"sys.exit(jax.__version__ != '1.0.0' and {f'ValueError: no {planted[0]} for {planted[4]}'!r})",
        ]
    )
    told.repro("leaks", body, title=f'"Fails for asmith42 in {home}/x"', about='"Asked by ada.smith@example.org"')
    told.environ |= {name: value for name, value in mine.items() if not name.startswith("UV_INDEX")}
    assert told.invoke("matrix").code == 1
    said = told.invoke("issue", "leaks", "--json", "issue.json", "--offline", **mine)
    assert said.code == 0, said.err
    assert "private words were replaced in leaks.py: what the report shows may not run" in said.err
    assert "Private words in `leaks.py` were replaced" in said.out
    document = (told.root / "issue.json").read_text()
    hidden = [
        *("asmith42", "ada.smith", "bjones", "login7", "login8", "hpc.example", "0815", "a1B2c3D4", "hunter2x"),
        *("s3cr3tpw", "wheels.example", "10.20.30", "f0123456789", str(tmp_path), quote(str(tmp_path), safe="")),
    ]
    for place in (said.out, json.loads(document)["issue"]["text"], document, said.err.partition("title:")[2]):
        assert [word for word in hidden if word in place] == []
    assert "<home>" in said.out
    assert "<token>" in said.out


def test_only_failures_are_bugs(checkout: Checkout) -> None:
    checkout.repro("fine", "import jax", witness='{ output = ["never printed"] }')
    checkout.repro("good", "import jax")
    checkout.invoke("matrix")
    said = checkout.invoke("issue", "fine")
    assert said.code == 1
    assert "Nothing is known to fail: 0 cells are ok, and of 3 nothing is known (3 inconclusive)." in said.err
    assert "**Nothing is known to fail: 0 cells are ok" in said.out
    said = checkout.invoke("issue", "good")
    assert (said.code, "Nothing fails: 3 cells are ok." in said.out) == (1, True)


def test_wrong_requests_are_told_what_is_wrong(checkout: Checkout) -> None:
    checkout.repro("untried", FAILS_FROM_1_1)
    checkout.repro("unbent", FAILS_FROM_1_1)
    for arguments, message in (
        (["untried"], "run it first: uv run invoke matrix --repro untried"),
        (["untired"], 'did you mean "untried"?'),
        (["u*"], "means 2 repros: unbent, untried"),
        (["untried", "--to", "nowhere/issue.md"], "there is no such folder"),
        (["untried", "--env", "nope"], "nope"),
    ):
        said = checkout.invoke("issue", *arguments)
        assert said.code == 2, arguments
        assert message in said.err
        assert "Traceback" not in said.err


def test_what_has_gone_is_told(told: Checkout) -> None:
    """Evidence that was deleted, an environment that cannot be made again, and a script that is another now."""
    told.repro("breaks", FAILS_FROM_1_1)
    told.invoke("matrix")
    shutil.rmtree(told.root / ".repromatrix" / "evidence")
    for folder in ("venvs", "wheels", "packs", "trees"):
        shutil.rmtree(Path(told.environ["REPROMATRIX_STORE"]) / folder, ignore_errors=True)
    said = told.invoke("issue", "breaks", "--offline")
    assert said.code == 3
    assert "error: the environment block is missing: " in said.err
    assert "could not be had of this environment" in said.out
    assert "jaxlib: 1.3.0" in said.out
    assert "last good" in said.out
    for lock in (told.root / "containers" / "locks").glob("jax1.3.0-*.txt"):
        lock.unlink()
    said = told.invoke("issue", "breaks", "--offline")
    assert said.code == 3
    assert "is not the one that it ran with" in said.err
    assert "pip install" not in said.out
    told.repro("breaks", FAILS_FROM_1_1 + "# changed")
    said = told.invoke("issue", "breaks")
    assert said.code == 2
    assert "no result of breaks as it is now is kept" in said.err


@pytest.mark.container
def test_the_environment_tells_in_a_container(
    engine: Daemon, docker_project: Project, docker_matrix: Matrix, tmp_path: Path
) -> None:
    """The name of the host that it tells is the container's, and is redacted with all others."""
    assert engine is not None
    body = "import platform\ndef print_environment_info(return_string=False):\n    return str(platform.uname())\n"
    made = [make_wheel(tmp_path, "jax", "0.0.1", {"jax/__init__.py": body})]
    made.append(make_wheel(tmp_path, "jaxlib", "0.0.1", {"jaxlib/__init__.py": ""}))
    store = WheelStore(docker_project.store)
    lock = lock_of(*(stored(store, wheel, "2025-04-16T00:00:00Z") for wheel in made))
    write_lock(lock, docker_project.locks)
    cell = Cell(lock.environment, REPRO, (), "cpu", env=(("JAX_PLATFORMS", "cpu"),))
    asked = (docker_project, docker_matrix, cell, Request(engine="docker", offline=True), Silent(), threading.Event())
    found = environment_info(*asked)
    assert found.trouble == ""
    assert "uname_result(system='Linux', node='" in found.text
    assert socket.gethostname() not in found.text
    assert "node='<host>'" in redact(found.text)
    assert environment_info(*asked) == found  # kept


def test_the_program_says_what_is_installed_where_there_is_no_jax() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert f"python: {sys.version}" in done.stdout.replace("\n", " ").replace(" platform", "\nplatform")


def test_the_program_names_the_packages_that_matter() -> None:
    pattern = runpy.run_path(str(PROGRAM))["TOLD"]
    names = ["jax", "jax_cuda12_plugin", "jax-cuda13-pjrt", "nvidia-nccl-cu12", "ml_dtypes", "pip", "jaxtyping"]
    assert [name for name in names if pattern.fullmatch(name)] == names[:5]
