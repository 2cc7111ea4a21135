"""Frames out of stack texts: absl, gdb, pystack, py-spy, AddressSanitizer and faulthandler, comparable across versions.

A native frame becomes its function without arguments and with templates as `<T>`; a Python frame `file.py function`.
Innermost first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from operator import itemgetter

_ABSL = re.compile(r"^\s+@\s+0x[0-9a-f]+\s+(?P<name>.+)")
_NUMBERED = re.compile(r"^\s*#(?P<number>\d+)\s+(?:0x[0-9a-f]+ in )?(?P<name>.+)")  # gdb, AddressSanitizer
_SOURCE = re.compile(r" (?:from \S+|at \S+:\d+|/\S+|\(\S+\+0x[0-9a-f]+\).*)$")
_PYSTACK = re.compile(
    r"^\s+\((?:(?P<native>C)|Python)\) File \"(?P<file>[^\"]*)\", line \d+, in"
    r" (?P<name>.+?)(?: \(inlined\))?(?: \((?P<library>[^() ]*)\))?$"
)
_SPY = re.compile(r"^    (?P<name>\S.*) \((?P<file>[^()]*?)(?::\d+)?\)$")
_FAULT = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<function>.+)$')
_FAULT_THREAD = re.compile(r"^Thread 0x[0-9a-f]+", re.MULTILINE)
_THREAD = re.compile(r"^Traceback for thread (?P<id>\d+)\b")
_SPY_THREAD = re.compile(r"^Thread (?:0x[0-9A-Fa-f]+|(?P<id>\d+)) \((?:active|idle)[^()]*\)")

_DIED = re.compile(r"^(?:__restore_rt|<signal handler called>|abort|__GI_abort|raise|__GI_raise|__pthread_kill\w*)$")
_HANDLER = ("<signal handler called>", "__restore_rt")
"""What is called from here is no part of the failure: the handler of faulthandler, of absl, of the script."""

_INTERPRETER = re.compile(r"(?:.*/)?(?:libpython[\w.-]*|python[\d.]*|_ctypes\.[\w.-]+|libffi[\w.-]*)$")
"""Files whose native frames only carry calls: the Python frames say more, and the functions are renamed each year."""

_DULL = re.compile(
    r"^(?:\(unknown\)|\?+|_Z\w+|<signal handler called>|_start|main|start_thread|__?clone3?|__libc_start\w*"
    r"|abort|raise|gsignal|tgkill|__restore_rt|__GI_\w+|__pthread_\w+|pthread_\w+|__futex_\w+|__lll_\w+|syscall|_*poll"
    r"|epoll_wait|select|clock_nanosleep|nanosleep|__(?:mem|str)\w+|_*memcpy\w*|_*memmove\w*|_int_(?:free|malloc)|free"
    r"|malloc|malloc_printerr|operator (?:new|delete).*|_*Py[A-Z_]\w*|_PyEval\w*|py\w+|run_\w+|time_sleep"
    r"|faulthandler_\w+|ffi_call\w*|_ctypes_\w+|__(?:internal_)?syscall\w*|futex_\w+|(?:__new_)?sem_\w+"
    r"|_*(?:pause|waitpid|wait4|sigsuspend|ppoll|pselect\w*|accept4?|recv\w*|read|sleep|usleep)|AbslInternal\w+"
    r"|(?:std|__gnu_cxx|__cxxabiv1|nanobind|pybind11|__sanitizer|__asan|__interceptor\w*)(?:::.*)?"
    r"|absl::(?:log_internal|internal_\w+|status_internal|AnyInvocable|FunctionRef|base_internal)\b.*"
    r"|absl::(?:synchronization_internal|Mutex|Notification|CondVar|BlockingCounter)\b.*"
    r"|tsl::internal::(?:LogMessage\w*|Check\w*)\b.*"
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
    before = text[max(0, place - 12) : place]
    return before.rstrip("<").endswith("operator") and not before.endswith("operator\x02")


def _frame(line: str) -> str | None:
    line = line[:20_000]
    if found := _PYSTACK.match(line):
        if not found["native"]:
            return python_frame(found["file"], found["name"])
        return None if _INTERPRETER.match(found["library"] or "") else function(found["name"])
    found = _ABSL.match(line) or _NUMBERED.match(line)
    return function(_SOURCE.sub("", found["name"])) if found else None


def _spy_frame(line: str) -> str | None:
    found = _SPY.match(line[:20_000])
    if found is None:
        return None
    is_script = re.search(r"\.pyx?$|^<.*>$", found["file"])
    return python_frame(found["file"], found["name"]) if is_script else function(found["name"])


def python_frame(file: str, name: str) -> str:
    """`file.py function`: folders, lines and, in some tools only, the class around a function are left out."""
    return f"{file.rpartition('/')[2] or '?'} {name.strip().rpartition('.')[2] or '?'}"


def stack_frames(text: str, thread: int | None = None) -> tuple[str, ...]:
    """Frames of the thread that matters, innermost first; empty where `text` holds no stack or does not say whose.

    What a signal handler called is cut off, and so is what carries calls within the interpreter.

    Args:
        text: What absl, gdb, pystack, py-spy or AddressSanitizer printed, anything else around it.
        thread: Number of the crashing thread (first NT_PRSTATUS of the core). Without it, in a text of several threads:
            the one that was raising a signal; for a process that did not die, the main thread, whose number is the
            lowest (pystack prints threads in no order).
    """
    lines = text.split("\n")
    threads = list(_threads(lines))
    if not threads:
        return _interrupted([frame for line in _first_stack(lines) if (frame := _frame(line))])
    if thread is not None:
        stack = next((_interrupted(stack) for number, stack in threads if number == thread), ())
        return _worker(threads) or stack if _ENDING.intersection(stack) else stack
    dying = next((stack for _, stack in threads if any(_DIED.match(frame) for frame in stack[:4])), None)
    if dying is not None:
        return _interrupted(dying)
    if "The process died due" in text:
        return ()
    stack = _interrupted(min(threads, key=itemgetter(0))[1])
    return _worker(threads) or stack if _ENDING.intersection(stack) else stack


_ENDING = {"threading.py _shutdown", "thread.py _python_exit"}
"""Where a main thread that has come to its end waits for the others."""


def _worker(threads: Sequence[tuple[int, list[str]]]) -> tuple[str, ...]:
    """The first other thread that runs Python: what a main thread waits for that has come to its end."""
    others = (_interrupted(stack) for _, stack in sorted(threads, key=itemgetter(0)))
    return next((s for s in others if "threading.py _bootstrap" in s and not _ENDING.intersection(s)), ())


def _threads(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number and frames, innermost first, of each thread that pystack (innermost last) or py-spy printed."""
    starts = [place for place, line in enumerate(lines) if _THREAD.match(line) or _SPY_THREAD.match(line)]
    for start, end in pairwise([*starts, len(lines)]):
        if (found := _THREAD.match(lines[start])) is not None:
            stack = [frame for line in reversed(lines[start + 1 : end]) if (frame := _frame(line))]
        elif (found := _SPY_THREAD.match(lines[start])) is not None:
            stack = [frame for line in lines[start + 1 : end] if (frame := _spy_frame(line))]
        else:
            continue
        yield int(found["id"] or 0), stack


