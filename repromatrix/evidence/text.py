"""Text of failures made comparable: what a machine, a moment or a release puts into a message is blanked, names stay.

Only the standard library; every function is total: any text gives an answer.
"""

from __future__ import annotations

import re
from typing import BinaryIO

TITLE = 200
"""Characters of a title at most: it stands in tables and in issue titles."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNSEEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufffd]+")
_QUOTED = re.compile(r"""(?<!\w)('[^']*'|"[^"]*"|`[^`']*[`'])(?!\w)""")

_SOURCE = r"(?:py|pyx|cc|c|cpp|cxx|cu|h|hpp|inc|rs|S|mlir|ll|td|so)"
_START = r"(?<![\w)/.:<~-])"  # of a path; not inside `jit(f)/jit(main)`, the name of an op
_EVERYWHERE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\babsl::lts_\d+::"), "absl::"),  # the inline namespace carries the release date of absl
    (re.compile(r"https?://[^\s'\"`>)]+"), "<url>"),
    # What Python adds to a message, if its names happen to have a similar one: numpy 2.0 has `float16`, 2.1 says none.
    (re.compile(r"\. (?:Did you mean: '[^'?]*'|(?:Or d|D)id you forget to import '[^'?]*')\?"), ""),
    (
        re.compile(
            rf"{_START}(?:/(?:private/)?(?:tmp|var/tmp|var/folders|dev/shm)|/run/user/\d+)(?![\w.-])(?:/[^\s'\"`,;:()\[\]]*)?"
        ),
        "<tmp>",
    ),
    (re.compile(rf"{_START}~?(?:/[\w.+@%=~-]+)*/([\w.+@%=~-]+)/?"), r"\1"),
    (re.compile(rf"{_START}(?:[\w.+@-]++/)+([\w.+-]*\.{_SOURCE})\b"), r"\1"),
    (re.compile(rf"\b([\w+-]+\.{_SOURCE})(?::\d+){{1,2}}(?!\w)"), r"\1"),
    # After the folders, whose names may look like any of these.
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\w)"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?(?!\w)"), "<time>"),
    (re.compile(r"(?<!\w)0[xX][0-9a-fA-F]+(?!\w)"), "<addr>"),
    (re.compile(r"\b(lines?|pid|PID|tid|TID)([ =:]+)\d+\b"), r"\1\2N"),
)  # fmt: skip
_UNQUOTED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\s*\([^()]* vs\. [^()]*\)"), ""),  # the two values of a CHECK_EQ
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}+\b"), "<hex>"),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "<ip>"),
    (
        re.compile(
            r"(?<!\Aexit )"  # the status of a script is no accident
            r"(?<![\w.])\d++(?:\.\d++)*+(?:[eE][-+]?\d++)?(?=(?:[KMGTP]i?B|B|[munµ]?s|min|h|[KMG]?Hz|x)?(?!\w))"
        ),
        "N",
    ),
    (re.compile(r"(?<=[A-Za-z_])\.\d++(?!\w)"), ".N"),  # the number of an HLO instruction, `%fusion.12`
    (re.compile(r"(?<=[A-Za-z_])\d{7,}+"), "N"),
)


def _once(text: str) -> str:
    for pattern, blank in _EVERYWHERE:
        text = pattern.sub(blank, text)
    parts = _QUOTED.split(text)  # odd places hold what was quoted
    for place in range(0, len(parts), 2):
        for pattern, blank in _UNQUOTED:
            parts[place] = pattern.sub(blank, parts[place])
    return "".join(parts)


def normalise(text: str) -> str:
    """`text` on one line without addresses, times, numbers, ids, folders and line numbers; quoted names are kept.

    Numbers are blanked outside quotes only: `Pass 'convert-bf16-2'` is a name, `2 operands` depends on the input.
    `normalise(normalise(x)) == normalise(x)` for every x.
    """
    text = _UNSEEN.sub(" ", _ANSI.sub("", text)).strip()
    for _ in range(8):  # one blank can make room for another; two rounds settle whatever we have seen
        before, text = text, _UNSEEN.sub(" ", _once(text)).strip()
        if text == before:
            break
    return text


def shorten(text: str, limit: int = TITLE) -> str:
    """Normalised and at most `limit` characters, cut at a word; a cut quote may free a number, so this settles too."""
    text = normalise(text)
    while len(text) > limit:
        cut = text[: limit - 1]
        text = normalise((cut.rpartition(" ")[0] if " " in cut[limit // 2 :] else cut).rstrip() + "…")
    return text


LOG = re.compile(
    r"(?:"
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old>[IWEF]) "  # tsl, up to jaxlib 0.7.1
    r"|(?P<new>[IWEF])\d{4} \d\d:\d\d:\d+(?:\.\d+)? +\d+ "  # absl, from 0.7.2; too early: F0000 00:00:1733...
    r")(?P<file>[^\s:\]]+):\d+\] ?(?P<message>.*)"
)
"""A log line of XLA in either format; a second process may have written before it on the same line."""

NOISE = re.compile(
    r"^\s*$|^-+$|^\s*\^+\s*$"
    r"|^For simplicity, JAX has removed its internal frames"
    r"|^The stack trace below excludes JAX-internal frames|^The preceding is the original exception"
    r"|^WARNING: All log messages before absl::InitializeLog"
    r"|Warning: |^  setattr\(self, word|^  return self\._float_to_str|GSPMD .*deprecat|^WARNING[: ]|^INFO[: ]"
    r"|^\[Gloo\] Rank|^REPRO_METRIC |^Extension modules: |^\*\*\* Check failure stack trace|^    @ +0x"
    r"|^(?:Current thread|Thread) 0x|^  File \"|^  <no Python frame>|^Fatal Python error: "
)
"""Lines that say nothing about why a script ended."""

_MARKS = tuple(
    mark.encode()
    for mark in (
        "Traceback (most",
        ": F ",
        "\nF0",
        "\nF1",
        "Fatal Python error",
        "terminate called",
        "Assertion ",
        "LLVM ERROR",
        "Sanitizer: ",
        "stack trace: ***",
        "_ARRAY_API",
    )
)
_BLOCK = 1 << 20
_END = 1 << 18
_WINDOW = 1 << 14
_WINDOWS = 32


def condense(stream: BinaryIO) -> str:
    """A bounded part of `stream` that holds every failure worth signing: its start, its end, and windows around the
    first marks of failures between. Constant memory; what is left out is replaced by a line that says how much.

    At most about 1.2 MB whatever the input; the supervisor's caps usually keep the whole below that.
    """
    kept: list[bytes] = [stream.read(_END)]
    windows, skipped = 0, 0
    tail = b""
    while block := stream.read(_BLOCK):
        tail += block
        # A window needs its text after the mark: what is searched stays one window behind what was read.
        search = tail[: max(0, len(tail) - _END)]
        start = 0
        while windows < _WINDOWS and search:
            hits = [hit for mark in _MARKS if (hit := search.find(mark, start)) >= 0]
            if not hits:
                break
            begin = max(start, search.rfind(b"\n", start, min(hits)) + 1)
            end = begin + _WINDOW
            skipped += begin - start
            kept += [_gap(skipped), tail[begin:end]]
            windows, skipped, start = windows + 1, 0, end
        done = max(start, len(search) - 64)  # a mark may straddle the border
        skipped += max(0, done - start)
        tail = tail[done:]
    return b"".join([*kept, _gap(skipped), tail]).decode("utf-8", "replace")


def _gap(size: int) -> bytes:
    return b"\n[... %d bytes left out ...]\n" % size if size else b""
