# /// repro
# title   = "The compiler aborts on an ordered callback after the same function ran under shard_map"
# issue   = "jax-ml/jax#25671"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ["0.4.30", "0.4.38", "0.5.3", "0.6.0", "0.10.2"]
# env     = { XLA_FLAGS = "--xla_force_host_platform_device_count=4" }
# witness = { output = ["both programs ran"] }
# [[expect]]
# when      = "jax < 0.5"
# outcome   = "crash"
# signal    = "SIGABRT"
# signature = "check sharding_propagation.cc*"      # its line drifts by version
# [[expect]]
# outcome = "ok"
# ///
"""An ordered `io_callback` under `shard_map` on four virtual CPU devices, then the same body without it."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec as P

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

mesh = Mesh(np.array(jax.devices()), ("i",))  # jax.make_mesh is younger than the oldest version here, and changed


def body(a, b):
    io_callback(lambda _: None, (), a, ordered=True)
    return a + b[..., None]


sharded = jax.jit(shard_map(body, mesh=mesh, in_specs=(P(None, "i"), P(None)), out_specs=P(None, "i")))
for function in (sharded, jax.jit(body)):
    result = function(jnp.zeros((2, 16)), jnp.ones(2))
    assert result.shape == (2, 16) and float(result.sum()) == 32.0
    print("ran, result", result.shape, flush=True)
print("both programs ran", flush=True)
