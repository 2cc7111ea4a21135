"""Frames out of stack texts: absl, gdb, pystack, AddressSanitizer and faulthandler, made comparable across versions.

A native frame becomes its function without arguments and with templates as `<T>`; a Python frame `file.py function`.
Innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ABSL = re.compile(r"^\s+@\s+0x[0-9a-f]+\s+(?P<name>.+)")
_NUMBERED = re.compile(r"^\s*#(?P<number>\d+)\s+(?:0x[0-9a-f]+ in )?(?P<name>.+)")  # gdb, AddressSanitizer
_SOURCE = re.compile(r" (?:from \S+|at \S+:\d+|/\S+|\(\S+\+0x[0-9a-f]+\).*)$")
_PYSTACK = re.compile(
    r"^\s+\((?:(?P<native>C)|Python)\) File \"(?P<file>[^\"]*)\", line \d+, in"
    r" (?P<name>.+?)(?: \(inlined\))?(?: \([^() ]*\))?$"
)
_FAULT = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<function>.+)$')
_THREAD = re.compile(r"^Traceback for thread (?P<id>\d+)\b")

_DIED = re.compile(r"^(?:__restore_rt|<signal handler called>|abort|__GI_abort|raise|__GI_raise|__pthread_kill\w*)$")
_DULL = re.compile(
    r"^(?:\(unknown\)|\?+|_Z\w+|<signal handler called>|_start|main|start_thread|__?clone3?|__libc_start\w*"
    r"|abort|raise|gsignal|tgkill|__restore_rt|__GI_\w+|__pthread_\w+|pthread_\w+|__futex_\w+|__lll_\w+|syscall|_*poll"
    r"|epoll_wait|select|clock_nanosleep|nanosleep|__(?:mem|str)\w+|_*memcpy\w*|_*memmove\w*|_int_(?:free|malloc)|free"
    r"|malloc|malloc_printerr|operator (?:new|delete).*|_*Py[A-Z_]\w*|_PyEval\w*|py\w+|run_\w+|time_sleep"
    r"|(?:std|__gnu_cxx|__cxxabiv1|nanobind|pybind11|__sanitizer|__asan|__interceptor\w*)(?:::.*)?"
    r"|absl::(?:log_internal|internal_\w+|status_internal|AnyInvocable|FunctionRef|base_internal)\b.*"
    r"|Eigen::(?:ThreadPoolTempl|EventCount).*|tsl::thread::.*|tsl::\(anonymous namespace\)::PThread.*)$"
)
"""Frames that every failure has: what raises, what waits, what starts threads and what carries calls. Grouping on such
a frame makes every failure one bug (oss-fuzz #3787, clusterfuzz #3321)."""

_BROAD = {"xla", "jax", "jaxlib", "absl", "tsl", "stream_executor", "mlir", "llvm", "Eigen", "google", "grpc"}
"""Namespaces too wide to say anything."""


def function(text: str) -> str:
    """The function in a frame as some tool prints it, without return type, arguments, versions and clone suffixes."""
    text = re.sub(r"\babsl::lts_\d+::", "absl::", text.strip())
    if text.startswith("<signal"):
        return text
    text = re.sub(r"@@?[A-Z][\w.]*| \[clone [^\]]*\]|\[abi:\w+\]|::h[0-9a-f]{16}$", "", text)
    text = text.replace("(anonymous namespace)", "\x01").replace("operator()", "operator\x02")
    text = re.sub(r"\{lambda\([^{}]*\)#\d+\}|\$_\d+|'lambda\d*'", "{lambda}", text)
    kept: list[str] = []
    angle = paren = 0
    for place, char in enumerate(text):
        if char == "<" and paren == 0 and not _operator(text, place):
            angle += 1
            if angle == 1:
                kept.append("<T>")
        elif char == ">" and angle and paren == 0 and text[place - 1] != "-":
            angle -= 1
        elif char == "(" and angle == 0:
            paren += 1
        elif char == ")" and paren:
            paren -= 1
        elif angle == 0 and paren == 0:
            kept.append(char)
    name = re.sub(r"(?: (?:const|volatile|&&?|noexcept))+$", "", "".join(kept).strip())
    if not re.search(r"operator (?:new|delete|bool|[a-z])", name):
        name = name.rpartition(" ")[2]  # before it stands the return type of a template
    return name.replace("\x01", "(anonymous namespace)").replace("operator\x02", "operator()") or "(unknown)"


def _operator(text: str, place: int) -> bool:
    return text[:place].rstrip("<").endswith("operator") and not text[:place].endswith("operator\x02")


def _frame(line: str) -> str | None:
    line = line[:20_000]
    if found := _PYSTACK.match(line):
        return function(found["name"]) if found["native"] else python_frame(found["file"], found["name"])
    found = _ABSL.match(line) or _NUMBERED.match(line)
    return function(_SOURCE.sub("", found["name"])) if found else None


def python_frame(file: str, name: str) -> str:
    """`file.py function`: folders and lines differ between machines and versions."""
    return f"{file.rpartition('/')[2] or '?'} {name.strip()}"


def stack_frames(text: str, thread: int | None = None) -> tuple[str, ...]:
    """Frames of the thread that matters, innermost first; empty where `text` holds no stack or does not say whose.

    Args:
        text: What absl, gdb, pystack or AddressSanitizer printed, anything else around it.
        thread: Number of the crashing thread (first NT_PRSTATUS of the core). Without it, in a text of several threads:
            the one that was raising a signal; for a process that did not die, the main thread, which pystack prints
            first.
    """
    lines = text.split("\n")
    threads = [(int(m["id"]), place) for place, line in enumerate(lines) if (m := _THREAD.match(line))]
    if not threads:
        found = [frame for line in _first_stack(lines) if (frame := _frame(line))]
        handler = max((place for place, frame in enumerate(found) if frame.startswith("<signal handler")), default=-1)
        return tuple(found[handler + 1 :])
    ends = [place for _, place in threads[1:]] + [len(lines)]
    stacks = {
        number: tuple(frame for line in reversed(lines[start:end]) if (frame := _frame(line)))
        for (number, start), end in zip(threads, ends, strict=True)
    }
    if thread is not None:
        return stacks.get(thread, ())
    dying = [stack for stack in stacks.values() if any(_DIED.match(frame) for frame in stack[:4])]
    if dying:
        return dying[0]
    return () if "The process died due" in text else next(iter(stacks.values()))


def _first_stack(lines: Sequence[str]) -> list[str]:
    """The first run of frames: a second thread of gdb, a second stack of a sanitizer are another story."""
    stack: list[str] = []
    for line in lines:
        numbered = _NUMBERED.match(line)
        if numbered and numbered["number"] == "0":
            if len(stack) > 1:
                break
            stack = [line]  # gdb prints frame 0 by itself once, before the backtrace
        elif (numbered and stack) or _ABSL.match(line):
            stack.append(line)
        elif stack and _ABSL.match(stack[0]):
            break
    return stack


def fault_frames(text: str) -> tuple[str, ...]:
    """Python frames, innermost first, of the thread that faulthandler calls current; empty where it names none.

    `Thread` without `Current` is the main thread waiting for another: it says nothing of the crash (0.10.2 compiles on
    a pool thread).
    """
    place = text.find("\nCurrent thread 0x") + 1
    if not place and not text.startswith("Current thread 0x"):
        return ()
    frames: list[str] = []
    for line in text[place:].split("\n")[1:]:
        found = _FAULT.match(line)
        if not found:
            break
        frames.append(python_frame(found["file"], found["function"]))
    return tuple(frames)


def is_python(frame: str) -> bool:
    return bool(re.match(r"(?:\S+\.pyx?|<\w+>|\?) \S", frame))


def significant(frames: Iterable[str], count: int = 5) -> tuple[str, ...]:
    """The first `count` native frames that tell one failure from another."""
    told: list[str] = []
    for frame in frames:
        if not is_python(frame) and not _DULL.match(frame) and frame not in told[-1:]:
            told.append(frame)
        if len(told) == count:
            break
    return tuple(told)


def namespace(frame: str) -> str:
    """The outermost namespace of a native frame where it is narrow enough to stand for a component, else empty."""
    outer, colons, _ = frame.partition("::")
    return outer if colons and re.fullmatch(r"[A-Za-z_]\w*", outer) and outer not in _BROAD else ""


def place(frame: str) -> str:
    """A Python frame in words; jax's own doors into XLA by what happens behind them, as their names change."""
    if frame.startswith("compiler.py backend_compile"):
        return "while compiling"
    return "while executing" if frame == "pxla.py __call__" else f"at {frame}"
