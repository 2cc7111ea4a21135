"""The network settings of uv and pip on this machine: index, credentials, proxy and CA bundle."""

from __future__ import annotations

import configparser
import netrc
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from repromatrix.errors import InfraError

_DECIDES_THE_RESULT = (
    "UV_BUILD_CONSTRAINT",
    "UV_CONSTRAINT",
    "UV_EXCLUDE",
    "UV_EXCLUDE_NEWER",
    "UV_FIND_LINKS",
    "UV_FORK_STRATEGY",
    "UV_NO_BINARY",
    "UV_NO_BUILD",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_PROJECT",
    "UV_PYTHON",
    "UV_REQUIRE_HASHES",
    "UV_RESOLUTION",
    "UV_TORCH_BACKEND",
    "UV_WORKING_DIR",
)
"""uv's variables that change what is resolved, not where it comes from: a lock must not depend on who makes it."""

_CUT = "[tool.uv.workspace]\n"
"""A pyproject.toml above which uv looks no further; an empty one, or uv.toml, does not stop it (seen with 0.13.9)."""

_ETC = Path("/etc")
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
EXTRA_INDEX = ("UV_INDEX", "UV_EXTRA_INDEX_URL")


def redact(text: str) -> str:
    """`text` without the user names and passwords of its addresses."""
    return re.sub(r"(?<=://)[^/\s@]+@", "***@", text)


def uv_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to run uv in: `environ` (default: this process's) with pip's network settings where uv has none.

    Translated, never overriding what is set: pip's index-url, extra-index-url, cert and proxy, from its variables and
    configuration files, into UV_DEFAULT_INDEX, UV_INDEX, SSL_CERT_FILE and HTTPS_PROXY. The fetcher of the wheels takes
    proxy and CA bundle from here too.

    Not taken over: pip's find-links and extra indexes that are folders of this machine. A lock made from them would
    name files that nobody else can get.
    """
    source = os.environ if environ is None else environ
    result = {key: value for key, value in source.items() if key not in _DECIDES_THE_RESULT}
    pip = _pip_settings(source)

    def translate(targets: Sequence[str], value: str) -> bool:
        if not value or any(result.get(name) for name in targets):
            return False
        result[targets[0]] = value
        return True

    translate(DEFAULT_INDEX, pip.get("index-url", ""))
    extra = [url for url in pip.get("extra-index-url", "").split() if not url.startswith("file:")]
    if translate(EXTRA_INDEX, " ".join(extra)):
        # pip takes the best version of all indexes; uv by default that of the first index that knows the package,
        # which would hide versions and call possible environments impossible.
        translate(("UV_INDEX_STRATEGY",), "unsafe-best-match")
    requests_bundle = source.get("REQUESTS_CA_BUNDLE") or source.get("CURL_CA_BUNDLE") or ""
    translate(("SSL_CERT_FILE",), pip.get("cert", "") or requests_bundle)
    if translate(_PROXIES, pip.get("proxy", "")):
        translate(("HTTP_PROXY", "http_proxy"), pip["proxy"])
    result |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    return result


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder to run uv in, which is removed again: in another it may be bound by the project around it.

    From the folders above its own uv takes constraints, indexes and the release of uv that they demand (else it refuses
    every command), also below TMPDIR. The environment and the user's own uv.toml count as ever.
    """
    with tempfile.TemporaryDirectory(prefix="uv-of-repromatrix-") as name:
        (Path(name) / "pyproject.toml").write_text(_CUT)
        yield Path(name)


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's index-url, extra-index-url, cert and proxy: variables before files, later files before earlier ones."""
    settings: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise InfraError(
                f"pip's configuration cannot be read: {error}".replace("\n", " "),
                where=str(path),
                hint="correct the file",
            ) from None
        if parser.has_section("global"):
            settings |= dict(parser.items("global"))
    for key in ("index-url", "extra-index-url", "cert", "proxy"):
        if value := environ.get("PIP_" + key.upper().replace("-", "_")):
            settings[key] = value
    return settings


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files in the order in which it reads them."""
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    system = [Path(folder, "pip") for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if folder]
    user = [home / ".pip", Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip")]
    folders = [*system, _ETC, *([] if chosen else user), Path(sys.prefix)]
    files = [folder / "pip.conf" for folder in folders]
    return [*files, Path(chosen)] if chosen else files


def with_credentials(url: str, environ: Mapping[str, str]) -> str:
    """`url` with the user and password of the index on the same host, which uv leaves out of what it writes."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.username:
        return url
    listed = " ".join(environ.get(name, "") for name in (*DEFAULT_INDEX, *EXTRA_INDEX)).split()
    for entry in listed:
        label, _, bare = entry.rpartition("=") if re.match(r"[\w.-]+=", entry) else ("", "", entry)
        index = urlsplit(bare)
        if (index.scheme, index.hostname, index.port) != (parts.scheme, parts.hostname, parts.port):
            continue
        prefix = "UV_INDEX_" + re.sub(r"\W", "_", label.upper())
        user = unquote(index.username or "") or (environ.get(f"{prefix}_USERNAME", "") if label else "")
        password = unquote(index.password or "") or (environ.get(f"{prefix}_PASSWORD", "") if label else "")
        if user or password:
            return _insert(url, user, password)
    try:
        known = netrc.netrc(environ.get("NETRC") or None).authenticators(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        known = None
    return _insert(url, known[0], known[2] or "") if known else url


def _insert(url: str, user: str, password: str) -> str:
    return url.replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@", 1)
