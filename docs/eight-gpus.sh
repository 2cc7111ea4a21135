#!/bin/sh
# The cells of two reports on a host with eight GPUs, in the order of their worth, for SECONDS at most (570): what is
# finished is kept, and the same command goes on from there. docs/eight-gpus.md has the seconds that each part takes.
#
#     sh docs/eight-gpus.sh [SECONDS]
#
# In a checkout with its tool in .venv, as `restore.pyz` makes it; INVOKE names another `invoke`, ENGINE another engine.
# Exit status: 0 all done, 124 time was up, else the worst that `invoke matrix` ended with (1 a claim did not hold).
set -u
end=$(($(date +%s) + ${1:-570}))
worst=0

part() { # REPRO ENVIRONMENTS TARGETS
    left=$((end - $(date +%s)))
    [ "$left" -gt 0 ] || stop "$@"
    echo "== $1, $2, $3: $left s left"
    timeout --signal=INT --kill-after=20 "$left" "${INVOKE:-.venv/bin/invoke}" matrix --offline \
        --engine "${ENGINE:-venv}" --repro "$1" --env "$2" --target "$3"
    code=$?
    case $code in
    124 | 130 | 137) stop "$@" ;;
    2) exit 2 ;;
    esac
    [ "$code" -le "$worst" ] || worst=$code
}

stop() {
    echo "time is up in: $1, $2, $3; the same command goes on from there" >&2
    exit 124
}

part windowed_einsum 'jax*-cuda13local-py312' gpu:8
part windowed_einsum_table 'jax0.10.[12]-cuda13local-py312' gpu:8
part collective_pipeliner 'jax*-cuda13local-py312' gpu:8
part windowed_einsum_chain 'jax*-cuda13local-py312' gpu:8
part windowed_einsum_table 'jax0.10.0-cuda13local-py312' gpu:8
part 'windowed_einsum*,collective_pipeliner' 'jax0.10.*-cuda13local-py312' gpu:4
part windowed_einsum_table 'jax0.8.0-cuda13local-py312' gpu:8
part 'windowed_einsum*,collective_pipeliner' 'jax0.8.0-cuda13local-py312' gpu:4
part 'windowed_einsum*,collective_pipeliner' 'jax*-cuda13local-py312' gpu:2
exit "$worst"
