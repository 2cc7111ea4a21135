"""The index of stacks, and the frames that matter of a process."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.evidence.frames import function, is_python, significant, stack_frames
from repromatrix.evidence.signature import VERSION, sign
from repromatrix.evidence.stacks import Core, Stack, Stacks, frames_for, parse_index, thread_first
from repromatrix.spec.model import Outcome

DATA = Path(__file__).parent / "data" / "evidence"
SEGV = "signal SIGSEGV at __init__.py string_at from segv.py poke"


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def stack(pid: int, source: str = "core", *, rank: int | None = 0, thread: int | None = None) -> Stack:
    signal = "SIGSEGV" if source == "core" else ""
    return Stack(pid, rank, "python r.py", source, "pystack", thread, signal, f"stacks/{pid}.{source}.txt", "")


def frames(texts: dict[str, str], pid: int, *stacks: Stack) -> tuple[str, ...]:
    return frames_for(Stacks(tuple(stacks)), texts, pid)


# ---- the index -------------------------------------------------------------------------------------------------------

STACKS = Stacks(
    (stack(12, thread=14), replace(stack(13, rank=None), tool="", file="", trouble="out of time")),
    (Core(12, "SIGSEGV", "core.12", 8 << 30, 1 << 30, True), Core(13, "SIGABRT", "", 1, 1, False)),
    ("no core of 15: the disk is full",),
)
INDEX = json.dumps({"schema": 1, **asdict(STACKS)})


def test_what_was_written_is_read() -> None:
    assert parse_index(INDEX) == STACKS
    assert parse_index('{"schema": 1, "stacks": [], "cores": [], "notes": []}') == Stacks()


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", "[" * 100_000, '{"schema": 2}', "9" * 10_000, "NaN", '"x"'])
def test_what_is_no_index_gives_a_note_alone(broken: str) -> None:
    found = parse_index(broken)
    assert (found.stacks, found.cores) == ((), ())
    assert found.notes
    assert found.notes[0].startswith("stacks.json ")


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("stacks", "file", "../../etc/passwd"),
        ("stacks", "file", "/etc/passwd"),
        ("stacks", "file", "stacks/../result.json"),
        ("stacks", "file", "stacks/a/b.txt"),
        ("stacks", "file", "stacks/..\n"),
        ("stacks", "file", "stdout"),
        ("stacks", "file", None),
        ("stacks", "pid", "12"),
        ("stacks", "pid", True),
        ("stacks", "pid", -1),
        ("stacks", "pid", 1.0),
        ("stacks", "pid", 1 << 70),
        ("stacks", "rank", "0"),
        ("stacks", "thread", [1]),
        ("stacks", "source", "guess"),
        ("stacks", "tool", "gdb"),
        ("stacks", "command", 1),
        ("cores", "file", "core/12"),
        ("cores", "file", "core.12/../../x"),
        ("cores", "file", "stacks/12.txt"),
        ("cores", "file", "core"),
        ("cores", "cut", 0),
        ("cores", "size", None),
    ],
)
def test_a_field_that_the_supervisor_does_not_write_is_refused(part: str, field: str, value: object) -> None:
    index = json.loads(INDEX)
    index[part][0][field] = value
    found = parse_index(json.dumps(index))
    assert (found.stacks, found.cores) == ((), ())
    assert len(found.notes) == 1
    assert f"{part}[0]" in found.notes[0]
    del index[part][0][field]
    if field not in ("rank", "thread"):  # which may be null
        assert parse_index(json.dumps(index)).stacks == ()


@pytest.mark.parametrize("notes", [[1], "x", {}, [None], ["x"] * 20_000])
def test_notes_are_a_list_of_words(notes: object) -> None:
    found = parse_index(json.dumps({"schema": 1, "stacks": [], "cores": [], "notes": notes}))
    assert found.notes == (
        "stacks.json is not as the supervisor writes it: " + ("notes[0]" if notes in ([1], [None]) else "notes"),
    )


def test_a_kept_core_may_be_compressed_and_words_are_cut_and_made_writable() -> None:
    index = json.loads(INDEX)
    index["cores"][0]["file"] = "core.12.zst"
    index["stacks"][0]["command"] = "\ud800" + "x" * 5000
    found = parse_index(json.dumps(index))
    assert found.cores[0].file == "core.12.zst"
    assert found.stacks[0].command == "?" + "x" * 999


# ---- which stack, which thread ---------------------------------------------------------------------------------------

POOL = text("pystack-core.noop_change.jax-0.10.2.txt")
LIVE = text("stacks/join.live")
CORE = text("stacks/join.core")


def test_the_crashing_thread_is_the_one_that_the_core_names() -> None:
    texts = {"stacks/30409.core.txt": POOL}
    crashed = frames(texts, 30409, stack(30409, thread=30416))
    assert significant(crashed)[0] == "xla::HloPassPipeline::RunPassesInternal<T>"
    assert not any(map(is_python, crashed))
    assert frames(texts, 30409, stack(30409)) == crashed  # the thread that raises, where the core does not say
    assert "crash.py main" in frames(texts, 30409, stack(30409, thread=30409))
    assert frames(texts, 30409, stack(30409, thread=5)) == crashed


def test_of_a_process_that_hung_the_main_thread_counts_in_whatever_order_threads_are_printed() -> None:
    main = int(text("stacks/join.live").rpartition("Traceback for thread ")[2].split()[0])
    assert not text("stacks/join.live").startswith(f"Traceback for thread {main} ")
    own = frames({f"stacks/{main}.live.txt": LIVE}, main, stack(main, "live"))
    assert "join.py run" in own
    assert "join.py <lambda>" not in own
    assert [f for f in stack_frames(LIVE) if is_python(f)] == [f for f in own if is_python(f)]
    # The core that SIGABRT left comes first, and again its main thread, whichever thread took the signal.
    texts = {f"stacks/{main}.live.txt": "", f"stacks/{main}.core.txt": CORE}
    other = next(number for number in map(int, _threads(CORE)) if number != main)
    both = (stack(main, "live"), stack(main, thread=other))
    assert "join.py run" in frames(texts, main, *both)
    assert "join.py <lambda>" in frames(texts, main, both[1])  # had it crashed there


ENDED = """\
Traceback for thread 31 (python) [] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
    (Python) File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    (Python) File "/usr/lib/python3.11/threading.py", line 982, in run
    (Python) File "/w/bug.py", line 3, in worker
    (Python) File "/usr/lib/python3.11/threading.py", line 629, in wait

