"""Compiles a repro's `program` for GPUs that are not there, with the CUDA plugin of the environment it runs in.

    python compile.py SCRIPT DESCRIPTION --topology 1x1x8 [--autotune FILE] [-- --per_dev 2048 ...]

SCRIPT offers `program(devices, **params) -> (jitted, args)`; DESCRIPTION is the text proto of the GPU. Standard library
only, Python 3.9 or newer; jax is imported from the environment, after the variables it needs are set. What follows
`--` are the parameters, as the script itself would get them. Nothing is run on a device, and nothing is autotuned.

Exit status: 0 compiled; 1 the script or XLA failed, with the traceback; 2 the command line or the script is wrong;
125 it cannot be compiled without a device, which says nothing of the version.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import re
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, NoReturn

SKIP = 125  # as in `git bisect run`
WRONG = 2

# The tool sets the same from outside (repromatrix/spec/deviceless.py), so that it counts in a cell's identity; by hand
# nothing has to be set.
VARIABLES = {
    "JAX_PLATFORMS": "cpu",  # no backend is asked for a GPU
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # else 0.6.2 to 0.8.0 refuse: "topology not implemented for cuda"
}
NO_AUTOTUNING = "--xla_gpu_autotune_level=0"  # else 0.5.3 to 0.8.0 fail: "Expect autotune result cache hit"
AUTOTUNED = "--xla_gpu_load_autotune_results_from="

# What is said where a device, its driver or its libraries are missing: no failure of the version under test. Only what
# describing, lowering and compiling raise is held against these, never what the script's own code raises before.
UNABLE = (
    # 0.4.30, when the topology is made
    (r"^FAILED_PRECONDITION: No visible GPU devices", "it describes only GPUs that are there"),
    # environments without NVIDIA's compiler: up to 0.6.2, and from 0.8.0
    (r"^INTERNAL: libdevice not found at", "there is no libdevice to compile with"),
    (r"^UNAVAILABLE: No PTX compilation provider is available", "there is no ptxas to compile with"),
    # 0.4.35, for every program; later ones for programs that call back to the host (pure_callback, debug.print)
    (r"^Unknown backend: 'gpu' requested, but no platforms", "this program needs the backend of a GPU that is there"),
    # 0.4.36, for every program
    (r"^NOT_FOUND: could not find registered platform", "its compiler needs the platform of a GPU that is there"),
    # Cholesky up to 0.7.2 (INTERNAL: ...), eig from 0.8.0 (cusolverGetVersion(&version) failed: ...)
    (r"cuSolver internal error$", "it asks cuSOLVER, and there is none"),
    (r"^cuDNN not found\.", "it asks cuDNN, and there is none"),
    # tridiagonal_solve in 0.4.38
    (r"The cuSPARSE library was not found\.$", "it asks cuSPARSE, and there is none"),
    # sorts of bfloat16 in 0.4.38
    (r"CubSortPairs error: Error loading CUDA libraries", "it asks CUB, and there is no CUDA"),
    # memory of the host up to 0.8.0; programs for a single device in 0.8.2, after they were compiled
    (r"can address the following memory kinds: \. Got memory kind", "a described device has no memory kinds"),
    (r"Expect autotune result cache hit for deviceless compilation", "the autotune results have no entry for this HLO"),
)


def wrong(message: str) -> NoReturn:
    print("compile.py: " + message, file=sys.stderr)
    sys.exit(WRONG)


def skip(message: str) -> NoReturn:
    print("cannot compile without a device: " + message, flush=True)
    sys.exit(SKIP)


def reason(error: Exception) -> str:
    """Why this failure is not the version's; empty where it tells nothing of the kind."""
    first = (str(error).splitlines() or [""])[0].strip()
    for pattern, meaning in UNABLE:
        if re.search(pattern, first):
            return "%s (%s)" % (meaning, first)
    return ""


def say(stage: str, since: float) -> None:
    print("%s in %.2f s" % (stage, time.monotonic() - since), flush=True)


def set_variables(autotune: str | None) -> None:
    """Set what jax and XLA read once: before jax is imported, and again after the script may have set its own."""
    os.environ.update(VARIABLES)
    flags = os.environ.get("XLA_FLAGS", "").split()
    for flag in (NO_AUTOTUNING, *([AUTOTUNED + os.path.abspath(autotune)] if autotune else [])):
        if flag not in flags:  # of a flag given twice the last one counts
            flags.append(flag)
    os.environ["XLA_FLAGS"] = " ".join(flags)


# --- the script and its parameters ----------------------------------------------------------------------------------


def load(script: str, parameters: list[str]) -> ModuleType:
    """The script as a module: its top level runs, what stands under `if __name__ == "__main__"` does not."""
    name = os.path.splitext(os.path.basename(script))[0]
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        wrong("%s is no Python script" % script)
    module = importlib.util.module_from_spec(spec)
    sys.argv = [script, *parameters]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pairs(parameters: list[str]) -> dict[str, str]:
    """`--per_dev 2048 --fast=true` as names and texts."""
    found, words = {}, list(parameters)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--") or not (equals or words):
            wrong("after -- there must be pairs like `--per_dev 2048`, not %r" % " ".join(parameters))
        found[name[2:].replace("-", "_")] = value if equals else words.pop(0)
    return found


