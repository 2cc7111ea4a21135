# /// repro
# title   = "Multi-stream windowed einsum fails the HLO verifier for large shards"
# issue   = "jax-ml/jax#39200"
# targets = ["gpu:2", "gpu:4", "gpu:8", "h100:8"]
# timeout = "5m"
# jax     = ["0.6.2", "0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["12", "12-local", "13-local"]         # "12" on GPUs, of the two newest alone: see matrix.toml
# python  = ["3.11", "3.12"]                       # 3.12 with "13-local" alone, on a host's own CUDA: docs/gpus.md
# env     = { XLA_FLAGS = "--xla_gpu_multi_streamed_windowed_einsum=true --xla_gpu_threshold_for_windowed_einsum_mib=0" }
# params  = { per_dev = [1024, 2048] }             # rows and columns that each device holds
# witness = { hlo = ["while", "collective-permute"] }   # the windowed loop; without it an `ok` proves nothing
# [[expect]]                                       # compiled ahead of time these never make the loop
# when    = 'target == "h100:8" and jax >= 0.7.2'
# outcome = "inconclusive"
# [[expect]]                                       # seen at 1024 too, on two H200: reports/h200
# when    = "jax == 0.8.0 and per_dev > 1024"
# outcome = "crash"
# signal  = "SIGSEGV"
# [[expect]]
# when        = "jax == 0.10.2 and per_dev > 1024"
# outcome     = "error"
# exit_status = 1
# signature   = "FAILED_PRECONDITION *async_computation expected to contain only the root*"
# [[expect]]
# outcome = "ok"
# ///
"""x (rows sharded) times w (columns sharded) gathers x; the flags turn gather and product into a loop of windows.

Measured on two H200: 0.10.1 runs both sizes, 0.10.2 fails on the larger one while compiling (FAILED_PRECONDITION of the
HLO verifier, after the pass `pipeline-start`). A run without the loop proves nothing, so the final HLO is looked at:
compiled for a described H100, 0.4.38, 0.6.0 and 0.6.2 make the loop, 0.7.2 to 0.10.2 do not.
"""

import argparse
import os
import sys

INNER = 8192


def program(devices, per_dev=2048):
    """The jitted product over all `devices`, and its arguments as shapes with shardings."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(devices), ("tp",))
    size = per_dev * len(devices)
    rows, columns = NamedSharding(mesh, P("tp", None)), NamedSharding(mesh, P(None, "tp"))
    x = jax.ShapeDtypeStruct((size, INNER), jnp.bfloat16, sharding=rows)
    w = jax.ShapeDtypeStruct((INNER, size), jnp.bfloat16, sharding=columns)

    def product(x, w):
        return x @ w

    return jax.jit(product, out_shardings=columns), (x, w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_dev", type=int, default=int(os.environ.get("REPRO_PER_DEV", "2048")))
    args = parser.parse_args()
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_gpu_multi_streamed_windowed_einsum=true --xla_gpu_threshold_for_windowed_einsum_mib=0",
    )
    import jax
    import numpy as np

    devices = jax.devices()
    if devices[0].platform != "gpu" or len(devices) < 2:
        print(f"needs 2 GPUs, has {devices}")
        sys.exit(125)
    jitted, shapes = program(devices, per_dev=args.per_dev)
    random = np.random.default_rng(0)
    host = [random.standard_normal(shape.shape, np.float32).astype(shape.dtype) for shape in shapes]
    x, w = (jax.device_put(array, shape.sharding) for array, shape in zip(host, shapes))
    compiled = jitted.lower(x, w).compile()
    result = np.asarray(compiled(x, w))
    for row in (0, result.shape[0] - 1):
        exact = host[0][row].astype(np.float32) @ host[1].astype(np.float32)
        np.testing.assert_allclose(result[row].astype(np.float32), exact, rtol=0.02, atol=2.0)
    print("the product is right", flush=True)


if __name__ == "__main__":
    main()
