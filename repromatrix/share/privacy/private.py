"""What is private about this machine: who uses it, what it is called, where things lie, which secrets it holds."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from repromatrix.envs.network import DEFAULT_INDEX, EXTRA_INDEX, uv_environment
from repromatrix.project import Project

_SECRET = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|API_?KEY|(?:^|_)(?:KEY|PAT|PW|PASS|AUTH|DSN|COOKIE)$"
    r"|CONNECTION_STRING",
    re.IGNORECASE,
)
"""Names of variables whose value is a secret."""
_SHORTEST = 6
"""Characters of a secret: a value such as `true` or `basic` is none, and would be replaced all over the text."""
_USERS = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
_ADDRESSES = (*DEFAULT_INDEX, *EXTRA_INDEX, "UV_FIND_LINKS", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")


@dataclass(frozen=True, slots=True)
class Private:
    """What must not leave this machine.

    Attributes:
        places: (absolute path, what stands for it) pairs: `("/home/jo/work", "<project>")`.
        users: Login names and the user's own name; `root` tells nothing.
        hosts: Names of this host, short or whole.
        domains: Domains whose hosts are private: `cluster.example.org`.
        secrets: Values of variables that hold tokens and passwords.
        addresses: Addresses of package indexes and proxies, without their credentials.
    """

    places: tuple[tuple[str, str], ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


def of_this_machine(
    project: Project | None = None, addresses: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> Private:
    """What this machine, its user and their settings tell. No network: names come from files and variables.

    Args:
        addresses: Further addresses of indexes, such as those of matrix.toml.
        environ: This process's variables if not given.

    Raises:
        InfraError: pip's configuration cannot be read.
    """
    environ = os.environ if environ is None else environ
    names = set(_host_names(environ))
    listed = [*addresses, *_index_addresses(environ)]
    return Private(
        places=tuple(dict.fromkeys(_places(project))),
        users=_distinct(name for name in _user_names(environ) if name != "root"),
        hosts=_distinct(name.partition(".")[0] for name in names),
        domains=_distinct(name for name in (*(n.partition(".")[2] for n in names), *_search_domains()) if "." in name),
        secrets=_distinct(value for name, value in environ.items() if _secret(name, value)),
        addresses=_distinct(filter(None, map(_bare, listed))),
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    """Each value once, the longest first: what is part of another must not break it up."""
    return tuple(sorted({value for value in values if value}, key=lambda value: (-len(value), value)))


def _places(project: Project | None) -> Iterator[tuple[str, str]]:
    if project is not None:
        for path, name in ((project.root, "<project>"), (project.store, "<store>")):
            for form in (path, path.resolve()):
                yield str(form), name
    with suppress(RuntimeError):
        for form in (Path.home(), Path.home().resolve()):
            yield str(form), "<home>"


def _user_names(environ: Mapping[str, str]) -> Iterator[str]:
    yield from (environ.get(name, "") for name in _USERS)
    with suppress(KeyError):  # a container's user may have no entry
        entry = pwd.getpwuid(os.getuid())
        yield entry.pw_name
        yield entry.pw_gecos.partition(",")[0].strip()
    with suppress(RuntimeError):
        yield Path.home().name


def _host_names(environ: Mapping[str, str]) -> Iterator[str]:
    """As the kernel, the shell and /etc/hosts have them; the resolver is not asked, which may take seconds."""
    own = {socket.gethostname(), environ.get("HOSTNAME", "")} - {"", "localhost"}
    yield from own
    for line in _lines("/etc/hosts"):
        names = line.partition("#")[0].split()[1:]
        if own & set(names):  # other lines may block thousands of public hosts
            yield from names


def _search_domains() -> Iterator[str]:
    for line in _lines("/etc/resolv.conf"):
        word, *domains = line.split() or [""]
        if word in ("search", "domain"):
            yield from (domain.strip(".") for domain in domains)


def _secret(name: str, value: str) -> bool:
    if not _SECRET.search(name) or len(value) < _SHORTEST or (value.isdigit() and len(value) < 10):
        return False
    # The path of a file with the secret is none; but a key may begin with a slash, too.
    return not (value.startswith(("/", "~")) and Path(value).expanduser().exists())


def _index_addresses(environ: Mapping[str, str]) -> Iterator[str]:
    settings = uv_environment(environ)
    for name in (*_ADDRESSES, *_PROXIES):
        for entry in settings.get(name, "").split():
            yield entry.partition("=")[2] if re.match(r"[\w.-]+=https?:", entry) else entry
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    for path in (environ.get("UV_CONFIG_FILE", ""), str(config / "uv" / "uv.toml"), "/etc/uv/uv.toml"):
        yield from _ADDRESS.findall("\n".join(_lines(path)))


def _bare(address: str) -> str:
    """Scheme, host and path without user and password; a host alone (pip's trusted-host) stays; else empty."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.scheme not in ("", "http", "https") or not parts.hostname:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}" if parts.scheme else host


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # most machines lack some of them
        return []
