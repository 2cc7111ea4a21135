"""The podman engine: as Docker's, with no daemon between: every step is a `podman` command of this user."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repromatrix.engines.attempt import GRACE, owner
from repromatrix.engines.base import ISOLATION, Attempt, Prepared
from repromatrix.engines.built import CODE, words
from repromatrix.engines.cdi import Access, find_specifications, podman_access
from repromatrix.engines.container import COMMAND, INSIDE, Options, bind, flags, mounts
from repromatrix.engines.in_container import ContainerEngine, Found, State
from repromatrix.envs.daemon import LABEL
from repromatrix.envs.podman import HYBRID_HINT, Podman, own_limits
from repromatrix.errors import InfraError
from repromatrix.project import Project
from repromatrix.spec.model import Matrix

_BUILT_WITH = 60
"""Seconds in which an environment must say what it was built with."""


class PodmanEngine(ContainerEngine):
    """Runs attempts in containers of this user's podman."""

    name = "podman"
    isolation = ISOLATION["podman"]

    def __init__(self, project: Project, matrix: Matrix) -> None:
        super().__init__(project, matrix)
        self._podman = Podman()
        self._guard = threading.Lock()
        self._info: dict[str, Any] = {}

    # ---- is it there ----

    def unavailable(self) -> str:
        try:
            host = self._podman.system(timeout=5)["host"]
        except InfraError as error:
            return error.message
        if host["ociRuntime"]["name"] == "crun" and _both_cgroups():
            return "its runtime crun refuses hosts with both versions of cgroups; " + HYBRID_HINT
        if host.get("serviceIsRemote"):
            return "its service may be on another machine, whose containers do not see the folders of this one"
        return ""

    def about(self) -> str:
        """What there is to know of it on this host: version, user, storage, and what it cannot do here.

        Raises:
            InfraError: It does not answer.
        """
        told = self._podman.system()
        rootless, driver = bool(told["host"]["security"].get("rootless")), str(told["store"]["graphDriverName"])
        said = f"{told['version']['Version']}, {'rootless' if rootless else 'as root'}, storage {driver}"
        if driver == "vfs":
            said += ", which copies the whole image for each attempt (fuse-overlayfs does not)"
        if rootless and told["host"].get("cgroupVersion") == "v1":
            said += "; on version 1 of cgroups it limits no processes, and memory only as the supervisor sees it"
        return said

    def _images(self) -> Podman:
        return self._podman

    def _system(self) -> Mapping[str, Any]:
        with self._guard:
            if not self._info:
                security = self._podman.system()["host"]["security"]
                features = {"rootless": security.get("rootless"), "selinux": security.get("selinuxEnabled")}
                named = [f"name={name}" for name, here in features.items() if here]
                self._info = {"SecurityOptions": named, "Limits": own_limits()}
            return self._info

    def _answers(self) -> bool:
        return not self.unavailable()

    def gpu_access(self) -> Access:
        return podman_access(find_specifications({}))

    def _built_with(self, location: str, python: str) -> str:
        argv = ["run", "--rm", *self._podman.run_options, "--network=none", "--cap-drop=ALL"]
        argv += [f"--label={LABEL}attempt=built", f"--label={LABEL}owner={owner()}"]
        argv += [location, python, "-I", "-c", CODE]
        try:
            doing = "ask an environment what it was built with"
            return words(self._podman.ask(*argv, doing=doing, timeout=_BUILT_WITH))
        except InfraError as error:  # the attempt itself has a verdict, and this is only told beside it
            return f"what it was built with could not be asked: {error.line}"

    # ---- one container ----

    def _create(self, container: str, prepared: Prepared, attempt: Attempt, options: Options) -> None:
        argv = ["create", f"--name={container}", "--pull=never", *flags(self.name, attempt, options)]
        # Neither this shell's proxies nor an entry point: the supervisor alone says what the script gets.
        argv += ["--http-proxy=false", "--entrypoint=", "--log-driver=none", f"--stop-timeout={int(GRACE) + 5}"]
        argv += [f"--label={key}={value}" for key, value in self._labels(attempt).items()]
        argv += [bind(outside, inside, read_only=fixed) for outside, inside, fixed in mounts(attempt)]
        argv += [f"--workdir={INSIDE}", prepared.location, *COMMAND]
        self._podman.ask(*argv, doing="create the container")

    def _begin(self, container: str) -> None:
        self._podman.ask("start", container, doing="start the container")

    def _wait(self, container: str, limit: float) -> None:
        # It polls, in 4.3.1 at the cost of 0.06 s of CPU for each 100 looks: not more often, beside what is measured.
        self._podman.ask("wait", "--interval=100ms", container, doing="wait for the container", timeout=limit)

    def _kill(self, container: str) -> None:
        try:
            self._podman.ask("kill", container, doing="kill the container")
        except InfraError as error:  # it has ended meanwhile
            if "no such container" not in error.message and "can only kill running containers" not in error.message:
                raise

    def _state(self, container: str) -> State:
        told = self._podman.ask("container", "inspect", container, doing="inspect the container")
        state = json.loads(told)[0]["State"]
        return State(state.get("ExitCode"), bool(state.get("OOMKilled")), str(state.get("Error") or ""))

    def _delete(self, container: str) -> None:
        try:
            self._podman.ask("rm", "--force", "--time=0", "--volumes", container, doing="remove the container")
        except InfraError as error:
            if "no such container" not in error.message and "no container with" not in error.message:
                raise

    def _containers(self) -> list[Found]:
        argv = ("ps", "--all", "--format=json", f"--filter=label={LABEL}attempt")
        found = json.loads(self._podman.ask(*argv, doing="list its containers"))
        return [Found(one["Id"], one["Names"][0], str(one["State"]), one["Labels"]) for one in found]


def _both_cgroups() -> bool:
    """Whether version 2 of cgroups is mounted beside version 1, with controllers: crun 1.8.1 starts nothing there."""
    try:
        return bool(Path("/sys/fs/cgroup/unified/cgroup.controllers").read_text().strip())
    except OSError:
        return False
