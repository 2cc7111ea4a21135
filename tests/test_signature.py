"""Signatures of recorded failures, of the ten shapes that are easy to get wrong, and of any text at all."""

from __future__ import annotations

import io
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repromatrix.errors import UserError
from repromatrix.evidence.failure import failures
from repromatrix.evidence.frames import fault_frames, function, significant, stack_frames
from repromatrix.evidence.model import Signature
from repromatrix.evidence.rules import apply_rules, pattern
from repromatrix.evidence.signature import VERSION, sign
from repromatrix.evidence.text import TITLE, condense, normalise, shorten
from repromatrix.spec.model import Outcome, SignatureRule

DATA = Path(__file__).parent / "data" / "evidence"
NOOP = "reported that it changed the HLO but the hash of HLO was not updated."


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def crash(stderr: str, signal: str = "SIGABRT", frames: tuple[str, ...] = ()) -> Signature:
    signature = sign(Outcome.CRASH, signal, stderr, frames=frames)
    assert signature is not None
    return signature


def error(stderr: str, stdout: str = "", exit_status: int = 1) -> Signature:
    signature = sign(Outcome.ERROR, None, stderr, stdout, exit_status=exit_status)
    assert signature is not None
    return signature


def raised(line: str, after: str = "") -> str:
    return (
        f'Traceback (most recent call last):\n  File "/w/r.py", line 3, in <module>\n    f()\n    ^^^\n{line}\n{after}'
    )


# ---- the same bug in several releases, several bugs in one -----------------------------------------------------------


def test_the_same_check_meets_across_releases_and_another_check_does_not() -> None:
    noop = {v: crash(text(f"stderr.jax-{v}.noop_change.txt")) for v in ("0.6.0", "0.7.1", "0.7.2", "0.10.2")}
    silent = {v: crash(text(f"stderr.jax-{v}.silent_hlo_change.txt")) for v in ("0.6.1", "0.6.2", "0.7.0")}
    for one in noop.values():
        assert all(one.titles & other.titles for other in noop.values())
        assert not any(one.titles & other.titles for other in silent.values())
    for one in silent.values():
        assert all(one.titles & other.titles for other in silent.values())
    assert noop["0.7.1"].title == noop["0.7.2"].title == noop["0.10.2"].title != noop["0.6.0"].title


def test_the_pass_is_named_in_the_title_and_left_out_of_an_alternative_only() -> None:
    old, new = (crash(text(f"stderr.jax-{v}.noop_change.txt")) for v in ("0.6.0", "0.10.2"))
    assert "'flatten-call-graph'" in old.title
    assert "'layout-assignment'" in new.title
    assert old.titles & new.titles == {f"absl-fatal hlo_pass_pipeline.cc: Pass * in pipeline * {NOOP}"}


def test_frames_replace_the_file_never_the_message() -> None:
    signature = crash(text("stderr.jax-0.10.2.noop_change.txt"))
    assert (
        f"absl-fatal in xla::HloPassPipeline::RunPassesInternal<T>: Pass * in pipeline * {NOOP}"
        in signature.alternatives
    )


def test_renamed_exception_classes_are_one_status() -> None:
    for name in ("jaxlib.xla_extension.XlaRuntimeError", "jaxlib._jax.XlaRuntimeError", "jax.errors.JaxRuntimeError"):
        assert error(raised(f"{name}: INTERNAL: no thunks")).title == "xla-status INTERNAL: no thunks"
        assert error(raised(f"{name}: something without a code")).title == (
            "py-exc JaxRuntimeError: something without a code"
        )


def test_a_status_can_be_claimed_by_its_code_first() -> None:
    signature = error(raised("jaxlib._jax.XlaRuntimeError: FAILED_PRECONDITION: the async_computation is bad"))
    assert "FAILED_PRECONDITION the async_computation is bad" in signature.alternatives


def test_both_fatal_formats_give_one_title() -> None:
    old = "2026-11-30 01:01:36.167815: F external/xla/xla/service/x.cc:234] Check failed: a == b (3 vs. 5) odd"
    new = "F1130 01:01:38.474330   24233 x.cc:999] Check failed: a == b (7 vs. 8) odd"
    early = "F0000 00:00:1733270000.123456   24233 x.cc:7] Check failed: a == b (7 vs. 8) odd"
    assert {crash(line).title for line in (old, new, early)} == {"check x.cc: a == b odd"}


