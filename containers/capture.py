"""Describes the GPU of this machine, to compile for it where it is not: needs jax with CUDA, and the GPU.

    python capture.py OUT.txtpb [--autotune RESULTS.txt SCRIPT [WORD ...]]

Writes what XLA itself dumps of its target (`*.gpu_target_config.pbtxt`), but for fields that jaxlib 0.4.38 does not
know: an older XLA refuses a text that has them. With --autotune it also runs `python SCRIPT WORD ...` and keeps the
results of the autotuning that happens in it.

Standard library only, Python 3.9 or newer. Exit status: 0 written; 1 jax, XLA or the script failed; 2 the command line
is wrong, or there is no GPU.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

WRONG = 2
ENDING = "gpu_target_config.pbtxt"
PROGRAM = """
import sys
import jax, jax.numpy as jnp
try:
    devices = jax.devices("gpu")
except RuntimeError as error:
    print("no GPU: %s" % error)
    sys.exit(2)
jax.jit(lambda x: x + 1)(jnp.ones(8)).block_until_ready()
print("jax %s on %s" % (jax.__version__, devices[0].device_kind))
"""

# Fields of stream_executor.GpuTargetConfigProto and of its messages that all of 0.4.38 to 0.10.2 read (measured).
KNOWN = {
    "": {"gpu_device_info", "platform_name", "dnn_version_info", "device_description_str"},
    "gpu_device_info": {
        *("threads_per_block_limit", "threads_per_warp", "shared_memory_per_block", "shared_memory_per_core"),
        *("threads_per_core_limit", "core_count", "fpus_per_core", "block_dim_limit_x", "block_dim_limit_y"),
        *("block_dim_limit_z", "memory_bandwidth", "l2_cache_size", "clock_rate_ghz", "device_memory_size"),
        *("shared_memory_per_block_optin", "cuda_compute_capability", "registers_per_core_limit"),
        "registers_per_block_limit",
    },
    "cuda_compute_capability": {"major", "minor"},
    "dnn_version_info": {"major", "minor", "patch"},
}


def portable(text: str) -> tuple[str, list[str]]:
    """The description with the known fields alone, and the names of those left out."""
    kept, left_out, path, skipped = [], [], [""], 0
    for line in text.splitlines():
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        name = re.split(r"[\s:{]", word, maxsplit=1)[0]
        if skipped:
            skipped += word.endswith("{") - (word == "}")
        elif word == "}":
            path.pop()
            kept.append(line)
        elif name not in KNOWN.get(path[-1], ()):
            left_out.append(".".join([*path[1:], name]))
            skipped = int(word.endswith("{"))
        else:
            kept.append(line)
            if word.endswith("{"):
                path.append(name)
    return "\n".join(kept) + "\n", left_out


def described(folder: str) -> str:
    """The text of the dumped target of any module in `folder`; empty where there is none."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*" + ENDING))):
        with open(path, encoding="utf-8") as file:
            return file.read()
    return ""


def with_flags(*flags: str) -> dict[str, str]:
    """The variables of this process, with these flags after its own."""
    own = os.environ.get("XLA_FLAGS", "")
    return {**os.environ, "XLA_FLAGS": " ".join([own, *flags]).strip()}


def capture(out: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        environ = with_flags("--xla_dump_to=" + folder, "--xla_dump_hlo_as_text")
        environ["JAX_PLATFORMS"] = "cuda"
        child = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, check=False)
        told = child.stdout.decode(errors="replace").strip()
        print(told, flush=True)
        if child.returncode:
            return WRONG if child.returncode == WRONG else 1
        text = described(folder)
    if not text:
        print("this XLA dumps no *%s: take another version of jax" % ENDING, file=sys.stderr)
        return 1
    kept, left_out = portable(text)
    with open(out, "w", encoding="utf-8") as file:
        file.write("# Captured with %s.\n" % told.splitlines()[-1] + kept)
    print("wrote %s" % out + ("; left out, as older versions refuse them: " + ", ".join(left_out) if left_out else ""))
    return 0


def autotune(results: str, script: list[str]) -> int:
    if os.path.exists(results):
        os.remove(results)
    environ = with_flags("--xla_gpu_dump_autotune_results_to=" + os.path.abspath(results))
    status = subprocess.run([sys.executable, *script], env=environ, check=False).returncode
    count = 0
    if os.path.exists(results):
        with open(results, encoding="utf-8", errors="replace") as file:
            count = len(re.findall(r"(?m)^(?:results|entries)\b", file.read()))  # until 0.10.2; in 0.11.2
    print("%s ended with status %d; %d results of autotuning" % (script[0], status, count), flush=True)
    if not count:
        print("nothing was autotuned, so there are no results to compile with", file=sys.stderr)
    return 0 if count and not status else 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Describe this machine's GPU; see the top of this file.")
    parser.add_argument("out")
    words = "RESULTS.txt SCRIPT [WORD ...]"
    parser.add_argument("--autotune", nargs=argparse.REMAINDER, metavar=words, help="the rest of the line")
    options = parser.parse_args()
    results, *script = options.autotune or [""]
    if options.autotune is not None and not script:
        parser.error("--autotune needs " + words)
    if results and not results.endswith(".txt"):
        parser.error("--autotune %s: the name must end in .txt, by which all versions know text" % results)
    status = capture(options.out)
    sys.exit(status or (autotune(results, script) if results else 0))


if __name__ == "__main__":
    main()
