# /// repro
# title   = "Multi-stream windowed einsum in a chain of two layers"
# issue   = "jax-ml/jax#39200"
# about   = """
# The report's chain: x (rows sharded) is gathered for a first product, whose result goes through a second one that is
# scattered over rows again, so both the gathering and the scattering loop are made."""
# targets = ["gpu:2", "gpu:4", "gpu:8"]
# timeout = "5m"
# jax     = ["0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["13-local"]
# python  = ["3.12"]
# env     = { XLA_FLAGS = "--xla_gpu_multi_streamed_windowed_einsum=true --xla_gpu_threshold_for_windowed_einsum_mib=0" }
# witness = { hlo = ["while", "collective-permute"] }   # the windowed loop; without it an `ok` proves nothing
# params  = { per_dev = [1024, 2048] }             # rows of x and columns of the first weights that each device holds
# [[expect]]
# when        = "jax == 0.10.2 and per_dev > 1024"
# outcome     = "error"
# exit_status = 1
# signature   = "FAILED_PRECONDITION *async_computation expected to contain only the root*"
# [[expect]]                                       # of 0.8.0 the report says that it crashes somewhere, otherwise
# when    = "jax == 0.8.0"
# outcome = ["ok", "crash"]
# [[expect]]
# outcome = "ok"
# ///
"""(x @ up) @ down on all GPUs; the flags turn both products into loops of windows."""

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

    size = per_dev * len(devices)
    mesh = Mesh(np.array(devices), ("tp",))
    rows, columns = NamedSharding(mesh, P("tp", None)), NamedSharding(mesh, P(None, "tp"))
    x = jax.ShapeDtypeStruct((size, INNER), jnp.bfloat16, sharding=rows)
    up = jax.ShapeDtypeStruct((INNER, size), jnp.bfloat16, sharding=columns)
    down = jax.ShapeDtypeStruct((size, INNER), jnp.bfloat16, sharding=rows)

    def chain(x, up, down):
        return (x @ up) @ down

    return jax.jit(chain, out_shardings=rows), (x, up, down)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_dev", type=int, default=int(os.environ.get("REPRO_PER_DEV", "2048")))
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
    jitted, shapes = program(devices, per_dev=args.per_dev)

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


if __name__ == "__main__":
    main()
