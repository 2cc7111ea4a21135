"""Downloads into the wheel store: parallel, resumed, hashed on the way, loud about every retry."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from repromatrix.envs.disk import disk_error, no_room
from repromatrix.envs.model import Wheel
from repromatrix.envs.network import redact, uv_environment, with_credentials
from repromatrix.envs.wheels import Cancelled, WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener, Task

_PARALLEL = 4
_TRIES = 3
_PAUSE = 1.0
"""Seconds before the second try, twice that before the third."""
_CHUNK = 1 << 18
_TIMEOUT = httpx.Timeout(30, pool=None)
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
"""Read by httpx itself."""


class _Interrupted(Exception):
    """The transfer broke off; the next try continues from what came."""


class _Unreachable(InfraError):
    """No route to the index: the other wheels will not come either."""


def download(
    store: WheelStore,
    wheels: Sequence[Wheel],
    addresses: Mapping[str, str] | Callable[[str], str],
    listener: Listener,
    cancel: threading.Event,
) -> None:
    """Fetch `wheels`, none of them in the store. See `WheelStore.fetch`.

    Every wheel is tried, so that one run names every wheel that has vanished; only a full disk and a missing route stop
    the others.
    """
    _check_room(store, wheels)
    stop = threading.Event()
    waiting: queue.SimpleQueue[Wheel] = queue.SimpleQueue()
    for wheel in sorted(wheels, key=lambda wheel: -wheel.size):  # the largest first: the end is not one long transfer
        waiting.put(wheel)
    errors: list[InfraError] = []
    fatal: list[BaseException] = []

    def work() -> None:
        try:
            with _client() as client:
                while not (stop.is_set() or cancel.is_set()):
                    try:
                        wheel = waiting.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        _Transfer(store, wheel, _address(wheel, addresses), client, listener, cancel, stop).run()
                    except _Unreachable:
                        raise
                    except InfraError as error:
                        errors.append(error)
                    except OSError as error:
                        raise disk_error(error, store.tmp, wheel.size) from error
        except BaseException as error:  # reported by the caller's thread, below
            stop.set()
            fatal.append(error)

    # Daemons: on Ctrl-C a thread may still wait for a silent server, and must not hold up the end of the program.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_PARALLEL, len(wheels)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not cancel.is_set():
            thread.join(0.1)
    if cancel.is_set():
        raise Cancelled("fetching was cancelled", hint="run again: it continues where it stopped")
    if fatal:
        raise fatal[0]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise InfraError(f"{len(errors)} wheels could not be fetched:\n" + "\n".join(str(error) for error in errors))


def _check_room(store: WheelStore, wheels: Sequence[Wheel]) -> None:
    try:
        store.tmp.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, store.root) from error
    here = sum(part.stat().st_size for wheel in wheels if (part := _part(store, wheel)).exists())
    needed = sum(wheel.size for wheel in wheels) - here
    if (free := shutil.disk_usage(store.tmp).free) < needed:
        raise no_room(store.root, needed, free)


def _part(store: WheelStore, wheel: Wheel) -> Path:
    return store.tmp / f"{wheel.sha256}.part"


def _address(wheel: Wheel, addresses: Mapping[str, str] | Callable[[str], str]) -> str:
    try:
        return addresses(wheel.sha256) if callable(addresses) else addresses[wheel.sha256]
    except KeyError:
        raise _vanished(wheel, "the index does not list it") from None


def _vanished(wheel: Wheel, how: str) -> InfraError:
    return InfraError(
        f"the wheel has vanished from the index: {how}",
        where=wheel.filename,
        hint="restore it from an archive (`invoke restore`), or lock again: `uv run invoke lock --env ID --refresh`",
    )


def _client() -> httpx.Client:
    """A client with the proxy and CA settings of uv and pip; waits 30 s for an answer."""
    settings = uv_environment()
    try:
        return httpx.Client(
            verify=_trust(settings.get("SSL_CERT_FILE"), settings.get("SSL_CERT_DIR")),
            proxy=None if any(os.environ.get(name) for name in _PROXIES) else settings.get("HTTPS_PROXY"),
            timeout=_TIMEOUT,
            follow_redirects=True,
            headers={"Accept-Encoding": "identity"},  # the hash is of the bytes as published
        )
    except (OSError, ValueError, ImportError) as error:
        raise _Unreachable(
            f"the proxy or certificate settings cannot be used: {redact(str(error))}",
            hint="check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE, and pip's cert and proxy",
        ) from error


def _trust(file: str | None, folder: str | None) -> ssl.SSLContext | bool:
    if not file:
        return ssl.create_default_context(capath=folder) if folder else True
    if Path(file).is_dir():
        return ssl.create_default_context(capath=file)
    return ssl.create_default_context(cafile=file)


class _Transfer:
    """One wheel on its way into the store."""

    def __init__(
        self,
        store: WheelStore,
        wheel: Wheel,
        address: str,
        client: httpx.Client,
        listener: Listener,
        cancel: threading.Event,
        stop: threading.Event,
    ) -> None:
        self.store = store
        self.wheel = wheel
        self.url = httpx.URL(with_credentials(address, uv_environment()))
        self.shown = redact(address)
        self.client = client
        self.listener = listener
        self.cancel = cancel
        self.stop = stop
        self.part = _part(store, wheel)
        self.counted = 0

    def run(self) -> None:
        with self.store.locked(self.wheel.sha256, self.cancel):
            if self.store.path(self.wheel) is not None:  # another run was faster
                return
            task = self.listener.start("fetch", self.wheel.filename, self.wheel.size or None, "B")
            try:
                self._tries(task)
            except BaseException as error:
                task.finish("cancelled" if isinstance(error, Cancelled) else "failed")
                raise
            task.finish()

    def _tries(self, task: Task) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                self._once(task)
                return
            except (_Interrupted, httpx.TransportError) as error:
                if attempt == _TRIES:
                    raise self._given_up(error) from error
                self.listener.warn(f"{self.wheel.filename}: {_words(error)}; trying again ({attempt} of {_TRIES - 1})")
                if self.cancel.wait(attempt * _PAUSE):
                    raise Cancelled("fetching was cancelled", where=self.wheel.filename) from error

    def _given_up(self, error: Exception) -> InfraError:
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
            return _Unreachable(
                f"no route to {self.url.host}: {_words(error)}",
                where=self.wheel.filename,
                hint="check the network, HTTPS_PROXY and SSL_CERT_FILE; `invoke doctor` tells more",
            )
        return InfraError(
            f"{_words(error)} ({_TRIES} times, {self.shown})",
            where=self.wheel.filename,
            hint="run again: it continues where it stopped",
        )

    def _once(self, task: Task) -> None:
        """One try: continue the part, or begin it; then check and publish.

        Raises:
            _Interrupted, httpx.TransportError: It broke off.
            InfraError: It cannot succeed.
        """
        digest = hashlib.sha256()
        with self.part.open("a+b") as part:
            part.seek(0)
            while block := part.read(_CHUNK):
                digest.update(block)
            resumed = part.tell()
            if self.wheel.size and resumed > self.wheel.size:
                part.truncate(0)
                digest, resumed = hashlib.sha256(), 0
            size = resumed
            if not (self.wheel.size and size == self.wheel.size):
                with self._stream(size) as (start, chunks):
                    if start != size:
                        part.truncate(0)
                        digest, resumed, size = hashlib.sha256(), 0, 0
                    self._progress(task, size)
                    for chunk in chunks:
                        if self.cancel.is_set() or self.stop.is_set():
                            raise Cancelled("fetching was cancelled", where=self.wheel.filename)
                        part.write(chunk)
                        digest.update(chunk)
                        size += len(chunk)
                        self._progress(task, size)
                        if self.wheel.size and size > self.wheel.size:
                            break
        if size < self.wheel.size:
            raise _Interrupted(f"truncated: {size} of {self.wheel.size} bytes came")
        self._publish(digest.hexdigest(), size, resumed)

    def _progress(self, task: Task, size: int) -> None:
        """Count up to `size` bytes; bytes that come again after a retry count once."""
        if size > self.counted:
            task.advance(size - self.counted)
            self.counted = size

    def _publish(self, digest: str, size: int, resumed: int) -> None:
        if digest != self.wheel.sha256:
            self.part.unlink(missing_ok=True)
            if resumed:  # what an earlier run left may be damaged (power loss): that is no fault of the index
                raise _Interrupted(f"does not match its hash after continuing at byte {resumed}, starts anew")
            raise InfraError(
                f"not the file of the lock: expected sha256 {self.wheel.sha256} ({self.wheel.size or '?'} bytes), "
                f"got {digest} ({size} bytes) from {self.shown}; the file was removed",
                where=self.wheel.filename,
                hint="a proxy or mirror may have changed it; if the index did: `uv run invoke lock --env ID --refresh`",
            )
        final = self.store.place(self.wheel)
        final.parent.mkdir(parents=True, exist_ok=True)
        self.part.replace(final)
        final.chmod(0o444)

    @contextmanager
    def _stream(self, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the answer begins, and its chunks."""
        if self.url.scheme == "file":
            with self._local() as opened:
                opened.seek(start)
                yield start, iter(lambda: opened.read(_CHUNK), b"")
            return
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = self.client.build_request("GET", self.url, headers=headers)
        response = self.client.send(request, stream=True)
        try:
            code = response.status_code
            if code == 416 and start:  # nothing after `start`: the part is complete or of another file
                yield start, iter(())
            elif code == 206 and response.headers.get("content-range", "").startswith(f"bytes {start}-"):
                yield start, response.iter_raw()
            elif code == 200:
                yield 0, response.iter_raw()
            else:
                raise self._refused(code)
        finally:
            response.close()

    def _refused(self, code: int) -> Exception:
        if code in (404, 410):
            return _vanished(self.wheel, f"{self.shown} answers {code}")
        if code in _RETRIED:
            return _Interrupted(f"the server answers {code}")
        if code in (401, 403, 407):
            return InfraError(
                f"access refused: {self.shown} answers {code}",
                where=self.wheel.filename,
                hint="give credentials in ~/.netrc, in the index's URL or in the proxy's URL",
            )
        return InfraError(f"{self.shown} answers {code}", where=self.wheel.filename)

    def _local(self) -> IO[bytes]:
        try:
            return Path(httpx.URL(self.url).path).open("rb")
        except OSError as error:
            raise _vanished(self.wheel, f"{self.shown}: {error.strerror}") from error


def _words(error: Exception) -> str:
    return redact(str(error)) or type(error).__name__
