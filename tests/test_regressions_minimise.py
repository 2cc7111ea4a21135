"""`invoke minimise` end to end, on environments of tiny wheels: packages, flags, variables, thresholds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import UserError
from repromatrix.plan import Request, choose, load
from repromatrix.project import Project
from repromatrix.regressions.minimising import schema
from repromatrix.regressions.minimising.mixing import mixing
from repromatrix.regressions.minimising.variants import flags_of, variables_of, with_flags, with_values, with_variables
from repromatrix.report.escape import prose
from repromatrix.report.schema import text as schema_text
from repromatrix.spec.model import Cell, Environment
from tests.conftest import ROOT, Checkout, Said
from tests.fake_index import FakeIndex, make_wheel

NAMES = [f"part{letter}" for letter in "abcdefghijkl"]
LATER = "2025-02-01T12:00:00Z"

OVERRIDE = """
[[override]]
select = "jax1.0.0-*"
as_of = "2025-02-10"
"""


def publish(index: FakeIndex, bodies: dict[str, tuple[str, str]] | None = None, **requires: list[str]) -> None:
    """Version 1 of each part in January, version 2 in February, with these texts and, of the newer, requirements."""
    for name in NAMES:
        old, new = (bodies or {}).get(name, ("", ""))
        index.add(name, "1.0", {f"{name}.py": f"version = 1\n{old}"})
        index.add(name, "2.0", {f"{name}.py": f"version = 2\n{new}"}, requires=requires.get(name, []), uploaded=LATER)


def parts_of(checkout: Checkout, name: str, body: str, **metadata: str) -> None:
    """A repro that needs all parts, of jax 1.0.0, whose environment is locked as of February."""
    packages = "[" + ", ".join(f'"{each}"' for each in NAMES) + "]"
    checkout.repro(name, body, jax='["1.0.0"]', packages=packages, **metadata)
    matrix = checkout.root / "matrix.toml"
    if OVERRIDE not in matrix.read_text():
        matrix.write_text(matrix.read_text() + OVERRIDE)


def minimise(checkout: Checkout, *args: str) -> tuple[Said, dict[str, Any]]:
    """(what it said, the document that it wrote, which is as its schema says)."""
    path = checkout.root / "found.json"
    path.unlink(missing_ok=True)
    said = checkout.invoke("minimise", *args, "--json", str(path))
    if not path.is_file():
        return said, {}
    document = json.loads(path.read_text())
    jsonschema.Draft202012Validator(schema.schema()).validate(document)
    return said, document["minimised"]


def needed(found: dict[str, Any], what: str = "packages") -> list[str]:
    names: list[str] = next(part for part in found["parts"] if part["what"] == what)["needed"]
    return names


TWO_FLAGS = '{ XLA_FLAGS = "--xla_good --xla_bad" }'
FAULT = "import sys, partd\nif partd.version == 2: sys.exit('partd 2 is broken')\n"


def test_one_package_at_fault_among_twelve(checkout: Checkout, index: FakeIndex) -> None:
    publish(index)
    parts_of(checkout, "one", FAULT)
    said, found = minimise(checkout, "one", "--good", "release")
    assert said.code == 0, said.err
    assert "packages: partd 1.0 -> 2.0 alone makes it fail in jax1.0.0-cpu-py" in said.out.replace("\n  ", " ")
    assert "of 12 packages that differ" in said.out.replace("\n  ", " ")
    assert needed(found) == ["partd"]
    part = found["parts"][0]
    assert len(part["items"]) == 12
    assert part["items"][3] == {"name": "partd", "without": "1.0", "with": "2.0"}
    assert part["without"]["partd"]["verdict"] == "good"
    assert len(part["path"]) <= 2 + 4 + 1  # the ends, log2(12), and the culprit alone
    assert {tried["verdict"] for tried in part["path"]} == {"good", "bad"}
    assert found["answer"] == "found"
    assert (checkout.root / "reports" / "minimise-one.md").read_text().startswith("## `one`: what makes it fail")
    # Nothing of a mixture is written where environments of the matrix are.
    locks = {path.name for path in (checkout.root / "containers" / "locks").glob("*.txt")}
    assert len(locks) == 2, locks
    # All was kept: the same command runs nothing.
    again, same = minimise(checkout, "one", "--good", "release")
    assert again.code == 0
    assert needed(same) == ["partd"]
    assert sum(tried["attempted"] for tried in same["parts"][0]["path"]) == 0


def test_a_variant_stands_in_for_no_result_of_the_matrix(checkout: Checkout) -> None:
    """The last known result of a cell must be its own: without one of its flags it is well."""
    flags = '{ XLA_FLAGS = "--xla_a=1 --xla_b=1", OTHER = "1" }'
    body = "import os, sys\nsys.exit('--xla_b' in os.environ['XLA_FLAGS'])\n"
    checkout.repro("flagged", body, jax='["1.0.0"]', env=flags)
    assert minimise(checkout, "flagged", "--env", "jax1.0.0-*")[0].code == 0
    cells = json.loads(checkout.invoke("report", "--json", "-").out)["cells"]
    assert [(cell["repro"], cell["outcome"]) for cell in cells] == [("flagged", "error")]


def test_two_packages_that_are_needed_together(checkout: Checkout, index: FakeIndex) -> None:
    publish(index)
    body = "import sys, partb, partk\nif partb.version == partk.version == 2: sys.exit('both are new')\n"
    parts_of(checkout, "two", body)
    said, found = minimise(checkout, "two", "--good", "release", "--jobs", "2")
    assert said.code == 0, said.err
    assert needed(found) == ["partb", "partk"]
    part = found["parts"][0]
    assert {name: tried["verdict"] for name, tried in part["without"].items()} == {"partb": "good", "partk": "good"}
    assert "partb 1.0 -> 2.0 and partk 1.0 -> 2.0 together make it fail" in said.out.replace("\n  ", " ")


def test_a_mixture_that_cannot_be_imported_is_no_culprit(checkout: Checkout, index: FakeIndex) -> None:
    """Newer partc needs newer parth, by its metadata and at its import; the failure is partd's."""
    needs_h = "import parth\nif parth.version < 2: raise ImportError('partc 2 needs parth 2')\n"
    publish(index, {"partc": ("", needs_h)}, partc=["parth>=2"])
    parts_of(checkout, "torn", f"import partc\n{FAULT}")
    said, found = minimise(checkout, "torn", "--good", "release")
    assert said.code == 0, said.err
    assert needed(found) == ["partd"]
    # What is required comes first, so that this search met no mixture that metadata forbids.
    assert all(not tried["why"] for tried in found["parts"][0]["path"]), said.out


