"""`invoke diff`: packages, flags, passes and HLO of two environments, from recorded runs and as a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repromatrix.accepted import kept_flags
from repromatrix.compare import find_environment
from repromatrix.envs.model import Lock, Wheel
from repromatrix.errors import UserError
from repromatrix.evidence.hlo import Hlo, describe
from repromatrix.evidence.passes import LastPass, pass_log
from repromatrix.evidence.probe import Probe
from repromatrix.project import Project
from repromatrix.report import diff
from repromatrix.results.difference import (
    CellChanges,
    Difference,
    FlagChanges,
    flag_changes,
    module_changes,
    package_changes,
)
from repromatrix.results.model import CellResult
from repromatrix.spec.model import Environment, Outcome
from tests.conftest import ROOT, Checkout

DATA = ROOT / "tests" / "data" / "hlo"


def environment(jax: str, cuda: str = "12-local") -> Environment:
    return Environment((("jax", jax), ("cuda", cuda), ("python", "3.11"), ("nccl", "locked")))


def lock(release: str, /, **wheels: tuple[str, str]) -> Lock:
    """A lock of (version, day of upload) by name; a wheel's hash is its name and version."""
    made = tuple(Wheel(n, v, f"{n}-{v}.whl", f"{n} {v}", 1, f"{day}T00:00:00Z") for n, (v, day) in wheels.items())
    return Lock(environment(release), "3.11", "x86_64-manylinux_2_28", "release", "", made)


FIRST = lock("0.10.1", jax=("0.10.1", "2026-05-20"), numpy=("2.4.6", "2026-05-01"), old=("1", "2026-01-01"))
SECOND = lock("0.10.2", jax=("0.10.2", "2026-06-17"), numpy=("2.4.6", "2026-05-01"), new=("2", "2026-02-02"))


def recorded(version: str) -> tuple[Hlo, dict[str, str]]:
    """The HLO of a deviceless compilation for an H100: its texts before and after, and its pass log."""
    texts = {path.name: path.read_text() for path in (DATA / f"h100-{version}").iterdir()}
    log = DATA / f"passlog-h100-{version}.txt"  # there is none of 0.8.0
    return describe(texts, texts.__getitem__, pass_log(log.read_text() if log.is_file() else "")), texts


def result(jax: str, outcome: Outcome = Outcome.OK, reason: str = "") -> CellResult:
    env = environment(jax)
    return CellResult(
        *(f"scan@{env.id}@h100:8", "key", "scan", env.id, env.axes, "h100:8", (), "venv", "", "", outcome),
        *(0, None, None, "", None, reason, 1.0),
    )


def compared() -> CellChanges:
    (a, a_texts), (b, b_texts) = recorded("0.10.1"), recorded("0.10.2")
    return CellChanges(result("0.10.1"), result("0.10.2"), *module_changes(a, b, (a_texts.get, b_texts.get)))


def test_packages_that_differ() -> None:
    changes = package_changes(FIRST, SECOND)
    assert [(each.kind, each.name) for each in changes] == [("changed", "jax"), ("added", "new"), ("removed", "old")]
    assert Difference(FIRST, SECOND, changes).same_packages == 1
    other = replace(FIRST, wheels=(replace(FIRST.wheels[0], sha256="another"), *FIRST.wheels[1:]))
    assert [(each.kind, each.name) for each in package_changes(FIRST, other)] == [("other file", "jax")]


def test_flags_that_one_alone_accepts() -> None:
    a = Probe(known=(("xla_a", "1", "int32"), ("xla_b", "", ""), ("xla_gone", "true", "bool")))
    b = Probe(known=(("xla_a", "2", "int32"), ("xla_b", "3", "int32"), ("xla_new", "", "")))
    # The default of xla_b is told in one of the two lists only, so that nothing is known of a change.
    assert flag_changes(a, b) == FlagChanges((3, 3), ("xla_gone",), ("xla_new",), (("xla_a", "1", "2"),))


