# /// repro
# title   = "Collective pipelining flags are accepted and a scanned tensor-parallel MLP stays as it was"
# issue   = "openxla/xla#44228"
# targets = ["gpu:2"]                              # "h100:8" joins once a cell can be compiled without its device
# timeout = "5m"
# jax     = ["0.10.1", "0.10.2"]
# cuda    = ["12"]
# params  = { model = ["tp_mlp", "dp_grad"] }
# witness = { output = ["collectives and a loop in the final HLO"] }
# [env]
# XLA_FLAGS = """\
#   --xla_gpu_enable_pipelined_all_reduce=true \
#   --xla_gpu_enable_pipelined_all_gather=true \
#   --xla_gpu_enable_pipelined_reduce_scatter=true"""
# [[expect]]                                       # the pass runs and finds nothing to move: true of every version tried
# when        = 'model == "tp_mlp"'
# outcome     = "error"
# exit_status = 1
# signature   = "*unchanged*"
# [[expect]]                                       # the control: a loop that it does pipeline, so the pass is not gone
# outcome = "ok"
# ///
"""Compile a scan with all pipelining flags and look for the pass `collective-pipeliner` among the HLO dumps.

XLA writes a dump named after a pass only when that pass changed the module: no such file means unchanged, not absent.
The report concluded from the missing files that the pass had been removed. Exit 0: pipelined. Exit 1: left as it was.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

FLAGS = " ".join(f"--xla_gpu_enable_pipelined_{name}=true" for name in ("all_reduce", "all_gather", "reduce_scatter"))


def program(devices, model="tp_mlp", layers=8, width=1024):
    """The jitted scan over all `devices`, and its arguments as shapes with shardings."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(devices), ("d",))

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    def forward(x, weights):
        def layer(h, w):
            up, down = w
            return h + jnp.tanh(h @ up) @ down, None

        return jax.lax.scan(layer, x, weights)[0]

    def loss(weights, x):
        return jnp.mean(forward(x, weights).astype(jnp.float32) ** 2)

    rows = 128 * len(devices)
    if model == "tp_mlp":  # one all-reduce a layer, which the next layer needs at once
        weights = (
            array((layers, width, 4 * width), None, None, "d"),
            array((layers, 4 * width, width), None, "d", None),
        )
        return jax.jit(forward), (array((rows, width)), weights)
    if model == "dp_grad":  # the gradients' all-reduces, which nothing in the loop waits for
        weights = array((layers, width, 4 * width)), array((layers, 4 * width, width))
        return jax.jit(jax.grad(loss)), (weights, array((rows, width), "d", None))
    raise ValueError(f"model {model!r}: expected tp_mlp or dp_grad")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=os.environ.get("REPRO_MODEL", "tp_mlp"), choices=["tp_mlp", "dp_grad"])
    args = parser.parse_args()
    flags = os.environ.get("XLA_FLAGS", FLAGS)
    if (given := re.search(r"--xla_dump_to=(\S+)", flags)) is None:
        folder = Path(tempfile.mkdtemp(prefix="hlo-"))
        flags += f" --xla_dump_to={folder}"
    else:
        folder = Path(given[1])
    os.environ["XLA_FLAGS"] = flags + " --xla_dump_hlo_as_text=true --xla_dump_hlo_pass_re=.*"
    import jax
    import numpy as np

    devices = jax.devices()
    if devices[0].platform != "gpu" or len(devices) < 2:
        print(f"needs 2 GPUs, has {devices}")
        sys.exit(125)
    jitted, shapes = program(devices, model=args.model)
    arrays = jax.tree_util.tree_map(
        lambda s: jax.device_put(np.full(s.shape, 0.01, np.float32).astype(s.dtype), s.sharding), shapes
    )
    compiled = jitted.lower(*arrays).compile()
    result = jax.block_until_ready(compiled(*arrays))
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree_util.tree_leaves(result))
    text = compiled.as_text()
    collectives = len(re.findall(r" (?:all-reduce|all-gather|reduce-scatter)(?:-start)?\(", text))
    print(f"REPRO_METRIC collectives={collectives}")
    if collectives and " while(" in text:
        print("collectives and a loop in the final HLO")
    dumps = [path.name for path in folder.rglob("*") if path.is_file()]
    pipelined = [name for name in dumps if "after_collective-pipeliner" in name]
    print(f"REPRO_METRIC dumps={len(dumps)}")
    print(f"REPRO_METRIC pipeliner_dumps={len(pipelined)}", flush=True)
    if not dumps:
        sys.exit(3)  # no dumps at all: nothing can be said
    if not pipelined:
        sys.exit("unchanged: no collective-pipeliner pass changed the module")
    print(*pipelined, sep="\n", flush=True)


if __name__ == "__main__":
    main()