def test_ret_check_and_pass_are_part_of_a_status() -> None:
    message = (
        "jaxlib._jax.XlaRuntimeError: INTERNAL: RET_CHECK failure (external/xla/xla/service/hlo_verifier.cc:1234) "
        "user->opcode() == HloOpcode::kCopy bad user\nwith more text.\nFailed after pipeline-start"
    )
    signature = error(raised(message))
    assert signature.title == (
        "xla-status INTERNAL hlo_verifier.cc after pipeline-start: user->opcode() == HloOpcode::kCopy bad user"
    )
    other = error(raised(message.replace("pipeline-start", "all-reduce-splitter").replace("1234", "1301")))
    assert other.title != signature.title
    assert other.titles & signature.titles


def test_error_codes_are_kept() -> None:
    assert "E1001: CompileTimeOom" in error(raised("JaxRuntimeError: ABORTED: E1001: CompileTimeOom: 77 bytes")).title


def test_a_callback_that_raises_is_named_by_what_it_raised_in_all_three_wordings() -> None:
    titles = set()
    for words in (
        "Generated function failed: CpuCallback error:",
        "CpuCallback error:",
        "CpuCallback error calling callback:",
    ):
        head = f"jaxlib.xla_extension.XlaRuntimeError: INTERNAL: {words} Traceback (most recent call last):\n"
        nested = '  File "/w/r.py", line 3, in <module>\n  File "/w/r.py", line 9, in cb\nValueError: boom'
        titles.add(error(raised(head + nested)).title)
    assert titles == {"xla-status INTERNAL: CpuCallback error: ValueError: boom"}


def test_two_exceptions_of_one_class_are_two() -> None:
    one, other = error(raised("KeyError: 'alpha'")), error(raised("KeyError: 'beta'"))
    assert not one.titles & other.titles


# ---- ten shapes ------------------------------------------------------------------------------------------------------


def test_shape_1_the_last_line_is_noise() -> None:
    tracer = error(text("r25847@0.4.38.err")).title
    assert tracer.startswith("py-exc UnexpectedTracerError: Encountered an unexpected tracer.")
    assert error(text("r30554@0.7.1.err")).title == "xla-status INTERNAL: CpuExecutable has no thunks."


def test_shape_2_empty_stderr_and_success_on_stdout_then_a_signal() -> None:
    signature = sign(Outcome.CRASH, "SIGSEGV", "", text("fh_r30517@0.7.0.out"))
    assert signature == Signature("signal SIGSEGV", (), VERSION)


def test_shape_3_a_waiting_main_thread_is_not_the_crash_and_frame_0_is_not_the_component() -> None:
    assert fault_frames(text("fh_r40412@0.10.2.err")) == ()
    assert crash(text("fh_r40412@0.10.2.err"), "SIGSEGV").title == "signal SIGSEGV"
    assert crash(text("fh_r30517@0.7.0.err"), "SIGSEGV").title == "signal SIGSEGV at weakref.py remove"
    one = crash("", "SIGSEGV", ("slinky::optimize_dims", "slinky::for_each<T>", "xla::cpu::YnnFusionThunk::Execute"))
    other = crash("", "SIGSEGV", ("slinky::can_fuse", "xla::cpu::YnnFusionThunk::Execute"))
    assert one.title == "signal SIGSEGV in slinky::optimize_dims"
    assert one.titles & other.titles == {"signal SIGSEGV in slinky::*"}
    xla = [crash("", "SIGSEGV", (frame,)) for frame in ("xla::A::Run", "xla::B::Run")]
    assert not xla[0].titles & xla[1].titles


@pytest.mark.parametrize("word", ["flag", "flags"])
def test_shape_4_unknown_flags_in_both_wordings_and_a_bad_value_before_its_usage_text(word: str) -> None:
    line = (
        f"F1130 01:10:36.640932    1561 parse_flags_from_env.cc:234] Unknown {word} in XLA_FLAGS: --xla_a=1 --xla_b=2"
    )
    assert error(line).title == "flag unknown: --xla_a --xla_b"
    usage = text("flags_xla_cpu_use_thunk_runtime=maybe@0.6.2.err")
    assert len(usage) > 39_000
    assert crash(usage).title == "flag value refused: --xla_cpu_use_thunk_runtime=maybe"


