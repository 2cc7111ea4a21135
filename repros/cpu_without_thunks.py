# /// repro
# title   = "Switching the CPU thunk runtime off leaves an executable that cannot run"
# issue   = "jax-ml/jax#30554"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ">=0.6,<0.7.2"
# env     = { XLA_FLAGS = "--xla_cpu_use_thunk_runtime=false" }
# witness = { output = ["the key has two words"] }
# [[expect]]
# when        = "jax >= 0.7.0"
# outcome     = "error"
# exit_status = 1
# signature   = "*has no thunks*"
# [[expect]]
# outcome = "ok"
# ///
"""`--xla_cpu_use_thunk_runtime=false` chose the older runtime; 0.7.0 dropped that one and kept the flag."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_thunk_runtime=false")

import jax

assert jax.random.key_data(jax.random.key(0)).tolist() == [0, 0]
print("the key has two words", flush=True)
