"""The failures that a process's output tells of, in order: what `signature.py` names and `outcome.py` judges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from repromatrix.evidence.text import LOG, NOISE

STATUS = (
    "CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|RESOURCE_EXHAUSTED"
    "|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure as the output tells it.

    Attributes:
        kind: `py-exc`, `xla-status`, `absl-fatal`, `check`, `signal`, `oom`, `asan`, `flag` or `setup`.
        site: Where: exception class, status code, file, signal.
        message: Raw text, at most its first paragraph.
        passed: The HLO pass after which it failed, where XLA says.
        fatal: Native code ended the process itself: no exception that something could have caught.
        follows: It says itself that another failure was first, or it is no failure of this process for sure.
        uncaught: A traceback that begins in the main module: the kind that ends a process.
        memory: `host` or `xla`, by who says that memory ran out.
        flags: XLA flags refused, as written.
        parts: What stands between status code and message: file of a RET_CHECK.
    """

    kind: str
    site: str = ""
    message: str = ""
    passed: str = ""
    fatal: bool = False
    follows: bool = False
    uncaught: bool = False
    memory: str = ""
    flags: tuple[str, ...] = ()
    parts: str = ""

    @property
    def waited(self) -> bool:
        """It waited for something in vain, maybe for another process that had failed."""
        return self.site == "DEADLINE_EXCEEDED" or _WAITED.search(self.message) is not None


_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_STATUS = re.compile(rf"^(?P<code>{STATUS})(?:: |:$|$)(?P<rest>.*)", re.DOTALL)
_STATUS_ANYWHERE = re.compile(rf"(?:^|[\s:])(?P<status>(?:{STATUS}): \S.*)")
_RET_CHECK = re.compile(r"RET_CHECK failure \((?P<file>[^():]+):\d+\) ?")
_BRACKET_SITE = re.compile(r"\[(?P<file>\S+/[\w.+-]+\.(?:cc|h|cu|cpp|c)):\d+\] ?")
_PASSED = re.compile(r"\bFailed after (?P<name>[\w.+-]*[\w+-])")
_CALLBACK = re.compile(r"(?:Generated function failed: )?CpuCallback error(?: calling callback)?:")
_FLAGS = re.compile(r"^Unknown flags? in (?P<variable>\w+): (?P<flags>.*)")
_VALUE = re.compile(r"^Couldn't interpret value (?P<value>.*) for flag (?P<flag>[\w-]+)\.?$")
_NOT_A_FILE = re.compile(r'^Could not open file "(?P<text>[^"]*)" to read flags for environment variable')
_CUT = re.compile(
    r"(?:HLO text(?: after| before)?:|\bHloModule \w|Traceback \(most recent call last\)"
    r"|=== Source Location Trace|\n\s*\n|\nusage: ).*",
    re.DOTALL,
)
_MEMORY = re.compile(
    r"\bout of memory\b|\bran out of memory\b|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate \S+ ?(?:bytes|[KMG]i?B)",
    re.IGNORECASE,
)
_FOLLOWS = re.compile(
    r"another task died|see the other task logs|Look at the errors above|Last NCCL warning|another task may have"
    r"|leader task was preempted|[Cc]onnection (?:closed|reset) by (?:remote )?peer|remote process exited|Socket closed"
)
"""What a process says that lost the one it worked with: the death of a rank reaches the others as a closed connection
(Gloo in jaxlib 0.6.2 and 0.10.2: `pair.cc:547] Connection closed by peer`)."""
_WAITED = re.compile(r"Read timeout|[Tt]imed out|DEADLINE_EXCEEDED|[Tt]imeout (?:waiting|of|exceeded)")
_FOLLOWERS = {"CalledProcessError", "BrokenProcessPool", "ProcessRaisedException", "ProcessExitedException"}
_SETUP = re.compile(
    r"jaxlib version \S+ is (?:newer|older) than|^jaxlib is version \S+, but|requires? jaxlib\b|jaxlib to be installed"
    r"|numpy\.\w+ size changed, may indicate binary incompatibility|built using AVX instructions"
    r"|_ARRAY_API not found|numpy\.core\.multiarray failed to import|cannot open shared object file|undefined symbol: "
)
_SETUP_CLASSES = {"ModuleNotFoundError", "ImportError"}
_MEMORY_CLASSES = {"MemoryError", "_ArrayMemoryError", "ArrayMemoryError"}
_RENAMED = {"XlaRuntimeError": "JaxRuntimeError"}  # _jax.XlaRuntimeError until 0.7.2, jax.errors.JaxRuntimeError after