def test_shape_4_the_list_of_old_versions_repeats_what_stood_last() -> None:
    line = (
        "2026-11-30 01:10:15.275521: F external/xla/xla/parse_flags_from_env.cc:224] "
        "Unknown flags in XLA_FLAGS: --xla_a=1 --xla_b=1 --xla_b=1 "
    )
    assert crash(line).title == "flag unknown: --xla_a --xla_b"


def test_shape_5_the_line_of_a_check_drifts() -> None:
    titles = {crash(text(f"r25671@0.4.{minor}.err")).title for minor in (33, 34, 35, 38)}
    assert len(titles) == 1
    assert crash(text("fh_r25671@0.4.38.err")).title in titles


def test_shape_6_one_shortage_of_memory_has_several_exits() -> None:
    aborted = sign(Outcome.OOM, "SIGABRT", text("r41173@0.9.1.err"))
    killed = sign(Outcome.OOM, "SIGKILL", "", killed_for_memory=True)
    python = sign(Outcome.OOM, None, raised("MemoryError"), exit_status=1)
    assert aborted is not None
    assert killed is not None
    assert python is not None
    assert (aborted.title, killed.title, python.title) == ("oom std::bad_alloc", "oom-kill", "oom MemoryError")
    assert aborted.titles & killed.titles & python.titles == {"oom host memory"}
    sized = error(raised("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array"))
    assert sized.titles == {"oom MemoryError: Unable to allocate N TiB for an array"}


def test_shape_7_a_python_error_that_is_a_segfault() -> None:
    stderr = (
        "\nA module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.2 as it may crash.\n\n"
        'Traceback (most recent call last):  File "/w/r.py", line 1, in <module>\n    import jax\n'
        '  File "/site/jaxlib/xla_client.py", line 29, in <module>\n    from . import xla_extension as _xla\n'
        "AttributeError: _ARRAY_API not found\n"
    )
    assert crash(stderr, "SIGSEGV").title == "setup AttributeError: _ARRAY_API not found"
    later = error(stderr + raised("ImportError: numpy.core.multiarray failed to import"))
    assert later.title == "setup ImportError: numpy.core.multiarray failed to import"
    assert error(stderr + raised("ValueError: of its own")).title == "py-exc ValueError: of its own"


def test_shape_8_alarming_lines_are_no_failure() -> None:
    noise = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E1130 01:42:11.240768   23732 cpu_aot_loader.cc:220] Loading XLA:CPU AOT result. Target machine feature "
        "+prefer-no-scatter is not supported on the host machine.\n"
        "W1130 01:42:11.240768 23732 sharding.cc:1] GSPMD sharding propagation is going to be deprecated\n"
    ) + text("r24255@0.4.31.err")
    assert sign(Outcome.OK, None, noise, exit_status=0) is None
    assert failures(noise) == []
    assert error(noise, exit_status=3).title == "exit 3"
    assert crash(noise, "SIGSEGV").title == "signal SIGSEGV"


def test_shape_9_two_processes_cut_each_other_and_the_first_complete_failure_counts() -> None:
    fatal = "F1130 01:42:11.240836   23732 a.cc:82] first things first"
    stderr = f'Traceback (most recent call last):\n  File "/w/r.py", li[Gloo] Rank 1 is {fatal}\n' + raised(
        "ValueError: x"
    )
    assert error(stderr).title == "absl-fatal a.cc: first things first"
    both = raised("ValueError: rank zero") + raised("ValueError: rank one")
    assert error(both).title == "py-exc ValueError: rank zero"


def test_shape_10_text_that_points_elsewhere_gives_way() -> None:
    follower = text("r40831@0.11.1.err")
    assert crash(follower).title.startswith(
        "absl-fatal client.h: Terminating process because the JAX distributed service"
    )
    assert error(follower, text("r40831@0.11.1.out")).title == (
        "xla-status UNKNOWN buffer.cc: Gloo ReduceScatter failed: Read timeout [<ip>]:N"
    )
    assert error(follower + raised("ValueError: the cause")).title == "py-exc ValueError: the cause"
    nccl = "RuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled. Last NCCL warning(error) log"
    assert (
        error(raised(nccl + " entry (may be unrelated) ''.") + raised("ValueError: y")).title == "py-exc ValueError: y"
    )
    hlo = "JaxRuntimeError: INTERNAL: during context: HloModule jit_f\n  %x = f32[8] add\n}\n: INVALID_ARGUMENT: z"
    assert error(raised(hlo)).title == "xla-status INTERNAL: during context:"


