"""What compiling without a device needs, and which versions can do it: facts, measured, for the tool's own use.

`containers/compile.py` does it inside the environment. It sets the same variables where they are missing, so that it
works by hand; a test holds the two together.
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

FIRST = Version("0.4.38")
"""First release that was seen to compile without a device; also 0.5.3, 0.6.0, 0.6.2, 0.7.2, 0.8.0 to 0.8.2, 0.9.0,
0.9.2 and 0.10.0 to 0.10.2 (measured with the wheels of `cuda = 12-local`, no GPU and no driver)."""

REASONS = (
    # (first version of which it holds, why it cannot), oldest first; measured on 0.4.30, 0.4.35 and 0.4.36.
    (Version("0"), "its CUDA plugin describes only GPUs that are there (measured on 0.4.30: No visible GPU devices)"),
    (Version("0.4.35"), "it refuses to lower for a platform without a device (Unknown backend: 'gpu' requested)"),
    (Version("0.4.36"), "its compiler looks for the platform of a real device (NOT_FOUND: registered platform)"),
)

VARIABLES = (
    ("JAX_PLATFORMS", "cpu"),
    ("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1"),
)
"""No backend is asked for a GPU; and the plugin loads although cuDNN and the other libraries of CUDA are not here
(0.6.2 to 0.8.0 refuse without: "topology not implemented for cuda")."""

NO_AUTOTUNING = "--xla_gpu_autotune_level=0"
"""Autotuning runs kernels. 0.5.3 to 0.8.0 fail without this flag ("Expect autotune result cache hit"), also where there
are results to compile with, if these lack an entry. Entries that are there are used all the same: 0.8.0 took a block of
128 x 128 from a file instead of its default of 16 x 16, 0.10.2 looks every fusion up (measured)."""

AUTOTUNED = "--xla_gpu_load_autotune_results_from="


def unable(jax_version: str) -> str:
    """Why this release of jax cannot compile for a GPU that is not there; empty where it can.

    A version between two measured ones gets the older one's reason: `compile.py` finds the true one when it runs.
    """
    try:
        version = Version(jax_version)
    except InvalidVersion:
        return ""
    if version >= FIRST:
        return ""
    reason = [text for first, text in REASONS if version >= first][-1]
    return f"jax {jax_version} cannot compile without a device: {reason}; {FIRST} and later can"


def variables(xla_flags: str = "", autotune: str = "") -> tuple[tuple[str, str], ...]:
    """Variables of a deviceless attempt, by name.

    Args:
        xla_flags: The XLA_FLAGS that the attempt has anyway.
        autotune: Path of autotune results, as the attempt sees it; empty = there are none.
    """
    flags = xla_flags.split()
    wanted = [NO_AUTOTUNING, *([AUTOTUNED + autotune] if autotune else [])]
    return (*VARIABLES, ("XLA_FLAGS", " ".join([*flags, *(flag for flag in wanted if flag not in flags)])))


def topology(count: int) -> str:
    """The topology of `count` GPUs in one host, as XLA wants it: partitions x hosts x devices.

    Raises:
        ValueError: `count` is not positive.
    """
    if count < 1:
        raise ValueError(f"{count} devices")
    return f"1x1x{count}"
