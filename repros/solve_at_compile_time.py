# /// repro
# title   = "solve leaks a tracer inside ensure_compile_time_eval"
# issue   = "jax-ml/jax#25847"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ["0.4.31", "0.4.34", "0.4.38", "0.5.3"]
# witness = { output = ["the solution is all ones"] }
# [[expect]]
# when        = "jax >= 0.4.36"
# outcome     = "error"
# exit_status = 1
# signature   = "*UnexpectedTracerError*"
# [[expect]]
# outcome = "ok"
# ///
"""Solve a diagonal system of 20 unknowns under `ensure_compile_time_eval`, without any transformation around it."""

import jax
import jax.numpy as jnp

with jax.ensure_compile_time_eval():
    solution = jnp.linalg.solve(jnp.diag(jnp.ones(20)), jnp.ones((20, 1)))
assert solution.tolist() == [[1.0]] * 20
print("the solution is all ones", flush=True)