_FAULTS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_ABORTS = re.compile(
    r"^(?:(?P<llvm>LLVM ERROR: .*)|(?P<unreachable>UNREACHABLE executed at .*)"
    r"|(?:\S+: )?(?P<libc>(?:free|malloc|realloc|munmap_chunk|double free or corruption)[ (].*|corrupted size vs.*"
    r"|malloc_consolidate.*|\*\*\* stack smashing detected \*\*\*.*)"
    r"|\S+: (?P<file>[^\s:]+):\d+: .*?Assertion [`'](?P<assertion>.*)' failed\.?)$"
)
_SANITIZER = re.compile(r"(?:ERROR|WARNING): (?P<tool>\w+Sanitizer): (?P<message>.*)")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_ENDS = ("Fatal Python error: ", "terminate called", "-----")  # of a message of several lines
_CHAINED = re.compile(r"^(?:During handling of|The above exception was the direct cause|The stack trace below)")


def failures(text: str) -> list[Failure]:
    """Every complete failure in `text`, in order.

    Lines of two processes that write at once are told apart by line; where they cut each other inside a line, that
    failure is incomplete and left out.
    """
    return list(_Reader([line.rstrip("\r") for line in text.split("\n")]).read())


def status_in(text: str) -> Failure | None:
    """The first XLA status that `text` mentions anywhere in a line: for scripts that catch an error and print it."""
    for line in text.split("\n"):
        if found := _STATUS_ANYWHERE.search(line[:4000]):
            return _raised("JaxRuntimeError", found["status"])
    return None


def last_words(text: str) -> str:
    """The last line that may say why a script ended: the text of `sys.exit("...")`, `usage` errors; else empty."""
    for line in reversed(text.rstrip().split("\n")[-20:]):
        if not NOISE.search(line) and not LOG.search(line) and line[:1] not in ("", " ", "\t"):
            return line[:2000]
    return ""