# ---- Python ----------------------------------------------------------------------------------------------------------


def test_the_exception_that_ends_a_chain_counts() -> None:
    chain = raised("KeyError: 'inner'") + "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert error(chain + raised("ValueError: outer")).title == "py-exc ValueError: outer"


def test_what_was_caught_or_ignored_does_not_count() -> None:
    ignored = "Exception ignored in: <function f at 0x7f00>\n" + raised("ValueError: at exit")
    caught = 'Traceback (most recent call last):\n  File "/w/r.py", line 3, in try_it\n    f()\nKeyError: 1\n'
    assert error(raised("TypeError: mine") + ignored).title == "py-exc TypeError: mine"
    assert error(caught + raised("TypeError: mine")).title == "py-exc TypeError: mine"
    assert error(caught).title == "py-exc KeyError: N"


def test_words_of_sys_exit_and_usage_errors() -> None:
    assert error("refused: this XLA has no flag xla_x\n").title == "exit 1: refused: this XLA has no flag xla_x"
    assert error("usage: r.py [-h]\nr.py: error: unrecognized arguments: --x\n", exit_status=2).title == (
        "exit 2: r.py: error: unrecognized arguments: --x"
    )
    assert error("", exit_status=3).title == "exit 3"


def test_import_trouble_is_setup() -> None:
    assert error(
        raised("ImportError: cannot import name 'tril' from 'scipy.linalg' (/site/scipy/linalg/__init__.py)")
    ) == (Signature("setup ImportError: cannot import name 'tril' from 'scipy.linalg' (__init__.py)", (), VERSION))
    assert error('  File "/w/r.py", line 1\n    a b\n      ^\nSyntaxError: invalid syntax').title == (
        "py-exc SyntaxError: invalid syntax"
    )


def test_exception_groups_are_read_through_their_bars() -> None:
    group = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/w/r.py", line 1, in <module>\n'
        "  |     raise ExceptionGroup('both', [ValueError(1)])\n  | ExceptionGroup: both (1 sub-exception)\n"
    )
    assert error(group).title == "py-exc ExceptionGroup: both (N sub-exception)"


# ---- native ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stderr", "title"),
    [
        (
            "terminate called after throwing an instance of 'std::range_error'\n  what():  bad 0x7f12\n",
            "signal SIGABRT: terminate called after throwing an instance of 'std::range_error' what(): bad <addr>",
        ),
        ("LLVM ERROR: Cannot select: t5: i32 = x", "signal SIGABRT: LLVM ERROR: Cannot select: t5: i32 = x"),
        ("LLVM ERROR: out of memory\nAllocation failed", "oom LLVM"),
        ("free(): invalid pointer\n", "signal SIGABRT: free(): invalid pointer"),
        ("python: /b/X86.cpp:123: void f(): Assertion `isLegal()' failed.", "check X86.cpp: isLegal()"),
        (
            "Fatal Python error: _Py_Dealloc: deallocating None\n\nCurrent thread 0x01 (most recent call first):\n",
            "signal SIGABRT: Fatal Python error: _Py_Dealloc: deallocating None",
        ),
        (
            "F1130 01:42:11.240836 23732 a.cc:82] Non-OK-status: Run()\nStatus: INTERNAL: broke",
            "absl-fatal a.cc: Non-OK-status: Run() Status: INTERNAL: broke",
        ),
        (
            "==9==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000 at pc 0x55\n"
            "READ of size 4 at 0x602000 thread T0\n"
            "    #0 0x55d1 in xla::Foo<int>(int) /b/foo.cc:3:5\n    #1 0x55d2 in main",
            "asan heap-use-after-free in xla::Foo<T>",
        ),
    ],
)
def test_other_ways_to_abort(stderr: str, title: str) -> None:
    assert crash(stderr).title == title


