"""Runs one script to its end and says truly how it ended: the parent of the script in every engine.

    python3 -I -S supervise.py FOLDER

reads `FOLDER/spec.json`, writes `stdout`, `stderr`, and last of all `result.json` into FOLDER. Standard library only,
Python 3.9 or newer, Linux. It never trusts anything but the kernel's wait status, and leaves no process behind: it is
the subreaper of all that the script starts, so a daemon that detaches itself is still found.

spec.json (only `id` and `argv` are required):
    id          of the attempt; repeated in result.json
    argv, env   command line, and the whole environment of the script
    cwd         folder to start in, relative to FOLDER ("work")
    timeout     seconds until the deadline (600)
    grace       seconds between SIGABRT and SIGKILL at the deadline (5)
    memory      bytes that all processes together may use, or null
    cpus        size of the CPU set, or null
    cores       whether a crash may leave a core file in work/ (false)
    processes   ranks to start (1); each gets REPRO_RANK, REPRO_WORLD, REPRO_COORDINATOR, and logs `stdout.0` ...
    head_cap, tail_cap  bytes kept of the beginning (1 MiB) and of the end (8 MiB) of each output
    watch_stdin true: end of file on the supervisor's standard input means that the tool has died: stop everything
    own_cgroup  true: no other attempt shares the memory cgroup, so all its kills for memory are this attempt's

Exit status: 0 result.json was written (whatever the script did), 1 it could not be written, 2 spec.json is wrong.
"""

from __future__ import annotations

import ctypes
import fcntl
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

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
PF_EXITING = 0x4  # linux/sched.h
F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ exists from Python 3.10 only
CHUNK = 1 << 20  # bytes moved at once, and size of the pipes
SAMPLE = 0.1  # seconds between two looks at the memory of the tree; half of it where there is a limit
DRAIN = 1.0  # seconds to read on after the script has ended, while something else holds its output open
LINGER = 0.2  # seconds that helpers of the script (multiprocessing's resource tracker) get to end by themselves
UNKILLABLE = 10.0  # seconds after which a process that SIGKILL does not end (stuck in a driver) is given up
RESERVED = 16384  # bytes set aside for result.json, so that a full disk cannot take the verdict
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


def descendants() -> list[int]:
    """Every process below this one: as subreaper it inherits those whose own parents have ended."""
    found = [os.getpid()]
    for pid in found:  # grows as we go down
        for thread in threads(pid):
            found += map(int, read("/proc/%d/task/%s/children" % (pid, thread)).split())
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
        self.pid = self._start(spec, os.path.join(folder, spec.get("cwd", "work")), env, [w for _, w in ends])
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
                hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
                resource.setrlimit(resource.RLIMIT_CORE, (hard if spec.get("cores") else 0, hard))
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


def describe(rank: Rank | None) -> dict[str, Any]:
    """How the rank that counts has ended, in the kernel's words."""
    status = rank.status if rank else None
    usage = rank.usage if rank else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
    names = {entry.value: entry.name for entry in signal.Signals}
    return {
        "exit_status": None if status is None or number else os.WEXITSTATUS(status),
        "signal": names.get(number, "SIG%d" % number) if number else None,
        "core": os.WCOREDUMP(status) if status is not None else False,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3) if usage else 0.0,
        "peak_memory": usage.ru_maxrss * 1024 if usage else 0,
    }


