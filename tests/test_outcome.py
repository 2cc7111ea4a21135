"""What recorded and made-up attempts mean."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.engines.base import Raw
from repromatrix.evidence.frames import stack_frames
from repromatrix.evidence.model import Signature
from repromatrix.evidence.outcome import Grade, GradeContext, grade, read_metrics
from repromatrix.evidence.signature import VERSION
from repromatrix.spec.model import Cell, Environment, Outcome, Repro, SignatureRule, Witness

DATA = Path(__file__).parent / "data" / "evidence"


def table() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = tomllib.loads((DATA / "expected.toml").read_text(encoding="utf-8"))["case"]
    return cases


def logs(name: str) -> tuple[str, str]:
    """Stdout and stderr of a recording; a missing file was empty."""
    paths = (None, DATA / name) if name.endswith((".txt", ".err")) else (DATA / f"{name}.out", DATA / f"{name}.err")
    stdout, stderr = (path.read_text(encoding="utf-8") if path and path.exists() else "" for path in paths)
    return stdout, stderr


def stacks(case: dict[str, Any]) -> list[tuple[str, ...]]:
    """The frames of each of a case's stacks; of a case without, that there are none."""
    texts = [(DATA / name).read_text(encoding="utf-8") for name in case.get("stacks", ())]
    return [stack_frames(each, case.get("thread")) for each in texts] or [()]


def ended(words: str) -> Raw:
    if words == "deadline":
        return Raw(signal="SIGKILL", timed_out=True)
    return Raw(exit_status=int(words.removeprefix("exit "))) if words.startswith("exit ") else Raw(signal=words)


@pytest.mark.parametrize(("case", "name"), [(case, name) for case in table() for name in case["files"]])
def test_recordings_are_graded_as_the_table_says(case: dict[str, Any], name: str) -> None:
    stdout, stderr = logs(name)
    silent = ("r40412", "r39257", "r30517", "stacks/segv.0", "none")
    assert stdout or stderr or case["ended"] == "exit 0" or name.startswith(silent)
    context = GradeContext(env=(("XLA_FLAGS", case.get("xla_flags", "")),), timeout=60)
    for frames in stacks(case):
        found = grade(ended(case["ended"]), stdout, stderr, context, frames)
        assert found.outcome == case["outcome"]
        assert (found.signature.title if found.signature else None) == case.get("title")
        assert set(case.get("alternatives", ())) <= set(found.signature.alternatives if found.signature else ())
        assert (found.signature is None) == (found.outcome is Outcome.OK)


def test_a_stack_changes_the_title_only_where_nothing_but_the_signal_was_known() -> None:
    met = bare = 0
    for case in table():
        for name in case["files"]:
            without = grade(ended(case["ended"]), *logs(name), GradeContext()).signature
            if without is None:
                continue
            for frames in stacks(case):
                found = grade(ended(case["ended"]), *logs(name), GradeContext(), frames).signature
                assert found is not None
                if without.title in ("hang", "signal SIGSEGV", "signal SIGABRT"):
                    bare += 1
                else:
                    assert without.title in found.titles, name
                    met += 1
    assert met > 60
    assert bare > 5


def test_the_table_agrees_with_the_measured_truth() -> None:
    outcomes = {name: case["outcome"] for case in table() for name in case["files"]}
    # Recorded with two CPUs, where the bug does not show; and by a launcher that returned 0 for a failed rank.
    differ = {"r24255@0.4.34", "r24255@0.4.38"}
    checked = 0
    for case in tomllib.loads((DATA / "truth.toml").read_text(encoding="utf-8")).values():
        stem = case.get("script", "").removesuffix(".py")
        for key, versions in case.items():
            word = key.partition(":")[0]
            if word not in ("ok", "error", "crash", "hang", "oom") or not stem:
                continue
            for name in (f"{stem}@{version}" for version in versions):
                if name in outcomes and name not in differ:
                    assert outcomes[name] == word, name
                    checked += 1
    assert checked == 59


