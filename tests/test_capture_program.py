"""`containers/capture.py`: what can be tested where there is no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

CAPTURE = ROOT / "containers" / "capture.py"
DUMPED = ROOT / "tests" / "data" / "hlo" / "gpu_target_config-h100.jax-0.10.2.pbtxt"
"""What 0.10.2 dumped when it compiled for containers/targets/h100.txtpb; 0.4.38 refuses to read it."""


@pytest.fixture(scope="module")
def capture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capture", CAPTURE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_comes_back_without_what_older_versions_refuse(capture: ModuleType) -> None:
    kept, left_out = capture.portable(DUMPED.read_text())
    known = (ROOT / "containers" / "targets" / "h100.txtpb").read_text()
    assert kept.splitlines() == [line for line in known.splitlines() if line.strip() != "patch: 0"]
    assert left_out == [
        "gpu_device_info.cuda_compute_capability.feature_extension",
        "gpu_device_info.dnn_version",
        "gpu_device_info.name",
        "runtime_version",
    ]
    assert capture.portable(kept) == (kept, [])


def test_an_unknown_message_goes_with_all_that_is_in_it(capture: ModuleType) -> None:
    text = 'new {\n  inner {\n    core_count: 1\n  }\n}\nplatform_name: "CUDA"\n'
    assert capture.portable(text) == ('platform_name: "CUDA"\n', ["new"])


def test_the_dumped_target_is_found(capture: ModuleType, tmp_path: Path) -> None:
    assert capture.described(str(tmp_path)) == ""
    (tmp_path / "module_0001.jit_f.before_optimizations.txt").write_text("HloModule jit_f")
    (tmp_path / "module_0001.jit_f.gpu_target_config.pbtxt").write_text("found")
    assert capture.described(str(tmp_path)) == "found"


def run(*words: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(CAPTURE), *words], cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_where_jax_is_not_installed_nothing_is_written(tmp_path: Path) -> None:
    status, said = run("out.txtpb", cwd=tmp_path)
    assert status == 1
    assert "No module named 'jax'" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [(), ("out.txtpb", "script.py"), ("out.txtpb", "--autotune", "a.txt"), ("o", "--autotune", "a.pb", "s.py")]
)
def test_wrong_words_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(*words, cwd=tmp_path)[0] == 2


def test_the_words_of_the_script_are_its_own(tmp_path: Path) -> None:
    status, said = run("out.txtpb", "--autotune", "a.txt", "script.py", "--size", "4", cwd=tmp_path)
    assert status == 1
    assert "No module named 'jax'" in said


def test_only_results_that_a_good_run_left_count(capture: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results.txt"
    script = tmp_path / "script.py"
    start = "import os, sys\npath = os.environ['XLA_FLAGS'].split('=')[-1]\n"
    script.write_text(start + "open(path, 'w').write('version: 3\\nresults {\\n}\\nresults {\\n}\\n')")
    assert capture.autotune(str(results), [str(script)]) == 0
    assert results.read_text().count("results {") == 2
    script.write_text(start + "open(path, 'w').write('entries {\\n}\\n')")
    assert capture.autotune(str(results), [str(script)]) == 0, "the form of 0.11.2"
    script.write_text(start + "open(path, 'w').write('version: 3\\n')")
    assert capture.autotune(str(results), [str(script)]) == 1, "nothing was autotuned"
    script.write_text(start + "open(path, 'w').write('results {\\n}\\n'); sys.exit(3)")
    assert capture.autotune(str(results), [str(script)]) == 1
