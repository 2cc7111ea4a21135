"""The files beside an archive's manifest: what people and other tools read first, and the program that restores.

All are made of the manifest, of this tool's own source, or of the images that the archive holds; the same archive has
the same bytes in them.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from repromatrix.carry.folder import blob_path
from repromatrix.carry.format import Manifest
from repromatrix.project import TOOL_ROOT
from repromatrix.share.archives import layout
from repromatrix.share.archives.provenance import PACKAGES, sbom, statement

_MAIN = b"""\
import runpy

runpy.run_module("repromatrix.carry", run_name="__main__", alter_sys=True)
"""

_README = """\
# An archive of Repromatrix

Written by repromatrix {tool}, {created}. It needs neither a network nor this tool: `restore.pyz` runs with any
Python from 3.9 and nothing else.

    python3 restore.pyz . --verify                # every byte, against the hashes in archive.json
    python3 restore.pyz . --into FOLDER           # a checkout with its own environment, ready to run
    cd FOLDER && .venv/bin/invoke matrix --offline --env '{chosen}'

Both print the archive's id. Compare it with the one that the sender says (`--expect ID` does so): it fixes every byte
here, this program's too. Who does not trust `restore.pyz` takes the one of a checkout: `invoke verify`,
`invoke restore`.

{size} in {files} files. Restored, this tool runs on {pythons}.

| environment | Python | wheels | image |
|---|---|---|---|
{rows}
{notes}
| file | what it is |
|---|---|
| `archive.json` | what is in here: every file's place, size and SHA-256 |
| `blobs/sha256/` | the content, each once, under its hash |
| `statement.json` | in-toto statement with SLSA provenance: wheels, images, bases |
| `sbom.cdx.json` | bill of materials, CycloneDX 1.6: every wheel and every Debian package |
| `index.json`, `oci-layout` | the images, for tools that read an OCI layout |
| `restore.pyz` | verifies and restores |
"""


def roots(manifest: Manifest, root: Path) -> dict[str, bytes]:
    """Name and content of every file beside the manifest.

    Args:
        manifest: With its time, without `roots`.
        root: The archive's folder, which holds the blobs.

    Raises:
        Damaged: Blobs of an image are missing.
        OSError: A blob, or this tool's source, cannot be read.
    """
    lists = {
        file.path.rpartition("/")[2].removesuffix(PACKAGES): blob_path(root, file.sha256).read_text(encoding="utf-8")
        for file in manifest.files
        if file.path.startswith("store/bases/") and file.path.endswith(PACKAGES)
    }
    return {
        "README.md": readme(manifest).encode(),
        "index.json": layout.index(root, manifest.images),
        "oci-layout": layout.oci_layout(),
        "restore.pyz": restore_program(TOOL_ROOT / "repromatrix"),
        "sbom.cdx.json": sbom(manifest, lists),
        "statement.json": statement(manifest),
    }


def readme(manifest: Manifest) -> str:
    """The text that tells whoever finds the archive what it is and how to use it."""
    rows = "\n".join(
        f"| {each.id} | {each.python} | {len(each.wheels)} | {each.image[:12] or '-'} |"
        for each in manifest.environments
    )
    pythons = sorted({file.path.split("/")[1] for file in manifest.files if file.path.startswith("tool/")})
    notes = "".join(f"* {note}\n" for note in manifest.notes)
    return _README.format(
        tool=manifest.tool,
        created=manifest.created,
        size=f"{manifest.size / 1e6:.1f} MB",
        files=len(manifest.files),
        chosen=chosen(manifest),
        pythons=f"Python {', '.join(pythons)}, Linux x86_64" if pythons else "no Python: its wheels are not held",
        rows=rows,
        notes=f"\nWhat it does not hold:\n\n{notes}" if notes else "",
    )


def chosen(manifest: Manifest) -> str:
    """What `--env` takes for the environments that an archive holds: the matrix may have more, which would all fail."""
    names = ",".join(each.id for each in manifest.environments)
    return names if len(names) < 2000 else "*"


def restore_program(package: Path) -> bytes:
    """`restore.pyz`: this package's `__init__` and `carry/`, the same bytes for the same source.

    Args:
        package: The folder `repromatrix`.

    Raises:
        OSError: It cannot be read.
    """
    sources = [package / "__init__.py", *sorted((package / "carry").glob("*.py"))]
    content = {"__main__.py": _MAIN}
    content |= {f"repromatrix/{path.relative_to(package).as_posix()}": path.read_bytes() for path in sources}
    out = io.BytesIO(b"#!/usr/bin/env python3\n")
    out.seek(0, io.SEEK_END)
    # Stored, not deflated: two versions of zlib compress alike, but not to the same bytes.
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(content.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return out.getvalue()