def test_no_signature_is_shared_by_two_reports_unless_nothing_can_be_known() -> None:
    by_title: dict[str, set[str]] = {}
    for case in table():
        for name in case["files"]:
            found = grade(ended(case["ended"]), *logs(name), GradeContext())
            for title in found.signature.titles if found.signature else ():
                by_title.setdefault(title, set()).add(
                    name.removeprefix("fh_").removeprefix("stacks/").partition("@")[0].partition("_0")[0]
                )
    shared = {title for title, reports in by_title.items() if len({r[:8] for r in reports}) > 1}
    # Several recordings of one report share (mix_*, segv.*); a bare signal, status or hang says nothing.
    own = ("setup ", "absl-fatal hlo_pass", "absl-fatal in", "signal SIGSEGV at __init__.py string_at from segv.py")
    assert {title for title in shared if not title.startswith(own)} == {"signal SIGSEGV", "exit 1", "hang"}


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "/w/r.py", line 3, in <module>\n    f()\n{line}\n'


# ---- infrastructure, deadline, exit 0 --------------------------------------------------------------------------------

FATAL = "F1130 01:42:11.240836   23732 a.cc:82] broken\n"


def test_infrastructure_comes_before_everything() -> None:
    found = grade(
        Raw(infra="container not created: no space left", timed_out=True, signal="SIGABRT"), "", FATAL, GradeContext()
    )
    assert found == Grade(Outcome.INFRA, None, "SIGABRT", None, "container not created: no space left")
    assert grade(Raw(), "", "", GradeContext()).outcome is Outcome.INFRA


def test_the_deadline_is_a_hang_whatever_ended_it() -> None:
    found = grade(Raw(signal="SIGABRT", timed_out=True), "", FATAL, GradeContext(timeout=90))
    assert (found.outcome, found.reason) == (Outcome.HANG, "still running at the deadline of 90 s, after a.cc: broken")
    quiet = grade(Raw(signal="SIGABRT", timed_out=True), "", "Fatal Python error: Aborted\n", GradeContext(timeout=90))
    assert quiet.reason == "still running at the deadline of 90 s"
    killed = grade(Raw(signal="SIGABRT", timed_out=True, oom_kills=1), "", "", GradeContext(timeout=90))
    assert killed.reason == "still running at the deadline of 90 s; 1 process of it killed by the kernel for memory"
    frames = stack_frames((DATA / "pystack-remote-native-all.hang.txt").read_text(encoding="utf-8"))
    stuck = grade(Raw(exit_status=0, timed_out=True), "", "", GradeContext(), frames)
    assert (stuck.outcome, stuck.signature) == (
        Outcome.HANG,
        Signature("hang at hang.py cb", ("hang from hang.py cb",), VERSION),
    )


def test_exit_0_is_ok_whatever_was_printed() -> None:
    found = grade(Raw(exit_status=0), "", FATAL + "Traceback (most recent call last):\nValueError: x\n", GradeContext())
    assert found == Grade(Outcome.OK, 0, None, None, "")


def test_a_missing_witness_is_inconclusive() -> None:
    context = GradeContext(witness=Witness(output=("jit ran", r"growth \d+", "compile+run", "(")))
    seen = grade(Raw(exit_status=0), "jit ran\ngrowth 3\ncompile+run (", "", context)
    assert seen.outcome is Outcome.OK
    lost = grade(Raw(exit_status=0), "jit ran\n", "growth 4", context)
    assert lost.outcome is Outcome.INCONCLUSIVE
    assert lost.reason == "exit 0, but the output lacks 'compile+run', '('"
    assert grade(Raw(exit_status=1), "", "", context).outcome is Outcome.ERROR


def test_a_witness_in_the_middle_of_a_large_output_is_seen() -> None:
    stdout = "x" * 5_000_000 + "\njit ran\n" + "y" * 5_000_000
    assert (
        grade(Raw(exit_status=0), stdout, "", GradeContext(witness=Witness(output=("jit ran",)))).outcome is Outcome.OK
    )


@pytest.mark.parametrize("witness", [Witness(hlo=("while",)), Witness(passes=("algsimp",))])
def test_a_witness_in_the_hlo_is_never_taken_as_seen(witness: Witness) -> None:
    found = grade(Raw(exit_status=0), "while algsimp", "", GradeContext(witness=witness))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "the HLO was not collected" in found.reason


def test_exit_125_is_skip() -> None:
    assert grade(Raw(exit_status=125), "", FATAL, GradeContext()).outcome is Outcome.SKIP


# ---- GPUs, drivers and CUDA that are not there -----------------------------------------------------------------------

