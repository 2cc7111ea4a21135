# /// repro
# title   = "Two argsorts of 64-bit integers in a row break the HLO verifier"
# issue   = "jax-ml/jax#34096"
# targets = ["h100:8", "gpu"]                     # described, and real
# timeout = "2m"
# jax     = ["0.8.0", "0.8.2", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["12-local", "13-local"]              # on GPUs with the CUDA of the host: docs/gpus.md
# python  = ["3.11", "3.12"]                      # 3.12 with "13-local" alone
# params  = { x64 = [true, false] }
# witness = { output = ["compiled"] }
# [[expect]]
# when        = "jax >= 0.8.2 and jax <= 0.10.0 and x64 == true"
# outcome     = "error"
# exit_status = 1
# signature   = "*permutation_sort_simplifier*Reduction function's accumulator shape*"
# [[expect]]
# outcome = "ok"
# ///
"""Measured without a GPU, for the H100 described in containers/targets: 0.8.2, 0.9.0, 0.9.2 and 0.10.0 fail in the pass
`permutation_sort_simplifier`, which mixes 32 and 64 bits; 0.4.38, 0.8.0, 0.8.1, 0.10.1 and 0.10.2 compile.
On a real H200, of 0.10.0 to 0.12.0.1, 0.10.0 alone fails.
"""

import argparse
import os


def program(devices, x64=True):
    """The jitted function the same on all `devices`, and its argument as a shape."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", x64)

    def function(x):
        order = jnp.argsort(x)
        return x[order][jnp.argsort(order)]

    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P())
    kind = jnp.int64 if x64 else jnp.int32
    return jax.jit(function, out_shardings=sharding), (jax.ShapeDtypeStruct((10,), kind, sharding=sharding),)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--x64", default=os.environ.get("REPRO_X64", "true"), choices=["true", "false"])
    args = parser.parse_args()
    import jax
    import numpy as np

    jitted, (shape,) = program(jax.devices(), x64=args.x64 == "true")
    values = np.array([3, 1, 2, 0, 5, 4, 9, 8, 7, 6], shape.dtype)
    np.testing.assert_array_equal(np.asarray(jitted(jax.device_put(values, shape.sharding))), values)
    print("compiled, and the result is right", flush=True)


if __name__ == "__main__":
    main()
