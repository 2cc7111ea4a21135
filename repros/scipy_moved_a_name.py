# /// repro
# title   = "jax 0.4.23 cannot be imported beside a scipy that came after it"
# issue   = "jax-ml/jax#20565"
# ///
