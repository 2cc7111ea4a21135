"""A link of a known bandwidth: a proxy that lets so many bytes a second pass, all connections together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer

_CHUNK = 1 << 16


@contextmanager
def link(bytes_per_second: float) -> Iterator[str]:
    """The address of an HTTP proxy, for HTTPS alone; it ends with the block."""
    bucket = _Bucket(bytes_per_second)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            method, _, rest = self.rfile.readline().decode("latin-1").partition(" ")
            host, _, port = rest.partition(" ")[0].rpartition(":")
            while self.rfile.readline().strip():
                pass
            if method != "CONNECT":
                self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
                return
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=30) as server:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                up = threading.Thread(target=_pump, args=(self.connection, server, None), daemon=True)
                up.start()
                _pump(server, self.connection, bucket)

    class Server(ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class _Bucket:
    """Lets bytes pass one after the other, as fast as the link is."""

    def __init__(self, bytes_per_second: float) -> None:
        self._speed = bytes_per_second
        self._free = time.monotonic()
        self._mutex = threading.Lock()

    def wait(self, size: int) -> None:
        with self._mutex:
            self._free = max(self._free, time.monotonic()) + size / self._speed
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))


def _pump(source: socket.socket, target: socket.socket, bucket: _Bucket | None) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            if bucket is not None:
                bucket.wait(len(data))
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
