# /// repro
# title   = "A flag that no version has ends the process before any work"
# issue   = "jax-ml/jax#13148"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ["0.4.30", "0.5.3", "0.6.2", "0.7.0", "0.7.1", "0.7.2", "0.10.2"]
# env     = { XLA_FLAGS = "--xla_no_such_flag=1" }
# [[expect]]
# outcome = "skip"                                 # exit 134 up to 0.7.1, 1 from 0.7.2: neither is a fault of that version
# ///
"""XLA refuses a flag that it does not know by ending the process: a wrong flag must never look like a regression."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_no_such_flag=1")

import jax

print("this version started with an invented flag:", jax.devices(), flush=True)