def test_a_mixture_that_fails_otherwise_says_nothing(checkout: Checkout, index: FakeIndex) -> None:
    """Here no metadata tells: partc 2 cannot be imported beside an older parth, and partd is at fault."""
    needs_h = "import parth\nif parth.version < 2: raise ImportError('partc 2 needs parth 2')\n"
    publish(index, {"partc": ("", needs_h)})
    parts_of(checkout, "torn", f"import partc\n{FAULT}")
    said, found = minimise(checkout, "torn", "--good", "release")
    assert said.code == 0, said.err
    assert needed(found) == ["partd"]
    unknown = [tried for tried in found["parts"][0]["path"] if tried["verdict"] == "unknown"]
    assert unknown, said.out
    assert all("partc" in tried["changed"] and "parth" not in tried["changed"] for tried in unknown)
    assert all(tried["why"].startswith("another failure: ") for tried in unknown)
    assert "other failure" in said.out


def test_packages_that_pin_each_other_move_together_and_are_then_tried_apart(
    checkout: Checkout, index: FakeIndex
) -> None:
    """As jaxlib and its plugins. The mixture that metadata forbids is named, and it is the answer all the same."""
    publish(index, partf=["partg==2.0"])
    body = "import sys, partf\nif partf.version == 2: sys.exit('partf 2 is broken')\n"
    parts_of(checkout, "pinned", body)
    said, found = minimise(checkout, "pinned", "--good", "release")
    assert said.code == 0, said.err
    assert needed(found) == ["partf"]
    part = found["parts"][0]
    assert part["contradictions"] == ["partf 2.0 requires partg==2.0, and 1.0 is there"]
    assert "The mixture is one that metadata forbids: partf 2.0 requires partg==2.0" in said.out.replace("\n  ", " ")
    moved = [tried["changed"] for tried in part["path"]]
    assert ["partf", "partg"] in moved
    before = moved[: moved.index(["partf", "partg"])]
    assert all(("partf" in names) == ("partg" in names) for names in before)


def test_a_package_that_only_one_environment_has(checkout: Checkout, index: FakeIndex) -> None:
    publish(index, parta=["extra"])
    index.add("extra", "1.0", {"extra.py": ""}, uploaded=LATER)
    body = "import sys\ntry:\n    import extra\nexcept ImportError:\n    pass\nelse:\n    sys.exit('extra is there')\n"
    parts_of(checkout, "added", body)
    said, found = minimise(checkout, "added", "--good", "release")
    assert said.code == 0, said.err
    assert needed(found) == ["extra"]
    assert next(item for item in found["parts"][0]["items"] if item["name"] == "extra")["without"] == ""
    assert "extra none -> 1.0 alone makes it fail" in said.out.replace("\n  ", " ")


