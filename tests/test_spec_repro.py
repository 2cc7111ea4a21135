"""Repros: the block, every key of it, and every way to say it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec.block import BlockError, find_block
from repromatrix.spec.model import AxisChoice, Expect, Outcome, Repro, Witness
from repromatrix.spec.repro import line_of, load_repro, load_repros

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.toml").write_text("")
    (tmp_path / "repros").mkdir()


def script(metadata: str, body: str = "print(1)\n") -> str:
    lines = [f"# {line}" if line else "#" for line in metadata.splitlines()]
    return "\n".join(["# /// repro", *lines, "# ///", body])


def load(metadata: str, body: str = "print(1)\n", name: str = "bug") -> Repro:
    path = Path(f"repros/{name}.py")
    path.write_text(script(metadata, body))
    return load_repro(path)


def mistakes(metadata: str, body: str = "print(1)\n") -> list[str]:
    with pytest.raises(InputErrors) as caught:
        load(metadata, body)
    assert caught.value.exit_code == 2
    return [str(error) for error in caught.value.errors]


def test_everything_it_can_say(tmp_path: Path) -> None:
    (tmp_path / "repros" / "data.bin").write_bytes(b"\0\1")
    metadata = """\
title   = "It crashes"
issue   = "jax-ml/jax#39200"
targets = ["cpu", "cpu:8", "gpu", "gpu:2", "h100:8"]
timeout = "5m"
env     = { XLA_FLAGS = "--x={per_dev}" }
params  = { per_dev = [1024, 2048], flag = ["a", "b"], on = [true], rate = [0.5] }
witness = { hlo = ["while"], passes = ["pipeliner"], output = ["done"] }
packages = ["equinox==0.11.7", "numpy<2"]
jax = ">=0.6,<0.8"
python = ["3.11"]
cuda = "12*"
cpus = 1
memory = "4GiB"
hlo = "passes"
repeat = 3
files = ["data.bin"]

