"""Runs one script to its end and says truly how it ended: the parent of the script in every engine.

    python3 -I -S supervise.py FOLDER

reads `FOLDER/spec.json`, writes `stdout`, `stderr`, and last of all `result.json` into FOLDER. Standard library only,
Python 3.9 or newer, Linux. It never trusts anything but the kernel's wait status, and leaves no process behind: it is
the subreaper of all that the script starts, so a daemon that detaches itself is still found. Beyond the deadline it
takes at most `grace` + LIVE + 2 * DUMP + UNKILLABLE + READ seconds and what a few pipes need.

spec.json (only `id` and `argv` are required):
    id          of the attempt; repeated in result.json
    argv, env   command line, and the whole environment of the script
    cwd         folder to start in, relative to FOLDER ("work")
    timeout     seconds until the deadline (600)
    grace       seconds between SIGABRT and SIGKILL at the deadline (5)
    memory      bytes that all processes together may use, or null
    cpus        size of the CPU set, or null
    cores       what becomes of core files: "stacks" (read, then deleted), "keep", or "off" (none is written)
    core_cap    bytes that one core may take on the disk (no cap)
    stacks      path of stacks.py, which reads stacks and cores; null = nothing is read, and no core is written
    tools       folder of the tools that stacks.py uses, or null
    processes   ranks to start (1); each gets REPRO_RANK, REPRO_WORLD, REPRO_COORDINATOR, and logs `stdout.0` ...
    head_cap, tail_cap  bytes kept of the beginning (1 MiB) and of the end (8 MiB) of each output
    watch_stdin true: end of file on the supervisor's standard input means that the tool has died: stop everything
    own_cgroup  true: no other attempt shares the memory cgroup, so all its kills for memory are this attempt's

Exit status: 0 result.json was written (whatever the script did), 1 it could not be written, 2 spec.json is wrong.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all the rest
    from typing import Any, Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 36, 0x59616D61  # linux/prctl.h
PF_EXITING = 0x4  # linux/sched.h
F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ exists from Python 3.10 only
CHUNK = 1 << 20  # bytes moved at once, and size of the pipes
SAMPLE = 0.1  # seconds between two looks at the memory of the tree; half of it where there is a limit
DRAIN = 1.0  # seconds to read on after the script has ended, while something else holds its output open
LINGER = 0.2  # seconds that helpers of the script (multiprocessing's resource tracker) get to end by themselves
UNKILLABLE = 10.0  # seconds after which a process that SIGKILL does not end (stuck in a driver) is given up
LIVE = 22.0  # seconds that stacks.py gets for the living processes of a hang; it means to be done in 20
READ = 62.0  # seconds that it gets for the cores
DUMP = 30.0  # seconds that a process may need to write its core, past the deadline or `grace`
DUMPING = {  # signals that leave a core, signal(7)
    "SIG" + name: getattr(signal, "SIG" + name)
    for name in ("ABRT", "SEGV", "BUS", "FPE", "ILL", "SYS", "TRAP", "QUIT", "XCPU", "XFSZ")
}
RESERVED = 32768  # bytes set aside for result.json, so that a full disk cannot take the verdict
MARK = b"\n[... %15d bytes left out ...]\n"  # of constant length: the cut never makes a log longer
MARK_LENGTH = len(MARK % 0)
NOTES = 20  # notes kept; a bound on the size of result.json

libc = ctypes.CDLL(None, use_errno=True)


def read(path: str) -> str:
    """A small file's text; empty where it is gone or not ours to read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def threads(pid: int) -> list[str]:
    try:
        return os.listdir("/proc/%d/task" % pid)
    except OSError:  # it ended
        return []


def descendants(without: int = 0) -> list[int]:
    """Every process below this one, but for `without` and those below that; orphans come to us, the subreaper."""
    found = [os.getpid()]
    for pid in found:  # grows as we go down
        for thread in threads(pid):
            children = map(int, read("/proc/%d/task/%s/children" % (pid, thread)).split())
            found += [child for child in children if child != without]
    return found[1:]


