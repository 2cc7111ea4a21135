"""Asking the index through uv: settings of uv and pip, credentials, and every kind of trouble, on real servers."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from repromatrix.envs import network
from repromatrix.envs.index import (
    PLATFORM,
    NoSuchPackage,
    Resolution,
    Unsatisfiable,
    addresses,
    compile_requirements,
    release_time,
    trouble_of,
)
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.network import redact, uv_environment, with_credentials
from repromatrix.envs.tools import StackReaders
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent
from repromatrix.spec.model import Environment, Matrix
from tests.fake_index import make_wheel, serve

DATA = Path(__file__).parent / "data"
LOGIN = "Basic " + base64.b64encode(b"reader:s3cret/@").decode()


@dataclass(slots=True)
class Server:
    """An index of one wheel, `toy` 1.0, in plain HTML without sizes and upload times; also a proxy to itself."""

    wheel: Path
    scheme: str = "http"
    port: int = 0
    login: str = ""
    status: int = 0
    seen: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.wheel.read_bytes()).hexdigest()

    def url(self, user: str = "") -> str:
        return f"{self.scheme}://{user}127.0.0.1:{self.port}/simple"


@contextmanager
def running(wheel: Path, certificate: Path | None = None, login: str = "", status: int = 0) -> Iterator[Server]:
    state = Server(wheel, "https" if certificate else "http", login=login, status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.seen.append(self.path)
            path = urlsplit(self.path).path
            if state.status:
                return self.answer(state.status, b"")
            if state.login and self.headers.get("Authorization") != state.login:
                state.refused += 1
                return self.answer(401, b"")
            if path == "/simple/toy/":
                name = state.wheel.name
                return self.answer(200, f'<a href="/files/{name}#sha256={state.sha256}">{name}</a>'.encode())
            if path.startswith("/files/"):
                return self.answer(200, state.wheel.read_bytes())
            return self.answer(404, b"")

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  (uv asks for a wheel's size before it reads the metadata inside)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "wheels", "toy", "1.0", {"toy.py": "x = 1\n"})


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has configured nothing."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "xdg"),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CONFIG": "1",
    }


def ask(environ: dict[str, str], requirement: str = "toy==1.0", *options: str) -> Resolution:
    return compile_requirements([requirement], python="3.11", platform=PLATFORM, options=options, environ=environ)


def lock_of_toy(sha256: str, *more: Wheel) -> Lock:
    environment = Environment((("jax", "1.0"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")))
    wheel = Wheel("toy", "1.0", "toy-1.0-py3-none-any.whl", sha256, 0, "")
    return Lock(environment, "3.11", PLATFORM, "latest", "", (wheel, *more))


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_of_uv_stay_as_they_are(plain: dict[str, str]) -> None:
    given = plain | {
        "UV_DEFAULT_INDEX": "https://a.example/simple",
        "UV_INDEX": "b=https://b.example/simple",
        "SSL_CERT_FILE": "/ca/uv.pem",
        "HTTPS_PROXY": "http://proxy.example:1",
        "PIP_INDEX_URL": "https://pip.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://pip2.example/simple",
        "PIP_CERT": "/ca/pip.pem",
        "PIP_PROXY": "http://pip.example:1",
    }
    env = uv_environment(given)
    assert {key: env[key] for key in given} == given
    assert "UV_INDEX_STRATEGY" not in env


def test_pips_variables_are_translated_and_folders_are_not_indexes(plain: dict[str, str]) -> None:
    env = uv_environment(
        plain
        | {
            "PIP_INDEX_URL": "https://pip.example/simple",
            "PIP_EXTRA_INDEX_URL": "file:///srv/simple https://more.example/simple",
            "PIP_FIND_LINKS": "/srv/wheels",
            "PIP_CERT": "/ca/pip.pem",
            "PIP_PROXY": "http://proxy.example:3128",
        }
    )
    assert env["UV_DEFAULT_INDEX"] == "https://pip.example/simple"
    assert env["UV_INDEX"] == "https://more.example/simple"
    assert env["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert env["SSL_CERT_FILE"] == "/ca/pip.pem"
    assert env["HTTPS_PROXY"] == env["HTTP_PROXY"] == "http://proxy.example:3128"
    assert "UV_FIND_LINKS" not in env


def test_pips_files_are_read_where_pip_reads_them(
    plain: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_ETC", tmp_path / "etc")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    del plain["PIP_CONFIG_FILE"]
    system, user, chosen = tmp_path / "xdg/pip/pip.conf", tmp_path / "home/.config/pip/pip.conf", tmp_path / "pip.ini"
    for path, text in (
        (system, "[global]\nindex-url = https://system.example/simple\ncert = /ca/system.pem\n"),
        (user, "[global]\nindex-url = https://user.example/simple\nextra-index-url =\n  https://x.example/%20s\n"),
        (chosen, "[global]\nproxy = http://proxy.example:8080\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = uv_environment(plain)
    assert env["UV_DEFAULT_INDEX"] == "https://user.example/simple"
    assert env["UV_INDEX"] == "https://x.example/%20s"
    assert env["SSL_CERT_FILE"] == "/ca/system.pem"
    assert "HTTPS_PROXY" not in env
    env = uv_environment(plain | {"PIP_CONFIG_FILE": str(chosen)})
    assert env["HTTPS_PROXY"] == "http://proxy.example:8080"
    assert env["UV_DEFAULT_INDEX"] == "https://system.example/simple"
    assert "UV_DEFAULT_INDEX" not in uv_environment(plain | {"PIP_CONFIG_FILE": os.devnull})


def test_a_damaged_pip_conf_is_told(plain: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "pip.ini"
    path.write_text("index-url = https://a.example\n")
    with pytest.raises(InfraError, match="pip's configuration cannot be read"):
        uv_environment(plain | {"PIP_CONFIG_FILE": str(path)})


def test_variables_that_change_what_is_resolved_are_left_out(plain: dict[str, str]) -> None:
    env = uv_environment(plain | {"UV_RESOLUTION": "lowest", "UV_FIND_LINKS": "/srv", "UV_CONSTRAINT": "c.txt"})
    assert not {"UV_RESOLUTION", "UV_FIND_LINKS", "UV_CONSTRAINT"} & env.keys()


def test_credentials_go_to_their_own_host_alone(tmp_path: Path) -> None:
    env = {"UV_DEFAULT_INDEX": "https://me:p%40ss@a.example/simple", "UV_INDEX": "my-own=https://b.example/simple"}
    env |= {"UV_INDEX_MY_OWN_USERNAME": "you", "UV_INDEX_MY_OWN_PASSWORD": "x:y"}
    (tmp_path / "netrc").write_text("machine c.example login they password z\n")
    env["NETRC"] = str(tmp_path / "netrc")
    assert with_credentials("https://a.example/f.whl", env) == "https://me:p%40ss@a.example/f.whl"
    assert with_credentials("https://b.example/f.whl", env) == "https://you:x%3Ay@b.example/f.whl"
    assert with_credentials("https://c.example/f.whl", env) == "https://they:z@c.example/f.whl"
    for other in ("https://files.example/f.whl", "http://a.example/f.whl", "https://a.example:8443/f.whl"):
        assert with_credentials(other, env) == other
    assert redact("see https://me:p%40ss@a.example/f.whl") == "see https://***@a.example/f.whl"


# --- real servers -----------------------------------------------------------------------------------------------------


def test_index_url_with_credentials_of_pip(toy: Path, plain: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with running(toy, login=LOGIN) as server:
        environ = plain | {"PIP_INDEX_URL": server.url("reader:s3cret%2F%40@")}
        resolved = ask(environ)
        (package,) = resolved.packages
        (file,) = package.files
        assert (package.name, package.version, file.filename) == ("toy", "1.0", toy.name)
        assert file.sha256 == server.sha256
        assert (file.size, file.uploaded) == (0, "")
        assert "s3cret" not in resolved.stderr
        for key, value in environ.items():
            monkeypatch.setenv(key, value)
        found = addresses(lock_of_toy(server.sha256))
        assert found == {server.sha256: f"http://reader:s3cret%2F%40@127.0.0.1:{server.port}/files/{toy.name}"}


@pytest.mark.parametrize("user", ["", "reader:wrong@"])
def test_refused_credentials_are_no_impossible_environment(toy: Path, plain: dict[str, str], user: str) -> None:
    with running(toy, login=LOGIN) as server, pytest.raises(InfraError, match=r"refuses access \(401") as error:
        ask(plain | {"UV_DEFAULT_INDEX": server.url(user)})
    assert server.refused > 0
    assert "UV_INDEX_<NAME>_PASSWORD" in error.value.hint.replace("_USERNAME and _PASSWORD", "_PASSWORD")
    assert "wrong" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "says"), [(403, "refuses access"), (500, r"server error \(500"), (503, r"server error \(503")]
)
def test_an_index_that_fails(toy: Path, plain: dict[str, str], status: int, says: str) -> None:
    with running(toy, status=status) as server, pytest.raises(InfraError, match=says) as error:
        ask(plain | {"UV_DEFAULT_INDEX": server.url()})
    assert not isinstance(error.value, Unsatisfiable)
    assert error.value.exit_code == 3


def test_a_ca_bundle_of_pip(toy: Path, plain: dict[str, str]) -> None:
    with running(toy, certificate=DATA / "tls" / "server.pem") as server:
        environ = plain | {"UV_DEFAULT_INDEX": server.url()}
        with pytest.raises(InfraError, match="TLS certificate is not trusted") as error:
            ask(environ)
        assert "SSL_CERT_FILE" in error.value.hint
        (package,) = ask(environ | {"PIP_CERT": str(DATA / "tls" / "ca.pem")}).packages
        assert package.files[0].sha256 == server.sha256


def test_a_proxy_of_pip(toy: Path, plain: dict[str, str]) -> None:
    with running(toy) as server:
        environ = plain | {"UV_DEFAULT_INDEX": "http://index.example/simple"}
        (package,) = ask(environ | {"PIP_PROXY": f"http://127.0.0.1:{server.port}"}).packages
        assert package.files[0].url == f"http://index.example/files/{toy.name}"
        assert "http://index.example/simple/toy/" in server.seen


def test_a_dead_proxy_is_told_as_such(toy: Path, plain: dict[str, str]) -> None:
    environ = plain | {"UV_DEFAULT_INDEX": "https://index.example/simple", "HTTPS_PROXY": "http://u:hidden@127.0.0.1:1"}
    with pytest.raises(InfraError, match="the proxy does not let it through") as error:
        ask(environ)
    assert "hidden" not in str(error.value)


def test_an_index_that_does_not_listen(plain: dict[str, str]) -> None:
    with pytest.raises(InfraError, match="the package index cannot be asked: no connection") as error:
        ask(plain | {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple"})
    assert "UV_DEFAULT_INDEX" in error.value.hint


def test_an_index_without_upload_times_cannot_answer_for_a_day(
    toy: Path, plain: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(toy) as server:
        environ = plain | {"UV_DEFAULT_INDEX": server.url()}
        with pytest.raises(InfraError, match="does not tell when files were uploaded"):
            ask(environ, "toy==1.0", "--exclude-newer=2026-01-01T00:00:00Z")
        (package,) = ask(
            environ, "toy==1.0", "--exclude-newer=2026-01-01T00:00:00Z", "--exclude-newer-package=toy=false"
        ).packages
        assert package.version == "1.0"
        for key, value in environ.items():
            monkeypatch.setenv(key, value)
        with pytest.raises(InfraError, match=r"does not tell when toy 1\.0 was uploaded"):
            release_time("toy", "1.0")


def test_what_is_not_there(toy: Path, plain: dict[str, str]) -> None:
    with running(toy) as server:
        environ = plain | {"UV_DEFAULT_INDEX": server.url()}
        with pytest.raises(NoSuchPackage, match="the index has no package tuy"):
            ask(environ, "tuy==1.0")
        with pytest.raises(Unsatisfiable):
            ask(environ, "toy==2.0")


def test_addresses_leave_out_what_is_gone_and_use_the_extra_indexes_of_the_matrix(
    toy: Path, plain: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running(toy) as main, serve(tmp_path / "extra") as extra:
        other = extra.add("other", "1.5", {"other.py": ""})
        for key, value in (plain | {"UV_DEFAULT_INDEX": main.url()}).items():
            monkeypatch.setenv(key, value)
        gone = Wheel("gone", "1.0", "gone-1.0-py3-none-any.whl", "0" * 64, 0, "")
        old = Wheel("other", "1.4", "other-1.4-py3-none-any.whl", "1" * 64, 0, "")
        here = Wheel("other", "1.5", other.path.name, other.sha256, 0, "")
        matrix = Matrix(tmp_path / "matrix.toml", (), "latest", indexes=(("own", extra.url),))
        toy_url = f"http://127.0.0.1:{main.port}/files/{toy.name}"
        assert addresses(lock_of_toy(main.sha256, gone, old), matrix) == {main.sha256: toy_url}
        found = addresses(lock_of_toy(main.sha256, gone, here), matrix)
        assert found == {main.sha256: toy_url, other.sha256: extra.url.replace("simple", f"files/{other.path.name}")}
        # The nightly index serves development versions only.
        nightly = dataclasses.replace(matrix, indexes=(("nightly", extra.url),))
        assert addresses(lock_of_toy(main.sha256, here), nightly) == {main.sha256: toy_url}
        with pytest.raises(InfraError, match="none of the packages"):
            addresses(Lock(lock_of_toy("").environment, "3.11", PLATFORM, "latest", "", (gone,)), matrix)


def test_a_wheel_that_the_index_has_with_another_hash_is_not_said_to_have_vanished(
    toy: Path, plain: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = WheelStore(tmp_path / "store")
    with running(toy) as server:
        for key, value in (plain | {"UV_DEFAULT_INDEX": server.url()}).items():
            monkeypatch.setenv(key, value)
        absent = Wheel("toy", "1.0", "toy-1.0-cp311-cp311-linux_x86_64.whl", "1" * 64, 0, "")
        lock = lock_of_toy("0" * 64, absent)
        found = addresses(lock)
        assert found == {}
        wrong = next(wheel for wheel in lock.wheels if wheel.sha256 == "0" * 64)
        with pytest.raises(InfraError, match="the index serves another file under this name") as caught:
            store.fetch([wrong], found, Silent(), threading.Event())
        assert f"the lock has sha256 {'0' * 64}, the index has {server.sha256}" in caught.value.message
        assert caught.value.where == toy.name
        assert f"uv run invoke lock --env {lock.id} --refresh" in caught.value.hint
        assert "vanished" not in str(caught.value)
        with pytest.raises(InfraError, match="vanished from the index: the index does not list it") as caught:
            store.fetch([absent], found, Silent(), threading.Event())
        assert "--refresh" in caught.value.hint
        # The wheels of tools belong to no environment that could be locked again.
        tools = StackReaders("3.11", PLATFORM, (wrong,))
        with pytest.raises(InfraError, match="another file under this name") as caught:
            store.fetch([wrong], addresses(tools), Silent(), threading.Event())
        assert "--env" not in caught.value.hint
        # What is right is fetched all the same.
        right = lock_of_toy(server.sha256)
        store.fetch(right.wheels, addresses(right), Silent(), threading.Event())
        assert store.missing(right.wheels) == ()


def test_a_release_time_is_asked_for_once_per_index(
    plain: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serve(tmp_path / "index") as index:
        index.add("jax", "0.1.0", {"jax.py": ""}, uploaded="2024-02-03T04:05:06.789Z")
        for key, value in (plain | {"UV_DEFAULT_INDEX": index.url, "UV_NO_CACHE": "1"}).items():
            monkeypatch.setenv(key, value)
        assert release_time("jax", "0.1.0", tmp_path / "store") == "2024-02-03T04:05:06Z"
        asked = len(index.requests)
        assert asked > 0
        assert release_time("jax", "0.1.0", tmp_path / "store") == "2024-02-03T04:05:06Z"
        assert len(index.requests) == asked
        monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
        with pytest.raises(InfraError, match="no connection"):
            release_time("jax", "0.1.0", tmp_path / "store")
    assert release_time("jax", "0.11.0.dev20260701", tmp_path / "store") == "2026-07-01T00:00:00Z"


def test_cancelling_ends_uv(toy: Path, plain: dict[str, str]) -> None:
    silent = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # listens and never answers
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    environ = plain | {"UV_DEFAULT_INDEX": f"http://127.0.0.1:{silent.server_address[1]}/simple"}
    try:
        with pytest.raises(InfraError, match="cancelled"):
            compile_requirements(["toy"], python="3.11", platform=PLATFORM, environ=environ, cancel=cancel)
    finally:
        silent.server_close()


# --- recorded texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("refused", "the package index cannot be asked: no connection", "UV_DEFAULT_INDEX"),
        ("dns", "the package index cannot be asked: its name cannot be resolved", "UV_DEFAULT_INDEX"),
        ("proxy", "the package index cannot be asked: the proxy does not let it through", "HTTPS_PROXY"),
        ("proxy_credentials", "the package index cannot be asked: the proxy asks for credentials", "HTTPS_PROXY"),
        ("tls", "the package index cannot be asked: its TLS certificate is not trusted", "SSL_CERT_FILE"),
        ("offline", "uv is told to stay offline", "UV_OFFLINE"),
        ("unauthorized", "the package index refuses access (401 Unauthorized)", "netrc"),
        ("forbidden", "the package index refuses access (403 Forbidden)", "netrc"),
        ("no_such_package", "the index has no package nosuchpackagexyzzy", "check the name"),
    ],
)
def test_trouble_is_named(name: str, message: str, hint: str) -> None:
    error = trouble_of((DATA / "uv" / f"{name}.txt").read_text(), {})
    assert error is not None
    assert error.message == message
    assert hint in error.hint


def test_a_host_called_proxy_is_no_proxy_trouble() -> None:
    text = (DATA / "uv" / "refused.txt").read_text().replace("index.example", "timeout-certificate-socks.example")
    error = trouble_of(text, {})
    assert error is not None
    assert error.message == "the package index cannot be asked: no connection"


def test_a_refusal_with_a_reason_is_no_trouble() -> None:
    assert trouble_of((DATA / "uv" / "jaxlib_does_not_fit.txt").read_text(), {}) is None


@pytest.mark.network
def test_the_real_index(tmp_path: Path) -> None:
    assert release_time("jax", "0.6.2", tmp_path) == "2025-06-17T23:10:25Z"
    assert release_time("jax", "0.11.2", tmp_path)[:4] == "2026"  # needs Python 3.12, which does not matter here
    with pytest.raises(Unsatisfiable):
        release_time("jax", "9.9.9", tmp_path)
