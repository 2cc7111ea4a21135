"""Text made fit to leave this machine: nothing in it tells who ran it, where, or with which secrets.

Rules by value know this machine (`private.py`): its user, host, folders and secrets. Rules by form (`forms.py`) know
what such things look like anywhere, since logs and restored results come from other machines, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from repromatrix.project import Project
from repromatrix.share.privacy.forms import COLON, HOMES, NETWORK, PEOPLE, SEP, TOKENS, TOOLS, WORDS, Rule
from repromatrix.share.privacy.private import Private, of_this_machine

T = TypeVar("T")

_SHORT = 4
"""Characters below which a name is no more than a word: replaced only where the context tells."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces what is private.

    Attributes:
        secrets: Rules for the secrets and addresses of a machine.
        places: For its folders.
        names: For its users and hosts.
    """

    secrets: tuple[Rule, ...] = ()
    places: tuple[Rule, ...] = ()
    names: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, private: Private) -> Redactor:
        """Rules for what is private of a machine."""
        secrets = [*map(_secret, private.secrets), *(rule for each in private.addresses for rule in _address(each))]
        longest = sorted(private.places, key=lambda pair: -len(pair[0]))
        places = [_place(path, name) for path, name in longest if path.strip("/")]
        domains = [_rule(rf"(?<![\w.-])(?:[\w-]+\.)+{re.escape(each)}(?![\w-])", "<host>") for each in private.domains]
        hosts = [rule for each in private.hosts for rule in _host(each)]
        users = [rule for each in private.users for rule in _user(each)]
        return cls(tuple(secrets), tuple(places), (*domains, *hosts, *users))

    @classmethod
    def of_this_machine(cls, project: Project | None = None, addresses: Iterable[str] = ()) -> Redactor:
        """Rules for this machine, its user and `project`; see `private.of_this_machine`."""
        return cls.of(of_this_machine(project, addresses))

    def redact(self, text: str) -> str:
        """`text` with `<home>`, `<project>`, `<store>`, `<user>`, `<host>`, `<token>`, `<email>`, `<ip>`, ... for what
        is private. The same text gives the same; what was redacted once stays as it is."""
        # Secrets before names, which may be part of them; the project before the home folder that it lies in.
        for pattern, instead in (*self.secrets, *TOKENS, *PEOPLE, *self.places, *TOOLS, HOMES, *self.names, *NETWORK):
            text = pattern.sub(instead, text)
        return text

    def all(self, data: T) -> T:
        """`data` with every text in it redacted: dataclasses, tuples, lists and values of dictionaries, all the way."""
        return self._of(data)  # type: ignore[no-any-return]

    def _of(self, data: Any) -> Any:
        if isinstance(data, str) and type(data) is str:
            return self.redact(data)
        if isinstance(data, tuple | list):
            return type(data)(map(self._of, data))
        if isinstance(data, dict):
            return {key: self._of(value) for key, value in data.items()}
        if is_dataclass(data) and not isinstance(data, type):
            old = {each.name: getattr(data, each.name) for each in fields(data) if each.init}
            return replace(data, **{name: self._of(value) for name, value in old.items()})
        return data


def redact(text: str, project: Project | None = None) -> str:
    """`text` without what is private on this machine or anywhere; a `Redactor` kept is faster for many texts."""
    return Redactor.of_this_machine(project).redact(text)


def _rule(pattern: str, instead: str) -> Rule:
    return re.compile(pattern, re.IGNORECASE), instead


def _literal(value: str) -> str:
    """A pattern for `value` as it is, percent-encoded, or with the escapes of JSON; letters and digits stay in each."""
    forms: list[str] = []
    for char in value:
        spelled = {char, *_spellings(char)}
        forms.append(re.escape(char) if len(spelled) == 1 else f"(?:{'|'.join(map(re.escape, sorted(spelled)))})")
    return "".join(forms)


def _spellings(char: str) -> Iterator[str]:
    if char.isascii() and (char.isalnum() or char == "_"):
        return
    encoded = quote(char, safe="", errors="replace") if char not in ".-~" else f"%{ord(char):02X}"
    yield from (encoded, encoded.lower(), json.dumps(char)[1:-1], f"\\{char}")
    if ord(char) < 0x10000:
        yield from (f"\\u{ord(char):04x}", f"\\u{ord(char):04X}")


def _secret(value: str) -> Rule:
    """A long secret is found anywhere; of a short one, only as a word of its own."""
    edges = ("", "") if len(value) >= 12 else (r"(?<!\w)", r"(?!\w)")
    return re.compile(edges[0] + _literal(value) + edges[1]), "<token>"


def _address(address: str) -> Iterator[Rule]:
    """The address with whatever follows it; its host wherever it stands, but for hosts that everybody uses."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    scheme = rf"https?{COLON}{SEP}{SEP}(?:[^\s/@\"'<>]+@)?"
    rest = r"[^\s\"'<>)\],;]*"
    public = host == "github.com" or host.endswith((".github.com", ".github.io"))
    if public:
        if parts.path.strip("/"):
            yield _rule(scheme + _literal(host + port + parts.path) + rest, "<index>")
        return
    yield _rule(scheme + _literal(host + port) + rest, "<index>")
    if not (host in ("localhost", "::1") or host.startswith("127.")):
        yield _rule(rf"(?<![\w.-]){_literal(host)}(?:{COLON}\d+)?(?![\w-])", "<index>")


def _place(path: str, instead: str) -> Rule:
    start = r"(?<![\w.)>\]-])" if path.strip("/").count("/") == 0 else ""
    return re.compile(rf"{start}{_literal(path.rstrip('/'))}(?!\w)"), instead


def _weak(name: str) -> bool:
    return len(name) < _SHORT or name.lower() in WORDS or name.isdigit()


def _host(name: str) -> Iterator[Rule]:
    value = _literal(name)
    if name.lower() == "localhost":
        return
    if not _weak(name):
        yield _rule(rf"(?<![A-Za-z0-9]){value}(?![A-Za-z0-9])(?:\.[A-Za-z][\w-]*)*(?=[^\w]|$)", "<host>")
        return
    yield _rule(rf"(?<={'@'}){value}(?![\w-])", "<host>")
    yield _rule(
        rf"\b(HOST|HOSTNAME|NODE|NODENAME|SLURMD_NODENAME)(\\?[\"']?\s*[=:]\s*\\?[\"']?){value}(?!\w)", r"\1\2<host>"
    )


def _user(name: str) -> Iterator[Rule]:
    value = _literal(name)
    if not _weak(name):
        yield _rule(rf"(?<![A-Za-z0-9]){value}(?![A-Za-z0-9])", "<user>")
        return
    yield _rule(rf"(?<![\w.-]){value}(?=@[\w<])", "<user>")
    yield _rule(rf"(?<=~){value}(?=/)", "<user>")
    yield _rule(rf"\b(USER|LOGNAME|USERNAME|SUDO_USER)(\\?[\"']?\s*[=:]\s*\\?[\"']?){value}(?!\w)", r"\1\2<user>")
    yield _rule(rf"\b([ug]id=\d+\(){value}(?=\))", r"\1<user>")
    # A folder of an absolute path; `jit(f)/max/add` is the name of an operation.
    yield _rule(rf"(?<![\w.)>\]-])((?:/[\w.+-]+)*/){value}(?=/)", r"\1<user>")
