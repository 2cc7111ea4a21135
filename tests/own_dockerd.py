"""A Docker daemon of a test's own, for what must not be done to one that others use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from repromatrix.envs.daemon import connect
from repromatrix.errors import InfraError


@dataclass(frozen=True, slots=True)
class OwnDaemon:
    """A dockerd with its own data: its address, folder and process."""

    host: str
    home: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def own_dockerd(settings: Mapping[str, object], *, disk: int = 0, lacking: str = "") -> Iterator[OwnDaemon]:
    """Start a dockerd that answers; whatever it started ends with it. Skips, or fails where one is required.

    Args:
        settings: More of its daemon.json; `{home}` in a text stands for its folder.
        disk: Size of its disk in MB; 0 = no limit.
        lacking: What else the test needs and this machine has not.
    """
    if os.geteuid() != 0 or shutil.which("dockerd") is None or lacking:
        needs = " and ".join(filter(None, ["needs root and dockerd", lacking]))
        if os.environ.get("REPROMATRIX_REQUIRE_ENGINE") == "1":
            pytest.fail(needs)
        pytest.skip(needs)
    home = Path(tempfile.mkdtemp(prefix="rd-"))  # short: a Unix socket's path holds 107 bytes
    data, host = home / "data", f"unix://{home}/s"
    data.mkdir()
    if disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}m", "tmpfs", str(data)], check=True)
    own = {"hosts": [host], "data-root": str(data), "exec-root": str(home / "exec"), "pidfile": str(home / "pid")}
    alone = {"bridge": "none", "iptables": False, "ip6tables": False}
    more = json.loads(json.dumps(dict(settings)).replace("{home}", str(home)))
    for folder in more.get("cdi-spec-dirs", ()):
        Path(folder).mkdir()
    (home / "daemon.json").write_text(json.dumps({**own, **alone, **more}))
    with (home / "log").open("wb") as log:
        argv = ["dockerd", "--config-file", str(home / "daemon.json")]
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                connect(host, timeout=5)
                break
            except InfraError:
                assert process.poll() is None, (home / "log").read_text()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield OwnDaemon(host, home, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in _processes_of(home):
            os.kill(pid, signal.SIGKILL)
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            if (place := line.split()[4]).startswith(str(home)):
                subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(home, ignore_errors=True)


def _processes_of(home: Path) -> list[int]:
    """containerd and its shims: they name their folder on their command line and outlive a killed dockerd."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(home).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [pid for pid in found if pid != os.getpid()]
