"""The repros that ship and the matrix they run in: they load, claim something of every cell, and are plain scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from repromatrix.spec.cells import Expansion, expand, select
from repromatrix.spec.host import anywhere
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Cell, Expect, Matrix, Outcome, Repro
from repromatrix.spec.repro import load_repros

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "repros").glob("*.py"))
MATRIX: Matrix = load_matrix(ROOT / "matrix.toml")
REPROS: dict[str, Repro] = {repro.name: repro for repro in load_repros(ROOT / "repros")}
CELLS: Expansion = expand(MATRIX, REPROS.values())
EVERYWHERE: Expansion = expand(anywhere(MATRIX), REPROS.values())
"""On a host that has CUDA's libraries, too."""

UNREPORTED = {
    "hlo_pass_crash",  # two debugging flags of XLA; nobody filed what they find
    "deviceless_dot_bf16_x9",  # found here, without a GPU
}


def expected(repro: str, jax: str, target: str = "", **params: str | int) -> Expect:
    """The claim of one cell; the target may be left out where the repro has one for this version."""
    cells = [
        cell
        for cell in CELLS.cells
        if cell.repro.name == repro and cell.environment.jax == jax and dict(cell.params) == params
        if target in ("", cell.target)
    ]
    assert len(cells) == 1, [cell.id for cell in cells]
    assert cells[0].expect is not None
    return cells[0].expect


def claim(repro: str, jax: str, target: str = "", **params: str | int) -> str:
    """Outcomes claimed of one cell, joined with `|`."""
    return "|".join(expected(repro, jax, target, **params).outcome)


def test_every_script_is_a_repro() -> None:
    assert {path.stem for path in SCRIPTS} == set(REPROS)
    assert len(REPROS) >= 23


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_says_what_goes_wrong_and_where_it_was_reported(repro: Repro) -> None:
    assert repro.title
    assert bool(repro.issue) != (repro.name in UNREPORTED)
    assert repro.timeout is not None
    assert repro.timeout <= 300, "the matrix shall take minutes"


def test_every_cell_has_a_claim() -> None:
    every: list[Cell] = [*EVERYWHERE.cells, *(each.cell for each in EVERYWHERE.excluded)]
    assert [cell.id for cell in every if cell.expect is None] == []


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_every_claim_can_count(repro: Repro) -> None:
    """A claim that no cell meets is a mistake in a condition, or stands behind one that takes all."""
    used = {cell.expect for cell in EVERYWHERE.cells if cell.repro == repro}
    assert [each.line for each in repro.expect if each not in used] == []


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_an_ok_needs_a_witness_that_only_a_finished_script_leaves(repro: Repro) -> None:
    if repro.probe or not any(Outcome.OK in each.outcome for each in repro.expect):
        return
    assert repro.witness is not None
    assert repro.witness.output or repro.witness.hlo
    block, _, body = repro.source.partition("# ///\n")
    assert "witness" in block
    compiled = (ROOT / "containers" / "compile.py").read_text()
    for wanted in repro.witness.output:
        words = re.findall(r"[A-Za-z]+", wanted)
        assert all(word in body for word in words), f"{wanted!r} is printed nowhere"
        if any(cell.described for cell in CELLS.cells if cell.repro == repro):
            assert f'"{wanted}"' in compiled, f"{wanted!r} is not printed where the script is only compiled"


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_an_error_is_claimed_with_its_signature(repro: Repro) -> None:
    """Exit 1 is also what a script too new for a version, a lost device and a typing error end with."""
    errors = [each for each in repro.expect if Outcome.ERROR in each.outcome]
    assert [each.line for each in errors if not each.signature] == []


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_is_a_plain_script(repro: Repro) -> None:
    compile(repro.source, repro.path.name, "exec")
    body = re.sub(r"(?ms)^# /// repro$.*?^# ///$", "", repro.source)
    compile(body, repro.path.name, "exec")
    assert "repromatrix" not in body
    assert not re.search(r"(?<![\w.:/])/(?:home|root|tmp|usr|var|work|opt|etc)\b", repro.source), "an absolute path"


@pytest.mark.parametrize("repro", REPROS.values(), ids=list(REPROS))
def test_needs_no_tool_for_its_variables_and_parameters(repro: Repro) -> None:
    for name, _ in repro.params:
        assert f'"--{name}"' in repro.source
        assert f'"REPRO_{name.upper()}"' in repro.source
    body = repro.source.rpartition("# ///")[2]
    for name, _ in repro.env:
        assert name in body, f"{name} is set by the metadata alone, so plain python runs something else"


