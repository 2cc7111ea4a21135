"""The wheel store and its downloads, against a server on the loopback that misbehaves."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repromatrix.envs import download as download_module
from repromatrix.envs.disk import disk_error
from repromatrix.envs.model import Wheel
from repromatrix.envs.wheels import Cancelled, WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Silent, Task
from tests.wheel_factory import Heard, Server, as_wheel, put, serve, wheel_bytes

ROOT = Path(__file__).resolve().parent.parent
BIG = wheel_bytes("big", {"big/data.bin": os.urandom(3_000_000)})
SMALL = wheel_bytes("small", {"small/__init__.py": "x = 1\n"})


@pytest.fixture
def store(tmp_path: Path) -> WheelStore:
    return WheelStore(tmp_path / "store")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_module, "_PAUSE", 0.05)
    with serve() as running:
        running.files = {"/big.whl": BIG, "/small.whl": SMALL}
        yield running


def fetch(
    store: WheelStore, server: Server, data: bytes = BIG, size: int | None = None, path: str = "/big.whl"
) -> Wheel:
    wheel = as_wheel("big", data, size)
    store.fetch([wheel], {wheel.sha256: server.url + path}, Silent(), threading.Event())
    return wheel


def leftovers(store: WheelStore) -> list[str]:
    return sorted(path.name for path in store.tmp.iterdir() if path.suffix != ".lock")


def test_fetch_puts_each_wheel_under_its_hash_once(store: WheelStore, server: Server) -> None:
    big, small = as_wheel("big", BIG), as_wheel("small", SMALL, size=0)
    urls = {big.sha256: server.url + "/big.whl", small.sha256: server.url + "/small.whl"}
    assert store.missing([big, small, big]) == (big, small)
    store.fetch([big, small, big], urls.__getitem__, Silent(), threading.Event())
    assert store.path(big) == store.root / "wheels" / big.sha256 / "big-1.0-py3-none-any.whl"
    assert store.verify(big).read_bytes() == BIG
    assert store.verify(small).read_bytes() == SMALL
    assert store.missing([big, small]) == ()
    store.fetch([big, small], {}, Silent(), threading.Event())
    assert sorted(path for path, *_ in server.requests) == ["/big.whl", "/small.whl"]
    assert leftovers(store) == []


def test_progress_counts_every_byte_once(store: WheelStore, server: Server) -> None:
    seen: list[tuple[str, str, int | None, str]] = []
    amounts: list[int] = []

    class Counting(Silent):
        def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
            seen.append((phase, name, total, unit))
            return Count()

    class Count:
        def advance(self, amount: int) -> None:
            amounts.append(amount)

        def finish(self, note: str = "") -> None:
            amounts.append(0)

    server.faults["/big.whl"] = ["truncate", "no-range"]
    wheel = as_wheel("big", BIG)
    store.fetch([wheel], {wheel.sha256: server.url + "/big.whl"}, Counting(), threading.Event())
    assert seen == [("fetch", wheel.filename, len(BIG), "B")]
    assert sum(amounts) == len(BIG)
    assert amounts[-1] == 0


def test_a_broken_transfer_is_resumed_and_told(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["truncate", ""]
    wheel, heard = as_wheel("big", BIG), Heard()
    store.fetch([wheel], {wheel.sha256: server.url + "/big.whl"}, heard, threading.Event())
    assert store.verify(wheel).read_bytes() == BIG
    assert [asked for _, asked, _ in server.requests] == ["", f"bytes={len(BIG) // 2}-"]
    assert len(heard.warnings) == 1
    assert "trying again (1 of 2)" in heard.warnings[0]


def test_what_an_earlier_run_left_is_continued(store: WheelStore, server: Server) -> None:
    wheel = as_wheel("big", BIG)
    store.tmp.mkdir(parents=True)
    (store.tmp / f"{wheel.sha256}.part").write_bytes(BIG[:1_000_000])
    fetch(store, server)
    assert [asked for _, asked, _ in server.requests] == ["bytes=1000000-"]
    assert store.verify(wheel).read_bytes() == BIG


@pytest.mark.parametrize("left", [bytes(1000), bytes(len(BIG)), bytes(len(BIG) + 5)], ids=["part", "whole", "longer"])
def test_a_damaged_part_costs_a_new_start_not_the_wheel(store: WheelStore, server: Server, left: bytes) -> None:
    store.tmp.mkdir(parents=True)
    (store.tmp / f"{as_wheel('big', BIG).sha256}.part").write_bytes(left)
    wheel = fetch(store, server)
    assert store.verify(wheel).read_bytes() == BIG
    assert server.requests[-1][1] == ""


def test_a_server_without_ranges_starts_anew(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["truncate", "no-range"]
    assert store.verify(fetch(store, server)).read_bytes() == BIG


def test_other_bytes_are_refused_and_removed(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["wrong"]
    wheel = as_wheel("big", BIG)
    with pytest.raises(InfraError) as caught:
        fetch(store, server)
    assert caught.value.exit_code == 3
    assert f"expected sha256 {wheel.sha256} ({len(BIG)} bytes), got " in str(caught.value)
    assert len(server.requests) == 1
    assert store.missing([wheel]) == (wheel,)
    assert leftovers(store) == []


def test_a_truncated_answer_is_an_error_that_keeps_what_came(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["chop"]
    with pytest.raises(InfraError, match=r"truncated: \d+ of \d+ bytes came \(3 times") as caught:
        fetch(store, server)
    assert "continues where it stopped" in caught.value.hint
    assert [name.endswith(".part") for name in leftovers(store)] == [True]
    server.faults.clear()
    assert store.verify(fetch(store, server)).read_bytes() == BIG
    assert server.requests[-1][1].startswith("bytes=")


@pytest.mark.parametrize("status", ["404", "410"])
def test_a_vanished_wheel_says_so(store: WheelStore, server: Server, status: str) -> None:
    server.faults["/big.whl"] = [status]
    with pytest.raises(InfraError, match=f"vanished from the index: .*answers {status}") as caught:
        fetch(store, server)
    assert "archive" in caught.value.hint
    assert "lock" in caught.value.hint
    assert len(server.requests) == 1


def test_every_vanished_wheel_is_named_and_the_others_come(store: WheelStore, server: Server) -> None:
    gone, unknown, small = as_wheel("gone", b"g"), as_wheel("unknown", b"u"), as_wheel("small", SMALL)
    urls = {gone.sha256: server.url + "/gone.whl", small.sha256: server.url + "/small.whl"}
    with pytest.raises(InfraError) as caught:
        store.fetch([gone, unknown, small], urls, Silent(), threading.Event())
    assert "2 wheels could not be fetched" in str(caught.value)
    assert "gone-1.0-py3-none-any.whl" in str(caught.value)
    assert "the index does not list it" in str(caught.value)
    assert store.missing([gone, unknown, small]) == (gone, unknown)


def test_a_busy_server_is_asked_again(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["503", ""]
    assert store.verify(fetch(store, server)).read_bytes() == BIG
    assert len(server.requests) == 2


def test_credentials_of_the_address_are_sent_and_never_shown(store: WheelStore, server: Server) -> None:
    wheel = as_wheel("big", BIG)
    url = server.url.replace("://", "://anna:s3cret@") + "/big.whl"
    server.faults["/big.whl"] = ["403"]
    with pytest.raises(InfraError, match="access refused") as caught:
        store.fetch([wheel], {wheel.sha256: url}, Silent(), threading.Event())
    assert "s3cret" not in str(caught.value)
    assert server.requests[0][2] == "Basic YW5uYTpzM2NyZXQ="


def test_netrc_is_honoured(store: WheelStore, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login anna password s3cret\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    fetch(store, server)
    assert server.requests[0][2] == "Basic YW5uYTpzM2NyZXQ="


def test_a_proxy_is_honoured(store: WheelStore, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    address = "http://index.invalid/big.whl"
    server.files[address] = BIG
    wheel = as_wheel("big", BIG)
    store.fetch([wheel], {wheel.sha256: address}, Silent(), threading.Event())
    assert [path for path, *_ in server.requests] == [address]


def test_a_file_address_is_copied(store: WheelStore, tmp_path: Path) -> None:
    source = tmp_path / "a b.whl"
    source.write_bytes(BIG)
    wheel = as_wheel("big", BIG)
    store.fetch([wheel], {wheel.sha256: source.as_uri()}, Silent(), threading.Event())
    assert store.verify(wheel).read_bytes() == BIG


def test_no_route_is_told_with_its_cause(store: WheelStore, server: Server) -> None:
    server.url = "http://127.0.0.1:9"
    with pytest.raises(InfraError, match=r"no route to 127\.0\.0\.1") as caught:
        fetch(store, server)
    assert caught.value.exit_code == 3
    assert "HTTPS_PROXY" in caught.value.hint


def test_no_route_is_told_once_for_many_wheels(store: WheelStore, server: Server) -> None:
    wheels = [as_wheel(f"w{n}", bytes([n])) for n in range(6)]
    heard = Heard()
    with pytest.raises(InfraError, match="no route to") as caught:
        store.fetch(wheels, {wheel.sha256: "http://127.0.0.1:9/x" for wheel in wheels}, heard, threading.Event())
    assert "wheels could not be fetched" not in str(caught.value)
    assert 2 <= len(heard.warnings) <= 8  # not every wheel was tried


def test_a_ca_bundle_that_does_not_exist_is_named(
    store: WheelStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(InfraError, match="certificate settings"):
        fetch(store, server)


def test_cancel_ends_a_silent_transfer_at_once_and_keeps_its_part(store: WheelStore, server: Server) -> None:
    server.faults["/big.whl"] = ["slow"]
    wheel, cancel = as_wheel("big", BIG), threading.Event()

    def press() -> None:
        server.sending.wait(10)
        time.sleep(0.3)
        cancel.set()

    threading.Thread(target=press).start()
    begin = time.monotonic()
    with pytest.raises(Cancelled) as caught:
        store.fetch([wheel], {wheel.sha256: server.url + "/big.whl"}, Silent(), cancel)
    assert time.monotonic() - begin < 3
    assert caught.value.exit_code == 130
    assert store.missing([wheel]) == (wheel,)
    assert (store.tmp / f"{wheel.sha256}.part").exists()


def _fetch_in_process(root: str, url: str) -> None:
    wheel = as_wheel("big", BIG)
    WheelStore(Path(root)).fetch([wheel], {wheel.sha256: url}, Silent(), threading.Event())


def test_two_processes_fetch_one_wheel_once(store: WheelStore, server: Server) -> None:
    context = multiprocessing.get_context("fork")
    url = server.url + "/big.whl"
    running = [context.Process(target=_fetch_in_process, args=(str(store.root), url)) for _ in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join(30)
    assert [process.exitcode for process in running] == [0, 0, 0]
    assert len(server.requests) == 1
    assert store.verify(as_wheel("big", BIG)).read_bytes() == BIG


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_wheel_is_reported_removed_and_fetched_anew(store: WheelStore, server: Server, damage: str) -> None:
    wheel = put(store, "big", BIG)
    spoiled = BIG[:-10] if damage == "truncated" else bytes([BIG[0] ^ 1]) + BIG[1:]
    store.place(wheel).write_bytes(spoiled)
    assert store.missing([wheel]) == ((wheel,) if damage == "truncated" else ())
    for use in (store.verify, lambda w: store.pack(w, "3.11", Silent())):
        store.place(wheel).write_bytes(spoiled)
        with pytest.raises(InfraError, match="the stored wheel is damaged and was removed"):
            use(wheel)
        assert store.missing([wheel]) == (wheel,)
    assert not (store.root / "packs").exists()
    assert store.verify(fetch(store, server)).read_bytes() == BIG


def test_a_wheel_that_is_not_here_is_told(store: WheelStore) -> None:
    with pytest.raises(InfraError, match="not in the store"):
        store.verify(as_wheel("big", BIG))


def test_a_disk_too_small_is_told_before_anything_is_fetched(store: WheelStore, server: Server) -> None:
    with pytest.raises(InfraError, match=r"not enough room: 1000000000000.0 MB needed, [\d.]+ MB free") as caught:
        fetch(store, server, size=10**18)
    assert caught.value.where == str(store.root)
    assert server.requests == []


FILL = """
import sys, threading
from pathlib import Path
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent
from repromatrix.envs.model import Wheel
from repromatrix.errors import InfraError
sha, url, root = sys.argv[1:]
wheel = Wheel("big", "1.0", "big-1.0-py3-none-any.whl", sha, 0, "")
try:
    WheelStore(Path(root)).fetch([wheel], {sha: url}, Silent(), threading.Event())
