"""Looks into the installed binaries of the environment that runs this file: no GPU, no import of jax here.

    python probe.py [--package NAME] [--string TEXT] [--word TEXT] [--symbol TEXT] [--flag FLAG[=VALUE]] [--all-flags]
                    [--out probe.json]

Every option but the last two may be given several times. NAME is a distribution (`jax-cuda12-pjrt`); without it those
of jaxlib and of the CUDA plugin are looked at. What is found:

* strings: how many printable runs of at least four characters hold the text (`strings FILE | grep -c`, `-cw`)
* symbols: how many mangled names hold the text, in the dynamic and in the full symbol table (`nm -D`, `nm`)
* of each library its build id, the libraries it needs, and the symbol versions it asks of them
* flags: whether XLA takes them, by starting it with them in a child process. A string proves nothing here: names of
  flags that are gone stay in the binary as fields of a protocol buffer.

Standard library only, Python 3.9 or newer. It reads the ELF tables itself: to walk the 725 000 symbols of the plugin
of 0.10.2 one object each takes 12 s, to search their names takes 0.2 s.

Exit status: 0 looked; 1 XLA gave no readable answer; 2 the command line is wrong; 125 no such package is installed.
"""

from __future__ import annotations

import argparse
import array
import functools
import importlib.metadata
import json
import mmap
import os
import re
import signal
import struct
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

SKIP, WRONG = 125, 2
PACKAGES = ("jaxlib", "jax-cuda12-pjrt", "jax-cuda12-plugin", "jax-cuda13-pjrt", "jax-cuda13-plugin")
SENTINEL = "xla_invented_by_the_probe"  # refused by every parser; if it is not refused, nobody looked
# jaxlib parses flags of all backends, also of GPUs, when the first one starts; an abort is an answer and needs no core.
SERVER = """
import os, resource, signal, sys, tempfile, traceback
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.modules.update(jax_plugins=None, jax_cuda12_plugin=None, jax_cuda13_plugin=None)  # no part in this, and slow
import jax
for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            signal.alarm(%d)
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            os.environ["XLA_FLAGS"] = line.strip()
            try:
                jax.devices()
            except BaseException:
                print(traceback.format_exc(), flush=True), os._exit(1)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0)
    status = 128 - ended if ended < 0 else ended
    sys.stdout.buffer.write(b"%%d %%d\\n" %% (status, len(text)) + text)
    sys.stdout.buffer.flush()
"""
TIMEOUT = 120  # seconds
LOG_RECORD = 15000
BATCH = 6000  # characters of flags given at once: from 0.7.2 a line of the log ends after 15 000
PRINTABLE = frozenset([9, *range(32, 127)])  # as GNU strings sees it
WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
RUN = 4  # shortest run that is a string

SHT_NOTE, SHT_DYNSYM, SHT_SYMTAB, SHT_DYNAMIC, SHT_GNU_VERNEED = 7, 11, 2, 6, 0x6FFFFFFE  # elf.h
NT_GNU_BUILD_ID, DT_NEEDED = 3, 1
NAMELESS = (3, 4)  # STT_SECTION, STT_FILE: nm does not list them


class NotElf(Exception):
    pass


# --- binaries -------------------------------------------------------------------------------------------------------