Traceback for thread 30 (python) [] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1590, in _shutdown
"""
FAULT = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 629 in wait
  File "/w/bug.py", line 3 in worker
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f00 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1590 in _shutdown
"""


def test_of_a_script_that_has_ended_but_for_a_thread_the_thread_counts() -> None:
    for found in (
        sign(Outcome.HANG, None, "", frames=frames({"stacks/30.live.txt": ENDED}, 30, stack(30, "live"))),
        sign(Outcome.HANG, None, "", frames=stack_frames(ENDED)),
        sign(Outcome.HANG, None, FAULT),
    ):
        assert found is not None
        assert found.titles == {"hang at threading.py wait from bug.py worker", "hang from bug.py worker"}
    alone = stack_frames(ENDED[ENDED.index("Traceback for thread 30") :])
    assert alone == ("threading.py _shutdown",)


def _threads(pystack: str) -> list[str]:
    return [line.split()[3] for line in pystack.split("\n") if line.startswith("Traceback for thread ")]


def test_the_core_comes_before_the_living() -> None:
    texts = {"stacks/7.live.txt": text("stacks/imp.pyspy"), "stacks/7.core.txt": text("stacks/cpause.core")}
    assert "cpause.py stuck" in frames(texts, 7, stack(7, "live"), stack(7))
    assert "slow.py <module>" in frames(texts, 7, stack(7, "live"))
    del texts["stacks/7.core.txt"]
    assert "slow.py <module>" in frames(texts, 7, stack(7, "live"), stack(7))


