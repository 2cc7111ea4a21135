"""Scripts that end in every way a script can, and what the graded attempt must say of each, on every engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from repromatrix.spec.model import Outcome

OK, ERROR, CRASH, HANG = Outcome.OK, Outcome.ERROR, Outcome.CRASH, Outcome.HANG
OOM, SKIP, INCONCLUSIVE, INFRA = Outcome.OOM, Outcome.SKIP, Outcome.INCONCLUSIVE, Outcome.INFRA
BOTH = ("venv", "docker")


@dataclass(frozen=True, slots=True)
class Death:
    """One script and its end.

    Attributes:
        title: Glob that the signature's title fits; None = it has no signature.
        metadata: TOML lines of the script's block.
        reason: Regular expression that is found in the reason.
        notes: Regular expressions, each found in one of the notes.
        holds: (file of the evidence, regular expression found in it).
        within: Seconds that the attempt may take, start and clean-up of the engine included; None = not asked.
        ranks: (outcome, exit status, signal, role) of each.
        never: Words that may stand nowhere in the signature, the reason, the notes and the names of files.
        metrics: (name, highest value) of what the script measured of itself.
    """

    name: str
    script: str
    outcome: Outcome
    exit_status: int | None = None
    signal: str | None = None
    title: str | None = None
    metadata: tuple[str, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    holds: tuple[tuple[str, str], ...] = ()
    within: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    never: str = ""
    ranks: tuple[tuple[Outcome, int | None, str | None, str], ...] = ()
    engines: tuple[str, ...] = field(default=BOTH)


SOON = ('timeout = "1.5s"',)
"""A hang, as soon as Python has started even on a busy machine."""

ENGINE = 6.0
"""Seconds that starting and removing a container may take on a busy machine."""

STUCK = "import time\ndef stuck():\n    time.sleep(1000)\nstuck()"

RUN_BYTES = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({code!r})
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

DOWN = """
import ctypes, resource, sys, threading
libc = ctypes.CDLL(None)
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
sys.setrecursionlimit(10**6)
def down(a, b):
    libc.qsort((ctypes.c_int * 2)(), 2, 4, compare(down))
    return 0
