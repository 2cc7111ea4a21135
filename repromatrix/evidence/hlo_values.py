"""The values of HLO attributes, written one way; used by `hlo_text`."""

from __future__ import annotations

import codecs
import json
import math
import re
from itertools import product

_STRING = r'"(?:[^"\\]|\\.)*+"?'
_END = r'"(?:[^"\\]|\\.)*+(?P<end>"?)'
_BRACKETS = re.compile(rf"{_END}|[()\[\]{{}}]")
_BORDERS = re.compile(rf"{_END}|[()\[\]{{}},]")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_QUOTED = re.compile(rf"({_STRING})")
_SPACE = re.compile(r"\s*([()\[\]{},])\s*")
_LAYOUT = re.compile(r"(?<=\])(?:\{[\d,]*(?::[^{}\"]*)?\})+")
_MEMORY = re.compile(r"S\(\d+\)")
_METADATA = re.compile(rf" ?\bmetadata=\{{(?:[^{{}}\"]|{_STRING}|\{{[^{{}}]*\}})*\}}")
_IOTA = re.compile(r"\[(\d+(?:,\d+)*)\]<=\[(\d+(?:,\d+)*)\](?:T\((\d+(?:,\d+)*)\))?")
_MESH = re.compile(r"mesh\[((?:'\w+'=\d+,?)+)\]\{((?:'\w+',?)*)\}")
_DEFAULT_WORD = re.compile(r"(?:[A-Z0-9_]+_)?(?:INVALID|UNSPECIFIED|UNSET|UNKNOWN|DEFAULT)")

_MOST_DEVICES = 1 << 16
"""Device lists are written out up to this length."""

_DROPPED = frozenset(
    (
        *("metadata", "origin", "original_value", "statistics", "stack_frame_id"),  # what the source looked like
        *("entry_computation_layout", "operand_layout_constraints", "result_layout"),
    )
)

_DEBUG = frozenset(("fingerprint_before_lhs", "kernel_metadata", "kernel_name", "suggested_combiner_threshold"))
"""Frontend attributes that tell people and later passes of the compiler's own reckoning, and change nothing."""


