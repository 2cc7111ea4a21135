"""The Docker engine: one container per attempt, nothing trusted that the daemon says of the script."""

from __future__ import annotations

import re
import secrets
import subprocess
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repromatrix.engines.attempt import AFTERMATH, CANCELLED, GRACE, abandoned, owner, read_raw, write_spec
from repromatrix.engines.base import ISOLATION, Attempt, Engine, Prepared, Raw
from repromatrix.engines.built import in_image
from repromatrix.engines.cdi import NO_DRIVER, Access, access, find_specifications, hook_installed
from repromatrix.engines.container import (
    COMMAND,
    INSIDE,
    PIDS,
    PYTHON,
    READ_STACKS,
    REFUSED,
    SHM,
    TOOLS,
    Options,
    command,
    engine_env,
    mounts,
)
from repromatrix.engines.loaded import loaded
from repromatrix.envs import base, image
from repromatrix.envs.daemon import LABEL, Daemon, address, connect, daemon_errors
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError

if TYPE_CHECKING:
    from repromatrix.envs.base import BaseImage
    from repromatrix.envs.model import Lock
    from repromatrix.events import Listener
    from repromatrix.project import Project
    from repromatrix.spec.model import Matrix

LOST_START = "waiting for init preliminary setup"
"""In runc's words when the first process of a container is gone before anything ran in it: seen twice in 2,000 starts
on a loaded machine (`read init-p: connection reset by peer`). No script has run, so one more start repeats nothing."""

OVERTIME = 15.0
"""Seconds after the last moment at which the supervisor may write its verdict, until the host kills the container."""

POLL = 0.1
"""Seconds between two looks at the cancellation; the end of the container itself is noticed at once."""


