# /// repro
# title   = "A collective across processes times out after 30 s in spite of the flags"
# issue   = "jax-ml/jax#40831"
# targets = ["cpu"]
# timeout = "4m"
# jax     = ["0.11.1", "0.12.0"]
# python  = ["3.13"]                               # these releases need 3.12 or newer; Debian trixie has this one
# params  = { op = ["psum_scatter", "all_gather"] }
# witness = { output = ["rank 0 got the right values", "rank 1 got the right values"] }
# [[expect]]
# when        = 'jax == 0.11.1 and op == "psum_scatter"'
# outcome     = "error"
# exit_status = 1
# signature   = "*ReduceScatter failed*"
# [[expect]]
# outcome = "ok"
# ///
"""Two processes, gloo, and a rank that comes 40 s late; both flags allow an hour.

The ranks end differently (one with status 1, one by SIGABRT) and a launcher that only waits would return 0. So this one
keeps their outputs apart, prints them one after the other, and fails when any of them did.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

LATE = 40  # seconds; the limit that the flags do not move is 30


def rank(op, index, port):
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_collective_timeout_seconds=3600 --xla_cpu_collective_call_terminate_timeout_seconds=3600"
    )
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
    mesh = Mesh(np.array(jax.devices()), ("i",))
    collective = getattr(jax.lax, op)
    function = jax.jit(
        jax.shard_map(
            lambda x: collective(x, "i", tiled=True), mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False
        )
    )
    values = np.arange(8, dtype=np.float32)
    x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("i")), lambda part: values[part])
    jax.block_until_ready(function(x))
    if index == 1:
        time.sleep(LATE)
    start = time.perf_counter()
    result = jax.block_until_ready(function(x))
    own = np.asarray(result.addressable_shards[0].data)
    halves = values.reshape(2, 4)
    expected = halves.sum(axis=0).reshape(2, 2)[index] if op == "psum_scatter" else values
    np.testing.assert_array_equal(own, expected)
    print(f"rank {index} got the right values after {time.perf_counter() - start:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--op", default=os.environ.get("REPRO_OP", "psum_scatter"), choices=["psum_scatter", "all_gather"]
    )
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.op, args.rank, args.port)
        return
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError as error:  # a container without a network may not know its own name
        print(f"gloo looks up the name of its host, and {socket.gethostname()} has no address: {error}")
        sys.exit(125)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [tempfile.TemporaryFile("w+") for _ in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--op", args.op, "--rank", str(i), "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        for i, log in enumerate(logs)
    ]
    statuses = [child.wait() for child in ranks]
    for i, (status, log) in enumerate(zip(statuses, logs)):
        log.seek(0)
        print(f"--- rank {i} ended with {status}\n{log.read()}", file=sys.stdout if status == 0 else sys.stderr)
    print("statuses of the ranks", statuses, flush=True)
    sys.exit(0 if statuses == [0, 0] else 1)


if __name__ == "__main__":
    main()