def convert(text: str, kind: str, name: str) -> Any:
    """A parameter's text as `kind` (int, float, bool, str); as TOML would read it where `kind` is something else."""
    truths = {"true": True, "false": False}
    try:
        if kind in ("int", "float", "bool"):
            return {"int": int, "float": float, "bool": lambda text: truths[text.lower()]}[kind](text)
    except (ValueError, KeyError):
        wrong("parameter %s: %r is no %s" % (name, text, kind))
    if kind == "str":
        return text
    if text in truths:
        return truths[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def arguments(program: Callable[..., Any], texts: dict[str, str]) -> dict[str, Any]:
    """The parameters in the types that the annotations and defaults of `program` tell."""
    known = dict(list(inspect.signature(program).parameters.items())[1:])
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    result = {}
    for name, text in texts.items():
        parameter = known.get(name)
        if parameter is None and not takes_all:
            names = ", ".join(known) or "none"
            wrong("program() takes no parameter %s (it takes: %s); add it, or **others" % (name, names))
        kind: Any = None
        if parameter is not None and parameter.annotation is not parameter.empty:
            kind = parameter.annotation
        elif parameter is not None and parameter.default is not parameter.empty:
            kind = type(parameter.default)
        result[name] = convert(text, kind if isinstance(kind, str) else getattr(kind, "__name__", ""), name)
    return result


# --- compiling ------------------------------------------------------------------------------------------------------


def has_plugin() -> bool:
    names = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
    try:
        return any(importlib.util.find_spec(name) is not None for name in names)
    except ImportError:  # there is no jax_plugins at all
        return False


def describe(description: str, topology: str) -> list[Any]:
    """The devices of the topology, as the plugin makes them from the description."""
    from jax import __version__
    from jax.experimental import topologies

    if not has_plugin():
        skip("no CUDA plugin is installed here (cuda = 12-local or 13-local brings it)")
    since = time.monotonic()
    with open(description, encoding="utf-8") as file:
        text = file.read()
    try:
        made = topologies.get_topology_desc(topology_name="", platform="cuda", target_config=text, topology=topology)
    except Exception as error:
        if known := reason(error):
            skip("jax %s: %s" % (__version__, known))
        raise
    devices = list(made.devices)
    say("%d x %s described" % (len(devices), devices[0].device_kind), since)
    return devices


def compile_for(devices: list[Any], program: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Lower and compile the program for these devices."""
    from jax import __version__

    since = time.monotonic()
    made = program(devices, **given)
    if not isinstance(made, tuple) or len(made) != 2:
        wrong("program() returned %s; expected (jitted, args)" % type(made).__name__)
    if not hasattr(made[0], "lower"):
        wrong("program() returned a %s that cannot be lowered; expected jax.jit(...) first" % type(made[0]).__name__)
    try:
        lowered = made[0].lower(*made[1])
        say("lowered", since)
        since = time.monotonic()
        compiled = lowered.compile()
    except Exception as error:
        if known := reason(error):
            skip("jax %s: %s" % (__version__, known))
        raise
    say("compiled", since)
    print("REPRO_METRIC compile_seconds=%.3f" % (time.monotonic() - since))
    return compiled


def tell(compiled: Any) -> None:
    """Print what the executable tells of itself: its HLO from 0.9.2 on (None before), its memory."""
    try:
        text = compiled.as_text()
    except Exception as error:
        text = None
        print("final HLO: not told (%s)" % (str(error).splitlines() or [type(error).__name__])[0])
    if text:
        counts: dict[str, int] = {}
        for opcode in re.findall(r"(?m)^\s+(?:ROOT )?%\S+ = .*?[\])}] ([a-z][a-z0-9-]*)\(", text):
            counts[opcode] = counts.get(opcode, 0) + 1
        print("final HLO: " + ", ".join("%s %d" % pair for pair in sorted(counts.items())))
        print("REPRO_METRIC hlo_instructions=%d" % sum(counts.values()))
    try:
        print("REPRO_METRIC temp_bytes=%d" % compiled.memory_analysis().temp_size_in_bytes)
    except Exception:  # absent in some versions, None in others; a number less, and no verdict depends on it
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print("REPRO_METRIC peak_mebibytes=%d" % peak, flush=True)


def main() -> None:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Compile a repro's program without a device; parameters follow --.")
    parser.add_argument("script")
    parser.add_argument("description", help="text proto of the GPU")
    parser.add_argument("--topology", required=True, help="partitions x hosts x devices: 1x1x8")
    parser.add_argument("--autotune", help="autotune results to compile with")
    options = parser.parse_args(words[:cut])
    for path in filter(None, (options.script, options.description, options.autotune)):
        if not os.path.isfile(path):
            wrong("no file %s" % path)
    description, parameters = os.path.abspath(options.description), words[cut + 1 :]

    since = time.monotonic()
    set_variables(options.autotune)
    program = getattr(load(options.script, parameters), "program", None)
    if not callable(program):
        wrong("%s has no program(devices, **params), so it cannot be compiled without a device" % options.script)
    given = arguments(program, pairs(parameters))
    set_variables(options.autotune)  # the script may have replaced XLA_FLAGS
    import jax

    jax.config.update("jax_platforms", VARIABLES["JAX_PLATFORMS"])
    say("jax %s imported" % jax.__version__, since)
    tell(compile_for(describe(description, options.topology), program, given))


if __name__ == "__main__":
    main()
