# /// repro
# title   = "jit changes the value of a sum of squares on CPU"
# issue   = "jax-ml/jax#39103"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ">=0.9"
# params  = { dtype = ["float32", "float64"] }
# witness = { output = ["jit agrees with the exact value"] }
# [[expect]]
# when        = "jax == 0.10.2"
# outcome     = "error"
# exit_status = 1
# signature   = "*wrong result*"
# [[expect]]
# outcome = "ok"
# ///
"""Row i of the input is (i, 0, 0), so that the sum of its squares is i*i: exact in both types for the last row.

The wrong value differs by machine, so it is judged by the exact one and never by a recorded number.
"""

import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default=os.environ.get("REPRO_DTYPE", "float32"), choices=["float32", "float64"])
args = parser.parse_args()

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np

dtype = np.dtype(args.dtype)
rows = 32769 if dtype == np.float32 else 16385  # the smallest power of two, plus one, at which it shows
points = np.zeros((rows, 3), dtype)
points[:, 0] = np.arange(rows)
identity = jnp.eye(3, dtype=dtype)
squares = jax.vmap(lambda row: jnp.sum((identity @ row) ** 2))
exact = float((rows - 1) ** 2)
eager, jitted = float(squares(points)[-1]), float(jax.jit(squares)(points)[-1])
print(f"{args.dtype}: exact {exact!r} eager {eager!r} jit {jitted!r}")
if jitted != exact:
    sys.exit("wrong result: jit differs from the exact value")
print("jit agrees with the exact value", flush=True)