def resident(pid: int) -> int:
    """Resident bytes of a process: cheap, but a page shared by N processes counts N times."""
    fields = read("/proc/%d/statm" % pid).split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def proportional(pid: int) -> int:
    """Like `resident`, a shared page divided among those who share it. Walks the page tables, so it is dear."""
    for line in read("/proc/%d/smaps_rollup" % pid).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return resident(pid)


def kernel_oom_kills() -> int:
    """Kills for memory in this cgroup so far, 0 where nothing tells. Seen from inside a container its cgroup is the
    mounted root, whatever /proc/self/cgroup says; the engine's own word is unreliable (moby #38352)."""
    own = dict(line.split(":", 2)[1:] for line in read("/proc/self/cgroup").splitlines())
    places = [
        "/sys/fs/cgroup/memory%s/memory.oom_control" % own.get("memory", ""),
        "/sys/fs/cgroup/memory/memory.oom_control",
        "/sys/fs/cgroup%s/memory.events" % own.get("", ""),
        "/sys/fs/cgroup/memory.events",
    ]
    counts = [line.split()[1] for place in places for line in read(place).splitlines() if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else 0


def exiting(pid: int) -> bool:
    """Whether the process has come to its end, though it cannot be waited for yet."""
    fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return bool(fields) and bool(int(fields[6]) & PF_EXITING)


def dumping(pid: int) -> bool:
    return "\nCoreDumping:\t1" in read("/proc/%d/status" % pid)


def dying(pid: int) -> bool:
    """Whether its core is written, or it is taken apart after that; not if its first thread alone has ended."""
    return dumping(pid) or (exiting(pid) and len(threads(pid)) == 1)


def shared_name() -> str:
    """What every core here is called, in the folder of its process; empty where its name says whose it is."""
    name = read("/proc/sys/kernel/core_pattern").strip()
    return name if name and name[0] not in "|/" and "%" not in name else ""


def limit_core(pid: int, cap: int) -> int:
    """Limit the core that this process may leave; returns the limit that it had."""
    try:
        had, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (cap, hard))
    except (OSError, ValueError):
        return 0  # it has ended, or belongs to another user
    return had


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def set_core_aside(pid: int, cwd: str, folder: str) -> None:
    """Give a core whose name says nothing the name `core.<pid>`, before another process writes over it."""
    path = os.path.join(cwd, shared_name())
    if os.path.isfile(path) and not os.path.islink(path):
        try:
            os.rename(path, os.path.join(folder, "core.%d" % pid))
        except OSError:
            pass  # the script put something there: stacks.py finds the core where it is


def record_threads(pids: list[int], path: str) -> None:
    """At the deadline, while everything still runs: what each thread of each process waits for in the kernel."""
    with open(path, "w", encoding="utf-8") as file:
        for pid in pids[:64]:
            print(pid, read("/proc/%d/cmdline" % pid).replace("\0", " "), file=file)
            for thread in threads(pid):
                parts = [
                    read("/proc/%d/task/%s/%s" % (pid, thread, name)).strip() for name in ("comm", "wchan", "syscall")
                ]
                print(" ", thread, *parts, file=file)


