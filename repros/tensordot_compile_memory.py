# /// repro
# title   = "Compiling the gradient of a chain of tensordots takes all memory"
# issue   = "openxla/xla#41173"
# targets = ["cpu"]
# timeout = "3m"
# memory  = "4GiB"
# jax     = ["0.8.3", "0.9.2", "0.10.0", "0.10.2"]
# witness = { output = ["the value is right"] }
# [[expect]]
# when    = "jax >= 0.9.1 and jax <= 0.10.0"
# outcome = "oom"                                  # std::bad_alloc under a limit, the kernel's kill without one
# [[expect]]
# outcome = "ok"
# ///
"""A chain of `rank` small tensors makes one array of `rank` axes, transposed and multiplied with itself.

Good, bad, good, bad, good over the versions. Run it by hand with a limit: the bad ones take whatever there is.
"""

import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=int(os.environ.get("REPRO_RANK", "10")))
args = parser.parse_args()

import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
tensors = [0.5 * random.standard_normal((2, 2, 2)).astype(np.float32) for _ in range(args.rank)]


def energy(tensors, np=jnp):
    chain = tensors[0]
    for tensor in tensors[1:]:
        chain = np.tensordot(chain, tensor, ((chain.ndim - 1,), (0,)))
    return np.sum(np.exp(chain) * np.conj(np.transpose(chain)))


start = time.perf_counter()
value, gradient = jax.block_until_ready(jax.jit(jax.value_and_grad(energy))(tensors))
print(f"REPRO_METRIC seconds={time.perf_counter() - start:.2f}")
np.testing.assert_allclose(value, energy(tensors, np), rtol=1e-3)
assert all(np.isfinite(part).all() for part in gradient)
print("the value is right", flush=True)
