# /// repro
# title   = "A jitted eig inside a pure_callback hangs on a machine with one CPU"
# issue   = "jax-ml/jax#24255"
# targets = ["cpu"]
# timeout = "45s"                                  # ends within 12 s where it does not hang
# cpus    = 1
# jax     = ["0.4.31", "0.4.34", "0.7.2", "0.10.2"]
# witness = { output = ["200 callbacks came back"] }
# [[expect]]
# when    = "jax <= 0.4.31"
# outcome = "ok"
# [[expect]]
# outcome = "hang"
# ///
"""The callback runs a computation of its own and needs the very thread that waits for it, if there is only one.

It is a race: with 20 callbacks of 400 x 400, 0.7.2 mostly survives; with 200 of 200 x 200, 0.4.34, 0.7.2 and 0.10.2 hung
in every run, 0.4.31 and 0.12.0 in none. (0.5.3 hung in every run in a venv and in none in a container.) With two CPUs
nothing hangs, so by hand: `taskset -c 0 python eig_in_callback_one_cpu.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

SIZE, CALLBACKS = 200, 200
eig = jax.jit(jnp.linalg.eig)


def on_host(matrix):
    values, vectors = eig(matrix)
    return np.asarray(values), np.asarray(vectors)


def decompose(matrix):
    matrix = matrix.astype(np.complex64)
    shapes = jax.ShapeDtypeStruct(matrix.shape[:-1], matrix.dtype), jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
    return jax.pure_callback(on_host, shapes, matrix)


for i in range(CALLBACKS):
    values, _ = jax.block_until_ready(decompose(jnp.ones((SIZE, SIZE))))
    print("callback", i, flush=True)
assert abs(np.abs(values).max() - SIZE) < 0.5  # the one eigenvalue of a matrix of ones that is not zero
print(f"{CALLBACKS} callbacks came back", flush=True)
