"""HLO text as data, without what is no part of the program; used by `hlo_text`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from repromatrix.evidence.hlo_values import close, layouts_off, split, tidy, value

_NAME = r"[A-Za-z0-9_.\-?]+"
_HEADER = re.compile(rf"(ENTRY )?%?({_NAME})(?: \(.*\) -> .*)? \{{")
_END = re.compile(r"\}(, execution_thread=\"[^\"]*\")?(?: // .*)?")
_HEAD = re.compile(r"HloModule(?:[ ,]|$)")
_START = re.compile(rf"(ROOT )?%?({_NAME}) = ")
_SHAPE = re.compile(r"[a-z][a-z0-9]*(?:\[[^\[\]]*\](?:\{[^{}]*\})?)?")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_TABLE = re.compile(r'FileNames|FunctionNames|FileLocations|StackFrames|\d+ (?:".*"|\{.*\})')
_INDEX = re.compile(r"/\*index=\d+\*/")
_REFERENCE = re.compile(rf"%?({_NAME})")
_SIGIL = re.compile(rf'"(?:[^"\\]|\\.)*+"?|%({_NAME})')

_CALLED = frozenset(
    (
        *("to_apply", "calls", "body", "condition", "branch_computations", "true_computation", "false_computation"),
        *("called_computations", "select", "scatter", "comparator"),
    )
)
"""Attributes whose value names computations, also without a sigil (jaxlib 0.4.30 prints none)."""


@dataclass(slots=True)
class Instruction:
    root: bool
    shape: str
    opcode: str
    literal: str | None  # of a constant or parameter
    operands: list[int | None]  # None: not defined before it
    attributes: list[str]
    before: list[int] = field(default_factory=list)  # control predecessors
    calls: list[tuple[str, int]] = field(default_factory=list)  # (role, computation)

    @property
    def edges(self) -> list[int]:
        return [operand for operand in self.operands if operand is not None] + self.before

    @property
    def tail(self) -> str:
        return "".join(f", {attribute}" for attribute in self.attributes)


@dataclass(slots=True)
class Computation:
    name: str
    entry: bool
    lines: list[str] = field(default_factory=list)
    suffix: str = ""
    instructions: list[Instruction] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  # lines that are no instruction
    order: list[int] = field(default_factory=list)  # places of the instructions, once it is known
    text: list[str] = field(default_factory=list)
    digest: str = ""

    @property
    def calls(self) -> Iterator[tuple[str, int]]:
        places = self.order or range(len(self.instructions))
        return (call for place in places for call in self.instructions[place].calls)


def parse(text: str) -> tuple[list[str] | None, list[str], list[Computation]]:
    """(attributes of the module or None, lines that are no HLO, computations) of `text`, which must hold no `\\0`.

    In attributes `\\0C3\\0` stands for computation 3 and `\\0H3\\0` for channel 3: both get their names at the end.
    """
    header: list[str] | None = None
    others: list[str] = []
    computations: list[Computation] = []
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if not line:
            continue
        if start := _HEADER.fullmatch(line):
            computations.append(Computation(start[2], bool(start[1])))
            inside = True
        elif inside and (end := _END.fullmatch(line)):
            computations[-1].suffix = end[1] or ""
            inside = False
        elif inside:
            computations[-1].lines.append(line)
        elif header is None and _HEAD.match(line) and (attributes := split(line)) is not None:
            header = _module(attributes[1:])
        elif not _TABLE.fullmatch(line):
            others.append(line)
    known = {computation.name: place for place, computation in enumerate(computations)}
    for computation in computations:
        defined: dict[str, int] = {}
        for line in computation.lines:
            _read(line, computation, defined, known)
        computation.lines.clear()
    return header, others, computations


def _module(parts: list[str]) -> list[str]:
    attributes = ["=".join(part) for part in map(_attribute, parts) if part is not None]
    if not any(part.startswith("num_partitions=") and part != "num_partitions=1" for part in attributes):
        # They tell the partitioner what it may choose; with one partition there is nothing to choose.
        attributes = [part for part in attributes if not part.startswith("allow_spmd_sharding_propagation_")]
    return sorted(attributes)


def _attribute(part: str) -> tuple[str, ...] | None:
    key, equals, text = part.partition("=")
    key = key.strip()
    if not equals:
        return (tidy(part.strip()),)
    kept = value(key, text.strip())
    return None if kept is None else (key, kept)


def _read(line: str, into: Computation, defined: dict[str, int], known: dict[str, int]) -> None:
    """Add `line` to `into`: as an instruction, or as a strange line."""
    start = _START.match(line)
    plain = _INDEX.sub("", line) if "/*index=" in line else line
    at = start.end() if start else 0
    if start and plain.startswith("(", at):
        shape_end = close(plain, at)
    else:
        shape = _SHAPE.match(plain, at)
        shape_end = shape.end() if shape else -1
    opcode = _OPCODE.match(plain, shape_end) if shape_end > 0 else None
    end = close(plain, opcode.end() - 1) if opcode else -1
    attributes = split(plain[end:]) if end > 0 else None
    if not start or not opcode or not attributes or attributes[0]:
        into.strange.append(line)
        return
    inner = plain[opcode.end() : end - 1]
    literal = tidy(inner).strip() if opcode[1] in ("constant", "parameter") else None
    parts = (split(inner) or []) if literal is None else []
    operands = [defined.get(_operand(part)) for part in parts if part.strip()]
    shape_text = layouts_off(tidy(plain[at:shape_end]))
    instruction = Instruction(bool(start[1]), shape_text, opcode[1], literal, operands, [])
    kept = (_attribute(part) for part in attributes if part.strip())
    for attribute in sorted(part for part in kept if part is not None):
        _add_attribute(instruction, attribute, defined, known)
    instruction.before.sort()
    defined[start[2]] = len(into.instructions)
    into.instructions.append(instruction)


def _operand(part: str) -> str:
    words = part.split()
    return words[-1].removeprefix("%")


def _add_attribute(to: Instruction, attribute: tuple[str, ...], defined: dict[str, int], known: dict[str, int]) -> None:
    key, text = attribute[0], attribute[-1]
    if len(attribute) == 1:
        to.attributes.append(key)
    elif key == "control-predecessors":
        names = (match[1] for match in _REFERENCE.finditer(text))
        to.before = list({defined[name] for name in names if name in defined})
    elif key == "channel_id":
        to.attributes.append(f"{key}=\0H{text}\0")
    else:
        role = to.opcode if key == "calls" else key if re.fullmatch(_NAME, key) else "computation"

        def place(match: re.Match[str]) -> str:
            name = match[1]
            if name is None or name not in known:
                return "%?" if name is not None and match[0].startswith("%") else match[0]
            to.calls.append((role, known[name]))
            return f"\0C{known[name]}\0"

        pattern = _REFERENCE if key in _CALLED and '"' not in text else _SIGIL
        to.attributes.append(f"{key}={pattern.sub(place, text) if pattern is _REFERENCE or '%' in text else text}")
