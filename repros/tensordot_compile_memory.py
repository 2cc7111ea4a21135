# /// repro
# title   = "Compiling the gradient of a chain of tensordots takes all memory"
# issue   = "openxla/xla#41173"
# targets = ["cpu"]
# timeout = "3m"
# memory  = "4GiB"
# jax     = ["0.8.3", "0.9.2", "0.10.0", "0.10.2"]
# witness = { output = ["compiled and ran"] }
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

tensors = [jax.random.normal(key, (2, 2, 2)) for key in jax.random.split(jax.random.PRNGKey(0), args.rank)]


def energy(tensors):
    chain = tensors[0]
    for tensor in tensors[1:]:
        chain = jnp.tensordot(chain, tensor, ((chain.ndim - 1,), (0,)))
    return jnp.sum(jnp.exp(chain) * jnp.conj(jnp.transpose(chain)))


start = time.perf_counter()
value, gradient = jax.block_until_ready(jax.jit(jax.value_and_grad(energy))(tensors))
print(f"REPRO_METRIC seconds={time.perf_counter() - start:.2f}")
assert len(gradient) == args.rank and jnp.isfinite(value)
print("compiled and ran", flush=True)
