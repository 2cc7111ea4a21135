# /// repro
# title   = "Which collective pipelining flags a version accepts"
# issue   = "openxla/xla#44228"
# targets = ["cpu"]
# hlo     = "off"                                  # a second run for the compiler's work would tell nothing more
# timeout = "2m"
# jax     = ["0.4.30", "0.4.31", "0.4.34", "0.4.38", "0.5.3", "0.6.0", "0.6.2", "0.7.1", "0.7.2", "0.9.2", "0.10.1", "0.10.2"]
# witness = { output = ["an invented flag is refused"] }
# [params]
# flag = [
#   "xla_gpu_enable_pipelined_collectives",
#   "xla_gpu_run_post_layout_collective_pipeliner",
#   "xla_gpu_enable_pipelined_all_reduce",
# ]
# [[expect]]
# when        = 'flag == "xla_gpu_enable_pipelined_collectives" and jax >= 0.6.0'
# outcome     = "error"
# exit_status = 1
# signature   = "*refused*"
# [[expect]]
# when        = 'flag == "xla_gpu_run_post_layout_collective_pipeliner" and jax < 0.4.31'
# outcome     = "error"
# exit_status = 1
# signature   = "*refused*"
# [[expect]]
# when        = 'flag == "xla_gpu_run_post_layout_collective_pipeliner" and jax > 0.4.34'
# outcome     = "error"
# exit_status = 1
# signature   = "*refused*"
# [[expect]]
# outcome = "ok"
# ///
"""Ask the installed XLA itself whether it accepts a flag: strings in the binary also name flags that are long gone.

A child process starts a CPU client with the flag; jaxlib parses the GPU flags too, and parses them first. Exit 0: the
flag is accepted, and an invented one is not, so that the parser did look. Exit 1: refused, with the child's own status
as a number (134, an abort, up to 0.7.1; 1 from 0.7.2). Exit 2: no answer.
"""

import argparse
import os
import resource
import subprocess
import sys


def start(flag: str) -> tuple[int, str]:
    """Status of a child with `flag` as a shell would show it, and its stderr."""
    child = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{flag}=true"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),  # an abort here is an answer, not a crash
        capture_output=True,
        text=True,
    )
    return (128 - child.returncode if child.returncode < 0 else child.returncode), child.stderr


def refused(flag: str, status: int, stderr: str) -> bool:
    if status == 0:
        return False
    # Both "Unknown flag in" and "Unknown flags in" occur, by version and count.
    if "Unknown flag" in stderr and f"--{flag}" in stderr:
        return True
    print(f"the child ended with {status} for another reason than the flag:\n{stderr}", file=sys.stderr)
    sys.exit(2)


parser = argparse.ArgumentParser()
parser.add_argument("--flag", default=os.environ.get("REPRO_FLAG", "xla_gpu_enable_pipelined_collectives"))
flag = parser.parse_args().flag

status, stderr = start(flag)
print(f"REPRO_METRIC child_exit={status}", flush=True)
if refused(flag, status, stderr):
    sys.exit(f"refused: this XLA has no flag {flag}")
print(f"accepted: {flag}", flush=True)
invented = "xla_invented_for_this_check"
if not refused(invented, *start(invented)):
    print("nothing is known: this XLA accepts any flag", file=sys.stderr)
    sys.exit(2)
print("an invented flag is refused", flush=True)
