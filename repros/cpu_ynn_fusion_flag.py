# /// repro
# title   = "A flag that works around a CPU bug in new versions does not exist in old ones"
# issue   = "infer-actively/pymdp#420"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ["0.6.2", "0.7.2", "0.10.2"]
# env     = { XLA_FLAGS = "--xla_cpu_experimental_ynn_fusion_type=" }
# witness = { output = ["the sum is right"] }
# [[expect]]
# when    = "jax <= 0.7.2"
# outcome = "skip"
# [[expect]]
# outcome = "ok"
# ///
"""An empty `--xla_cpu_experimental_ynn_fusion_type` keeps XLA:CPU from its YNN library, whose fusions crash in 0.10.2.

The program is the one of `cpu_sum_of_products.py`, which that version does not survive without the flag.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")

import jax
import jax.numpy as jnp
import numpy as np

shape = (3, 1, 2, 2, 8, 8, 8)
a, b = (np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in (0, 1))
result = jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(a, b)
np.testing.assert_allclose(np.asarray(result), (a * b).sum(axis=3), rtol=1e-5, atol=1e-5)
print("the sum is right", flush=True)