class Elf:
    """The sections of a 64-bit little-endian ELF file."""

    def __init__(self, data: mmap.mmap) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise NotElf
        self.data = data
        offset = struct.unpack_from("<Q", data, 0x28)[0]
        size, count = struct.unpack_from("<HH", data, 0x3A)
        # Of each: type, offset, size, index of the section it refers to.
        self.sections = []
        for number in range(count):
            _, kind, _, _, start, length, link, _, _, _ = struct.unpack_from(
                "<IIQQQQIIQQ", data, offset + number * size
            )
            self.sections.append((kind, start, length, link))

    def of_kind(self, kind: int) -> Iterator[tuple[int, int, int]]:
        """(offset, size, offset of its string table) of the sections of a kind."""
        for found, start, length, link in self.sections:
            if found == kind:
                yield start, length, self.sections[link][1] if link < len(self.sections) else 0

    def text(self, offset: int) -> str:
        return self.data[offset : self.data.find(b"\0", offset)].decode(errors="replace")

    def symbols(self, kind: int, texts: list[str]) -> dict[str, int] | None:
        """How many symbols' names hold each text; None where there is no such table (a stripped file)."""
        counts: dict[str, int] | None = None
        for start, length, link in self.of_kind(kind):
            counts = counts or dict.fromkeys(texts, 0)
            table = self.data[start : start + length]
            names, kinds = array.array("I", table)[::6], table[4::24]  # 24 bytes each: st_name first, st_info at 4
            end = link + next(size for _, offset, size, _ in self.sections if offset == link)
            for text in texts:
                inside = bytearray(end - link)  # per byte of the string table: a name that starts here holds the text
                for position in occurrences(self.data, text.encode(), link, end):
                    first = self.data.rfind(b"\0", link, position) + 1
                    inside[first - link : position - link + 1] = b"\1" * (position - first + 1)
                counts[text] += sum(inside[name] and kind & 15 not in NAMELESS for name, kind in zip(names, kinds))
        return counts

    def build_id(self) -> str:
        for start, length, _ in self.of_kind(SHT_NOTE):
            end = start + length
            note = start
            while note + 12 <= end:
                owner, size, kind = struct.unpack_from("<III", self.data, note)
                value = note + 12 + (owner + 3 & ~3)
                if kind == NT_GNU_BUILD_ID and self.data[note + 12 : note + 15] == b"GNU":
                    return self.data[value : value + size].hex()
                note = value + (size + 3 & ~3)
        return ""

    def needed(self) -> list[str]:
        found = []
        for start, length, strings in self.of_kind(SHT_DYNAMIC):
            for tag, value in struct.iter_unpack("<QQ", self.data[start : start + length]):
                if tag == DT_NEEDED:
                    found.append(self.text(strings + value))
        return found

    def versions(self) -> dict[str, list[str]]:
        """Symbol versions asked of each library: `GLIBC_2.27` says which system is too old."""
        found: dict[str, list[str]] = {}
        for start, _, strings in self.of_kind(SHT_GNU_VERNEED):
            place, following = start, 1
            while following:
                _, count, library, first, following = struct.unpack_from("<HHIII", self.data, place)
                names, entry = [], place + first
                for _ in range(count):
                    _, _, _, name, step = struct.unpack_from("<IHHII", self.data, entry)
                    names.append(self.text(strings + name))
                    entry += step
                found[self.text(strings + library)] = sorted(names)
                place += following
        return found


def occurrences(data: mmap.mmap, text: bytes, start: int = 0, end: int | None = None) -> Iterator[int]:
    end = len(data) if end is None else end
    position = data.find(text, start, end)
    while position >= 0:
        yield position
        position = data.find(text, position + 1, end)


def strings(data: mmap.mmap, text: bytes, whole: bool) -> int:
    """How many printable runs hold `text`; as a word of its own with `whole`."""
    count, counted = 0, -1  # end of the run counted last
    for position in occurrences(data, text):
        first, last = position, position + len(text)
        if first < counted or (whole and (data[first - 1] in WORD or (last < len(data) and data[last] in WORD))):
            continue
        while first and data[first - 1] in PRINTABLE:
            first -= 1
        while last < len(data) and data[last] in PRINTABLE:
            last += 1
        if last - first >= RUN:
            count, counted = count + 1, last
    return count


def libraries(package: str) -> list[str]:
    """Paths of the shared libraries that an installed distribution brought."""
    files = importlib.metadata.distribution(package).files or []
    return sorted(str(file.locate()) for file in files if re.search(r"\.so(\.\d+)*$", file.name))


def look(path: str, package: str, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"package": package, "file": os.path.relpath(path, os.path.dirname(os.path.dirname(path)))}
    with open(path, "rb") as file:
        found["size"] = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found["strings"] = {text: strings(data, text.encode(), False) for text in options.string}
            found["words"] = {text: strings(data, text.encode(), True) for text in options.word}
            try:
                elf = Elf(data)
            except NotElf:  # a linker script, or another machine's
                return {**found, "elf": False}
            return {
                **found,
                "elf": True,
                "build_id": elf.build_id(),
                "needed": elf.needed(),
                "versions": elf.versions(),
                "dynsym": elf.symbols(SHT_DYNSYM, options.symbol),
                "symtab": elf.symbols(SHT_SYMTAB, options.symbol),
            }


