"""From files to cells: sizes, order, overrides, excludes, variables, claims, selection."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec import deviceless
from repromatrix.spec.cells import Expansion, environments, expand, in_environment, select
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Cell, Described, Environment, Matrix, Repro
from repromatrix.spec.repro import load_repro, load_repros

AXES = """\
[matrix]
jax = ["0.4.38", "0.8.0", "0.10.2"]
cuda = ["none", "12", "13-local"]
python = ["3.11", "3.12"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repros").mkdir()


def matrix(text: str = AXES) -> Matrix:
    Path("matrix.toml").write_text(text)
    return load_matrix(Path("matrix.toml"))


PROGRAM = "def program(devices, **params): ...\n"


def repro(metadata: str = "", name: str = "bug", body: str = PROGRAM) -> Repro:
    block = "".join(f"# {line}\n" for line in metadata.splitlines())
    path = Path(f"repros/{name}.py")
    path.write_text(f"# /// repro\n{block}# ///\n{body}")
    return load_repro(path)


def reasons(expansion: Expansion) -> Counter[str]:
    return Counter(each.reason for each in expansion.excluded)


def ids(expansion: Expansion) -> list[str]:
    return [cell.id for cell in expansion.cells]


def env(cell: Cell) -> dict[str, str]:
    return dict(cell.env)


CPU = "a cpu target runs with the CPU wheels alone (cuda = none)"
DESCRIBED = "a target without its device is compiled with the plugin alone (cuda = 12-local, 13-local)"
LOCAL = (
    "cuda 13-local brings no CUDA libraries: a GPU needs cuda = 13, "
    "or [targets.gpu] cuda_libraries for those of the host"
)


def test_a_target_runs_in_the_environments_made_for_it() -> None:
    Path("h100.txtpb").write_text("gpu")
    text = AXES + '[targets.h100]\ndescribe = "h100.txtpb"\n'
    expansion = expand(matrix(text), [repro('targets = ["cpu", "cpu:8", "gpu", "gpu:2", "h100:8"]')])
    assert len(expansion.cells) + len(expansion.excluded) == 3 * 3 * 2 * 5
    assert Counter((cell.environment.cuda, cell.target) for cell in expansion.cells) == {
        ("none", "cpu"): 6,
        ("none", "cpu:8"): 6,
        ("12", "gpu"): 6,
        ("12", "gpu:2"): 6,
        ("13-local", "h100:8"): 6,
    }
    assert reasons(expansion) == {CPU: 24, "CPU wheels have no GPU": 12, DESCRIBED: 12, LOCAL: 12}


def test_the_plugin_alone_runs_on_a_gpu_where_the_hosts_libraries_are_named() -> None:
    for name, targets in (("gpu", {"gpu", "gpu:2"}), ('"gpu:2"', {"gpu:2"})):
        text = f'{AXES}[targets.{name}]\ncuda_libraries = "/usr/lib/cuda"\n'
        cells = expand(matrix(text), [repro('targets = ["gpu", "gpu:2"]\ncuda = ["13-local"]')]).cells
        assert {cell.target for cell in cells} == targets


H100 = """\
[matrix]
jax = ["0.10.2"]
python = ["3.11"]
[targets."h100:8"]
describe = "h100.txtpb"
"""


def test_real_and_described_gpus_stand_side_by_side() -> None:
    Path("h100.txtpb").write_text("gpu")
    expansion = expand(matrix(H100), [repro('targets = ["gpu:2", "h100:8"]\ncuda = ["12", "12-local"]')])
    assert ids(expansion) == ["bug@jax0.10.2-cuda12-py311@gpu:2", "bug@jax0.10.2-cuda12local-py311@h100:8"]
    assert [(each.cell.id, each.reason) for each in expansion.excluded] == [
        ("bug@jax0.10.2-cuda12-py311@h100:8", DESCRIBED),
        ("bug@jax0.10.2-cuda12local-py311@gpu:2", LOCAL.replace("13", "12")),
    ]


def test_a_described_gpu_brings_its_description_topology_and_variables(tmp_path: Path) -> None:
    Path("h100.txtpb").write_text("gpu")
    text = H100 + 'topology = "2x1x4"\n[targets.h200]\ndescribe = "h100.txtpb"\nautotune = "tuned.txtpb"\n'
    Path("tuned.txtpb").write_text("results")
    metadata = """\
targets = ["h100:8", "h200:2"]
cuda = ["12-local"]
env = { JAX_PLATFORMS = "cuda", JAX_SKIP_CUDA_CONSTRAINTS_CHECK = "0", XLA_FLAGS = "--own={n}" }
params = { n = [1] }
"""
    sized, any_size = expand(matrix(text), [repro(metadata)]).cells
    gpu = hashlib.sha256(b"gpu").hexdigest()
    assert sized.described == Described(tmp_path / "h100.txtpb", gpu, "2x1x4")
    assert env(sized) == {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "0",
        "XLA_FLAGS": "--own=1 --xla_gpu_autotune_level=0",
        "REPRO_N": "1",
    }
    tuned = hashlib.sha256(b"results").hexdigest()
    assert any_size.described == Described(tmp_path / "h100.txtpb", gpu, "1x1x2", tmp_path / "tuned.txtpb", tuned)
    assert any_size.described.autotune_name == "autotune_results.txt"
    assert replace(any_size.described, autotune=Path("tuned.pb")).autotune_name == "autotune_results.pb"
    assert (
        env(any_size)["XLA_FLAGS"]
        == "--own=1 --xla_gpu_autotune_level=0 --xla_gpu_load_autotune_results_from=autotune_results.txt"
    )
    plain = expand(matrix(H100), [repro('targets = ["h100:8"]\ncuda = ["12-local"]')]).cells[0]
    assert env(plain) == dict(deviceless.variables())
    assert {cell.described for cell in expand(matrix(), [repro('targets = ["cpu", "gpu"]')]).cells} == {None}


def test_a_probe_looks_into_the_wheels_of_every_environment() -> None:
    text = '[matrix]\njax = ["0.10.2"]\ncuda = ["none", "12", "12-local"]\npython = ["3.11"]\n'
    probe = repro('probe = true\nsymbols = ["A"]\n[[expect]]\nwhen = \'cuda == "none"\'\noutcome = "ok"', body="")
    expansion = expand(matrix(text + '[run]\nhlo = "text"'), [probe])
    assert ids(expansion) == [
        "bug@jax0.10.2-cpu-py311@wheels",
        "bug@jax0.10.2-cuda12-py311@wheels",
        "bug@jax0.10.2-cuda12local-py311@wheels",
    ]
    assert expansion.excluded == ()
    assert [cell.expect is not None for cell in expansion.cells] == [True, False, False]
    assert {cell.env for cell in expansion.cells} == {(("JAX_PLATFORMS", "cpu"),)}
    assert {cell.hlo for cell in expansion.cells} == {"off"}


CLAIM = '[[expect]]\noutcome = "ok"\n'


@pytest.mark.parametrize(
    ("run", "metadata", "cpu", "described"),
    [
        ("failures", "", "failures", "passes"),
        ("off", "", "off", "off"),
        ("text", "", "text", "text"),
        ("passes", 'hlo = "off"', "off", "off"),
        ("off", 'hlo = "text"', "text", "text"),
        ("failures", 'witness = { hlo = ["while"] }', "text", "text"),
        ("off", 'witness = { passes = ["dce"] }', "text", "text"),
        ("passes", 'witness = { hlo = ["while"] }', "passes", "passes"),
        ("failures", 'witness = { output = ["done"] }', "failures", "passes"),
        ("off", CLAIM + 'changed = ["dce"]', "passes", "passes"),
        ("text", CLAIM + 'unchanged = ["dce"]', "passes", "passes"),
        ("off", CLAIM + "metrics = { x = 1 }", "off", "off"),
    ],
)
def test_what_is_collected_of_the_hlo(run: str, metadata: str, cpu: str, described: str) -> None:
    Path("h100.txtpb").write_text("gpu")
    both = 'targets = ["cpu", "h100:8"]\ncuda = ["none", "12-local"]\n'
    cells = expand(matrix(f'{H100}[run]\nhlo = "{run}"\n'), [repro(both + metadata)]).cells
    assert [(cell.target, cell.hlo) for cell in cells] == [("cpu", cpu), ("h100:8", described)]


def test_order_is_repro_then_environment_then_target_then_parameters() -> None:
    text = '[matrix]\npython = ["3.12", "3.11"]\njax = ["0.10.2", "0.8.0"]\n'
    one = repro('targets = ["cpu:2", "cpu"]\nparams = { b = [2, 1], a = [true] }', "z")
    expansion = expand(matrix(text), [one, repro(name="y")])
    assert ids(expansion) == [
        "y@jax0.10.2-cpu-py312@cpu",
        "y@jax0.8.0-cpu-py312@cpu",
        "y@jax0.10.2-cpu-py311@cpu",
        "y@jax0.8.0-cpu-py311@cpu",
        *(
            f"z@{environment}@{target}@b={b}@a=true"
            for environment in (
                "jax0.10.2-cpu-py312",
                "jax0.8.0-cpu-py312",
                "jax0.10.2-cpu-py311",
                "jax0.8.0-cpu-py311",
            )
            for target in ("cpu:2", "cpu")
            for b in (2, 1)
        ),
    ]


def test_a_repro_narrows_by_a_specifier_and_says_so() -> None:
    expansion = expand(matrix(), [repro('jax = ">=0.8"\npython = "3.12"\ncuda = "none"')])
    assert ids(expansion) == ["bug@jax0.8.0-cpu-py312@cpu", "bug@jax0.10.2-cpu-py312@cpu"]
    assert reasons(expansion) == {
        "the repro asks for jax >=0.8": 6,
        "the repro asks for python 3.12": 6,
        "the repro asks for cuda none": 4,
    }


def test_a_repro_replaces_values_by_a_list() -> None:
    expansion = expand(matrix(), [repro('jax = ["0.5.3"]\npython = ["3.10"]\ncuda = ["none"]')])
    assert ids(expansion) == ["bug@jax0.5.3-cpu-py310@cpu"]
    assert expansion.excluded == ()


def test_further_packages_make_environments_of_their_own() -> None:
    (cell,) = expand(
        matrix('[matrix]\njax = ["0.8.0"]\npython = ["3.11"]\n'), [repro('packages = ["b==1", "a"]')]
    ).cells
    assert cell.environment == Environment(
        (("jax", "0.8.0"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")), "release", ("a", "b==1")
    )


def test_axes_of_an_environment_are_in_canonical_order() -> None:
    text = """\
[matrix]
"b" = ["2"]
a = ["1"]
nccl = ["2.28.9"]
python = ["3.11"]
cuda = ["12"]
jaxlib = ["0.8.0"]
jax = ["0.8.0"]
"""
    (cell,) = expand(matrix(text), [repro('targets = ["gpu"]')]).cells
    assert [name for name, _ in cell.environment.axes] == ["jax", "jaxlib", "cuda", "python", "nccl", "a", "b"]


def test_excludes() -> None:
    text = f"""{AXES}
[[exclude]]
jax = "<0.8"
python = "3.12"
[[exclude]]
jax = "0.10.2"
cuda = "none"
target = "cpu:*"
reason = "too slow"
[[exclude]]
repro = "b*"
jax = "0.8"
"""
    expansion = expand(matrix(text), [repro('targets = ["cpu", "cpu:8"]\ncuda = ["none"]')])
    assert ids(expansion) == [
        "bug@jax0.4.38-cpu-py311@cpu",
        "bug@jax0.4.38-cpu-py311@cpu:8",
        "bug@jax0.10.2-cpu-py311@cpu",
        "bug@jax0.10.2-cpu-py312@cpu",
    ]
    assert reasons(expansion) == {
        "excluded by matrix.toml:6 (jax = <0.8, python = 3.12)": 2,
        "too slow": 2,
        "excluded by matrix.toml:14 (repro = b*, jax = 0.8)": 4,
    }


def test_an_override_of_python_moves_environments_and_makes_no_double() -> None:
    text = AXES + '[[override]]\nselect = "jax0.4.*"\npython = "3.11"\n'
    expansion = expand(matrix(text), [repro('cuda = ["none"]')])
    assert ids(expansion) == [
        "bug@jax0.4.38-cpu-py311@cpu",
        "bug@jax0.8.0-cpu-py311@cpu",
        "bug@jax0.8.0-cpu-py312@cpu",
        "bug@jax0.10.2-cpu-py311@cpu",
        "bug@jax0.10.2-cpu-py312@cpu",
    ]
    asked = expand(matrix(text), [repro('cuda = ["none"]\njax = "0.4.38"\npython = ["3.12"]')])
    assert asked.cells == ()
    assert reasons(asked)["the override at line 5 moves it to Python 3.11, the repro asks for 3.12"] == 1


def test_what_is_said_of_an_environment_counts_before_what_was_moved_there() -> None:
    text = """\
[matrix]
jax = ["0.8.0"]
python = ["3.12", "3.11"]
[[override]]
select = "*-py312"
python = "3.11"
timeout = "1m"
[[override]]
select = "*-py311"
timeout = "2m"
"""
    (cell,) = expand(matrix(text), [repro()]).cells
    assert (cell.environment.python, cell.timeout) == ("3.11", 120.0)


def test_later_overrides_win_and_lists_are_replaced_or_extended() -> None:
    text = """\
[matrix]
jax = ["0.8.0", "0.10.2"]
python = ["3.11"]
[run]
timeout = "1m"
env = { RUN = "1", A = "run" }
[[override]]
select = "*"
as_of = "latest"
timeout = "2m"
packages = ["a"]
env = { A = "first", B = "first" }
inherit = "append"
[[override]]
select = "jax0.8.0-*"
packages = ["b"]
env = { B = "second" }
inherit = "append"
[[override]]
select = "jax0.10*"
packages = ["c"]
env = { C = "third" }
timeout = "3m"
"""
    old, new = expand(matrix(text), [repro()]).cells
    assert old.environment.packages == ("a", "b")
    assert env(old) == {"RUN": "1", "A": "first", "B": "second", "JAX_PLATFORMS": "cpu"}
    assert (old.environment.as_of, old.timeout) == ("latest", 120.0)
    assert new.environment.packages == ("c",)
    assert env(new) == {"C": "third", "JAX_PLATFORMS": "cpu"}
    assert new.timeout == 180.0
    assert {cell.timeout for cell in expand(matrix(text), [repro("timeout = 5")]).cells} == {5.0}


def test_limits_come_from_the_repro_or_from_run() -> None:
    text = '[matrix]\njax = ["0.8.0"]\npython = ["3.11"]\n[run]\nmemory = "2GiB"\nrepeat = 3\n'
    (cell,) = expand(matrix(text), [repro()]).cells
    assert (cell.timeout, cell.memory, cell.repeat) == (600.0, 2 << 30, 3)
    (cell,) = expand(matrix(text), [repro('memory = "4GiB"\nrepeat = 1')]).cells
    assert (cell.memory, cell.repeat) == (4 << 30, 1)


SMALL = '[matrix]\njax = ["0.8.0"]\ncuda = ["none", "12"]\npython = ["3.11"]\n'


def test_variables_of_an_attempt() -> None:
    text = f'{SMALL}[run]\nenv = {{ JAX_PLATFORMS = "cuda", XLA_FLAGS = "--run" }}\n'
    metadata = """\
targets = ["cpu", "cpu:8", "gpu"]
params = { level = [1], on = [true], word = ["a b"] }
env = { A = "{level}-{on}-{word}", B = '{"json": {}}' }
"""
    cpu, eight, gpu = expand(matrix(text), [repro(metadata)]).cells
    common = {
        "A": "1-true-a b",
        "B": '{"json": {}}',
        "REPRO_LEVEL": "1",
        "REPRO_ON": "true",
        "REPRO_WORD": "a b",
    }
    assert env(cpu) == {**common, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--run"}
    flags = "--run --xla_force_host_platform_device_count=8"
    assert env(eight) == {**common, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    assert env(gpu) == {**common, "JAX_PLATFORMS": "cuda,cpu", "XLA_FLAGS": "--run"}


def test_the_repros_own_variables_win() -> None:
    metadata = 'targets = ["cpu:2"]\nenv = { JAX_PLATFORMS = "", XLA_FLAGS = "--own" }'
    (cell,) = expand(matrix(SMALL + '[run]\nenv = { XLA_FLAGS = "--run" }'), [repro(metadata)]).cells
    assert env(cell) == {"JAX_PLATFORMS": "", "XLA_FLAGS": "--own --xla_force_host_platform_device_count=2"}


def test_nccl_and_other_nvidia_wheels_need_their_cuda() -> None:
    text = """\
[matrix]
jax = ["0.8.0"]
python = ["3.11"]
cuda = ["none", "12", "12-local", "13"]
nccl = ["locked", "2.28.9"]
"nvidia-cudnn-cu12" = ["9.10.2.21"]
"""
    expansion = expand(matrix(text), [repro('targets = ["gpu"]')])
    assert ids(expansion) == [
        "bug@jax0.8.0-cuda12-py311-nvidia_cudnn_cu129.10.2.21@gpu",
        "bug@jax0.8.0-cuda12-py311-nccl2.28.9-nvidia_cudnn_cu129.10.2.21@gpu",
    ]
    assert reasons(expansion) == {
        "nvidia-cudnn-cu12 belongs to the wheels of CUDA 12, not to cuda = none": 1,
        "nvidia-cudnn-cu12 belongs to the wheels of CUDA 12, not to cuda = 12-local": 1,
        "nvidia-cudnn-cu12 belongs to the wheels of CUDA 12, not to cuda = 13": 2,
        "CPU wheels have no NCCL to replace": 1,
        "cuda 12-local takes NCCL from the host": 1,
    }


def test_the_first_claim_that_holds_counts() -> None:
    metadata = """\
params = { n = [1, 2] }
targets = ["cpu", "cpu:2"]
[[expect]]
when = 'jax == 0.10.2 and n > 1 and target == "cpu:2"'
outcome = "crash"
[[expect]]
when = "jax >= 0.8"
outcome = "error"
[[expect]]
when = 'engine == "docker"'
outcome = "hang"
"""
    cells = expand(matrix(), [repro(metadata + '[[expect]]\noutcome = "ok"')], engine="docker").cells
    claimed = {cell.id: cell.expect.outcome[0].value for cell in cells if cell.expect}
    assert claimed["bug@jax0.10.2-cpu-py311@cpu:2@n=2"] == "crash"
    assert claimed["bug@jax0.10.2-cpu-py311@cpu@n=2"] == "error"
    assert claimed["bug@jax0.10.2-cpu-py311@cpu:2@n=1"] == "error"
    assert claimed["bug@jax0.8.0-cpu-py311@cpu@n=1"] == "error"
    assert claimed["bug@jax0.4.38-cpu-py311@cpu@n=1"] == "hang"
    cells = expand(matrix(), [repro(metadata)], engine="venv").cells
    assert {cell.id for cell in cells if cell.expect is None} == {
        f"bug@jax0.4.38-cpu-py{python}@{target}@n={n}"
        for python in (311, 312)
        for target in ("cpu", "cpu:2")
        for n in (1, 2)
    }


def test_mistakes_that_show_against_the_matrix() -> None:
    Path("h100.txtpb").write_text("gpu")
    first = repro(
        """\
targets = ["cpu", "h100:8", "h200:8"]
packages = ["numpy==2"]
params = { flag = ["a", "b"], n = [1], numpy = [1] }
[[expect]]
when = "jaxlib == 0.8 or nn == 1"
outcome = "ok"
[[expect]]
when = 'flag == "c" or engine == "dokcer" or n == "x"'
outcome = "ok"
""",
        "a",
    )
    second = repro('targets = ["b200:4"]', "b")
    text = AXES + 'numpy = ["2.0"]\n[targets."h100:8"]\ndescribe = "h100.txtpb"\n'
    with pytest.raises(InputErrors) as caught:
        expand(matrix(text), [second, first])
    assert [str(error) for error in caught.value.errors] == [
        'repros/a.py:2: matrix.toml has no target "h200:8"\n  did you mean "h100:8"?',
        "repros/a.py:4: params.numpy: `numpy` is an axis of matrix.toml",
        "repros/a.py:6: expect[0].when: column 1: unknown name `jaxlib`\n"
        '  jaxlib == 0.8 or nn == 1\n  ^\n  did you mean "jax"?',
        f"repros/a.py:6: expect[0].when: column 18: unknown name `nn`\n"
        f'  jaxlib == 0.8 or nn == 1\n  {" " * 17}^\n  did you mean "n"?',
        'repros/a.py:9: expect[1].when: column 9: `flag` is never "c"\n'
        '  flag == "c" or engine == "dokcer" or n == "x"\n          ^\n  it can be: a, b',
        'repros/a.py:9: expect[1].when: column 26: `engine` is never "dokcer"\n'
        f'  flag == "c" or engine == "dokcer" or n == "x"\n  {" " * 25}^\n  did you mean "docker"?',
        'repros/a.py:9: expect[1].when: column 43: `n` is compared with a number, found "x"\n'
        f'  flag == "c" or engine == "dokcer" or n == "x"\n  {" " * 42}^',
        'repros/b.py:2: matrix.toml has no target "b200:4"\n  describe it: [targets."b200:4"]',
    ]


def test_a_generated_matrix_of_a_thousand_cells() -> None:
    versions = ", ".join(f'"0.{minor}.{patch}"' for minor in range(1, 11) for patch in range(10))
    text = f'[matrix]\njax = [{versions}]\npython = ["3.11"]\n'
    metadata = 'params = {{ n = [1, 2] }}\n[[expect]]\nwhen = "jax > 0.{}.1 and n > 1"\noutcome = "ok"'
    for number in range(5):
        repro(metadata.format(number + 1), f"r{number}")
    expansion = expand(matrix(text), load_repros(Path("repros")))
    assert len(expansion.cells) == 1000
    assert len(set(ids(expansion))) == 1000
    assert sum(cell.expect is not None for cell in expansion.cells) == sum(100 - 10 * n - 2 for n in range(5))
    order = [cell.repro.name for cell in expansion.cells]
    assert all(left <= right for left, right in pairwise(order))


@pytest.fixture
def expansion() -> Expansion:
    return expand(matrix(), [repro('targets = ["cpu", "gpu"]', "one"), repro('targets = ["cpu:8"]', "two")])


def test_select_all(expansion: Expansion) -> None:
    assert select(expansion) == expansion


def test_select_by_globs(expansion: Expansion) -> None:
    assert ids(select(expansion, repro="two", env="jax0.8*")) == [
        "two@jax0.8.0-cpu-py311@cpu:8",
        "two@jax0.8.0-cpu-py312@cpu:8",
    ]
    chosen = select(expansion, repro="one", env="jax0.8.0-cuda12-py311, jax0.4.38-cpu-py312", target="*")
    assert ids(chosen) == ["one@jax0.4.38-cpu-py312@cpu", "one@jax0.8.0-cuda12-py311@gpu"]
    assert [each.cell.id for each in chosen.excluded] == [
        "one@jax0.4.38-cpu-py312@gpu",
        "one@jax0.8.0-cuda12-py311@cpu",
    ]
    assert {cell.target for cell in select(expansion, target="cpu*").cells} == {"cpu", "cpu:8"}


def test_select_a_repro_by_its_file(expansion: Expansion, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = select(expansion, repro="two")
    assert select(expansion, repro="repros/two.py") == wanted
    assert select(expansion, repro=str(Path("repros/two.py").resolve())) == wanted
    monkeypatch.chdir("repros")
    assert select(expansion, repro="two.py,one") == select(expansion, repro="one,two")


def test_the_default_counts_where_neither_repro_nor_environment_is_asked_for(expansion: Expansion) -> None:
    default = ("jax0.10.2-cpu-*", "jax0.4.38-cpu-py311")
    environments = ["jax0.4.38-cpu-py311", "jax0.10.2-cpu-py311", "jax0.10.2-cpu-py312"]
    chosen = select(expansion, default=default)
    assert ids(chosen) == [f"one@{each}@cpu" for each in environments] + [f"two@{each}@cpu:8" for each in environments]
    assert ids(select(expansion, target="cpu", default=default)) == [f"one@{each}@cpu" for each in environments]
    assert select(expansion, repro="one", default=default) == select(expansion, repro="one")
    assert select(expansion, env="*", default=default) == expansion


def test_a_glob_that_matches_nothing(expansion: Expansion) -> None:
    with pytest.raises(UserError) as caught:
        select(expansion, repro="onee")
    assert str(caught.value) == '--repro "onee" matches nothing\n  did you mean "one"?'
    with pytest.raises(UserError) as caught:
        select(expansion, repro="repros/three.py")
    assert str(caught.value) == '--repro "repros/three.py" matches nothing\n  there are: one, two'
    with pytest.raises(UserError) as caught:
        select(expansion, target="cpus,cpu")
    assert str(caught.value) == '--target "cpus" matches nothing\n  did you mean "cpu"?'
    with pytest.raises(UserError) as caught:
        select(expansion, env="zzz")
    assert str(caught.value).startswith('--env "zzz" matches nothing\n  there are: jax0.4.38-cpu-py311, ')
    assert str(caught.value).endswith(" and 6 more")
    with pytest.raises(UserError) as caught:
        select(expansion, env="jax0.10.2")
    assert str(caught.value).startswith(
        '--env "jax0.10.2" matches nothing\n  did you mean "jax0.10.2*"? It matches jax0.10.2-cpu-py311, '
    )
    assert str(caught.value).endswith(" and 3 more")
    with pytest.raises(UserError) as caught:
        select(expansion, repro="on")
    assert str(caught.value) == '--repro "on" matches nothing\n  did you mean "one"?'
    with pytest.raises(UserError) as caught:
        select(expansion, default=("jax9*",))
    assert caught.value.message == '[run] default "jax9*" matches nothing'
    with pytest.raises(InputErrors) as several:
        select(expansion, env="zzz", target="tpu")
    assert [error.message for error in several.value.errors] == [
        '--env "zzz" matches nothing',
        '--target "tpu" matches nothing',
    ]


def test_globs_that_match_nothing_together(expansion: Expansion) -> None:
    with pytest.raises(UserError) as caught:
        select(expansion, repro="two", target="gpu")
    assert str(caught.value) == "no cell matches all of --repro two --target gpu\n  `invoke cells` lists every cell"


def test_nothing_to_select_from() -> None:
    assert select(Expansion((), ())) == Expansion((), ())


def test_a_cell_without_parameters_is_one() -> None:
    (cell,) = expand(matrix(SMALL), [replace(repro(), targets=("cpu",))]).cells
    assert cell.params == ()
    assert cell.id == f"{cell.repro.name}@{cell.environment.id}@cpu"


# ---- environments that are named ----

MOVED = """\
[matrix]
jax = ["0.8.0", "0.10.2"]
python = ["3.11", "3.12"]
scipy = ["1.14.1", "1.15.3"]
[run]
timeout = "1m"
[[override]]
select = "jax0.7.*-py312*"
python = "3.11"
timeout = "2m"
env = { MOVED = "1" }
[[override]]
select = "jax0.6.*"
as_of = "2025-07-01"
packages = ["b", "scipy<2"]
timeout = "3m"
"""


def environment(
    jax: str, *others: tuple[str, str], as_of: str = "release", packages: tuple[str, ...] = ()
) -> Environment:
    axes = {"jax": jax, "cuda": "none", "python": "3.12", "nccl": "locked", **dict(others)}
    return Environment(tuple(axes.items()), as_of, packages)


SCIPY = ("scipy", "1.14.1")


@pytest.mark.parametrize(
    ("named", "metadata", "timeout"),
    [
        (environment("0.9.0", SCIPY), "", 60),
        (environment("0.9.0", ("scipy", "1.7.0")), "", 60),  # a value that the matrix lacks
        (environment("0.9.0", SCIPY, ("zlib", "1.0")), "", 60),  # an axis that it lacks
        (environment("0.9.0", SCIPY, packages=("a",)), 'packages = ["a"]', 60),
        (environment("0.9.0", packages=("scipy==1.1",)), 'packages = ["scipy==1.1"]', 60),  # no axis for it
        (environment("0.9.0", SCIPY), 'packages = ["scipy==1.1"]', 60),  # searched along it
        (environment("0.9.0", SCIPY, as_of="2026-03-01"), "", 60),  # searched along days
        (environment("0.7.1", SCIPY, ("python", "3.11")), "", 60),  # where an override moves another
        (environment("0.7.1", SCIPY), "", 120),  # whence: it was locked before there was the override
        (environment("0.6.1", SCIPY, as_of="2025-07-01", packages=("b", "scipy<2")), "", 180),
        (environment("0.6.1", SCIPY, as_of="2025-07-01", packages=("b",)), "", 180),  # searched along scipy
        (environment("0.6.1", SCIPY, packages=("b",)), "", 180),  # older than the override's day
        (environment("0.9.0"), "", None),  # an axis is missing
        (environment("0.9.0", SCIPY, packages=("a",)), "", None),
        (environment("0.9.0", SCIPY), 'packages = ["a"]', None),
        (environment("0.9.0", SCIPY, packages=("a==1",)), 'packages = ["a==2"]', None),
    ],
)
def test_which_environments_are_a_repro_s(named: Environment, metadata: str, timeout: float | None) -> None:
    found = in_environment(matrix(MOVED), repro(metadata), named)
    assert [(cell.environment, cell.timeout) for cell in found.cells] == ([] if timeout is None else [(named, timeout)])
    assert found.excluded == ()


def test_an_environment_that_an_override_makes_is_what_the_override_says() -> None:
    text = MOVED.replace('["3.11", "3.12"]', '["3.12"]')
    (cell,) = in_environment(matrix(text), repro(), environment("0.7.1", SCIPY, ("python", "3.11"))).cells
    assert (cell.timeout, env(cell)["MOVED"]) == (120, "1")


def test_the_cells_of_a_named_environment_are_those_of_the_matrix() -> None:
    text = MOVED.replace('"0.8.0"', '"0.6.1", "0.7.1"') + '[[exclude]]\njax = "0.10.2"\n'
    known, claims = matrix(text), '[[expect]]\nwhen = "jax < 0.7"\noutcome = "error"\n[[expect]]\noutcome = "ok"'
    one = repro(f'jax = "<0.7"\ntargets = ["cpu", "cpu:8"]\nparams = {{ n = [1, 2] }}\n{claims}')
    everything = expand(known, [one])
    for each in environments(known, one):
        found = in_environment(known, one, each, by_name=False)
        assert found.cells == tuple(cell for cell in everything.cells if cell.environment == each)
        assert found.excluded == tuple(left for left in everything.excluded if left.cell.environment == each)
        free = in_environment(known, one, each)
        assert {*free.cells} == {*found.cells, *(left.cell for left in found.excluded)}
        assert len(free.cells) == 4


def test_what_cannot_run_does_not_run_by_name_either() -> None:
    one = repro('targets = ["cpu", "gpu"]\njax = "<0.7"')
    found = in_environment(matrix(), one, environment("0.9.0"))
    assert [cell.target for cell in found.cells] == ["cpu"]
    assert reasons(found) == {"CPU wheels have no GPU": 1}
    found = in_environment(matrix(), one, environment("0.9.0"), by_name=False)
    assert reasons(found) == {"the repro asks for jax <0.7": 2}
    listed = in_environment(matrix(), repro('jax = ["0.5.3"]'), environment("0.9.0"), by_name=False)
    assert reasons(listed) == {"the repro asks for jax 0.5.3": 1}