GPU_LOGS = Path(__file__).parent / "data" / "gpu"
"""Stderr of jax without a device node, without libcuda, with one whose cuInit refuses, and without libcudart."""

OWN, HOSTS = GradeContext(on_gpu=True), GradeContext(on_gpu=True, host_cuda=True)
CU_INIT = "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: "


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (
            "driver_mismatch@0.10.2",
            CU_INIT + "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: "
            "system has unsupported display driver / cuda driver combination",
        ),
        (
            "driver_mismatch@0.4.30",
            "failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: "
            "system has unsupported display driver / cuda driver combination",
        ),
        ("no_device@0.8.0", f"{CU_INIT}CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"),
        ("not_ready@0.6.2", f"{CU_INIT}CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized"),
        ("no_libcuda@0.9.2", f"{CU_INIT}UNKNOWN ERROR (303)"),
        ("no_libcuda@0.5.3", f"{CU_INIT}UNKNOWN ERROR (303)"),
        (
            "no_node@0.4.30",
            "No visible GPU devices. (set JAX_PLATFORMS='' to automatically choose an available backend)",
        ),
    ],
)
def test_a_driver_that_does_not_serve_is_infrastructure(name: str, cause: str) -> None:
    stderr = (GPU_LOGS / f"{name}.err").read_text(encoding="utf-8")
    for context in (OWN, HOSTS):
        found = grade(Raw(exit_status=1, gpus_idle=True), "", stderr, context)
        assert (found.outcome, found.signature) == (Outcome.INFRA, None)
        assert found.reason.startswith("the host's GPUs did not serve: " + cause.partition(" (set")[0])
        assert found.reason.endswith(", exit status 1")
        # What the host saw of the memory is not needed.
        assert grade(Raw(exit_status=1), "", stderr, context).outcome is Outcome.INFRA
    assert grade(Raw(exit_status=1), "", stderr, GradeContext()).outcome is Outcome.ERROR  # a cpu target


@pytest.mark.parametrize("name", ["no_cudart@0.10.2", "no_cudart@0.6.2", "no_cudnn@0.10.2"])
def test_a_cuda_that_does_not_load_is_the_fault_of_whose_it_is(name: str) -> None:
    stderr = (GPU_LOGS / f"{name}.err").read_text(encoding="utf-8")
    hosts = grade(Raw(exit_status=1), "", stderr, HOSTS)
    library = "cuDNN" if "cudnn" in name else "CUDA"
    words = (f"Unable to load {library}. Is it installed?", "Could not find cuda drivers on your machine")
    assert (hosts.outcome, hosts.signature) == (Outcome.INFRA, None)
    assert hosts.reason.partition(": ")[2].startswith(words)
    own = grade(Raw(exit_status=1, gpus_idle=True), "", stderr, OWN)  # wheels that lack it, or do not find it
    assert own.outcome is Outcome.ERROR
    assert own.signature is not None
    assert own.signature.title.startswith("py-exc RuntimeError: Unable to initialize backend 'cuda'")


def test_a_run_on_the_cpu_in_place_of_the_gpu_is_never_well() -> None:
    stderr = (GPU_LOGS / "on_the_cpu@0.9.2.err").read_text(encoding="utf-8")
    told = grade(Raw(exit_status=0, gpus_idle=True), "3.0\n", stderr, HOSTS)
    assert told.outcome is Outcome.INFRA
    assert told.reason == "exit 0, but not on a GPU: Could not find cuda drivers on your machine"
    assert grade(Raw(exit_status=0), "", stderr, HOSTS).outcome is Outcome.INFRA  # NVML did not tell
    silent = grade(Raw(exit_status=0, gpus_idle=True), "3.0\n", "", OWN)  # as 0.10.2 does without a device node
    assert (silent.outcome, silent.reason) == (
        Outcome.INCONCLUSIVE,
        "exit 0, but no memory of its GPUs was used: it ran on the CPU",
    )
    assert grade(Raw(exit_status=0, device_memory=1 << 29), "", stderr, HOSTS).outcome is Outcome.OK  # a child's words
    assert grade(Raw(exit_status=0), "", "", OWN).outcome is Outcome.OK
    assert grade(Raw(exit_status=0, gpus_idle=True), "", stderr, GradeContext()).outcome is Outcome.OK


