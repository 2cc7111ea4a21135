"""The identity of a failure: titles that hold across releases, machines and runs.

A title reads `KIND SITE: MESSAGE`. Kinds:

| kind | site | example |
|---|---|---|
| `py-exc` | exception class without module | `py-exc AttributeError: module 'jax' has no attribute 'make_mesh'` |
| `xla-status` | status code, file of a RET_CHECK, `after PASS` | `xla-status INTERNAL: CpuExecutable has no thunks.` |
| `absl-fatal` | file | `absl-fatal hlo_pass_pipeline.cc: Pass 'layout-assignment' in pipeline ...` |
| `check` | file | `check sharding_propagation.cc: size == N \\|\\| ...` |
| `signal` | signal, frame or Python place | `signal SIGSEGV in slinky::optimize_dims` |
| `oom` | who said it | `oom std::bad_alloc` |
| `oom-kill` | | `oom-kill` |
| `hang` | Python place or native frame | `hang at hang.py cb` |
| `asan` | what was found, frame | `asan heap-use-after-free in xla::Foo` |
| `flag` | what was wrong with it | `flag unknown: --xla_no_such_flag` |
| `setup` | exception class | `setup RuntimeError: jaxlib version N is newer than ...` |
| `exit` | the status | `exit 3: refused` |

Two failures are the same when their sets of titles meet. So an alternative must be as specific as a title: where a
message exists it stays in every title, and frames only replace the file in it; frames alone name a failure only where
there is no message. Otherwise two checks in one function would meet (both of `HloPassPipeline::RunPassesInternal`).

The one place where a name is left out: messages about an HLO pass have an alternative without the names of pass and
pipeline. The title names the pass, as that is what has to be fixed; but which pass breaks a rule first depends on the
release (flatten-call-graph in 0.6.0, layout-assignment in 0.10.2, the same check), and a bisection asks about the
check. A `[[signature]]` rule splits them again where that is wanted.

Of several failures in one text the first complete one counts that a process can die of; see `choose`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from repromatrix.evidence import frames as stacks
from repromatrix.evidence.failure import Failure, failures, last_words, status_in
from repromatrix.evidence.model import Signature
from repromatrix.evidence.text import condense, normalise, shorten
from repromatrix.spec.model import Outcome

VERSION = 3
"""Of the algorithm; raised whenever a title can change, so that kept evidence is signed again."""

HANG = "hang"
"""Title of a hang of which nothing more is known."""

HOST_MEMORY = "oom host memory"
"""Shared by all ways to run out of host memory that do not say where: under a limit an allocation fails, without one
the kernel kills (openxla/xla#41173 ends as std::bad_alloc, SIGKILL or silence, by machine)."""

SIGNALS = {
    4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE",
    15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
"""Signals by number on Linux, for statuses above 128 that a shell passes on."""

_LARGE = 1 << 20
_PASS_NAMES = re.compile(r"(\b[Pp]ass(?:es)?|\bpipeline) (?:'[^']*'|\"[^\"]*\"|`[^`']*[`'])")


def shell_signal(exit_status: int | None) -> str | None:
    """The signal that an exit status stands for when a shell or a launcher passes a child's death on."""
    return SIGNALS.get(exit_status - 128) if exit_status is not None and exit_status > 128 else None


def choose(signal: str | None, exit_status: int | None, stderr: str, stdout: str = "") -> Failure | None:
    """The failure in the output that ended the process.

    A signal comes from what is fatal in native code only: tracebacks before it were caught, except for numpy's report
    of a mismatch, which is why the crash came. An exit status comes from the first fatal message or uncaught exception.
    Failures that say of themselves that another came first count only where there is no other; before they do, a
    status printed on stdout does. Where two processes write into one log, the first failure is the likeliest cause.
    """
    found = failures(stderr)
    if signal is not None and exit_status is None:
        found = [f for f in found if f.fatal or (f.kind == "setup" and f.follows)]
        found = [f for f in found if f.kind != "signal" or f.message]  # faulthandler's words repeat the signal
        return next((f for f in found if not f.follows), found[0] if found else None)
    strong = [f for f in found if not f.follows]
    raised = [f for f in strong if not f.fatal]
    last = raised[-1] if raised and not any(f.uncaught for f in raised) else None
    for failure in strong:
        if failure.fatal or failure.uncaught or failure is last:
            return failure
    printed = [f for f in failures(stdout) if not f.follows]
    return (printed[0] if printed else status_in(stdout)) or (found[0] if found else None)


def before_hang(stderr: str) -> Failure | None:
    """What failed in a process that then hung, if anything did and no other process's end can have been the cause.

    An exception in a script that uses `jax.distributed` does not end it: at exit it waits for the other ranks, which
    wait for it (measured with 0.6.2 and 0.10.2).
    """
    told = (f for f in failures(stderr) if (f.fatal or f.uncaught) and not f.follows)
    return next((f for f in told if f.kind not in ("signal", "flag")), None)  # faulthandler's words are of our SIGABRT


def sign(
    outcome: Outcome,
    signal: str | None,
    stderr: str,
    stdout: str = "",
    frames: Sequence[str] = (),
    *,
    exit_status: int | None = None,
    killed_for_memory: bool = False,
) -> Signature | None:
    """The signature of a failed or refused attempt, None for one that is neither. Never raises.

    Args:
        signal: Name of the signal that ended it, or None.
        frames: Frames of the thread that matters, innermost first, as `frames.stack_frames` gives them; without them
            those that absl and faulthandler left in `stderr` are used.
        exit_status: The script's own status, or None.
        killed_for_memory: The kernel or the supervisor ended it for memory, as they say.
    """
    if outcome in (Outcome.OK, Outcome.INFRA, Outcome.INCONCLUSIVE):
        return None
    stderr, stdout = bounded(stderr), bounded(stdout)
    failure = None if outcome is Outcome.HANG else choose(signal, exit_status, stderr, stdout)
    if outcome is Outcome.SKIP and (failure is None or failure.kind != "flag"):
        return None
    if outcome is Outcome.HANG:
        before = before_hang(stderr)
        return _titled([*_hang(frames, stderr), *(_titles(before, ()) if before else ())])
    native = _native(frames, stderr)
    if killed_for_memory and (failure is None or not failure.memory):
        return _titled(["oom-kill", HOST_MEMORY])
    if failure is not None and not (failure.kind == "signal" and not failure.message):
        # A sanitizer's own report knows the place better than the core, which shows the sanitizer.
        return _titled(_titles(failure, _native((), stderr) or native if failure.kind == "asan" else native))
    ended = signal or shell_signal(exit_status) or (failure.site if failure else None)
    if ended is not None:
        return _titled(_signal(ended, native, _python(frames) or stacks.fault_frames(stderr)))
    words = last_words(stderr)
    return _titled([f"exit {'?' if exit_status is None else exit_status}" + (f": {words}" if words else "")])


def bounded(text: str) -> str:
    """`text`, or where it is very long the parts that can hold a failure."""
    return condense(io.BytesIO(text.encode("utf-8", "replace"))) if len(text) > _LARGE else text


def _titled(titles: Sequence[str]) -> Signature:
    unique = tuple(dict.fromkeys(shorten(title) for title in titles))
    return Signature(unique[0], unique[1:], VERSION)


def _titles(failure: Failure, native: Sequence[str]) -> list[str]:
    """The title of a failure that has a message, and its alternatives."""
    kind, site, message = failure.kind, failure.site, failure.message
    if kind == "flag":
        return [_join("flag", site, " ".join(_flag(flag, site) for flag in failure.flags))]
    if kind == "asan":
        return [f"asan {message}" + (f" in {native[0]}" if native else "")]
    if kind == "signal":
        return [f"signal {site}: {message}"]
    if kind == "oom":
        general = [HOST_MEMORY] if failure.memory == "host" and not message else []
        return [_join("oom", site, failure.parts, message), *general]
    after = f"after {failure.passed}" if failure.passed else ""
    titles = [_join(kind, site, failure.parts, after, message)]
    general_message = _PASS_NAMES.sub(r"\1 *", normalise(message))
    if after or general_message != normalise(message):
        titles.append(_join(kind, site, failure.parts, general_message))
    if kind == "xla-status":
        titles.append(f"{site} {message}")  # so that a claim can begin with the code, `FAILED_PRECONDITION *`
    if native and kind in ("absl-fatal", "check"):
        titles.append(_join(kind, "in " + native[0], general_message))
    return titles


def _join(*parts: str) -> str:
    """`a b c: message` of what is not empty; the last part is the message."""
    return ": ".join(filter(None, [" ".join(filter(None, parts[:-1])), parts[-1]]))


def _flag(flag: str, site: str) -> str:
    """An unknown flag is unknown whatever its value."""
    return flag.partition("=")[0] if site == "unknown" else flag


def _native(frames: Sequence[str], stderr: str) -> tuple[str, ...]:
    return stacks.significant(frames) or stacks.significant(stacks.stack_frames(stderr))


def _python(frames: Sequence[str]) -> tuple[str, ...]:
    return tuple(frame for frame in frames if stacks.is_python(frame))


def _signal(name: str, native: Sequence[str], python: Sequence[str]) -> list[str]:
    """Titles of a death without a message: the native frame where one is known, else the Python place.

    The Python place is the last alternative of the native one: in a run whose core was lost nothing else is known.
    """
    placed = [f"signal {name} {_place(python)}"] if python else []
    if not native:
        return placed or [f"signal {name}"]
    outer = stacks.namespace(native[0])
    titles = [f"signal {name} in {native[0]}", f"signal {name} in {' | '.join(native[:3])}"]
    # Inlining moves frame 0 between machines, not out of its component (jax#40412: optimize_dims or can_fuse).
    return [*titles, *([f"signal {name} in {outer}::*"] if outer else []), *placed]


def _hang(frames: Sequence[str], stderr: str) -> list[str]:
    """Titles of a hang: where Python waits and from where in the script, else the native frame, else nothing is known.

    jax's inner frames are renamed between releases and waiting has few doors, so the place in the script is an
    alternative.
    """
    if python := _python(frames) or (() if stacks.significant(frames) else stacks.fault_frames(stderr)):
        own = _own(python)
        return [f"{HANG} {_place(python)}", *([f"{HANG} from {own}"] if own else [])]
    native = stacks.significant(frames)
    return [f"{HANG} in {native[0]}"] if native else [HANG]


def _place(python: Sequence[str]) -> str:
    own = _own(python)
    return stacks.place(python[0]) + (f" from {own}" if own and own != python[0] else "")


def _own(python: Sequence[str]) -> str:
    """The innermost frame in the script's file, that of the outermost frame; empty where that is cut off. In a thread
    the outermost frame is that of what `threading` or `concurrent.futures` runs."""
    outer = [frame for frame in python if not frame.startswith(("threading.py ", "thread.py "))]
    in_thread = python[-1] == "threading.py _bootstrap"
    script, _, function = (outer if in_thread and outer else python)[-1].partition(" ")
    told = function == "<module>" or (in_thread and outer)
    return next(frame for frame in python if frame.startswith(f"{script} ")) if told else ""