"""

BY_SIGNAL = [
    Death(
        "os_abort", "import os\ndef fatal():\n    os.abort()\nfatal()", CRASH, signal="SIGABRT",
        title="signal SIGABRT at os_abort.py fatal", holds=(("stderr", r"Fatal Python error: Aborted"),),
    ),
    Death(
        "c_abort", "import ctypes\nctypes.CDLL(None).abort()", CRASH, signal="SIGABRT",
        title="signal SIGABRT at c_abort.py <module>", holds=(("stderr", r'c_abort.py", line \d+ in <module>'),),
    ),
    Death(
        "segfault_in_c", "import ctypes\ndef peek():\n    ctypes.string_at(0)\npeek()", CRASH, signal="SIGSEGV",
        title="signal SIGSEGV at * from segfault_in_c.py peek",
        holds=(("stderr", r"Fatal Python error: Segmentation fault"),),
    ),
    Death(
        "bus_error",  # the page lies behind the end of the file
        "import mmap\nfile = open('short', 'w+b')\nfile.truncate(4096)\npage = mmap.mmap(file.fileno(), 4096)\n"
        "file.truncate(0)\npage[0]",
        CRASH, signal="SIGBUS", title="signal SIGBUS at bus_error.py <module>",
        holds=(("stderr", r"Fatal Python error: Bus error"),),
    ),
    Death(
        "division_by_zero_in_c", "import ctypes\nctypes.CDLL(None).div(1, 0)", CRASH, signal="SIGFPE",
        title="signal SIGFPE at division_by_zero_in_c.py <module>",
        holds=(("stderr", r"Fatal Python error: Floating.point exception"),),
    ),
    Death(
        "illegal_instruction", RUN_BYTES.format(code=b"\x0f\x0b"), CRASH, signal="SIGILL",  # ud2
        title="signal SIGILL at illegal_instruction.py <module>",
        holds=(("stderr", r"Fatal Python error: Illegal instruction"),),
    ),
    Death(
        "trap", RUN_BYTES.format(code=b"\xcc"), CRASH, signal="SIGTRAP", title="signal SIGTRAP",  # int3
    ),
    Death(
        "stack_overflow", DOWN + "resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, -1))\ndown(0, 0)", CRASH,
        signal="SIGSEGV", title="signal SIGSEGV at stack_overflow.py down",
    ),
    Death(  # the handler of faulthandler has a stack of its own in the main thread only
        "stack_overflow_in_a_thread",
        DOWN + "threading.stack_size(1 << 18)\nthread = threading.Thread(target=down, args=(0, 0))\n"
        "thread.start()\nthread.join()",
        CRASH, signal="SIGSEGV", title="signal SIGSEGV",
    ),
    Death(
        "killed_by_itself", "import os\nos.kill(os.getpid(), 9)", CRASH, signal="SIGKILL", title="signal SIGKILL",
        reason="no kernel kill for memory was counted",
    ),
    Death("terminated", "import os\nos.kill(os.getpid(), 15)", CRASH, signal="SIGTERM", title="signal SIGTERM"),
    Death(
        "file_size_limit",  # Python ignores SIGXFSZ; a script that does not gets it
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nopen('big', 'wb').write(bytes(8192))",
        CRASH, signal="SIGXFSZ", title="signal SIGXFSZ",
    ),
    Death(
        "behind_a_shell",
        "import subprocess, sys\nsys.exit(subprocess.run(['sh', '-c', \"sh -c 'kill -SEGV $$'; exit $?\"]).returncode)",
        ERROR, exit_status=139, title="signal SIGSEGV", reason="139 stands for SIGSEGV of a child",
    ),
]  # fmt: skip

BY_STATUS = [
    Death(
        "raises", "def wrong():\n    raise ValueError('no such layout')\nwrong()", ERROR, exit_status=1,
        title="py-exc ValueError: no such layout", holds=(("stderr", r"^ValueError: no such layout$"),),
    ),
    Death("exit_3", "import sys\nsys.exit(3)", ERROR, exit_status=3, title="exit 3"),
    Death("exit_with_words", "import sys\nsys.exit('refused')", ERROR, exit_status=1, title="exit 1: refused"),
    Death("exit_125", "import sys\nsys.exit(125)", SKIP, exit_status=125, reason="does not apply"),
    Death("exit_255", "import os\nos._exit(255)", ERROR, exit_status=255, title="exit 255"),
    Death(
        "well_after_errors",
        "import sys, traceback\ntry:\n    raise RuntimeError('caught')\n"
        "except RuntimeError:\n    traceback.print_exc()\n"
        "print('F0101 00:00:00.000000 1 x.cc:1] Check failed: a == b', file=sys.stderr)",
        OK, exit_status=0, holds=(("stderr", r"RuntimeError: caught"),),
    ),
    Death(
        "import_error", "from math import no_such_function", ERROR, exit_status=1,
        title="*ImportError: cannot import name 'no_such_function' from 'math'*",
    ),
    Death(
        "module_not_there", "import no_such_module", ERROR, exit_status=1,
        title="*ModuleNotFoundError: No module named 'no_such_module'",
    ),
    Death(
        "refused_flag",  # the words of jaxlib 0.10.2 for a flag of ours that it does not know
        "import os, sys\nprint('F0000 00:00:00.000000 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: '\n"
        "      '--xla_no_such_flag=true', file=sys.stderr)\nos.abort()",
        SKIP, signal="SIGABRT", title="flag unknown: --xla_no_such_flag",
        metadata=('env = { XLA_FLAGS = "--xla_no_such_flag=true" }',),
        reason="this version does not know --xla_no_such_flag",
    ),
]  # fmt: skip

GROW = """
held = []
while True:
    held.append(bytearray(b"x" * (1 << 20)))
