# /// repro
# title   = "Summing a product of two 7-dimensional arrays kills the process on a worker thread"
# issue   = "jax-ml/jax#40412"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ">=0.9"
# witness = { output = ["the sum is right"] }
# [[expect]]
# when    = "jax == 0.10.2"
# outcome = "crash"
# signal  = "SIGSEGV"                              # in namespace slinky; the innermost frame differs by machine
# [[expect]]
# outcome = "ok"
# ///
"""`sum(a * b)` over the fourth of seven axes: XLA:CPU hands the fusion to its YNN library, which crashes on its shape."""

import jax
import jax.numpy as jnp
import numpy as np

shape = (3, 1, 2, 2, 8, 8, 8)
a, b = (np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in (0, 1))
result = jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(a, b)
np.testing.assert_allclose(np.asarray(result), (a * b).sum(axis=3), rtol=1e-5, atol=1e-5)
print("the sum is right", flush=True)