[[expect]]
when = "jax == 0.10.2 and per_dev > 1024"
outcome = ["crash", "hang"]
signal = "SIGSEGV"
signature = "x *"
changed = ["collective-pipeliner-*"]
[[expect]]
outcome = "error"
exit_status = 1
metrics = { loss = 0.5, "symtab/xla::A" = ">= 20", n = " 72 " }
unchanged = ["dce"]
"""
    repro = load(metadata, "def program(devices, per_dev, flag, on, rate): ...\n")
    assert repro == Repro(
        name="bug",
        path=tmp_path / "repros" / "bug.py",
        source=repro.source,
        body=repro.body,
        sha256=repro.sha256,
        title="It crashes",
        issue="jax-ml/jax#39200",
        targets=("cpu", "cpu:8", "gpu", "gpu:2", "h100:8"),
        timeout=300.0,
        env=(("XLA_FLAGS", "--x={per_dev}"),),
        params=(("per_dev", (1024, 2048)), ("flag", ("a", "b")), ("on", (True,)), ("rate", (0.5,))),
        witness=Witness(("while",), ("pipeliner",), ("done",)),
        expect=(
            Expect(
                "jax == 0.10.2 and per_dev > 1024",
                (Outcome.CRASH, Outcome.HANG),
                "SIGSEGV",
                None,
                "x *",
                19,
                (),
                ("collective-pipeliner-*",),
            ),
            Expect(
                "",
                (Outcome.ERROR,),
                None,
                1,
                None,
                25,
                (("loss", "0.5"), ("symtab/xla::A", ">= 20"), ("n", "72")),
                (),
                ("dce",),
            ),
        ),
        packages=("equinox==0.11.7", "numpy<2"),
        jax=AxisChoice(">=0.6,<0.8"),
        python=AxisChoice(None, ("3.11",)),
        cuda=AxisChoice("12*"),
        cpus=1,
        memory=4 << 30,
        hlo="passes",
        repeat=3,
        files=("data.bin",),
    )
    assert repro.source == Path("repros/bug.py").read_text()
    assert line_of(repro, "expect", 0, "when") == 20
    assert line_of(repro, "files", 0) == 17


def test_what_it_is_about_runs_nothing_again() -> None:
    one = load('about = """\nA claim: `x`.\n\nThe truth."""\n')
    assert one.about == "A claim: `x`.\n\nThe truth."
    assert load("").about == ""
    assert one.body == load("").body == load('about = "Corrected."').body
    assert mistakes("about = 1") == ['repros/bug.py:2: about: expected a string, found 1\n  write it in quotes: "1"']


def test_a_probe() -> None:
    repro = load('probe = true\nstrings = ["a"]\nsymbols = ["b"]\nflags = ["xla_c"]\n', '"""Looks things up."""\n')
    assert (repro.probe, repro.strings, repro.symbols, repro.flags) == (True, ("a",), ("b",), ("xla_c",))
    assert (repro.targets, repro.libraries) == (("wheels",), ())
    some = load('probe = true\nsymbols = ["b"]\nlibraries = ["jaxlib", "Jax_cuda12.PJRT"]', "")
    assert some.libraries == ("jaxlib", "jax-cuda12-pjrt")
    others = load('probe = true\nsymbols = ["b"]\nlibraries = ["jaxlib"]', "")
    assert len({some.body, others.body, load('probe = true\nsymbols = ["b"]', "").body}) == 3


def test_what_decides_a_result_keeps_its_hash(tmp_path: Path) -> None:
    """Computed before there were `metrics`, `changed` and `libraries`: another hash runs every known cell again."""
    (tmp_path / "repros" / "d").write_text("1")
    repro = load('title = "x"\nwitness = { output = ["a"] }\nfiles = ["d"]')
    assert repro.body == "9606dccb7e01536009765ee78758fb9ce55b7a2a33154f180db855c26571c87b"
    probe = load('probe = true\nstrings = ["a"]\nsymbols = ["b"]\nflags = ["xla_c"]', "")
    assert probe.body == "f2dfbbd416f2d0ee58fb5546ce19f6462d31366f2ad9416a17ae4f4062e95ded"


@pytest.mark.parametrize(
    "body",
    [
        "def program(devices, n=1): ...\n",
        "def program(*devices, n): ...\n",
        "def program(devices, **others): ...\n",
        "if True:\n    def program(devices, n): ...\n",
        "program = print\n",
        "from models import program\n",
        "import models as program\n",
        "print 'python 2'\ndef program(devices): pass\n",
    ],
)
def test_a_script_that_can_be_compiled_without_a_device(body: str) -> None:
    assert load('targets = ["cpu", "h100:8"]\nparams = { n = [1] }', body).targets == ("cpu", "h100:8")


NONE = (
    "repros/bug.py:2: targets[1]: h100:8 compiles the script's `program`, and there is none\n"
    "  add `def program(devices, n)`; it returns (jitted, args): docs/repros.md"
)


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ("print(1)\n", [NONE]),
        ("# def program(devices, n): ...\nprint(1)\n", [NONE]),
        ("class A:\n    def program(self, n): ...\n", [NONE]),
        ("def main():\n    program = 1\n", [NONE]),
        ("from program import main\n", [NONE]),
        ("print 'python 2'\n", [NONE]),
        ("def program(devices): ...\n", ["repros/bug.py:3: params.n: program() at line 5 does not take it"]),
        ("\ndef program(n): ...\n", ["repros/bug.py:3: params.n: program() at line 6 does not take it"]),
    ],
)
def test_a_script_that_cannot(body: str, messages: list[str]) -> None:
    assert mistakes('targets = ["cpu", "h100:8", "h200:2"]\nparams = { n = [1] }', body) == messages
    assert load('targets = ["cpu", "gpu:2"]\nparams = { n = [1] }', body).name == "bug"


def test_one_process_compiles_for_all_devices() -> None:
    assert mistakes('targets = ["h100:8"]\nprocesses = 2', "def program(devices): ...\n") == [
        "repros/bug.py:3: processes: h100:8 is compiled by one process for all its devices"
    ]


PROBE = 'probe = true\nsymbols = ["A::b(int)"]\nflags = ["--xla_c=1"]\n'


@pytest.mark.parametrize(
    ("metadata", "messages"),
    [
        (
            'targets = ["cpu"]\nparams = { n = [1] }\nprocesses = 2',
            [
                'repros/bug.py:5: targets: a probe looks into wheels: its only target is "wheels", set by itself\n'
                "  leave `targets` out; `cuda` and `jax` say in which environments it looks",
                "repros/bug.py:6: params: a probe has no script, so this has no meaning here",
                "repros/bug.py:7: processes: a probe has no script, so this has no meaning here",
            ],
        ),
        (
            'libraries = ["jax lib"]\nstrings = ["a\\n"]',
            [
                "repros/bug.py:5: libraries[0]: expected the name of a project such as "
                '"jax-cuda12-pjrt", found "jax lib"',
                "repros/bug.py:6: strings[0]: expected text in ASCII without line breaks: others are no strings of a "
                'binary, found "a\\n"',
            ],
        ),
        (
            '[[expect]]\noutcome = "ok"\nmetrics = { "symtab/A::b_int_" = 1, "flag/xla_c" = 1, other = 2 }',
            [],
        ),
        (
            '[[expect]]\noutcome = "ok"\nmetrics = { "symtab/B::b_int_" = 1, "strings/zzz" = 1 }\nchanged = ["dce"]',
            [
                'repros/bug.py:7: expect[0].metrics."symtab/B::b_int_": this probe finds no such number\n'
                '  did you mean "symtab/A::b_int_"?',
                'repros/bug.py:7: expect[0].metrics."strings/zzz": this probe finds no such number\n'
                "  metrics of this probe: dynsym/A::b_int_, symtab/A::b_int_, flag/xla_c",
                "repros/bug.py:8: expect[0].changed: a probe compiles nothing",
            ],
        ),
    ],
)
def test_mistakes_of_a_probe(metadata: str, messages: list[str]) -> None:
    if messages:
        assert mistakes(PROBE + metadata, "") == messages
    else:
        assert load(PROBE + metadata, "").probe


def test_the_least_it_must_say() -> None:
    repro = load("")
    assert repro.targets == ("cpu",)
    assert (repro.title, repro.expect, repro.params, repro.processes) == ("", (), (), 1)


def test_a_script_for_another_python_is_no_mistake() -> None:
    assert load("", "print 'python 2'\n").name == "bug"


def test_the_hash_is_over_the_script_and_its_files(tmp_path: Path) -> None:
    def digest(metadata: str, body: str = "print(1)\n") -> str:
        return load(metadata, body).sha256

    (tmp_path / "repros" / "a").write_text("1")
    (tmp_path / "repros" / "b").write_text("1")
    first = digest('files = ["a"]')
    assert digest('files = ["a"]') == first
    assert digest('files = ["a"]', "print(2)\n") != first
    (tmp_path / "repros" / "a").write_text("2")
    assert digest('files = ["a"]') != first
    (tmp_path / "repros" / "a").write_text("1")
    assert digest('files = ["a"]') == first
    assert digest('files = ["b"]') != first


NAMES = "\n  keys here: "
NUMBERS = 'expected a number, or comparisons such as ">= 20" or "> 0, < 1", found '


@pytest.mark.parametrize(
    ("metadata", "messages"),
    [
        ('titel = "x"', ['repros/bug.py:2: titel: unknown key\n  did you mean "title"?']),
        ("title = 3", ['repros/bug.py:2: title: expected a string, found 3\n  write it in quotes: "3"']),
        (
            'issue = "39200"',
            ['repros/bug.py:2: issue: expected "owner/repository#number" or an address, found "39200"'],
        ),
        (
            'targets = ["cpu:0", "gpus", "H100:8", "h100"]',
            [
                'repros/bug.py:2: targets[0]: expected a target such as "cpu", "cpu:8", "gpu:2" or "h100:8", '
                'found "cpu:0"\n  did you mean "cpu"?',
                'repros/bug.py:2: targets[1]: expected a target such as "cpu", "cpu:8", "gpu:2" or "h100:8", '
                'found "gpus"\n  did you mean "gpu"?',
                'repros/bug.py:2: targets[2]: expected a target such as "cpu", "cpu:8", "gpu:2" or "h100:8", '
                'found "H100:8"',
                'repros/bug.py:2: targets[3]: expected a target such as "cpu", "cpu:8", "gpu:2" or "h100:8", '
                'found "h100"',
            ],
        ),
        ("targets = []", ["repros/bug.py:2: targets: expected at least one, found an empty list"]),
        ('targets = "cpu"', ['repros/bug.py:2: targets: expected a list, found "cpu"\n  write ["cpu"]']),
        ('targets = ["cpu", "cpu"]', ['repros/bug.py:2: targets: "cpu" is listed twice']),
        ("jax = [0.10]", ['repros/bug.py:2: jax[0]: expected a string, found 0.10\n  write it in quotes: "0.10"']),
        ("jax = 0.10", ["repros/bug.py:2: jax: expected a list, found 0.10\n  write [0.10]"]),
        ('jax = ["new"]', ['repros/bug.py:2: jax[0]: expected an exact version such as 0.10.2, found "new"']),
        (
            'jax = ">>1"',
            [
                "repros/bug.py:2: jax: expected a version specifier (`<0.8`, `>=0.6,<0.7`) or a glob (`12*`), "
                'found ">>1"'
            ],
        ),
        (
            'python = ["3"]',
            [
                'repros/bug.py:2: python[0]: expected a minor version of Python such as "3.12", found "3"\n'
                "  the base decides the patch release"
            ],
        ),
        (
            'cuda = ["11.8"]',
            ['repros/bug.py:2: cuda[0]: expected "none", "12", "13", "12-local" or "13-local", found "11.8"'],
        ),
        ("cuda = []", ["repros/bug.py:2: cuda: expected at least one, found an empty list"]),
        ("processes = 0", ["repros/bug.py:2: processes: expected at least 1, found 0"]),
        ('cpus = "1"', ['repros/bug.py:2: cpus: expected a whole number, found "1"']),
        (
            'hlo = "txt"',
            ['repros/bug.py:2: hlo: expected one of text, passes, off, found "txt"\n  did you mean "text"?'],
        ),
        ('probe = "yes"', ['repros/bug.py:2: probe: expected true or false, found "yes"']),
        (
            'witness = { hol = ["x"] }',
            ['repros/bug.py:2: witness.hol: unknown key\n  did you mean "hlo"?'],
        ),
        (
            'witness = { output = "x" }',
            ['repros/bug.py:2: witness.output: expected a list, found "x"\n  write ["x"]'],
        ),
        ('packages = ["a==1", "A==2"]', ["repros/bug.py:2: packages[1]: a is listed twice"]),
        ('packages = ["jax==1"]', ["repros/bug.py:2: packages[0]: jax is an axis, not a further package"]),
        ("params = { n = 3 }", ["repros/bug.py:2: params.n: expected a list, found 3\n  write [3]"]),
        ("params = { n = [] }", ["repros/bug.py:2: params.n: expected at least one, found an empty list"]),
        ('params = { n = [1, "1"] }', ["repros/bug.py:2: params.n: 1 is listed twice"]),
        (
            "params = { n = [[1]] }",
            ["repros/bug.py:2: params.n: expected a string, a finite number, true or false, found a list"],
        ),
        (
            "params = { n = [inf] }",
            ["repros/bug.py:2: params.n: expected a string, a finite number, true or false, found inf"],
        ),
        (r'params = { n = ["a\n"] }', [r'repros/bug.py:2: params.n: "a\n" cannot be shown in one line']),
        (
            'params = { "per-dev" = [1], class = [2] }',
            [
                "repros/bug.py:2: params.per-dev: expected a name that Python accepts for an argument",
                "repros/bug.py:2: params.class: expected a name that Python accepts for an argument",
            ],
        ),
        (
            "params = { target = [1] }",
            ["repros/bug.py:2: params.target: `target` has a meaning of its own in conditions; choose another name"],
        ),
        (
            "params = { n = [1], N = [2] }",
            ["repros/bug.py:2: params.N: n and N would share the variable REPRO_N"],
        ),
        (
            'params = { level = [1] }\nenv = { A = "{levle}", REPRO_X = "{other}" }',
            [
                'repros/bug.py:3: env.A: {levle} is no parameter\n  did you mean "level"?',
                "repros/bug.py:3: env.REPRO_X: variables that begin with REPRO_ are those of the parameters",
                "repros/bug.py:3: env.REPRO_X: {other} is no parameter\n  parameters here: level",
            ],
        ),
        (
            'files = ["none.bin", "../matrix.toml", "/etc/hostname", "../../x"]',
            [
                "repros/bug.py:2: files[0]: there is no file repros/none.bin",
                'repros/bug.py:2: files[1]: "../matrix.toml" does not lie beside the script',
                'repros/bug.py:2: files[2]: expected a path relative to this file, found "/etc/hostname"',
                'repros/bug.py:2: files[3]: "../../x" leaves the project\'s folder',
            ],
        ),
        (
            '[[expect]]\noutcome = "crsh"',
            [
                "repros/bug.py:3: expect[0].outcome: expected one of ok, error, crash, hang, oom, skip, inconclusive, "
                'found "crsh"\n  did you mean "crash"?'
            ],
        ),
        (
            '[[expect]]\noutcome = ["ok", "infra"]',
            [
                "repros/bug.py:3: expect[0].outcome[1]: expected one of ok, error, crash, hang, oom, skip, "
                'inconclusive, found "infra"'
            ],
        ),
        ('[[expect]]\nwhen = ""', ["repros/bug.py:2: expect[0].outcome: this key is missing"]),
        (
            "[[expect]]\noutcome = []",
            ["repros/bug.py:3: expect[0].outcome: expected at least one, found an empty list"],
        ),
        (
            '[[expect]]\noutcome = "ok"\nsignature = "x"\nsignal = "SIGSEGV"',
            [
                "repros/bug.py:4: expect[0].signature: only a failure has a signature",
                "repros/bug.py:5: expect[0].signal: a signal goes with the outcome crash, hang or oom",
            ],
        ),
        (
            '[[expect]]\noutcome = "crash"\nsignal = "SIGSEG"\nexit_status = 300',
            [
                'repros/bug.py:4: expect[0].signal: expected a signal such as "SIGSEGV", found "SIGSEG"\n'
                '  did you mean "SIGSEGV"?',
                "repros/bug.py:5: expect[0].exit_status: expected at most 255, found 300",
                "repros/bug.py:5: expect[0].exit_status: what a signal or the deadline ends has no exit status",
            ],
        ),
        (
            '[[expect]]\noutcome = "ok"\n[[expect]]\nwhen = "jax > 1"\noutcome = "error"',
            ["repros/bug.py:4: expect[1]: never reached: the entry at line 2 always holds"],
        ),
        (
            '[[expect]]\nwhen = "jax = 1"\noutcome = "ok"',
            [
                "repros/bug.py:3: expect[0].when: column 5: expected ==, !=, <, <=, >, >= or in, found `=`\n"
                "  jax = 1\n      ^\n  write `==`"
            ],
        ),
        (
            '[[expect]]\noutcome = "ok"\n'
            'metrics = { a = ">> 1", b = true, c = nan, "d e" = 1, f = "> 1, 2x", g = [1] }',
            [
                f'repros/bug.py:4: expect[0].metrics.a: {NUMBERS}">> 1"',
                'repros/bug.py:4: expect[0].metrics.b: expected a number or a comparison such as ">= 20", found true',
                f"repros/bug.py:4: expect[0].metrics.c: {NUMBERS}nan",
                'repros/bug.py:4: expect[0].metrics."d e": expected the name of a metric such as "loss" or '
                '"symtab/CollectivePipeliner", found "d e"\n  `_` stands for every other character',
                f'repros/bug.py:4: expect[0].metrics.f: {NUMBERS}"> 1, 2x"',
                'repros/bug.py:4: expect[0].metrics.g: expected a number or a comparison such as ">= 20", found a list',
            ],
        ),
        (
            '[[expect]]\noutcome = "ok"\nchanged = ["a", "b"]\nunchanged = ["c d", "b"]\n'
            '[[expect]]\nwhen = "jax > 1"\noutcome = "skip"\nmetrics = {}',
            [
                "repros/bug.py:5: expect[0].unchanged[0]: expected the name of a pass, or a glob such as "
                '"collective-pipeliner-*", found "c d"',
                "repros/bug.py:5: expect[0].unchanged[1]: this is claimed as changed as well",
                "repros/bug.py:6: expect[1]: never reached: the entry at line 2 always holds",
                "repros/bug.py:9: expect[1].metrics: what is skipped finds nothing that a claim could be held against",
            ],
        ),
        (
            'hlo = "text"\n[[expect]]\noutcome = "ok"\nchanged = ["a"]',
            ['repros/bug.py:5: expect[0].changed: which passes changed a module is collected by hlo = "passes" alone'],
        ),
        (
            'hlo = "off"\nwitness = { hlo = ["while"], output = ["x"] }',
            ['repros/bug.py:3: witness.hlo: this is looked for in what is collected of the HLO, and hlo = "off"'],
        ),
        ("expect = 1", ["repros/bug.py:2: expect: expected a list, found 1\n  write [1]"]),
        ("expect = [1]", ["repros/bug.py:2: expect[0]: expected a table, found 1"]),
        (
            'strings = ["x"]',
            ["repros/bug.py:2: strings: only a probe looks things up in the wheels\n  add probe = true"],
        ),
        (
            "probe = true",
            [
                "repros/bug.py:2: probe: a probe looks something up: expected strings, symbols or flags",
                "repros/bug.py:4: a probe has no script; this code would never run",
            ],
        ),
        ("title = ", ["repros/bug.py:2: not TOML: column 11: invalid value\n  title ="]),
    ],
)
def test_mistakes(metadata: str, messages: list[str]) -> None:
    assert mistakes(metadata) == messages


def test_a_variable_cannot_hold_nul() -> None:
    assert mistakes('env = { A = "x\\u0000y" }') == [
        "repros/bug.py:2: env.A: a variable's value cannot hold the character U+0000"
    ]


def test_counts_have_a_bound() -> None:
    assert mistakes("repeat = 99999999") == ["repros/bug.py:2: repeat: expected at most 10000, found 99999999"]


def test_an_unknown_key_far_from_all_lists_them() -> None:
    assert mistakes("[[expect]]\noutcome = 'ok'\nzzz = 1") == [
        f"repros/bug.py:4: expect[0].zzz: unknown key{NAMES}when, outcome, signal, exit_status, signature, "
        "metrics, changed, unchanged"
    ]


def test_a_script_without_code() -> None:
    message = "repros/bug.py:3: the script has no code\n  it would end well everywhere and prove nothing"
    assert mistakes("title = 'x'", '"""Only words."""\n# and a comment\n') == [message]
    assert mistakes("title = 'x'", "") == [message]


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("print(1)\n", 0, "no metadata"),
        ("#/// repro\n# ///\n", 1, "expected `# /// repro`, found `#/// repro`"),
        ("\n# /// Repro\n# ///\n", 2, "expected `# /// repro`, found `# /// Repro`"),
        ("x = 1\n# /// repro\n# title = 'x'\n", 2, "this block does not end"),
        ("# /// repro\n# title = 'x'\nx = 1\n", 1, "this block does not end"),
        ("# /// repro\n# title = 'x'\n# /// repro\n# ///\n", 1, "this block does not end"),
        ("# /// repro\n#title = 'x'\n# ///\n", 2, "expected a comment within the block, found `#title = 'x'`"),
        ("# /// repro\n# a = 1\n\n# ///\n", 3, "expected a comment within the block, found ``"),
        ("# /// repro\n# ///\nx = 1\n# /// repro\n# ///\n", 4, "a second block"),
    ],
)
def test_wrong_blocks(source: str, line: int, message: str) -> None:
    with pytest.raises(BlockError) as caught:
        find_block(source)
    assert (caught.value.line, caught.value.message) == (line, message)


def test_a_block_may_stand_anywhere_and_beside_one_of_pep_723() -> None:
    block = find_block(
        "#!/usr/bin/env python\n# /// script\n# dependencies = []\n# ///\n\n# /// repro\n# a = 1\n#\n# ///\n"
    )
    assert (block.text, block.first, block.last) == ("a = 1\n\n", 6, 9)


def test_lines_are_those_of_the_script() -> None:
    Path("repros/bug.py").write_text('#!/usr/bin/env python\n"""Words."""\n\n' + script("\ntimeot = 1"))
    with pytest.raises(InputErrors) as caught:
        load_repro(Path("repros/bug.py"))
    assert [error.where for error in caught.value.errors] == ["repros/bug.py:6"]


def test_encodings(tmp_path: Path) -> None:
    path = tmp_path / "repros" / "bug.py"
    path.write_bytes(b"# coding: latin-1\n" + script("title = 'é'").encode("latin-1"))
    assert load_repro(path).title == "é"
    path.write_bytes(script("title = 'é'").encode("utf-8-sig").replace(b"\n", b"\r\n"))
    assert load_repro(path).title == "é"
    path.write_bytes(script("title = 'x'", "print(1)\n# \xe9\n").encode("latin-1"))
    with pytest.raises(UserError) as caught:
        load_repro(path)
    assert str(caught.value) == "repros/bug.py:5: not utf-8\n  save it as UTF-8, or declare its encoding in line 1"
    path.write_bytes(b"# coding: klingon\n" + script("").encode())
    with pytest.raises(UserError) as caught:
        load_repro(path)
    assert str(caught.value) == (
        "repros/bug.py:1: unknown encoding: klingon\n  save it as UTF-8, or declare its encoding in line 1"
    )


def test_load_repros_takes_scripts_directly_in_the_folder(tmp_path: Path) -> None:
    load("", name="b")
    load("", name="a")
    load("", name="a-1")
    (tmp_path / "repros" / "_helper.py").write_text("")
    (tmp_path / "repros" / "notes.txt").write_text("")
    (tmp_path / "repros" / "deep").mkdir()
    (tmp_path / "repros" / "deep" / "c.py").write_text("")
    assert [repro.name for repro in load_repros(Path("repros"))] == ["a", "a-1", "b"]


def test_load_repros_tells_the_mistakes_of_all(tmp_path: Path) -> None:
    (tmp_path / "repros" / "a.py").write_text("print(1)\n")
    (tmp_path / "repros" / "b.py").write_text(script("titel = 1\nrepeat = 0"))
    (tmp_path / "repros" / "c d.py").write_text(script(""))
    with pytest.raises(InputErrors) as caught:
        load_repros(Path("repros"))
    assert str(caught.value) == (
        "repros/a.py: no metadata\n  there is no `# /// repro` block; `invoke new SCRIPT` makes a repro of a script\n"
        'repros/b.py:2: titel: unknown key\n  did you mean "title"?\n'
        "repros/b.py:3: repeat: expected at least 1, found 0\n"
        "repros/c d.py: this file name cannot name a repro\n"
        "  use letters, digits, `_`, `-` and `.`, so that cells can be named after it"
    )


def test_no_folder_and_no_file() -> None:
    with pytest.raises(UserError) as caught:
        load_repros(Path("none"))
    assert str(caught.value) == "none: there is no such folder\n  `invoke new SCRIPT` makes the first repro"
    with pytest.raises(UserError) as caught:
        load_repro(Path("repros/none.py"))
    assert str(caught.value) == "repros/none.py: cannot be read: No such file or directory"


def test_the_repros_that_ship_are_right() -> None:
    assert {"hlo_pass_crash", "windowed_einsum"} <= {repro.name for repro in load_repros(ROOT / "repros")}