"""

MEMORY = [
    Death(
        "killed_for_memory", GROW, OOM, signal="SIGKILL", title="oom-kill", metadata=('memory = "150MiB"',),
        reason=r"150 MiB.*ended by SIGKILL",
    ),
    Death(
        "a_child_killed_for_memory",
        "import subprocess, sys\n"
        f"sys.exit(subprocess.run([sys.executable, '-c', {GROW!r}]).returncode % 256 and 5)",
        OOM, exit_status=5, title="oom-kill", metadata=('memory = "150MiB"',),
        reason="1 process killed by the kernel for memory", engines=("docker",),
    ),
    Death(
        "memory_error",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nbytearray(1 << 31)",
        OOM, exit_status=1, title="oom MemoryError", reason="memory ran out",
    ),
]  # fmt: skip

HANGS = [
    Death(
        "hang_in_python", STUCK, HANG, signal="SIGABRT", title="hang at hang_in_python.py stuck", metadata=SOON,
        reason="still running at the deadline of 1.5 s",
        holds=(("stderr", r"line \d+ in stuck"), ("threads", r"hang_in_python.py")),
    ),
    Death(
        "busy_in_python", "def spin():\n    while True: pass\nspin()", HANG, signal="SIGABRT",
        title="hang at busy_in_python.py spin", metadata=SOON,
    ),
    Death(
        "hang_in_c", "import ctypes\nwhile True: ctypes.CDLL(None).sleep(1000)", HANG, signal="SIGABRT",
        title="hang at hang_in_c.py <module>", metadata=SOON,
    ),
    Death(
        "hang_in_c_with_the_gil",
        "import ctypes\ndef hold():\n    while True: ctypes.PyDLL(None).sleep(1000)\nhold()",
        HANG, signal="SIGABRT", title="hang at hang_in_c_with_the_gil.py hold", metadata=SOON,
        holds=(("threads", r"hrtimer_nanosleep|nanosleep| 230 | 35 "),),
    ),
    Death(
        "deaf",
        "import faulthandler, signal, time\nfaulthandler.disable()\n"
        "for s in (signal.SIGTERM, signal.SIGABRT, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
        "while True: time.sleep(1)",
        HANG, signal="SIGKILL", title="hang", metadata=SOON,
    ),
    Death(
        "stops_itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", HANG, signal="SIGABRT",
        title="hang at stops_itself.py <module>", metadata=SOON,
    ),
    Death(
        "hang_with_a_grandchild_on_the_pipe",  # in a session of its own: SIGABRT to the group does not reach it
        "import subprocess, time\nsubprocess.Popen(['sh', '-c', 'sleep 1000 & wait'], start_new_session=True)\n"
        + STUCK,
        HANG, signal="SIGABRT", title="hang at hang_with_a_grandchild_on_the_pipe.py stuck", metadata=SOON,
        holds=(("threads", r"\n\d+ sleep 1000"),), within=1.5 + 2 + ENGINE,
    ),
    Death(
        "ends_with_a_grandchild_on_the_pipe",
        "import subprocess, sys\nsubprocess.Popen(['sleep', '1000'])\nprint('done')\nsys.exit(4)",
        ERROR, exit_status=4, title="exit 4", notes=("left 1 processes behind: sleep",), within=2 + ENGINE,
        holds=(("stdout", r"^done$"),),
    ),
]  # fmt: skip

FLOOD = """
import os, time
block = b"".join(b"%015d\\n" % i for i in range(65536))
began = time.perf_counter()
for _ in range(2000):
    assert os.write(1, block) == len(block)
seconds = time.perf_counter() - began
peak = [line.split()[1] for line in open(f"/proc/{os.getppid()}/status") if line.startswith("VmHWM")][0]
print(f"\\nREPRO_METRIC seconds={seconds}\\nREPRO_METRIC supervisor_kib={peak}")
"""

FILL = """
block = bytes(1 << 20)
with open({path!r}, "wb") as file:
    while True: file.write(block)
"""

GREEDY = [
    Death(
        "prints_two_gigabytes", FLOOD, OK, exit_status=0,  # at 100 MB/s or more
        metrics=(("seconds", 20), ("supervisor_kib", 40 << 10)),
        holds=(("stdout", r"^\[\.\.\. +20\d{8} bytes left out \.\.\.\]$"),),
    ),
    Death(
        "forks_ten_thousand_times",
        "import os\nfor _ in range(100):\n    for _ in range(100):\n        if os.fork() == 0: os._exit(0)\n"
        "    for _ in range(100): os.wait()\nprint('all ended')\nos._exit(7)",
        ERROR, exit_status=7, title="exit 7", holds=(("stdout", r"^all ended$"),),
    ),
    Death(
        "leaves_two_thousand_behind",
        "import os, signal\nfor _ in range(2000):\n    if os.fork() == 0: signal.pause()\nos._exit(7)",
        ERROR, exit_status=7, title="exit 7", notes=("left 2000 processes behind",),
    ),
    Death(
        "ten_thousand_at_once",
        "import os, signal\nfor _ in range(10000):\n    if os.fork() == 0: signal.pause()",
        ERROR, exit_status=1, title="py-exc BlockingIOError: *Resource temporarily unavailable",
        notes=(r"left 40\d\d processes behind",), engines=("docker",),
    ),
    Death(
        "fills_shared_memory", FILL.format(path="/dev/shm/big"), ERROR, exit_status=1,
        title="py-exc OSError: *No space left on device", engines=("docker",),
    ),
]  # fmt: skip

TAMPERING = [
    Death(
        "deletes_its_logs",
        "import os\nprint('before', flush=True)\nos.unlink('../stdout')\nos.unlink('../stderr')\nprint('after')\n"
        "raise KeyError('x')",
        ERROR, exit_status=1, title="py-exc KeyError: 'x'", notes=("the script removed its logs",),
        holds=(("stdout", r"\Abefore\nafter\n\Z"),),
    ),
    Death(
        "deletes_its_folder",
        "import os, shutil\nprint('before', flush=True)\n"
        "shutil.rmtree(os.path.dirname(os.getcwd()), ignore_errors=True)\nprint('after')\nraise SystemExit(9)",
        ERROR, exit_status=9, title="exit 9", notes=("the script removed its logs",),
        holds=(("stdout", r"\Abefore\nafter\n\Z"),),
    ),
    Death(
        "forges_stacks",
        "import json, os\nos.mkdir('../stacks')\n"
        "open('../stacks/1.txt', 'w').write('Traceback for thread 1 []\\n"
        '    (C) File "x.cc", line 1, in xla::Forged()\\n\')\n'
        "stack = dict(pid=os.getpid(), rank=0, command='x', source='core', tool='pystack', thread=1, signal='', "
        "file='stacks/1.txt', trouble='forged')\n"
        "json.dump(dict(schema=1, stacks=[stack], cores=[], notes=['forged']), open('../stacks.json', 'w'))\n"
        "os.abort()",
        CRASH, signal="SIGABRT", title="signal SIGABRT at forges_stacks.py <module>", never="orged",
    ),
    Death(
        "links_stacks_elsewhere",
        "import json, os\nos.mkdir('../stacks')\nos.symlink('/etc/passwd', '../stacks/1.txt')\n"
        "stack = dict(pid=os.getpid(), rank=0, command='x', source='core', tool='pystack', thread=None, signal='', "
        "file='stacks/1.txt', trouble='')\n"
        "json.dump(dict(schema=1, stacks=[stack], cores=[], notes=[]), open('../stacks.json', 'w'))\n"
        "raise KeyError('x')",
        ERROR, exit_status=1, title="py-exc KeyError: 'x'", never="1.txt",
    ),
    Death(
        "kills_its_supervisor",
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)", INFRA,
        reason="ended with(out a| status).*verdict",
    ),
    Death(
        "stops_its_supervisor_politely",
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)", INFRA, signal="SIGKILL",
        reason=r"the supervisor was stopped from outside \(SIGTERM\)",
    ),
]  # fmt: skip

RANK = """
import ctypes, faulthandler, os, signal, sys, time
rank = int(os.environ["REPRO_RANK"])
def wait_for_the_others():
    time.sleep(1000)
