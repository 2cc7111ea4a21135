# /// repro
# title     = "The collective pipeliner is in the CUDA plugin of every version, and `nm -D` never shows it"
# issue     = "openxla/xla#44228"
# about     = """
# The report took it for a proof that the class is gone that `nm -D` finds no `CollectivePipeliner` in 0.10.1, and the
# strings in 0.4.38 for a proof that it was there. What is true: `nm -D`, which lists what a library exports, finds none
# in any version, 0.4.38 included; the strings are in all of them alike; and the full symbol table (`nm`) holds names of
# the class in every version: 72 in 0.4.38 and 0.6.0, 27 in 0.6.2, 19 in 0.8.0, 20 from 0.10.0 to 0.10.2. The flags for
# all-reduce, all-gather, reduce-scatter and point-to-point are accepted by all; what is really gone are two flags beside
# them: `xla_gpu_enable_pipelined_collectives` after 0.5.3, and `xla_gpu_run_post_layout_collective_pipeliner`, which
# openxla/xla#17950 removed on purpose before 0.4.35."""
# probe     = true
# timeout   = "2m"
# jax       = ["0.4.38", "0.6.0", "0.6.2", "0.8.0", "0.10.0", "0.10.1", "0.10.2"]
# cuda      = ["12-local"]
# libraries = ["jax-cuda12-pjrt"]
# strings   = ["collective-pipeliner-forward", "collective-pipeliner-backward", "collective-pipeliner-forwardsink"]
# symbols   = ["CollectivePipeliner"]
# flags     = [
#   "xla_gpu_enable_pipelined_all_reduce",
#   "xla_gpu_enable_pipelined_all_gather",
#   "xla_gpu_enable_pipelined_reduce_scatter",
#   "xla_gpu_enable_pipelined_p2p",
#   "xla_gpu_enable_pipelined_collectives",
#   "xla_gpu_run_post_layout_collective_pipeliner",
# ]
# [[expect]]
# when    = "jax == 0.4.38"
# outcome = "ok"
# [expect.metrics]
# "symtab/CollectivePipeliner" = 72
# "dynsym/CollectivePipeliner" = 0
# "strings/collective-pipeliner-forward" = 2
# "strings/collective-pipeliner-backward" = 1
# "strings/collective-pipeliner-forwardsink" = 1
# "flag/xla_gpu_enable_pipelined_all_reduce" = 1
# "flag/xla_gpu_enable_pipelined_all_gather" = 1
# "flag/xla_gpu_enable_pipelined_reduce_scatter" = 1
# "flag/xla_gpu_enable_pipelined_p2p" = 1
# "flag/xla_gpu_enable_pipelined_collectives" = 1
# "flag/xla_gpu_run_post_layout_collective_pipeliner" = 0
# [[expect]]
# when    = "jax == 0.6.0"
# outcome = "ok"
# [expect.metrics]
# "symtab/CollectivePipeliner" = 72
# "dynsym/CollectivePipeliner" = 0
# "strings/collective-pipeliner-forward" = 2
# "strings/collective-pipeliner-backward" = 1
# "strings/collective-pipeliner-forwardsink" = 1
# "flag/xla_gpu_enable_pipelined_all_reduce" = 1
# "flag/xla_gpu_enable_pipelined_all_gather" = 1
# "flag/xla_gpu_enable_pipelined_reduce_scatter" = 1
# "flag/xla_gpu_enable_pipelined_p2p" = 1
# "flag/xla_gpu_enable_pipelined_collectives" = 0
# "flag/xla_gpu_run_post_layout_collective_pipeliner" = 0
# [[expect]]
# when    = "jax == 0.6.2"
# outcome = "ok"
# [expect.metrics]
# "symtab/CollectivePipeliner" = 27
# "dynsym/CollectivePipeliner" = 0
# "strings/collective-pipeliner-forward" = 2
# "strings/collective-pipeliner-backward" = 1
# "strings/collective-pipeliner-forwardsink" = 1
# "flag/xla_gpu_enable_pipelined_all_reduce" = 1
# "flag/xla_gpu_enable_pipelined_all_gather" = 1
# "flag/xla_gpu_enable_pipelined_reduce_scatter" = 1
# "flag/xla_gpu_enable_pipelined_p2p" = 1
# "flag/xla_gpu_enable_pipelined_collectives" = 0
# "flag/xla_gpu_run_post_layout_collective_pipeliner" = 0
# [[expect]]
# when    = "jax == 0.8.0"
# outcome = "ok"
# [expect.metrics]
# "symtab/CollectivePipeliner" = 19
# "dynsym/CollectivePipeliner" = 0
# "strings/collective-pipeliner-forward" = 2
# "strings/collective-pipeliner-backward" = 1
# "strings/collective-pipeliner-forwardsink" = 1
# "flag/xla_gpu_enable_pipelined_all_reduce" = 1
# "flag/xla_gpu_enable_pipelined_all_gather" = 1
# "flag/xla_gpu_enable_pipelined_reduce_scatter" = 1
# "flag/xla_gpu_enable_pipelined_p2p" = 1
# "flag/xla_gpu_enable_pipelined_collectives" = 0
# "flag/xla_gpu_run_post_layout_collective_pipeliner" = 0
# [[expect]]
# outcome = "ok"
# [expect.metrics]
# "symtab/CollectivePipeliner" = 20
# "dynsym/CollectivePipeliner" = 0
# "strings/collective-pipeliner-forward" = 2
# "strings/collective-pipeliner-backward" = 1
# "strings/collective-pipeliner-forwardsink" = 1
# "flag/xla_gpu_enable_pipelined_all_reduce" = 1
# "flag/xla_gpu_enable_pipelined_all_gather" = 1
# "flag/xla_gpu_enable_pipelined_reduce_scatter" = 1
# "flag/xla_gpu_enable_pipelined_p2p" = 1
# "flag/xla_gpu_enable_pipelined_collectives" = 0
# "flag/xla_gpu_run_post_layout_collective_pipeliner" = 0
# ///
"""The string of the forward pass is found twice: that of `collective-pipeliner-forwardsink` begins with it. Whether and
what the passes do, `collective_pipeliner` tells.
"""