def test_a_crash_of_the_only_child_is_the_shells() -> None:
    texts = {"stacks/9.core.txt": text("stacks/sh.core"), "stacks/10.core.txt": POOL}
    child, other = stack(9, rank=None), stack(10, rank=None)
    found = frames(texts, 8, child)
    signature = sign(Outcome.ERROR, None, "", frames=found, exit_status=139)
    assert signature is not None
    assert signature.title == SEGV
    assert frames(texts, 8, child, other) == ()  # nobody knows which one it was
    assert frames(texts, 8, replace(child, rank=1)) == ()  # another rank is no child
    assert frames(texts, 8, child, replace(other, file="")) == found
    assert "slow.py <module>" in frames(
        {**texts, "stacks/8.live.txt": text("stacks/imp.live")}, 8, child, stack(8, "live")
    )


def test_without_a_text_there_are_no_frames() -> None:
    assert frames({}, 8, stack(8), stack(9, rank=None)) == ()
    assert frames({"stacks/8.core.txt": "nothing to see"}, 8, stack(8)) == ()
    assert frames_for(Stacks(), {}, 0) == ()


@given(
    st.lists(
        st.builds(
            Stack,
            st.integers(0, 3),
            st.none() | st.integers(0, 2),
            st.text(max_size=3),
            st.sampled_from(["live", "core"]),
            st.sampled_from(["pystack", "py-spy", ""]),
            st.none() | st.integers(0, 3),
            st.just(""),
            st.sampled_from(["a", "b", ""]),
            st.just(""),
        ),
        max_size=4,
    ),
    st.lists(
        st.sampled_from(
            [
                "Traceback for thread 1 [] (most recent call last):",
                '    (Python) File "r.py", line 1, in f',
                '    (C) File "???", line 0, in a::b<c>(d) (l.so)',
                '    (C) File "x", line 0, in __restore_rt (libc.so.6)',
                'Thread 2 (idle): "MainThread"',
                "    A.f (r.py:3)",
                "The process died due receiving signal SIGSEGV",
                "Thread 99999999999999999999999 (active)",
            ]
        )
        | st.text()
        | st.binary().map(lambda raw: raw.decode("utf-8", "replace")),
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_any_stacks_have_frames_or_none(stacks: list[Stack], lines: list[str], pid: int) -> None:
    found = frames_for(Stacks(tuple(stacks)), {"a": "\n".join(lines), "b": "\n".join(lines[::-1])}, pid)
    assert all(frame and "\n" not in frame for frame in found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["schema", "stacks", "cores", "notes", "pid", "file", "x"]), inner, max_size=4
        )
    ),
)


@given(st.text() | JSON.map(json.dumps) | st.builds(lambda part: json.dumps({"schema": 1, "stacks": part}), JSON))
def test_any_index_is_read_or_refused(any_text: str) -> None:
    found = parse_index(any_text)
    assert found.stacks == ()
    assert all(isinstance(note, str) for note in found.notes)