def test_two_releases_are_mixed(checkout: Checkout) -> None:
    """The good environment is another one of the matrix: jax and jaxlib are two wheels that differ."""
    body = "import sys, jax\nsys.exit(jax.__version__ == '1.1.0')\n"
    checkout.repro("release", body)
    said, found = minimise(checkout, "release", "--env", "jax1.1.0-*", "--good", "1.0.0")
    assert said.code == 0, said.err
    assert needed(found) == ["jax"]
    assert found["parts"][0]["good"].startswith("jax1.0.0-cpu")


def test_flags_and_variables(checkout: Checkout) -> None:
    flags = " ".join(f"--xla_flag_{number}={number}" for number in range(9))
    variables = ", ".join(f'VARIABLE_{number} = "{number}"' for number in range(5))
    body = (
        "import os, sys\n"
        "flags = os.environ.get('XLA_FLAGS', '').split()\n"
        "assert os.environ['JAX_PLATFORMS'] == 'cpu'\n"
        "assert '--xla_force_host_platform_device_count=4' in flags, flags\n"
        "print('flags', *flags)\n"
        "if {'--xla_flag_2=2', '--xla_flag_7=7'} <= {*flags} and 'VARIABLE_3' in os.environ: sys.exit('as asked')\n"
    )
    checkout.repro("many", body, targets='["cpu:4"]', env=f'{{ XLA_FLAGS = "{flags}", {variables} }}')
    said, found = minimise(checkout, "many", "--env", "jax1.0.0-*")
    assert said.code == 0, said.err
    assert needed(found, "flags") == ["--xla_flag_2=2", "--xla_flag_7=7"]
    assert needed(found, "env") == ["VARIABLE_3"]
    shown = said.out.replace("\n  ", " ")
    assert "flags: --xla_flag_2=2 and --xla_flag_7=7 together make it fail, of 9 XLA flags" in shown
    assert "env: VARIABLE_3=3 alone makes it fail, of 5 variables" in shown
    assert len(found["parts"][1]["path"]) <= 2 + 3 + 1
    one, _ = minimise(checkout, "many", "--env", "jax1.0.0-*", "--what", "env")
    assert "XLA flags" not in one.out


def test_what_fails_without_any_flag(checkout: Checkout) -> None:
    checkout.repro("always", "raise SystemExit('always')\n", env='{ XLA_FLAGS = "--xla_a=1 --xla_b=2" }')
    said, found = minimise(checkout, "always", "--env", "jax1.0.0-*")
    assert said.code == 1, said.err
    assert found["answer"] == "nothing"
    assert "flags: it fails without any of the 2 XLA flags" in said.out


def test_a_threshold_over_a_range(checkout: Checkout) -> None:
    body = (
        "import os, sys\n"
        "size = int(sys.argv[sys.argv.index('--size') + 1])\n"
        "assert os.environ['REPRO_SIZE'] == os.environ['TWICE'] == str(size)\n"
        "if size > 1024: sys.exit('too large')\n"
    )
    checkout.repro("large", body, params="{ size = [8, 4096] }", env='{ TWICE = "{size}" }')
    said, found = minimise(checkout, "large", "--env", "jax1.0.0-*", "--what", "threshold", "--param", "size=1..9000")
    assert said.code == 0, said.err
    part = found["parts"][0]
    (boundary,) = part["boundaries"]
    assert boundary.pop("confidence") >= 0.99
    assert boundary == {"below": 1024, "above": 1025, "fails": "above", "between": []}
    assert "size: fails above 1024, at or below it does not (at least 99.1 % sure)" in said.out
    lines = [line.split()[:3] for line in said.out.splitlines()]
    assert ["1024", "good", "ok"] in lines
    assert ["1025", "bad", "error"] in lines
    values = [row["value"] for row in part["rows"]]
    assert values == sorted(values)
    assert {1, 8, 4096, 9000} <= {*values}
    assert len(values) <= 25
    # Without a range: between the declared values, as both are known now.
    said, found = minimise(checkout, "large", "--env", "jax1.0.0-*", "--what", "threshold")
    assert said.code == 0, said.err
    assert [(one["below"], one["above"]) for one in found["parts"][0]["boundaries"]] == [(1024, 1025)]
    assert (found["parts"][0]["low"], found["parts"][0]["high"]) == (8, 4096)


