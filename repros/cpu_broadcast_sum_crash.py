# /// repro
# title   = "A broadcast product, summed, crashes after the result's shape is known"
# issue   = "jax-ml/jax#39257"
# targets = ["cpu"]
# timeout = "1m"
# jax     = ">=0.9"
# witness = { output = ["the values are right"] }
# [[expect]]
# when    = "jax == 0.10.2"
# outcome = ["crash", "hang"]                      # by CPU: the same bug can be an endless loop
# [[expect]]
# outcome = "ok"
# ///
"""The shape is printed first, the computation then dies on a worker thread: only the wait status tells.

Python has nothing to report, and without a fault handler stderr stays empty.
"""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def score(weights, table):
    total = jnp.sum(weights[..., None, None, None, None, None] * table, axis=2)
    return jnp.log(jnp.maximum(total, np.finfo(np.float64).eps))


result = score(np.ones((10, 4, 6), np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32))
print("shape", result.shape, flush=True)
np.testing.assert_allclose(np.asarray(result), np.log(6.0), rtol=1e-5)  # waits: dispatch is asynchronous
print("the values are right", flush=True)