# ---- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('    (C) File "libjax_common.so", line 0, in ??? (libjax_common.so)', ()),
        ('    (C) File "Python/ceval.c", line 1, in strange_name (libpython3.11.so.1.0)', ()),
        ('    (C) File "Python/ceval.c", line 1, in strange_name (/usr/local/bin/python3.13)', ()),
        ('    (C) File "x.c", line 1, in user_code (inlined) (libmine.so)', ("user_code",)),
        ('    (C) File "/a b/x.c", line 1, in user_code', ("user_code",)),
        ('    (C) File "???", line 0, in __libc_start_main@@GLIBC_2.34 (libc.so.6)', ()),
        ('    (C) File "???", line 0, in faulthandler_fatal_error (python)', ()),
        (
            '    (C) File "???", line 0, in virtual thunk to tsl::internal::LogMessageFatal::~LogMessageFatal() (l.so)',
            (),
        ),
        (
            '    (C) File "???", line 0, in absl::lts_20260107::Or<bool> xla::P::Run<xla::M*>(xla::M*, int) (l.so)',
            ("xla::P::Run<T>",),
        ),
        (
            '    (C) File "???", line 0, in xla::ifrt::C::Load(std::unique_ptr<X, Y<X> >)::$_4::operator()() (l.so)',
            ("xla::ifrt::C::Load::{lambda}::operator()",),
        ),
        (
            '    (C) File "???", line 0, in nanobind::detail::func<true, xla::P::R(nanobind::module_&)::$_4> (l.so)',
            (),
        ),
        ('    (C) File "???", line 0, in _ZN4absl12lts_2026010722internal_any_invocable (l.so)', ()),
    ],
)
def test_native_frames_of_pystack(line: str, frame: tuple[str, ...]) -> None:
    assert significant(stack_frames(f"Traceback for thread 1 [] (most recent call last):\n{line}\n")) == frame


def test_very_long_lines_are_read_in_no_time() -> None:
    arguments = "std::pair<xla::Shape const*, std::function<void (int)> >, " * 400
    line = f'    (C) File "???", line 0, in xla::P::Run<{arguments}int>({arguments}int) const (libjax_common.so)'
    assert len(line) > 40_000
    assert stack_frames(f"Traceback for thread 1 [] (most recent call last):\n{line}\n") == ("xla::P::Run<T>",)
    assert function("operator<" * 5000) != ""


def test_a_handlers_frames_fall_away_whoever_the_handler_is() -> None:
    crashed = stack_frames(text("stacks/segv.1.core"))
    assert crashed[:3] == ("__strlen_evex", "__init__.py string_at", "segv.py poke")
    lines = ["xla::Deep()", "__restore_rt", "absl::lts_20260107::AbslFailureSignalHandler(int)", "raise"]
    pystack = "Traceback for thread 4 [] (most recent call last):\n" + "".join(
        f'    (C) File "???", line 0, in {name} (l.so)\n' for name in lines
    )
    assert stack_frames(pystack) == ("xla::Deep",)
    assert stack_frames(pystack, 4) == ("xla::Deep",)


def test_one_function_has_one_signature_in_both_releases_where_nothing_but_a_signal_is_told() -> None:
    new = sign(Outcome.CRASH, "SIGSEGV", "", frames=stack_frames(POOL, 30416))
    old = sign(Outcome.CRASH, "SIGSEGV", "", frames=stack_frames(text("pystack-core.noop_change.jax-0.6.0.txt"), 30523))
    assert old is not None
    assert new is not None
    assert new.title == old.title == "signal SIGSEGV in xla::HloPassPipeline::RunPassesInternal<T>"
    assert new.version == VERSION
    other = sign(Outcome.CRASH, "SIGSEGV", "", frames=("xla::HloPassPipeline::RunImpl", *stack_frames(POOL, 30416)))
    assert other is not None
    assert not other.titles & new.titles


def test_a_crash_whose_core_was_lost_meets_the_one_whose_core_was_read() -> None:
    place = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x07 (most recent call first):\n"
    place += (
        '  File "/s/jax/x.py", line 3 in deep\n  File "/w/r.py", line 9 in f\n  File "/w/r.py", line 12 in <module>\n'
    )
    lost = sign(Outcome.CRASH, "SIGSEGV", place)
    read = sign(Outcome.CRASH, "SIGSEGV", place, frames=("xla::A::Run", "x.py deep", "r.py f", "r.py <module>"))
    pool = sign(Outcome.CRASH, "SIGSEGV", place, frames=("xla::A::Run",))
    assert lost is not None
    assert read is not None
    assert pool is not None
    assert lost.titles == {"signal SIGSEGV at x.py deep from r.py f"}
    assert read.title == pool.title == "signal SIGSEGV in xla::A::Run"
    assert lost.title in read.titles & pool.titles