UNAVAILABLE = raised("RuntimeError: Unable to initialize backend 'cuda': {}")
NOT_LISTED = "Backend 'cuda' is not in the list of known backends: ['cpu', 'tpu']."
PLUGIN = (
    "JAX plugin jax_cuda13_plugin version 0.11.2 is installed, but it is not compatible with the installed jaxlib "
    "version 0.10.2, so it will not be used.\n"
)


@pytest.mark.parametrize(
    ("stderr", "outcome"),
    [
        (PLUGIN + UNAVAILABLE.format(NOT_LISTED), Outcome.ERROR),
        (UNAVAILABLE.format(NOT_LISTED), Outcome.ERROR),
        (UNAVAILABLE.format("INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.54)"), Outcome.ERROR),
        (UNAVAILABLE.format("INTERNAL: CUDA_ERROR_NOT_INITIALIZED: initialization error"), Outcome.ERROR),
        (
            raised("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9"),
            Outcome.OOM,
        ),
        (
            raised("jax.errors.JaxRuntimeError: INTERNAL: CUDA error: : CUDA_ERROR_ILLEGAL_ADDRESS: an il"),
            Outcome.ERROR,
        ),
        (raised("jax.errors.JaxRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable E"), Outcome.INFRA),
        # The driver was found wanting, and yet something else failed: it ran on a GPU.
        (f"{CU_INIT}CUDA_ERROR_NO_DEVICE: no\n" + raised("ValueError: bad shape"), Outcome.ERROR),
    ],
)
def test_an_error_with_another_cause_keeps_its_verdict(stderr: str, outcome: Outcome) -> None:
    for context in (OWN, HOSTS):
        assert grade(Raw(exit_status=1, device_memory=1 << 29), "", stderr, context).outcome is outcome


def test_what_fails_since_nothing_ran_on_the_gpu_is_no_verdict() -> None:
    stderr = f"{CU_INIT}CUDA_ERROR_NO_DEVICE: no\n" + raised("AssertionError: 2 GPUs wanted, 0 here")
    assert grade(Raw(exit_status=1, gpus_idle=True), "", stderr, OWN).outcome is Outcome.INFRA
    assert grade(Raw(exit_status=1), "", stderr, OWN).outcome is Outcome.ERROR
    refused = unknown("--xla_a") + stderr
    ours = GradeContext(env=(("XLA_FLAGS", "--xla_a"),), on_gpu=True)
    assert grade(Raw(exit_status=1, gpus_idle=True), "", refused, ours).outcome is Outcome.SKIP


def test_a_library_of_the_host_that_is_too_old() -> None:
    stderr = (GPU_LOGS / "no_cudnn@0.10.2.err").read_text(encoding="utf-8")
    told = "Unable to load cuDNN. Is it installed?"
    assert told in stderr
    # As jax has said it since 0.4.26 (jax-ml/jax#18027).
    words = (
        "Unable to use CUDA because of the following issues with CUDA components:\nOutdated cuDNN installation found."
    )
    stderr = stderr.replace(told, f"{words}\nVersion JAX was built against: 91200\nInstalled version: 91100")
    assert grade(Raw(exit_status=1), "", stderr, OWN).outcome is Outcome.ERROR
    found = grade(Raw(exit_status=1), "", stderr, HOSTS)
    assert (found.outcome, found.reason) == (
        Outcome.INFRA,
        "the host's GPUs did not serve: Outdated cuDNN installation found, exit status 1",
    )


def test_the_context_of_cells_on_gpus() -> None:
    repro = Repro("r", Path("r.py"), "", "0")

    def context(target: str, cuda: str) -> tuple[bool, bool]:
        environment = Environment((("jax", "0.10.2"), ("cuda", cuda), ("python", "3.12")))
        found = GradeContext.of(Cell(environment, repro, (), target))
        return found.on_gpu, found.host_cuda

    assert context("gpu", "13-local") == context("gpu:8", "12-local") == (True, True)
    assert context("gpu:2", "13") == (True, False)
    assert context("cpu:8", "12-local") == context("cpu", "none") == (False, False)


# ---- flags -----------------------------------------------------------------------------------------------------------


def unknown(flags: str) -> str:
    return f"F1130 01:10:36.640932    1561 parse_flags_from_env.cc:234] Unknown flags in XLA_FLAGS: {flags}\n"