@pytest.mark.parametrize("name", sorted(name for name, repro in REPROS.items() if repro.params))
def test_help_lists_the_parameters(name: str) -> None:
    """Runs without jax: arguments are read before anything heavy is imported."""
    script = REPROS[name].path
    shown = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False, timeout=30)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(f"--{param}" in shown.stdout for param, _ in REPROS[name].params)


def test_hlo_pass_crash_claims_the_measured_table() -> None:
    noop = {jax: claim("hlo_pass_crash", jax, flag="noop_change") for jax in dict(MATRIX.axes)["jax"]}
    silent = {jax: claim("hlo_pass_crash", jax, flag="silent_hlo_change") for jax in dict(MATRIX.axes)["jax"]}
    old, middle = ["0.4.30", "0.5.3"], ["0.6.1", "0.6.2", "0.7.0"]
    assert [jax for jax, outcome in noop.items() if outcome == "skip"] == old
    assert [jax for jax, outcome in noop.items() if outcome == "ok"] == middle
    assert {noop[jax] for jax in noop if jax not in (*old, *middle)} == {"crash"}
    assert [jax for jax, outcome in silent.items() if outcome == "skip"] == old
    assert [jax for jax, outcome in silent.items() if outcome == "crash"] == middle
    assert {silent[jax] for jax in silent if jax not in (*old, *middle)} == {"ok"}


@pytest.mark.parametrize(
    ("flag", "accepted"),
    [
        ("xla_gpu_enable_pipelined_collectives", ["0.4.30", "0.4.31", "0.4.34", "0.4.38", "0.5.3"]),
        ("xla_gpu_run_post_layout_collective_pipeliner", ["0.4.31", "0.4.34"]),
    ],
)
def test_flag_acceptance_claims_the_measured_table(flag: str, accepted: list[str]) -> None:
    repro = REPROS["xla_flag_acceptance"]
    assert repro.jax is not None
    claims = {jax: claim(repro.name, jax, flag=flag) for jax in repro.jax.values}
    assert [jax for jax, outcome in claims.items() if outcome == "ok"] == accepted
    assert {outcome for jax, outcome in claims.items() if jax not in accepted} == {"error"}
    known = {claim(repro.name, jax, flag="xla_gpu_enable_pipelined_all_reduce") for jax in repro.jax.values}
    assert known == {"ok"}


def test_the_two_gpu_reports_run_on_gpus_and_are_compiled_without() -> None:
    places = {
        name: {(cell.target, cell.environment.cuda, cell.environment.jax) for cell in CELLS.cells
               if cell.repro.name == name}
        for name in ("windowed_einsum", "collective_pipeliner")
    }  # fmt: skip
    on_gpus = {(f"gpu:{count}", "12", jax) for count in (2, 4, 8) for jax in ("0.10.1", "0.10.2")}
    compiled = {("h100:8", "12-local", jax) for jax in ("0.6.2", "0.8.0", "0.10.0", "0.10.1", "0.10.2")}
    assert places == {
        "windowed_einsum": on_gpus | compiled,
        "collective_pipeliner": on_gpus | compiled | {("h100:8", "12-local", "0.4.38")},
    }


EIGHT = ("windowed_einsum", "windowed_einsum_chain", "windowed_einsum_table", "collective_pipeliner")
"""What one `invoke matrix` runs on a host with eight GPUs and CUDA 13: docs/eight-gpus.md."""

REPORTED = [
    *("8192x8192x8192", "8192x8192x16384", "16384x8192x8192", "16384x16384x16384", "4096x8192x4096", "4096x8192x8192"),
    *("8192x4096x8192", "8192x16384x8192", "8192x32768x8192", "8192x65536x8192"),
]
"""The rows of the report's boundary table: M, K, N."""


@pytest.mark.parametrize("name", EIGHT)
def test_all_sizes_of_a_host_are_asked_for(name: str) -> None:
    versions = ("0.8.0", "0.10.0", "0.10.1", "0.10.2")
    asked = [
        (cell.environment.jax, cell.target)
        for cell in EVERYWHERE.cells
        if cell.repro.name == name and cell.environment.id.endswith("-cuda13local-py312")
    ]
    assert set(asked) == {(jax, f"gpu:{count}") for jax in versions for count in (2, 4, 8)}


def test_the_boundary_table_claims_what_the_report_does_of_each_cell() -> None:
    cells = [
        cell
        for cell in EVERYWHERE.cells
        if cell.repro.name == "windowed_einsum_table" and cell.environment.jax == "0.10.2"
    ]
    sizes = dict(REPROS["windowed_einsum_table"].params)["size"]
    assert set(REPORTED) <= set(sizes)
    assert len(cells) == 3 * len(sizes)
    claims = {}
    for cell in cells:
        m, _, n = (int(part) for part in str(dict(cell.params)["size"]).split("x"))
        shards = int(cell.target.partition(":")[2])
        assert cell.expect is not None
        assert cell.expect.outcome == ((Outcome.ERROR,) if max(m, n) / shards > 1024 else (Outcome.OK,)), cell.id
        claims[cell.target, dict(cell.params)["size"]] = cell.expect.outcome[0]
    failing = [size for size in REPORTED if claims["gpu:8", size] is Outcome.ERROR]
    assert failing == ["8192x8192x16384", "16384x8192x8192", "16384x16384x16384"]


