"""The files of a handed-over folder, made of a cell's kept result. No file is written here."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from repromatrix.attempts import lay_out
from repromatrix.engines.attempt import STACKS, SUPERVISOR, own_bytes
from repromatrix.engines.base import Attempt
from repromatrix.envs.base import BaseImage, declared
from repromatrix.envs.image import rendered
from repromatrix.envs.lockfile import render_lock, render_wheels
from repromatrix.envs.tools import header, read_tools
from repromatrix.errors import UserError
from repromatrix.evidence.outcome import GradeContext
from repromatrix.graded import recall
from repromatrix.plan import gpus_wanted
from repromatrix.project import Project
from repromatrix.results.combine import tally
from repromatrix.results.model import AttemptResult, CellResult
from repromatrix.share.handoffs import again
from repromatrix.share.handoffs.bundle import zipapp
from repromatrix.share.handoffs.expected import NAME, Expected, Grading, Handoff, Start, to_json
from repromatrix.share.handoffs.readme import TEMPLATES, Case, hosted_cuda, told
from repromatrix.share.handoffs.verdict import REPRODUCED, compare
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.metrics import holds
from repromatrix.spec.model import Cell, Expect, Matrix, Outcome, word

if TYPE_CHECKING:
    pass

OLDEST = (3, 11)
"""The comparison is the tool's own code, whose patterns need this Python (possessive quantifiers)."""

MOST_ATTEMPTS = 50
"""Attempts that a folder asks for by itself, however rare the failure."""

MOST_OUTPUT = 1 << 20
"""Bytes kept of each recorded output, its end."""

_REPLACED = re.compile(r"<[a-z-]+>")
_LEAST = 8
"""Characters of a title that must be left when what is private is out of it."""

Files = dict[str, tuple[bytes, bool]]


def files(case: Case, project: Project, redactor: Redactor) -> tuple[Files, tuple[str, ...]]:
    """(content, executable) of every file by path, and what whoever hands it over should know.

    Raises:
        UserError: The script was changed since, or the result is not one that a folder can compare.
        InfraError: No base is known for its Python.
    """
    attempt, work = _laid_out(case.cell)
    source = case.cell.repro.path.name
    start = _start(case.cell, attempt)
    grading = _grading(case, source)
    expected, warnings = _expected(case, start, grading, work, project, redactor)
    base = _base(case.matrix, case.lock.python)
    environment = rendered(case.lock, base)
    if (readers := read_tools(case.lock.python)) is not None:
        environment["Dockerfile"] = with_stacks(environment["Dockerfile"])
        environment["stacks.txt"] = render_wheels(header(readers), readers.wheels)
    environment["Dockerfile"] = quick(environment["Dockerfile"])
    environment["Dockerfile.wheels"] = from_wheels(environment["Dockerfile"])
    handoff = Handoff(start, grading, expected)
    texts = {
        **environment,
        "lock.txt": render_lock(case.lock),
        "supervise.py": SUPERVISOR.read_text(encoding="utf-8"),
        "stacks.py": STACKS.read_text(encoding="utf-8"),
        NAME: to_json(handoff),
    }
    outputs = dict(_outputs(case, project, redactor))
    changed = any(private for _, private in outputs.values())
    texts |= {f"expected/{name}": text for name, (text, _) in outputs.items()}
    readme, texts["reproduce.sh"] = told(case, handoff, base, private=changed)
    texts["README.md"] = redactor.redact(readme)
    found: Files = {name: (text.encode(), name == "reproduce.sh") for name, text in texts.items()}
    found |= {f"work/{name}": (content, False) for name, content in work.items()}
    found["reproduce.pyz"] = (zipapp(again.__name__), False)
    if redactor.redact(base.reference) != base.reference:
        warnings = (*warnings, f"the Dockerfile names what looks private: its base image {base.reference}")
    return found, (*warnings, *_unchanged_secrets(start, work, redactor))


def refusal(cell: Cell, result: CellResult) -> str:
    """Why a result is nothing that a folder can reproduce; empty if it is."""
    if result.outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE):
        return f"it is {result.outcome.value}, which nobody can reproduce: {result.reason or 'no reason was given'}"
    if tuple(int(part) for part in cell.environment.python.split(".")) < OLDEST:
        return f"its Python is {cell.environment.python}, and what compares signatures needs 3.11 or newer"
    claim = cell.expect
    if _on_passes(claim, result) and not result.as_expected:
        return f"what it claims of passes does not hold, and nothing else can be compared: {result.reason}"
    return ""


