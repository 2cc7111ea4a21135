# /// repro
# title    = "jax 0.4.23 can be imported beside scipy 1.12"
# issue    = "jax-ml/jax#20565"
# targets  = ["cpu"]
# timeout  = "2m"
# jax      = ["0.4.23"]
# packages = ["scipy==1.12.0"]
# witness  = { output = ["imported beside scipy 1.12.0"] }
# [[expect]]
# outcome = "ok"
# ///
"""The good half of the pair: the same jax, one minor version of scipy earlier. See `import_beside_scipy_1_13.py`."""

import jax.scipy.linalg
import scipy

print("imported beside scipy", scipy.__version__, flush=True)
