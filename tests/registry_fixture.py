"""A real registry on the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Address of a real registry on the loopback; without TLS, which Docker accepts there."""
    if shutil.which("docker-registry") is None:
        if os.environ.get("REPROMATRIX_REQUIRE_ENGINE") == "1":
            pytest.fail("REPROMATRIX_REQUIRE_ENGINE=1 and docker-registry is not installed")
        pytest.skip("docker-registry is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    storage = f"{{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}"
    config.write_text(f"version: 0.1\nstorage: {storage}\nhttp: {{addr: '{address}'}}\n")
    server = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))):
                    break
            time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()
