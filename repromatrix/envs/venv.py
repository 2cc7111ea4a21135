"""The environment as a venv: the same lock and the same wheels as the image, hard-linked from the store.

Files are shared with the store and read-only, so that a script does not damage the store by accident. That is no
protection against intent, nor against root, for whom read-only means nothing. What was removed, edited or installed
since is found before each run, and the venv is made again.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from pathlib import Path

from repromatrix.envs.content import MARKER, intact, seal
from repromatrix.envs.disk import disk_error
from repromatrix.envs.interpreter import Interpreter, interpreter, require_python
from repromatrix.envs.model import Lock
from repromatrix.envs.pack_core import PREFIX, site_packages
from repromatrix.envs.wheels import WheelStore
from repromatrix.events import Listener

_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES})
"""Where hard links are not possible: another device, a file system without them, another user's file, too many."""


def known(lock: Lock, store: WheelStore) -> Path | None:
    """The venv of `lock` if it is complete and its interpreter is still there, else None."""
    found = interpreter(lock.python)
    if found is None:
        return None
    place = _place(lock, store, found)
    return place if intact(place) else None


def materialise(lock: Lock, store: WheelStore, listener: Listener) -> Path:
    """The venv of `lock`, made from the wheels in the store if it is not here; `bin/python` in it runs it.

    Raises:
        NoInterpreter: This host has no CPython of the lock's minor version.
        InfraError: A wheel is missing or damaged, the disk is full.
    """
    found = require_python(lock.python)
    place = _place(lock, store, found)
    if intact(place):
        return place
    trees = [store.tree(wheel, lock.python, listener) for wheel in lock.wheels]
    with store.locked(place.name), store.scratch(place.name) as room:
        if intact(place):
            return place
        if (place / MARKER).exists():
            listener.warn(f"{lock.id}: files of its venv were changed or removed; it is made again")
        task = listener.start("venv", lock.id, len(trees))
        venv = room / "venv"
        try:
            _skeleton(venv, lock.python, found)
            for wheel, tree in zip(lock.wheels, trees, strict=True):
                for path in link(tree / PREFIX, venv):
                    listener.warn(f"{lock.id}: {path} comes in several wheels; the one of {wheel.filename} counts")
                task.advance(1)
            facts = {
                "lock": lock.hash,
                "environment": lock.id,
                "python": found.version,
                "executable": str(found.path),
            }
            seal(venv, facts)
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)  # damaged
            venv.replace(place)
        except OSError as error:
            raise disk_error(error, room) from error
        finally:
            task.finish()
    return place


def _place(lock: Lock, store: WheelStore, found: Interpreter) -> Path:
    return store.root / "venvs" / f"{lock.hash[:32]}-{found.id}"


def _skeleton(venv: Path, python: str, found: Interpreter) -> None:
    """What `python -m venv --without-pip` makes, without activation scripts: none of them survives a rename."""
    (venv / Path(site_packages(python)).relative_to(PREFIX)).mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(found.path)
    for name in ("python3", f"python{python}"):
        (venv / "bin" / name).symlink_to("python")
    (venv / "pyvenv.cfg").write_text(
        f"home = {found.path.parent}\ninclude-system-site-packages = false\nversion = {found.version}\n"
    )


def link(source: Path, target: Path) -> list[str]:
    """Hard-link every file below `source` into `target`, copying where that is not possible.

    Returns:
        Files that replaced one of another wheel with other content. As in an image, the later wheel counts.
    """
    replaced = []
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(exist_ok=True)
        for name in names:
            origin, path = Path(folder, name), into / name
            try:
                _link_or_copy(origin, path)
            except FileExistsError:
                if filecmp.cmp(origin, path, shallow=False):
                    continue
                replaced.append(str(path.relative_to(target)))
                path.unlink()
                _link_or_copy(origin, path)
    return replaced


def _link_or_copy(origin: Path, path: Path) -> None:
    try:
        path.hardlink_to(origin)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(origin, path)
