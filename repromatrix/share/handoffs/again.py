"""Runs a handed-over folder's attempt and says whether it ended as recorded: `reproduce.pyz` in the folder.

    python -I -S reproduce.pyz FOLDER SCRATCH PYTHON STACKS ATTEMPTS PLACE CUDA

runs `FOLDER/work` with PYTHON, the environment's interpreter, in SCRATCH, which is made and keeps the evidence. STACKS
is the folder of the programs that read stacks; where it is empty none are read. PLACE is `container`, where no other
process shares the memory cgroup, or `host`. CUDA: folders with CUDA's libraries, separated by colons; empty where the
environment brings its own. Standard library only; `reproduce.sh` starts it.
"""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from repromatrix.collected import OTHERWISE as OTHERWISE_TOLD
from repromatrix.collected import compiled, hlo_facts, undumped
from repromatrix.engines.attempt import AFTERMATH, own_bytes, read_raw, write_spec
from repromatrix.engines.base import Attempt, Raw
from repromatrix.engines.cdi import beyond_the_loader
from repromatrix.engines.dumps import MOST_FILES, PER_FILE, dropped, variables
from repromatrix.engines.local_cuda import CudaLibraries, find_libraries
from repromatrix.errors import ReproError
from repromatrix.evidence.hlo import describe
from repromatrix.evidence.outcome import COMPILE, Grade
from repromatrix.evidence.passes import pass_log, without_log
from repromatrix.evidence.ranks import grade_all
from repromatrix.evidence.stacks import INDEX, Stacks, frames_for, parse_index
from repromatrix.evidence.witness import Compiled
from repromatrix.output import say
from repromatrix.results.model import HloFacts
from repromatrix.share.handoffs.expected import NAME, Grading, Handoff, Start, from_json
from repromatrix.share.handoffs.verdict import OTHERWISE, REPRODUCED, UNKNOWN, Verdict, compare
from repromatrix.spec.model import Outcome

STATUS = {REPRODUCED: 10, OTHERWISE: 11, UNKNOWN: 13}
"""Exit statuses that nothing else gives: not a traceback, not a docker client whose daemon went away, no signal."""

NOFILE = 65536
"""As the engine sets it for its containers; a daemon may give 1024."""

PATIENCE = 15.0
"""Seconds past the last moment for a verdict until the supervisor itself is taken for stuck."""

LEAVING = 10.0
"""Seconds in which the supervisor, told to end, may end what it started; reproduce.sh waits longer than that."""

MOST_TEXTS = 16
"""Stacks that are looked at: as many as the tool reads."""

DEVICES = "devices_seen_here.py"
SEE_DEVICES = """import jax
devices = jax.devices()
print(f"{len(devices)} {devices[0].platform}")
"""
"""Prints what jax sees: `2 gpu`."""

SLOWER = 4
"""Times that a machine may be slower than the one where it was recorded: a deadline closer than that proves no hang."""

STARTING = 120.0
"""Seconds until jax must have said so."""

TAIL = 30
"""Lines shown of what the script said, where it ended otherwise."""


