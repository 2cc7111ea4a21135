"""What the commands that search have in common: how sure an answer must be, and where it goes."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repromatrix.commands.common import count
from repromatrix.errors import ReproError, UserError
from repromatrix.output import say
from repromatrix.project import Project
from repromatrix.search.model import Rules
from repromatrix.spec.model import Scalar, word

_LONGEST = 200
"""Bytes of a page's name: file systems allow 255, with what a file is called while it is written."""


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure an answer must be, as typed; empty = as `Rules` has it."""

    confidence: str = ""
    rate: str = ""
    attempts: str = ""

    def rules(self) -> Rules:
        """The same as data.

        Raises:
            UserError: One is no number, or out of its bounds.
        """
        usual = Rules()
        return Rules(
            confidence=_share("confidence", self.confidence) if self.confidence else usual.confidence,
            rate=_share("rate", self.rate) if self.rate else usual.rate,
            most=count("attempts", self.attempts) or usual.most,
        )


def _share(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UserError(f"--{option} {text!r} is not a number from 0 to below 1", hint=f"for example --{option} 0.95")
    return value


@dataclass(frozen=True, slots=True)
class Places:
    """Where the answer of a search goes besides the terminal, as typed: `-` = standard output, empty = nowhere.

    Attributes:
        markdown: Empty = `reports/`, where there is an answer.
    """

    markdown: str = ""
    json: str = ""

    def check(self) -> None:
        """Refuse what cannot be written before anything runs.

        Raises:
            UserError: A place is none, or both want standard output.
        """
        from repromatrix.report.document import check_path

        for path in filter(None, (self.markdown, self.json)):
            check_path(path)
        if self.json == self.markdown == "-":
            raise UserError("--json - and --markdown - both want standard output", hint="give one of them a path")
        if self.json and self.markdown and Path(self.json).resolve() == Path(self.markdown).resolve():
            raise UserError(
                "--json and --markdown name one file", where=self.json, hint="give one of them another path"
            )

    def publish(
        self,
        project: Project,
        name: str,
        page: str,
        text: Callable[[bool], str],
        document: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Tell what was found, and write it to where it was asked for; one that fails keeps none of the others.

        Raises:
            UserError, InfraError: The first that failed.

        Args:
            name: Of the page in `reports/` where no place was asked for; empty = it stays what an earlier search wrote.
            page: Markdown.
            text: For the terminal, in colour or not.
            document: For `--json`.
        """
        from repromatrix.envs.disk import write_text
        from repromatrix.report.document import write_json
        from repromatrix.ui.progress import use_colour

        out = sys.stderr if "-" in (self.json, self.markdown) else sys.stdout
        place = project.reports / f"{name}.md" if name and not self.markdown else Path(self.markdown)

        def tell() -> None:
            say(text(use_colour(out)), stream=out)

        def write_document() -> None:
            if self.json:
                write_json(self.json, document())

        def write_page() -> None:
            if self.markdown == "-":
                say(page.rstrip("\n"))
            elif place.name:
                write_text(place, page)
                shown = place.relative_to(project.root) if place.is_relative_to(project.root) else place
                say(f"report: {shown}", stream=out)

        failed: list[ReproError] = []
        for write in (tell, write_document, write_page):
            try:
                write()
            except ReproError as error:
                failed.append(error)
        if failed:
            raise failed[0]


def page_name(what: str, repro: str, target: str, params: Iterable[tuple[str, Scalar]], axis: str = "jax") -> str:
    """The name of a page in `reports/`, one for each cell that is searched: `bisect-hlo_pass_crash-noop_change`.

    One that does not say all of its parameters, or that no file can have, ends with a part of their hash.
    """
    values = [word(value) for _, value in params]
    told = [*values, *([target] if target != "cpu" else []), *([axis] if axis != "jax" else [])]
    plain = [re.sub(r"[^\w.]+", "_", one) for one in told]
    name = "-".join([what, repro, *plain])
    if plain[: len(values)] == values and len(os.fsencode(name)) <= _LONGEST:
        return name
    unique = hashlib.sha256("\0".join([what, repro, *told]).encode()).hexdigest()[:8]
    return f"{os.fsencode(name)[:_LONGEST].decode(errors='ignore')}-{unique}"
