"""The connection to a Docker daemon, and its failures in words a person can act on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repromatrix.errors import InfraError

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "org.repromatrix."
"""Prefix of every label this tool sets on images and containers."""

REQUEST_TIMEOUT = 60
"""Seconds one request may take; creating a container under load was seen to take several."""


def address() -> str:
    """Where the daemon listens: `$DOCKER_HOST`, else the current context of the Docker client, else its default."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    from docker.context import ContextAPI
    from docker.errors import DockerException

    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context = ContextAPI.get_context(name) if name else ContextAPI.get_current_context()
    except DockerException:
        context = None
    return str(context.Host) if context is not None else "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answered: its address, and a client whose requests end within a fixed time."""

    host: str
    api: APIClient


def connect(host: str, timeout: float = REQUEST_TIMEOUT) -> Daemon:
    """The daemon at `host`, in the newest API version that both speak.

    Raises:
        InfraError: Nothing answers there.
    """
    from docker import APIClient
    from docker.tls import TLSConfig

    with daemon_errors(host, "connect"):
        verify = os.environ.get("DOCKER_TLS_VERIFY", "") not in ("", "0")
        folder = os.environ.get("DOCKER_CERT_PATH")
        tls: TLSConfig | bool = False
        if verify and folder:
            tls = TLSConfig(
                client_cert=(f"{folder}/cert.pem", f"{folder}/key.pem"), ca_cert=f"{folder}/ca.pem", verify=True
            )
        return Daemon(host, APIClient(base_url=host, version="auto", timeout=int(timeout), tls=tls))


@contextmanager
def daemon_errors(host: str, doing: str) -> Iterator[None]:
    """Turn what the `docker` package and its HTTP client raise into InfraError.

    Args:
        host: Address of the daemon, for the message.
        doing: What was tried, as an infinitive: `create the container`.
    """
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException, Timeout

    try:
        yield
    except APIError as error:
        raise trouble(str(error.explanation or error), doing, host) from error
    except Timeout as error:
        raise InfraError(
            f"the Docker daemon took too long to {doing}", where=host, hint="look at the daemon's log and its load"
        ) from error
    except (DockerException, RequestException, OSError) as error:
        raise gone(host, doing, str(error)) from error


def gone(host: str, doing: str, detail: str) -> InfraError:
    """The daemon does not answer."""
    hint = "start it (`systemctl start docker`), or set DOCKER_HOST to one that runs; `--engine venv` needs none"
    if "Permission denied" in detail or "PermissionError" in detail:
        hint = "add your user to the group that owns the socket, or use rootless Docker; `--engine venv` needs neither"
        return InfraError(f"this user may not use the Docker socket, so it cannot {doing}", where=host, hint=hint)
    return InfraError(f"no Docker daemon answers, so it cannot {doing}", where=host, hint=hint)


def trouble(detail: str, doing: str, where: str) -> InfraError:
    """An InfraError for the daemon's or BuildKit's own words, with the fix where it is known."""
    low = detail.lower()
    if "no space left" in low or "disk quota exceeded" in low:
        return InfraError(
            f"the Docker daemon's disk is full: could not {doing}",
            where=where,
            hint="free some: `docker system df` shows what is used, `docker builder prune` and `docker image prune` "
            "drop what nothing refers to",
        )
    if (
        "cannot connect to the docker daemon" in low
        or "connection refused" in low
        or "is the docker daemon running" in low
    ):
        return gone(where, doing, detail)
    return InfraError(f"the Docker daemon could not {doing}: {detail.strip()}", where=where)
