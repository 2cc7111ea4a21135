"""Reads the stacks of living processes and of core files: a helper of supervise.py, which starts it beside an attempt.

    python3 -I -S stacks.py live|core FOLDER REQUEST

Standard library only, Python 3.9 or newer, Linux; the tools (pystack, py-spy) lie in a folder of their own, so that the
environment under test stays as it is locked. Writes `stacks/<pid>.txt` and, whole after every process, `stacks.json`
into FOLDER (its fields: repromatrix/evidence/stacks.py). The supervisor may kill it at any time.

REQUEST is a JSON object:
    tools   folder of the tools, or null
    ranks   pid of each rank
    command that the ranks were started with (optional)
    limit   seconds for all of it
    pids    live: processes to read, the important ones first
    cores   core: "stacks" (a core is deleted once it was read) or "keep"
    cap     core: bytes that a core could take on the disk, or null
    work    core: folder that the script was started in
    places  core: folders where the ranks were seen last
    since   core: Unix time of the attempt's start
    died    core: of each rank that should have left one `pid`, `signal`, `core` (the kernel says that it did), `held`

Exit status: 0 stacks.json says everything, 100 + errno it could not be written.
"""

from __future__ import annotations

import ctypes
import fnmatch
import glob
import itertools
import json
import os
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from typing import Any, Iterator, NamedTuple

PROCESSES = 16  # living processes read; pystack needs 0.2 s for a small one and 1.3 s for JAX
ONE_LIVE, ONE_CORE = 10.0, 30.0  # seconds for one process, for one core; a tool that needs more is stuck
CHILD_CORES = 4  # cores of children that are read or kept, the earliest: what came first is rather the cause
ENTRIES = 20000  # names looked at while cores are searched
TEXT = 16 << 20  # bytes that the stacks of one process may have
MEMORY = 4 << 30  # bytes of heap that a tool may take; cores are mapped read-only, which RLIMIT_DATA does not count
HEAD = 1 << 20  # bytes read of a core's notes: what is looked for comes first (elf_core_dump in fs/binfmt_elf.c)
NOTES, WORDS, COMMAND = 20, 300, 200  # notes kept, characters of one, characters of a command line
PYSTACK = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pystack.__main__ import main; main()"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ET_CORE, PT_NOTE, PN_XNUM, NT_PRSTATUS, NT_PRPSINFO = 4, 4, 0xFFFF, 1, 3  # elf(5)
MACHINES = (62, 183)  # x86_64 and aarch64: their notes have the layout that is read here
SIGNALS = {number.value: number.name for number in signal.Signals}


def read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(65536)
    return ""


class Index:
    """What stacks.json says, and the files beside it. A script that still runs may tamper with all of them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            before = json.loads(read(os.path.join(folder, "stacks.json")))  # of the call for the living
            self.stacks: list[dict[str, Any]] = [dict(entry) for entry in before["stacks"]]
            self.notes = [str(note) for note in before["notes"]]
        except (ValueError, KeyError, TypeError):
            self.stacks, self.notes = [], []
        self.cores: list[dict[str, Any]] = []

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES:
            self.notes.append(text[:WORDS])

    def text(self, name: str) -> int:
        """Open a text of stacks/ to write and read."""
        place = os.path.join(self.folder, "stacks")
        os.makedirs(place, exist_ok=True)
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=folder)

    def write(self, last: bool = False) -> None:
        """Write what is known so far. On a full disk only the last call may fail: a core may have made room by then."""
        path = os.path.join(self.folder, "stacks.json")
        content = {"schema": 1, "stacks": self.stacks, "cores": self.cores, "notes": self.notes}
        with nullcontext() if last else suppress(OSError):
            fd = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.rename(path + ".part", path)


def confine() -> None:
    """In the child, before it becomes the tool."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for what, limit in ((resource.RLIMIT_FSIZE, TEXT), (resource.RLIMIT_DATA, MEMORY)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def run_tool(argv: list[str], seconds: float, out: int) -> str:
    """Run a tool with its output to `out`; what went wrong, or nothing."""
    errors = os.memfd_create("errors")  # not a pipe: a tool that talks without end fills a file with a limit
    try:  # a tool that is killed lets the processes that it has stopped run on, ptrace(2)
        done = subprocess.run(argv, check=False, stdout=out, stderr=errors, preexec_fn=confine, timeout=seconds)
        said = os.pread(errors, 65536, 0).decode(errors="replace")
    except subprocess.TimeoutExpired:
        return "no answer within %.0f s" % seconds
    except OSError as error:
        return str(error)
    finally:
        os.close(errors)
    lines = [line.strip(" \U0001f480") for line in said.splitlines() if line.strip() and "WARNING(" not in line]
    first = -1 if said.startswith("Traceback (") else 0  # of the tool itself: its last line says what
    return "" if done.returncode == 0 else lines[first] if lines else "status %d" % done.returncode


