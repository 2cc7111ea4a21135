from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repromatrix.ui.progress import PERIOD, Plain, amount, listener, use_colour

ROOT = Path(__file__).parent.parent

SHOW = """
import sys, time
from repromatrix.ui.progress import listener
with listener() as ear:
    ear.note("2 attempts [bold]of[/bold] 2 cells")
    overall = ear.start("run", "attempts", 2)
    wheel = ear.start("fetch", "jaxlib-0.10.2.whl", 4_000_000, "B")
    for _ in range(8):
        wheel.advance(500_000)
        time.sleep(0.1)
    wheel.finish("fetched")
    wheel.finish("twice")
    one = ear.start("run", "cell [red]a\\x1b[31m")
    one.finish("crash 1.2s")
    overall.advance(2)
    time.sleep(0.4)
    overall.finish()
    ear.warn("odd")
print("rich" in sys.modules)
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines() -> None:
    out, clock = io.StringIO(), Clock()
    plain = Plain(out, clock)
    task = plain.start("fetch", "jaxlib.whl", 100_000_000, "B")
    for second in range(1, 13):
        clock.now = float(second)
        task.advance(5_000_000)
    clock.now = 20.0
    task.finish("verified")
    task.finish("again")
    task.advance(1)
    plain.note("a note")
    plain.warn("a warning")
    assert out.getvalue().splitlines() == [
        "fetch  jaxlib.whl (100.0 MB)",
        "fetch  jaxlib.whl: 25.0 MB of 100.0 MB, 5.0 MB/s, 15 s left",
        "fetch  jaxlib.whl: 50.0 MB of 100.0 MB, 5.0 MB/s, 10 s left",
        "fetch  jaxlib.whl: verified (20.0 s)",
        "a note",
        "warning: a warning",
    ]


def test_many_advances_write_little() -> None:
    out, clock = io.StringIO(), Clock()
    task = Plain(out, clock).start("fetch", "x", 10**9, "B")
    for step in range(10_000):
        clock.now = step / 1000
        task.advance(1)
    assert out.getvalue().count("\n") == 2  # the start and one line: ten seconds have not quite passed
    assert PERIOD == 5.0


def test_no_control_characters_in_plain_lines() -> None:
    out = io.StringIO()
    plain = Plain(out)
    plain.start("run", "a\x1b[31m\r\nb").finish("c\x07\td")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out.getvalue())
    assert out.getvalue().count("\n") == 2


def test_threads_do_not_mix_lines() -> None:
    out = io.StringIO()
    plain = Plain(out)

    def work(name: str) -> None:
        for _ in range(200):
            plain.start("run", name * 40).finish("ok")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 * 200 * 2
    assert all(re.fullmatch(r"run    ((.)\2{39})(: ok \(0\.\d s\))?", line) for line in lines)


def test_a_reader_that_has_gone_stops_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    plain = Plain(stream)
    plain.note("lost")
    plain.start("run", "x").finish("ok")
    with pytest.raises(BrokenPipeError):  # the pipe was broken indeed
        stream.close()


@pytest.mark.parametrize(
    ("done", "unit", "text"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (1_500, "B", "1.5 kB"),
        (120_400_000, "B", "120.4 MB"),
        (2e9, "B", "2.0 GB"),
        (7, "", "7"),
        (7, "files", "7 files"),
    ],
)
def test_amounts(done: float, unit: str, text: str) -> None:
    assert amount(done, unit) == text


def test_off_a_terminal_lines_and_no_rich() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "2 attempts [bold]of[/bold] 2 cells"
    assert lines[1] == "run    attempts (2)"
    assert lines[2] == "fetch  jaxlib-0.10.2.whl (4.0 MB)"
    assert re.fullmatch(r"fetch  jaxlib-0\.10\.2\.whl: fetched \(\d\.\d s\)", lines[3])
    assert lines[-1] == "warning: odd"
    assert "\x1b" not in done.stderr


def on_terminal(**env: str) -> str:
    """What a run shows on a terminal of 100 columns."""
    main, side = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", **env}
    variables = {name: value for name, value in variables.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=side, env=variables
    )
    os.close(side)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # how Linux tells the end of a terminal
            break
        if not chunk:
            break
        shown += chunk
    os.close(main)
    assert process.wait() == 0
    return shown.decode()


def test_on_a_terminal_live_lines() -> None:
    shown = on_terminal(NO_COLOR="")
    assert "2 attempts [bold]of[/bold] 2 cells" in shown
    assert re.search(r"\d\.\d MB of 4\.0 MB", shown)
    assert "MB/s" in shown
    assert "fetch  jaxlib-0.10.2.whl: fetched" in shown
    assert "run    cell [red]a [31m: crash 1.2s" in shown
    assert "twice" not in shown
    assert "2 of 2" in shown
    assert "warning: odd" in shown
    assert re.search(r"\x1b\[[\d;]*3\d", shown)  # colours


def test_no_color_is_honoured() -> None:
    shown = on_terminal(NO_COLOR="1")
    assert "fetch  jaxlib-0.10.2.whl: fetched" in shown
    assert not re.search(r"\x1b\[[\d;]*3\d(;\d+)*m", shown)


def test_a_dumb_terminal_gets_lines() -> None:
    shown = on_terminal(TERM="dumb")
    assert "fetch  jaxlib-0.10.2.whl (4.0 MB)" in shown
    assert "\x1b" not in shown


def test_colour_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not use_colour(io.StringIO())
    main, side = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with os.fdopen(side, "w") as stream:
        assert use_colour(stream)
        with listener(stream, live=False) as ear:
            assert isinstance(ear, Plain)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not use_colour(stream)
    os.close(main)
