"""Files made of other files, the same bytes each time: a zipapp of the tool's own modules, compressed tars."""

from __future__ import annotations

import ast
import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from repromatrix.project import TOOL_ROOT

_PACKAGE = TOOL_ROOT / "repromatrix"
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip can say."""


def zipapp(module: str) -> bytes:
    """A zipapp that runs `main` of `module`, with every module of this tool that it imports.

    Args:
        module: Dotted name, `repromatrix.share.handoffs.again`.
    """
    start = f"import sys\n\nfrom {module} import main\n\nsys.exit(main(sys.argv[1:]))\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        files = {str(path.relative_to(TOOL_ROOT)): path.read_bytes() for path in closure(module)}
        for name, content in sorted({**files, "__main__.py": start.encode()}.items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    return out.getvalue()


def closure(module: str) -> set[Path]:
    """Files of `module`, of all that it imports of this tool, and of the packages around them."""
    found: set[Path] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = TOOL_ROOT.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file() or file in found:  # a name that is imported from a module is no file
            continue
        found.add(file)
        todo += [name.rpartition(".")[0]] if "." in name else []
        todo += list(_imports(file))
    return found


def _imports(file: Path) -> Iterator[str]:
    """Names of this tool that `file` imports when it runs: not those for types alone."""
    for node in _running(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == _PACKAGE.name)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def tar(files: Mapping[str, tuple[bytes, bool]], top: str) -> bytes:
    """A tar of `files` below the folder `top`: (content, executable) by path. No time, no owner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, executable) in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = len(content), 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def zst(content: bytes) -> bytes:
    """`content` compressed."""
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=19).compress(content)


def gz(content: bytes) -> bytes:
    """`content` compressed, for machines and trackers that know no Zstandard. No time, no name."""
    return gzip.compress(content, mtime=0)