class Supervisor:
    """Starts the ranks and follows them to the end. One thread: output, signals and deadlines meet in one `poll`."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder, self.spec = folder, spec
        self.ranks: list[Rank] = []
        self.pipes: dict[int, Log] = {}
        self.notes: list[str] = []
        self.stop = ""  # why the tool wants an end
        self.childless = False
        self.peak = 0
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
        if cause == "deadline":
            self._abort()
        elif cause == "ended":
            self._pump_until(DRAIN, lambda: not self.pipes)
            self._pump_until(LINGER, lambda: self.childless)
            left = sorted(read("/proc/%d/comm" % pid).strip() for pid in descendants())
        stuck = self._kill_tree()
        self._pump_until(DRAIN, lambda: not self.pipes)
        if left:
            self.note("left %d processes behind: %s" % (len(left), ", ".join(left[:5])))
        if stuck:
            self.note("%d processes did not end after SIGKILL" % len(stuck))
        logs = [log for rank in self.ranks for log in rank.logs]
        if [log for log in logs if log.finish()]:
            self.note("the script removed its logs, which were written again")
        refused = sum(log.refused for log in logs)
        if refused:
            self.note("the disk refused %d bytes of output" % refused)
        # The first rank to fail counts: the others often fail because it did.
        rank = min(self.ranks, key=lambda rank: (not rank.failed, rank.ended), default=None)
        result = describe(rank)
        # Where attempts share a cgroup, a kill counts only if it can have been this one's.
        ours = self.spec.get("own_cgroup") or (cause == "ended" and result["signal"] == "SIGKILL")
        result.update(
            schema=1,
            id=self.spec["id"],
            infra=infra,
            cancelled=self.stop if cause == "cancelled" else "",
            timed_out=cause == "deadline",
            oom_kills=(kernel_oom_kills() - kills_before if ours else 0) + (cause == "memory"),
            peak_memory=max(self.peak, result["peak_memory"]),
            started=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall)) + ".%03dZ" % (wall % 1 * 1000),
            seconds=round(min(rank.ended if rank else 0.0, time.monotonic()) - self.started, 3) if rank else 0.0,
            stdout_bytes=sum(log.total for log in logs[::2]),
            stderr_bytes=sum(log.total for log in logs[1::2]),
            left_behind=len(left),
            disk_full=bool(refused),
            notes=self.notes,
        )
        return result

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
        limit = self.spec.get("memory") or 0
        step = SAMPLE / 2 if limit else SAMPLE
        sample_at = self.started
        while True:
            now = time.monotonic()
            alive = [rank for rank in self.ranks if rank.status is None]
            failed = [rank.ended for rank in self.ranks if rank.failed]
            if not alive or (failed and now > min(failed) + self.spec.get("grace", 5)):
                return "ended"
            if self.stop:
                return "cancelled"
            if now >= deadline:
                return "deadline"
            if now >= sample_at and self._over(limit):
                return "memory"
            if now >= sample_at:
                sample_at = now + max(step, 10 * (time.monotonic() - now))  # at most a tenth of one CPU
            self._pump(min(sample_at, deadline) - now)

    def _over(self, limit: int) -> bool:
        """Take the memory of the tree; whether it is over the limit, shared pages counted once."""
        tree = descendants()
        used = sum(map(resident, tree))
        if limit and used > limit:
            used = sum(map(proportional, tree))
        over = 0 < limit < used
        if over:
            self.note("used %d MiB of the %d MiB allowed: killed" % (used >> 20, limit >> 20))
        self.peak = max(self.peak, used)
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
                    rank.status, rank.usage, rank.ended = status, usage, time.monotonic()

    def _closed(self, fd: int) -> None:
        log = self.pipes.pop(fd)
        self.poll.unregister(fd)
        os.close(fd)
        pid = next(rank.pid for rank in self.ranks if log in rank.logs)
        fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
        if fields and not int(fields[6]) & PF_EXITING:  # the kernel closes them too, while the process ends
            self.note("closed its " + os.path.basename(log.path))

    def _pump_until(self, seconds: float, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + seconds
        while not done() and time.monotonic() < limit:
            self._pump(min(0.02, seconds))

    def _abort(self) -> None:
        """At the deadline: evidence, then SIGABRT: faulthandler writes the Python stacks, the kernel the core."""
        try:
            record_threads(descendants(), os.path.join(self.folder, "threads"))
        except OSError as error:
            self.note("could not record the threads: %s" % error)
        for rank in self.ranks:
            if rank.status is None:  # so not waited for, and the number is still its own
                os.killpg(rank.pid, signal.SIGABRT)
                os.killpg(rank.pid, signal.SIGCONT)  # it may have stopped itself
        self._pump_until(self.spec.get("grace", 5), lambda: all(rank.status is not None for rank in self.ranks))

    def _kill_tree(self) -> list[int]:
        """SIGKILL until no descendant is left; returns those that do not die."""
        limit = time.monotonic() + UNKILLABLE
        while True:
            tree = descendants()
            if self.childless or time.monotonic() > limit:
                return tree
            for pid in tree:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
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
