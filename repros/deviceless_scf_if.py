# /// repro
# title   = "A fused concatenation of computed columns fails the MLIR verifier for some sizes"
# issue   = "jax-ml/jax#39157"
# targets = ["h100:8", "gpu"]                     # described, and real
# timeout = "2m"
# jax     = ["0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["12-local", "13-local"]              # on GPUs with the CUDA of the host: docs/gpus.md
# python  = ["3.11", "3.12"]                      # 3.12 with "13-local" alone
# params  = { rows = [64, 100, 1000] }
# witness = { output = ["compiled"] }
# [[expect]]
# when        = "jax == 0.10.2 and rows == 100"
# outcome     = "error"
# exit_status = 1
# signature   = "*'scf.if' op along control flow edge*"
# [[expect]]
# outcome = "ok"
# ///
"""Measured without a GPU, for the H100 described in containers/targets: 0.10.2 fails for 100, 200, 300, 400 and 512 rows
and compiles 10, 64, 96, 128, 600, 700 and 1000; 0.4.38, 0.8.0, 0.9.2, 0.10.0 and 0.10.1 compile all that were tried.
On a real H200, of 0.10.0 to 0.12.0.1, 0.10.2 alone fails for 100 rows.
"""

import argparse
import os


def program(devices, rows=100):
    """The jitted function the same on all `devices`, and its argument as a shape."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    def function(x):
        total = jnp.sum(x, axis=-1)
        z = x / jnp.sum(x * x, axis=-1, keepdims=True)
        y = jnp.cross(z, x)
        first = jnp.stack([y, z, y], -1)[..., 0, :]
        return jnp.concatenate([first, total[..., None]], -1)

    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P())
    return jax.jit(function, out_shardings=sharding), (
        jax.ShapeDtypeStruct((1, rows, 3), jnp.float32, sharding=sharding),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=int(os.environ.get("REPRO_ROWS", "100")))
    args = parser.parse_args()
    import jax
    import numpy as np

    jitted, (shape,) = program(jax.devices(), rows=args.rows)
    result = jitted(jax.device_put(np.ones(shape.shape, np.float32), shape.sharding))
    expected = np.concatenate(
        [np.full((1, args.rows, 2), [0, 1 / 3], np.float32)[..., [0, 1, 0]], np.full((1, args.rows, 1), 3)], -1
    )
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)
    print("compiled, and the result is right", flush=True)


if __name__ == "__main__":
    main()