def test_a_second_change_is_seen_and_floats_are_bisected(checkout: Checkout) -> None:
    body = "import sys\nx = float(sys.argv[-1])\nif 0.3 < x < 0.6: sys.exit('in between')\n"
    checkout.repro("band", body, params="{ x = [0.5] }")
    said, found = minimise(checkout, "band", "--env", "jax1.0.0-*", "--param", "x=0..1", "--confidence", "0")
    assert said.code == 0, said.err
    first, second = found["parts"][0]["boundaries"]
    assert first["below"] <= 0.3 < first["above"]
    assert first["fails"] == "above"
    assert second["below"] < 0.6 <= second["above"]
    assert second["fails"] == "below"
    assert first["above"] - first["below"] < 0.001


def test_a_failure_that_comes_and_goes(checkout: Checkout) -> None:
    """It fails in two of three attempts, by a counter in a file: passes must not make a culprit of what is none."""
    body = (
        "import os, sys\n"
        f"path = {str(checkout.root / 'counter')!r}\n"
        "count = os.path.getsize(path) if os.path.exists(path) else 0\n"
        "open(path, 'a').write('x')\n"
        "if '--xla_bad' in os.environ.get('XLA_FLAGS', '') and count % 3: sys.exit('now and then')\n"
    )
    checkout.repro("flaky", body, env='{ XLA_FLAGS = "--xla_a --xla_bad --xla_c" }')
    said, found = minimise(checkout, "flaky", "--env", "jax1.0.0-*", "--rate", "0.3")
    assert said.code == 0, said.err
    assert needed(found, "flags") == ["--xla_bad"]
    assert found["rate"]["low"] < 0.67 < found["rate"]["high"]
    assert "The failure comes and goes" in said.out
    without = found["parts"][0]["without"]["--xla_bad"]
    assert without["verdict"] == "good"
    assert without["rates"][0]["of"] >= 5


def test_attempts_that_are_too_few_to_tell(checkout: Checkout) -> None:
    body = "import os, sys\nsys.exit('--xla_bad' in os.environ.get('XLA_FLAGS', ''))\n"
    checkout.repro("flaky", body, env='{ XLA_FLAGS = "--xla_a --xla_bad" }')
    said, found = minimise(checkout, "flaky", "--env", "jax1.0.0-*", "--rate", "0.1", "--attempts", "3")
    assert said.code == 1, said.err
    assert found["answer"] == "ambiguous"
    assert "AMBIGUOUS without --xla_bad" in said.out


@pytest.mark.parametrize(("attempts", "sure"), [("3", "at least 93.7 % sure"), ("1", "not confirmed")])
def test_an_answer_that_is_less_sure_than_asked_for_is_ambiguous(checkout: Checkout, attempts: str, sure: str) -> None:
    """Nothing came and went, yet so few attempts would not have shown it."""
    checkout.repro("few", "import sys\nsys.exit(int(sys.argv[-1]) > 5)", params="{ n = [1, 8] }", env=TWO_FLAGS)
    said, found = minimise(checkout, "few", "--env", "jax1.0.0-*", "--param", "n=1..8", "--attempts", attempts)
    assert said.code == 1, said.err
    assert found["answer"] == "ambiguous"
    (boundary,) = found["parts"][-1]["boundaries"]
    assert boundary["below"] == 5
    assert f"n: fails above 5, at or below it does not ({sure})" in said.out
    few = "1 attempt does" if attempts == "1" else f"{attempts} attempts do"
    assert f"AMBIGUOUS at 5: {few} not tell at a confidence of 99 %; --attempts allows more." in said.out
    rows = {row["value"]: row["verdict"] for row in found["parts"][-1]["rows"]}
    assert rows == {value: "ambiguous" if value == 5 else "bad" if value > 5 else "good" for value in rows}


def test_how_sure_it_is_and_where_it_was_tried(checkout: Checkout) -> None:
    body = "import os, sys\nsys.exit('--xla_bad' in os.environ['XLA_FLAGS'] and 'broken')\n"
    checkout.repro("flagged", body, env=f"{TWO_FLAGS[:-2]}, OTHER = '1' }}")
    said, found = minimise(checkout, "flagged", "--env", "jax1.0.0-*")
    assert said.code == 0, said.err
    shown = said.out.replace("\n  ", " ")
    assert "flags: --xla_bad alone makes it fail, of 2 XLA flags (at least 99.1 % sure)" in shown
    flags, others = found["parts"]
    assert flags["confidence"].keys() == {"--xla_bad"}
    assert others["needed"] == []
    # The failing cell is in both paths, and was tried once.
    tried = {one["cell"]["id"]: one for part in found["parts"] for one in part["path"]}
    assert len(tried) < len(flags["path"]) + len(others["path"])
    made = sum(one["attempted"] for one in tried.values())
    assert made == sum(len(one["cell"]["attempts"]) for one in tried.values())
    assert f"{len(tried)} variants tried by venv, {made} attempts, in " in shown
    page = (checkout.root / "reports" / "minimise-flagged.md").read_text()
    assert "(at least 99.1 % sure)**" in page
    assert "#### XLA flags" in page
    assert f"On a host with {prose('; '.join(f'{name} {value}' for name, value in found['facts'].items()))}." in page
    said, found = minimise(checkout, "flagged", "--env", "jax1.0.0-*", "--what", "flags", "--confidence", "0")
    assert "of 2 XLA flags (at least 99.1 % sure)" in said.out.replace("\n  ", " ")
    assert f"attempts ({made - 1} of them known before)" in said.out
    # Seven further attempts, an odd number, would make it 0.9916.
    said, found = minimise(checkout, "flagged", "--env", "jax1.0.0-*", "--confidence", "0.992")
    assert (said.code, found["answer"]) == (0, "found")
    assert found["parts"][0]["confidence"]["--xla_bad"] >= 0.992


