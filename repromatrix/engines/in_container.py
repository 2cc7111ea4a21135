"""Attempts in containers, one each, whatever the engine: nothing is trusted that it says of the script."""

from __future__ import annotations

import re
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repromatrix.engines.attempt import AFTERMATH, CANCELLED, abandoned, owner, read_raw, write_spec
from repromatrix.engines.base import Attempt, Engine, Prepared, Raw
from repromatrix.engines.cdi import NO_DRIVER, Access
from repromatrix.engines.container import (
    INSIDE,
    PYTHON,
    READ_STACKS,
    REFUSED,
    TOOLS,
    Options,
    command,
    engine_env,
)
from repromatrix.engines.loaded import loaded
from repromatrix.envs import base, image
from repromatrix.envs.daemon import LABEL
from repromatrix.envs.wheels import WheelStore
from repromatrix.errors import InfraError

if TYPE_CHECKING:
    from repromatrix.envs.base import BaseImage
    from repromatrix.envs.images import Images
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


@dataclass(frozen=True, slots=True)
class State:
    """How a container ended, in the engine's words.

    Attributes:
        status: Its exit status.
        out_of_memory: The kernel killed something in it for memory.
        error: What the engine says beside it.
    """

    status: int | None
    out_of_memory: bool
    error: str


@dataclass(frozen=True, slots=True)
class Found:
    """A container with this tool's labels; `state` in the engine's words."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]


class ContainerEngine(Engine):
    """Runs attempts in containers of this machine."""

    def __init__(self, project: Project, matrix: Matrix) -> None:
        self._project = project
        self._matrix = matrix
        self._store = WheelStore(project.store)
        self._refused: set[str] = set()  # keys of REFUSED, as containers that did not start have shown
        self._built: dict[str, str] = {}  # what an image's CUDA plugin was built with

    # ---- what each engine has of its own; all raise InfraError where it does not answer ----

    @abstractmethod
    def _images(self) -> Images:
        """Its images."""

    @abstractmethod
    def _system(self) -> Mapping[str, Any]:
        """What it says of itself, in the words of `docker info`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it answers now."""

    @abstractmethod
    def _create(self, container: str, prepared: Prepared, attempt: Attempt, options: Options) -> None:
        """Make the attempt's container."""

    @abstractmethod
    def _begin(self, container: str) -> None:
        """Start it."""

    @abstractmethod
    def _wait(self, container: str, limit: float) -> None:
        """Return when it has ended, or after `limit` seconds."""

    @abstractmethod
    def _kill(self, container: str) -> None:
        """Kill it, where it has not ended."""

    @abstractmethod
    def _state(self, container: str) -> State:
        """How it ended."""

    @abstractmethod
    def _delete(self, container: str) -> None:
        """Remove it whatever its state; nothing where there is none."""

    @abstractmethod
    def _containers(self) -> list[Found]:
        """All with the label of an attempt."""

    @abstractmethod
    def _built_with(self, location: str, python: str) -> str:
        """The note of engines/built.py on the environment in this image, whose interpreter is `python`."""

    # ---- environments ----

    def basis(self, python: str, listener: Listener, *, offline: bool = False) -> str:
        # Where one was chosen before, it is not looked for again: results of known cells need no image.
        known = base.recorded(self._matrix, python, self._project.store)
        if known is None and offline:
            raise InfraError(f"no base image of Python {python} was fetched yet, and --offline forbids it")
        return (known or self._base(python, listener)).description

    def _base(self, python: str, listener: Listener) -> BaseImage:
        return base.resolve_base(self._matrix, python, self._images(), self._project.store, listener)

    def known(self, lock: Lock) -> Prepared | None:
        chosen = base.recorded(self._matrix, lock.python, self._project.store)
        if chosen is None:
            return None
        found = image.known(lock, chosen, self._images())
        return None if found is None else self._prepared(lock, chosen, found)

    def prepare(self, lock: Lock, listener: Listener, cancel: threading.Event | None = None) -> Prepared:
        chosen = self._base(lock.python, listener)
        found = image.known(lock, chosen, self._images())
        if found is None:
            found = image.build(lock, chosen, self._store, self._images(), listener, cancel)
        return self._prepared(lock, chosen, found)

    def _prepared(self, lock: Lock, chosen: BaseImage, found: str) -> Prepared:
        return Prepared(lock, self.name, found, chosen.description, found)

    # ---- attempts ----

    def run(self, prepared: Prepared, attempt: Attempt, cancel: threading.Event) -> Raw:
        self._images()
        if attempt.gpus and not (gpus := self.gpu_access()).how:
            return Raw(infra=gpus.why)
        self._write_spec(attempt)
        container = f"repromatrix-{re.sub(r'[^A-Za-z0-9_.-]', '_', attempt.id)}-{secrets.token_hex(4)}"
        notes: list[str] = []
        try:
            try:
                notes += self._start(container, prepared, attempt)
            except InfraError as error:
                return self._failed(error)
            notes += filter(None, dict.fromkeys(REFUSED[what] for what in sorted(self._refused)))
            with loaded(attempt, prepared.lock) as seen:
                why = self._follow(container, attempt, cancel)
            raw = self._verdict(container, attempt, why)
            notes += [*self._gpu_notes(prepared, attempt), *seen.notes()]
        finally:
            notes += self._remove(container)
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

    def _gpu_notes(self, prepared: Prepared, attempt: Attempt) -> list[str]:
        if not attempt.gpus:
            return []
        if prepared.location not in self._built:
            self._built[prepared.location] = self._built_with(prepared.location, PYTHON)
        return [f"GPUs by {self.gpu_access().why}", *filter(None, [self._built[prepared.location]])]

    def _failed(self, error: InfraError) -> Raw:
        """An attempt that never started; raises where the whole engine is gone."""
        if not self._answers():
            raise error
        return Raw(infra=error.line)

    def _start(self, container: str, prepared: Prepared, attempt: Attempt) -> list[str]:
        """Create and start; the request's own deadline holds for each. Returns notes for the attempt.

        Raises:
            InfraError: Refused, too slow, or gone.
        """
        notes: list[str] = []
        while True:
            # What this try leaves out; others may learn more meanwhile, in their own threads.
            refused = frozenset(self._refused)
            try:
                options = Options.of(self._system(), refused, self._access(attempt))
                self._create(container, prepared, attempt, options)
                self._begin(container)
                return notes
            except InfraError as error:
                if LOST_START in error.message and not notes:
                    notes.append(
                        "the container did not start at first (runc lost its first process): it was made again"
                    )
                else:
                    self._learn(error, refused, attempt)
            if trouble := self._remove(container):
                raise InfraError(trouble[0], where=self._images().host)

    def _learn(self, error: InfraError, refused: frozenset[str], attempt: Attempt) -> None:
        """Note what the engine cannot give; raises where it was not asked for, or nothing can take its place."""
        what = next((words for words in REFUSED if words in error.message), None)
        if what is None or what in refused:
            raise error
        self._refused.add(what)
        if what in NO_DRIVER:
            if not (gpus := self.gpu_access()).how:
                raise InfraError(gpus.why, where=self._images().host) from error
            self._write_spec(attempt)  # the driver's libraries lie elsewhere now

    def _labels(self, attempt: Attempt) -> dict[str, str]:
        return {
            f"{LABEL}attempt": attempt.id,
            f"{LABEL}owner": owner(),
            f"{LABEL}deadline": str(int(time.time() + host_limit(attempt)) + 60),
        }

    def _follow(self, container: str, attempt: Attempt, cancel: threading.Event) -> str:
        """Until the container has ended; returns why the host killed it, or nothing.

        Raises:
            InfraError: The engine is gone.
        """
        limit = host_limit(attempt)
        ended = threading.Event()
        trouble: list[InfraError] = []

        def wait() -> None:
            try:
                self._wait(container, limit + 120)
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
                self._kill(container)
                if not ended.wait(30):
                    raise InfraError(
                        "a container does not end after SIGKILL", where=container, hint="restart the engine"
                    )
        if trouble and not why:
            raise trouble[0]
        return why

    def _verdict(self, container: str, attempt: Attempt, why: str) -> Raw:
        if why == CANCELLED:
            return Raw(infra=CANCELLED)
        state = self._state(container)
        # The supervisor ends with 0 once it has written its verdict. Where something ended it, whatever lies at
        # result.json is the script's own work.
        if state.status == 0:
            return read_raw(attempt.folder, attempt.id)
        if state.out_of_memory and attempt.memory is not None:
            # The kernel chose the supervisor; which process of the tree it takes is its own affair.
            return Raw(signal="SIGKILL", oom_kills=1, notes=("the memory limit ended the supervisor too",))
        said = state.error or f"status {state.status}"
        return Raw(infra=f"{why or 'the supervisor ended without a verdict'}; the engine says: {said}")

    def _remove(self, container: str) -> list[str]:
        """Remove the container whatever its state; says what went wrong."""
        try:
            self._delete(container)
        except InfraError as error:
            return [f"container {container} is left behind: {error.message}"]
        return []

    # ---- by hand, and afterwards ----

    def command(self, prepared: Prepared, attempt: Attempt) -> str:
        options = Options.of(self._system(), frozenset(self._refused), self._access(attempt))
        return command(self.name, prepared.location, attempt, options)

    def reap(self) -> list[str]:
        ended = []
        for container in self._containers():
            if abandoned(container.labels.get(f"{LABEL}owner", "")):
                why = "its owner is dead"
            elif time.time() > float(container.labels.get(f"{LABEL}deadline", "inf")):
                why = "its deadline has passed"
            else:
                continue
            if trouble := self._remove(container.id):
                raise InfraError(trouble[0], where=self._images().host)
            ended.append(f"container {container.name} ({container.state}): {why}")
        return ended


def host_limit(attempt: Attempt) -> float:
    """Seconds after which the host stops believing in the supervisor."""
    return attempt.timeout + AFTERMATH + OVERTIME
