"""Hand-made wheels, and a server on the loopback that misbehaves on request."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.spec.model import Environment


def wheel_bytes(name: str, files: Mapping[str, bytes | str], modes: Mapping[str, int] | None = None) -> bytes:
    """A wheel `name` 1.0 with `files` and the metadata that a wheel must have."""
    info = f"{name}-1.0.dist-info"
    everything: dict[str, bytes | str] = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in everything.items():
            entry = zipfile.ZipInfo(path, (2024, 5, 6, 7, 8, 10))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(entry, content)
    return out.getvalue()


def as_wheel(name: str, data: bytes, size: int | None = None) -> Wheel:
    return Wheel(
        name,
        "1.0",
        f"{name}-1.0-py3-none-any.whl",
        hashlib.sha256(data).hexdigest(),
        len(data) if size is None else size,
        "",
    )


def put(store: WheelStore, name: str, data: bytes) -> Wheel:
    """Lay a wheel into the store as a finished download would."""
    wheel = as_wheel(name, data)
    place = store.place(wheel)
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    return wheel


def a_lock(python: str, *wheels: Wheel) -> Lock:
    axes = (("jax", "1.0"), ("cuda", "none"), ("python", python), ("nccl", "locked"))
    return Lock(Environment(axes), python, "x86_64-manylinux_2_28", "release", "", wheels)


class Heard(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Server:
    """Serves `files`; each of `faults[path]` spoils one request of that path, the last one every further request.

    Faults: `404`, `503`, `truncate` (half of what is asked, then the connection closes), `chop` (half of it as if that
    were all), `wrong` (other bytes), `no-range` (ignores Range), `slow` (a little, then silence).
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(path, Range, Authorization) of every request."""
    url: str = ""
    sending: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    def fault(self, path: str) -> str:
        faults = self.faults.get(path, [])
        return faults.pop(0) if len(faults) > 1 else (faults[0] if faults else "")


@contextmanager
def serve() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.requests.append((self.path, asked, self.headers.get("Authorization", "")))
            fault = state.fault(self.path)
            if fault.isdigit() or self.path not in state.files:
                self.send_response(int(fault or 404))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = state.files[self.path]
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and fault != "no-range" else 0
            if fault == "wrong":
                data = bytes(byte ^ 1 for byte in data)
            body = data[start:]
            if fault == "chop":
                body = body[: len(body) // 2]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fault == "truncate":
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            elif fault == "slow":
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                state.sending.set()
                state.end.wait(20)
                self.close_connection = True
            else:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        state.end.set()
        server.shutdown()
        thread.join()
        server.server_close()


def contents(root: Path) -> dict[str, tuple[bool, bytes]]:
    """(executable, content) of every file below `root`, by path."""
    return {
        str(path.relative_to(root)): (bool(path.stat().st_mode & 0o100), path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }
