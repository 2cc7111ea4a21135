"""A package index on the loopback, with hand-made wheels: the whole main job in seconds and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Published:
    """One wheel as the index lists it."""

    name: str
    version: str
    path: Path
    sha256: str
    uploaded: str


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
) -> Path:
    """Write a pure-Python wheel with these files and this metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Provides-Extra: {extra}" for extra in extras]
    metadata += [f"Requires-Dist: {need}" for need in requires]
    content = dict(files)
    content[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, text in content.items():
            archive.writestr(zipfile.ZipInfo(inside, (2025, 1, 1, 0, 0, 0)), text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass(slots=True)
class FakeIndex:
    """Serves the simple API in JSON (PEP 691) with upload times (PEP 700).

    Attributes:
        url: Address of the index, as UV_DEFAULT_INDEX wants it.
        requests: Paths asked for, in order.
        broken: File names answered with other bytes than the index promises.
        empty: Projects whose page lists no file, as the login page of a network does.
        yanked: File names that were withdrawn (PEP 592), with the reason or True.
        pythons: What files ask of Python (`requires-python`), by name.
        refuses: HTTP status that answers every request, 0 = none.
        stalls: (who asks: `uv` or `tool`, file name) of which half comes, and then nothing until it is taken out.
        stalling: Those that hang now.
    """

    folder: Path
    published: list[Published] = field(default_factory=list)
    url: str = ""
    requests: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    yanked: dict[str, str | bool] = field(default_factory=dict)
    pythons: dict[str, str] = field(default_factory=dict)
    refuses: int = 0
    stalls: set[tuple[str, str]] = field(default_factory=set)
    stalling: set[tuple[str, str]] = field(default_factory=set)

    def add(
        self,
        name: str,
        version: str,
        files: Mapping[str, str],
        *,
        requires: Sequence[str] = (),
        extras: Sequence[str] = (),
        uploaded: str = "2025-01-01T12:00:00Z",
    ) -> Published:
        """Publish a wheel."""
        path = make_wheel(self.folder, name, version, files, requires, extras)
        made = Published(name, version, path, hashlib.sha256(path.read_bytes()).hexdigest(), uploaded)
        self.published.append(made)
        return made

    def project_page(self, name: str) -> bytes | None:
        rows = [
            {
                "filename": item.path.name,
                "url": f"../../files/{item.path.name}",
                "hashes": {"sha256": item.sha256},
                "size": item.path.stat().st_size,
                **({"upload-time": item.uploaded} if item.uploaded else {}),
                "yanked": self.yanked.get(item.path.name, False),
                "requires-python": self.pythons.get(item.path.name),
            }
            for item in self.published
            if item.name == name
        ]
        if not rows and name not in self.empty:
            return None
        versions = [item.version for item in self.published if item.name == name]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": versions, "files": rows}
        return json.dumps(page).encode()


@contextmanager
def serve(folder: Path) -> Iterator[FakeIndex]:
    """A running index with nothing published yet."""
    index = FakeIndex(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            parts = self.path.strip("/").split("/")
            body, kind = None, "application/vnd.pypi.simple.v1+json"
            if parts[0] == "simple" and len(parts) == 2:
                body = index.project_page(parts[1])
            elif parts[0] == "files" and (index.folder / parts[1]).is_file():
                body, kind = (index.folder / parts[1]).read_bytes(), "application/octet-stream"
                if parts[1] in index.broken:
                    body = body[:-1] + bytes([body[-1] ^ 1])
            if index.refuses or body is None:
                self.send_error(index.refuses or 404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                asked = ("uv" if self.headers.get("User-Agent", "").startswith("uv/") else "tool", parts[-1])
                if asked in index.stalls:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    index.stalling.add(asked)
                    while asked in index.stalls:
                        time.sleep(0.02)
                    self.close_connection = True
                    return
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  (uv asks for a wheel's size before it reads the metadata inside)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()  # its stop waits so long
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()


JAX = """\
__version__ = {version!r}
"""


def publish_jax(index: FakeIndex, versions: Mapping[str, str], body: str = "") -> None:
    """Publish a stand-in for jax and jaxlib: version -> day of release; `body` is added to the module `jax`."""
    for version, day in versions.items():
        index.add("jaxlib", version, {"jaxlib/__init__.py": ""}, uploaded=f"{day}T10:00:00Z")
        index.add(
            "jax",
            version,
            {"jax/__init__.py": JAX.format(version=version) + body},
            requires=[f"jaxlib<={version}"],
            extras=["cuda12"],
            uploaded=f"{day}T11:00:00Z",
        )