# --- flags ----------------------------------------------------------------------------------------------------------


class NoAnswer(Exception):
    """XLA ended without saying what it thinks of the flags."""


@functools.lru_cache(None)
def server() -> subprocess.Popen[bytes]:
    """A child that imports jax once and forks for every set of flags: 10 to 25 ms each instead of 1 s.

    Importing jax parses no flags in 0.4.30 to 0.10.2; were that to change, the invented flag would not be refused.
    """
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "0", "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE  # stderr holds what importing jax says, which is far less than the 64 kB of a pipe
    return subprocess.Popen([sys.executable, "-c", SERVER % TIMEOUT], env=environ, stdin=pipe, stdout=pipe, stderr=pipe)


def start(words: list[str]) -> tuple[int, str]:
    """Start XLA with these flags: exit status as a shell shows it, and what it said."""
    child = server()
    assert child.stdin
    assert child.stdout
    try:
        child.stdin.write(" ".join(words).encode() + b"\n")
        child.stdin.flush()
        status, length = map(int, child.stdout.readline().split())
    except (BrokenPipeError, ValueError):
        why = child.communicate()[1].decode(errors="replace").strip()
        raise NoAnswer("jax cannot be imported (status %s): %s" % (child.returncode, why[-2000:])) from None
    said = child.stdout.read(length).decode(errors="replace")
    if status == 128 + signal.SIGALRM:
        raise NoAnswer("XLA did not start within %d s: %s" % (TIMEOUT, said.strip()[-2000:]))
    return status, said


def ask(words: list[str]) -> dict[str, str]:
    """What XLA says to each word `--name=value`: `accepted`, `unknown` or `value refused`.

    It tells all refused values at once and then ends; it tells all unknown names in one line, if no value was refused.
    """
    verdicts, left = {}, list(words)
    while True:
        status, said = start([*left, "--%s=1" % SENTINEL])
        refused = set(re.findall(r"Couldn't interpret value .*? ?for flag (\w+)\.", said))
        again = [word for word in left if name_of(word) not in refused]
        verdicts.update(dict.fromkeys(set(left) - set(again), "value refused"))
        if refused and len(again) < len(left):
            left = again
            continue
        line = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", said)
        # Up to 0.5 two spaces follow the unknown ones, and then come words that are known: leftovers of its own list.
        unknown = {name_of(word) for word in line[1].partition("  ")[0].split()} if line else set()
        if SENTINEL in unknown:
            verdicts.update({word: "unknown" if name_of(word) in unknown else "accepted" for word in left})
            return verdicts
        if len(left) > 1:  # one of them ends XLA in a way of its own: find out which
            half = len(left) // 2
            return {**verdicts, **ask(left[:half]), **ask(left[half:])}
        if left and "Flag parsing failed" in said:  # flags that are enumerations refuse a value without naming it
            return {**verdicts, left[0]: "value refused"}
        if not left:
            raise NoAnswer("status %d with an invented flag alone: %s" % (status, said.strip()[-2000:]))
        ask([])  # it does answer without this one
        return {**verdicts, left[0]: "no answer"}


def name_of(word: str) -> str:
    return word.lstrip("-").partition("=")[0]


def flags(wanted: list[str]) -> dict[str, str]:
    """The verdict on each flag as it was given. A name alone gets an empty value: if that is refused, it is known."""
    words = {flag: flag if "=" in flag else flag + "=" for flag in (text.lstrip("-") for text in wanted)}
    verdicts = ask(["--" + word for word in words.values()])
    found = {flag: verdicts["--" + word] for flag, word in words.items()}
    return {flag: "accepted" if v == "value refused" and "=" not in flag else v for flag, v in found.items()}


def usage() -> tuple[dict[str, list[str]], bool]:
    """Default and type of the flags that XLA lists when it refuses a value, and whether the list is whole: from 0.7.2
    it is a record of absl's log, which ends after 15 000 characters.
    """
    _, said = start(["--xla_backend_optimization_level=maybe"])
    listed = re.findall(r"(?m)^\t--(xla_\w+)=(.*?) *\t(bool|string|int32|int64|float|double)\t", said)
    if not listed:
        raise NoAnswer("no list of flags when a value is refused: %s" % said.strip()[-2000:])
    return {name: [default, kind] for name, default, kind in listed}, len(said.partition("\nusage: ")[2]) > LOG_RECORD


