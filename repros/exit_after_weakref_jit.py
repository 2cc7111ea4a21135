# /// repro
# title   = "The interpreter crashes at exit when a weak dictionary holds a jitted function"
# issue   = "jax-ml/jax#30517"
# targets = ["cpu"]
# timeout = "2m"
# jax     = ">=0.6,<0.7.2"
# witness = { output = ["all work done"] }
# [[expect]]
# when    = "jax == 0.7.0"
# outcome = "crash"
# signal  = "SIGSEGV"                              # after the last line of output, at interpreter exit
# [[expect]]
# outcome = "ok"
# ///
"""A jitted function with a static argument is the value, and the argument the key, of a `WeakKeyDictionary`."""

import weakref

import jax

kept = weakref.WeakKeyDictionary()


def register():
    def key(_):
        pass

    def inner(_):
        pass

    inner = kept[key] = jax.jit(inner, static_argnums=0)
    inner(key)


register()
print("all work done", flush=True)