def test_the_autotuner_moved_behind_the_stream_attribute_wrapper() -> None:
    (module,) = compared().modules
    assert (module.name, module.same_before, module.same_after) == ("jit_f", True, False)
    assert module.passes is not None
    moved = {change.name: change for change in module.passes if change.kind == "moved"}
    words = moved["autotuner"].against("async-stream-attribute-wrapper")
    assert words == "autotuner: after async-stream-attribute-wrapper, was before it"
    shown = diff.text(Difference(FIRST, SECOND, package_changes(FIRST, SECOND), cells=(compared(),)))
    (line,) = [line for line in shown.splitlines() if line.startswith("  moved    autotuner:")]
    assert "async-stream-attribute-wrapper" in line
    assert line.endswith("was before them")
    assert "jit_f of scan h100:8: HLO before optimisation the same, after optimisation different" in shown


def test_kept_flags_of_a_lock(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "store")
    assert kept_flags(FIRST, project) is None
    place = project.store / "flags" / f"{FIRST.hash}.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"schema": 1, "accepted": {"xla_a": ["1", "int32"]}}')
    found = kept_flags(FIRST, project)
    assert found is not None
    assert found.known == (("xla_a", "1", "int32"),)
    assert kept_flags(SECOND, project) is None
    place.write_text('{"schema": 1, "acc')
    assert kept_flags(FIRST, project) is None, "half a file is asked for again"


def test_where_the_hlo_first_differs_is_shown() -> None:
    (a, a_texts), (b, b_texts) = recorded("0.8.0"), recorded("0.10.1")
    modules, *alone = module_changes(a, b, (a_texts.get, b_texts.get))
    assert alone == [(), ()]
    assert modules[0].passes is None, "there is no pass log of 0.8.0"
    found = Difference(FIRST, SECOND, (), cells=(CellChanges(result("0.8.0"), result("0.10.1"), modules),))
    shown = diff.text(found)
    assert "HLO before optimisation different" in shown
    assert "passes: no log of both" in shown
    assert "jit_f differs before any pass: the programs were traced differently" in shown
    assert "    +  %call.2 = bf16[3] call(" in shown, "0.10.1 calls what 0.8.0 had inlined"
    page = diff.markdown(found)
    assert "```diff\n@@" in page
    (stored,) = diff.document(found, "invoke diff")["cells"][0]["modules"]
    assert stored["first_difference"]["place"] == "before"
    assert json.loads(json.dumps(stored)) == stored


def test_a_long_difference_is_cut_and_says_so() -> None:
    (a, a_texts), (b, b_texts) = recorded("0.8.0"), recorded("0.10.1")
    modules, *_ = module_changes(a, b, (a_texts.get, b_texts.get))
    assert modules[0].first is not None
    long = "\n".join(["--- a", "+++ b", "@@ -1 +1 @@", "+" + "x" * 1000, *(f"+{n}" for n in range(500))])
    first = replace(modules[0].first, diff=long)
    changes = CellChanges(result("0.8.0"), result("0.10.1"), (replace(modules[0], first=first),))
    lines = diff.text(Difference(FIRST, SECOND, (), cells=(changes,))).splitlines()
    assert lines[-1].strip() == f"... {502 - diff.MOST_LINES} lines more, in --json"
    assert max(map(len, lines)) < diff.WIDEST + 40
    page = diff.markdown(Difference(FIRST, SECOND, (), cells=(changes,)))
    assert f"... {502 - 4 * diff.MOST_LINES} lines more" in page


def test_passes_that_differ_alike_are_shown_once() -> None:
    cell = compared()
    alike = replace(cell, modules=tuple(replace(one, same_after=True, first=None) for one in cell.modules))
    shown = diff.text(Difference(FIRST, SECOND, (), cells=(cell, alike)))
    assert shown.count("  moved    autotuner:") == 1
    assert "  the same before and after optimisation: jit_f" in shown
    assert "their passes differ as for jit_f of scan h100:8" in shown


def test_passes_that_a_failed_compilation_did_not_reach_are_no_difference() -> None:
    (a, a_texts), (b, b_texts) = recorded("0.10.1"), recorded("0.10.2")
    failed = replace(b, last=LastPass("jit_f", "autotuner", "autotuner"), modules=(replace(b.modules[0], after=""),))
    modules, *_ = module_changes(a, failed, (a_texts.get, b_texts.get))
    assert modules[0].ended == ("", "autotuner")
    shown = diff.text(Difference(FIRST, SECOND, (), cells=(CellChanges(result("0.10.1"), result("0.10.2"), modules),)))
    assert "in the second the compilation ended in or after the pass autotuner" in shown
    assert "  removed  " not in shown
    assert "those removed are not shown" in shown
    assert "  added  " in shown


