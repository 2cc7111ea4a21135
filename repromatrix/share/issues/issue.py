"""The text of a bug report: Markdown that fits the form of JAX's tracker and GitHub's 65,536 characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from repromatrix.report.about import about
from repromatrix.report.escape import code, fence, paragraph, printable, prose
from repromatrix.report.fit import LIMIT, Section, fit
from repromatrix.report.layout import Notes, duration, ending, grids, totals
from repromatrix.report.markdown import environments, failures, issue_link, reasons, version_table
from repromatrix.report.system_info import block
from repromatrix.results.combine import clip
from repromatrix.results.model import CellResult
from repromatrix.share.issues.history import DATE, Edge, History, position
from repromatrix.share.issues.material import Material, nothing_fails
from repromatrix.share.issues.releases import JAX, Release, source_range, told_apart_by
from repromatrix.share.privacy.redact import Redactor
from repromatrix.spec.model import Repro

_TITLE = 240
"""Characters; GitHub takes 256."""
_OPEN = 120
"""Lines of a script that are shown unfolded."""
_HEAD, _TAIL = 40, 200
"""Lines of a log that are shown: its first ones, and its last."""
_WIDE = 400
"""Characters of a line of a log."""
_SYSTEM = "### System info (python version, jaxlib version, accelerator, etc.)"
"""The heading that the form of JAX's tracker gives to its second field."""
_SPARE = 1_024
"""Characters left free for words that stand in for private ones and are longer."""


