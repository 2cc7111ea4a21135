"""What uv's refusals mean: one plain sentence for each kind of environment that cannot exist.

Pure text to text. Only what is understood is called impossible. A refusal that could come from the network, from
missing credentials or from an index that does not tell enough is never one: `explain` answers None for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NOT_A_VERDICT = re.compile(
    r"Failed to fetch|was not found in the package registry|was not found in the cache|network was disabled"
    r"|lack of valid authentication|Forbidden|is missing an upload date|Failed to (?:read|download|parse)"
)
"""Texts that make every conclusion of the resolver worthless: it has not seen what the index holds. A mirror that
answers 401 or 404 lets uv conclude "requirements are unsatisfiable" (seen with uv 0.13.9)."""

_MISSING_EXTRA = re.compile(r"The package `([^`=]+)==([^`]+)` does not have an extra named `([^`]+)`")
_YANKED = re.compile(r"`([^`=]+)==([^`]+)` is yanked(?: \(reason: \"(.*?)\"\))?")
_CUTOFF = re.compile(
    r"`([^`]+)` was filtered by `exclude-newer` to only include packages uploaded before (\S+?)\.(?: |$)"
)
_PIN = r"(\S+?)==([^\s,]+)"


def missing_extras(stderr: str) -> list[tuple[str, str, str]]:
    """(package, version, extra) of each extra that uv only warns about and then leaves out."""
    return [(name, version, extra) for name, version, extra in _MISSING_EXTRA.findall(stderr)]


def yanked(stderr: str) -> list[tuple[str, str, str]]:
    """(package, version, reason) of each withdrawn version that uv used because it was pinned."""
    return [(name, version, reason) for name, version, reason in _YANKED.findall(stderr)]


def withdrawn_pins(stderr: str) -> list[str]:
    """`jaxlib==0.4.32` for each withdrawn version that another package pins and that uv therefore refused."""
    text = " ".join(stderr.split())
    return list(dict.fromkeys(re.findall(r"(\S+==\S+) was yanked and \S+ depends on \1[, ]", text)))


def missing_version(stderr: str) -> str | None:
    """The package of which uv says that the version asked for is not there."""
    found = re.search(r"there is no version of ([^\s=\[]+)(?:\[\S*?\])?==", " ".join(stderr.split()))
    return found[1] if found else None


def lists_nothing(stderr: str) -> bool:
    """Whether uv saw no version at all of a package that was asked for without any bound."""
    return "there are no versions of" in " ".join(stderr.split())


def explain(stderr: str, python: str = "") -> str | None:
    """Why the environment cannot exist, as one sentence; None where that is not certain or not understood.

    Args:
        stderr: What `uv pip compile` printed, without colours.
        python: The environment's Python, `3.11`, for the refusals in which uv does not name it.
    """
    if _NOT_A_VERDICT.search(stderr):
        return None
    text = " ".join(stderr.split())
    _, found, cause = text.partition("No solution found when resolving dependencies cause: ")
    if not found:
        return next((f"{n} {v} has no extra {extra}" for n, v, extra in missing_extras(stderr)), None)
    proof, _, hints = cause.partition(" hint: ")
    for pattern, sentence in _RULES:
        if (match := re.search(pattern, proof)) is not None:
            return sentence(match, hints, f"Python {python}" if python else "this Python")
    return None


def _readable(requirement: str) -> str:
    """`jaxlib>=0.4.27,<=0.4.30` as `jaxlib >=0.4.27,<=0.4.30`; `jax==0.6.2` as `jax 0.6.2`."""
    plain = re.sub(r"\{[^}]*\}", "", requirement)
    if (pin := re.fullmatch(r"([^\s=<>!~]+)==([^\s,*]+)", plain)) is not None:
        return f"{pin[1]} {pin[2]}"
    return re.sub(r"(?<=[\w\]])(?=[<>=!~])", " ", plain, count=1)


def _alternatives(listed: str) -> str:
    """`one of: jax>=0.4.38,<0.7.0 jax>0.7.1` as `jax >=0.4.38,<0.7.0 or jax >0.7.1`."""
    return " or ".join(_readable(one) for one in listed.removeprefix("one of: ").split())


def _tags(hints: str) -> str:
    """The tags that a hint lists, ` (only for cp39, cp310)`, or nothing."""
    _, _, listed = hints.partition("tags: ")
    tags = re.findall(r"`([^`]+)`", listed or hints.partition("platforms: ")[2])
    return f" (only for {', '.join(tags)})" if tags else ""


def _wrong_python(m: re.Match[str], _: str, __: str) -> str:
    return f"{_readable(m[3])} needs Python {m[2]}, and this environment has Python {m[1]}"


def _no_abi(m: re.Match[str], hints: str, python: str) -> str:
    tag = re.fullmatch(r"cp(\d)(\d+)", m[2])
    wanted = f"Python {tag[1]}.{tag[2]}" if tag else python
    return f"{_readable(m[1])} has no wheel for {wanted}{_tags(hints)}"


def _no_platform(m: re.Match[str], hints: str, python: str) -> str:
    return f"{_readable(m[1])} has no wheel for {m[2]} and {python}{_tags(hints)}"


def _no_wheel(m: re.Match[str], _: str, python: str) -> str:
    return f"{_readable(m[1])} has no wheel for {python} on this platform, and nothing is built from source"


def _no_version(m: re.Match[str], hints: str, _: str) -> str:
    if (cut := _CUTOFF.search(hints)) is not None and cut[1] == m[1]:
        return f"{m[1]} {m[2]} was not yet published at {cut[2]}, the cutoff of as_of"
    return f"the index has no {m[1]} {m[2]}"


def _too_new(m: re.Match[str], hints: str, _: str) -> str:
    name = re.split(r"[\[<>=!~]", m[2])[0]
    if (cut := _CUTOFF.search(hints)) is not None and cut[1] == name:
        return f"no {_readable(m[2])} was published by {cut[2]}, the cutoff of as_of"
    return f"the index has no {_readable(m[2])} (it has {_alternatives(m[1])})"


def _after_cutoff(m: re.Match[str], _: str, __: str) -> str:
    return f"no {_readable(m[1])} was published by the cutoff of as_of"


def _needs(m: re.Match[str], _: str, __: str) -> str:
    return f"{_readable(m['who'])} needs {_alternatives(m['what'])}, and {_readable(m['asked'])} is asked for"


def _all_need(m: re.Match[str], _: str, __: str) -> str:
    return f"every version of {m[1]} needs {_alternatives(m[2])}, and {_readable(m[3])} is asked for"


def _both(m: re.Match[str], _: str, __: str) -> str:
    return f"{_readable(m[1])} and {_readable(m[2])} are asked for and exclude each other"


_Sentence = Callable[[re.Match[str], str, str], str]
_RULES: tuple[tuple[str, _Sentence], ...] = (
    (
        r"requested Python version \(>=([\d.]+)\) does not satisfy Python(\S+) and (\S+) depends on Python",
        _wrong_python,
    ),
    (r"(\S+) has no wheels with a matching Python (?:ABI|implementation) tag \(e\.g\., `([^`]+)`\)", _no_abi),
    (r"(\S+) has no wheels with a matching platform tag \(e\.g\., `([^`]+)`\)", _no_platform),
    (r"(\S+) has no usable wheels", _no_wheel),
    (rf"there is no version of {_PIN}", _no_version),
    (r"\S+ (?:was|were) published after the exclude newer time and you require (\S+),", _after_cutoff),
    (
        r"only (?:the following versions of \S+ are available: )?(.+?) (?:is|are) available and you require (\S+),",
        _too_new,
    ),
    (
        r"^Because (?P<who>\S+) depends on (?P<what>.+?) and you require \S+, we can conclude that you require [^ ]+\. "
        r"And because you require (?P<asked>\S+), we can conclude that your requirements are unsatisfiable\.$",
        _needs,
    ),
    (
        r"^Because (?P<who>\S+) depends on (?P<what>.+?) and you require (?P<asked>\S+), we can conclude that your "
        r"requirements and \S+ are incompatible\. And because you require \S+, we can conclude that your "
        r"requirements are unsatisfiable\.$",
        _needs,
    ),
    (
        r"^Because all versions of (\S+) depend on (.+?) and you require (\S+), we can conclude that your "
        r"requirements and all versions of \1 are incompatible\. And because you require \S+, we can conclude that "
        r"your requirements are unsatisfiable\.$",
        _all_need,
    ),
    (
        r"we can conclude that (?P<who>\S+) depends on (?P<what>\S+)\. And because you require (?P=who) and "
        r"(?P<asked>\S+), we can conclude that your requirements are unsatisfiable\.$",
        _needs,
    ),
    (r"^Because you require (\S+) and (\S+), we can conclude that your requirements are unsatisfiable\.$", _both),
)
"""In order: the first that matches speaks. Texts of uv 0.13.9, recorded in tests/data/uv/."""
