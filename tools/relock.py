"""Lock what the tool itself needs: `python tools/relock.py` after an edit of pyproject.toml's dependencies.

Writes `requirements.lock` (hashed, no index address) and the same pins as `[tool.uv] constraint-dependencies`, so that
`uv run` in a checkout resolves to exactly the locked versions without a lock file that names addresses.

    python tools/relock.py --stack-readers [FOLDER]

writes the locks of the programs that read stacks instead, one a Python minor version (default: `containers/tools`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
MARK = "constraint-dependencies = ["

STACK_READERS = ("py-spy==0.4.3", "pystack==1.7.2")
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""Minor versions that these have wheels for and some jaxlib of the matrix has."""


def main() -> None:
    if sys.argv[1:2] == ["--stack-readers"]:
        lock_stack_readers(Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "containers" / "tools")
    else:
        lock_dependencies()


def lock_stack_readers(folder: Path) -> None:
    """Write `py311.txt` and its like into `folder`; the pins are exact, so two runs write the same bytes."""
    sys.path.insert(0, str(ROOT))
    from repromatrix.envs.index import PLATFORM, compile_requirements
    from repromatrix.envs.lockfile import render_wheels
    from repromatrix.envs.model import Wheel
    from repromatrix.envs.resolve import best_wheel
    from repromatrix.envs.tools import StackReaders, header, read_tools

    for python in PYTHONS:
        resolved = compile_requirements(STACK_READERS, python=python, platform=PLATFORM, options=["--no-deps"])
        wheels = []
        for package in resolved.packages:
            file = best_wheel(package, python)
            assert file is not None, f"{package.name} has no wheel for Python {python}"
            wheels.append(Wheel(package.name, package.version, file.filename, file.sha256, file.size, file.uploaded))
        found = StackReaders(python, PLATFORM, tuple(wheels))
        path = folder / f"py{python.replace('.', '')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        title = f"The programs that read stacks, for Python {python}: written by tools/relock.py --stack-readers"
        path.write_text(render_wheels([title, *header(found)], wheels))
        assert read_tools(python, folder) == found
        print(f"locked {', '.join(STACK_READERS)} for Python {python}")


def lock_dependencies() -> None:
    pyproject = ROOT / "pyproject.toml"
    head, _, tail = pyproject.read_text().partition(MARK)
    pyproject.write_text(head + MARK + "]" + tail[tail.index("\n]") + 2 :] if tail else head)
    uv = find_uv_bin()
    (ROOT / "uv.lock").unlink(missing_ok=True)
    subprocess.run([uv, "lock", "--quiet"], cwd=ROOT, check=True)
    exported = subprocess.run(
        [uv, "export", "--quiet", "--no-emit-project", "--no-header", "--no-annotate", "--all-groups"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (ROOT / "requirements.lock").write_text(
        "# Every dependency of the tool itself, hashed. Written by tools/relock.py; install it with hashes required:\n"
        "#   uv pip sync --require-hashes requirements.lock\n" + exported
    )
    pins = sorted(re.findall(r"^([a-z0-9-]+==[^\s;\\]+)", exported, re.MULTILINE))
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    text = pyproject.read_text()
    text = text.replace(MARK + "]", f"{MARK}\n{lines}]") if MARK in text else text
    pyproject.write_text(text)
    (ROOT / "uv.lock").unlink(missing_ok=True)
    print(f"locked {len(pins)} packages")


if __name__ == "__main__":
    main()