def test_a_flag_that_we_set_is_a_skip_that_names_it() -> None:
    context = GradeContext(env=(("XLA_FLAGS", "--xla_known=1 --xla_a=1 --xla_b"),))
    for raw in (Raw(signal="SIGABRT"), Raw(exit_status=1), Raw(exit_status=134)):
        found = grade(raw, "", unknown("--xla_a=1 --xla_b"), context)
        assert (found.outcome, found.reason) == (Outcome.SKIP, "this version does not know --xla_a=1 --xla_b")
        assert found.signature == Signature("flag unknown: --xla_a --xla_b", (), VERSION)


def test_a_library_that_this_host_does_not_load_is_a_skip() -> None:
    """jaxlib 0.5.1 with glibc 2.41; its words, but for the folder."""
    trace = 'Traceback (most recent call last):\n  File "/env/jaxlib/xla_client.py", line 33, in <module>\n'
    trace += "    from . import xla_extension as _xla\nImportError: /env/jaxlib/xla_extension.so: "
    words = "cannot enable executable stack as shared object requires: Invalid argument\n"
    found = grade(Raw(exit_status=1), "", trace + words, GradeContext())
    assert found.outcome is Outcome.SKIP
    assert "refuses the executable stack" in found.reason
    other = "cannot open shared object file: No such file or directory\n"
    assert grade(Raw(exit_status=1), "", trace + other, GradeContext()).outcome is Outcome.ERROR


def test_a_flag_from_nowhere_stays_a_failure() -> None:
    context = GradeContext(env=(("XLA_FLAGS", "--xla_a=1 --xla_beta=1"),))
    found = grade(Raw(signal="SIGABRT"), "", unknown("--xla_a=1 --xla_b=1"), context)
    assert (found.outcome, found.reason) == (Outcome.CRASH, "")
    assert found.signature == Signature("flag unknown: --xla_a --xla_b", (), VERSION)


def test_a_flag_of_the_scripts_own_text_or_of_a_parameter_is_ours() -> None:
    source = 'import os\nos.environ["XLA_FLAGS"] = f"--xla_a=1 --{flag}=true"\n'
    repro = Repro("r", Path("r.py"), source, "0")
    environment = Environment((("jax", "0.6.0"), ("cuda", "none"), ("python", "3.11")))
    cell = Cell(environment, repro, (("flag", "xla_b"),), "cpu")
    assert grade(Raw(exit_status=1), "", unknown("--xla_a=1 --xla_b=true"), cell).outcome is Outcome.SKIP
    assert grade(Raw(exit_status=1), "", unknown("--xla_c"), cell).outcome is Outcome.ERROR


def test_another_failure_beside_a_refused_flag_is_not_hidden() -> None:
    both = unknown("--xla_a") + FATAL
    ours = GradeContext(source='run_child("--xla_a")')
    assert (
        grade(Raw(signal="SIGABRT"), "", unknown("--xla_a") + "Fatal Python error: Aborted\n", ours).outcome
        is Outcome.SKIP
    )
    assert grade(Raw(signal="SIGABRT"), "", both, ours).outcome is Outcome.CRASH
    everywhere = GradeContext(env=(("XLA_FLAGS", "--xla_a"),))
    assert grade(Raw(signal="SIGABRT"), "", both, everywhere).outcome is Outcome.SKIP


