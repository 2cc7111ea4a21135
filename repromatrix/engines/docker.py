"""The Docker engine: one container per attempt, nothing trusted that the daemon says of the script."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repromatrix.engines.attempt import GRACE, owner
from repromatrix.engines.base import ISOLATION, Attempt, Prepared
from repromatrix.engines.built import in_image
from repromatrix.engines.cdi import NO_DRIVER, Access, access, find_specifications, hook_installed
from repromatrix.engines.container import COMMAND, INSIDE, PIDS, SHM, Options, mounts
from repromatrix.engines.in_container import ContainerEngine, Found, State
from repromatrix.envs.daemon import BUILDX_HINT, LABEL, Daemon, address, connect, daemon_errors
from repromatrix.errors import InfraError

if TYPE_CHECKING:
    from repromatrix.project import Project
    from repromatrix.spec.model import Matrix


class DockerEngine(ContainerEngine):
    """Runs attempts in containers of a Docker daemon on this machine."""

    name = "docker"
    isolation = ISOLATION["docker"]

    def __init__(self, project: Project, matrix: Matrix) -> None:
        super().__init__(project, matrix)
        self._host = address()
        self._guard = threading.Lock()
        self._connected: Daemon | None = None
        self._info: dict[str, Any] = {}

    # ---- is it there ----

    def unavailable(self) -> str:
        if not self._host.startswith("unix://"):
            return f"{self._host} may be another machine, whose containers do not see the folders of this one"
        try:
            daemon = connect(self._host, timeout=4)
            with daemon_errors(self._host, "say what it is"):
                system = daemon.api.info()
        except InfraError as error:
            return f"{error.where}: {error.message}" if error.where else error.message
        if system.get("OSType") != "linux":
            return f"the daemon runs {system.get('OSType')} containers, not linux ones"
        try:
            subprocess.run(["docker", "buildx", "version"], capture_output=True, check=True, timeout=4)
        except FileNotFoundError:
            return "a daemon answers, but its command line client `docker` is not installed"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return f"a daemon answers, but `docker buildx` does not; {BUILDX_HINT}"
        return ""

    def _daemon(self) -> Daemon:
        with self._guard:
            if self._connected is None:
                daemon = connect(self._host)
                with daemon_errors(self._host, "say what it is"):
                    self._info = daemon.api.info()
                self._connected = daemon
            return self._connected

    def _images(self) -> Daemon:
        return self._daemon()

    def _system(self) -> Mapping[str, Any]:
        self._daemon()
        return self._info

    def _answers(self) -> bool:
        try:
            connect(self._host, timeout=10).api.ping()
        except Exception:  # whatever it is, it is no answer
            return False
        return True

    def gpu_access(self) -> Access:
        info = self._system()
        refused = not self._refused.isdisjoint(NO_DRIVER)
        return access(info, find_specifications(info), hook=hook_installed(), refused=refused)

    def _built_with(self, location: str, python: str) -> str:
        return in_image(self._daemon(), self._host, location, python, owner())

    # ---- one container ----

    def _create(self, container: str, prepared: Prepared, attempt: Attempt, options: Options) -> None:
        from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

        api = self._daemon().api
        # All of them, since CUDA_VISIBLE_DEVICES chooses: the same indices then hold in every engine.
        every = (
            DeviceRequest(driver="cdi", device_ids=list(options.gpus.devices))
            if options.gpus.devices
            else DeviceRequest(count=-1, capabilities=[["gpu"]])
        )
        host = api.create_host_config(
            init=options.init,
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=options.security,
            pids_limit=PIDS,
            # With equal limits nothing is swapped, so that a lack of memory is a kill and not a slow attempt.
            mem_limit=attempt.memory,
            memswap_limit=attempt.memory,
            shm_size=SHM,
            ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in options.ulimits.items()],
            log_config=LogConfig(type="none"),
            userns_mode=options.userns,
            device_requests=[every] if attempt.gpus else None,
            # Mounts, not binds: a folder that the daemon does not see is an error instead of a new empty folder.
            mounts=[
                Mount(inside, str(outside), type="bind", read_only=read_only)
                for outside, inside, read_only in mounts(attempt)
            ],
        )
        with daemon_errors(self._host, "create the container"):
            api.create_container(
                prepared.location,
                command=list(COMMAND),
                entrypoint=[],
                name=container,
                user=options.user,
                working_dir=INSIDE,
                # Without a network nothing resolves the container's own name; gloo asks for it (jax-ml/jax#40831).
                hostname="localhost",
                environment={},
                host_config=host,
                stop_timeout=int(GRACE) + 5,
                use_config_proxy=False,
                labels=self._labels(attempt),
            )

    def _begin(self, container: str) -> None:
        with daemon_errors(self._host, "start the container"):
            self._daemon().api.start(container)

    def _wait(self, container: str, limit: float) -> None:
        with daemon_errors(self._host, "wait for the container"):
            self._daemon().api.wait(container, timeout=int(limit))

    def _kill(self, container: str) -> None:
        from docker.errors import APIError

        with daemon_errors(self._host, "kill the container"):
            try:
                self._daemon().api.kill(container)
            except APIError as error:
                if error.status_code not in (404, 409):  # it has ended meanwhile
                    raise

    def _state(self, container: str) -> State:
        with daemon_errors(self._host, "inspect the container"):
            state = self._daemon().api.inspect_container(container)["State"]
        return State(state.get("ExitCode"), bool(state.get("OOMKilled")), str(state.get("Error") or ""))

    def _delete(self, container: str) -> None:
        from docker.errors import APIError

        with daemon_errors(self._host, "remove the container"):
            try:
                self._daemon().api.remove_container(container, force=True, v=True)
            except APIError as error:
                if error.status_code != 404:
                    raise

    def _containers(self) -> list[Found]:
        with daemon_errors(self._host, "list its containers"):
            found = self._daemon().api.containers(all=True, filters={"label": f"{LABEL}attempt"})
        return [Found(one["Id"], one["Names"][0].lstrip("/"), str(one["State"]), one["Labels"]) for one in found]
