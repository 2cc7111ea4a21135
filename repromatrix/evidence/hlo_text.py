"""HLO text in one canonical form: two texts that print the same program become equal, whatever version printed them.

Not part of the form, because jaxlib versions differ in it while the program is the same: names of the module, of
computations and of instructions, `%` sigils, shapes in front of operands, layouts and tiling (memory spaces stay),
metadata, tables of files and stack frames, `/*index=5*/` comments, the order of computations, attributes and
control predecessors, the order of instructions where there is no schedule, the numbers of channels, whether equal
computations are shared or cloned, computations that nothing calls, and attributes with the value that their absence
means. Device lists are written out: `[1,2]<=[2]` and `mesh['a'=1,'b'=2] {'b'}` are both `{{0,1}}`.

Constants, shardings, backend configurations (as sorted JSON without unset fields), aliasing and, in a scheduled module,
the order of whatever takes time are part of it.

What text cannot say, so that two texts are equal though the programs may differ:

* large constants are printed as `{...}` unless `--xla_dump_large_constants` is set;
* a field of a backend configuration that is set to its default looks like one that is not set.

What still makes two texts differ though the programs may be the same: Shardy's attributes and GSPMD's for one sharding,
operands of a commutative operation in another order, `call` and the inlined body.

Measured: `jit(tanh(x @ x.T).sum() + fft(x[0]).real.sum())` before optimisation has one identity in jaxlib 0.4.30,
0.5.3, 0.6.2, 0.7.2, 0.8.3, 0.9.2 and 0.10.2 (tests/data/hlo), all of whose texts differ. After optimisation on the CPU
there are four, each for a cause in the compiler: 0.4.30 has another schedule than 0.5.3; 0.6.2 and 0.7.2 are as 0.5.3;
0.8.3 and 0.9.2 wrap lone operations in fusions; 0.10.2 no longer splits one reduction. A sharded scan for the GPU
differs before any pass, for causes in jax: 0.6.2 no longer wraps an index that cannot be negative, 0.8.0 traces
Shardy's attributes, 0.10.1 calls what 0.8.0 had inlined; 0.10.1 and 0.10.2 are the same.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator

from repromatrix.evidence.hlo_parse import Computation, Instruction, parse

_PLACE = re.compile("\0([CH])([^\0]*)\0")

_STEPS = frozenset(("call", "while", "conditional", "async-start"))
"""What a scheduled computation calls that has a schedule of its own; the bodies of others have none."""

_FREE = frozenset(("parameter", "constant", "get-tuple-element", "bitcast", "tuple"))
"""Takes no time: its place in a schedule says nothing, and versions print it in different ones."""


def canonical(text: str) -> str:
    """`text` in the canonical form described above; `canonical(canonical(x)) == canonical(x)`, and no text raises.

    Lines that are no HLO are kept as they are. Computations that call each other in a circle, which is no HLO, leave
    the text as it is but for blanks at the ends of lines.
    """
    header, others, computations = parse(text.replace("\0", "\ufffd"))
    order = _callees_first(computations)
    if order is None:
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    scheduled = _scheduled(computations) if header is not None and "is_scheduled=true" in header else set()
    digests: list[str] = [""] * len(computations)
    for place in order:
        _write(computations[place], digests, place in scheduled)
        digests[place] = computations[place].digest
    blocks = ([", ".join(["HloModule", *header])] if header is not None else []) + others
    return "\n".join([*blocks, *_emit(computations)]) + "\n" if blocks or computations else ""


def identity(text: str) -> str:
    """The first 32 hex digits of the SHA-256 of `canonical(text)`."""
    return hashlib.sha256(canonical(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def diff(a: str, b: str, *, names: tuple[str, str] = ("a", "b"), context: int = 3) -> str:
    """Unified diff of the canonical forms of two texts; empty where they are the same program."""
    left, right = canonical(a).splitlines(), canonical(b).splitlines()
    return "\n".join(difflib.unified_diff(left, right, *names, lineterm="", n=context))


def _callees_first(computations: list[Computation]) -> list[int] | None:
    """Every computation after those that it calls; None where they call each other in a circle."""
    order: list[int] = []
    state = [0] * len(computations)  # 1 = being visited, 2 = done
    for start in range(len(computations)):
        if state[start]:
            continue
        state[start] = 1
        path = [(start, computations[start].calls)]
        while path:
            place, calls = path[-1]
            for _, callee in calls:
                if state[callee] == 1:
                    return None
                if not state[callee]:
                    state[callee] = 1
                    path.append((callee, computations[callee].calls))
                    break
            else:
                state[place] = 2
                order.append(place)
                path.pop()
    return order


def _scheduled(computations: list[Computation]) -> set[int]:
    found = {place for place, computation in enumerate(computations) if computation.entry}
    left = list(found)
    while left:
        for instruction in computations[left.pop()].instructions:
            if instruction.opcode in _STEPS:
                new = {callee for _, callee in instruction.calls} - found
                found |= new
                left += new
    return found


def _write(computation: Computation, digests: list[str], scheduled: bool) -> None:
    """Give `computation` its canonical lines and its digest; callees have theirs."""
    instructions = computation.instructions
    numbers: Counter[str] = Counter()
    names: dict[int, str] = {}
    computation.order = list(_order(instructions, digests, scheduled))
    for place in computation.order:
        instruction = instructions[place]
        numbers[instruction.opcode] += 1
        names[place] = f"%{instruction.opcode}.{numbers[instruction.opcode]}"
        tail = instruction.tail
        if instruction.before:
            tail = f", control-predecessors={{{','.join(sorted(names[one] for one in instruction.before))}}}{tail}"
        inner = instruction.literal
        if inner is None:
            inner = ", ".join("%?" if one is None else names[one] for one in instruction.operands)
        root = "ROOT " if instruction.root else ""
        computation.text.append(f"  {root}{names[place]} = {instruction.shape} {instruction.opcode}({inner}){tail}")
    computation.text += [f"  {line}" for line in computation.strange]
    resolved = (_resolve(line, digests) for line in computation.text)
    whole = "\n".join([str(computation.entry), computation.suffix, *resolved])
    computation.digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def _resolve(line: str, digests: list[str]) -> str:
    """`line` with the digests of computations for their names, and without the numbers of channels."""
    if "\0" not in line:
        return line
    return _PLACE.sub(lambda match: digests[int(match[2])] if match[1] == "C" else "", line)


def _order(instructions: list[Instruction], digests: list[str], scheduled: bool) -> Iterator[int]:
    """Places of the instructions: parameters, then the root after its operands, then what the root does not need.

    With a schedule: parameters, then what takes time in the order of the schedule, after what it needs.
    """
    done = [False] * len(instructions)

    def visit(start: int, follow: Callable[[int], bool]) -> Iterator[int]:
        path = [(start, iter(edges(start)))]
        while path:
            place, rest = path[-1]
            for edge in rest:
                if not done[edge] and follow(edge):
                    path.append((edge, iter(edges(edge))))
                    break
            else:
                path.pop()
                if not done[place]:
                    done[place] = True
                    yield place

    keys: list[str] = []

    def key(place: int) -> str:
        if not keys:
            keys.extend(_keys(instructions, digests))
        return keys[place]

    def edges(place: int) -> list[int]:
        instruction = instructions[place]
        if len(instruction.before) < 2:
            return instruction.edges
        operands = [one for one in instruction.operands if one is not None]
        return operands + sorted(instruction.before, key=lambda one: (key(one), one))

    parameters = [place for place, one in enumerate(instructions) if one.opcode == "parameter"]
    for place in sorted(parameters, key=lambda place: _number(instructions[place].literal)):
        done[place] = True
        yield place
    if scheduled:
        for place, instruction in enumerate(instructions):
            if instruction.opcode not in _FREE:
                yield from visit(place, lambda edge: instructions[edge].opcode in _FREE)
    used = {edge for instruction in instructions for edge in instruction.edges}
    roots = [place for place, one in enumerate(instructions) if one.root]
    ends = [place for place in range(len(instructions)) if place not in used and not instructions[place].root]
    if len(ends) > 1:
        ends.sort(key=lambda place: (key(place), place))
    for place in [*roots, *ends]:
        if not done[place]:
            yield from visit(place, lambda edge: True)


def _keys(instructions: list[Instruction], digests: list[str]) -> list[str]:
    """For each instruction a digest of itself and of everything it is computed from."""
    keys: list[str] = []
    for one in instructions:
        operands = ["?" if operand is None else keys[operand] for operand in one.operands]
        parts = [one.shape, one.opcode, one.literal or "", _resolve(one.tail, digests), *operands]
        keys.append(hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest())
    return keys


def _number(literal: str | None) -> tuple[int, str]:
    text = literal or ""
    return (int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1, text)


def _emit(computations: list[Computation]) -> list[str]:
    """The computations that the entry needs, equal ones once, callees first; all of them where there is no entry."""
    roots = sorted((one for one in computations if one.entry), key=lambda one: one.digest)
    if not roots:
        roots = sorted(computations, key=lambda one: one.digest)
    names: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    channels: dict[str, int] = {}
    blocks: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] == "C":
            return f"%{names[computations[int(match[2])].digest]}"
        return str(channels.setdefault(match[2], len(channels) + 1))

    for root in roots:
        path = [("computation", root, root.calls)]
        while path:
            role, one, calls = path[-1]
            for callee_role, callee in calls:
                if computations[callee].digest not in names:
                    path.append((callee_role, computations[callee], computations[callee].calls))
                    break
            else:
                path.pop()
                if one.digest in names:
                    continue
                numbers[role] += 1
                names[one.digest] = "main" if one.entry else f"{role}.{numbers[role]}"
                lines = [_PLACE.sub(place, line) if "\0" in line else line for line in one.text]
                start = "ENTRY %main {" if one.entry else f"%{names[one.digest]} {{"
                blocks.append("\n".join(["", start, *lines, f"}}{one.suffix}"]))
    return blocks