def test_names_that_tools_write_differently_are_one() -> None:
    spy = 'Thread 0x7F00AB (active+gil): "MainThread"\n    State.shutdown (jax/_src/distributed.py:199)\n'
    spy += "    f.<locals>.g (/w/café.py:3)\n    <module> (café.py:9)\n    0x7f00 (libc.so.6)\n    a::b(int) (lib.so)\n"
    assert stack_frames(spy) == ("distributed.py shutdown", "café.py g", "café.py <module>", "0x7f00", "a::b")
    fault = 'Current thread 0x07 (most recent call first):\n  File "/j/distributed.py", line 199 in shutdown\n'
    fault += '  File "/w/caf\\xe9.py", line 3 in g\n  File "/w/caf\\xe9.py", line 9 in <module>\n'
    hung = [sign(Outcome.HANG, None, fault), sign(Outcome.HANG, None, "", frames=stack_frames(spy))]
    assert hung[0] == hung[1]
    assert hung[0] is not None
    assert hung[0].title == "hang at distributed.py shutdown from café.py g"


def test_python_frames_are_told_from_native_ones() -> None:
    for frame in (
        "r.py <module>",
        "<frozen importlib._bootstrap> _find_and_load",
        "<string> f",
        "my script.py f",
        "? f",
    ):
        assert is_python(frame), frame
    for frame in ("xla::P::Run<T>", "std::function<T> f", "raise", "operator new", "{lambda}::operator()"):
        assert not is_python(frame), frame


def test_a_sanitizers_own_stack_counts_for_its_report() -> None:
    report = (
        "==9==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000 at pc 0x55\n"
        "    #0 0x55d1 in xla::Foo<int>(int) /b/foo.cc:3:5\n    #1 0x55d2 in main\n"
    )
    signature = sign(Outcome.CRASH, "SIGABRT", report, frames=("SomeSanitizerThing", "xla::Bar"))
    assert signature is not None
    assert signature.title == "asan heap-use-after-free in xla::Foo<T>"
    bare = sign(Outcome.CRASH, "SIGABRT", report.partition("\n")[0], frames=("xla::Bar",))
    assert bare is not None
    assert bare.title == "asan heap-use-after-free in xla::Bar"


def test_what_failed_before_a_hang_is_an_alternative() -> None:
    frames = ("threading.py wait", "r.py f", "r.py <module>")
    place = {"hang at threading.py wait from r.py f", "hang from r.py f"}
    error = 'Traceback (most recent call last):\n  File "/w/r.py", line 3, in {}\nValueError: x\n'
    fatal = "F1130 01:42:11.240836   23732 {}] broken\n"
    for stderr, more in (
        (error.format("<module>"), {"py-exc ValueError: x"}),
        (error.format("caught"), set()),
        (fatal.format("a.cc:82"), {"absl-fatal a.cc: broken"}),
        ("F1130 01:10:36.640932 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_a=1\n", set()),
        ("Fatal Python error: Aborted\n", set()),
        ("F1130 01:42:11.240836   23732 client.h:80] another task died; see the other task logs\n", set()),
    ):
        signature = sign(Outcome.HANG, "SIGABRT", stderr, frames=frames)
        assert signature is not None
        assert signature.title == "hang at threading.py wait from r.py f"
        assert signature.titles == place | more


def test_the_thread_that_crashed_is_told_first() -> None:
    """A bug report cuts long stacks: what crashed must not be among what is cut."""
    text = (DATA / "pystack-core-native-all.jax-0.10.2.txt").read_text()
    threads = re.findall(r"^Traceback for thread (\d+) ", text, re.MULTILINE)
    last = int(threads[-1])
    moved = thread_first(text, last)
    assert re.findall(r"^Traceback for thread (\d+) ", moved, re.MULTILINE) == [threads[-1], *threads[:-1]]
    assert sorted(moved.split()) == sorted(text.split())
    assert stack_frames(moved, last) == stack_frames(text, last)
    assert thread_first(text, 1) == thread_first(text, None) == text