def with_stacks(dockerfile: str) -> str:
    """The same Dockerfile with the programs that read stacks, beside the environment, in /opt/stacks."""
    environment = "# ---- the environment: "
    assert dockerfile.count(environment) == 1, "containers/Dockerfile.j2 was changed"
    before, _, after = dockerfile.partition(environment)
    last = "\nCOPY --from=stacks /opt/stacks /opt/stacks\nLABEL org.repromatrix.recipe=handoff\n"
    return before + (TEMPLATES / "stacks.Dockerfile").read_text(encoding="utf-8") + environment + after + last


def quick(dockerfile: str) -> str:
    """The same Dockerfile with bytecode of what jax imports alone: of all sources it takes half of the build.

    Measured with jax 0.10.2 on two busy cores, with the wheels there: 57 s to the verdict with all of it, 37 s so.
    """
    pack, path = "python3 /mnt/pack_core.py / ", "ENV PATH=/opt/env/bin"
    assert dockerfile.count(pack) == dockerfile.count(path) == 1, "containers/Dockerfile.j2 was changed"
    # Where jax cannot be imported, the attempt says so.
    warm = "RUN --network=none /opt/env/bin/python -c 'import jax' || true\n"
    return dockerfile.replace(pack, pack[:-2] + "--no-bytecode / ").replace(path, warm + path)


def from_wheels(dockerfile: str) -> str:
    """The same Dockerfile with its wheels from a build context `carried`, a folder, and no network."""
    command, found = "/tmp/pip/bin/pip ", " --no-index --find-links /mnt/carried "
    assert dockerfile.count("RUN --mount=type=bind,source=") == dockerfile.count(command), "the Dockerfile was changed"
    text = re.sub(rf"{command}(\w+) ", rf"{command}\1{found}", dockerfile)
    carried = "RUN --network=none --mount=type=bind,from=carried,target=/mnt/carried \\\n    "
    return text.replace("RUN --mount=type=bind,source=", f"{carried}--mount=type=bind,source=")


def _laid_out(cell: Cell) -> tuple[Attempt, dict[str, bytes]]:
    """The attempt as the flow lays it out, and its files by name."""
    with tempfile.TemporaryDirectory() as folder:
        attempt = lay_out(cell, cell.id, Path(folder), tuple(range(gpus_wanted(cell.target))), cores="off", tools=None)
        work = Path(folder) / "work"
        found = {str(path.relative_to(work)): path.read_bytes() for path in work.rglob("*") if path.is_file()}
    found.setdefault(cell.repro.path.name, cell.repro.path.read_bytes())  # a probe runs without it
    return attempt, found


def _start(cell: Cell, attempt: Attempt) -> Start:
    return Start(
        id=cell.id,
        script=attempt.script,
        arguments=attempt.arguments,
        env=attempt.env,
        timeout=attempt.timeout,
        memory=attempt.memory,
        cpus=attempt.cpus,
        gpus=attempt.gpus,
        processes=attempt.processes,
        cuda=hosted_cuda(cell),
    )


def _grading(case: Case, source: str) -> Grading:
    cell, witness = case.cell, case.cell.repro.witness
    tool = GradeContext.of(cell).tool
    values = tuple(word(value) for _, value in cell.params)
    compiled = ""
    if case.result.outcome is Outcome.OK:
        compiled = "text" if witness is not None and (witness.hlo or witness.passes) else ""
        compiled = "passes" if _on_passes(cell.expect, case.result) else compiled
    return Grading(source, values, witness, case.matrix.signatures, tool, compiled)


