"""Read the repros: scripts with their metadata."""

from __future__ import annotations

import hashlib
import io
import keyword
import re
import tokenize
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repromatrix.errors import InputErrors, UserError
from repromatrix.spec.block import Block, BlockError, find_block
from repromatrix.spec.claims import check_claims
from repromatrix.spec.mistakes import Mistakes, inside, shown_path
from repromatrix.spec.model import AxisChoice, Expect, Outcome, Repro, Scalar, Witness
from repromatrix.spec.repro_file import CudaChoice, PythonChoice, ReproFile, VersionChoice
from repromatrix.spec.script import check_script
from repromatrix.spec.words import AXES, nearest, shown

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def load_repros(folder: Path) -> tuple[Repro, ...]:
    """Every repro directly in `folder`, by name; files that begin with `_` are no repros.

    Raises:
        UserError: There is no such folder.
        InputErrors: A script is wrong; holds every mistake of every script.
    """
    if not folder.is_dir():
        hint = "`invoke new SCRIPT` makes the first repro"
        raise UserError("there is no such folder", where=shown_path(folder), hint=hint)
    repros: list[Repro] = []
    errors: list[UserError] = []
    try:
        scripts = [path for path in folder.iterdir() if path.suffix == ".py"]  # glob takes no access for no file
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=shown_path(folder)) from None
    for path in sorted(scripts, key=lambda path: path.stem):
        if path.name.startswith("_") or path.is_dir():
            continue
        try:
            repros.append(load_repro(path))
        except InputErrors as error:
            errors += error.errors
        except UserError as error:
            errors.append(error)
    if errors:
        raise InputErrors(errors)
    return tuple(repros)


def load_repro(path: Path) -> Repro:
    """Read and check one script; it need not compile, since it may be for another Python.

    Raises:
        UserError: It cannot be read or has no metadata.
        InputErrors: Its metadata is wrong; holds every mistake.
    """
    where = shown_path(path)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", path.stem, re.ASCII):
        hint = "use letters, digits, `_`, `-` and `.`, so that cells can be named after it"
        raise UserError("this file name cannot name a repro", where=where, hint=hint)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=where) from error
    source = _decode(content, where)
    try:
        block = find_block(source)
    except BlockError as error:
        place = f"{where}:{error.line}" if error.line else where
        raise UserError(error.message, where=place, hint=error.hint) from error
    mistakes = Mistakes(path, block.text, block.first, len("# "))
    data = mistakes.parse()
    file = mistakes.validate(ReproFile, data) if data is not None else None
    if data is not None:
        _check_params(data, mistakes)
        check_claims(data, mistakes)
        _check_packages(data, mistakes)
        check_script(data, source, block, mistakes)
    digest = hashlib.sha256(_framed("", content))
    body = hashlib.sha256(_framed("", _without(source, block).encode()))
    for number, name in enumerate(file.files if file else ()):
        found, wrong = inside(_project_root(path), path.resolve().parent, name)
        if found and ".." not in Path(name).parts:
            framed = _framed(name, found.read_bytes())
            digest.update(framed)
            body.update(framed)
        else:
            mistakes.add(("files", number), wrong or f"{shown(name)} does not lie beside the script")
    mistakes.stop()
    assert file is not None  # else a mistake was noted
    repro = _repro(path, source, digest.hexdigest(), file, mistakes)
    body.update(repr((repro.witness, repro.probe, repro.strings, repro.symbols, repro.flags)).encode())
    if repro.libraries:  # a part that most repros lack must not change the hash of those
        body.update(repr(repro.libraries).encode())
    return replace(repro, body=body.hexdigest())


def _without(source: str, block: Block) -> str:
    """The script without its metadata."""
    lines = source.split("\n")
    return "\n".join(lines[: block.first - 1] + lines[block.last :])


def content_hash(folder: Path, script: str, files: Iterable[str]) -> str:
    """`Repro.sha256` of a script in `folder` and of the files beside it that it needs.

    Raises:
        OSError: One of them cannot be read.
    """
    digest = hashlib.sha256(_framed("", (folder / script).read_bytes()))
    for name in files:
        digest.update(_framed(name, (folder / name).read_bytes()))
    return digest.hexdigest()


def line_of(repro: Repro, *key: str | int) -> int:
    """Line of the script at which metadata `key` stands: for mistakes found later."""
    block = find_block(repro.source)
    mistakes = Mistakes(repro.path, block.text, block.first)
    mistakes.parse()
    return mistakes.line(key)