class Log:
    """One output in one file: its first `head` bytes, then its last `tail` bytes, used as a ring while it runs."""

    def __init__(self, path: str, head: int, tail: int) -> None:
        self.path, self.head, self.tail = path, head, max(tail, 4096)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.total = 0  # bytes the script wrote
        self.refused = 0  # bytes of them that the disk did not take

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            ring = max(self.total - self.head, 0) % self.tail
            room = self.head - self.total if self.total < self.head else self.tail - ring
            piece = view[:room]
            self._put(piece, min(self.total, self.head) + ring)
            self.total += len(piece)
            view = view[len(piece) :]

    def _put(self, view: memoryview, position: int) -> None:
        while view:
            try:
                written = os.pwrite(self.fd, view, position)
            except OSError:  # disk full, quota, file size limit: the script runs on, its verdict counts
                self.refused += len(view)
                return
            view, position = view[written:], position + written

    def finish(self) -> bool:
        """Put the ring in order, mark the cut. True if the script had removed the file, which is then written again."""
        os.fchmod(self.fd, 0o644)  # a script may have made it unreadable
        if self.total > self.head + self.tail:
            oldest = (self.total - self.head) % self.tail
            ring = os.pread(self.fd, self.tail, self.head)
            kept = (ring[oldest:] + ring[:oldest])[MARK_LENGTH:]
            self._put(memoryview(MARK % (self.total - self.head - len(kept)) + kept), self.head)
        if is_at(self.fd, self.path):
            return False
        content = os.pread(self.fd, self.head + self.tail, 0)
        make_way(self.path + ".part", self.path)
        self.fd = os.open(self.path + ".part", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._put(memoryview(content), 0)
        os.rename(self.path + ".part", self.path)
        return True


def is_at(fd: int, path: str) -> bool:
    """Whether the open file still lies at `path`: a script may remove or replace anything in its folder."""
    return os.path.lexists(path) and os.path.samestat(os.fstat(fd), os.lstat(path))


def make_way(*paths: str) -> None:
    """Let our files be made at these paths, whatever a script put there: a link would lead us to another file, a
    folder cannot be replaced and is moved aside."""
    folder = os.path.dirname(paths[0])
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rename(path, "%s.%d" % (path, time.time_ns()))
        elif os.path.lexists(path):
            os.unlink(path)


def reserve(path: str) -> int:
    """Open the new file `path` with room for a verdict already taken on the disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.posix_fallocate(fd, 0, RESERVED)
    return fd


def publish(fd: int, part: str, path: str, result: dict[str, Any]) -> None:
    """Make the reserved file `part` the verdict at `path`: it appears whole or not at all, and survives a power cut."""
    folder = os.path.dirname(path)
    if not is_at(fd, part):
        make_way(part)
        fd = reserve(part)
    make_way(path)
    text = json.dumps(result, indent=1).encode() + b"\n"
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    os.fsync(fd)
    os.rename(part, path)
    os.fsync(os.open(folder, os.O_RDONLY))


class Rank:
    """One started process of the script with its two logs; most attempts have one."""

    def __init__(self, spec: dict[str, Any], folder: str, env: dict[str, str], suffix: str) -> None:
        caps = (spec.get("head_cap", 1 << 20), spec.get("tail_cap", 8 << 20))
        self.logs = [Log(os.path.join(folder, name + suffix), *caps) for name in ("stdout", "stderr")]
        ends = [os.pipe(), os.pipe()]
        self.pipes = {read_end: log for (read_end, _), log in zip(ends, self.logs)}
        for read_end in self.pipes:
            try:
                fcntl.fcntl(read_end, F_SETPIPE_SZ, CHUNK)
            except OSError:
                pass  # over the user's share of pipe memory: slower, nothing else
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self.ended = float("inf")
        self.stopped = False  # by the supervisor
        self.held = 0  # its limit for cores, while that of another is being written
        self.died = 0.0  # when its core was first seen being written, which may take longer than another's whole end
        self.cwd = os.path.join(folder, spec.get("cwd", "work"))  # where it was seen last: its core goes there
        self.pid = self._start(spec, self.cwd, env, [w for _, w in ends])
        for _, write_end in ends:
            os.close(write_end)

    def _start(self, spec: dict[str, Any], cwd: str, env: dict[str, str], outputs: list[int]) -> int:
        failure, report = os.pipe()  # closed by a successful exec
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should this supervisor be killed
                for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)  # Python ignores some, a shell's background job others
                libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))  # under Yama stacks.py, a sibling, might not read it
                hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
                # The kernel counts the bytes that it writes, not the holes (dump_emit in fs/coredump.c).
                cap = min((hard, spec.get("core_cap") or hard), key=lambda n: n & (1 << 64) - 1)  # -1 is no limit
                resource.setrlimit(resource.RLIMIT_CORE, (cap if takes_cores(spec) else 0, hard))
                if spec.get("cpus"):
                    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: spec["cpus"]])
                for target, source in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
                    os.dup2(source, target)
                os.chdir(cwd)
                os.execvpe(spec["argv"][0], spec["argv"], env)
            except BaseException as error:
                os.write(report, ("cannot start %s in %s: %s" % (spec["argv"][0], cwd, error)).encode())
            os._exit(127)
        os.close(report)
        trouble = os.read(failure, 4096)
        os.close(failure)
        if trouble:
            raise OSError(trouble.decode(errors="replace"))
        return pid

    @property
    def failed(self) -> bool:
        return self.status is not None and self.status != 0


def takes_cores(spec: dict[str, Any]) -> bool:
    return bool(spec.get("stacks")) and spec.get("cores", "off") != "off"


class Supervisor:
    """Starts the ranks and follows them to the end. One thread: output, signals and deadlines meet in one `poll`."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        self.work = os.path.join(folder, spec.get("cwd", "work"))
        self.ranks: list[Rank] = []
        self.pipes: dict[int, Log] = {}
        self.notes: list[str] = []
        self.stop = ""  # why the tool wants an end
        self.childless = False
        self.peak, self.over, self.sample_at = 0, False, 0.0
        self.kills: int | None = None  # kernel_oom_kills() at the end; taken before a reader can be one of them
        self.reader, self.reader_status = 0, None  # type: int, int | None
        self.poll = select.poll()
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        self.poll.register(wake, select.POLLIN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if spec.get("watch_stdin"):
            self.poll.register(0, select.POLLIN)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError("cannot become the subreaper of the script's processes")
        if not os.path.exists("/proc/thread-self/children"):
            raise OSError("this kernel does not list children (CONFIG_PROC_CHILDREN)")

    def _on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self.stop = self.stop or signal.Signals(number).name

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES:
            self.notes.append(text[:300])

    def run(self) -> dict[str, Any]:
        """The attempt from start to end; returns what result.json says."""
        kills_before, wall, self.started = kernel_oom_kills(), time.time(), time.monotonic()
        infra, cause, left = "", "", []  # type: str, str, list[str]
        try:
            self._start()
            cause = self._follow(self.started + self.spec.get("timeout", 600))
        except OSError as error:
            infra = str(error)
        closed = time.monotonic()
        for rank in self.ranks:
            rank.stopped = rank.status is None and not rank.died
        if cause == "deadline":
            self._abort()
        elif cause == "ended":
            self._pump_until(DRAIN, lambda: not self.pipes)
            self._pump_until(LINGER, lambda: self.childless)
            own = [rank.pid for rank in self.ranks]
            left = sorted(read("/proc/%d/comm" % pid).strip() for pid in descendants() if pid not in own)
        for rank in [rank for rank in self.ranks if rank.died and rank.status is None]:
            self.note("process %d was killed while its core was being written" % rank.pid)
        stuck = self._kill_tree()
        self._pump_until(DRAIN, lambda: not self.pipes)
        if left:
            self.note("left %d processes behind: %s" % (len(left), ", ".join(left[:5])))
        if stuck:
            self.note("%d processes did not end after SIGKILL" % len(stuck))
        if cause in ("ended", "deadline", "memory"):
            self._read_cores(wall)
        kills = self._count_kills()
        logs = [log for rank in self.ranks for log in rank.logs]
        if [log for log in logs if log.finish()]:
            self.note("the script removed its logs, which were written again")
        refused = sum(log.refused for log in logs)
        if refused:
            self.note("the disk refused %d bytes of output" % refused)
        # The first rank to fail counts: the others often fail because it did.
        first = min(self.ranks, key=lambda rank: (not rank.failed, rank.ended), default=None)
        ends = [dict(self._describe(rank, closed), rank=index) for index, rank in enumerate(self.ranks)]
        result = self._describe(first, closed)
        # Where attempts share a cgroup, a kill counts only if it can have been this one's.
        ours = self.spec.get("own_cgroup") or (cause == "ended" and result["signal"] == "SIGKILL")
        result.update(
            schema=1,
            id=self.spec["id"],
            infra=infra,
            cancelled=self.stop,  # also where it only cut the evidence short: then it is no verdict to keep
            timed_out=cause == "deadline",
            over_limit=cause == "memory",
            oom_kills=(kills - kills_before if ours else 0) + (cause == "memory"),
            peak_memory=max(self.peak, result["peak_memory"]),
            started=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall)) + ".%03dZ" % (wall % 1 * 1000),
            stdout_bytes=sum(log.total for log in logs[::2]),
            stderr_bytes=sum(log.total for log in logs[1::2]),
            left_behind=len(left),
            disk_full=bool(refused),
            notes=self.notes,
            ranks=ends if len(ends) > 1 else [],
        )
        return result

    def _describe(self, rank: Rank | None, closed: float) -> dict[str, Any]:
        """How a rank has ended, in the kernel's words; for one that had to be stopped, its time ends at `closed`."""
        status = rank.status if rank else None
        usage = rank.usage if rank else None
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
        names = {entry.value: entry.name for entry in signal.Signals}
        return {
            "pid": rank.pid if rank else 0,
            "exit_status": None if status is None or number else os.WEXITSTATUS(status),
            "signal": names.get(number, "SIG%d" % number) if number else None,
            "core": os.WCOREDUMP(status) if status is not None else False,
            "stopped": rank.stopped if rank else False,
            "seconds": round(min(rank.ended, closed) - self.started, 3) if rank else 0.0,
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3) if usage else 0.0,
            "peak_memory": usage.ru_maxrss * 1024 if usage else 0,
        }

    def _start(self) -> None:
        world = self.spec.get("processes", 1)
        env = dict(self.spec.get("env", {}))
        if world > 1:
            import socket

            with socket.create_server(("127.0.0.1", 0)) as probe:  # tells a port that is free
                env.update(REPRO_WORLD=str(world), REPRO_COORDINATOR="127.0.0.1:%d" % probe.getsockname()[1])
        for index in range(world):
            if world > 1:
                env["REPRO_RANK"] = str(index)
            rank = Rank(self.spec, self.folder, env, ".%d" % index if world > 1 else "")
            self.ranks.append(rank)
            self.pipes.update(rank.pipes)
            for read_end in rank.pipes:
                self.poll.register(read_end, select.POLLIN)

    def _follow(self, deadline: float) -> str:
        """Until there is a reason to stop: `ended`, `cancelled`, `deadline`, `memory`."""
        while True:
            now = time.monotonic()
            alive = [rank for rank in self.ranks if rank.status is None]
            failed = [rank.ended for rank in self.ranks if rank.failed]
            end = min([deadline, *(ended + self.spec.get("grace", 5) for ended in failed)])
            if now >= min(end, self.sample_at):
                self._watch_cores()
            if not alive:
                return "ended"
            if self.stop:
                return "cancelled"
            if now >= end:
                if now < end + DUMP and any(dying(rank.pid) for rank in alive):
                    end = now + SAMPLE  # a crash, whose core takes its time, is no hang
                else:
                    return "ended" if failed or any(rank.died for rank in alive) else "deadline"
            if self._over():
                return "memory"
            self._pump(min(self.sample_at, end) - now)

    def _watch_cores(self) -> None:
        """A rank dies before its core is written; until that is set aside no other may write over it."""
        alive = [rank for rank in self.ranks if rank.status is None]
        for rank in alive:
            try:
                rank.cwd = os.readlink("/proc/%d/cwd" % rank.pid)
            except OSError:
                pass  # it has ended
            rank.died = rank.died or (time.monotonic() if dumping(rank.pid) else 0.0)
        writing = any(rank.died for rank in alive)
        for rank in alive if len(self.ranks) > 1 and takes_cores(self.spec) and shared_name() else ():
            if writing and not rank.held and not rank.died:
                rank.held = limit_core(rank.pid, 0)
            elif rank.held and not writing:
                limit_core(rank.pid, rank.held)
                rank.held = 0

    def _over(self) -> bool:
        """Look at the memory of the tree, for at most a tenth of one CPU; shared pages count once."""
        limit, now = self.spec.get("memory") or 0, time.monotonic()
        if now < self.sample_at:
            return False
        tree = descendants(self.reader)
        used = sum(map(resident, tree))
        if limit and used > limit:
            used = sum(map(proportional, tree))
        over = 0 < limit < used
        if over and not self.over:
            self.over = True
            self.note("used %d MiB of the %d MiB allowed: killed" % (used >> 20, limit >> 20))
        self.peak = max(self.peak, used)
        self.sample_at = now + max(SAMPLE / 2 if limit else SAMPLE, 10 * (time.monotonic() - now))
        return over

    def _pump(self, timeout: float) -> None:
        """Wait for output, a signal or `timeout` seconds; move output to the logs; collect the dead."""
        for fd, _ in self.poll.poll(max(timeout, 0) * 1000):
            data = os.read(fd, CHUNK)
            if fd in self.pipes:
                self.pipes[fd].write(data)
                if not data:
                    self._closed(fd)
            elif fd == 0 and not data:
                self.stop = self.stop or "the tool has ended"
                self.poll.unregister(0)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True  # so nothing at all is left: orphans come to us
                return
            self.childless = False
            if pid == 0:
                return
            for rank in self.ranks:
                if rank.pid == pid:
                    self._watch_cores()  # one that is dying still died before this one
                    rank.status, rank.usage, rank.ended = status, usage, rank.died or time.monotonic()
                    if os.WCOREDUMP(status) and takes_cores(self.spec):
                        set_core_aside(pid, self.work, self.folder)
            if pid == self.reader:
                self.reader_status = status

    def _closed(self, fd: int) -> None:
        log = self.pipes.pop(fd)
        self.poll.unregister(fd)
        os.close(fd)
        pid = next(rank.pid for rank in self.ranks if log in rank.logs)
        if os.path.exists("/proc/%d/stat" % pid) and not exiting(pid):  # as it ends, the kernel closes them too
            self.note("closed its " + os.path.basename(log.path))

    def _pump_until(self, seconds: float, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + seconds
        while not done() and time.monotonic() < limit:
            if self._over():  # the limit holds past the deadline too
                kill(descendants(self.reader))
            self._pump(min(0.02, seconds))

    def _abort(self) -> None:
        """At the deadline: evidence, then SIGABRT: faulthandler writes the Python stacks, the kernel the core."""
        tree = descendants()
        mains = [rank.pid for rank in self.ranks if rank.status is None]
        try:
            make_way(os.path.join(self.folder, "threads"))  # opening a pipe that the script put there would wait
            record_threads(tree, os.path.join(self.folder, "threads"))
        except OSError as error:
            self.note("could not record the threads: %s" % error)
        self._read("live", LIVE, pids=mains + [pid for pid in tree if pid not in mains])
        for pid in set(descendants()) - set(mains):
            limit_core(pid, 0)  # they get the signal too, and would write their cores over that of the rank
        if takes_cores(self.spec):  # of a child whose death may be why the others wait; its pid is in the file
            set_core_aside(0, self.work, self.folder)
        last = time.monotonic() + DUMP
        for rank in self.ranks:  # one after the other: they share the name of the core
            self._abort_rank(rank, last)

    def _abort_rank(self, rank: Rank, last: float) -> None:
        def done() -> bool:
            return rank.status is not None or bool(self.stop)

        if not done():  # so not waited for, and the number is still its own
            os.killpg(rank.pid, signal.SIGABRT)
            os.killpg(rank.pid, signal.SIGCONT)  # it may have stopped itself
        self._pump_until(self.spec.get("grace", 5) / len(self.ranks), done)
        self._pump_until(last - time.monotonic(), lambda: done() or not dying(rank.pid))

    def _count_kills(self) -> int:
        """Kills for memory in this cgroup until the first reader ran: one that runs out of memory is no verdict. What
        lies then where stacks belong is the script's, and would be believed."""
        if self.kills is None:
            make_way(os.path.join(self.folder, "stacks.json"), os.path.join(self.folder, "stacks"))
            self.kills = kernel_oom_kills()
        return self.kills

    def _read(self, mode: str, limit: float, **request: Any) -> None:
        """Let stacks.py read stacks or cores, in a session of its own. Whatever becomes of it costs a note at most."""
        program = self.spec.get("stacks")
        if not program:
            return
        try:
            self._count_kills()
            request.update(tools=self.spec.get("tools"), ranks=[rank.pid for rank in self.ranks])
            request.update(command=" ".join(self.spec["argv"]), limit=limit - 2)
            self.reader_status = None
            self.reader = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", program, mode, self.folder, json.dumps(request)],
                {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"},
                file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)],
                setsid=True,
            )
        except OSError as error:
            self.note("could not read stacks: %s" % error)
            return
        self._pump_until(limit, lambda: self.reader_status is not None or bool(self.stop))
        if self.reader_status is None:
            os.killpg(self.reader, signal.SIGKILL)
            self._pump_until(1.0, lambda: self.reader_status is not None)
        status, self.reader = self.reader_status, 0
        if status is None or os.WIFSIGNALED(status):
            self.note("reading stacks was ended %s" % ("with the attempt" if self.stop else "before it was done"))
        elif status != 0:  # 100 and more: an errno
            number = os.WEXITSTATUS(status) - 100
            self.note("stacks could not be recorded: " + (os.strerror(number) if number > 0 else "the program failed"))

    def _read_cores(self, since: float) -> None:
        """Look for cores where a process can have left one, and read them."""
        ends = [dict(self._describe(rank, 0), held=rank.held != 0) for rank in self.ranks]
        died = [end for end in ends if end["signal"] in DUMPING]
        child = any((end["exit_status"] or 0) - 128 in DUMPING.values() for end in ends)  # as a shell says it
        stem = read("/proc/sys/kernel/core_pattern").strip().rpartition("/")[2].partition("%")[0]
        own = next(os.walk(self.folder), ("", [], []))
        walks = itertools.chain([own], os.walk(self.work), os.walk(os.path.join(self.folder, "tmp")))
        names = itertools.islice((name for _, _, files in walks for name in files), 20000)
        found = any(name.startswith(("core.", stem or "core.")) for name in names)
        if takes_cores(self.spec) and (died or child or found):
            request = {"cores": self.spec["cores"], "cap": self.spec.get("core_cap"), "work": self.work}
            self._read("core", READ, since=since, died=died, places=[rank.cwd for rank in self.ranks], **request)

    def _kill_tree(self) -> list[int]:
        """SIGKILL until no descendant is left; returns those that do not die."""
        limit = time.monotonic() + UNKILLABLE
        while True:
            tree = descendants()
            if self.childless or time.monotonic() > limit:
                return tree
            kill(tree)
            self._pump(0.002)


def main(folder: str) -> int:
    os.umask(0o022)  # whoever reads the evidence on the host may be another user
    folder = os.path.abspath(folder)
    try:
        with open(os.path.join(folder, "spec.json"), encoding="utf-8") as file:
            spec = json.load(file)
        if not isinstance(spec["id"], str) or not spec["argv"]:
            raise ValueError("`id` must be a string, `argv` a list that is not empty")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print("supervise: wrong spec.json in %s: %r" % (folder, error), file=sys.stderr)
        return 2
    try:
        path = os.path.join(folder, "result.json")
        make_way(path + ".part")
        part = reserve(path + ".part")
        publish(part, path + ".part", path, Supervisor(folder, spec).run())
    except OSError as error:
        print("supervise: no verdict in %s: %s" % (folder, error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
