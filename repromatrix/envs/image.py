"""One readable Dockerfile per environment, and its image, built with no network from the store.

The very same file builds from the network: its stage `wheels` downloads what the lock names. Here that stage is
replaced by a folder of packs, hard links into the store.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from repromatrix import __version__
from repromatrix.envs.base import BaseImage, local_name
from repromatrix.envs.command import run_command
from repromatrix.envs.daemon import LABEL
from repromatrix.envs.disk import write_text
from repromatrix.envs.images import Build, Images
from repromatrix.envs.model import Lock, Wheel
from repromatrix.envs.pack import has_bytecode
from repromatrix.envs.pack_core import MTIME
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError
from repromatrix.events import Listener, Task
from repromatrix.project import Project

if TYPE_CHECKING:
    from jinja2 import Template

LARGE = 3_000_000
"""Bytes of a wheel from which it gets a layer of its own: five CPU environments then take 1.001 times the disk of their
unique wheels; with 20 MB, which puts numpy and ml-dtypes among the small ones, 1.026. Docker allows 127 layers."""

JAX_FAMILY = re.compile(r"jax|jaxlib|jax-cuda\d+-(plugin|pjrt)")
"""What differs between any two environments, and so comes last."""

BUILD_TIMEOUT = 1800
"""Seconds a build may take; the largest (jax[cuda12], 3 GB of wheels) took 100 s on two cores."""

PACKS = "/dev/shm"
"""Where packs are mounted: a tmpfs, since the mount points that BuildKit makes elsewhere change that folder's time,
and so the layer's digest."""

UNPACK = f'for pack in {PACKS}/*.tar; do tar --delay-directory-restore -xf "$pack" -C / || exit 1; done'
"""In sorted archives `jax-0.6.0.dist-info/` comes between `jax/` and its files: without the option tar sets the time
of `jax/` too early."""

_TEMPLATE = Path(__file__).resolve().parents[2] / "containers" / "Dockerfile.j2"
_PACK_CORE = Path(__file__).resolve().with_name("pack_core.py")

_slots = threading.Semaphore(2)
"""Two builds use two cores; a third made all slower."""
_active = 0
_count = threading.Lock()


@dataclass(frozen=True, slots=True)
class Layer:
    """One RUN of the Dockerfile: `wheels` unpacked into one layer."""

    title: str
    wheels: tuple[Wheel, ...]


def layers(lock: Lock) -> tuple[Layer, ...]:
    """The wheels in the order in which two environments share the longest prefix: oldest first, jax's own last.

    Layers are stored by their whole chain (overlay2), so a shared wheel saves disk only below the first difference.
    """
    order = sorted(lock.wheels, key=lambda wheel: (wheel.uploaded, wheel.name))
    found = []
    for family, small in ((False, "the small ones"), (True, "jax itself")):
        mine = [wheel for wheel in order if bool(JAX_FAMILY.fullmatch(wheel.name)) == family]
        large = [wheel for wheel in mine if wheel.size >= LARGE]
        found += [Layer(f"{wheel.name} {wheel.version}, {wheel.size / 1e6:.0f} MB", (wheel,)) for wheel in large]
        if rest := tuple(wheel for wheel in mine if wheel.size < LARGE):
            found.append(Layer(small, rest))
    return tuple(found)


def recipe(lock: Lock) -> str:
    """Hash of how the image is made of the lock: an image that an older Dockerfile made is not this one."""
    steps = repr((UNPACK, PACKS, MTIME, [[wheel.sha256 for wheel in layer.wheels] for layer in layers(lock)]))
    return hashlib.sha256(_TEMPLATE.read_bytes() + steps.encode()).hexdigest()


def tag(lock: Lock) -> str:
    """A readable name for people; everything stored refers to the image's id."""
    return "repromatrix:" + re.sub(r"[^A-Za-z0-9_.-]", "_", lock.id)[:128]


def render(lock: Lock, base: BaseImage) -> str:
    """The Dockerfile of `lock` on `base`; the same text for the same input."""
    return _template().render(
        lock=lock,
        base=base,
        tag=tag(lock),
        layers=layers(lock),
        mtime=MTIME,
        version=__version__,
        recipe=recipe(lock),
        unpack=UNPACK,
        packs=PACKS,
    )


