"""The second run that dumps the HLO: when it happens, what it leaves, and that it never touches the first verdict.

The scripts write dumps as XLA does, from real texts, where XLA_FLAGS asks for them; the last tests compile for real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from repromatrix.collected import hlo_text
from repromatrix.evidence.hlo_text import identity
from tests.conftest import ROOT, Checkout

DATA = ROOT / "tests" / "data" / "hlo"
BEFORE = DATA / "before_optimizations.jax-0.10.2.txt"
PASSES = DATA / "passlog-crash-0.10.2.txt"

COMPILES = f"""
import os, pathlib, shlex, sys
flags = shlex.split(os.environ.get("XLA_FLAGS", ""))
to = [flag.partition("=")[2] for flag in flags if flag.startswith("--xla_dump_to=")]
dumping = bool(to)
with open(os.environ["COUNT"], "a") as count:
    count.write("dumping\\n" if dumping else "plain\\n")
if dumping:
    text = pathlib.Path({str(BEFORE)!r}).read_text()
    folder = pathlib.Path(to[0])
    folder.mkdir()
    (folder / "module_0001.jit_f.before_optimizations.txt").write_text(text)
    (folder / "module_0001.jit_f.cpu_after_optimizations.txt").write_text(text.replace("tanh", "exponential"))
    if "--xla_dump_hlo_pass_re=.*" in flags:
        (folder / "module_0001.jit_f.0001.simplification.after_algsimp.before_dce.txt").write_text(text)
    lines = pathlib.Path({str(PASSES)!r}).read_text().splitlines(keepends=True)
    log = "".join(line for line in lines if not line.startswith("F"))
    sys.stderr.write(log.replace("jit_convert_element_type", "jit_f"))