def main(arguments: Sequence[str]) -> int:
    """See above; returns a status of `STATUS`."""
    (folder, scratch, python, tools), (attempts, where, cuda) = map(Path, arguments[:4]), arguments[4:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as PID 1 it would be ignored
    try:
        handoff = from_json((folder / NAME).read_text(encoding="utf-8"))
        if (here := gpus()) < handoff.start.gpus:
            raise ReproError(f"it needs {handoff.start.gpus} NVIDIA GPUs, {here or 'none'} can be seen here")
        readers = tools if (tools / "pystack").is_dir() else None
        place = Place(folder, python, readers, where == "container", libraries(cuda, handoff.start.cuda, python))
        verdict = reproduce(place, scratch, handoff, int(attempts))
    except (OSError, ValueError, ReproError) as error:
        verdict = Verdict(UNKNOWN, error.line if isinstance(error, ReproError) else str(error))
    except KeyboardInterrupt:
        return 130
    say(f"{verdict.word}: {verdict.why}")
    return STATUS[verdict.word]


@dataclass(frozen=True, slots=True)
class Place:
    """Where attempts run.

    Attributes:
        folder: What was handed over.
        python: The environment's interpreter.
        tools: Folder of the programs that read stacks, or None.
        own_cgroup: Whether no other process shares the memory cgroup.
        cuda: CUDA's libraries of this machine, or None: the environment brings its own.
    """

    folder: Path
    python: Path
    tools: Path | None
    own_cgroup: bool
    cuda: CudaLibraries | None


def libraries(given: str, major: str, python: Path) -> CudaLibraries | None:
    """CUDA's libraries of this machine for an environment that takes those of CUDA `major`; None for any other.

    Raises:
        ReproError: They are not all there.
    """
    if not major:
        return None
    if not given:
        raise ReproError(f"it takes the libraries of CUDA {major} from this machine: name their folder with --cuda")
    found = find_libraries(given)
    if why := found.lacking(major):
        raise ReproError(why)
    # The environment's own ptxas counts where it locks one, as in the tool.
    own = any((python.parents[1] / "lib").glob("python*/site-packages/nvidia_cuda_nvcc*"))
    return replace(found, tools=None, ptxas="") if own else found


def reproduce(place: Place, scratch: Path, handoff: Handoff, attempts: int) -> Verdict:
    """Run up to `attempts` attempts, 0 = as many as the recorded rate asks for; tells of each.

    A recorded failure is reproduced by the first attempt that shows it; a recorded `ok` only by all of them.

    Raises:
        ReproError: An attempt could not be laid out.
        OSError: A disk or a process failed.
    """
    expected = handoff.expected
    counted = attempts > 0
    of = attempts or expected.repeat
    verdicts: list[Verdict] = []
    for number in range(1, of + 1):
        into = scratch / str(number)
        raw = attempt(place, into, handoff.start)
        seen, hlo = None, None
        if handoff.grading.compiled and raw.exit_status == 0 and not raw.infra:
            seen, hlo = look(place, into / "second", handoff)
        script = (place.folder / "work" / handoff.grading.source).read_bytes().decode("utf-8", "replace")
        found = graded(into, raw, handoff.start, handoff.grading, script, seen)
        verdict = compare(expected, found, hlo)
        if raw.timed_out and verdict.word == OTHERWISE and handoff.start.timeout < SLOWER * expected.seconds:
            slow = (
                f"{verdict.why}; it took {expected.seconds:.0f} s where it was recorded, and this machine may be slower"
            )
            verdict = Verdict(UNKNOWN, slow)
        verdicts.append(verdict)
        say(f"attempt {number} of {of}: {verdicts[-1].why}, {raw.seconds:.1f} s")
        if verdicts[-1].word == OTHERWISE:
            say(tail(into, raw))
        if verdicts[-1].word == UNKNOWN:
            return verdicts[-1]
        if verdicts[-1].word == (REPRODUCED if expected.outcome.failed else OTHERWISE) and not counted:
            break
    verdict = together(expected.outcome, verdicts)
    if handoff.start.gpus:
        why, ran = unreached(place, scratch / "devices", handoff.start)
        if why and (ran or not (verdict.word == REPRODUCED and expected.outcome.failed)):
            return Verdict(UNKNOWN, f"{why}; the attempt ended as {verdict.why}")
    return verdict


def unreached(place: Place, into: Path, start: Start) -> tuple[str, bool]:
    """Why jax does not reach the GPUs here, or nothing; and whether jax itself ran, and took the CPU without a word.

    Asked after the attempts: without a device, or a library of CUDA, jax runs on the CPU though JAX_PLATFORMS=cuda,cpu
    (0.4.38 to 0.10.2), and what ends well there says nothing of GPUs. Where CUDA's own start is the recorded failure,
    it has been compared by then.

    Raises:
        ReproError, OSError: It could not be laid out.
    """
    # XLA_FLAGS may be what makes it fail.
    env = tuple((name, value) for name, value in start.env if name not in ("XLA_FLAGS", "JAX_PLATFORMS"))
    asked = replace(
        start,
        script=DEVICES,
        arguments=(),
        env=(*env, ("JAX_PLATFORMS", "cuda,cpu")),
        timeout=STARTING,
        memory=None,
        processes=1,
    )
    raw = attempt(place, into, asked, SEE_DEVICES)
    if raw.exit_status != 0:
        said = [line for line in log(into, "stderr").splitlines() if line.strip()] or [raw.infra or "nothing was said"]
        return f"jax does not start on GPUs here: {said[-1].strip()[:300]}", False
    count, platform = log(into, "stdout").split()[-2:]
    if platform == "cpu" or int(count) < start.gpus:
        return f"jax sees {count} {platform} devices here, and it needs {start.gpus} GPUs", True
    return "", True


def together(outcome: Outcome, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several attempts, none of which is unknown."""
    wanted = REPRODUCED if outcome.failed else OTHERWISE
    deciding = next((one for one in verdicts if one.word == wanted), verdicts[-1])
    times = sum(one.word == deciding.word for one in verdicts)
    count = f" ({times} of {len(verdicts)} attempts)" if len(verdicts) > 1 else ""
    return replace(deciding, why=deciding.why + count)


def attempt(place: Place, into: Path, start: Start, program: str = "") -> Raw:
    """Run one attempt in the new folder `into`, below the same supervisor as in the tool.

    Args:
        program: Text of `start.script` where that is none of the folder's files.

    Raises:
        ReproError, OSError: It could not be laid out.
    """
    shutil.copytree(place.folder / "work", into / "work")
    for path in (into / "work", *(into / "work").rglob("*")):  # handed over on a medium that cannot be written
        path.chmod(path.stat().st_mode | 0o600)
    if program:
        (into / "work" / start.script).write_text(program)
    one = Attempt(
        id=start.id,
        folder=into,
        script=start.script,
        arguments=start.arguments,
        env=start.env,
        timeout=start.timeout,
        memory=start.memory,
        cpus=start.cpus,
        gpus=start.gpus,
        processes=start.processes,
        cores="off" if place.tools is None else "stacks",
        tools=place.tools,
        cuda=place.cuda,
    )
    env = {
        "PATH": f"{place.python.parent}:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(place.python.parent.parent),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(start.gpus))),
        **(gpu_env(place) if start.gpus else {}),
    }
    write_spec(
        one,
        python=str(place.python),
        root=str(into),
        stacks=str(place.folder / "stacks.py") if place.tools else "",
        tools=str(place.tools) if place.tools else None,
        env=env,
        watch_stdin=True,
        own_cgroup=place.own_cgroup,
    )
    for limit, wanted in ((resource.RLIMIT_NOFILE, NOFILE), (resource.RLIMIT_CORE, resource.RLIM_INFINITY)):
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(limit)
            resource.setrlimit(limit, (min(wanted, hard, key=lambda n: n & (1 << 64) - 1), hard))  # -1 is no limit
    said = supervise([sys.executable, "-I", "-S", str(place.folder / "supervise.py"), str(into)], start.timeout)
    return Raw(infra=said) if said else read_raw(into, start.id)


def gpu_env(place: Place) -> dict[str, str]:
    """Where CUDA and the driver are, as far as the loader does not know it by itself."""
    found = {} if place.cuda is None else place.cuda.variables(lambda folder: folder)
    if driver := beyond_the_loader():
        found["LD_LIBRARY_PATH"] = ":".join(filter(None, (found.get("LD_LIBRARY_PATH"), driver)))
    if tools := found.get("CUDA_ROOT"):
        found["PATH"] = f"{place.python.parent}:{tools}/bin:/usr/local/bin:/usr/bin:/bin"
    return found


def supervise(command: Sequence[str], timeout: float) -> str:
    """Run the supervisor to its end; why it gave no verdict, or nothing. Its standard input ends with this process."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            limit = time.monotonic() + timeout + AFTERMATH + PATIENCE
            while process.poll() is None and time.monotonic() < limit:
                time.sleep(0.05)
            if process.returncode is None:
                process.kill()
                return "the supervisor did not end"
            assert process.stderr is not None
            words = process.stderr.read(2000).decode("utf-8", "replace").strip()
            return "" if process.returncode == 0 else f"the supervisor ended with {process.returncode}: {words}"
        except BaseException:  # Ctrl-C: it ends all that the script started
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING)  # it writes until its end, and who called removes the folder then
            raise


def graded(
    place: Path,
    raw: Raw,
    start: Start,
    grading: Grading,
    script: str,
    seen: Compiled | None = None,
    *,
    stacks: bool = True,
) -> Grade:
    """What the evidence in `place` means, as the tool grades it.

    Args:
        script: Text of the reporter's script.
        seen: What was compiled, where the witness asks for it.
        stacks: Take what was read of stacks into account.
    """
    context = replace(grading.context(start, script), compiled=seen)
    suffixes = [f".{end.rank}" for end in raw.ranks] or [""]
    logs = [(log(place, f"stdout{suffix}"), log(place, f"stderr{suffix}")) for suffix in suffixes]
    if grading.tool == COMPILE:  # what was recorded logged its passes: no part of what the script said
        logs = [(stdout, without_log(stderr)) for stdout, stderr in logs]
    index = log(place, INDEX) if stacks else ""
    read = parse_index(index) if index else Stacks()
    texts = {stack.file: log(place, stack.file) for stack in read.stacks[:MOST_TEXTS] if stack.file}
    frames = [frames_for(read, texts, end.pid) for end in raw.ranks or (raw,)]
    found, _ = grade_all(raw, logs, context, frames)
    return found


def look(place: Place, into: Path, handoff: Handoff) -> tuple[Compiled, HloFacts | None]:
    """What is compiled in one more attempt, which dumps: dumping never changes the first one's verdict.

    Raises:
        ReproError, OSError: It could not be laid out.
    """
    start, level, witness = handoff.start, handoff.grading.compiled, handoff.grading.witness
    without: frozenset[str] = frozenset()
    while True:
        env, notes = variables(level, "../dump", start.env, without)
        shutil.rmtree(into, ignore_errors=True)
        raw = attempt(place, into, replace(start, env=env))
        stderr = log(into, f"stderr{decided(raw)}")
        unknown = dropped(stderr) - without
        if raw.infra or raw.exit_status == 0 or not unknown:
            break
        without |= unknown  # this version does not know them
    if raw.infra or raw.exit_status != 0:
        how = raw.infra or raw.signal or f"status {raw.exit_status}"
        return Compiled(trouble=f"{OTHERWISE_TOLD[0]}: {how}"), None
    dump = into / "dump"
    names = sorted(str(path.relative_to(dump)) for path in dump.rglob("*") if path.is_file())
    logged = pass_log(stderr)
    hlo = describe(names[:MOST_FILES], lambda name: text(dump, name) or "", logged, notes)
    lost = [*notes, *undumped(hlo, level), *sorted(f"this version does not know --{flag}" for flag in without)]
    whole = bool(hlo.modules) and not (lost or logged.cut or names[MOST_FILES:])
    hlo = replace(hlo, level=level, notes=tuple(lost), whole=whole)
    return compiled(dump, hlo, texts=witness is not None and bool(witness.hlo), read=text), hlo_facts(hlo)


def text(dump: Path, name: str) -> str | None:
    """A dump's text; None where it is too large or no file."""
    try:
        return own_bytes(dump, name, PER_FILE).decode("utf-8", "replace")
    except OSError:
        return None


def log(place: Path, name: str) -> str:
    """A log's text; empty where the script put something else there."""
    try:
        return own_bytes(place, name).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(place: Path, raw: Raw) -> str:
    """The last lines that the script wrote, indented."""
    said = log(place, f"stderr{decided(raw)}").strip() or log(place, f"stdout{decided(raw)}").strip()
    return "\n".join(f"    {line[:500]}" for line in said.splitlines()[-TAIL:]) or "    (it printed nothing)"


def decided(raw: Raw) -> str:
    """Ending of the names of the logs of the rank that decided; empty where there is one process."""
    return f".{next((end.rank for end in raw.ranks if end.pid == raw.pid), 0)}" if raw.ranks else ""


def gpus() -> int:
    """NVIDIA GPUs that can be seen here."""
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*"))
