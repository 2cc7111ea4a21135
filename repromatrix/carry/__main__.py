"""`python3 restore.pyz ARCHIVE|PART|FOLDER-OF-PARTS... --into NEW`: a checkout and its tool, without a network.

It checks every byte, unpacks the project and what this tool needs, and then lets the tool bring the rest: wheels,
bases, images and results (`invoke restore` in the new folder).

Runs alone on Python 3.9, like everything in this package.
"""

from __future__ import annotations

import argparse
import errno
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from repromatrix.carry import verify
from repromatrix.carry.format import Manifest
from repromatrix.carry.incoming import Incoming, check_set, collect, store
from repromatrix.carry.parts import Found, find
from repromatrix.carry.trouble import Damaged, Refused, listed, shown
from repromatrix.carry.unpack import VENV, check_place, check_python, goes_on, this_python, unpack

LEAVING = 5.0
"""Seconds in which the tool may end by itself after an interrupt."""

PERIOD = 1.0
"""Seconds between two lines of progress."""


class Meter:
    """Progress on standard error: one line that is rewritten on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, doing: str, total: int) -> None:
        self.doing, self.total, self.done = doing, total, 0
        self.live = sys.stderr.isatty()
        self.told = time.monotonic()
        self.mutex = threading.Lock()

    def __call__(self, amount: int) -> None:
        with self.mutex:
            self.done += amount
            now = time.monotonic()
            if now - self.told > (PERIOD if self.live else 10 * PERIOD):
                self.told = now
                self.show("\r" if self.live else "\n")

    def show(self, end: str) -> None:
        say(f"{self.doing} {self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB", sys.stderr, end)


def main() -> None:
    """Run, and exit: 0 all well, 1 damaged or incomplete, 2 wrong input, 3 the machine failed, 130 interrupted."""
    try:
        sys.exit(run(sys.argv[1:]))
    except Damaged as error:
        complain(f"damaged, nothing was used:\n{listed(error.problems)}")
        sys.exit(1)
    except Refused as error:
        complain(f"error: {shown(error.message)}" + (f"\n  {shown(error.hint)}" if error.hint else ""))
        sys.exit(2)
    except OSError as error:
        complain(shown(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"))
        sys.exit(3)
    except KeyboardInterrupt:
        complain("interrupted: what was finished is kept; the same command continues")
        sys.exit(130)


def run(arguments: list[str]) -> int:
    """Do what the command line says; returns the exit status."""
    asked = parse(arguments)
    found = find(asked.place)
    if asked.verify:
        return check(found, asked.expect)
    if asked.into is None:
        raise Refused("where to?", "add --into NEW, the new folder of the checkout; --verify only looks")
    check_place(asked.into)
    come: Incoming | None = None
    if found.archive is not None:
        root, manifest = found.archive, checked(found.archive, asked.expect)
    else:
        size = sum(path.stat().st_size for path in found.parts)
        come, lacking = collect(found.parts, asked.expect, asked.incoming or store() / "incoming", Meter("taken", size))
        if lacking:
            here = len(come.taken())
            say(f"archive {come.id}: {here} of {here + len(lacking)} parts are here, in {shown(str(come.root))}")
            say(f"missing: {', '.join(map(str, lacking))}; run it again with them")
            return 1
        root = come.archive
        manifest = come.complete(Meter("verified", sum(each.content for each in come.taken().values())))
    say(f"archive {manifest.id}")
    python = asked.into.absolute() / VENV / "bin" / "python"
    if goes_on(manifest, asked.into):
        if not python.exists():
            raise Refused(f"{asked.into} exists already, without the tool in {VENV}", "name a new folder")
        say(f"{shown(str(asked.into))}: the project is there, as in the archive; the tool brings the rest")
    else:
        check_python(manifest, this_python())
        unpack(root, manifest, asked.into, this_python())
        say(f"{shown(str(asked.into))}: the project, and the tool in {VENV}")
    rest = [*(["--no-images"] if asked.no_images else []), *(["--no-results"] if asked.no_results else [])]
    restore = ["restore", str(root.absolute()), *rest]
    status = wait(subprocess.Popen([str(python), "-m", "invoke", *restore, "--expect", manifest.id], cwd=asked.into))
    if status < 0:
        raise OSError(errno.EIO, f"the tool died of signal {-status}", str(python))
    if status:
        again = " ".join(map(shlex.quote, [f"{VENV}/bin/invoke", *restore]))
        complain(shown(f"continue with: cd {shlex.quote(str(asked.into))} && {again}"))
    elif come is not None:
        say(f"the whole archive is kept in {shown(str(root))}; delete it if you have the parts")
    return status


def wait(tool: subprocess.Popen[bytes]) -> int:
    """The tool's exit status. Interrupted, it is given time to leave: a terminal tells it too, a `kill` does not."""
    try:
        return tool.wait()
    except KeyboardInterrupt:
        for stop in (tool.terminate, tool.kill):
            with suppress(subprocess.TimeoutExpired):
                tool.wait(LEAVING)
                break
            stop()
        tool.wait()
        raise


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="restore.pyz", description=(__doc__ or "").split("\n\n")[1].replace("`", ""))
    parser.add_argument(
        "place", nargs="+", type=Path, metavar="PLACE", help="an archive's folder, parts, or their folder"
    )
    parser.add_argument("--into", type=Path, metavar="NEW", help="new folder for the checkout")
    parser.add_argument("--expect", default="", metavar="ID", help="the archive's id, as its sender says")
    parser.add_argument("--verify", action="store_true", help="only look for damage")
    parser.add_argument(
        "--incoming", type=Path, metavar="FOLDER", help="where parts wait for the others (in the store)"
    )
    parser.add_argument("--no-images", action="store_true", help="load no images")
    parser.add_argument("--no-results", action="store_true", help="take over no results")
    return parser.parse_args(arguments)


def checked(root: Path, expect: str) -> Manifest:
    """The manifest of a whole archive; see `verify.verify`."""
    manifest = verify.read(root)
    verify.check_id(manifest.id, expect)
    if problems := verify.problems(root, manifest, Meter("verified", manifest.size)):
        raise Damaged(problems)
    return manifest


def check(found: Found, expect: str) -> int:
    """Say what is wrong with an archive or with parts."""
    if found.archive is not None:
        manifest = checked(found.archive, expect)
        say(f"archive {manifest.id}: {len(manifest.blobs)} blobs, {manifest.size / 1e6:.1f} MB, all as it was written")
        return 0
    meter = Meter("verified", sum(path.stat().st_size for path in found.parts))
    seen = check_set(found.parts, expect, meter, alone=found.alone)
    if seen.problems:
        raise Damaged(seen.problems)
    say(f"{seen.what}: all as it was written")
    return 0


def complain(text: str) -> None:
    """Say it on standard error."""
    say(text, sys.stderr)


def say(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Write `text` at once; standard output if no stream is given. A reader that has gone misses it."""
    out = stream or sys.stdout
    with suppress(BrokenPipeError):
        out.write(text.encode(out.encoding or "ascii", "backslashreplace").decode(out.encoding or "ascii") + end)
        out.flush()


if __name__ == "__main__":
    main()