def issue_text(found: Material, redactor: Redactor) -> str:
    """The report, with nothing private in it and at most 65,536 characters long."""
    notes = Notes(found.cells)
    made = grids(found.cells)
    tables = [version_table(grid, notes, named=len(made) > 1) for grid in made]
    sections = [
        Section(tuple(_heading(found.repro))),
        Section((), about(found.repro).lines[1:], what="paragraphs", rank=92),
        Section(tuple(_summary(found, notes))),
        _edges(found, notes),
        Section(("#### Versions", "", totals(found.cells) + ".")),
        *map(_lower, tables),
        _lower(failures(notes)),
        _lower(reasons(notes)),
        *_scripts(found),
        *_commands(found),
        *_system(found),
        *_logs(found),
        _folded_environments(found),
        Section(tuple(_footer(found))),
    ]
    kept = [section for section in sections if section.head or section.lines]
    for spare in (_SPARE, 8 * _SPARE, LIMIT // 2):
        text = redactor.redact(fit(kept, LIMIT - spare))
        if len(text) <= LIMIT:
            break
    return text[:LIMIT]


def issue_title(found: Material) -> str:
    """One line for the title's own field: what fails, in which versions, and the last one that does not."""
    what = " ".join((found.repro.title or found.repro.name).split())
    where = ""
    if found.shown is not None:
        series = next((each for each in found.histories if found.shown in each.cells and found.shown in each.bad), None)
        if series is not None:
            where = f" ({_versions(series)})"
    return clip(what, _TITLE - len(where)) + where


def _versions(series: History) -> str:
    """`jax 0.7.1 to 0.10.2, ok in 0.7.0`: where it began last, if it came and went."""
    began = [edge for edge in series.edges if edge.begins][-1:]
    first, last = began[0].bad if began else series.bad[0], series.bad[-1]
    old, new = (_place(cell, series.axis) for cell in (first, last))
    axis = "all else as of" if series.axis == DATE else series.axis
    failing = f"{axis} {old}" if old == new else f"{axis} {old} to {new}"
    return f"{failing}, ok in {_place(began[0].good, series.axis)}" if began else failing


def _place(cell: CellResult, axis: str) -> str:
    """Where `cell` stands along `axis`, in words: a version, or `2026-03-14`."""
    return position(cell, axis).replace(".", "-") if axis == DATE else position(cell, axis)


def _words(cell: CellResult, releases: dict[str, Release], axis: str) -> str:
    """The release of `cell`, and its day where days are what differs."""
    said = prose(releases[cell.environment].words)
    return f"{said}, all else as of {_place(cell, axis)}" if axis == DATE else said


def _heading(repro: Repro) -> Iterable[str]:
    yield from ("### Description", "", f"**{paragraph(clip(repro.title or repro.name, 300))}**")
    if repro.issue:
        yield from ("", f"See also {issue_link(repro)}.")


def _summary(found: Material, notes: Notes) -> Iterable[str]:
    cell, attempt = found.shown, found.attempt
    if cell is None or attempt is None:
        yield f"**{nothing_fails(found.cells)}**"
        return
    number = notes.number(cell)
    mark = f" **[{number}]**" if number is not None else ""
    yield f"In {code(cell.environment)} on {code(clip(cell.column, 200))} it ends with {code(ending(cell))}{mark}:"
    if cell.signature is not None:
        yield from ("", f"> {code(clip(cell.signature.title, 600))}")
    failed = sum(one.outcome.failed for one in cell.attempts)
    often = f"{failed} of {len(cell.attempts)} attempts failed" if len(cell.attempts) > 1 else "One attempt"
    yield from ("", f"{often}, by {prose(cell.engine)}, after {duration(attempt.seconds)}.")
    if attempt.hlo is not None and attempt.hlo.last:
        yield from ("", f"The last pass of the compiler that began before the failure: {code(attempt.hlo.last)}.")


def _edges(found: Material, notes: Notes) -> Section:
    releases = dict(found.releases)
    engines: dict[tuple[str, str, int], list[str]] = {}  # the same in two engines is said once
    for series in found.histories:
        where = code(clip(series.column, 200)) + (f" **[{series.failure}]**" if series.failure is not None else "")
        for edge in series.edges:
            engines.setdefault((where, _edge(edge, releases, notes), 2), []).append(series.engine)
        if not series.edges:
            engines.setdefault((where, _throughout(series, releases), 1), []).append(series.engine)
    several = len({cell.engine for cell in found.cells if cell.engine}) > 1
    lines = []
    for (where, said, interest), names in engines.items():
        on = f" ({prose(', '.join(names))})" if several else ""
        lines.append((interest, f"- {where}{on}: {said}"))
    if not lines:
        return Section()
    tail = (
        "",
        f"XLA's commit in a release of jaxlib is pinned in [third_party/xla]({JAX}/tree/main/third_party/xla)"
        " (`revision.bzl`, in older releases `workspace.bzl`) at the release's tag; the wheels do not carry it.",
    )
    return Section(("#### First bad and last good", ""), tuple(lines), tail, "lines on versions", 75)


def _edge(edge: Edge, releases: dict[str, Release], notes: Notes) -> str:
    good, bad = releases[edge.good.environment], releases[edge.bad.environment]
    good_words, bad_words = (_words(cell, releases, edge.axis) for cell in (edge.good, edge.bad))
    if edge.begins:
        said = f"**last good** {good_words}, **first bad** {bad_words}"
    else:
        said = f"**last bad** {bad_words}, **good again** in {good_words}"
    old, new = (good, bad) if edge.begins else (bad, good)
    if (ends := source_range(old, new)) is not None:
        said += f"; range to look at: [{prose('...'.join(ends))}]({JAX}/compare/{'...'.join(ends)})"
        if told_apart_by(old, new) == "jaxlib":
            said += ", the commits that jaxlib was built from"
        elif old.commit and new.commit:
            said += f", commits {code(old.commit[:12])} to {code(new.commit[:12])}"
    if edge.between:
        names = [f"{_place(cell, edge.axis)} ({_other(cell, notes)})" for cell in edge.between[:8]]
        more = [f"{len(edge.between) - 8} more"] if len(edge.between) > 8 else []
        said += f"; nothing is known of {prose(', '.join([*names, *more]))} between them"
    return said + _flaky(edge) + "."


def _other(cell: CellResult, notes: Notes) -> str:
    number = notes.number(cell)
    return cell.outcome.value if number is None else f"{cell.outcome.value} [{number}]"


def _flaky(edge: Edge) -> str:
    failed = sum(one.outcome.failed for one in edge.bad.attempts)
    tried, proof = len(edge.bad.attempts), len(edge.good.attempts)
    if failed == tried:
        return ""
    return f"; the bad one fails in {failed} of {tried} attempts, the good one in none of {proof}"


def _throughout(series: History, releases: dict[str, Release]) -> str:
    first, last = (_words(cell, releases, series.axis) for cell in (series.bad[0], series.bad[-1]))
    if len(series.bad) == 1:
        return f"fails in {first}, the only version of which anything is known"
    return (
        f"fails in all {len(series.bad)} versions of which anything is known, from {first} to"
        f" {last}: **no good version is known**"
    )


def _scripts(found: Material) -> Iterable[Section]:
    repro = found.repro
    note = []
    if found.altered:
        names = ", ".join(map(code, found.altered))
        note = ["", f"Private words in {names} were replaced (`<home>`, `<user>`, ...); it may not run as shown."]
    lines = printable(repro.source).rstrip("\n").split("\n")
    opening, closing = fence(lines, "python")
    head: tuple[str, ...] = ("#### Script", "", f"Saved as {code(repro.path.name)}:", *note, "")
    tail: tuple[str, ...] = (closing,)
    if len(lines) > _OPEN:
        head = (*head, f"<details><summary>{len(lines)} lines</summary>", "")
        tail = (closing, "", "</details>")
    yield Section((*head, opening), tuple((1, line) for line in lines), tail, "lines of the script", 65)
    for name, text in found.others:
        if text:
            yield _folded(
                f"{name}, which it needs beside it", text.split("\n"), "lines of a file beside the script", 50
            )
        else:
            yield Section((f"It needs {code(name)} beside it.",))


def _commands(found: Material) -> Iterable[Section]:
    cell = found.shown
    if cell is None:
        return
    lines = ["#### Run it", ""]
    if found.handoff:
        lines += [*_attached(found), ""]
    if found.by_hand:
        opening, closing = fence([found.by_hand], "sh")
        lines += ["By hand, with the exact versions:", "", opening, *printable(found.by_hand).split("\n"), closing, ""]
    if found.cuda:
        jax = next((version for name, version in cell.facts if name == "jax"), dict(cell.axes).get("jax", ""))
        lines += [
            f"The libraries of CUDA {found.cuda} are the machine's, not wheels; `LD_LIBRARY_PATH` and `CUDA_ROOT` must"
            f" name them. `pip install 'jax[cuda{found.cuda}]=={jax}'` brings NVIDIA's newest instead.",
            "",
        ]
    if found.setup:
        lines += [f"{', '.join(map(code, found.setup))}: for the GPUs of the machine it was recorded on.", ""]
    opening, closing = fence([cell.command], "sh")
    lines += ["In a checkout of Repromatrix, as it was run here:", "", opening, printable(cell.command), closing]
    yield Section(tuple(lines))


def _attached(found: Material) -> Iterable[str]:
    """The one line for whoever reads it. GitHub takes a `.tgz` as an attachment, and no `.tar.zst`."""
    name = found.repro.name
    cuda = " --cuda /usr/local/cuda" if found.cuda else ""
    run = f"tar -xzf {name}.tgz && sh {name}/reproduce.sh{cuda}"
    yield f"With the attached `{name}.tgz`, and Docker (or `uv` alone: `--uv`):"
    yield from ("", "```sh", run, "```", "")
    yield "It builds the environment, each wheel checked by its hash, runs the script, and says REPRODUCED or not."


def _system(found: Material) -> Iterable[Section]:
    info = found.info
    head = [_SYSTEM, ""]
    if info is None:
        yield Section((*head, "No cell fails, so that there is no environment to describe; the versions are above."))
        return
    if info.trouble:
        said = prose(clip(info.trouble, 1_000))
        head += [f"`jax.print_environment_info()` could not be had of this environment: {said}", ""]
    # Of this machine nothing is said then: it may be another than the one that the cell ran on.
    known = block(found.shown, {}) if found.shown is not None else ()
    lines = printable(info.text or "\n".join(known)).rstrip("\n").split("\n")
    opening, closing = fence(lines)
    yield Section((*head, opening, *(clip(line, 2_000) for line in lines[:200]), closing))


def _logs(found: Material) -> Iterable[Section]:
    for place, (what, text) in enumerate(found.logs):
        lines = printable(text.expandtabs()).strip("\n").split("\n")
        yield _folded(what, _shortened(lines), f"lines of {what}", max(16, 40 - place))


def _shortened(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _HEAD + _TAIL + 1:
        return list(lines)
    gap = f"[... {len(lines) - _HEAD - _TAIL} lines left out ...]"
    return [*lines[:_HEAD], gap, *lines[-_TAIL:]]


def _folded(what: str, lines: Sequence[str], unit: str, rank: int) -> Section:
    """Text behind a line to click on; where it must be cut, its first lines go first: an end tells most."""
    shown = [clip(printable(line).rstrip(), _WIDE) for line in lines]
    opening, closing = fence(shown)
    head = (f"<details><summary>{prose(clip(what, 200))}</summary>", "", opening)
    return Section(head, tuple(enumerate(shown)), (closing, "", "</details>"), unit, rank)


def _folded_environments(found: Material) -> Section:
    made = environments(found.cells)
    if not made.lines:
        return made
    _, *rest = made.head  # its heading
    head = ("<details><summary>Environments of the run</summary>", *rest)
    return Section(head, made.lines, (*made.tail, "", "</details>"), made.what, 15)


def _lower(section: Section) -> Section:
    """The same under headings of the level that this text has."""
    lowered = (f"##{line}" if line.startswith("## ") else line for line in section.head)
    return replace(section, head=tuple(lowered))


def _footer(found: Material) -> Iterable[str]:
    yield from ("---", "")
    yield f"Made by {code(found.run.command)} with Repromatrix {prose(found.tool)} on {prose(found.run.started)}."
    if found.run.facts:
        told = "; ".join(f"{prose(name)} {prose(clip(value, 200))}" for name, value in found.run.facts)
        yield from ("", f"Written on a host with {told}.")
