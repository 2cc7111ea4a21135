"""The shape of the code: which way imports go, how long a module may be, and that the map in docs/ is complete."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "repromatrix"

LOW = ("carry", "search", "errors", "events", "files", "output", "project")
FLOORS = ("spec", "envs", "engines", "evidence", "results", "report")
HIGH = (
    *("plan", "ready", "collected", "graded", "attempts", "explain", "concluded", "flow", "kept"),
    *("programs", "accepted", "compare", "capture", "axes", "share", "regressions", "commands", "tasks"),
)
"""From the lowest to the highest; `ui` stands beside the floors: it may use all of them, and only HIGH uses it."""

SHOWN_BY = ("flow", "commands")
"""Who may use `ui`."""

LONGEST = 400
LONGER = {
    # Mounted into containers as one file each; every import of another is one more thing a sandbox can lack.
    "containers/supervise.py": 680,
}

SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "containers").glob("*.py"), ROOT / "tasks.py"])


def part_of(path: Path) -> str:
    """`spec` for repromatrix/spec/when.py, `flow` for repromatrix/flow.py."""
    inside = path.relative_to(PACKAGE).parts
    return inside[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also of those inside functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import hides where it leads"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def parts_used(path: Path) -> Iterator[tuple[int, str]]:
    """(line, part) of every import of this package, but for its own version."""
    for line, name in imports(path):
        head, _, rest = name.partition(".")
        if head == "repromatrix" and rest != "__version__":
            yield line, rest.partition(".")[0]


def may_use(part: str) -> set[str]:
    """The parts that `part` may import from."""
    if part in ("carry", "search"):  # `restore.pyz` is made of the one alone; the other is a library of its own
        return {part}
    if part in LOW:
        return set(LOW[: LOW.index(part)])
    if part in FLOORS:
        return {*LOW, *FLOORS[: FLOORS.index(part) + 1]}
    if part == "ui":
        return {*LOW, *FLOORS, "ui"}
    return {*LOW, *FLOORS, *HIGH[: HIGH.index(part) + 1], *(["ui"] if part in SHOWN_BY else [])}


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_with_the_flow(path: Path) -> None:
    allowed = may_use(part_of(path))
    assert [f"line {line}: {part}" for line, part in parts_used(path) if part not in allowed] == []


def test_packages_import_nothing() -> None:
    """What a package's `__init__` imports, every user of any of its modules pays for (`invoke --list`: 0.3 s)."""
    assert [path for path in PACKAGE.rglob("__init__.py") if list(imports(path))] == []


ALONE = ["containers/stacks.py", "containers/supervise.py", "repromatrix/envs/pack_core.py"]
CARRY = sorted(str(path.relative_to(ROOT)) for path in (PACKAGE / "carry").glob("*.py"))


@pytest.mark.parametrize("name", [*ALONE, *CARRY])
def test_standalone_files_need_python_3_9_alone(name: str) -> None:
    """They run in containers, image builds and `restore.pyz`, where nothing of this project is installed."""
    known = {*sys.stdlib_module_names, *(["repromatrix"] if name in CARRY else [])}
    foreign = [name for _, name in imports(ROOT / name) if name.partition(".")[0] not in known]
    assert foreign == []
    ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGER.get(str(path.relative_to(ROOT)), LONGEST)


def test_the_map_names_every_module_once() -> None:
    table = re.findall(r"^\| `([^`]+\.py)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    alone = [f"containers/{path.name}" for path in (ROOT / "containers").glob("*.py")]
    assert sorted(table) == sorted([*(str(path.relative_to(PACKAGE)) for path in MODULES), *alone])