def test_what_cannot_be_compared_is_said() -> None:
    lacking = CellChanges(result("0.10.1"), result("0.10.2", Outcome.SKIP, "no GPU"), missing=("jax0.10.2: no GPU",))
    shown = diff.text(Difference(FIRST, SECOND, (), None, "not known of either; --flags asks for them", (lacking,)))
    assert "scan h100:8: ok -> skip" in shown
    assert "the HLO cannot be compared: jax0.10.2: no GPU" in shown
    assert "flags: not known of either; --flags asks for them" in shown
    assert "the same" not in shown.split("scan h100:8")[1]


def test_an_environment_by_id_glob_or_version() -> None:
    known = [environment("0.10.1"), environment("0.10.1", "none"), environment("0.10.2")]
    assert find_environment("jax0.10.1-cpu-py311", known).cuda == "none"
    assert find_environment("*0.10.2*", known) == find_environment("0.10.2", known) == known[2]
    with pytest.raises(UserError, match=r"0\.10\.1 means 2 environments"):
        find_environment("0.10.1", known)
    assert find_environment("0.10.1", known, {known[0]}) == known[0], "the one that can run here"
    with pytest.raises(UserError, match=r"no environment of scan is called jax0\.10\.3") as raised:
        find_environment("jax0.10.3-cpu-py311", known, whose=" of scan")
    assert "jax0.10.1-cpu-py311" in raised.value.hint


def test_the_command_shows_packages_and_runs_nothing(checkout: Checkout) -> None:
    checkout.repro("fine", "print(1)")
    said = checkout.invoke("diff", "1.0.0", "1.1.0", "--json", "out.json", "--markdown", "out.md")
    assert said.code == 0, said.err
    assert "1.0.0 (2025-01-10)  ->  1.1.0 (2025-02-10)" in said.out
    assert "--flags asks for them" in said.out
    stored = json.loads((checkout.root / "out.json").read_text())
    changed = {each["name"]: (each["first"]["version"], each["second"]["version"]) for each in stored["packages"]}
    assert changed["jax"] == ("1.0.0", "1.1.0")
    assert "| changed " in (checkout.root / "out.md").read_text()
    assert not (checkout.root / ".repromatrix").exists()


def test_flags_that_nobody_could_ask_for_are_not_none(checkout: Checkout) -> None:
    """The stand-in wheels have a jax and no jaxlib."""
    checkout.repro("fine", "print(1)")
    said = checkout.invoke("diff", "1.0.0", "1.1.0", "--flags")
    assert said.code == 0, said.err
    assert "flags: not known of jax1.0.0-cpu" in said.out
    assert "flags that XLA accepts" not in said.out
    assert not list((checkout.root / ".repromatrix" / "programs").iterdir()), "what the program left is gone"


def test_a_script_that_compiles_nothing_is_no_comparison(checkout: Checkout) -> None:
    checkout.repro("fine", "print(1)")
    said = checkout.invoke("diff", "1.0.0", "1.1.0", "--repro", "fine")
    assert said.code == 0, said.err
    assert "fine cpu: ok -> ok" in said.out
    assert "the HLO cannot be compared" in said.out
    assert "no module was compiled" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("1.0.0", "1.0.0"), "are one environment"),
        (("1.0.0", "7.0"), "no environment is called 7.0"),
        (("1.0.0", "1.1.0", "--target", "cpu"), "choose cells of a repro"),
        (("1.0.0", "1.1.0", "--repro", "absent"), 'repro "absent" matches nothing'),
        (("1.0.0", "1.1.0", "--repro", "fine", "--param", "n"), "is not name=value"),
        (("1.0.0", "1.1.0", "--markdown", "no/such/folder.md"), "no such folder"),
    ],
)
def test_wrong_words_are_refused(checkout: Checkout, words: tuple[str, ...], told: str) -> None:
    checkout.repro("fine", "print(1)")
    said = checkout.invoke("diff", *words)
    assert (said.code, "Traceback" in said.err) == (2, False)
    assert told in said.err


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="there is a GPU")
def test_without_a_gpu_nothing_is_captured(checkout: Checkout) -> None:
    said = checkout.invoke("target", "--capture", "mine")
    assert said.code == 2
    assert "there is no NVIDIA GPU here to describe" in said.err
    assert checkout.invoke("target").code == 2
    assert "is no name of a target" in checkout.invoke("target", "--capture", "../x").err