class DockerEngine(Engine):
    """Runs attempts in containers of a Docker daemon on this machine."""

    name = "docker"
    isolation = ISOLATION["docker"]

    def __init__(self, project: Project, matrix: Matrix) -> None:
        self._project = project
        self._matrix = matrix
        self._store = WheelStore(project.store)
        self._host = address()
        self._guard = threading.Lock()
        self._connected: Daemon | None = None
        self._info: dict[str, Any] = {}
        self._refused: set[str] = set()  # keys of REFUSED, as containers that did not start have shown
        self._built: dict[str, str] = {}  # what an image's CUDA plugin was built with

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
            return f"a daemon answers, but `docker buildx` does not; {image.BUILDX_HINT}"
        return ""

    def _daemon(self) -> Daemon:
        with self._guard:
            if self._connected is None:
                daemon = connect(self._host)
                with daemon_errors(self._host, "say what it is"):
                    self._info = daemon.api.info()
                self._connected = daemon
            return self._connected

    def gpu_access(self) -> Access:
        self._daemon()
        refused = not self._refused.isdisjoint(NO_DRIVER)
        return access(self._info, find_specifications(self._info), hook=hook_installed(), refused=refused)

    # ---- environments ----

    def basis(self, python: str, listener: Listener, *, offline: bool = False) -> str:
        # Where one was chosen before, it is not looked for again: results of known cells need no image.
        known = base.recorded(self._matrix, python, self._project.store)
        if known is None and offline:
            raise InfraError(f"no base image of Python {python} was fetched yet, and --offline forbids it")
        return (known or self._base(python, listener)).description

    def _base(self, python: str, listener: Listener) -> BaseImage:
        return base.resolve_base(self._matrix, python, self._daemon(), self._project.store, listener)

    def known(self, lock: Lock) -> Prepared | None:
        chosen = base.recorded(self._matrix, lock.python, self._project.store)
        if chosen is None:
            return None
        found = image.known(lock, chosen, self._daemon())
        return None if found is None else _prepared(lock, chosen, found)

    def prepare(self, lock: Lock, listener: Listener, cancel: threading.Event | None = None) -> Prepared:
        chosen = self._base(lock.python, listener)
        found = image.known(lock, chosen, self._daemon())
        if found is None:
            found = image.build(lock, chosen, self._store, self._daemon(), listener, cancel)
        return _prepared(lock, chosen, found)

    # ---- attempts ----

    def run(self, prepared: Prepared, attempt: Attempt, cancel: threading.Event) -> Raw:
        daemon = self._daemon()
        if attempt.gpus and not (gpus := self.gpu_access()).how:
            return Raw(infra=gpus.why)
        self._write_spec(attempt)
        container = f"repromatrix-{re.sub(r'[^A-Za-z0-9_.-]', '_', attempt.id)}-{secrets.token_hex(4)}"
        notes: list[str] = []
        try:
            try:
                notes += self._start(daemon, container, prepared, attempt)
            except InfraError as error:
                return self._failed(error)
            notes += filter(None, (REFUSED[what] for what in sorted(self._refused)))
            with loaded(attempt, prepared.lock) as seen:
                why = self._follow(daemon, container, attempt, cancel)
            raw = self._verdict(daemon, container, attempt, why)
            notes += [*self._gpu_notes(daemon, prepared, attempt), *seen.notes()]
        finally:
            notes += self._remove(daemon, container)
        return replace(raw, notes=(*raw.notes, *notes))

    def _write_spec(self, attempt: Attempt) -> None:
        write_spec(
            attempt,
            python=PYTHON,
            root=INSIDE,
            stacks=READ_STACKS,
            tools=TOOLS if attempt.tools is not None else None,
            env=engine_env(attempt, self._access(attempt)),
            watch_stdin=False,
            own_cgroup=True,
        )

    def _access(self, attempt: Attempt) -> Access:
        """How this attempt gets GPUs; one without any asks nobody."""
        return self.gpu_access() if attempt.gpus else Access("", "")

    def _gpu_notes(self, daemon: Daemon, prepared: Prepared, attempt: Attempt) -> list[str]:
        if not attempt.gpus:
            return []
        if prepared.location not in self._built:
            self._built[prepared.location] = in_image(daemon, self._host, prepared.location, PYTHON, owner())
        return [f"GPUs by {self.gpu_access().why}", *filter(None, [self._built[prepared.location]])]

    def _failed(self, error: InfraError) -> Raw:
        """An attempt that never started; raises where the whole daemon is gone."""
        if not self._answers():
            raise error
        return Raw(infra=error.line)

    def _answers(self) -> bool:
        try:
            connect(self._host, timeout=10).api.ping()
        except Exception:  # whatever it is, it is no answer
            return False
        return True

    def _start(self, daemon: Daemon, container: str, prepared: Prepared, attempt: Attempt) -> list[str]:
        """Create and start; the request's own deadline holds for each. Returns notes for the attempt.

        Raises:
            InfraError: Refused, too slow, or gone.
        """
        notes: list[str] = []
        while True:
            # What this try leaves out; others may learn more meanwhile, in their own threads.
            refused = frozenset(self._refused)
            with daemon_errors(self._host, "create the container"):
                self._create(daemon, container, prepared, attempt, refused)
            try:
                with daemon_errors(self._host, "start the container"):
                    daemon.api.start(container)
                return notes
            except InfraError as error:
                if LOST_START in error.message and not notes:
                    notes.append(
                        "the container did not start at first (runc lost its first process): it was made again"
                    )
                    if trouble := self._remove(daemon, container):
                        raise InfraError(trouble[0], where=self._host) from error
                    continue
                what = next((words for words in REFUSED if words in error.message), None)
                if what is None or what in refused:
                    raise
                self._refused.add(what)
                if what in NO_DRIVER:
                    if not (gpus := self.gpu_access()).how:
                        raise InfraError(gpus.why, where=self._host) from error
                    self._write_spec(attempt)  # the driver's libraries lie elsewhere now
            if trouble := self._remove(daemon, container):
                raise InfraError(trouble[0], where=self._host)

    def _create(
        self, daemon: Daemon, container: str, prepared: Prepared, attempt: Attempt, refused: frozenset[str]
    ) -> None:
        from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

        api = daemon.api
        options = Options.of(self._info, refused, self._access(attempt))
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
        api.create_container(
            prepared.location,
            command=list(COMMAND),
            entrypoint=[],
            name=container,
            user=options.user,
            working_dir=INSIDE,
            # Without a network nothing resolves the container's own name, and gloo asks for it (jax-ml/jax#40831).
            hostname="localhost",
            environment={},
            host_config=host,
            stop_timeout=int(GRACE) + 5,
            use_config_proxy=False,
            labels={
                f"{LABEL}attempt": attempt.id,
                f"{LABEL}owner": owner(),
                f"{LABEL}deadline": str(int(time.time() + _host_limit(attempt)) + 60),
            },
        )

    def _follow(self, daemon: Daemon, container: str, attempt: Attempt, cancel: threading.Event) -> str:
        """Until the container has ended; returns why the host killed it, or nothing.

        Raises:
            InfraError: The daemon is gone.
        """
        limit = _host_limit(attempt)
        ended = threading.Event()
        trouble: list[InfraError] = []

        def wait() -> None:
            try:
                with daemon_errors(self._host, "wait for the container"):
                    daemon.api.wait(container, timeout=int(limit) + 120)
            except InfraError as error:
                trouble.append(error)
            finally:
                ended.set()

        threading.Thread(target=wait, daemon=True).start()
        deadline, why = time.monotonic() + limit, ""
        while not ended.wait(POLL):
            if cancel.is_set():
                why = CANCELLED
            elif time.monotonic() > deadline:
                why = f"the container did not end within {limit:.0f} s and was killed from outside"
            if why:
                self._kill(daemon, container)
                if not ended.wait(30):
                    raise InfraError(
                        "a container does not end after SIGKILL", where=container, hint="restart the daemon"
                    )
        if trouble and not why:
            raise trouble[0]
        return why

    def _kill(self, daemon: Daemon, container: str) -> None:
        from docker.errors import APIError

        with daemon_errors(self._host, "kill the container"):
            try:
                daemon.api.kill(container)
            except APIError as error:
                if error.status_code not in (404, 409):  # it has ended meanwhile
                    raise

    def _verdict(self, daemon: Daemon, container: str, attempt: Attempt, why: str) -> Raw:
        if why == CANCELLED:
            return Raw(infra=CANCELLED)
        with daemon_errors(self._host, "inspect the container"):
            state = daemon.api.inspect_container(container)["State"]
        # The supervisor ends with 0 once it has written its verdict. Where something ended it, whatever lies at
        # result.json is the script's own work.
        if state.get("ExitCode") == 0:
            return read_raw(attempt.folder, attempt.id)
        if state.get("OOMKilled") and attempt.memory is not None:
            # The kernel chose the supervisor; which process of the tree it takes is its own affair.
            return Raw(signal="SIGKILL", oom_kills=1, notes=("the memory limit ended the supervisor too",))
        said = state.get("Error") or f"status {state.get('ExitCode')}"
        return Raw(infra=f"{why or 'the supervisor ended without a verdict'}; the engine says: {said}")

    def _remove(self, daemon: Daemon, container: str) -> list[str]:
        """Remove the container whatever its state; says what went wrong."""
        from docker.errors import APIError

        try:
            with daemon_errors(self._host, "remove the container"):
                try:
                    daemon.api.remove_container(container, force=True, v=True)
                except APIError as error:
                    if error.status_code != 404:
                        raise
        except InfraError as error:
            return [f"container {container} is left behind: {error.message}"]
        return []

    # ---- by hand, and afterwards ----

    def command(self, prepared: Prepared, attempt: Attempt) -> str:
        return command(
            prepared.location, attempt, Options.of(self._info, frozenset(self._refused), self._access(attempt))
        )

    def reap(self) -> list[str]:
        daemon = self._daemon()
        with daemon_errors(self._host, "list its containers"):
            found = daemon.api.containers(all=True, filters={"label": f"{LABEL}attempt"})
        ended = []
        for container in found:
            labels, name = container["Labels"], container["Names"][0].lstrip("/")
            if abandoned(labels.get(f"{LABEL}owner", "")):
                why = "its owner is dead"
            elif time.time() > float(labels.get(f"{LABEL}deadline", "inf")):
                why = "its deadline has passed"
            else:
                continue
            if trouble := self._remove(daemon, container["Id"]):
                raise InfraError(trouble[0], where=self._host)
            ended.append(f"container {name} ({container['State']}): {why}")
        return ended


def _prepared(lock: Lock, chosen: BaseImage, found: str) -> Prepared:
    return Prepared(lock, DockerEngine.name, found, chosen.description, found)


def _host_limit(attempt: Attempt) -> float:
    """Seconds after which the host stops believing in the supervisor."""
    return attempt.timeout + AFTERMATH + OVERTIME
