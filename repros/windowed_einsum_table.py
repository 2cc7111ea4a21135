# /// repro
# title   = "At which sizes multi-stream windowed einsum fails the HLO verifier: the report's boundary table"
# issue   = "jax-ml/jax#39200"
# about   = """
# The report's claim: 0.10.2 fails where a shard has more than 1024 rows of x (M/tp) or columns of w (N/tp), whatever K is;
# 0.10.0 and 0.10.1 compile all. The first three sizes have one side at the boundary on two GPUs, the others are the
# report's rows, made for eight."""
# targets = ["gpu:2", "gpu:4", "gpu:8"]
# timeout = "5m"
# jax     = ["0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["13-local"]
# python  = ["3.12"]
# env     = { XLA_FLAGS = "--xla_gpu_multi_streamed_windowed_einsum=true --xla_gpu_threshold_for_windowed_einsum_mib=0" }
# hlo     = "off"                                # windowed_einsum shows it; here 156 cells would each run once more
# witness = { output = ["the windowed loop was made"] }   # without it an `ok` proves nothing
# [params]
# size = [
#   "2048x8192x2048", "2048x8192x4096", "4096x8192x2048",
#   "8192x8192x8192", "8192x8192x16384", "16384x8192x8192", "16384x16384x16384", "4096x8192x4096", "4096x8192x8192",
#   "8192x4096x8192", "8192x16384x8192", "8192x32768x8192", "8192x65536x8192",
# ]
# [[expect]]                                       # M/tp and N/tp are 1024 or less
# when    = '''jax == 0.10.2 and (
#   target == "gpu:2" and size == "2048x8192x2048"
#   or target == "gpu:4" and size in ("2048x8192x2048", "2048x8192x4096", "4096x8192x2048", "4096x8192x4096")
#   or target == "gpu:8" and not size in ("8192x8192x16384", "16384x8192x8192", "16384x16384x16384"))'''
# outcome = "ok"
# [[expect]]
# when        = "jax == 0.10.2"
# outcome     = "error"
# exit_status = 1
# signature   = "FAILED_PRECONDITION *async_computation expected to contain only the root*"
# [[expect]]                                       # of 0.8.0 the report says that it crashes somewhere, otherwise
# when    = "jax == 0.8.0"
# outcome = ["ok", "crash"]
# [[expect]]
# outcome = "ok"
# ///
"""x[M, K] (rows sharded) times w[K, N] (columns sharded), on all GPUs; the flags turn gather and product into a loop."""

import argparse
import os
import sys


def program(devices, size="8192x8192x8192"):
    """The jitted product over all `devices`, and its arguments as shapes with shardings."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    m, k, n = (int(part) for part in size.split("x"))
    mesh = Mesh(np.array(devices), ("tp",))
    rows, columns = NamedSharding(mesh, P("tp", None)), NamedSharding(mesh, P(None, "tp"))
    x = jax.ShapeDtypeStruct((m, k), jnp.bfloat16, sharding=rows)
    w = jax.ShapeDtypeStruct((k, n), jnp.bfloat16, sharding=columns)

    def product(x, w):
        return x @ w

    return jax.jit(product, out_shardings=columns), (x, w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default=os.environ.get("REPRO_SIZE", "8192x8192x8192"))
    args = parser.parse_args()
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_gpu_multi_streamed_windowed_einsum=true --xla_gpu_threshold_for_windowed_einsum_mib=0",
    )
    import jax
    import jax.numpy as jnp
    import numpy as np

    devices = jax.devices()
    if devices[0].platform != "gpu" or len(devices) < 2:
        print(f"needs 2 GPUs, has {devices}")
        sys.exit(125)
    jitted, shapes = program(devices, size=args.size)

    def made(number, shape):  # on the devices: a gigabyte of random numbers takes the host ten seconds
        def values():
            steps = jnp.arange(shape.shape[0])[:, None] * 7 + jnp.arange(shape.shape[1])[None, :] * 13 + number
            return ((steps % 31 - 15) / 128).astype(shape.dtype)

        return jax.jit(values, out_shardings=shape.sharding)()

    arrays = [made(number, shape) for number, shape in enumerate(shapes)]
    compiled = jitted.lower(*arrays).compile()
    result = compiled(*arrays)
    for row in (0, result.shape[0] - 1):
        exact = np.asarray(arrays[0][row], np.float32)
        for weights in arrays[1:]:
            exact = exact @ np.asarray(weights, np.float32)
        got = np.asarray(result[row], np.float32)
        np.testing.assert_allclose(got, exact, rtol=0.05, atol=0.05 * np.abs(exact).max())
    print("the product is right", flush=True)
    text = compiled.as_text()
    if " while(" in text and "collective-permute" in text:
        print("the windowed loop was made", flush=True)


if __name__ == "__main__":
    main()