def requirements(lock: Lock) -> str:
    """The lock as pip takes it, with hashes."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in lock.wheels)


def rendered(lock: Lock, base: BaseImage) -> dict[str, str]:
    """The files from which anyone builds the environment: name and text."""
    return {
        "Dockerfile": render(lock, base),
        "requirements.txt": requirements(lock),
        "pack_core.py": _PACK_CORE.read_text(),
    }


def write_rendered(lock: Lock, base: BaseImage, project: Project) -> Path:
    """Write the files of `rendered` into `containers/rendered/<environment>`; returns that folder."""
    folder = project.rendered / lock.id
    _write_folder(lock, base, folder)
    return folder


def _write_folder(lock: Lock, base: BaseImage, folder: Path) -> None:
    for name, text in rendered(lock, base).items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            write_text(path, text)


def known(lock: Lock, base: BaseImage, images: Images) -> str | None:
    """Id of the image of `lock` on `base` if the engine has it.

    Raises:
        InfraError: The engine does not answer.
    """
    wanted = [f"{LABEL}lock={lock.hash}", f"{LABEL}base={base.reference}", f"{LABEL}recipe={recipe(lock)}"]
    return min(images.labelled(wanted), default=None)


def build(
    lock: Lock,
    base: BaseImage,
    store: WheelStore,
    images: Images,
    listener: Listener,
    cancel: threading.Event | None = None,
) -> str:
    """The image of `lock` on `base`, built with no network; returns its id.

    Args:
        base: As `resolve_base` gave it: the engine has it.
        store: Holds every wheel of the lock.

    Raises:
        InfraError: A wheel is missing, buildx is missing, the engine is gone or its disk full, the build failed.
    """
    with _slot(images, listener):
        task = listener.start("build", lock.id, len(layers(lock)) + 2)
        try:
            # On the store's file system, so that packs can be hard-linked; a killed build's room is found by its name.
            room = f"{lock.hash[:32]}-image"
            with store.locked(room, cancel), store.scratch(room) as scratch:
                wheels, files, iid = scratch / "wheels", scratch / "files", scratch / "iid"
                wheels.mkdir()
                _lay_out(lock, base, store, images, listener, wheels)
                _write_folder(lock, base, files)
                local = local_name(base, images)
                request = Build(files, wheels, iid, tag(lock), base.reference, local, _epoch(lock))
                image = called(_build(lock, request, images, task, cancel), lock, base, images)
        except BaseException:
            task.finish("failed")
            raise
        task.finish(image.removeprefix("sha256:")[:12])
    return image


def called(built: str, lock: Lock, base: BaseImage, images: Images) -> str:
    """What the engine calls the image that BuildKit calls `built`: on containerd's store they may differ."""
    found = images.id_of(built) or known(lock, base, images)
    if found is None:
        raise InfraError(f"{images.called} does not know the image of {lock.id} that it built", where=images.host)
    return found


@contextmanager
def _slot(images: Images, listener: Listener) -> Iterator[None]:
    """Room for one build; the last one out drops BuildKit's copy of the packs (0.55 GB for five CPU environments)."""
    global _active  # noqa: PLW0603  # builds of one process share the engine's cache
    with _count:
        _active += 1
    try:
        with _slots:
            yield
    finally:
        with _count:
            _active -= 1
            idle = not _active
        if idle:
            try:
                images.drop_copies()
            except InfraError as error:
                listener.warn(str(error))


def _lay_out(lock: Lock, base: BaseImage, store: WheelStore, images: Images, listener: Listener, folder: Path) -> None:
    """Put `<wheel file name>.tar` of every wheel into `folder`."""
    bare = []
    for wheel in lock.wheels:
        pack = store.pack(wheel, lock.python, listener)
        target = folder / f"{wheel.filename}.tar"
        if not has_bytecode(pack):
            bare.append(store.verify(wheel))
        elif base.zstd:
            target.hardlink_to(pack)
        else:
            # Official images have no zstd. Sending the packs unpacked costs 3 s per 550 MB.
            _decompress(pack, target)
    if bare:
        _compile_in_base(base, images, bare, folder, lock)


def _decompress(pack: Path, target: Path) -> None:
    import zstandard

    try:
        with pack.open("rb") as source, target.open("wb") as out:
            zstandard.ZstdDecompressor().copy_stream(source, out)
    except OSError as error:
        raise InfraError(f"cannot unpack {pack.name}: {error.strerror}", where=str(target.parent)) from error


def _compile_in_base(base: BaseImage, images: Images, wheels: list[Path], folder: Path, lock: Lock) -> None:
    """Pack `wheels` with the base's own interpreter: this host has none of that version to compile bytecode with."""
    argv = [*images.command, "run", "--rm", *images.run_options, "--network=none"]
    argv += ["--cap-drop=ALL", "--cap-add=DAC_OVERRIDE"]
    argv += ["--mount", f"type=bind,source={folder},target=/out"]
    argv += ["--mount", f"type=bind,source={_PACK_CORE},target=/mnt/pack_core.py,readonly"]
    inside = []
    for path in wheels:
        argv += ["--mount", f"type=bind,source={path},target=/mnt/{path.name},readonly"]
        inside.append(f"/mnt/{path.name}")
    argv += [local_name(base, images), "python3", "/mnt/pack_core.py", "/out", *inside]
    status, output = run_command(argv, timeout=BUILD_TIMEOUT, hint=f"install {argv[0]}'s command line client")
    if status:
        raise images.trouble(output[-2000:], f"compile the wheels of {lock.id}")


def _build(lock: Lock, request: Build, images: Images, task: Task, cancel: threading.Event | None) -> str:
    """Id of the image, as the builder calls it."""
    ended = images.steps()

    def follow(line: str) -> None:
        if ended(line):
            task.advance(1)

    argv = images.build_command(request)
    status, output = run_command(argv, timeout=BUILD_TIMEOUT, cancel=cancel, on_line=follow, hint=images.build_hint)
    if status:
        raise images.trouble(output[-3000:], f"build {lock.id}")
    return request.iid.read_text().strip()


def _epoch(lock: Lock) -> int:
    """Seconds since 1970 of the newest wheel's upload: the image's creation time, the same whenever it is built."""
    newest = max((wheel.uploaded for wheel in lock.wheels), default="")
    return int(datetime.fromisoformat(newest).timestamp()) if newest else MTIME


@cache
def _template() -> Template:
    import jinja2

    loader = jinja2.FileSystemLoader(_TEMPLATE.parent)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.get_template(_TEMPLATE.name)
