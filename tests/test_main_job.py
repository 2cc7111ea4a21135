"""The main job from a script to a table, through the command line, on stand-in wheels from a loopback index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Checkout
from tests.fake_index import FakeIndex

FAILS_IN_1_1 = "import sys, jax\nprint('ran', jax.__version__)\nsys.exit(jax.__version__ == '1.1.0')"
CLAIM = '[[expect]]\nwhen = "jax == 1.1.0"\noutcome = "error"\n[[expect]]\noutcome = "ok"'


def cells(checkout: Checkout, *args: str, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    said = checkout.invoke("matrix", *args, "--json", "out.json", **environ)
    path = checkout.root / "out.json"
    assert path.is_file(), said.err
    return said.code, json.loads(path.read_text())["cells"]


def test_a_script_becomes_a_true_table(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    code, found = cells(checkout)
    assert code == 0
    assert {cell["axes"]["jax"]: (cell["outcome"], cell["exit_status"], cell["as_expected"]) for cell in found} == {
        "1.0.0": ("ok", 0, True),
        "1.1.0": ("error", 1, True),
        "1.2.0": ("ok", 0, True),
    }
    page = (checkout.root / "reports" / "breaks.md").read_text()
    assert "jax1.1.0-cpu" in page
    assert "no isolation beyond processes" in page
    assert "breaks" in (checkout.root / "reports" / "README.md").read_text()
    stdout = checkout.root / found[0]["attempts"][0]["evidence"] / "stdout"
    assert stdout.read_text() == "ran 1.0.0\n"


def test_a_broken_claim_is_exit_1(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, expect='[[expect]]\noutcome = "ok"')
    code, found = cells(checkout)
    assert code == 1
    assert [cell["as_expected"] for cell in found] == [True, False, True]


def test_the_second_run_does_nothing_and_says_so(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    first = checkout.invoke("matrix")
    assert first.code == 0, first.err
    before = sorted(path for path in (checkout.root / ".repromatrix" / "evidence").rglob("result.json"))
    pages = {path: path.stat().st_mtime_ns for path in (checkout.root / "reports").iterdir()}
    again = checkout.invoke("matrix")
    assert again.code == 0
    assert "nothing to do" in again.out
    assert {path: path.stat().st_mtime_ns for path in (checkout.root / "reports").iterdir()} == pages
    (checkout.root / "reports" / "breaks.md").unlink()
    assert checkout.invoke("matrix").code == 0
    assert (checkout.root / "reports" / "breaks.md").is_file()
    assert sorted((checkout.root / ".repromatrix" / "evidence").rglob("result.json")) == before


def test_an_edited_script_runs_again_and_rerun_runs_again(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, expect=CLAIM)
    assert cells(checkout)[0] == 0
    checkout.repro("breaks", "import jax", expect=CLAIM)
    code, found = cells(checkout)
    assert code == 1  # 1.1.0 does not fail any more: the claim is broken
    assert all(len(cell["attempts"]) == 1 for cell in found)
    code, found = cells(checkout, "--rerun", "--repeat", "2")
    assert [len(cell["attempts"]) for cell in found] == [2, 2, 2]


def test_a_corrected_claim_runs_nothing_again(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1, title='"First"', expect='[[expect]]\noutcome = "ok"')
    assert cells(checkout)[0] == 1
    checkout.repro("breaks", FAILS_IN_1_1, title='"Second"', expect=CLAIM)
    said = checkout.invoke("matrix", "--json", "out.json")
    assert said.code == 0, said.out
    assert "nothing to do: 3 cells known" in said.out
    page = (checkout.root / "reports" / "breaks.md").read_text()
    assert page.startswith("# Second")
    assert "not as claimed" not in page
    assert checkout.invoke("report").code == 0


def test_new_repro_appears_without_touching_other_files(checkout: Checkout, tmp_path: Path) -> None:
    script = tmp_path / "pasted.py"
    script.write_text('"""Fails in one version."""\nimport jax\nassert jax.__version__ != "1.2.0", "broken here"\n')
    said = checkout.invoke("new", str(script))
    assert said.code == 0, said.err
    code, found = cells(checkout)
    assert code == 1
    failed = next(cell for cell in found if cell["outcome"] == "error")
    assert failed["axes"]["jax"] == "1.2.0"
    assert "AssertionError: broken here" in failed["signature"]["title"]


def test_locks_fix_wheels_as_of_release_day(checkout: Checkout, index: FakeIndex) -> None:
    for version, day in (("2.0", "2025-01-05"), ("2.1", "2025-02-05")):
        index.add("numpy", version, {"numpy/__init__.py": ""}, uploaded=f"{day}T00:00:00Z")
    index.add("jax", "1.3.0", {"jax/__init__.py": ""}, requires=["numpy", "jaxlib"], uploaded="2025-01-20T00:00:00Z")
    text = (checkout.root / "matrix.toml").read_text().replace('"1.0.0", "1.1.0", "1.2.0"', '"1.3.0"')
    (checkout.root / "matrix.toml").write_text(text)
    checkout.repro("any", "import numpy, jax")
    code, _ = cells(checkout)
    assert code == 0
    (lock,) = (checkout.root / "containers" / "locks").glob("*.txt")
    assert "numpy==2.0 --hash=sha256:" in lock.read_text()
    assert "http" not in lock.read_text()


def test_impossible_environment_is_skipped_and_others_run(checkout: Checkout) -> None:
    text = (checkout.root / "matrix.toml").read_text().replace('"1.2.0"]', '"1.2.0", "9.9.9"]')
    (checkout.root / "matrix.toml").write_text(text)
    checkout.repro("any", "import jax")
    code, found = cells(checkout)
    assert code == 0
    gone = found[-1]
    assert gone["axes"]["jax"] == "9.9.9"
    assert gone["outcome"] == "skip"
    assert "9.9.9" in gone["reason"]
    assert [cell["outcome"] for cell in found[:-1]] == ["ok"] * 3


def test_gpu_cells_are_skipped_without_download(checkout: Checkout) -> None:
    if list(Path("/dev").glob("nvidia[0-9]")):
        pytest.skip("this host has a GPU")
    text = (checkout.root / "matrix.toml").read_text().replace('cuda   = ["none"]', 'cuda   = ["none", "12"]')
    (checkout.root / "matrix.toml").write_text(text)
    checkout.repro("needs_two", "import jax", targets='["gpu:2"]')
    code, found = cells(checkout)
    assert code == 3  # nothing was tried: 0 would be taken for a verdict
    assert {(cell["outcome"], cell["reason"]) for cell in found} == {("skip", "needs 2 NVIDIA GPUs, none here")}
    assert not (checkout.root / "containers" / "locks").exists() or not list(
        (checkout.root / "containers" / "locks").glob("*.txt")
    )


def test_wrong_input_gives_every_mistake_and_touches_nothing(checkout: Checkout) -> None:
    text = (checkout.root / "matrix.toml").read_text().replace("timeout", "timout").replace('"venv"', '"dokcer"')
    (checkout.root / "matrix.toml").write_text(text)
    checkout.repro("wrong", "", titel='"x"')
    said = checkout.invoke("matrix")
    assert said.code == 2
    assert "Traceback" not in said.err
    assert "timout" in said.err
    assert "timeout" in said.err
    assert "docker" in said.err
    assert sorted(path.name for path in checkout.root.iterdir()) == ["matrix.toml", "repros"]
    (checkout.root / "matrix.toml").write_text(text.replace("timout", "timeout").replace('"dokcer"', '"venv"'))
    said = checkout.invoke("matrix")
    assert said.code == 2
    assert "wrong.py:" in said.err
    assert "title" in said.err


def test_a_script_that_does_not_exist(checkout: Checkout) -> None:
    checkout.repro("there", "import jax")
    for args in (("new", "nowhere.py"), ("matrix", "--repro", "nowhere"), ("run", "nowhere", "--env", "*")):
        said = checkout.invoke(*args)
        assert said.code == 2, args
        assert "nowhere" in said.err
        assert "Traceback" not in said.err


def test_no_network_is_infrastructure_and_loses_nothing(checkout: Checkout) -> None:
    checkout.repro("any", "import jax")
    assert cells(checkout, "--env", "jax1.0.0*")[0] == 0
    code, found = cells(checkout, UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0")
    assert code == 3
    assert [cell["outcome"] for cell in found] == ["ok", "infra", "infra"]
    code, found = cells(checkout)
    assert code == 0
    assert [cell["outcome"] for cell in found] == ["ok"] * 3


def test_a_corrupt_wheel_is_infrastructure(checkout: Checkout, index: FakeIndex) -> None:
    checkout.repro("any", "import jax")
    bad = next(item for item in index.published if item.name == "jax" and item.version == "1.1.0")
    index.broken.add(bad.path.name)
    code, found = cells(checkout)
    assert code == 3
    assert [cell["outcome"] for cell in found] == ["ok", "infra", "ok"]
    assert bad.sha256[:12] in found[1]["reason"] or bad.path.name in found[1]["reason"]
    index.broken.clear()
    assert cells(checkout)[0] == 0


def test_a_truncated_wheel_in_the_store_is_never_used(checkout: Checkout, tmp_path: Path) -> None:
    checkout.repro("any", "import jax")
    assert checkout.invoke("fetch").code == 0
    (wheel,) = (tmp_path / "store").rglob("jax-1.1.0-*.whl")
    wheel.chmod(0o644)
    wheel.write_bytes(wheel.read_bytes()[:-20] + b"\0" * 20)
    code, found = cells(checkout)
    assert (code, found[1]["outcome"]) in ((0, "ok"), (3, "infra"))
    if code == 3:
        assert "jax-1.1.0" in found[1]["reason"]


def test_a_lock_that_does_not_match_is_refused(checkout: Checkout) -> None:
    checkout.repro("any", "import jax")
    assert checkout.invoke("lock").code == 0
    lock = next((checkout.root / "containers" / "locks").glob("jax1.1.0*.txt"))
    lock.write_text(lock.read_text().replace("jax==1.1.0", "jax==1.0.0"))
    said = checkout.invoke("matrix")
    assert said.code == 2
    assert lock.name in said.err
    assert "Traceback" not in said.err


def test_offline_uses_what_is_here_and_says_what_is_not(checkout: Checkout) -> None:
    checkout.repro("any", "import jax")
    assert cells(checkout, "--env", "jax1.0.0*")[0] == 0
    code, found = cells(checkout, "--offline", "--rerun", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple")
    assert code == 3
    assert [cell["outcome"] for cell in found] == ["ok", "infra", "infra"]


def test_a_dead_daemon_is_infrastructure(checkout: Checkout, tmp_path: Path) -> None:
    checkout.repro("any", "import jax")
    said = checkout.invoke("matrix", "--engine", "docker", DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
    assert said.code == 3
    assert "doctor" in said.err
    assert "Traceback" not in said.err


def test_auto_falls_back_to_venv_and_says_why(checkout: Checkout, tmp_path: Path) -> None:
    text = (checkout.root / "matrix.toml").read_text().replace('engine = "venv"', 'engine = "auto"')
    (checkout.root / "matrix.toml").write_text(text)
    checkout.repro("any", "import jax")
    nothing = {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock", "CONTAINERS_CONF": f"{tmp_path}/nothing.conf"}
    said = checkout.invoke("matrix", **nothing)
    assert said.code == 0, said.err
    assert "engine venv, as docker and podman cannot be used here" in said.err


def test_one_failing_cell_does_not_stop_the_others(checkout: Checkout) -> None:
    body = "import os, jax\nif jax.__version__ == '1.0.0': os.abort()\nprint('fine')"
    checkout.repro("dies", body)
    code, found = cells(checkout, "--jobs", "2")
    assert code == 1
    assert [(cell["outcome"], cell["signal"]) for cell in found] == [("crash", "SIGABRT"), ("ok", None), ("ok", None)]


def test_hang_is_a_hang(checkout: Checkout) -> None:
    checkout.repro("hangs", "import time\nprint('before', flush=True)\ntime.sleep(100)", timeout='"1s"')
    code, found = cells(checkout, "--env", "jax1.0.0*")
    assert code == 1
    assert found[0]["outcome"] == "hang"
    assert (checkout.root / found[0]["attempts"][0]["evidence"] / "stdout").read_text() == "before\n"


def test_witness_missing_is_inconclusive(checkout: Checkout) -> None:
    checkout.repro("proves", "import jax", witness='{ output = ["the trigger"] }')
    code, found = cells(checkout, "--env", "jax1.0.0*")
    assert found[0]["outcome"] == "inconclusive"
    assert "the trigger" in found[0]["reason"]
    assert code == 0


def test_run_streams_one_cell(checkout: Checkout) -> None:
    checkout.repro("says", "import sys\nprint('level is', sys.argv[2])", params="{ level = [1, 2] }")
    said = checkout.invoke("run", "says", "--env", "jax1.1.0*", "--param", "level=2")
    assert said.code == 0, said.err
    assert "level is 2" in said.out
    said = checkout.invoke("run", "says", "--env", "jax1.1.0*")
    assert said.code == 2
    assert "2 cells match" in said.err


def _living(marker: str) -> list[int]:
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (proc / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(proc.name))
        except OSError:
            continue
    return found


def _wait_for(path: Path, checkout: Checkout, deadline: float = 60) -> None:
    end = time.monotonic() + deadline
    while not list(checkout.root.rglob(path.name)):
        assert time.monotonic() < end, "the script never started"
        time.sleep(0.1)


SLOW = (
    "import pathlib, time, jax\n"
    "if jax.__version__ == '1.1.0':\n"
    "    pathlib.Path('started').touch()\n"
    "    time.sleep(60)\n"
)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_blow_in_the_middle_loses_nothing_and_leaves_nothing(checkout: Checkout, blow: signal.Signals) -> None:
    checkout.repro("slow_cell", SLOW, timeout='"90s"')
    tool = subprocess.Popen(
        checkout.command("matrix", "--jobs", "1"),
        cwd=checkout.root,
        env=checkout.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _wait_for(Path("started"), checkout)
    os.kill(tool.pid, blow)
    said, _ = tool.communicate(timeout=30)
    if blow is not signal.SIGKILL:
        assert tool.returncode == 130
        assert b"2 cells have no verdict yet: the run was interrupted" in said
        assert b"infrastructure" not in said
    end = time.monotonic() + 10
    while _living(str(checkout.root)) and time.monotonic() < end:
        time.sleep(0.1)
    assert _living(str(checkout.root)) == []
    started = {path.parent.name for path in (checkout.root / ".repromatrix" / "evidence").rglob("result.json")}
    assert started  # 1.0.0 was finished
    checkout.repro("slow_cell", SLOW, timeout='"90s"')
    code, found = cells(checkout, "--env", "jax1.0.0*")
    assert code == 0
    assert len(found[0]["attempts"]) == 1
    assert found[0]["attempts"][0]["number"] == 1


def test_a_script_that_changes_during_the_run_is_not_run_as_what_it_was(checkout: Checkout) -> None:
    path = checkout.repro("changes", "import pathlib\npathlib.Path(HERE).write_text('print(1)')\nprint('first')")
    path.write_text(path.read_text().replace("HERE", repr(str(path))))
    code, found = cells(checkout, "--jobs", "1")
    assert code == 3
    assert [cell["outcome"] for cell in found] == ["ok", "infra", "infra"]
    assert "was changed during the run" in found[1]["reason"]


def test_a_wrong_signature_rule_is_told_before_anything_runs(checkout: Checkout) -> None:
    checkout.repro("breaks", FAILS_IN_1_1)
    path = checkout.root / "matrix.toml"
    path.write_text(path.read_text() + '\n[[signature]]\nmatch = "/(/"\ntitle = "x"\n')
    said = checkout.invoke("matrix")
    assert said.code == 2
    assert "matrix.toml: [[signature]] match = '/(/'" in said.err
    assert not (checkout.root / ".repromatrix").exists()
