# /// repro
# title   = "XLA aborts when a pass lies about having changed the HLO"
# targets = ["cpu"]
# timeout = "2m"
# env     = { XLA_FLAGS = "--xla_unsupported_crash_on_hlo_pass_{flag}=true" }
# params  = { flag = ["noop_change", "silent_hlo_change"] }
# witness = { output = ["jit ran"] }               # an exit 0 that compiled nothing proves nothing
# [[expect]]                                       # the flags came with 0.6.0: an abort for an unknown flag is not the bug
# when    = "jax < 0.6.0"
# outcome = "skip"
# [[expect]]
# when    = 'flag == "noop_change" and jax >= 0.6.1 and jax < 0.7.1'
# outcome = "ok"
# [[expect]]
# when      = 'flag == "noop_change"'
# outcome   = "crash"
# signal    = "SIGABRT"
# signature = "*reported that it changed the HLO*"
# [[expect]]
# when      = 'flag == "silent_hlo_change" and jax >= 0.6.1 and jax < 0.7.1'
# outcome   = "crash"
# signal    = "SIGABRT"
# signature = "*reported that it did not change the HLO*"
# [[expect]]
# outcome = "ok"
# ///
"""Two debugging flags of XLA turn the compiler's own bookkeeping errors into aborts.

`noop_change` aborts on a pass that reports a change and made none, `silent_hlo_change` on one that changed the module
and did not say so. Any program will do, since passes of the standard CPU pipeline are at fault. The verdicts swing
back and forth over the versions, so that this is also a test of every bisection: no single edge exists.
"""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--flag", default=os.environ.get("REPRO_FLAG", "noop_change"))
args = parser.parse_args()
os.environ.setdefault("XLA_FLAGS", f"--xla_unsupported_crash_on_hlo_pass_{args.flag}=true")

import jax
import jax.numpy as jnp

assert float(jax.jit(lambda x: jnp.sum(x * 2.0 + 1.0))(jnp.arange(8.0))) == 64.0
print("jit ran", flush=True)