def _interrupted(stack: Sequence[str]) -> tuple[str, ...]:
    """The stack from where a signal came in."""
    handler = max((place for place, frame in enumerate(stack) if frame in _HANDLER), default=-1)
    return tuple(stack[handler + 1 :])


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
    frames = _fault_stack(text[place:])
    if not _ENDING.intersection(frames):
        return frames
    # The oldest thread is printed last.
    others = [_fault_stack(text[found.start() :]) for found in _FAULT_THREAD.finditer(text)]
    return next((s for s in reversed(others) if "threading.py _bootstrap" in s and not _ENDING.intersection(s)), frames)


def _fault_stack(text: str) -> tuple[str, ...]:
    """The stack below the first line of `text`."""
    found = takewhile(bool, map(_FAULT.match, text.split("\n")[1:]))
    return tuple(python_frame(_unescaped(f["file"]), _unescaped(f["function"])) for f in found if f)


def _unescaped(text: str) -> str:
    """A name as it was before faulthandler, which may not encode in a handler, wrote `caf\\xe9.py`."""
    escape = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(000[0-9a-f]{5}|0010[0-9a-f]{4}))"
    return re.sub(escape, lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)


def is_python(frame: str) -> bool:
    return bool(re.match(r"(?:[^<>()]+\.pyx?|<[^<>]+>|\?) \S", frame))


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
