"""Lock the tool's own dependencies: `python tools/relock.py` after an edit of pyproject.toml's dependencies.

Writes `requirements.lock` (hashed, no index address) and the same pins as `[tool.uv] constraint-dependencies`, so that
`uv run` in a checkout resolves to exactly the locked versions without a lock file that names addresses.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
MARK = "constraint-dependencies = ["


def main() -> None:
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
