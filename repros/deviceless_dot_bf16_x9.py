# /// repro
# title   = "A sharded dot of algorithm BF16_BF16_F32_X9 ends the compiler with SIGSEGV"
# targets = ["h100:8"]
# timeout = "2m"
# jax     = ["0.6.0", "0.6.2", "0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["12-local"]
# params  = { algorithm = ["BF16_BF16_F32_X9", "BF16_BF16_F32_X6"] }
# witness = { output = ["compiled"] }
# [[expect]]
# when    = 'algorithm == "BF16_BF16_F32_X9" and jax >= 0.7'
# outcome = "crash"
# signal  = "SIGSEGV"
# [[expect]]                                       # 0.6 compiles both; X6 is the control
# outcome = "ok"
# ///
"""Measured without a GPU, for the H100 described in containers/targets: X9 crashes 0.7.0, 0.7.2, 0.8.0, 0.8.2, 0.9.0, 0.9.2
and 0.10.0 to 0.10.2 while HLO is turned into StableHLO for Shardy (xla::HloFunctionImporter::ImportInstructionImpl); 0.5.3,
0.6.0, 0.6.2 and 0.8.1 compile it. 0.5.0 and older have no such algorithm.
"""

import argparse
import os


def program(devices, algorithm="BF16_BF16_F32_X9"):
    """The jitted dot, the same on all `devices`, and its arguments as shapes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    preset = jax.lax.DotAlgorithmPreset[algorithm]

    def function(a, b):
        return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=preset)

    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P())
    shape = jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=sharding)
    return jax.jit(function, out_shardings=sharding), (shape, shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", default=os.environ.get("REPRO_ALGORITHM", "BF16_BF16_F32_X9"))
    args = parser.parse_args()
    import jax
    import numpy as np

    jitted, shapes = program(jax.devices(), algorithm=args.algorithm)
    random = np.random.default_rng(0)
    host = [random.standard_normal(shape.shape, np.float32) for shape in shapes]
    result = jitted(*(jax.device_put(array, shape.sharding) for array, shape in zip(host, shapes)))
    np.testing.assert_allclose(np.asarray(result), host[0] @ host[1], rtol=1e-3, atol=1e-2)
    print("compiled, and the result is right", flush=True)


if __name__ == "__main__":
    main()