def test_a_script_that_says_a_flag_is_refused_is_no_skip() -> None:
    stderr = "refused: this XLA has no flag xla_gpu_enable_pipelined_collectives\n"
    found = grade(
        Raw(exit_status=1),
        "REPRO_METRIC child_exit=134\n",
        stderr,
        GradeContext(source="xla_gpu_enable_pipelined_collectives"),
    )
    assert (found.outcome, found.metrics) == (Outcome.ERROR, (("child_exit", 134.0),))


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "stderr", "reason"),
    [
        (Raw(exit_status=1), raised("MemoryError"), "memory ran out (MemoryError), exit status 1"),
        (
            Raw(signal="SIGABRT"),
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "memory ran out (std::bad_alloc), ended by SIGABRT",
        ),
        (
            Raw(exit_status=1),
            raised("jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."),
            "memory ran out (RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes), exit status 1",
        ),
        (Raw(signal="SIGKILL", oom_kills=1), "", "1 process killed by the kernel for memory, ended by SIGKILL"),
        (
            Raw(signal="SIGKILL", oom_kills=2, peak_memory=3 << 30),
            "",
            "2 processes killed by the kernel for memory (limit 4 GiB, peak 3 GiB), ended by SIGKILL",
        ),
        (
            Raw(signal="SIGKILL", oom_kills=1, over_limit=True, peak_memory=5 << 30),
            "",
            "killed at the limit of 4 GiB (peak 5 GiB), ended by SIGKILL",
        ),
        (Raw(signal="SIGKILL", over_limit=True), "", "killed at the memory limit, ended by SIGKILL"),
        (Raw(exit_status=137, oom_kills=1), "", "1 process killed by the kernel for memory, exit status 137"),
        (
            Raw(exit_status=1, oom_kills=1),
            raised("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>."),
            "1 process killed by the kernel for memory, exit status 1",
        ),
    ],
)
def test_all_ways_to_run_out_of_memory(raw: Raw, stderr: str, reason: str) -> None:
    limit = 4 << 30 if raw.peak_memory else None
    found = grade(raw, "", stderr, GradeContext(memory=limit))
    assert (found.outcome, found.reason) == (Outcome.OOM, reason)
    assert found.signature is not None
    assert found.signature.title.startswith("oom")


def test_a_kill_without_a_counted_shortage_is_a_crash() -> None:
    found = grade(Raw(signal="SIGKILL"), "", "", GradeContext())
    assert (found.outcome, found.signature) == (Outcome.CRASH, Signature("signal SIGKILL", (), VERSION))
    assert found.reason == "killed from outside: no kernel kill for memory was counted"


def test_memory_that_is_not_what_failed_is_told_and_no_more() -> None:
    warning = "W1130 01:42:11.240836 23732 bfc_allocator.cc:1] Allocator ran out of memory; this is not a failure\n"
    assert grade(Raw(exit_status=1), "", warning + raised("ValueError: x"), GradeContext()).outcome is Outcome.ERROR
    shared = raised("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: 300 of 200")
    assert grade(Raw(exit_status=1), "", shared, GradeContext()).outcome is Outcome.ERROR
    child = grade(Raw(exit_status=1, oom_kills=1), "", raised("ValueError: x"), GradeContext())
    assert (child.outcome, child.reason) == (Outcome.ERROR, "1 process of it killed by the kernel for memory")
    fine = grade(Raw(exit_status=0, oom_kills=1), "", "", GradeContext())
    assert (fine.outcome, fine.reason) == (Outcome.OK, "exit 0, though the kernel killed 1 process of it for memory")


# ---- status and signal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "signal"), [(134, "SIGABRT"), (139, "SIGSEGV"), (137, "SIGKILL"), (143, "SIGTERM")])
def test_a_shells_status_stays_and_the_signal_is_told(status: int, signal: str) -> None:
    found = grade(Raw(exit_status=status), "", "Aborted (core dumped)\n" * (status == 134), GradeContext())
    assert (found.outcome, found.exit_status, found.signal) == (Outcome.ERROR, status, None)
    assert found.reason == f"exit status {status} stands for {signal} of a child, as shells pass it on"
    assert found.signature == Signature(f"signal {signal}", (), VERSION)


def test_plain_statuses_have_no_reason() -> None:
    assert grade(Raw(exit_status=3), "", "", GradeContext()) == Grade(
        Outcome.ERROR, 3, None, Signature("exit 3", (), VERSION), ""
    )
    assert grade(Raw(exit_status=200), "", "", GradeContext()).reason == ""
    assert grade(Raw(signal="SIGSEGV"), "done", "", GradeContext()).outcome is Outcome.CRASH


# ---- metrics, rules -------------------------------------------------------------------------------------------------


def test_metrics() -> None:
    stdout = (
        "REPRO_METRIC growth=3.62\nnot REPRO_METRIC a=1\nREPRO_METRIC a.b/c = -1e-3\r\nREPRO_METRIC growth=2\n"
        "REPRO_METRIC x=nan\nREPRO_METRIC y=inf\nREPRO_METRIC z\nREPRO_METRIC w=1 2\nREPRO_METRICS v=1\n"
    )
    values, notes = read_metrics(stdout)
    assert values == (("growth", 2.0), ("a.b/c", -0.001))
    assert [note.partition("'")[2].partition("'")[0] for note in notes] == [
        "REPRO_METRIC x=nan",
        "REPRO_METRIC y=inf",
        "REPRO_METRIC z",
        "REPRO_METRIC w=1 2",
    ]


