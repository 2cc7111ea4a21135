# /// repro
# title   = "Updating one element a step copies the whole buffer: a loop becomes quadratic"
# issue   = "jax-ml/jax#31284"
# targets = ["cpu"]
# hlo     = "off"                                  # a second run for the compiler's work would tell nothing more
# timeout = "5m"
# jax     = ["0.6.2", "0.7.0", "0.7.1", "0.7.2"]
# witness = { output = ["growth is linear"] }
# [[expect]]
# when        = "jax == 0.7.1"
# outcome     = "error"
# exit_status = 1
# signature   = "*quadratic*"
# [[expect]]
# outcome = "ok"
# ///
"""Time a loop over n steps for n and 8n: linear gives a factor of 2 per doubling, quadratic one of 4.

Seconds differ by machine, the growth does not. CPU time is taken, and the best of five runs, since a busy machine only
ever adds: wall time gave a false "quadratic" on two cores with a load of 7.
"""

import sys
import time

import jax
import jax.numpy as jnp


@jax.jit
def fill(buffer):
    def step(carry):
        i, values = carry
        j = jax.random.randint(jax.random.key(i), (), 0, 2)
        return i + 1, values.at[i].set(values[j])

    return jax.lax.while_loop(lambda carry: carry[0] < carry[1].size, step, (0, buffer))


def seconds(size):
    buffer = jnp.zeros(size)
    steps, _ = jax.block_until_ready(fill(buffer))  # compiles
    assert int(steps) == size
    times = []
    for _ in range(5):
        start = time.process_time()
        jax.block_until_ready(fill(buffer))
        times.append(time.process_time() - start)
    return min(times)


small, large = seconds(10_000), seconds(80_000)
growth = (large / small) ** (1 / 3)
print(f"REPRO_METRIC growth_per_doubling={growth:.2f}")
print(f"REPRO_METRIC cpu_seconds_80000={large:.4f}", flush=True)
if growth > 2.8:
    sys.exit("quadratic: the time grows by far more than twofold per doubling")
print("growth is linear", flush=True)
