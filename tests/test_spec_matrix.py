"""matrix.toml: everything it can say, and every way to say it wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec.matrix import load_matrix
from repromatrix.spec.model import Base, Matrix, Override, Rule, RunSettings, SignatureRule, TargetSpec

DIGEST = "python:3.11-slim-bookworm@sha256:" + "a1" * 32
GPU = hashlib.sha256(b"gpu").hexdigest()
AXES = '[matrix]\njax = ["0.8.0"]\npython = ["3.11"]\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Matrix:
    path = Path("matrix.toml")
    path.write_text(text)
    return load_matrix(path)


def mistakes(text: str) -> list[str]:
    with pytest.raises(InputErrors) as caught:
        load(text)
    assert caught.value.exit_code == 2
    return [str(error) for error in caught.value.errors]


def test_everything_it_can_say(tmp_path: Path) -> None:
    (tmp_path / "h100.txtpb").write_text("gpu")
    (tmp_path / "tuned.txt").write_text("results")
    matrix = load(f"""\
[matrix]
jax    = ["0.4.38", "0.10.2", "0.11.0.dev20260701"]
cuda   = ["none", "12", "13-local"]
"nvidia_cudnn.cu12" = ["9.10.2.21"]
python = ["3.11", "3.12"]
nccl   = ["locked", "2.28.9"]
as_of  = 2026-01-31
jaxlib = ["0.10.2"]

[[exclude]]
jax = "<0.8"
cuda = "13*"
target = "gpu*"
reason = "no such extra"
[[exclude]]
nvidia-cudnn-cu12 = "9.*"
repro = "slow_*"

[[override]]
select = "jax0.4.*"
python = "3.11"
as_of = "latest"
packages = ["numpy<2"]
env = {{ A = "1" }}
timeout = "1h30m"
inherit = "append"
[[override]]
select = "*"
timeout = 2.5

