"""The tool's own dependencies: one set of versions, everywhere, and no index address in a lock."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions

from tests.conftest import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PINS = dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", LOCK, re.MULTILINE))


def test_uv_run_resolves_to_the_locked_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert dict(pin.split("==") for pin in project["tool"]["uv"]["constraint-dependencies"]) == PINS
    installed = {re.sub(r"[-_.]+", "-", dist.name).lower(): dist.version for dist in distributions()}
    shared = installed.keys() & PINS.keys()
    assert {"docker", "invoke", "jinja2", "pydantic", "pytest", "tabulate", "uv"} <= shared
    assert {name: installed[name] for name in shared} == {name: PINS[name] for name in shared}


def test_every_pin_is_hashed() -> None:
    blocks = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(PINS)
    assert all("--hash=sha256:" in block for block in blocks)


def test_no_lock_names_an_address() -> None:
    locks = [ROOT / "requirements.lock", *(ROOT / "containers" / "locks").iterdir()]
    assert len(locks) > 20
    assert not [path.name for path in locks if "://" in path.read_text()]
