"""Make a repro of a pasted script."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection

from repromatrix.errors import UserError
from repromatrix.spec.block import CLOSE, OPEN, BlockError, find_block

_ENCODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")  # PEP 263
_NO_PYTHON = {
    "!": "a line of a notebook for the shell: take it out, and name what it installs under `packages`",
    "%": "a line of a notebook for IPython: take it out",
    ">>>": "a console's prompts stand before the code: take them out, and the answers with them",
    "```": "the marks of a code block: take them out",
}
"""How lines begin that are pasted with a script and are none of it, and what to do about them."""
_GPU = re.compile(r"\b(gpus?|cuda|nccl)\b|xla_gpu_", re.IGNORECASE)


def new_repro(source: str, name: str, existing: Collection[str]) -> str:
    """The script `source` with a metadata block above it, otherwise unchanged.

    The block is made of comments, so a docstring and `from __future__` keep their rights; it stands below a `#!` line
    and a declaration of the encoding, which count only at the top.

    Args:
        source: The script as pasted.
        name: What the repro will be called: the file's name without `.py`.
        existing: Names taken already.

    Raises:
        UserError: The script is empty, no Python, or has a block already, or the name is taken or no name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        hint = "letters, digits, `_`, `-` and `.`; a letter or digit first"
        raise UserError(f'"{name}" cannot name a repro', hint=hint)
    if name in existing:
        raise UserError(f'there is a repro "{name}" already', hint="choose another name")
    if not source.strip().strip("\ufeff"):
        raise UserError("the script is empty", where=name)
    _check_python(source, name)
    newline = "\r\n" if "\r\n" in source else "\n"
    text = source.replace("\r\n", "\n")
    try:
        block = find_block(text)
    except BlockError as error:
        if error.line:
            raise UserError(error.message, where=f"{name}:{error.line}", hint=error.hint) from error
    else:
        hint = "it is a repro already: copy it into the folder of repros"
        raise UserError("the script has metadata already", where=f"{name}:{block.first}", hint=hint)
    lines = text.split("\n")
    top = 1 if lines[0].lstrip("\ufeff").startswith("#!") else 0
    if top < len(lines) and _ENCODING.match(lines[top].lstrip("\ufeff")):
        top += 1
    mark = "\ufeff" if not top and source.startswith("\ufeff") else ""  # the mark of UTF-8 stays the first character
    metadata = [
        OPEN,
        f"# title   = {json.dumps(_title(text, name), ensure_ascii=False)}",
        f"# targets = {json.dumps(['gpu' if _GPU.search(text) else 'cpu'])}",
        CLOSE,
    ]
    head = source.split("\n", top)[:top]
    rest = source.removeprefix("\ufeff") if not top else source.split("\n", top)[top] if len(lines) > top else ""
    return mark + "".join(line + "\n" for line in head) + newline.join(metadata) + newline + rest


def _check_python(source: str, name: str) -> None:
    """Refuse what no Python can run; what is only too large to be looked at is taken.

    Raises:
        UserError: It is a notebook, or not the syntax of this Python.
    """
    if _is_notebook(source):
        hint = f"export its code first: jupyter nbconvert --to script {name}.ipynb"
        raise UserError("this is a Jupyter notebook, not a script", where=name, hint=hint)
    if "\0" in source:
        raise UserError("the script holds null characters", where=name, hint="save it as text in UTF-8")
    try:
        ast.parse(source.removeprefix("\ufeff"))
    except SyntaxError as error:
        line = (error.text or "").strip()
        hint = next((words for mark, words in _NO_PYTHON.items() if line.startswith(mark)), "")
        if not hint:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            hint = (
                f"read as Python {version}; if it is for a newer one, write its metadata into repros/{name}.py by hand"
                " (docs/repros.md)"
            )
        shown = f": {line[:100]}" if line else ""
        raise UserError(f"{error.msg}{shown}", where=f"{name}:{error.lineno or 1}", hint=hint) from None
    except (RecursionError, MemoryError):
        return


def _is_notebook(source: str) -> bool:
    """Whether it is JSON as Jupyter saves it."""
    if not source.lstrip("\ufeff \t\r\n").startswith("{"):
        return False
    try:
        found = json.loads(source.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "nbformat" in found and "cells" in found


def _title(text: str, name: str) -> str:
    """First line of the docstring, else the first comment, else the name in words."""
    found = _docstring(text) or _comment(text) or name.replace("_", " ").replace("-", " ")
    return "".join(character for character in found if character.isprintable()).strip()[:100]


def _docstring(text: str) -> str:
    try:
        found = ast.get_docstring(ast.parse(text.lstrip("\ufeff")))
    except (RecursionError, MemoryError):
        return ""
    return (found or "").strip().split("\n")[0].strip()


def _comment(text: str) -> str:
    """The first comment that says something, before or among the code; not `#!`, an encoding or a `# ///` block."""
    inside = False
    for line in text.split("\n"):
        if line.startswith("# ///"):
            inside = line.rstrip() != CLOSE
        elif inside or not line.startswith("#") or line.startswith("#!") or _ENCODING.match(line):
            continue
        elif re.search(r"[A-Za-z]{2}", line):
            return line.lstrip("# ").strip()
    return ""