def test_the_schema_is_checked_in() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    kept = (ROOT / "schemas" / schema.NAME).read_text()
    assert kept == schema_text(schema.schema()), "run: python -m repromatrix.regressions.minimising.schema"


def test_a_killed_search_goes_on(checkout: Checkout, index: FakeIndex) -> None:
    publish(index)
    parts_of(checkout, "slow", f"import time; time.sleep(0.5)\n{FAULT}")
    search = ["minimise", "slow", "--good", "release", "--json", "found.json"]
    process = subprocess.Popen(
        checkout.command(*search), cwd=checkout.root, env=checkout.environ, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("packages: 6 of 12") and " bad " in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    said, found = minimise(checkout, "slow", "--good", "release")
    assert said.code == 0, said.err
    assert needed(found) == ["partd"]
    path = found["parts"][0]["path"]
    assert [tried["attempted"] for tried in path[:3] if len(tried["changed"]) == 6] == [0]
    assert path[-1]["attempted"] > 0


def test_ctrl_c_tells_what_is_known(checkout: Checkout, index: FakeIndex) -> None:
    publish(index)
    parts_of(checkout, "slow", f"import time; time.sleep(0.5)\n{FAULT}")
    process = subprocess.Popen(
        checkout.command("minimise", "slow", "--good", "release", "--json", "found.json"),
        cwd=checkout.root,
        env=checkout.environ,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("packages: 6 of 12") and " bad " in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "packages: interrupted, with no answer yet for the 12 packages that differ" in out
    assert "Traceback" not in err
    document = json.loads((checkout.root / "found.json").read_text())
    jsonschema.Draft202012Validator(schema.schema()).validate(document)
    found = document["minimised"]
    assert found["answer"] == "interrupted"
    assert found["parts"][0]["path"]


def test_standard_output_can_be_the_document(checkout: Checkout) -> None:
    checkout.repro("always", "raise SystemExit('always')\n", env='{ A = "1" }')
    said = checkout.invoke("minimise", "always", "--env", "jax1.0.0-*", "--json", "-")
    assert json.loads(said.out)["minimised"]["answer"] == "nothing"
    said = checkout.invoke("minimise", "always", "--env", "jax1.0.0-*", "--markdown", "-")
    assert said.out.startswith("## `always`: what makes it fail")
    both = checkout.invoke("minimise", "always", "--json", "-", "--markdown", "-")
    assert both.code == 2


def test_a_good_neighbour_that_is_known_is_named(checkout: Checkout) -> None:
    checkout.repro("since", "import sys, jax\nsys.exit(jax.__version__ > '1.0.0')\n", env='{ A = "1" }')
    assert checkout.invoke("matrix", "--repro", "since").code == 1
    said, found = minimise(checkout, "since")
    assert said.code == 1
    assert found["hints"][0].startswith("the failure is known by how it ends alone, `exit 1`")
    assert found["hints"][1:] == [
        f"in jax1.0.0-{_kind()} it is ok: `--good jax1.0.0-{_kind()}` looks for the packages that make the difference"
    ]
    assert minimise(checkout, "since", "--good", f"jax1.0.0-{_kind()}")[0].code == 0


def _kind() -> str:
    return f"cpu-py{sys.version_info.major}{sys.version_info.minor}"


def test_wrong_input_is_told(checkout: Checkout) -> None:
    checkout.repro("fine", "print('fine')\n")
    checkout.repro("fails", "raise SystemExit('always')\n", params="{ n = [1] }", jax='["1.0.0", "1.1.0"]')
    for line, message in WRONG.items():
        said = checkout.invoke("minimise", *line.split())
        assert message in said.err, (line, said.err)
        assert said.code == 2, line
        assert "Traceback" not in said.err, said.err


WRONG = {
    "nothing": '--repro "nothing" matches nothing',
    "f*": "means 2 repros",
    "fine --env jax1.0.0-*": "this cell does not fail: ok",
    "fails --env jax1.0.0-*": "nothing can be minimised",
    "fails --env jax1.0.0-* --what flags": "flags cannot be minimised",
    "fails --env jax1.0.0-* --what packages": "--good ENV",
    "fails --env jax1.0.0-* --what package": "did you mean",
    "fails --env jax1.0.0-* --good jax9": "no environment is called jax9",
    "fails --env jax1.0.0-* --good 1.0.0": "is the failing environment itself",
    "fails --env jax1.0.0-* --good 1.1.0": "is not good: error",
    "fails --env jax1.0.0-* --good 1.1.0 --what env": "env cannot be minimised",
    "fails --env jax1.0.0-* --param size=1..9": "no parameter 'size'",
    "fails --env jax1.0.0-* --param n=9..1": "the first number must be the smaller one",
    "fails --env jax1.0.0-* --param n=1..x": "'x' is no number",
    "fails --json no/such/folder": "cannot write",
}


# --- mixtures ---------------------------------------------------------------------------------------------------------


def put(store: WheelStore, name: str, version: str, *requires: str) -> Wheel:
    """A wheel in the store, with this metadata."""
    made = make_wheel(store.root / "made", name, version, {}, requires)
    wheel = Wheel(name, version, made.name, f"{name}-{version}".encode().hex().ljust(64, "0"), 0, "")
    store.place(wheel).parent.mkdir(parents=True, exist_ok=True)
    made.rename(store.place(wheel))
    return wheel


def lock_of(*wheels: Wheel, python: str = "3.11", cuda: str = "12", packages: tuple[str, ...] = ()) -> Lock:
    axes = (("jax", "1.0"), ("cuda", cuda), ("python", python), ("nccl", "locked"))
    environment = Environment(axes, "release", packages)
    return Lock(
        environment, python, "x86_64-manylinux_2_28", "release", "", tuple(sorted(wheels, key=lambda w: w.name))
    )


def test_what_is_bound_by_metadata_moves_together_and_what_is_required_first(tmp_path: Path) -> None:
    store = WheelStore(tmp_path)
    first, second = (
        lock_of(
            put(store, "jax", v, f"jaxlib=={v}", f'jax-cuda12-plugin[with-cuda]=={v}; extra == "cuda12"'),
            put(store, "jaxlib", v, "scipy>=1.0"),
            put(store, "jax-cuda12-plugin", v, f"jax-cuda12-pjrt=={v}"),
            put(store, "jax-cuda12-pjrt", v),
            put(store, "scipy", v, "numpy>=1.0"),
            put(store, "flax", v, "jax>=1.0", 'typing-extensions==9; python_version < "3.5"'),
            put(store, "numpy", v),
            put(store, "same", "1.0"),
        )
        for v in ("1.0", "2.0")
    )
    mixed = mixing(first, second, store)
    family = ("jax", "jax-cuda12-pjrt", "jax-cuda12-plugin", "jaxlib")
    assert family in mixed.groups
    flat = [name for group in mixed.groups for name in group]
    assert flat.index("numpy") < flat.index("scipy")
    assert flat.index("jax") < flat.index("flax")
    assert len(flat) == 7
    torn = mixed.mixture(["jaxlib"])
    assert mixed.contradictions(torn) == ("jax 1.0 requires jaxlib==1.0, and 2.0 is there",)
    assert mixed.contradictions(mixed.mixture(["numpy", "scipy"])) == ()
    assert torn.version("jaxlib") == "2.0"
    assert torn.version("jax") == "1.0"
    assert torn.environment.packages == ("jaxlib===2.0",)
    moved = mixed.mixture(family)
    assert moved.environment.jax == "2.0"
    assert len({torn.id, moved.id, first.id}) == 3
    assert mixed.mixture([]) is first
    assert mixed.mixture(flat) is second


def test_every_mixture_has_an_environment_of_its_own(tmp_path: Path) -> None:
    store = WheelStore(tmp_path)
    a, b, c, d = (put(store, name, "1.0") for name in ("a", "b", "c", "d"))
    newer = replace(a, version="2.0", sha256="2" * 64), replace(b, filename="b-1.0-cp311-none-any.whl", sha256="3" * 64)
    good, bad = lock_of(a, b, c, packages=("a==1.0", "other")), lock_of(*newer, d)
    mixed = mixing(good, bad, store)
    names = [change.name for change in mixed.changes]
    assert [change.kind for change in mixed.changes] == ["changed", "other file", "removed", "added"]
    made = [
        mixed.mixture(name for bit, name in enumerate(names) if number >> bit & 1) for number in range(2 ** len(names))
    ]
    assert len({lock.environment for lock in made}) == len({lock.hash for lock in made}) == 16
    assert mixed.mixture(["a", "c"]).environment.packages == ("a===2.0", "c===none", "other")
    assert [wheel.name for wheel in mixed.mixture(["a", "c"]).wheels] == ["a", "b"]


def test_a_mixture_never_has_the_name_of_an_environment_of_the_matrix(tmp_path: Path) -> None:
    """Here the failing environment pins what is moved; the mixture lacks what came with it."""
    store = WheelStore(tmp_path)
    old, new = ([put(store, name, v) for name in ("numpy", "scipy")] for v in ("1.0", "2.0"))
    good, bad = lock_of(*old, packages=("scipy==1.0",)), lock_of(*new, packages=("scipy==2.0",))
    mixed = mixing(good, bad, store).mixture(["scipy"])
    assert mixed.hash != bad.hash
    assert mixed.id != bad.id


def test_what_cannot_be_mixed(tmp_path: Path) -> None:
    store = WheelStore(tmp_path)
    one, two = put(store, "a", "1.0"), put(store, "a", "2.0")
    with pytest.raises(UserError, match="their Python differs"):
        mixing(lock_of(one), lock_of(two, python="3.12"), store)
    with pytest.raises(UserError, match="their CUDA differs"):
        mixing(lock_of(one, cuda="none"), lock_of(two), store)
    with pytest.raises(UserError, match="have the same wheels"):
        mixing(lock_of(one), lock_of(one, packages=("a==1.0",)), store)
    (store.place(two)).write_bytes(b"no archive")
    assert mixing(lock_of(one), lock_of(two), store).contradictions(lock_of(two)) == ()


# --- variants ---------------------------------------------------------------------------------------------------------


def shipped(repro: str, target: str, jax: str) -> Cell:
    matrix, repros = load(Project(ROOT, ROOT / "store"))
    request = Request(repro=repro, env="*", target=target)
    return next(cell for cell in choose(matrix, repros, request, "venv").cells if cell.environment.jax == jax)


def test_the_flags_of_a_deviceless_cell_that_are_the_tools_own_stay() -> None:
    cell = shipped("windowed_einsum", "h100:8", "0.10.2")
    flags = [item.name for item in flags_of(cell)]
    assert flags == ["--xla_gpu_multi_streamed_windowed_einsum=true", "--xla_gpu_threshold_for_windowed_einsum_mib=0"]
    bare = with_flags(cell, [])
    assert dict(bare.env)["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    assert dict(bare.env)["JAX_PLATFORMS"] == dict(cell.env)["JAX_PLATFORMS"]
    assert bare.described == cell.described
    assert flags_of(bare) == ()
    one = with_flags(cell, flags[1:])
    assert dict(one.env)["XLA_FLAGS"] == f"{flags[1]} --xla_gpu_autotune_level=0"
    assert len({cell.id, bare.id, one.id}) == 3
    assert with_flags(cell, flags) is cell
    assert variables_of(cell) == ()


def test_a_variable_that_the_repro_takes_from_the_tool_is_given_back() -> None:
    cell = shipped("hlo_pass_crash", "cpu", "0.7.1")
    other = replace(cell, env=(*((n, "" if n == "JAX_PLATFORMS" else v) for n, v in cell.env), ("OWN", "1")))
    assert [item.name for item in variables_of(other)] == ["JAX_PLATFORMS", "OWN"]
    bare = with_variables(other, [])
    assert dict(bare.env) == dict(cell.env)
    assert dict(with_variables(other, ["OWN"]).env) == {**dict(cell.env), "OWN": "1"}


def test_values_that_are_not_declared_reach_the_script_and_claims_hold_for_declared_ones() -> None:
    cell = shipped("windowed_einsum", "h100:8", "0.10.2")
    matrix, _ = load(Project(ROOT, ROOT / "store"))
    made = with_values(matrix, cell, "per_dev", [1024, 1025], "venv")
    assert made[1024].expect is not None
    assert made[1025].expect is None
    assert dict(made[1025].env)["REPRO_PER_DEV"] == "1025"
    assert made[1025].id == cell.id.replace("per_dev=1024", "per_dev=1025")
    with pytest.raises(UserError, match="no parameter 'size'"):
        with_values(matrix, cell, "size", [1], "venv")


# --- real wheels ------------------------------------------------------------------------------------------------------

REAL = """\
[matrix]
jax = ["{version}"]
{axes}
cuda = ["none"]
python = ["3.11"]
as_of = "{as_of}"

[bases."3.11"]
debian = "bookworm"

[run]
engine = "venv"
timeout = "2m"
"""


def real(folder: Path, *args: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, document, what was printed) of a checkout of its own; the store is the user's."""
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "minimise", *args, "--json", "found.json"]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    path = folder / "found.json"
    assert path.is_file(), done.stderr
    return done.returncode, json.loads(path.read_text())["minimised"], done.stdout


@pytest.mark.network
@pytest.mark.slow
def test_scipy_is_at_fault_among_more_than_ten_packages(tmp_path: Path) -> None:
    """jax-ml/jax#20565: what pip chose beside jax 0.4.23 in April 2024 and did not yet in February."""
    (tmp_path / "repros").mkdir()
    (tmp_path / "matrix.toml").write_text(REAL.format(version="0.4.23", axes="", as_of="2024-04-20"))
    (tmp_path / "repros" / "beside.py").write_text(
        '# /// repro\n# targets = ["cpu"]\n# packages = ["flax", "optax"]\n# ///\nimport jax.scipy.linalg\n'
    )
    code, found, printed = real(tmp_path, "beside", "--good", "2024-02-20", "--confidence", "0")
    assert code == 0, printed
    part = found["parts"][0]
    assert len(part["items"]) > 10
    assert part["needed"] == ["scipy"]
    assert next(item for item in part["items"] if item["name"] == "scipy") == {
        "name": "scipy",
        "without": "1.12.0",
        "with": "1.13.0",
    }
    assert len(part["path"]) <= 7
    assert "tril" in found["failure"]
    assert part["contradictions"] == []  # it is the range of jax itself that is too wide


@pytest.mark.network
@pytest.mark.slow
def test_the_size_at_which_a_real_crash_begins(tmp_path: Path) -> None:
    """jax-ml/jax#40412: 0.10.2 crashes where the fused dimension is large enough; how large, the CPU decides."""
    (tmp_path / "repros").mkdir()
    (tmp_path / "matrix.toml").write_text(REAL.format(version="0.10.2", axes="", as_of="release"))
    script = [
        "# /// repro",
        "# params = { size = [1, 16] }",
        "# ///",
        "import sys, jax, jax.numpy as jnp",
        "shape = (3, 1, 2, 2, int(sys.argv[-1]), 8, 8)",
        "p, q = (jax.random.normal(key, shape, jnp.float32) for key in jax.random.split(jax.random.PRNGKey(0)))",
        "print(float(jax.jit(lambda a, b: (a * b).sum(axis=3))(p, q).sum()))",
    ]
    (tmp_path / "repros" / "fused.py").write_text("\n".join(script) + "\n")
    code, found, printed = real(tmp_path, "fused", "--param", "size=1..16", "--confidence", "0")
    assert code == 0, printed
    (boundary,) = found["parts"][0]["boundaries"]
    below = boundary["below"]
    assert boundary == {"below": below, "above": below + 1, "fails": "above", "between": [], "confidence": 0.0}
    assert f"size: fails above {below}, at or below it does not" in printed
    rows = {row["value"]: row for row in found["parts"][0]["rows"]}
    assert {value: row["verdict"] for value, row in rows.items()} == {
        value: "bad" if value > below else "good" for value in rows
    }
    assert rows[below + 1]["cell"]["signal"] == "SIGSEGV"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--param", "size=1..1e999"], "'1e999' is no number"),
        (["--param", "size=-1e999..1"], "'-1e999' is no number"),
        (["--param", "size=1..99999999999999999999"], "99999999999999999999 is too large"),
        (["--good", "2025-02-31"], "'2025-02-31' is no day"),
        (["--good", "2999-01-01"], "2999-01-01 lies in the future"),
    ],
)
def test_what_is_no_number_or_day_is_refused_before_anything_runs(
    checkout: Checkout, args: list[str], told: str
) -> None:
    checkout.repro("limit", "raise SystemExit(1)", jax='["1.0.0"]', params="{ size = [8] }")
    said, found = minimise(checkout, "limit", *args)
    assert said.code == 2, said.err
    assert told in said.err
    assert "Traceback" not in said.err
    assert not found
    assert "attempt" not in said.err


def test_a_failure_without_a_message_is_noted(checkout: Checkout) -> None:
    """Whatever ends so counts as the same, and the least rate that a number can be is no trouble."""
    checkout.repro("bare", "import os; os._exit(3 * (os.environ.get('A') == '1'))", jax='["1.0.0"]', env='{ A = "1" }')
    said, found = minimise(checkout, "bare", "--rate", "5e-324", "--attempts", "2")
    assert "Traceback" not in said.err
    assert any("known by how it ends alone, `exit 3`" in hint for hint in found["hints"])