class _Reader:
    """One pass over the lines; `_traceback` and `_continued` look ahead, never back."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.refused: str = ""  # `flag=value` of the last "Couldn't interpret value"

    def read(self) -> Iterator[Failure]:
        place, ignored = 0, False
        while place < len(self.lines):
            line = self.lines[place][:20_000]
            if "Traceback (most recent call last)" in line:
                found, place = self._traceback(place)
                if found:
                    yield replace(found, follows=found.follows or ignored)
                ignored = False
                continue
            if not line or line.isspace():
                place += 1
                continue
            ignored = line.startswith(("Exception ignored in", "Exception in thread", "A module that was compiled"))
            if found := self._line(line, place):
                yield replace(found, fatal=found.kind != "py-exc")
            place += 1

    def _line(self, line: str, place: int) -> Failure | None:
        if (log := LOG.search(line)) is not None:
            if (refused := _VALUE.match(log["message"])) is not None:
                self.refused = f"--{refused['flag'].lstrip('-')}={refused['value']}"
            return self._fatal(log, place) if "F" in (log["old"], log["new"]) else None
        if line.startswith("Fatal Python error: "):
            words = line.rpartition("Fatal Python error: ")[2].strip()  # of several processes in one line
            if not words:  # cut off: a second thread crashed while the handler wrote (jax 0.10.2, jax-ml/jax#39257)
                return None
            return Failure("signal", _FAULTS[words]) if words in _FAULTS else Failure("signal", "SIGABRT", line)
        if line.startswith("terminate called"):
            following = self.lines[place + 1].strip() if place + 1 < len(self.lines) else ""
            if "std::bad_alloc" in line:
                return Failure("oom", "std::bad_alloc", memory="host")
            return Failure("signal", "SIGABRT", f"{line} {following}" if following.startswith("what():") else line)
        if (abort := _ABORTS.match(line)) is not None:
            if abort["assertion"]:
                return Failure("check", abort["file"], abort["assertion"])
            words = abort["llvm"] or abort["unreachable"] or abort["libc"]
            memory = _MEMORY.search(words) is not None
            return Failure("oom", "LLVM", memory="host") if memory else Failure("signal", "SIGABRT", words)
        if (sanitizer := _SANITIZER.search(line)) is not None:
            return Failure("asan", sanitizer["tool"], re.sub(r"(?: on | of size | \().*", "", sanitizer["message"]))
        if _SYNTAX.match(line):
            name, _, message = line.partition(": ")
            return Failure("py-exc", name, message, uncaught=True)
        return None

    def _fatal(self, log: re.Match[str], place: int) -> Failure:
        site, message = log["file"].rpartition("/")[2], self._continued(log["message"], place)
        if (unknown := _FLAGS.match(message)) is not None:
            # Up to 0.4.38 the list ends with whatever stood last in the variable, known or not: once each is enough.
            flags = tuple(dict.fromkeys(flag for flag in unknown["flags"].split() if flag.startswith("-")))
            return Failure("flag", "unknown", flags=flags or (unknown["flags"].strip(),))
        if (file := _NOT_A_FILE.match(message)) is not None:
            return Failure("flag", "taken for a file name", flags=(file["text"],))
        if "Flag parsing failed" in message and site == "parse_flags_from_env.cc":
            return Failure("flag", "value refused", flags=(self.refused,) if self.refused else ())
        follows = bool(_FOLLOWS.search(message))
        if _MEMORY.search(message):
            return Failure("oom", site, cut(message.removeprefix("Check failed: ")), follows=follows, memory="xla")
        if message.startswith("Check failed: "):
            return Failure("check", site, cut(message.removeprefix("Check failed: ")), follows=follows)
        return Failure("absl-fatal", site, cut(message), passed=_passed(message), follows=follows)

    def _continued(self, message: str, place: int) -> str:
        """A message with its next line where the first only announces it."""
        announces = message.endswith(":") and not _CUT.search(message)
        if (announces or message.startswith("Non-OK-status")) and place + 1 < len(self.lines):
            return f"{message} {self.lines[place + 1].strip()[:2000]}"
        return message

    def _traceback(self, place: int) -> tuple[Failure | None, int]:
        """The exception that a chain of tracebacks ends in, and the place after it."""
        found: Failure | None = None
        first_frame = ""
        while place < len(self.lines):
            start, place = place, place + 1
            opening = self.lines[start].partition("Traceback (most recent call last)")[2]
            frame = re.search(r'File "[^"]*", line \d+, in (.*)', opening)
            first_frame = frame[1] if frame else ""
            while place < len(self.lines) and self._inside(self.lines[place]):
                if not first_frame and (frame := re.search(r'File "[^"]*", line \d+, in (.*)', self.lines[place])):
                    first_frame = frame[1]
                place += 1
            end = self.lines[place] if place < len(self.lines) else ""
            exception = _EXCEPTION.match(_unboxed(end)[:20_000])
            if exception is None:
                return found, max(place, start + 1)
            message, place = self._message(exception["message"] or "", place)
            found = replace(_raised(exception["name"], message), uncaught=first_frame.strip() == "<module>")
            following = self._chained(place)
            if following is None:
                return found, place
            place = following
        return found, place

    @staticmethod
    def _inside(line: str) -> bool:
        bare = _unboxed(line)
        log = LOG.search(line)
        if log is not None:
            return "F" not in (log["old"], log["new"])  # another process died in the midst: that line is complete
        return not bare or bare[0] in " \t"

    def _message(self, first: str, place: int) -> tuple[str, int]:
        """The message that begins in line `place`, with what a callback raised in place of its traceback."""
        place += 1
        if "Traceback (most recent call last)" in first and _CALLBACK.search(first):
            last = min(place + 400, len(self.lines))
            inner = next((n for n in range(place, last) if self.lines[n][:1].strip()), last)
            words = self.lines[inner] if inner < last and _EXCEPTION.match(self.lines[inner]) else ""
            return f"{first.partition('Traceback (most')[0].rstrip()} {words}", min(inner + 1, last)
        lines = [first]
        while place < len(self.lines) and len(lines) < 400:
            line = self.lines[place]
            if "Traceback (most recent call last)" in line or _CHAINED.match(line) or LOG.search(line):
                break
            if line.startswith(_ENDS) or (line.strip() and NOISE.match(line)):
                break
            lines.append(line)
            place += 1
        return "\n".join(lines), place

    def _chained(self, place: int) -> int | None:
        """Where the next traceback of the same chain begins, if one does."""
        chained = False
        for ahead in range(place, min(place + 6, len(self.lines))):
            if "Traceback (most recent call last)" in self.lines[ahead]:
                return ahead if chained else None
            chained = chained or bool(_CHAINED.match(self.lines[ahead]))
        return None


def _unboxed(line: str) -> str:
    """A line without the bars that draw an exception group."""
    return re.sub(r"^(?:  )?[|+] ?", "", line) if line.lstrip().startswith(("|", "+")) else line


def cut(message: str) -> str:
    """The first paragraph, without HLO, nested tracebacks and usage text, which have no bounds."""
    return _CUT.sub("", message[:20_000]).strip().split("\n")[0][:4000]


def _passed(message: str) -> str:
    found = _PASSED.search(message)
    return found["name"] if found else ""


def _raised(name: str, message: str) -> Failure:
    """A Python exception, by what it carries: an XLA status keeps its code whatever class brought it."""
    name = name.rpartition(".")[2]
    name = _RENAMED.get(name, name)
    head = cut(message)
    if name in _MEMORY_CLASSES:
        return Failure("oom", "MemoryError", head, memory="host")
    if (status := _STATUS.match(head)) is not None:
        code, rest = status["code"], status["rest"]
        file = ""
        if (site := _RET_CHECK.search(rest) or _BRACKET_SITE.search(rest)) is not None:
            file = site["file"].rpartition("/")[2]
            rest = rest[: site.start()] + rest[site.end() :]
        rest = _PASSED.sub("", _CALLBACK.sub("CpuCallback error:", rest))
        follows = bool(_FOLLOWS.search(rest))
        if _MEMORY.search(rest):
            return Failure("oom", code, rest, memory="xla", follows=follows, parts=file)
        return Failure("xla-status", code, rest, passed=_passed(message), follows=follows, parts=file)
    if name in _SETUP_CLASSES or _SETUP.search(head):
        return Failure("setup", name, head, follows="_ARRAY_API" in head)  # numpy prints this one and goes on
    return Failure("py-exc", name, head, follows=name in _FOLLOWERS or bool(_FOLLOWS.search(head)))
