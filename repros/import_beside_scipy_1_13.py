# /// repro
# title    = "jax 0.4.23 cannot be imported beside scipy 1.13"
# issue    = "jax-ml/jax#20565"
# targets  = ["cpu"]
# timeout  = "2m"
# jax      = ["0.4.23"]
# packages = ["scipy==1.13.0"]                     # newer than that jax, whose own range allows it
# [[expect]]
# outcome     = "error"
# exit_status = 1
# signature   = "*has no attribute 'tril'*"
# ///
"""The fault is a dependency's: scipy 1.13 removed a name that jax 0.4.23 imports. See `import_beside_scipy_1_12.py`."""

import jax.scipy.linalg
import scipy

print("imported beside scipy", scipy.__version__, flush=True)