except InfraError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_disk_that_fills_up_on_the_way_is_told(tmp_path: Path, server: Server) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    enter = ["unshare", "--mount", "--map-root-user", "--user"] if os.getuid() else ["unshare", "--mount"]
    tiny = f"mount -t tmpfs -o size=1m tmpfs {mount}"
    if (
        not shutil.which("unshare")
        or subprocess.run([*enter, "sh", "-c", tiny], capture_output=True, check=False).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    script = f'{tiny} && exec "$0" -c "$1" "$2" "$3" {mount}/store'
    said = subprocess.run(
        [*enter, "sh", "-c", script, sys.executable, FILL, as_wheel("big", BIG).sha256, server.url + "/big.whl"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert said.returncode == 3, said.stderr
    assert "the disk is full" in said.stdout
    assert f"{mount}/store" in said.stdout
    assert "Traceback" not in said.stderr


def test_disk_errors_name_folder_needed_and_free(tmp_path: Path) -> None:
    full = disk_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path, 5_000_000)
    assert "5.0 MB needed" in str(full)
    assert "MB free" in str(full)
    denied = disk_error(PermissionError(errno.EACCES, "Permission denied", "/x/y"), tmp_path)
    assert str(denied).startswith("/x/y: cannot write in the store: Permission denied\n")
    assert "REPROMATRIX_STORE" in denied.hint


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot write"):
        fetch(WheelStore(tmp_path / "file" / "store"), server)
