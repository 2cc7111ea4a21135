"""Run the benchmarks named on the command line (default: all) and write docs/performance.md."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from repromatrix.results.key import hardware_facts

ALL = ("images", "attempts", "known", "loop", "evidence", "archives", "bisection")
HEAD = """\
# Performance

Written by `python -m benchmarks`: ratios measured side by side in one run, on {machine}. Single times vary with the
machine and its load; compare only within a table.

## Why images are built as they are

Five CPU images hold 2.4 GB unpacked. Unpacked trees through a named build context, joined with `COPY --link`, took
34 s: 3 s per 550 MB go into sending files to the daemon, on both its sides, and BuildKit keeps a second copy. `ADD` of
a zstd archive ends Docker 26.1.5 (a nil pointer in its zstd reader). So a wheel is packed once, with its bytecode,
into a zstd archive; the build sends these, 150 MB an image, and unpacks them with `tar` in one `RUN` per large wheel.
overlay2 keeps a layer per chain of parents, so `COPY --link` would share no more disk than a common prefix does: wheels
are ordered by age, oldest first, which two environments then share the longest. Modification times of all folders
are fixed, so that a wheel's layer has the same digest on any parent.
"""


def main() -> None:
    names = sys.argv[1:] or ALL
    tables = [table for name in names for table in importlib.import_module(f"benchmarks.{name}").run()]
    facts = hardware_facts()
    text = "\n".join([HEAD.format(machine=f"{facts['cpus']} CPUs ({facts['cpu']})"), *(t.markdown() for t in tables)])
    print(text)
    if names == ALL:
        Path(__file__).resolve().parent.parent.joinpath("docs", "performance.md").write_text(text)


if __name__ == "__main__":
    main()