def test_three_tools_give_the_same_frames() -> None:
    expected = (
        "xla::HloPassPipeline::RunPassesInternal<T>",
        "xla::HloPassPipeline::RunImpl",
        "xla::HloPassInterface::Run",
        "xla::cpu::CpuCompiler::RunHloPassesThroughLayoutAssn",
        "xla::cpu::CpuCompiler::RunHloPasses",
    )
    for name in ("gdb-bt", "pystack-core-native-all"):
        assert significant(stack_frames(text(f"{name}.jax-0.10.2.txt"))) == expected
    assert significant(stack_frames(text("stderr.jax-0.10.2.noop_change.txt"))) == expected
    thread = stack_frames(text("pystack-core-native-all.jax-0.10.2.txt"), thread=29706)
    assert "dumpme.py <module>" in thread
    assert stack_frames(text("pystack-core-native-all.jax-0.10.2.txt"), thread=1) == ()


def test_a_hang_is_named_by_where_python_waits() -> None:
    frames = stack_frames(text("pystack-remote-native-all.hang.txt"))
    signature = sign(Outcome.HANG, "SIGKILL", "", frames=frames)
    assert signature == Signature("hang at hang.py cb", ("hang from hang.py cb",), VERSION)
    assert stack_frames(text("py-spy-native-failure.hang.txt")) == ()
    dumped = "Fatal Python error: Aborted\n\nCurrent thread 0x07 (most recent call first):\n"
    dumped += '  File "/s/jax/array.py", line 3 in _value\n'
    script = '  File "/w/r.py", line 9 in wait\n  File "/w/r.py", line 12 in <module>\n'
    signature = sign(Outcome.HANG, "SIGABRT", dumped + script)
    assert signature == Signature("hang at array.py _value from r.py wait", ("hang from r.py wait",), VERSION)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("absl::lts_20260107::StatusOr<bool> xla::P::Run<xla::M*>(xla::M*, int) const ()", "xla::P::Run<T>"),
        (
            "xla::ifrt::C::Load(std::unique_ptr<X, Y<X> >)::$_0::operator()() ()",
            "xla::ifrt::C::Load::{lambda}::operator()",
        ),
        ("tsl::(anonymous namespace)::PThread::ThreadFn(void*)", "tsl::(anonymous namespace)::PThread::ThreadFn"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("xla::Run() [clone .cold]", "xla::Run"),
        ("operator new(unsigned long)", "operator new"),
    ],
)
def test_frames_lose_what_differs(given: str, name: str) -> None:
    assert function(given) == name


# ---- normalisation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "blanked"),
    [
        ("at 0x7f12ab and 0X1F", "at <addr> and <addr>"),
        ("external/xla/xla/service/x.cc:12:3: bad", "x.cc: bad"),
        ("open /tmp/tmpab12/x.npy: no", "open <tmp>: no"),
        ("open /tmpfiles/x.npy: no", "open x.npy: no"),
        ("'/tmp/pytest-of-me/0/x' and '/home/me/repro/r.py'", "'<tmp>' and 'r.py'"),
        ("f32[20,20] and float32 and bf16 3.5GiB in 12ms", "f32[N,N] and float32 and bf16 NGiB in Nms"),
        ("%fusion.123 = add.4", "%fusion.N = add.N"),
        ("'fusion.123' in \"jit(f)/jit(main)/dot_general\"", "'fusion.123' in \"jit(f)/jit(main)/dot_general\""),
        ("2026-11-30T01:02:03.5Z 01:02:03 12345678-1234-1234-1234-123456789abc", "<time> <time> <uuid>"),
        ("the parameters' sizes and the vector's 12 parts", "the parameters' sizes and the vector's N parts"),
        ("peer 127.0.0.1:9420 commit deadbeef01", "peer <ip>:N commit <hex>"),
        ("absl::lts_20260107::Status", "absl::Status"),
        ("and/or read/write 3/4", "and/or read/write N/N"),
        ("\x1b[31mred\x1b[0m\x00 line\n two", "red line two"),
        ("exit 3: got 4", "exit 3: got N"),
    ],
)
def test_normalise(given: str, blanked: str) -> None:
    assert normalise(given) == blanked


def test_titles_are_cut_at_a_word() -> None:
    title = shorten("word " * 100)
    assert len(title) <= TITLE
    assert title.endswith("word…")
    assert len(shorten("x" * 5000)) <= TITLE


