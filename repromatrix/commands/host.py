"""Commands on this host and this checkout: check it, add a repro, test it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from repromatrix.commands.common import command
from repromatrix.errors import UserError
from repromatrix.files import write_atomically
from repromatrix.output import say
from repromatrix.project import find_project


@command
def doctor(json: str, write_cdi: str = "") -> int:
    from dataclasses import asdict

    from repromatrix.engines.cdi import write_specification
    from repromatrix.report.document import write_json
    from repromatrix.ui.doctor import findings

    if write_cdi:
        wrote = write_specification(Path(write_cdi))
        if json:
            write_json(json, {"schema": 1, "wrote": str(wrote)})
        if json != "-":
            say(f"wrote {wrote}; docs/gpus.md says how an engine is told of it")
        return 0
    found = []
    for finding in findings(find_project()):
        found.append(finding)
        if json != "-":
            say(f"{finding.level:8} {finding.subject}: {finding.found}")
            if finding.fix:
                say(f"{'':8}   {finding.fix}")
    if json:
        write_json(json, {"schema": 1, "findings": [asdict(finding) for finding in found]})
    return 3 if any(finding.level == "problem" for finding in found) else 0


@command
def new(script: str, name: str) -> int:
    from repromatrix.spec.new import new_repro

    project = find_project()
    try:
        source = sys.stdin.read() if script == "-" else Path(script).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the script: {error}", where=script, hint="give the path of a Python file"
        ) from None
    if script == "-" and not name:
        raise UserError("a script from standard input needs a name", hint="add --name my_repro")
    name = name or Path(script).stem
    target = project.repros / f"{name}.py"
    text = new_repro(source, name, [path.stem for path in project.repros.glob("*.py")])
    write_atomically(target, text)
    say(
        f"wrote {target.relative_to(project.root)}; now: uv run invoke matrix --repro {name}\n"
        "say in its first lines what you claim: docs/repros.md"
    )
    return 0


@command
def test(only: str, quick: bool) -> int:
    import subprocess

    marks = ["-m", "not network and not container and not slow"] if quick else []
    steps = [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "."],
        ["mypy"],
        ["pytest", *marks, *shlex.split(only)],
    ]
    root = find_project().root
    for step in steps:
        say(f"$ {shlex.join(step)}")
        if code := subprocess.run([sys.executable, "-m", *step], cwd=root, check=False).returncode:
            return code
    return 0