[bases."3.11"]
image = "{DIGEST}"
debian = "bookworm"
[targets."h100:8"]
describe = "h100.txtpb"
topology = "1x1x8"
autotune = "tuned.txt"
[targets."h100:16"]
describe = "h100.txtpb"
[targets.h200]
describe = "h100.txtpb"
[targets.gpu]
cuda_libraries = "/usr/local/cuda/lib64"
[indexes]
nightly = "https://example.org/simple"
[[signature]]
match = "slinky::"
title = "slinky"
[run]
engine = "venv"
timeout = "90s"
repeat = 3
jobs = 2
memory = "8GiB"
cores = "keep"
hlo = "text"
env = {{ B = "2" }}
default = ["*-cpu-*"]
""")
    assert matrix == Matrix(
        path=tmp_path / "matrix.toml",
        axes=(
            ("jax", ("0.4.38", "0.10.2", "0.11.0.dev20260701")),
            ("cuda", ("none", "12", "13-local")),
            ("nvidia-cudnn-cu12", ("9.10.2.21",)),
            ("python", ("3.11", "3.12")),
            ("nccl", ("locked", "2.28.9")),
            ("jaxlib", ("0.10.2",)),
        ),
        as_of="2026-01-31",
        excludes=(
            Rule((("jax", "<0.8"), ("cuda", "13*"), ("target", "gpu*")), "no such extra", 10),
            Rule((("nvidia-cudnn-cu12", "9.*"), ("repro", "slow_*")), "", 15),
        ),
        overrides=(
            Override("jax0.4.*", "3.11", "latest", ("numpy<2",), (("A", "1"),), 5400.0, "append", 19),
            Override("*", None, None, None, None, 2.5, "replace", 27),
        ),
        bases=(Base("3.11", DIGEST, "bookworm"),),
        targets=(
            TargetSpec("h100:8", "h100.txtpb", "1x1x8", None, "tuned.txt", GPU, hashlib.sha256(b"results").hexdigest()),
            TargetSpec("h100:16", "h100.txtpb", "1x1x16", None, None, GPU),
            TargetSpec("h200", "h100.txtpb", None, None, None, GPU),
            TargetSpec("gpu", None, None, "/usr/local/cuda/lib64"),
        ),
        indexes=(("nightly", "https://example.org/simple"),),
        signatures=(SignatureRule("slinky::", "slinky"),),
        run=RunSettings("venv", 90.0, 3, 2, 8 << 30, "keep", (("B", "2"),), ("*-cpu-*",), "text"),
    )


def test_the_least_it_must_say() -> None:
    matrix = load(AXES)
    assert matrix.axes == (("jax", ("0.8.0",)), ("python", ("3.11",)), ("cuda", ("none",)), ("nccl", ("locked",)))
    assert matrix.as_of == "release"
    assert matrix.run == RunSettings()
    assert matrix.run.hlo == "failures"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [('"10m"', 600), ('"90s"', 90), ('"1h30m"', 5400), ('"1h2m3s"', 3723), ('"1.5s"', 1.5), ("45", 45), ("0.25", 0.25)],
)
def test_durations(written: str, seconds: float) -> None:
    assert load(f"{AXES}[run]\ntimeout = {written}\n").run.timeout == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ('"8GiB"', 8 << 30),
        ('"500MB"', 500_000_000),
        ('"1.5 GiB"', 3 << 29),
        ("1048576", 1 << 20),
        ('"2000kB"', 2_000_000),
    ],
)
def test_amounts_of_memory(written: str, size: int) -> None:
    assert load(f"{AXES}[run]\nmemory = {written}\n").run.memory == size


PACKAGE = " A package of this name is written in quotes."
AMOUNT = 'matrix.toml:5: run.memory: expected an amount such as "8GiB", "500MB" or a number of bytes, found '
DURATION = (
    'matrix.toml:5: run.timeout: expected a duration such as "10m", "90s", "1h30m" or a number of seconds, found '
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('timeout = "10 minutes"', f'{DURATION}"10 minutes"'),
        ('timeout = ""', f'{DURATION}""'),
        ("timeout = true", f"{DURATION}true"),
        ("timeout = [1]", f"{DURATION}a list"),
        ("timeout = 0", "matrix.toml:5: run.timeout: expected a duration above 0 and of at most a week, found 0 s"),
        ("timeout = nan", "matrix.toml:5: run.timeout: expected a duration above 0 and of at most a week, found nan s"),
        (
            'timeout = "900h"',
            "matrix.toml:5: run.timeout: expected a duration above 0 and of at most a week, found 3.24e+06 s",
        ),
        ('memory = "8GIB"', f'{AMOUNT}"8GIB"\n  did you mean "GiB"?'),
        ('memory = "lots"', f'{AMOUNT}"lots"'),
        ("memory = 1.5", f"{AMOUNT}1.5"),
        ("memory = 8", "matrix.toml:5: run.memory: expected at least 1 MiB, found 8 bytes"),
        (
            'engine = "dokcer"',
            'matrix.toml:5: run.engine: expected one of auto, docker, podman, venv, slurm, found "dokcer"\n'
            '  did you mean "docker"?',
        ),
        (
            'cores = "stack"',
            'matrix.toml:5: run.cores: expected one of stacks, keep, off, found "stack"\n  did you mean "stacks"?',
        ),
        (
            'hlo = "failure"',
            'matrix.toml:5: run.hlo: expected one of failures, text, passes, off, found "failure"\n'
            '  did you mean "failures"?',
        ),
        ("engine = 3", "matrix.toml:5: run.engine: expected one of auto, docker, podman, venv, slurm, found 3"),
        ("repeat = 0", "matrix.toml:5: run.repeat: expected at least 1, found 0"),
        ("repeat = 1.0", "matrix.toml:5: run.repeat: expected a whole number, found 1.0"),
        ("jobs = -1", "matrix.toml:5: run.jobs: expected at least 0, found -1"),
        ("jobs = true", "matrix.toml:5: run.jobs: expected a whole number, found true"),
        ('default = "*"', 'matrix.toml:5: run.default: expected a list, found "*"\n  write ["*"]'),
        ("env = { A = 1 }", 'matrix.toml:5: run.env.A: expected a string, found 1\n  write it in quotes: "1"'),
        ('env = "A=1"', 'matrix.toml:5: run.env: expected a table, found "A=1"'),
        (
            'env = { "1A" = "x" }',
            'matrix.toml:5: run.env.1A: expected the name of an environment variable, found "1A"',
        ),
        ("timout = 3", 'matrix.toml:5: run.timout: unknown key\n  did you mean "timeout"?'),
        (
            "zzz = 3",
            "matrix.toml:5: run.zzz: unknown key\n"
            "  keys here: engine, timeout, repeat, jobs, memory, cores, hlo, env, default",
        ),
    ],
)
def test_mistakes_in_run(line: str, message: str) -> None:
    assert mistakes(f"{AXES}[run]\n{line}\n") == [message]


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        (
            "numpy = [2.0]",
            ['matrix.toml:4: matrix.numpy[0]: expected a string, found 2.0\n  write it in quotes: "2.0"'],
        ),
        ('numpy = ["2.x"]', ['matrix.toml:4: matrix.numpy[0]: expected an exact version such as 0.10.2, found "2.x"']),
        ('numpy = ["2", "2.0"]', ['matrix.toml:4: matrix.numpy: "2.0" is listed twice']),
        ("numpy = []", ["matrix.toml:4: matrix.numpy: expected at least one, found an empty list"]),
        ('numpy = "2.0"', ['matrix.toml:4: matrix.numpy: expected a list, found "2.0"\n  write ["2.0"]']),
        (
            'jaxx = ["1"]',
            [f'matrix.toml:4: matrix.jaxx: unknown axis\n  did you mean "jax"?{PACKAGE}'],
        ),
        (
            'cudaa = ["12"]',
            [f'matrix.toml:4: matrix.cudaa: unknown axis\n  did you mean "cuda"?{PACKAGE}'],
        ),
        (
            'pyton = ["1"]',
            [f'matrix.toml:4: matrix.pyton: unknown axis\n  did you mean "python"?{PACKAGE}'],
        ),
        (
            'asof = ["1"]',
            [f'matrix.toml:4: matrix.asof: unknown axis\n  did you mean "as_of"?{PACKAGE}'],
        ),
        ('JAX = ["1"]', ['matrix.toml:4: matrix.JAX: this axis is called jax\n  did you mean "jax"?']),
        (
            '"nvidia-nccl-cu12" = ["2.28.9"]',
            ['matrix.toml:4: matrix.nvidia-nccl-cu12: this axis is called nccl\n  did you mean "nccl"?'],
        ),
        ('"a b" = ["1"]', ['matrix.toml:4: matrix."a b": this is neither an axis nor the name of a package']),
        ('a-b = ["1"]\na_b = ["1"]', ["matrix.toml:5: matrix.a_b: this is the axis a-b again"]),
        (
            'cuda = ["12-locl"]',
            [
                'matrix.toml:4: matrix.cuda[0]: expected "none", "12", "13", "12-local" or "13-local", '
                'found "12-locl"\n'
                '  did you mean "12-local"?'
            ],
        ),
        ("cuda = [12]", ['matrix.toml:4: matrix.cuda[0]: expected a string, found 12\n  write it in quotes: "12"']),
        (
            'nccl = ["lokced"]',
            [
                'matrix.toml:4: matrix.nccl[0]: expected "locked" or an exact version such as 2.28.9, found "lokced"\n'
                '  did you mean "locked"?'
            ],
        ),
        (
            'as_of = "relase"',
            [
                'matrix.toml:4: matrix.as_of: expected "release", "latest" or a date such as "2026-01-31", '
                'found "relase"\n'
                '  did you mean "release"?'
            ],
        ),
        (
            'as_of = "2026-02-30"',
            [
                'matrix.toml:4: matrix.as_of: expected "release", "latest" or a date such as "2026-01-31", '
                'found "2026-02-30"'
            ],
        ),
    ],
)
def test_mistakes_in_axes(line: str, messages: list[str]) -> None:
    assert mistakes(f"{AXES}{line}\n") == messages


def test_a_near_miss_in_quotes_is_a_package() -> None:
    assert load(f'{AXES}"jaxx" = ["1.0"]\n').axes[2] == ("jaxx", ("1.0",))
    assert load(f'{AXES}jaxtyping = ["0.3"]\n').axes[2] == ("jaxtyping", ("0.3",))


def test_a_patch_release_of_python_is_too_exact() -> None:
    assert mistakes('[matrix]\njax = ["0.8.0"]\npython = ["3.11.7"]\n') == [
        'matrix.toml:3: matrix.python[0]: expected a minor version of Python such as "3.12", found "3.11.7"\n'
        "  the base decides the patch release"
    ]


def test_missing_axes() -> None:
    assert mistakes("[matrix]\n") == [
        "matrix.toml:1: matrix.jax: this key is missing",
        "matrix.toml:1: matrix.python: this key is missing",
    ]
    assert mistakes("[run]\n") == ["matrix.toml:1: matrix: this key is missing"]
    assert mistakes("matrix = 1\n") == ["matrix.toml:1: matrix: expected a table, found 1"]


@pytest.mark.parametrize(
    ("table", "messages"),
    [
        ('[[exclude]]\njx = "<0.8"', ['matrix.toml:5: exclude[0].jx: unknown axis\n  did you mean "jax"?']),
        (
            '[[exclude]]\nzzz = "1"',
            ["matrix.toml:5: exclude[0].zzz: unknown axis\n  axes here: jax, python, cuda, nccl, repro, target"],
        ),
        (
            "[[exclude]]\ncuda = 13",
            ['matrix.toml:5: exclude[0].cuda: expected a string, found 13\n  write it in quotes: "13"'],
        ),
        (
            '[[exclude]]\njax = "<<0.8"',
            [
                "matrix.toml:5: exclude[0].jax: expected a version specifier (`<0.8`, `>=0.6,<0.7`) or a glob (`12*`), "
                'found "<<0.8"'
            ],
        ),
        (
            '[[exclude]]\nreason = "x"',
            ["matrix.toml:4: exclude[0]: expected a condition on an axis\n  without one it would match every cell"],
        ),
        ('[exclude]\njax = "1"', ["matrix.toml:4: exclude: expected a list, found a table"]),
        (
            '[[override]]\nselect = "*"',
            ["matrix.toml:4: override[0]: this changes nothing; expected one of python, as_of, packages, env, timeout"],
        ),
        ('[[override]]\ntimeout = "1m"', ["matrix.toml:4: override[0].select: this key is missing"]),
        (
            '[[override]]\nselct = "*"\ntimeout = 1',
            [
                "matrix.toml:4: override[0].select: this key is missing",
                'matrix.toml:5: override[0].selct: unknown key\n  did you mean "select"?',
            ],
        ),
        (
            '[[override]]\nselect = ""\ntimeout = 1',
            ["matrix.toml:5: override[0].select: expected a text, found an empty string"],
        ),
        (
            '[[override]]\nselect = "*"\ntimeout = 1\ninherit = "apend"',
            [
                'matrix.toml:7: override[0].inherit: expected one of replace, append, found "apend"\n'
                '  did you mean "append"?'
            ],
        ),
        (
            '[[override]]\nselect = "*"\npackages = ["jaxlib==1", "x y",\n"a @ https://example.org/a.whl"]',
            [
                "matrix.toml:6: override[0].packages[0]: jaxlib is an axis, not a further package",
                'matrix.toml:6: override[0].packages[1]: expected a requirement such as "equinox==0.11.7", found "x y"',
                "matrix.toml:7: override[0].packages[2]: a is asked for by address, which no index can serve again\n"
                "  name a version instead",
            ],
        ),
        (
            '[bases."3.11"]\nimage = "python:3.11"',
            [
                'matrix.toml:5: bases."3.11".image: expected an image pinned by digest, found "python:3.11"\n'
                "  a tag can move: add @sha256: and the image's 64 hex digits; `invoke lock --bases` finds them"
            ],
        ),
        ('[bases."3.11"]', ['matrix.toml:4: bases."3.11": expected `image`, `debian` or both']),
        (
            '[bases.latest]\ndebian = "Bookworm 12"',
            [
                'matrix.toml:4: bases.latest: expected a minor version of Python such as "3.12", found "latest"\n'
                "  the base decides the patch release",
                'matrix.toml:5: bases.latest.debian: expected a release name such as "bookworm", found "Bookworm 12"',
            ],
        ),
        (
            '[targets."h100:8"]\ndescribe = "none.txtpb"\ntopology = "1x1x4"',
            [
                'matrix.toml:5: targets."h100:8".describe: there is no file none.txtpb',
                'matrix.toml:6: targets."h100:8".topology: expected 8 devices, found 1x1x4 = 4',
            ],
        ),
        (
            '[targets.h100]\ntopology = "1x1x8"',
            [
                "matrix.toml:4: targets.h100: `describe` is missing: the file that describes this target",
                "matrix.toml:5: targets.h100.topology: a target with a topology has a size: h100:8",
            ],
        ),
        (
            '[targets."h100:8"]\ndescribe = "/etc/hostname"\ntopology = "8"',
            [
                'matrix.toml:5: targets."h100:8".describe: expected a path relative to this file, '
                'found "/etc/hostname"',
                'matrix.toml:6: targets."h100:8".topology: expected partitions x hosts x devices, as "1x1x8", '
                'found "8"',
            ],
        ),
        (
            '[targets.gpu]\ndescribe = "x"\ncuda_libraries = "lib"',
            [
                "matrix.toml:5: targets.gpu.describe: a real GPU needs no description; "
                "only cuda_libraries and env have a meaning here",
                'matrix.toml:6: targets.gpu.cuda_libraries: expected an absolute path, found "lib"',
            ],
        ),
        (
            '[targets."h100:8"]\ndescribe = "matrix.toml"\nautotune = "none.txt"\ncuda_libraries = "/lib"',
            [
                'matrix.toml:6: targets."h100:8".autotune: there is no file none.txt',
                'matrix.toml:7: targets."h100:8".cuda_libraries: compiling without a device needs no CUDA libraries',
            ],
        ),
        (
            '[targets.gpu]\nautotune = "matrix.toml"',
            [
                "matrix.toml:5: targets.gpu.autotune: a real GPU needs no description; "
                "only cuda_libraries and env have a meaning here"
            ],
        ),
        ("[targets.wheels]", ['matrix.toml:4: targets.wheels: expected a target such as "h100", "h100:8" or "gpu"']),
        ('[targets."cpu:4"]', ['matrix.toml:4: targets."cpu:4": expected a target such as "h100", "h100:8" or "gpu"']),
        (
            '[indexes]\nnightly = "htp://x"',
            ['matrix.toml:5: indexes.nightly: expected an address that begins with "https://", found "htp://x"'],
        ),
        (
            '[indexes]\nnightly = "https://me:word@example.org/simple"',
            [
                "matrix.toml:5: indexes.nightly: an address in a committed file must hold no credentials\n"
                "  keep them in uv's settings or in ~/.netrc"
            ],
        ),
        (
            '[indexes]\nNightly = "https://example.org"',
            ['matrix.toml:5: indexes.Nightly: expected a lower-case name, found "Nightly"'],
        ),
        (
            '[[signature]]\nmatch = ""',
            [
                "matrix.toml:4: signature[0].title: this key is missing",
                "matrix.toml:5: signature[0].match: expected a text, found an empty string",
            ],
        ),
        ("[rum]", ['matrix.toml:4: rum: unknown key\n  did you mean "run"?']),
    ],
)
def test_mistakes_in_tables(table: str, messages: list[str]) -> None:
    assert mistakes(f"{AXES}{table}\n") == messages


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x0a\xff\x12", "is no text; expected the description of a GPU as a text proto"),
        (b"gpu\0", "is no text; expected the description of a GPU as a text proto"),
    ],
)
def test_a_description_is_text(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "gpu.txtpb").write_bytes(content)
    assert mistakes(f'{AXES}[targets."h100:8"]\ndescribe = "gpu.txtpb"\n') == [
        f'matrix.toml:5: targets."h100:8".describe: "gpu.txtpb" {message}'
    ]


def test_autotune_results_may_be_binary(tmp_path: Path) -> None:
    (tmp_path / "gpu.txtpb").write_text("gpu")
    (tmp_path / "tuned.pb").write_bytes(b"\x0a\xff\0")
    (target,) = load(f'{AXES}[targets."h100:8"]\ndescribe = "gpu.txtpb"\nautotune = "tuned.pb"\n').targets
    assert target.autotune_sha256 == hashlib.sha256(b"\x0a\xff\0").hexdigest()


def test_a_description_must_stay_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside.txtpb").write_text("gpu")
    (tmp_path / "project" / "link.txtpb").symlink_to("../outside.txtpb")
    path = tmp_path / "project" / "matrix.toml"
    path.write_text(f'{AXES}[targets."a:1"]\ndescribe = "../outside.txtpb"\n[targets."b:1"]\ndescribe = "link.txtpb"\n')
    with pytest.raises(InputErrors) as caught:
        load_matrix(path)
    assert [str(error) for error in caught.value.errors] == [
        'project/matrix.toml:5: targets."a:1".describe: "../outside.txtpb" leaves the project\'s folder',
        'project/matrix.toml:7: targets."b:1".describe: "link.txtpb" leaves the project\'s folder',
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[matrix]\njax = [0.10.2]\n",
            'matrix.toml:2: not TOML: column 12: unclosed array\n  versions are strings: write "0.10.2"',
        ),
        ("[matrix]\n[matrix]\n", "matrix.toml:2: not TOML: column 8: cannot declare ('matrix',) twice\n  [matrix]"),
        ("a = 1\n\nb =\n", "matrix.toml:3: not TOML: column 4: invalid value\n  b ="),
    ],
)
def test_not_toml(text: str, message: str) -> None:
    assert mistakes(text) == [message]


def test_all_mistakes_at_once_in_the_order_of_lines() -> None:
    found = mistakes('[run]\nengine = "x"\n[matrix]\npython = [3.10]\njax = [0.10]\n[[exclude]]\njx = "1"\n')
    assert found == [
        'matrix.toml:2: run.engine: expected one of auto, docker, podman, venv, slurm, found "x"',
        'matrix.toml:4: matrix.python[0]: expected a string, found 3.10\n  write it in quotes: "3.10"',
        'matrix.toml:5: matrix.jax[0]: expected a string, found 0.10\n  write it in quotes: "0.10"',
        'matrix.toml:7: exclude[0].jx: unknown axis\n  did you mean "jax"?',
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_matrix(Path("matrix.toml"))
    assert str(caught.value) == "matrix.toml: cannot be read: No such file or directory"
    (tmp_path / "matrix.toml").write_bytes(b"[matrix]\n# \xff\n")
    with pytest.raises(UserError) as caught:
        load_matrix(Path("matrix.toml"))
    assert str(caught.value) == "matrix.toml:2: not UTF-8\n  save the file as UTF-8"