def take(index: Index, pid: int, tools: list[tuple[str, list[str], bytes]], limit: float) -> dict[str, Any]:
    """The text of the first tool that can, as fields of a `Stack` of evidence/stacks.py. A tool is a name, a command
    line, and what its text must contain."""
    troubles, name = [], "%d.txt" % pid
    for left, (tool, argv, mark) in zip(range(len(tools), 0, -1), tools):
        seconds, text = (limit - time.monotonic()) / left**0.5, b""
        try:
            fd = index.text(name)
            trouble = run_tool(argv, seconds, fd) if seconds > 0.1 else "there was no time left"
            text = os.pread(fd, TEXT, 0)
            os.close(fd)
        except OSError as error:
            trouble = str(error)
        if re.search(mark, text):
            return {"tool": tool, "file": "stacks/" + name, "trouble": trouble and "not whole: %s" % trouble[:WORDS]}
        troubles.append("%s: %s" % (tool, trouble or "it found no thread"))
    with suppress(OSError):
        os.unlink(os.path.join(index.folder, "stacks", name))
    return {"tool": "", "file": "", "trouble": "; ".join(troubles)[:WORDS]}


def pystack(tools: str, *args: str) -> tuple[str, list[str], bytes]:
    argv = [sys.executable, "-I", "-S", "-c", PYSTACK, tools, args[0], "--native-all", *args[1:]]
    return "pystack", argv, rb"(?m)^Traceback for thread "


def live(index: Index, request: dict[str, Any]) -> None:
    """Every process of a hang, while it still runs."""
    if not request["tools"]:
        index.note("the tools that read stacks are not there: none were taken at the deadline")
        return
    end = time.monotonic() + request["limit"]
    pids = [pid for pid in request["pids"] if read("/proc/%d/cmdline" % pid)]  # a zombie has none
    if len(pids) > PROCESSES:
        index.note("stacks of %d of %d processes were taken" % (PROCESSES, len(pids)))
    for pid in pids[:PROCESSES]:
        py_spy = [os.path.join(request["tools"], "bin", "py-spy"), "dump", "--pid", str(pid)]
        ways = [pystack(request["tools"], "remote", str(pid)), ("py-spy", py_spy, rb"(?m)^Thread ")]
        command = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip()[:COMMAND]
        found = take(index, pid, ways, min(end, time.monotonic() + ONE_LIVE))
        scope = read("/proc/sys/kernel/yama/ptrace_scope").strip()
        if "ermi" in found["trouble"] and scope not in ("", "0"):  # permitted, Permission
            found["trouble"] = "kernel.yama.ptrace_scope is %s; %s" % (scope, found["trouble"])
        index.stacks.append(stack(request, pid, command, "live", found))
        index.write()


def stack(request: dict[str, Any], pid: int, command: str, source: str, text: dict[str, Any]) -> dict[str, Any]:
    rank = request["ranks"].index(pid) if pid in request["ranks"] else None
    if rank is not None and request.get("command", "").startswith(command):
        command = request["command"][:COMMAND]  # a core holds 79 characters of it, less than many a venv's path
    return {"pid": pid, "rank": rank, "command": command, "source": source, "thread": None, "signal": "", **text}


class Dump(NamedTuple):
    """A core file: whose it is, and how much of it there is."""

    path: str
    pid: int
    thread: int
    signal: str
    command: str
    status: os.stat_result
    cut: bool