@pytest.mark.parametrize("per_dev", [1024, 2048])
def test_windowed_einsum_claims_nothing_of_a_compilation_without_the_loop(per_dev: int) -> None:
    failing = per_dev == 2048
    assert claim("windowed_einsum", "0.10.1", "gpu:2", per_dev=per_dev) == "ok"
    assert claim("windowed_einsum", "0.10.2", "gpu:2", per_dev=per_dev) == ("error" if failing else "ok")
    assert claim("windowed_einsum", "0.6.2", "h100:8", per_dev=per_dev) == "ok"
    later = [
        claim("windowed_einsum", jax, "h100:8", per_dev=per_dev) for jax in ("0.8.0", "0.10.0", "0.10.1", "0.10.2")
    ]
    assert later == ["inconclusive"] * 4


@pytest.mark.parametrize("target", ["gpu:2", "h100:8"])
def test_the_collective_pipeliner_claims_what_each_model_gives_it_to_do(target: str) -> None:
    forward, backward = "collective-pipeliner-forward", "collective-pipeliner-backward"
    claims = {model: expected("collective_pipeliner", "0.10.2", target, model=model)
              for model in ("tp_mlp", "dp_grad", "fsdp_grad")}  # fmt: skip
    assert {model: (each.changed, each.unchanged) for model, each in claims.items()} == {
        "tp_mlp": ((), ("collective-pipeliner-*",)),
        "dp_grad": ((forward,), (backward,)),
        "fsdp_grad": ((forward, backward), ()),
    }
    assert {each.outcome for each in claims.values()} == {(Outcome.OK,)}


def test_the_default_selection_is_small_and_telling() -> None:
    chosen = select(CELLS, default=MATRIX.run.default)
    environments = {cell.environment for cell in chosen.cells if cell.target.startswith("cpu")}
    assert len(environments) <= 6, "each is about 140 MB to download"
    assert len({cell.environment for cell in chosen.cells if cell.described}) <= 2, "each adds 180 MB to its CPU wheels"
    assert all(any(fnmatchcase(each.id, glob) for glob in MATRIX.run.default) for each in environments)
    claimed = {outcome for cell in chosen.cells if cell.expect for outcome in cell.expect.outcome}
    assert claimed >= {Outcome.OK, Outcome.ERROR, Outcome.CRASH, Outcome.HANG, Outcome.SKIP}


def test_targets_are_described_by_files_that_exist() -> None:
    described = {target.name: target.describe for target in MATRIX.targets if target.describe}
    assert set(described) == {"h100:8", "h200:2"}
    for name, path in described.items():
        text = (ROOT / path).read_text()
        assert 'platform_name: "CUDA"' in text
        assert f"NVIDIA {name.partition(':')[0].upper()}" in text


LOWER = """
import importlib.util, json, sys
import jax
spec = importlib.util.spec_from_file_location("script", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
assert len(jax.devices()) == 8
jitted, args = script.program(jax.devices(), **json.loads(sys.argv[2]))
text = jitted.lower(*args).compile().as_text()
print(json.dumps([word for word in ("dot", "while", "all-gather", "all-reduce", "num_partitions=8") if word in text]))
"""


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "params", "found"),
    [
        ("windowed_einsum", {"per_dev": 64}, ["dot", "all-gather", "num_partitions=8"]),
        ("collective_pipeliner", {"model": "tp_mlp", "width": 64}, ["while", "all-reduce", "num_partitions=8"]),
        ("collective_pipeliner", {"model": "dp_grad", "width": 64}, ["while", "all-reduce", "num_partitions=8"]),
        ("collective_pipeliner", {"model": "fsdp_grad", "width": 64}, ["while", "all-gather", "num_partitions=8"]),
    ],
)
def test_program_compiles_for_eight_devices(script: str, params: dict[str, str | int], found: list[str]) -> None:
    """On virtual CPU devices: the partitioner gives the collectives that the GPU reports are about."""
    uv = shutil.which("uv")
    assert uv is not None
    compiled = subprocess.run(
        [
            *(uv, "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable, "--with", "jax==0.10.1"),
            *("python", "-c", LOWER, str(ROOT / "repros" / f"{script}.py"), json.dumps(params)),
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    assert set(found) <= set(json.loads(compiled.stdout.splitlines()[-1]))
