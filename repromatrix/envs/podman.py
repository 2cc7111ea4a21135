"""Podman's images, through its own command line: it needs no service, and its Docker API is not quite Docker's.

Seen of that API in 4.3.1: an import loses its tag, short names are taken for Docker Hub's, CDI devices are unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from repromatrix.envs.command import run_command
from repromatrix.envs.daemon import PULL_TIMEOUT, REQUEST_TIMEOUT
from repromatrix.envs.disk import write_text
from repromatrix.envs.images import Build, Images, Steps
from repromatrix.errors import InfraError
from repromatrix.events import Listener

PROGRAM = "podman"

HINT = "install podman (package podman), or use `--engine docker` or `--engine venv`"

HYBRID_HINT = 'install runc, and set `runtime = "runc"` below [engine] in containers.conf'

REGISTRY_TIMEOUT = 30
"""Seconds until the first bytes of an image: podman itself tries three times, each with timeouts of its own."""

IMPORT_TIMEOUT = 300
"""Seconds that the import of a base may take; one of 126 MB takes 5."""

_HARMLESS = ("--security-opt=label=disable",)
"""Else SELinux hides what is mounted, and relabelling would change the host. Taken where there is no SELinux, too."""


@dataclass(frozen=True, slots=True)
class Podman(Images):
    """The podman of this user on this machine."""

    host: str = PROGRAM

    @property
    def called(self) -> str:
        return PROGRAM

    @property
    def command(self) -> tuple[str, ...]:
        return (PROGRAM,)

    @property
    def run_options(self) -> tuple[str, ...]:
        return ("--pull=never", *_HARMLESS, *_ulimits())

    def ask(self, *arguments: str, doing: str, timeout: float = REQUEST_TIMEOUT) -> str:
        """What `podman ARGUMENTS` prints. In a session of its own, so that Ctrl-C leaves nothing half made.

        In a folder of its own, too: conmon leaves an empty file `oom` where it was started (2.1.6).

        Raises:
            InfraError: It failed, took longer than `timeout` seconds, or is not installed; `doing` is an infinitive.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="podman-") as place:
                done = subprocess.run(
                    [PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=timeout,
                    check=False,
                    start_new_session=True,
                    cwd=place,
                )
        except FileNotFoundError:
            raise InfraError("podman is not installed", hint=HINT) from None
        except OSError as error:
            raise InfraError(f"podman cannot be started: {error.strerror}", hint=HINT) from error
        except subprocess.TimeoutExpired as error:
            raise InfraError(
                f"podman took too long to {doing}", hint="another podman may hold its storage: `ps -C podman`"
            ) from error
        if done.returncode:
            raise self.trouble(done.stderr, doing)
        return done.stdout

    def labelled(self, labels: Sequence[str], name: str = "") -> list[str]:
        # One filter at most: whether several with one key mean all of them or any differs between versions.
        told = self.ask("images", "--no-trunc", "--format=json", f"--filter=label={labels[0]}", doing="list its images")
        wanted = dict(label.split("=", 1) for label in labels)
        return [
            f"sha256:{image['Id']}"
            for image in json.loads(told)
            if wanted.items() <= (image.get("Labels") or {}).items()
            and (not name or full_name(name) in (image.get("Names") or ()))
        ]

    def id_of(self, reference: str) -> str | None:
        try:
            told = self.ask("image", "inspect", "--format={{.Id}}", full_name(reference), doing=f"look for {reference}")
        except InfraError as error:
            if "not known" in error.message or "no such image" in error.message:
                return None
            raise
        return f"sha256:{told.strip()}"

    def obtain(self, reference: str, listener: Listener) -> str:
        silent, said = threading.Event(), ""
        timer = threading.Timer(REGISTRY_TIMEOUT, silent.set)
        timer.daemon = True
        timer.start()

        def follow(line: str) -> None:
            if line.startswith(("Getting image source", "Copying ")):
                timer.cancel()

        task, note = listener.start("base", reference), "failed"
        try:
            status, output = run_command(
                [PROGRAM, "pull", full_name(reference)],
                timeout=PULL_TIMEOUT,
                cancel=silent,
                on_line=follow,
                hint=HINT,
            )
            if status == 0:
                note = ""
            else:
                said = f"the registry does not give it ({_last_words(output)})"
        except InfraError as error:
            if not silent.is_set():
                raise
            said = f"no registry answered within {REGISTRY_TIMEOUT} s ({error.message})"
        finally:
            timer.cancel()
            task.finish(note)
        return said

    def import_tar(self, tar: IO[bytes], reference: str, changes: Sequence[str]) -> None:
        argv = [PROGRAM, "import", "--quiet", *(f"--change={change}" for change in changes), "-", full_name(reference)]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InfraError(f"podman cannot be started: {error.strerror}", hint=HINT) from error
        assert process.stdin is not None
        late = threading.Timer(IMPORT_TIMEOUT, process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it says why it ended
                shutil.copyfileobj(tar, process.stdin, 1 << 20)
            _, errors = process.communicate()
        except BaseException:
            process.kill()
            process.communicate()
            raise
        finally:
            late.cancel()
        if process.returncode:
            raise self.trouble(errors.decode(errors="replace"), f"import {reference}")

    def build_command(self, build: Build) -> list[str]:
        path = build.files / "Dockerfile"
        try:
            contents = {pack.name: _hash(pack.open("rb")) for pack in build.wheels.iterdir()}
            write_text(path, dockerfile(path.read_text(), full_name(build.local), contents))
        except OSError as error:
            raise InfraError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
        argv = [*self.command, "build", "--network=none", "--pull=never", *_HARMLESS, *_ulimits()]
        argv += [f"--build-context=wheels={build.wheels}", f"--build-arg=BASE={build.base}", f"--iidfile={build.iid}"]
        return [*argv, f"--timestamp={build.epoch}", f"--tag={full_name(build.tag)}", str(build.files)]

    def steps(self) -> Steps:
        # `--> 091ba994c48` ends a step, `STEP 3/10: RUN ...` begins one; those of RUN are told of, and the last.
        running = [False]

        def ended(line: str) -> bool:
            if line.startswith("STEP "):
                running[0] = ": RUN " in line
            return line.startswith("COMMIT ") or (running[0] and line.startswith("--> "))

        return ended

    @property
    def build_hint(self) -> str:
        return HINT

    def trouble(self, output: str, doing: str) -> InfraError:
        low = output.lower()
        if "no space left" in low or "disk quota exceeded" in low:
            return InfraError(
                f"podman's disk is full: could not {doing}",
                hint="free some: `podman system df` shows what is used, `podman image prune` drops what nobody needs",
            )
        hint = ""
        if "cgroups in hybrid mode" in low:
            hint = HYBRID_HINT
        elif "newuidmap" in low or "subuid" in low:
            hint = "rootless podman needs the package uidmap, and entries of this user in /etc/subuid and /etc/subgid"
        elif "rlimit" in low:
            hint = "this host's limits are lower: set default_ulimits in containers.conf"
        return InfraError(f"podman could not {doing}: {output.strip().removeprefix('Error: ')}", hint=hint)

    def drop_copies(self) -> None:
        """Podman reads contexts where they are."""

    def system(self, timeout: float = REQUEST_TIMEOUT) -> Mapping[str, Any]:
        """What podman says of itself and its host, within `timeout` seconds.

        Raises:
            InfraError: It does not answer.
        """
        told: dict[str, Any] = json.loads(self.ask("info", "--format=json", doing="say what it is", timeout=timeout))
        return told


def own_limits() -> dict[str, int]:
    """Hard limits of this process for files and processes: podman asks for more by itself, which a sandbox refuses."""
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # Podman lowers its own to the number of pids (seen: 4.3.1). -1 stands for no limit.
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return {"nofile": files, "nproc": most if processes < 0 else min(processes, most)}


def _ulimits() -> list[str]:
    return [f"--ulimit={name}={value}" for name, value in own_limits().items()]


def full_name(reference: str) -> str:
    """What podman calls an image that Docker calls `reference`: it would search its own registries for short names."""
    if reference.startswith("sha256:"):
        return reference
    name, _, digest = reference.partition("@")
    if not digest:  # only ever made or loaded here
        return reference if reference.startswith("localhost/") else f"localhost/{reference}"
    domain, slash, _ = name.partition("/")
    if not slash or not (set(".:") & set(domain) or domain == "localhost"):
        name = f"docker.io/{'' if slash else 'library/'}{name}"
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition(':')[0]}@{digest}"


def dockerfile(text: str, base: str, contents: Mapping[str, str]) -> str:
    """A rendered Dockerfile as podman's builder (seen: 4.3.1) understands it and caches it rightly.

    It knows no `RUN --network`, builds stages that nothing needs, and takes a layer from its cache where the words of
    RUN are the same, whatever is mounted: so these get the hashes of what is.

    Args:
        base: What FROM says.
        contents: Hash of each file in the context `wheels`.
    """
    text, stages = re.subn(r"^FROM \$\{BASE\} AS wheels\n.*?(?=^FROM )", "", text, flags=re.MULTILINE | re.DOTALL)
    assert stages == 1, "containers/Dockerfile.j2 was changed"
    lines, mounted = [], list[str]()
    for line in text.replace("FROM ${BASE}", f"FROM {base}").replace("RUN --network=none", "RUN").splitlines():
        mounted += [contents[name] for name in re.findall(r"--mount=type=bind,from=wheels,source=([^,]+),", line)]
        if mounted and not line.endswith("\\"):
            line += f" # {' '.join(mounted)}"  # noqa: PLW2901  # the shell's comment
            mounted = []
        lines.append(line)
    return "\n".join([*lines, ""])


def _hash(file: IO[bytes]) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # the stubs want a buffer's methods


def _last_words(output: str) -> str:
    return re.sub(r"\s+", " ", output).strip()[-160:]