ANYTHING = st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace"))
PIECES = st.lists(
    st.sampled_from(
        [
            "Traceback (most recent call last):", '  File "/w/r.py", line 3, in <module>', "ValueError: 'x 12' y 13",
            "F1130 01:42:11.240836   23732 a/b.cc:82] Check failed: a (1 vs. 2) 'q 7'", "Fatal Python error: Aborted",
            "2026-11-30 01:10:15.275521: F external/x.cc:224] Unknown flags in XLA_FLAGS: --a=1 ", "", " ", "\n",
            "terminate called after throwing an instance of 'std::bad_alloc'", "    @     0x7f f<a>(b)", "#0 <(<>)",
            "Current thread 0x00007f (most recent call first):", '  File "x", line 1 in f', "jaxlib.X: INTERNAL: 5 \"",
            "During handling of the above exception, another exception occurred:", "==1==ERROR: ASanitizer: ", "'", '"',
            '    (C) File "???", line 0, in x::y(z) (lib.so)', "Traceback for thread 1 [] (most recent call last):",
        ]
    )
    | ANYTHING,
    max_size=12,
).map("\n".join)  # fmt: skip
OUTCOMES = st.sampled_from(list(Outcome))
SIGNALS = st.sampled_from([None, "SIGABRT", "SIGSEGV", "SIGKILL"])


@given(OUTCOMES, SIGNALS, PIECES, PIECES, st.none() | st.integers(-300, 300))
def test_any_text_has_a_bounded_title_that_normalises_to_itself(
    outcome: Outcome, signal: str | None, stderr: str, stdout: str, exit_status: int | None
) -> None:
    signature = sign(outcome, signal, stderr, stdout, stack_frames(stdout), exit_status=exit_status)
    if outcome.failed:
        assert signature is not None
    for title in signature.titles if signature else ():
        assert 0 < len(title) <= TITLE
        assert shorten(title) == title


@given(ANYTHING | PIECES)
@example("'a 1")
@example("~/~/a/b.py:1:2")
def test_normalise_is_idempotent(any_text: str) -> None:
    once = normalise(any_text)
    assert normalise(once) == once


NAMES = st.from_regex(r"[a-z]{1,12}(?:[-_][a-z]{1,8}){0,2}[0-9]{0,2}", fullmatch=True)
NUMBERS = st.integers(1, 10**9)


@given(
    NAMES,
    NUMBERS,
    NUMBERS,
    st.binary(min_size=6, max_size=6),
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),
    st.from_regex(r"[a-z0-9_]{8}", fullmatch=True),
)
def test_addresses_times_pids_folders_and_lines_do_not_count_and_quoted_names_do(
    name: str, pid: int, line: int, address: bytes, when: datetime, folder: str
) -> None:
    moment = f"{when:%Y-%m-%d %H:%M:%S.%f}"

    def variant(pid: object, line: object, address: str, moment: str, folder: str, name: str = name) -> str:
        return crash(
            f"{moment}: F external/xla/xla/x.cc:{line}] op '{name}' of pid {pid} at 0x{address} in /tmp/{folder}/f.npy"
            f" by /home/{folder}/lib/y.py:{line}\n"
        ).title

    title = variant(pid, line, address.hex(), moment, folder)
    assert title == variant(1, 2, "0", "2020-01-01 00:00:00.000000", "other")
    assert f"'{name}'" in title
    assert variant(pid, line, address.hex(), moment, folder, name=name + "x") != title


@given(NAMES, NUMBERS, NUMBERS)
def test_line_numbers_of_python_do_not_count(name: str, line: int, other: int) -> None:
    def variant(line: int) -> Signature:
        return error(
            f"Traceback (most recent call last):\n  File \"r.py\", line {line}, in <module>\nKeyError: '{name}'\n"
        )

    assert variant(line) == variant(other)
    assert variant(line).title == f"py-exc KeyError: '{name}'"


# ---- rules of the project --------------------------------------------------------------------------------------------


def test_a_rule_merges_under_its_title() -> None:
    rule = SignatureRule("*hash of HLO was*", "a pass lies about changing the HLO")
    texts = [text("stderr.jax-0.6.0.noop_change.txt"), text("stderr.jax-0.6.2.silent_hlo_change.txt")]
    merged = {apply_rules([rule], crash(stderr), stderr) for stderr in texts}
    assert merged == {Signature("a pass lies about changing the HLO", (), VERSION)}


def test_a_rule_splits_by_what_it_matched() -> None:
    glob = SignatureRule("Pass '*' in pipeline", r"lying pass \1")
    regular = SignatureRule(r"/Pass '(?P<name>[\w-]+)' in/", r"lying pass \g<name>")
    for rule in (glob, regular):
        split = []
        for version in ("0.6.0", "0.10.2"):
            stderr = text(f"stderr.jax-{version}.noop_change.txt")
            split.append(apply_rules([rule], crash(stderr), stderr))
        assert [one.title for one in split] == ["lying pass flatten-call-graph", "lying pass layout-assignment"]
        assert not split[0].titles & split[1].titles