def examine(path: str) -> Dump | None:
    """What the headers and the first notes say; None for what is no core, ValueError for one that is not understood."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        header = os.pread(fd, 64, 0) if stat.S_ISREG(status.st_mode) else b""
        if header[:4] != b"\x7fELF" or len(header) < 64:
            return None
        kind, machine = struct.unpack_from("<HH", header, 16)
        if header[4:6] != b"\2\1" or machine not in MACHINES:
            raise ValueError("is of a machine other than x86_64 and aarch64")
        if kind != ET_CORE:
            return None
        (offset, size), end = segments(fd, header)
        thread, number, pid, command = process(os.pread(fd, min(size, HEAD), offset))
    finally:
        os.close(fd)
    return Dump(path, pid, thread, SIGNALS.get(number, "SIG%d" % number), command, status, end > status.st_size)


def segments(fd: int, header: bytes) -> tuple[tuple[int, int], int]:
    """Where the notes lie (offset, size), and where a whole file would end."""
    table, sections, count = struct.unpack_from("<QQ8xH", header, 32)
    notes, end = (0, 0), 0
    if count == PN_XNUM:  # more than fit: section 0, at the very end of the file, has the number
        end = sections + 64
        count = int.from_bytes(os.pread(fd, 4, sections + 44), "little") or count
    count = min(count, 1 << 20)  # vm.max_map_count allows 65530 unless it was raised
    end = max(end, table + 56 * count)
    for start in range(0, count, 4096):
        rows = os.pread(fd, 56 * min(4096, count - start), table + 56 * start)
        for kind, _, offset, _, _, size, _, _ in struct.iter_unpack("<IIQQQQQQ", rows[: len(rows) // 56 * 56]):
            end = max(end, offset + size)
            if kind == PT_NOTE and not notes[1]:
                notes = (offset, size)
    return notes, end


def process(notes: bytes) -> tuple[int, int, int, str]:
    """(crashed thread, its signal, pid, command line): the kernel writes the thread that crashed first."""
    thread, number, pid, command, at = 0, 0, 0, "", 0
    while at + 12 <= len(notes) and not (thread and pid):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        at += 12 + (name_size + 3) // 4 * 4
        data = notes[at : at + size]
        if kind == NT_PRSTATUS and not thread and size >= 36 and len(data) == size:
            (number,), (thread,) = struct.unpack_from("<h", data, 12), struct.unpack_from("<i", data, 32)
        elif kind == NT_PRPSINFO and size >= 136 and len(data) == size:
            (pid,) = struct.unpack_from("<i", data, 24)
            command = data[56:136].rstrip(b"\0 ").decode(errors="replace")
        at += (size + 3) // 4 * 4
    if not thread or not pid:
        raise ValueError("ends before it says whose it is")
    return thread, number, pid, command


def core_name() -> tuple[str, str]:
    """core_pattern, and the glob that its files match: core(5). It is read, never written: it belongs to the host."""
    pattern = read("/proc/sys/kernel/core_pattern").strip()
    parts = re.split("(%.)", pattern)
    wild = "".join("%" if part == "%%" else "*" if part[:1] == "%" else glob.escape(part) for part in parts)
    uses_pid = read("/proc/sys/kernel/core_uses_pid").strip() == "1" and "%p" not in parts
    return pattern, wild + ".*" if uses_pid else wild


def candidates(folder: str, work: str, places: list[str], pattern: str, wild: str) -> Iterator[str]:
    """Files that may be cores of this attempt."""
    yield from glob.glob(os.path.join(glob.escape(folder), "core.[0-9]*"))  # set aside by the supervisor
    for place in [work, *places]:
        yield from glob.glob(os.path.join(glob.escape(place), wild))
    if pattern[:1] not in "|/":
        walks = itertools.chain(os.walk(work), os.walk(os.path.join(folder, "tmp")))  # wherever the process was
        paths = itertools.islice(((at, name) for at, _, files in walks for name in files), ENTRIES)
        yield from (os.path.join(*path) for path in paths if fnmatch.fnmatchcase(path[1], os.path.basename(wild)))


def find(index: Index, request: dict[str, Any], pattern: str, wild: str) -> list[Dump]:
    """Cores that are surely of this attempt: those of ranks first, then in the order in which they were written."""
    found: dict[tuple[int, int], Dump] = {}  # by inode, as two paths may lead to one
    for path in candidates(index.folder, request["work"], request["places"], pattern, wild):
        try:
            dump = examine(path)
        except (OSError, ValueError, OverflowError) as error:
            index.note("the core file %s %s" % (path, error))
            continue
        # Where the folder is shared another's core may lie there: only one of a process that is known to be ours.
        ours = path.startswith(index.folder + "/") or (dump and dump.pid in request["ranks"])
        if dump and ours and dump.status.st_mtime > request["since"] - 1:
            found.setdefault((dump.status.st_dev, dump.status.st_ino), dump)
    return sorted(found.values(), key=lambda dump: (dump.pid not in request["ranks"], dump.status.st_mtime))


def missing(died: dict[str, Any], work: str, pattern: str, wild: str) -> str:
    """Why a rank that died by a signal which dumps left no core that is found."""
    path = os.path.join(work, pattern)
    folder = os.path.dirname(path)
    if pattern.startswith("|"):
        return "this host hands cores to %s" % pattern[1:].strip()
    if wild == "":
        return "core_pattern of this host is empty"
    if died["held"]:
        return "none was written over that of another rank, which was being written"
    if died["core"]:
        return "the kernel wrote one, but it is not there: removed, written over, or in another folder"
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        return "the limit of core files here (RLIMIT_CORE) is 0"
    if "%" in folder or not os.path.isdir(folder):
        return "core_pattern of this host is %s, and there is no such folder" % pattern
    if not os.access(folder, os.W_OK):
        return "%s is read-only or not writable" % folder
    if shutil.disk_usage(folder).free < 1 << 20:
        return "the disk of %s is full" % folder
    if os.path.lexists(path) and not (os.path.isfile(path) and os.stat(path).st_nlink == 1):
        return "something else lies at %s" % path
    return "no reason seen; a process can lower its own limit (RLIMIT_CORE) or forbid it (PR_SET_DUMPABLE)"


def move(dump: Dump, folder: str, keep: bool) -> str:
    """Bring a core to FOLDER/core.<pid>; its path then. One on another disk is copied only if it is to be kept."""
    target = os.path.join(folder, "core.%d" % dump.pid)
    if dump.path == target:
        return target
    target += ".%d" % time.time_ns() if os.path.lexists(target) else ""
    try:
        os.rename(dump.path, target)
    except OSError:
        if not keep:
            return dump.path
        if subprocess.run(["mv", "-f", "--", dump.path, target], check=False).returncode:  # it keeps the holes
            with suppress(FileNotFoundError):
                os.unlink(target)
            raise
    return target


def core(index: Index, request: dict[str, Any]) -> None:
    """Every core that the attempt left."""
    end = time.monotonic() + request["limit"]
    known = {stack.get("pid") for stack in index.stacks if stack.get("file")}
    pattern, wild = core_name()
    dumps = find(index, request, pattern, wild)
    for rank in request["died"]:
        if rank["pid"] not in [dump.pid for dump in dumps]:
            why = missing(rank, request["work"], pattern, wild)
            index.note("no core of process %d (%s): %s" % (rank["pid"], rank["signal"], why))
    for dump in [dump for dump in dumps if dump.pid not in request["ranks"]][CHILD_CORES:]:
        if delete(index, dump.path, dump):
            index.note("more than %d child processes left cores: the later ones were deleted" % CHILD_CORES)
        dumps.remove(dump)
    if dumps and not request["tools"]:
        left = {"keep": "kept as they are"}.get(request["cores"], 'deleted unread; [run] cores = "keep" keeps them')
        index.note("the tools that read stacks are not there: cores are %s" % left)
    for dump in dumps:
        read_core(index, request, dump, dump.pid in known, min(end, time.monotonic() + ONE_CORE))


def delete(index: Index, path: str, dump: Dump) -> bool:
    try:
        os.unlink(path)
    except OSError as error:
        index.note("the core of process %d could not be deleted: %s" % (dump.pid, error.strerror))
    return not os.path.lexists(path)


def read_core(index: Index, request: dict[str, Any], dump: Dump, known: bool, limit: float) -> None:
    """Read one core, unless the stacks of its process are `known` already; then keep or delete it."""
    keep = request["cores"] == "keep"
    path, whose = dump.path, "the core of process %d" % dump.pid
    try:
        path = move(dump, index.folder, keep)
    except OSError as error:
        index.note("%s stays at %s: %s" % (whose, path, error.strerror))
    inside = os.path.relpath(path, index.folder) if path.startswith(index.folder + "/") else ""
    found: dict[str, Any] = {"pid": dump.pid, "signal": dump.signal, "file": inside, "cut": dump.cut}
    found.update(size=dump.status.st_size, allocated=dump.status.st_blocks * 512)
    index.cores.append(found)
    if dump.cut:
        capped = found["allocated"] > 0.9 * (request["cap"] or float("inf"))
        why = "the limit for cores" if capped else "a full disk, or it took too long"
        index.note("%s is cut after %d MiB: %s" % (whose, found["allocated"] >> 20, why))
    index.write()  # should this program be killed while it reads, the core is known at least
    if request["tools"] and not known:
        text = take(index, dump.pid, [pystack(request["tools"], "core", path)], limit)
        crashed = {**text, "thread": dump.thread, "signal": dump.signal}
        index.stacks.append(stack(request, dump.pid, dump.command, "core", crashed))
        if not text["file"] and not keep:
            index.note('%s could not be read and was deleted; [run] cores = "keep" keeps it' % whose)
    if not keep and delete(index, path, dump):
        found["file"] = ""
    index.write()


def main(mode: str, folder: str, text: str) -> int:
    os.umask(0o022)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this program goes first, and no process of the attempt
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    index = Index(folder)
    try:
        {"live": live, "core": core}[mode](index, json.loads(text))
        index.write(last=True)
    except OSError as error:
        return 100 + (error.errno or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