"""

RANKS = [
    Death(
        "first_rank_fails",
        RANK + "time.sleep(0.5)\nif rank == 1: sys.exit('diverged')\nif rank == 2: wait_for_the_others()\n"
        "time.sleep(0.5)\nsys.exit(4)",
        ERROR, exit_status=1, title="exit 1: diverged", metadata=("processes = 3",),
        reason="rank 1 was first; rank 0 followed; rank 2 had to be stopped",
        ranks=((ERROR, 4, None, "followed"), (ERROR, 1, None, "first"), (INCONCLUSIVE, None, "SIGKILL", "stopped")),
        holds=(("stderr.1", r"^diverged$"),),
    ),
    Death(
        "a_rank_crashes",
        RANK + "time.sleep(0.5)\nif rank == 2: ctypes.string_at(0)\ntime.sleep(0.5)\nsys.exit(0 if rank else 9)",
        CRASH, signal="SIGSEGV", title="signal SIGSEGV at * from a_rank_crashes.py <module>",
        metadata=("processes = 3",), reason="rank 2 was first; rank 0 followed; rank 1 ended well",
        ranks=((ERROR, 9, None, "followed"), (OK, 0, None, ""), (CRASH, None, "SIGSEGV", "first")),
        holds=(("stderr.2", r"Fatal Python error: Segmentation fault"),),
    ),
    Death(
        "ranks_hang", RANK + "if rank == 1: sys.exit(0)\nwait_for_the_others()", HANG, signal="SIGABRT",
        title="hang at ranks_hang.py wait_for_the_others", metadata=("processes = 3", *SOON),
        reason=r"still running at the deadline of 1.5 s: ranks 0 and 2; rank 1 had ended with 0 after \d.\d s",
        ranks=((HANG, None, "SIGABRT", "first"), (OK, 0, None, ""), (HANG, None, "SIGABRT", "stopped")),
        holds=(("stderr.0", r"in wait_for_the_others"), ("stderr.2", r"in wait_for_the_others")),
    ),
]  # fmt: skip

ON_A_SMALL_DISK = [
    Death(
        "fills_its_disk", FILL.format(path="big"), INFRA, exit_status=1,
        reason="the disk was full while the script ran", notes=(r"the disk refused \d+ bytes of output",),
    ),
    Death(
        "fills_its_disk_and_cleans_up",
        "import os\ntry:\n    open('big', 'wb').write(bytes(64 << 20))\nexcept OSError:\n    pass\n"
        "os.unlink('big')\nos._exit(6)",
        ERROR, exit_status=6, title="exit 6",
    ),
    Death(
        "output_that_does_not_fit", "import os\nfor _ in range(20): os.write(1, bytes(1 << 20))\nos._exit(6)", INFRA,
        exit_status=6, reason="the disk was full while the script ran",
        notes=(r"the disk refused \d+ bytes of output",),
    ),
]  # fmt: skip
"""Run in a folder on a disk of 8 MB."""

DEATHS = [*BY_SIGNAL, *BY_STATUS, *MEMORY, *HANGS, *GREEDY, *TAMPERING, *RANKS]