def close(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`; -1 where there is none. Strings are skipped."""
    closers: list[str] = []
    for token in _BRACKETS.finditer(text, start):
        if not _fits(token, closers):
            return -1
        if not closers:
            return token.end()
    return -1


def split(text: str) -> list[str] | None:
    """`text` at its commas outside of brackets and strings; None where a bracket or a string is not closed."""
    parts, begin = [], 0
    closers: list[str] = []
    for token in _BORDERS.finditer(text):
        if token[0] == ",":
            if not closers:
                parts.append(text[begin : token.start()])
                begin = token.end()
        elif not _fits(token, closers):
            return None
    return None if closers else [*parts, text[begin:]]


def _fits(token: re.Match[str], closers: list[str]) -> bool:
    """Whether `token`, a bracket or a string, may stand here; keeps the closing brackets that are due in `closers`."""
    kind = token[0][0]
    if kind == '"':
        return token["end"] == '"'
    if kind in _CLOSERS:
        closers.append(_CLOSERS[kind])
        return True
    return bool(closers) and closers.pop() == kind


def tidy(text: str) -> str:
    """`text` without blanks around brackets and commas; strings stay."""
    if '"' not in text:
        return _SPACE.sub(r"\1", text)
    parts = _QUOTED.split(text)
    parts[::2] = [_SPACE.sub(r"\1", part) for part in parts[::2]]
    return "".join(parts)


def layouts_off(text: str) -> str:
    """Shapes in `text` without their layouts: `f32[8,8]{1,0:T(8,128)S(5)}` is `f32[8,8]{:S(5)}`."""

    def memory(match: re.Match[str]) -> str:
        spaces = "".join(_MEMORY.findall(match[0]))
        return f"{{:{spaces}}}" if spaces else ""

    return _LAYOUT.sub(memory, text)


def value(key: str, text: str) -> str | None:
    """The value of attribute `key` in its one form, or None where it says nothing of the program."""
    if key in _DROPPED or text == "false":
        return None
    if key == "backend_config":
        return _backend(text)
    if key == "frontend_attributes":
        return _frontend(text)
    text = tidy(text)
    if key == "replica_groups":
        return _IOTA.sub(lambda match: _groups(match) or match[0], _MESH.sub(_mesh, text))
    if key == "sharding":
        if "metadata=" in text:
            text = _METADATA.sub("", text)
        return _IOTA.sub(lambda match: _devices(match) or match[0], text)
    if key == "parameter_replication" and not re.search("true", text):
        return None
    return text if '"' in text else layouts_off(text)


def _frontend(text: str) -> str | None:
    parts = split(text[1:-1]) if text.startswith("{") and text.endswith("}") else None
    if parts is None:
        return tidy(text)
    kept = [part.strip() for part in parts if part.strip()]
    kept = [part for part in kept if part.partition("=")[0].strip() not in _DEBUG]
    return f"{{{','.join(sorted(kept))}}}" if kept else None


def _backend(text: str) -> str | None:
    """JSON, bare or in a string as older versions print it, with sorted keys and without unset fields."""
    raw = text
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        try:
            raw = codecs.decode(text[1:-1].encode("latin-1", "backslashreplace"), "unicode_escape")
        except ValueError:
            return text
    try:
        config = json.loads(raw)
        if isinstance(config, dict):
            config = _set_fields(config)
            return json.dumps(config, sort_keys=True, separators=(",", ":")) if config else None
    except (ValueError, RecursionError):  # a custom call's own format
        pass
    return text


def _set_fields(config: object) -> object:
    """Without what protobuf takes for unset; which of these are printed changes between versions.

    0.8.0 prints `"wait_on_operation_queues":[]`, 0.10.2 does not; 0.10.2 prints `"waves_per_eu":0`, 0.8.0 does not.
    Messages stay even where nothing is left in them: that they are there is said by no field.
    """
    if isinstance(config, dict):
        kept = {key: _set_fields(one) for key, one in config.items()}
        return {key: one for key, one in kept.items() if not _unset(one)}
    if isinstance(config, list):
        return [_set_fields(one) for one in config]
    return config


def _unset(field: object) -> bool:
    if isinstance(field, str):
        return field in ("", "0") or _DEFAULT_WORD.fullmatch(field) is not None
    return field is None or field is False or field == [] or (isinstance(field, int | float) and field == 0)


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _iota(dims: list[int], order: list[int]) -> list[int]:
    """0..n-1 in the shape `dims`, transposed by `order`, as one row."""
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    moved = [(dims[axis], strides[axis]) for axis in order]
    return [
        sum(index * stride for index, (_, stride) in zip(place, moved, strict=True))
        for place in product(*(range(size) for size, _ in moved))
    ]


def _row(match: re.Match[str]) -> list[int] | None:
    if max(map(len, match.groups(default=""))) > 64:
        return None
    shape, dims = _integers(match[1]), _integers(match[2])
    order = _integers(match[3]) if match[3] else list(range(len(dims)))
    size = math.prod(dims)
    if sorted(order) != list(range(len(dims))) or math.prod(shape) != size or not 0 < size <= _MOST_DEVICES:
        return None
    return _iota(dims, order)


def _written(row: list[int], size: int) -> str:
    groups = [row[begin : begin + size] for begin in range(0, len(row), size)]
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def _groups(match: re.Match[str]) -> str | None:
    shape = _integers(match[1]) if len(match[1]) <= 64 else []
    row = _row(match) if len(shape) == 2 else None
    return None if row is None else _written(row, shape[1])


def _devices(match: re.Match[str]) -> str | None:
    row = _row(match)
    return None if row is None else f"[{match[1]}]{','.join(map(str, row))}"


def _mesh(match: re.Match[str]) -> str:
    """Groups along some axes of a mesh whose devices are counted up: those that differ in these axes alone."""
    sizes = {}
    for part in match[1].strip(",").split(","):
        name, _, size = part.partition("=")
        sizes[name] = int(size) if len(size) < 10 else 0
    chosen = [name for name in match[2].split(",") if name]
    places = list(sizes)
    if not set(chosen) <= set(places) or not 0 < math.prod(sizes.values()) <= _MOST_DEVICES:
        return match[0]
    order = [places.index(name) for name in places if name not in chosen] + [places.index(name) for name in chosen]
    return _written(_iota(list(sizes.values()), order), math.prod(sizes[name] for name in chosen))