def all_flags(paths: list[str]) -> dict[str, list[str]]:
    """Every flag that is accepted, with default and type where they are told.

    Where the list is cut, the names in the binaries are candidates, and XLA decides on each. Up to 0.6.2, where the
    list is whole, candidates and list agree to the last flag (184 in 0.4.30, 214 in 0.4.38, 230 in 0.6.2).
    """
    told, whole = usage()
    names = set(told)
    for path in () if whole else paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            names.update(name.decode() for name in re.findall(rb"xla_[a-z0-9_]{3,90}", data))
    batches: list[list[str]] = [[]]
    for name in sorted(names):
        if sum(len(other) + 4 for other in batches[-1]) > BATCH:
            batches.append([])
        batches[-1].append(name)
    known = [name for batch in batches for name, verdict in flags(batch).items() if verdict != "unknown"]
    return {name: told.get(name, ["", ""]) for name in known}


# --- the program ----------------------------------------------------------------------------------------------------


def metric(kind: str, text: str, value: int) -> None:
    print("REPRO_METRIC %s/%s=%d" % (kind, re.sub(r"[^\w.:/-]", "_", text), value))


def tell(found: list[dict[str, Any]], options: argparse.Namespace, whole: bool) -> None:
    """Print what was found: a line per library and text, then the sums as metrics."""
    symbols = [(kind, options.symbol) for kind in ("dynsym", "symtab")]
    tables = [("strings", options.string), ("words", options.word), *symbols]
    for library in found:
        print("%(package)s %(file)s: %(size)d bytes" % library + (", no ELF file" if not library["elf"] else ""))
        for kind, texts in tables:
            for text in texts:
                counts = library.get(kind)
                print("  %s %s: %s" % (kind, text, "no such table" if counts is None else counts[text]))
    for kind, texts in tables:
        looked = [library[kind] for library in found if library.get(kind) is not None]
        for text in texts if looked else ():  # nothing is said where no file has such a table: 0 would be a finding
            total = sum(counts[text] for counts in looked)
            if total or whole:  # with a package missing that was asked for, 0 would be a finding too
                metric(kind, text, total)


def main() -> None:
    parser = argparse.ArgumentParser(description="Looks into installed binaries; see the top of this file.")
    for name in ("package", "string", "word", "symbol", "flag"):
        parser.add_argument("--" + name, action="append", default=[])
    parser.add_argument("--all-flags", action="store_true")
    parser.add_argument("--out", default="probe.json")
    options = parser.parse_args()
    if bad := [flag for flag in options.flag if not re.fullmatch(r"(--)?xla_\w+(=\S*)?", flag)]:
        parser.error("--flag %s: expected xla_name or xla_name=value" % bad[0])

    absent, versions, found = [], {}, []
    for package in options.package or PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            absent.append(package)
            continue
        found += [look(path, package, options) for path in libraries(package)]
    result: dict[str, Any] = {"schema": 1, "packages": versions, "absent": absent, "libraries": found}
    for package, version in versions.items():
        print("%s %s" % (package, version))
    if absent:
        print("not installed: " + ", ".join(absent))
    tell(found, options, not (options.package and absent))
    status = 0 if versions else SKIP
    try:
        if options.flag and versions:
            result["flags"] = flags(options.flag)
            for flag, verdict in result["flags"].items():
                print("flag %s: %s" % (flag, verdict))
                if verdict != "no answer":
                    metric("flag", name_of(flag), int(verdict == "accepted"))
        if options.all_flags and versions:
            result["accepted"] = all_flags(libraries("jaxlib"))
            print("REPRO_METRIC flags_accepted=%d" % len(result["accepted"]))
    except (NoAnswer, importlib.metadata.PackageNotFoundError) as error:
        result["trouble"] = "%s: %s" % (type(error).__name__, error)
        print("flags: " + result["trouble"], file=sys.stderr)
        status = 1
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