def _expected(
    case: Case, start: Start, grading: Grading, work: dict[str, bytes], project: Project, redactor: Redactor
) -> tuple[Expected, tuple[str, ...]]:
    """What is expected, and warnings.

    Raises:
        UserError: A number that is claimed was not found, or a title tells of nothing but private things.
    """
    cell, result = case.cell, case.result
    groups = tally(result.attempts)
    deciding = next(group for group in groups if group[0].outcome is result.outcome)
    of = sum(map(len, groups))
    claim = cell.expect
    claimed: tuple[Outcome, ...] = ()
    if claim is not None and result.as_expected and result.outcome.failed:
        plain = claim.signature is None and claim.signal is None and claim.exit_status is None
        claimed = tuple(one for one in claim.outcome if one.failed and one is not result.outcome) if plain else ()
    signature = result.signature
    expected = Expected(
        outcome=result.outcome,
        exit_status=result.exit_status,
        signal=result.signal,
        signature=signature,
        claimed=(result.outcome, *claimed) if claimed else (),
        titles=(),
        globs=(),
        metrics=_numbers(case, deciding[0]),
        changed=claim.changed if claim is not None and _on_passes(claim, result) else (),
        unchanged=claim.unchanged if claim is not None and _on_passes(claim, result) else (),
        seconds=result.seconds,
        failed=len(deciding),
        of=of,
        repeat=attempts_for(len(deciding), of) if result.outcome.failed else max(of, 1),
        where=tuple((name, redactor.redact(value)) for name, value in _where(case, deciding[0])),
    )
    titles = list(dict.fromkeys([signature.title, *signature.alternatives])) if signature is not None else []
    warnings: list[str] = []
    for one in deciding:
        folder = project.root / one.evidence
        if not (folder / "result.json").is_file():
            continue
        bare = again.graded(
            folder, recall(folder), start, grading, work[grading.source].decode("utf-8", "replace"), stacks=False
        )
        if bare.outcome is result.outcome and bare.signature is not None:
            known = set(titles)
            titles += [title for title in (bare.signature.title, *bare.signature.alternatives) if title not in known]
            if compare(replace(expected, titles=tuple(titles)), bare).word != REPRODUCED:
                raise UserError("its own evidence does not give its result", where=cell.id, hint="run it again")
        break
    else:
        warnings.append("the evidence of its attempts was deleted: what it printed is not in the folder")
    kept = [title for title in titles if redactor.redact(title) == title]
    globs = [_glob(redactor.redact(title), cell.id) for title in titles if title not in kept]
    told = None if signature is None else redactor.all(signature)
    return replace(expected, signature=told, titles=tuple(kept), globs=tuple(globs)), tuple(warnings)


def _on_passes(claim: Expect | None, result: CellResult) -> bool:
    """Whether an `ok` is claimed with what passes did."""
    return claim is not None and result.outcome is Outcome.OK and bool(claim.changed or claim.unchanged)


def attempts_for(failed: int, of: int) -> int:
    """Attempts that show a failure with 99 % that was seen in `failed` of `of`."""
    if failed >= of:
        return 1
    return min(MOST_ATTEMPTS, math.ceil(math.log(0.01) / math.log(1 - failed / of)))


def _numbers(case: Case, attempt: AttemptResult) -> tuple[tuple[str, str], ...]:
    """The numbers that must come again: as claimed, or where the claim does not hold, as found; all of a probe."""
    found = dict(attempt.metrics)
    if case.cell.repro.probe:
        return tuple((name, repr(value)) for name, value in found.items())
    claim = case.cell.expect
    wanted = []
    for name, condition in claim.metrics if claim is not None and case.result.outcome in claim.outcome else ():
        if name not in found:
            raise UserError(f"it is claimed what {name} is, and no such number was found", where=case.cell.id)
        wanted.append((name, condition if holds(condition, found[name]) else repr(found[name])))
    return tuple(wanted)


def _glob(title: str, cell: str) -> str:
    if len(_REPLACED.sub("", title)) < _LEAST:
        raise UserError("nothing is left of its signature without what is private", where=cell)
    return _REPLACED.sub("*", title)


def _where(case: Case, attempt: AttemptResult) -> Iterator[tuple[str, str]]:
    yield "recorded", f"{attempt.started or 'at an unknown time'}, engine {case.result.engine}"


def _outputs(case: Case, project: Project, redactor: Redactor) -> Iterator[tuple[str, tuple[str, bool]]]:
    """(name, (text, whether something was private)) of what the deciding attempt printed."""
    ours = [one for one in case.result.attempts if one.outcome is case.result.outcome]
    for folder in [project.root / one.evidence for one in ours if (project.root / one.evidence).is_dir()][:1]:
        for path in sorted(folder.glob("std[eo]*")):
            try:
                content = own_bytes(folder, path.name)
            except OSError:
                continue  # the script put something else there
            text = content[-MOST_OUTPUT:].decode("utf-8", "replace")
            private = redactor.redact(text)
            yield path.name, (private, private != text)


def _unchanged_secrets(start: Start, work: dict[str, bytes], redactor: Redactor) -> Iterator[str]:
    """Warnings of private things in what is handed over as it is."""
    for name, content in work.items():
        text = content.decode("utf-8", "replace")
        if redactor.redact(text) != text:
            yield f"work/{name} holds something that looks private, and is handed over as it is"
    if any(redactor.redact(text) != text for text in (*start.arguments, *(value for _, value in start.env))):
        yield "a variable or a parameter of the cell looks private, and is handed over as it is"


def _base(matrix: Matrix, python: str) -> BaseImage:
    """The base that the Dockerfile names: one that a registry has, as the reader has no tool to make another."""
    base = declared(matrix, python)
    reference = base.image or f"python:{python}-slim-{base.debian}"
    return BaseImage(reference.rpartition("@")[2], reference, reference, python)