"""
REFUSED = "F0000 00:00:1780000000.000001      77 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_own=1\n"
FAILS = COMPILES + "raise RuntimeError('INTERNAL: it fails')\n"


def write(checkout: Checkout, body: str, **metadata: str) -> Path:
    """A repro whose script notes each of its runs in the file that is returned."""
    count = checkout.root / "count"
    checkout.repro("compiles", body, env=f'{{ COUNT = "{count}" }}', jax='"==1.2.0"', **metadata)
    return count


def run(checkout: Checkout, *args: str, code: int | None = None) -> dict[str, Any]:
    said = checkout.invoke("matrix", "--json", "out.json", *args)
    path = checkout.root / "out.json"
    assert path.is_file(), said.err
    if code is not None:
        assert said.code == code, said.out + said.err
    (cell,) = json.loads(path.read_text())["cells"]
    return dict(cell)


def folder(checkout: Checkout, cell: dict[str, Any], attempt: int = 0) -> Path:
    return checkout.root / str(cell["attempts"][attempt]["evidence"])


def hlo(checkout: Checkout, cell: dict[str, Any], attempt: int = 0) -> dict[str, Any]:
    return dict(json.loads((folder(checkout, cell, attempt) / "hlo.json").read_text()))


def test_a_failure_is_explained_once_and_keeps_its_verdict(checkout: Checkout) -> None:
    count = write(checkout, FAILS, repeat="3")
    cell = run(checkout, "--jobs", "1")
    assert count.read_text().split() == ["plain", "dumping", "plain", "plain"]
    assert (cell["outcome"], cell["exit_status"]) == ("error", 1)
    assert [(folder(checkout, cell, n) / "hlo.json").exists() for n in range(3)] == [True, False, False]
    found = hlo(checkout, cell)
    assert (found["level"], found["source"], found["whole"], found["notes"]) == ("passes", "explain", True, [])
    (module,) = found["modules"]
    text = BEFORE.read_text()
    assert module["name"] == "jit_f"
    assert module["before"] == identity(text)
    assert module["after"] == identity(text.replace("tanh", "exponential"))
    assert [change[:2] for change in module["changes"]] == [["simplification", "algsimp"]]
    assert found["last"][1:] == ["HLO passes through layout assignment", "layout-assignment"]
    place = folder(checkout, cell)
    assert hlo_text(place, "module_0001.jit_f.before_optimizations.txt") == text
    assert not (place / "dump").exists()
    assert not (place / "explain" / "dump").exists()
    assert "hlo_pass_pipeline" not in (place / "stderr").read_text(), "the first run was not asked to log its passes"
    labels = {file["label"]: file["path"] for file in cell["attempts"][0]["files"]}
    assert labels["HLO"] == "hlo.json"
    assert labels["stderr of the second run"] == "explain/stderr"


def test_nothing_changes_when_it_is_graded_again(checkout: Checkout) -> None:
    write(checkout, COMPILES, repeat="2", witness='{ hlo = ["exponential"], passes = ["layout-assignment"] }')
    cell = run(checkout, code=0)
    assert cell["outcome"] == "ok"
    said = checkout.invoke("regrade", "--json", "-")
    assert said.code == 0
    assert run(checkout) == cell


@pytest.mark.parametrize(
    "body",
    [
        COMPILES + "import a_module_that_is_not_there",
        COMPILES + f"sys.stderr.write({REFUSED!r})\nos.abort()",
    ],
)
def test_what_needs_no_second_run_gets_none(checkout: Checkout, body: str) -> None:
    count = write(checkout, body)
    path = checkout.root / "repros" / "compiles.py"
    path.write_text(path.read_text().replace("{ COUNT", '{ XLA_FLAGS = "--xla_own=1", COUNT'))
    cell = run(checkout)
    assert count.read_text().split() == ["plain"]
    assert not (folder(checkout, cell) / "hlo.json").exists()


def test_a_hang_is_not_waited_for_twice(checkout: Checkout) -> None:
    count = write(checkout, COMPILES + "import time\ntime.sleep(60)", timeout='"2s"')
    assert run(checkout)["outcome"] == "hang"
    assert count.read_text().split() == ["plain"]


def test_off_is_off(checkout: Checkout) -> None:
    count = write(checkout, FAILS, hlo='"off"')
    assert run(checkout)["outcome"] == "error"
    assert count.read_text().split() == ["plain"]


def test_an_explain_run_that_ends_well_is_a_note(checkout: Checkout) -> None:
    write(checkout, COMPILES + "if not dumping:\n    raise RuntimeError('INTERNAL: it fails')")
    cell = run(checkout)
    assert (cell["outcome"], cell["exit_status"]) == ("error", 1)
    found = hlo(checkout, cell)
    assert found["notes"] == ["the second run ended otherwise: ok (status 0), the first: error (status 1)"]
    assert (found["whole"], found["last"]) == (False, None)


def test_another_failure_of_the_explain_run_is_a_note(checkout: Checkout) -> None:
    write(checkout, COMPILES + "raise RuntimeError('INTERNAL: it fails' if dumping else 'INTERNAL: in another way')")
    cell = run(checkout)
    assert "in another way" in cell["signature"]["title"]
    (note,) = hlo(checkout, cell)["notes"]
    assert note.startswith('the second run failed otherwise: "')


def test_an_unknown_dump_flag_is_left_out_and_said(checkout: Checkout) -> None:
    refuses = (
        "import os\n"
        "if '--xla_dump_disable_metadata' in os.environ.get('XLA_FLAGS', ''):\n"
        "    os.write(2, b'Unknown flag in XLA_FLAGS: --xla_dump_disable_metadata\\n')\n"
        "    os.abort()\n"
    )
    count = write(checkout, refuses + FAILS)
    cell = run(checkout)
    assert cell["outcome"] == "error"
    assert count.read_text().split() == ["plain", "dumping"]
    found = hlo(checkout, cell)
    assert found["notes"] == ["this version does not know --xla_dump_disable_metadata"]
    assert [module["name"] for module in found["modules"]] == ["jit_f"]


def test_a_script_that_compiles_nothing(checkout: Checkout) -> None:
    write(checkout, "import os\nopen(os.environ['COUNT'], 'a').write('run\\n')\nraise RuntimeError('before all')")
    cell = run(checkout)
    found = hlo(checkout, cell)
    assert (found["modules"], found["notes"]) == ([], ["no module was compiled"])


def test_a_script_with_flags_of_its_own(checkout: Checkout) -> None:
    own = "import os, sys\nos.environ['XLA_FLAGS'] = '--xla_own=1'\n"
    write(checkout, own + f"sys.stderr.write(open({str(PASSES)!r}).read())\nraise RuntimeError('it fails')")
    assert "does the script set XLA_FLAGS itself?" in hlo(checkout, run(checkout))["notes"][-1]


def test_dumps_that_the_script_hides_are_not_followed(checkout: Checkout, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "module_0001.jit_f.before_optimizations.txt").write_text("HloModule f")
    hides = (
        "import os, pathlib\n"
        f"pathlib.Path('../hlo').symlink_to({str(secret)!r})\n"
        f"pathlib.Path('../dump').symlink_to({str(secret)!r})\n"
        "pathlib.Path('../hlo.json').mkdir()\n"
        "raise RuntimeError('it fails')"
    )
    write(checkout, hides)
    cell = run(checkout)
    assert cell["outcome"] == "error"
    assert hlo(checkout, cell)["modules"] == []
    assert [path.name for path in secret.iterdir()] == ["module_0001.jit_f.before_optimizations.txt"]


# --- witness and claims ---------------------------------------------------------------------------------------------


def test_a_witness_seen_in_the_hlo_holds_for_every_attempt(checkout: Checkout) -> None:
    count = write(checkout, COMPILES, repeat="3", witness='{ hlo = ["exponential"] }')
    cell = run(checkout, code=0)
    assert sorted(count.read_text().split()) == ["dumping", "plain", "plain", "plain"]
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["ok"] * 3


def test_a_witness_that_is_not_in_the_optimised_hlo_is_inconclusive(checkout: Checkout) -> None:
    write(checkout, COMPILES, witness='{ hlo = ["tanh"] }', expect='[[expect]]\noutcome = "ok"')
    cell = run(checkout, code=0)
    assert (cell["outcome"], cell["as_expected"]) == ("inconclusive", None)
    assert cell["reason"] == "exit 0, but 1 module after optimisation without 'tanh'", "it is there before it alone"


def test_a_witness_without_hlo_is_inconclusive(checkout: Checkout) -> None:
    write(checkout, "import os\nopen(os.environ['COUNT'], 'a').write('run\\n')", witness='{ hlo = ["while"] }')
    cell = run(checkout, code=0)
    assert cell["outcome"] == "inconclusive"
    assert "no optimised HLO was collected (no module was compiled)" in cell["reason"]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        (
            "sys.stderr.write(log.replace('jit_convert_element_type', 'jit_g') if dumping else '')\n",
            "passes ran on jit_g without dumps: does the script change its folder, or set dump flags?",
        ),
        (
            "[path.unlink() for path in folder.glob('*.after_*')] if dumping else None\n",
            "no pass of jit_f was dumped: does the script set --xla_dump_hlo_pass_re?",
        ),
    ],
)
def test_what_was_not_dumped_proves_nothing_of_a_pass(checkout: Checkout, more: str, note: str) -> None:
    write(checkout, COMPILES + more, expect='[[expect]]\noutcome = "ok"\nunchanged = ["dce"]')
    cell = run(checkout, code=0)
    assert (cell["outcome"], cell["as_expected"]) == ("ok", None)
    assert note in cell["reason"]
    assert hlo(checkout, cell)["whole"] is False


def test_the_second_run_bears_no_witness_for_a_first_that_it_does_not_repeat(checkout: Checkout) -> None:
    write(checkout, COMPILES + "sys.exit(3 * dumping)", witness='{ hlo = ["fft"] }')
    cell = run(checkout, code=0)
    assert cell["outcome"] == "inconclusive"
    assert "the second run" in cell["reason"]


def test_claims_on_what_was_found(checkout: Checkout) -> None:
    claims = 'outcome = "ok"\nchanged = ["algsimp"]\nunchanged = ["d*"]\nmetrics = { n = ">= 3" }'
    count = write(checkout, COMPILES + "print('REPRO_METRIC n=3')", expect=f"[[expect]]\n{claims}")
    cell = run(checkout, code=0)
    assert (cell["as_expected"], cell["reason"]) == (True, "")
    write(checkout, COMPILES + "print('REPRO_METRIC n=3')", expect=f"[[expect]]\n{claims.replace('d*', 'alg*')}")
    cell = run(checkout, code=1)
    words = "claimed that alg* changed no module, algsimp did"
    assert (cell["outcome"], cell["as_expected"], cell["reason"]) == ("ok", False, words)
    assert count.read_text().split() == ["plain", "dumping"], "another claim needs no other run"


# --- interruption ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "kept"), [("failures", 1), ("passes", 0)])
def test_ctrl_c_in_the_second_run(checkout: Checkout, level: str, kept: int) -> None:
    """A failure counts without its HLO; what was asked to have it runs again."""
    with (checkout.root / "matrix.toml").open("a") as file:
        file.write(f'hlo = "{level}"\n')
    count = write(
        checkout, COMPILES + "import time\ntime.sleep(60 * dumping)\nraise RuntimeError('it fails')", timeout='"90s"'
    )
    tool = subprocess.Popen(
        checkout.command("matrix"),
        cwd=checkout.root,
        env=checkout.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not count.exists() or "dumping" not in count.read_text():
        assert time.monotonic() < end, "there was no second run"
        time.sleep(0.05)
    os.kill(tool.pid, signal.SIGINT)
    assert tool.wait(timeout=30) == 130
    said = checkout.invoke("report", "--json", "out.json")
    assert said.code in (0, 1, 3), said.err
    cells = json.loads((checkout.root / "out.json").read_text())["cells"]
    assert [len(one["attempts"]) for one in cells if one["outcome"] == "error"] == [1] * kept


# --- real wheels ----------------------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize(
    ("jax", "blamed"), [("0.6.0", "flatten-call-graph"), ("0.10.2", "layout-assignment")], ids=["0.6.0", "0.10.2"]
)
def test_the_last_pass_is_the_one_that_the_failure_names(tmp_path: Path, jax: str, blamed: str) -> None:
    for name in ("matrix.toml", "containers", "repros"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    shutil.rmtree(tmp_path / "repros")
    (tmp_path / "repros").mkdir()
    shutil.copy(ROOT / "repros" / "hlo_pass_crash.py", tmp_path / "repros")
    checkout = Checkout(tmp_path, dict(os.environ))
    said = checkout.invoke("matrix", "--engine", "venv", "--env", f"jax{jax}-cpu-*", "--json", "out.json")
    assert said.code == 0, said.out + said.err
    crash, well = sorted(json.loads((tmp_path / "out.json").read_text())["cells"], key=lambda one: str(one["outcome"]))
    assert (crash["outcome"], well["outcome"]) == ("crash", "ok")
    assert f"Pass '{blamed}'" in crash["signature"]["title"]
    found = hlo(checkout, crash)
    assert found["last"] == ["jit_iota", "HLO passes through layout assignment", blamed]
    assert (found["notes"], found["whole"], [one["name"] for one in found["modules"]]) == ([], True, ["jit_iota"])
    assert found["modules"][0]["before"] != ""
    assert found["modules"][0]["after"] == "", "it never came to the end of the optimisation"
    assert not (folder(checkout, well) / "hlo.json").exists()