def test_rules_see_frames_and_the_first_fitting_one_decides() -> None:
    rules = [SignatureRule("no such text", "a"), SignatureRule("slinky::*", "b"), SignatureRule("*SIGSEGV*", "c")]
    assert apply_rules(rules, Signature("signal SIGSEGV"), "", frames=["slinky::can_fuse"]).title == "b"
    assert apply_rules(rules, Signature("signal SIGSEGV"), "").title == "c"
    assert apply_rules(rules[:1], Signature("signal SIGSEGV"), "").title == "signal SIGSEGV"


@pytest.mark.parametrize(("match", "title"), [("/(/", "x"), ("plain", r"\1"), ("/a/", r"\g<name>")])
def test_a_wrong_rule_is_the_users_mistake(match: str, title: str) -> None:
    with pytest.raises(UserError, match="signature"):
        pattern(SignatureRule(match, title))


# ---- size ------------------------------------------------------------------------------------------------------------


def test_a_failure_anywhere_in_a_large_log_is_found(tmp_path: Path) -> None:
    filler = b"I1130 01:03:49.369296   26066 foo.cc:128] For all we know, step 12345 is well\n"
    fatal = b"F1130 01:03:50.000000   26066 bar.cc:7] in the midst\n"
    for before, after in ((0, 100_000), (50_000, 50_000), (100_000, 0)):
        log = tmp_path / "stderr"
        log.write_bytes(filler * before + fatal + filler * after)
        signature = sign(Outcome.CRASH, "SIGABRT", log.read_text())
        assert signature == Signature("absl-fatal bar.cc: in the midst", (), VERSION)
    assert len(condense(io.BytesIO(filler * 100_000))) < 1_300_000


def test_a_mark_on_the_border_of_two_blocks_is_found() -> None:
    fatal = b"\nterminate called after throwing an instance of 'X'\n"
    for shift in range(0, 120, 7):
        log = b"x" * ((1 << 20) + shift - 60) + fatal + b"y" * (2 << 20)
        assert "instance of 'X'" in condense(io.BytesIO(log))


def test_every_recording_is_in_the_table() -> None:
    listed = {file for case in tomllib.loads(text("expected.toml"))["case"] for file in case["files"]}
    listed |= {file for case in tomllib.loads(text("expected.toml"))["case"] for file in case.get("stacks", ())}
    paths = [path for folder in (DATA, DATA / "stacks") for path in folder.iterdir() if path.is_file()]
    names = {path: path.relative_to(DATA).as_posix() for path in paths}
    logs = {name.removesuffix(path.suffix) for path, name in names.items() if path.suffix in (".err", ".out")}
    others = {name for path, name in names.items() if path.suffix not in (".err", ".out", ".toml")}
    assert (logs | others) - listed == set()


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.",
        "NameError: name 'jaxx' is not defined",
    ],
)
def test_what_python_suggests_is_no_part_of_a_failure(line: str) -> None:
    for hint in ("Did you mean: 'float16'?", "Did you forget to import 'jaxx'?"):
        assert error(raised(f"{line}. {hint}")).titles == error(raised(line)).titles


@pytest.mark.parametrize("said", ["Fatal Python error: ", "Fatal Python error: \n", "Fatal Python error:"])
def test_a_fault_handler_that_was_cut_off_says_nothing(said: str) -> None:
    """jax 0.10.2 on jax-ml/jax#39257: a second thread crashed while the handler wrote of the first one."""
    assert (
        crash(said, "SIGSEGV", ("slinky::internal::can_fuse<T>",)).title
        == "signal SIGSEGV in slinky::internal::can_fuse<T>"
    )


def test_fatal_errors_of_several_processes_in_one_line() -> None:
    said = "Fatal Python error: Fatal Python error: Fatal Python error: Segmentation fault\n"
    once = sign(Outcome.ERROR, None, "Fatal Python error: Segmentation fault\n", exit_status=4)
    assert sign(Outcome.ERROR, None, said, exit_status=4) == once
    assert once is not None
    assert once.title == "signal SIGSEGV"
