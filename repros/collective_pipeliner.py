# /// repro
# title   = "The collective pipeliner runs in every version, and leaves a scanned tensor-parallel MLP as it was"
# issue   = "openxla/xla#44228"
# about   = """
# The report: 0.10.1 lacks the pass that 0.4.38 has, since the flags are accepted, no dump is named after a pipeliner pass,
# and `nm -D` finds no `CollectivePipeliner`. What is true: with the three flags the forward pass runs twice and the
# backward pass once in every version tried, 0.4.38 and 0.10.1 alike. XLA writes a dump after a pass only where that pass
# changed the module, and in the report's own program (tp_mlp) there is nothing to move, in any version: each layer needs
# the sum of its all-reduce at once. The gradient of a data-parallel scan (dp_grad), whose all-reduces nothing in the
# loop waits for, is changed by the forward pass in every version, that of an FSDP scan (fsdp_grad) by both passes. So a
# missing dump says that a pass changed nothing, not that it is gone. `collective_pipeliner_probe` tells of the symbols."""
# targets = ["gpu:2", "gpu:4", "gpu:8", "h100:8"]
# timeout = "5m"
# jax     = ["0.4.38", "0.6.2", "0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda    = ["12", "12-local", "13-local"]         # "12" on GPUs, of the two newest alone: see matrix.toml
# python  = ["3.11", "3.12"]                       # 3.12 with "13-local" alone, on a host's own CUDA: docs/gpus.md
# params  = { model = ["tp_mlp", "dp_grad", "fsdp_grad"] }
# [env]
# XLA_FLAGS = """\
#   --xla_gpu_enable_pipelined_all_reduce=true \
#   --xla_gpu_enable_pipelined_all_gather=true \
#   --xla_gpu_enable_pipelined_reduce_scatter=true"""
# [witness]                                        # the passes ran, over a loop that holds collectives
# passes = ["collective-pipeliner-forward", "collective-pipeliner-backward"]
# hlo    = ["while", "all-reduce|all-gather|reduce-scatter"]
# [[expect]]                                       # the report's own program: nothing to move, in any version
# when      = 'model == "tp_mlp"'
# outcome   = "ok"
# unchanged = ["collective-pipeliner-*"]
# [[expect]]                                       # the controls: loops that it does pipeline
# when      = 'model == "dp_grad"'
# outcome   = "ok"
# changed   = ["collective-pipeliner-forward"]
# unchanged = ["collective-pipeliner-backward"]
# [[expect]]
# outcome = "ok"
# changed = ["collective-pipeliner-forward", "collective-pipeliner-backward"]
# ///
"""Compile a scan with all three pipelining flags, and look which collective pipeliner passes change it.

By hand: TF_CPP_VMODULE=hlo_pass_pipeline=1
and TF_CPP_MIN_LOG_LEVEL=0 log every pass that runs, --xla_dump_hlo_pass_re=.* dumps after each that changed something.
"""

import argparse
import os
import re
import sys

FLAGS = " ".join(f"--xla_gpu_enable_pipelined_{name}=true" for name in ("all_reduce", "all_gather", "reduce_scatter"))
MODELS = ("tp_mlp", "dp_grad", "fsdp_grad")


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
            if model == "fsdp_grad":
                h = jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P("d", None)))
                up, down = jax.lax.with_sharding_constraint((up, down), NamedSharding(mesh, P()))
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
    if model == "fsdp_grad":  # each layer's weights gathered before use, its gradients scattered back
        weights = array((layers, width, 4 * width), None, "d"), array((layers, 4 * width, width), None, "d")
        shardings = jax.tree_util.tree_map(lambda shape: shape.sharding, weights)
        return jax.jit(jax.grad(loss), out_shardings=shardings), (weights, array((rows, width), "d", None))
    raise ValueError(f"model {model!r}: expected one of {', '.join(MODELS)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=os.environ.get("REPRO_MODEL", "tp_mlp"), choices=MODELS)
    args = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", FLAGS)
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
    collectives = re.findall(r" (?:all-reduce|all-gather|reduce-scatter)(?:-start)?\(", compiled.as_text())
    print(f"REPRO_METRIC collectives={len(collectives)}", flush=True)


if __name__ == "__main__":
    main()
