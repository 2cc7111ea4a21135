# /// repro
# title   = "A jitted eig inside a pure_callback hangs on a machine with one CPU"
# issue   = "jax-ml/jax#24255"
# targets = ["cpu"]
# timeout = "45s"                                  # ends within seconds where it does not hang
# cpus    = 1
# jax     = ["0.4.31", "0.4.34", "0.4.38", "0.5.3", "0.7.2", "0.10.2"]
# witness = { output = ["20 callbacks came back"] }
# [[expect]]
# when    = "jax >= 0.4.33 and jax <= 0.5.3"
# outcome = "hang"
# [[expect]]
# outcome = "ok"
# ///
"""The callback runs a computation of its own and needs the very thread that waits for it, if there is only one.

With two CPUs nothing hangs: run it by hand with `taskset -c 0 python eig_in_callback_one_cpu.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

eig = jax.jit(jnp.linalg.eig)


def on_host(matrix):
    values, vectors = eig(matrix)
    return np.asarray(values), np.asarray(vectors)


def decompose(matrix):
    matrix = matrix.astype(np.complex64)
    shapes = jax.ShapeDtypeStruct(matrix.shape[:-1], matrix.dtype), jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
    return jax.pure_callback(on_host, shapes, matrix)


for i in range(20):
    values, _ = jax.block_until_ready(decompose(jnp.ones((400, 400))))
    print("callback", i, flush=True)
assert abs(np.abs(values).max() - 400) < 0.5  # the one eigenvalue of a matrix of ones that is not zero
print("20 callbacks came back", flush=True)