def test_the_projects_rules_name_a_failure() -> None:
    context = GradeContext(rules=(SignatureRule("CpuExecutable has no *", r"without \1"),))
    stdout, stderr = logs("r30554@0.7.1")
    found = grade(Raw(exit_status=1), stdout, stderr, context)
    assert found.signature == Signature("without thunks.", (), VERSION)


RAWS = st.builds(
    Raw,
    exit_status=st.none() | st.integers(0, 255),
    signal=st.none() | st.sampled_from(["SIGABRT", "SIGSEGV", "SIGKILL"]),
    timed_out=st.booleans(),
    oom_kills=st.integers(0, 2),
    infra=st.sampled_from(["", "engine gone"]),
)


@given(RAWS, st.text(), st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_end_and_any_text_has_a_verdict(raw: Raw, stdout: str, stderr: str) -> None:
    found = grade(raw, stdout, stderr, GradeContext())
    assert (found.signature is not None) or not found.outcome.failed
    assert (found.outcome is Outcome.OK) == (raw.exit_status == 0 and not raw.timed_out and not raw.infra)
    assert (found.outcome is Outcome.INFRA) == bool(
        raw.infra or (raw.exit_status is None and raw.signal is None and not raw.timed_out)
    )


def test_metrics_without_end_are_cut() -> None:
    values, notes = read_metrics("".join(f"REPRO_METRIC m{n}={n}\n" for n in range(5000)) + "REPRO_METRIC m0=7\n")
    assert len(values) == 1000
    assert values[0] == ("m0", 7.0)
    assert notes == ("4000 metrics left out: more than 1000 names",)


COMPILING, PROBING = GradeContext(tool="compile.py"), GradeContext(tool="probe.py")


def test_a_mistake_in_what_is_to_be_compiled_is_no_error_of_the_version() -> None:
    said = "compile.py: bug.py has no program(devices, **params), so it cannot be compiled without a device\n"
    found = grade(Raw(exit_status=2), "", said, COMPILING)
    assert (found.outcome, found.signature) == (Outcome.INCONCLUSIVE, None)
    assert found.reason == f"compile.py found nothing out: {said.strip()}"
    assert grade(Raw(exit_status=1), "", "RuntimeError: INTERNAL: it fails\n", COMPILING).outcome is Outcome.ERROR
    assert grade(Raw(exit_status=2), "", said, GradeContext()).outcome is Outcome.ERROR, "a script's own 2 is an error"


def test_a_script_that_ends_before_its_program_was_compiled_is_no_ok() -> None:
    found = grade(Raw(exit_status=0), "jax 0.10.2 imported in 0.40 s\nlowered in 0.01 s\n", "", COMPILING)
    assert (found.outcome, found.reason) == (
        Outcome.INCONCLUSIVE,
        "exit 0, but nothing was compiled: the script ended before its program was",
    )
    assert grade(Raw(exit_status=0), "lowered in 0.01 s\ncompiled in 0.20 s\n", "", COMPILING).outcome is Outcome.OK
    assert grade(Raw(exit_status=0), "", "", GradeContext()).outcome is Outcome.OK


def test_what_cannot_be_compiled_without_a_device_is_a_skip_that_says_why() -> None:
    said = (
        "jax 0.8.0 imported in 0.40 s\ncannot compile without a device: jax 0.8.0: it asks cuDNN, and there is none\n"
    )
    found = grade(Raw(exit_status=125), said, "", COMPILING)
    assert (found.outcome, found.reason) == (Outcome.SKIP, said.splitlines()[1])


def test_a_probe_without_an_answer_is_inconclusive() -> None:
    found = grade(Raw(exit_status=1), "", "flags: NoAnswer: status 139 with an invented flag alone\n", PROBING)
    assert (found.outcome, found.signature) == (Outcome.INCONCLUSIVE, None)
    assert "NoAnswer" in found.reason
    absent = grade(Raw(exit_status=125), "not installed: jax-cuda12-pjrt\n", "", PROBING)
    assert (absent.outcome, absent.reason) == (Outcome.SKIP, "not installed: jax-cuda12-pjrt")
