"""The connection to a Docker daemon, its images, and its failures in words a person can act on."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from repromatrix.envs.images import Build, Images, Steps
from repromatrix.errors import InfraError
from repromatrix.events import Listener

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "org.repromatrix."
"""Prefix of every label this tool sets on images and containers."""

REQUEST_TIMEOUT = 60
"""Seconds one request may take; creating a container under load was seen to take several."""

REGISTRY_TIMEOUT = 10
"""Seconds a registry may take to answer before it counts as absent."""

PULL_TIMEOUT = 900
"""Seconds a pull may take: a slim Python image is about 50 MB."""

BUILDX_HINT = "install Docker's buildx plugin: package docker-buildx-plugin (Docker's) or docker-buildx (Debian's)"


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
class Daemon(Images):
    """A daemon that answered: its address, and a client whose requests end within a fixed time."""

    host: str
    api: APIClient

    @property
    def called(self) -> str:
        return "the Docker daemon"

    @property
    def command(self) -> tuple[str, ...]:
        return ("docker", "--host", self.host)

    @property
    def run_options(self) -> tuple[str, ...]:
        return ()

    def labelled(self, labels: Sequence[str], name: str = "") -> list[str]:
        with daemon_errors(self.host, "list its images"):
            found = self.api.images(name=name or None, filters={"label": list(labels)})
        return [str(image["Id"]) for image in found]

    def id_of(self, reference: str) -> str | None:
        from docker.errors import ImageNotFound

        with daemon_errors(self.host, f"look for {reference}"):
            try:
                return str(self.api.inspect_image(reference)["Id"])  # type: ignore[no-untyped-call]  # bare stubs
            except ImageNotFound:
                return None

    def obtain(self, reference: str, listener: Listener) -> str:
        why, _ = self.digest(reference)
        return why or self._pull(reference, listener)

    def digest(self, reference: str) -> tuple[str, str]:
        """(why the registry gives no digest, the digest): one of them is empty.

        Raises:
            InfraError: The daemon does not answer.
        """
        from docker.errors import APIError
        from requests.exceptions import Timeout

        asked = connect(self.host, timeout=REGISTRY_TIMEOUT)
        with daemon_errors(self.host, "ask the registry"):
            try:
                answer = asked.api.inspect_distribution(reference)  # type: ignore[no-untyped-call]  # bare stubs
            except APIError as error:
                return f"the registry does not give it ({_short(str(error.explanation or error))})", ""
            except Timeout:
                return f"no registry answered within {REGISTRY_TIMEOUT} s", ""
        return "", str(answer["Descriptor"]["digest"])

    def _pull(self, reference: str, listener: Listener) -> str:
        """Pull by digest; returns why it failed, or nothing."""
        task = listener.start("base", reference, unit="B")
        seen: dict[str, int] = {}
        deadline = time.monotonic() + PULL_TIMEOUT
        with daemon_errors(self.host, f"pull {reference}"):
            for event in self.api.pull(reference, stream=True, decode=True):
                if "error" in event:
                    task.finish("failed")
                    return f"the pull failed ({_short(event['error'])})"
                if time.monotonic() > deadline:
                    task.finish("failed")
                    return f"the pull did not end within {PULL_TIMEOUT} s"
                if event.get("status") == "Downloading" and (now := event["progressDetail"].get("current")):
                    task.advance(now - seen.get(event["id"], 0))
                    seen[event["id"]] = now
        task.finish()
        return ""

    def import_tar(self, tar: IO[bytes], reference: str, changes: Sequence[str]) -> None:
        name, _, tag = reference.rpartition(":")
        with daemon_errors(self.host, f"import {reference}"):
            answer = self.api.import_image_from_stream(tar, repository=name, tag=tag, changes=list(changes))
        events = [json.loads(line) for line in str(answer).splitlines() if line.strip()]
        for event in events:
            if "error" in event:
                raise InfraError(f"the Docker daemon could not import {reference}: {event['error']}", where=self.host)

    def build_command(self, build: Build) -> list[str]:
        argv = [*self.command, "buildx", "build", "--builder=default", "--progress=plain", "--load"]
        argv += ["--provenance=false", "--network=none", f"--build-context=wheels={build.wheels}"]
        argv += [f"--iidfile={build.iid}", f"--build-arg=BASE={build.base}", f"--tag={build.tag}"]
        argv.append(f"--build-arg=SOURCE_DATE_EPOCH={build.epoch}")
        if build.local != build.base:
            argv.append(f"--build-context={build.base}=docker-image://{build.local}")
        return [*argv, str(build.files)]

    def steps(self) -> Steps:
        # `#7 DONE 1.2s` or `#7 CACHED`, after `#7 [stage-1 3/6] RUN ...`.
        begun: set[str] = set()

        def ended(line: str) -> bool:
            match = re.match(r"(#\d+) (\[[^]]*\d+/\d+\]|DONE|CACHED)", line)
            if match is None:
                return False
            if match[2].startswith("["):
                begun.add(match[1])
            elif match[1] in begun:
                begun.discard(match[1])
                return True
            return False

        return ended

    @property
    def build_hint(self) -> str:
        return BUILDX_HINT

    def trouble(self, output: str, doing: str) -> InfraError:
        if "is not a docker command" in output or "unknown command" in output or "unknown flag: --host" in output:
            return InfraError("Docker has no buildx", hint=BUILDX_HINT)
        return trouble(output, doing, self.host)

    def drop_copies(self) -> None:
        with daemon_errors(self.host, "drop its copy of the packs"):
            cache = self.api.df()["BuildCache"] or []
            ids = [entry["ID"] for entry in cache if entry["Description"] == "local source for wheels"]
            if ids:
                # BuildKit's prune knows no descriptions (26.1.5: it then drops nothing), but a pattern of ids, quoted.
                pattern = f'"^({"|".join(ids)})$"'
                self.api.prune_builds(filters={"id": pattern}, all=True)  # type: ignore[arg-type]  # narrow stubs


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


def _short(text: str) -> str:
    """The last and so most specific part of a chain of errors, without the addresses before it."""
    return re.sub(r"\s+", " ", text).strip()[-160:]
