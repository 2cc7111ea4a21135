"""Building five images, and the disk that they take, against one plain Dockerfile per version."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard

from benchmarks.common import Table, seconds, warm
from repromatrix.engines.docker import DockerEngine
from repromatrix.envs.base import BaseImage, resolve_base
from repromatrix.envs.daemon import Daemon, address, connect
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Silent

PLAIN = """\
FROM {base}
RUN --network=none --mount=type=bind,target=/mnt \\
    python3 -m venv /opt/env \\
    && /opt/env/bin/pip install --quiet --no-index --find-links /mnt {pins}
"""


def run() -> list[Table]:
    project, selection, locks = warm()
    store = WheelStore(project.store)
    engine = DockerEngine(project, selection.matrix)
    daemon = connect(address())
    base = resolve_base(selection.matrix, "3.11", daemon, project.store, Silent())
    unique = {wheel.sha256: wheel for lock in locks for wheel in lock.wheels}.values()
    with_bytecode = sum(_unpacked(store, wheel) for wheel in unique)
    bare = sum(_published(store, wheel) for wheel in unique)

    _forget(daemon, [f"bench:{number}" for number in range(len(locks))] + _images(daemon, locks))
    ours = seconds(lambda: _ours(engine, locks))
    our_disk = _layers(daemon, _images(daemon, locks)) + _cache(daemon)
    again = seconds(lambda: [engine.known(lock) for lock in locks])
    _forget(daemon, _images(daemon, locks))
    plain = seconds(lambda: _plain(locks, store, base))
    plain_disk = _layers(daemon, [f"bench:{number}" for number in range(len(locks))]) + _cache(daemon)
    _forget(daemon, [f"bench:{number}" for number in range(len(locks))])
    _ours(engine, locks)

    floor, floor_bare = with_bytecode + _size(daemon, base), bare + _size(daemon, base)
    return [
        Table(
            "Five images from a warm store",
            "CPU environments of jax 0.6.0 to 0.7.1; caches of BuildKit empty before each. Plain: one Dockerfile per "
            "version that pip-installs the same wheels from a bind mount. Three runs on an idle machine gave 3.5, 4.0 "
            "and 5.2 times.",
            ("", "seconds", "ratio"),
            (
                ("plain Dockerfiles", f"{plain:.1f}", "1"),
                ("repromatrix", f"{ours:.1f}", f"{plain / ours:.1f} times faster"),
                ("nothing changed, per image", f"{again / len(locks):.3f}", ""),
            ),
        ),
        Table(
            "Disk of five images",
            "Layers and build cache, as the engine counts them, base included, over the base and every unique wheel "
            "unpacked once (with its bytecode, which pip compiles too; without it).",
            ("", "MB", "over unpacked with bytecode", "over unpacked as published"),
            (
                (
                    "plain Dockerfiles",
                    f"{plain_disk / 1e6:.0f}",
                    f"{plain_disk / floor:.2f}",
                    f"{plain_disk / floor_bare:.2f}",
                ),
                ("repromatrix", f"{our_disk / 1e6:.0f}", f"{our_disk / floor:.2f}", f"{our_disk / floor_bare:.2f}"),
            ),
        ),
    ]


def _ours(engine: DockerEngine, locks: list[Lock]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda lock: engine.prepare(lock, Silent()), locks))


def _plain(locks: list[Lock], store: WheelStore, base: BaseImage) -> None:
    for number, lock in enumerate(locks):
        with tempfile.TemporaryDirectory(dir=store.root) as folder:
            context = Path(folder)
            for wheel in lock.wheels:
                shutil.copyfile(store.verify(wheel), context / wheel.filename)
            pins = " ".join(f"{wheel.name}=={wheel.version}" for wheel in lock.wheels)
            (context / "Dockerfile").write_text(PLAIN.format(base=base.reference, pins=pins))
            subprocess.run(
                ["docker", "buildx", "build", "--quiet", "--load", f"--tag=bench:{number}", folder],
                check=True,
                stdout=subprocess.DEVNULL,
            )


def _forget(daemon: Daemon, names: list[str]) -> None:
    for name in names:
        subprocess.run(["docker", "rmi", "--force", name], check=False, capture_output=True)
    subprocess.run(["docker", "builder", "prune", "--all", "--force"], check=True, stdout=subprocess.DEVNULL)


def _images(daemon: Daemon, locks: list[Lock]) -> list[str]:
    found = [daemon.api.images(filters={"label": f"org.repromatrix.lock={lock.hash}"}) for lock in locks]
    return [str(image["Id"]) for images in found for image in images]


def _layers(daemon: Daemon, images: list[str]) -> int:
    """Bytes of the layers of these images, each chain of parents once, as overlay2 stores them."""
    chains: dict[tuple[tuple[str, int], ...], int] = {}
    for image in images:
        history = daemon.api.history(image)  # type: ignore[no-untyped-call]  # the stubs leave it bare
        steps = [(str(step["CreatedBy"]), int(step["Size"])) for step in reversed(history)]
        for number, (_, size) in enumerate(steps, 1):
            chains[tuple(steps[:number])] = size
    return sum(chains.values())


def _cache(daemon: Daemon) -> int:
    """Bytes of the build cache that are in no image."""
    return sum(int(entry["Size"]) for entry in daemon.api.df()["BuildCache"] or [] if not entry["Shared"])


def _size(daemon: Daemon, base: BaseImage) -> int:
    return int(daemon.api.inspect_image(base.reference)["Size"])  # type: ignore[no-untyped-call]


def _unpacked(store: WheelStore, wheel: Wheel) -> int:
    pack = store.pack(wheel, "3.11", Silent())
    with (
        pack.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        return sum(member.size for member in archive)


def _published(store: WheelStore, wheel: Wheel) -> int:
    with zipfile.ZipFile(store.verify(wheel)) as archive:
        return sum(item.file_size for item in archive.infolist())
