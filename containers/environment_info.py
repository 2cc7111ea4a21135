"""Prints what JAX's bug template asks for: `jax.print_environment_info()` of the environment that runs this file.

    python environment_info.py

Standard library only, Python 3.9 or newer. Exit status: 0 printed; 1 jax could not say it: then the versions that are
installed are printed in its place, and what went wrong goes to stderr.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import traceback

TOLD = re.compile(r"jax|jaxlib|numpy|scipy|ml[-_]dtypes|jax[-_]cuda\d+[-_](plugin|pjrt)|nvidia[-_].*")


def installed() -> str:
    """The versions of the packages that matter, of Python and of the platform, without importing any of them."""
    found = {
        str(each.metadata["Name"]): each.version
        for each in importlib.metadata.distributions()
        if TOLD.fullmatch(str(each.metadata["Name"]))
    }
    lines = ["{}: {}".format(*pair) for pair in sorted(found.items())]
    return "\n".join([*lines, "python: " + sys.version.replace("\n", " "), f"platform: {platform.uname()}"])


def main() -> int:
    try:
        import jax

        text = jax.print_environment_info(return_string=True)
    except Exception:
        traceback.print_exc()
        sys.stdout.write(installed() + "\n")
        return 1
    sys.stdout.write(str(text).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