def _project_root(path: Path) -> Path:
    """The nearest folder above `path` with a matrix.toml, else the folder of `path`."""
    folder = path.resolve().parent
    return next((each for each in (folder, *folder.parents) if (each / "matrix.toml").is_file()), folder)


def _repro(path: Path, source: str, sha256: str, file: ReproFile, mistakes: Mistakes) -> Repro:
    witness = file.witness
    return Repro(
        name=path.stem,
        path=path.resolve(),
        source=source,
        sha256=sha256,
        title=file.title,
        issue=file.issue or "",
        targets=("wheels",) if file.probe else tuple(file.targets),
        timeout=file.timeout,
        env=tuple(file.env.items()),
        params=tuple((name, _scalars(values)) for name, values in file.params.items()),
        witness=Witness(tuple(witness.hlo), tuple(witness.passes), tuple(witness.output)) if witness else None,
        expect=tuple(
            Expect(
                each.when.strip(),
                tuple(Outcome(word) for word in each.outcome),
                each.signal,
                each.exit_status,
                each.signature,
                mistakes.line(("expect", number)),
                tuple(each.metrics.items()),
                tuple(each.changed),
                tuple(each.unchanged),
            )
            for number, each in enumerate(file.expect)
        ),
        packages=tuple(file.packages),
        jax=_choice(file.jax),
        python=_choice(file.python),
        cuda=_choice(file.cuda),
        processes=file.processes,
        cpus=file.cpus,
        memory=file.memory,
        hlo=file.hlo,
        repeat=file.repeat,
        files=tuple(file.files),
        probe=file.probe,
        strings=tuple(file.strings),
        symbols=tuple(file.symbols),
        flags=tuple(file.flags),
        libraries=tuple(file.libraries),
        about=file.about.strip(),
    )


def _choice(choice: VersionChoice | PythonChoice | CudaChoice | None) -> AxisChoice | None:
    return AxisChoice(choice.specifier, tuple(choice.values or ())) if choice else None


def _scalars(values: Iterable[object]) -> tuple[Scalar, ...]:
    return tuple(value for value in values if isinstance(value, Scalar))


def _decode(content: bytes, where: str) -> str:
    """The script's text by the encoding it declares, with newlines made plain."""
    hint = "save it as UTF-8, or declare its encoding in line 1"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"not {error.encoding}", where=f"{where}:{line}", hint=hint) from error
    except SyntaxError as error:  # an encoding that does not exist, or not UTF-8 in the first two lines
        raise UserError(error.msg, where=f"{where}:1", hint=hint) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _framed(name: str, content: bytes) -> bytes:
    """Bytes in which no two lists of files look the same."""
    return f"{len(name)} {name} {len(content)}\n".encode() + content


def _check_params(data: dict[str, object], mistakes: Mistakes) -> None:
    params, env = data.get("params"), data.get("env")
    names = [*params] if isinstance(params, dict) else []
    upper: dict[str, str] = {}
    for name in names:
        if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
            mistakes.add(("params", name), "expected a name that Python accepts for an argument")
        elif name in (*AXES, "target", "engine", "true", "false"):
            mistakes.add(("params", name), f"`{name}` has a meaning of its own in conditions; choose another name")
        elif name.upper() in upper:
            both = f"{upper[name.upper()]} and {name}"
            mistakes.add(("params", name), f"{both} would share the variable REPRO_{name.upper()}")
        upper.setdefault(name.upper(), name)
    for variable, text in env.items() if isinstance(env, dict) else ():
        if variable.upper().startswith("REPRO_"):
            mistakes.add(("env", variable), "variables that begin with REPRO_ are those of the parameters")
        for found in _PLACEHOLDER.finditer(text if isinstance(text, str) else ""):
            if found[1] not in names:
                advice = nearest(found[1], names) or f"parameters here: {', '.join(names) or 'none'}"
                mistakes.add(("env", variable), f"{found[0]} is no parameter", advice)


def _check_packages(data: dict[str, object], mistakes: Mistakes) -> None:
    packages = data.get("packages")
    names: set[str] = set()
    for number, text in enumerate(packages if isinstance(packages, list) else []):
        try:
            name = canonicalize_name(Requirement(text).name) if isinstance(text, str) else ""
        except InvalidRequirement:
            continue  # noted as such already
        if name and name in names:
            mistakes.add(("packages", number), f"{name} is listed twice")
        names.add(name)
