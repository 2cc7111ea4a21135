"""Small archives made by hand, and folders compared as a whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from repromatrix.carry import folder
from repromatrix.carry.format import Blob, Carried, File, Image, Manifest, render
from repromatrix.carry.parts import write

WHEEL = b"not a real wheel, nobody opens it"
WHEEL_PLACE = f"store/wheels/{hashlib.sha256(WHEEL).hexdigest()}/tiny-1.0-py3-none-any.whl"

FILES: Mapping[str, bytes] = {
    "project/matrix.toml": b'[matrix]\njax = ["1.0"]\n',
    "project/repros/empty.py": b"",
    "project/repros/one.py": b"print('one')\n" * 40,
    "project/repros/copy.py": b"print('one')\n" * 40,
    WHEEL_PLACE: WHEEL,
    "store/bases/bookworm.json": b'{"release": "bookworm"}',
}


def make(root: Path, files: Mapping[str, bytes] = FILES, *, program: str = "project/repros/one.py") -> Manifest:
    """An archive in the new folder `root` with these files, an image of two layers, and the files beside."""
    blobs = {blob.sha256: blob for blob in (folder.add(root, content) for content in files.values())}
    carried = []
    for path, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        carried.append(File(path, digest, len(content), executable=path == program))
    layers = [folder.add(root, b"layer one" * 30), folder.add(root, b"layer two" * 50)]
    config = folder.add(root, b'{"os": "linux"}')
    document = {"config": _described(config), "layers": [_described(layer) for layer in layers]}
    oci = folder.add(root, json.dumps(document).encode())
    blobs.update({blob.sha256: blob for blob in (*layers, config, oci)})
    image = Image("jax1.0-cpu-py311", "repromatrix:jax1.0-cpu-py311", oci.sha256, config.sha256, "0" * 64)
    roots = [folder.write_root(root, name, f"{name}\n".encode()) for name in ("README.md", "index.json", "oci-layout")]
    wheels = tuple(file.sha256 for file in carried if file.path.startswith("store/wheels/"))
    manifest = Manifest(
        tool="0.1.0",
        created="2026-11-30T00:00:00Z",
        environments=(Carried("jax1.0-cpu-py311", "1" * 64, "3.11", "x86_64-manylinux_2_28", wheels),),
        files=tuple(sorted(carried, key=lambda file: file.path)),
        images=(image,),
        blobs=tuple(sorted(blobs.values(), key=lambda blob: blob.sha256)),
        roots=tuple(sorted(roots, key=lambda file: file.path)),
    )
    folder.write_manifest(root, manifest)
    return manifest


def _described(blob: Blob) -> dict[str, object]:
    return {"digest": f"sha256:{blob.sha256}", "size": blob.size}


def rewrite(root: Path, manifest: Manifest, **changed: object) -> Manifest:
    """Write a manifest with other fields, whatever they are: what somebody hostile would do."""
    other = replace(manifest, **changed)  # type: ignore[arg-type]
    (root / "archive.json").write_bytes(render(other))
    return other


def parts_of(root: Path, manifest: Manifest, into: Path, size: int = 1 << 20) -> list[Path]:
    """The archive cut into parts, small ones if it is large."""
    return list(write(root, manifest, into, "tiny", size))


def tree(root: Path) -> dict[str, str]:
    """Everything below `root`: kind and content by path; links are not followed."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"link {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        elif not path.is_file():
            found[name] = "special"
        else:
            found[name] = f"{path.stat().st_mode & 0o777:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found
