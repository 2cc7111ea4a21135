"""Cells run for a search: many small runs of the main job, with one engine, on environments made ready ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType

from repromatrix.concluded import again
from repromatrix.engines.base import Engine
from repromatrix.engines.choose import count_gpus
from repromatrix.envs.lock import lock_all
from repromatrix.envs.model import Lock
from repromatrix.errors import InfraError
from repromatrix.events import Listener, Silent, Task
from repromatrix.flow import run_selection
from repromatrix.kept import up_to_date
from repromatrix.plan import Request, Selection, make
from repromatrix.project import Project
from repromatrix.ready import Ready
from repromatrix.regressions.prefetch import Prefetch
from repromatrix.regressions.quiet import Quiet
from repromatrix.results.assemble import assemble
from repromatrix.results.model import INTERRUPTED, AttemptResult, CellResult
from repromatrix.results.store import Results
from repromatrix.spec.model import Cell, Environment, Matrix, Outcome, Repro

_NONE_GIVEN: Mapping[Environment, Lock] = {}


class _Hearing(Quiet):
    """Also knows which attempts began: `cell#number` of each."""

    def __init__(self, listener: Listener, cancel: threading.Event) -> None:
        super().__init__(listener, cancel)
        self.attempts: set[str] = set()

    def start(self, phase: str, name: str, total: int | None = None, unit: str = "") -> Task:
        if phase == "run":
            self.attempts.add(name)
        return super().start(phase, name, total, unit)


class Trials:
    """Runs cells as often as a search wants. Results come from the checkout's store and go to it.

    Args:
        request: Its `jobs`, `rerun`, `offline` and `command` count. With `rerun` what is kept of a cell answers no
            longer, from its first run here on.
        engine: Ready to use, see `flow.ready_engine`.
        listener: Hears what matters of many small runs, see `quiet.py`; the search tells what its tries gave.
        cancel: Set by `close`, and by Ctrl-C.
    """

    def __init__(
        self,
        project: Project,
        request: Request,
        matrix: Matrix,
        repros: tuple[Repro, ...],
        engine: Engine,
        listener: Listener,
        cancel: threading.Event,
    ) -> None:
        self.project = project
        self.request = replace(request, single=False)
        self.matrix = matrix
        self.repros = repros
        self.engine = engine
        self.cancel = cancel
        self._quiet = _Hearing(listener, cancel)
        self._ready = Ready(project, matrix, engine, self._quiet, cancel, offline=request.offline)
        self._prefetch: Prefetch[Cell] = Prefetch(self._lock_ahead, self._fetch_ahead, self._build_ahead)
        self._locking = threading.Lock()
        self._lost: dict[Environment, InfraError] = {}
        self._renewed: set[Cell] = set()
        self._failed: set[Cell] = set()

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is made ready in the background."""
        self.cancel.set()
        self._prefetch.close()

    @property
    def running(self) -> float:
        """Seconds in which at least one attempt ran."""
        return self._quiet.running

    def run(
        self,
        wanted: Mapping[Cell, int],
        given: Mapping[Environment, Lock] = _NONE_GIVEN,
        *,
        soon: Iterable[Cell] = (),
        hlo: bool = True,
    ) -> dict[Cell, CellResult]:
        """Run cells until each has so many attempts, kept ones counted; in the order given.

        A cell whose environment could not be locked once is not asked for again.

        Args:
            wanted: Attempts in all, at least 1.
            given: Locks that are no file.
            soon: Cells whose environments are made ready in the background once those of `wanted` are, the first ones
                first, and no longer those asked for before. Trouble is silent until one is needed.
            hlo: Whether to collect the HLO of failures, which takes a second run of the script.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was finished is kept.
            UserError: A lock file is damaged.
            InfraError: No disk, no engine, no network where all cells need it.
        """
        locks = self._lock([cell.environment for cell in wanted if cell.environment not in given])
        self._prefetch.ask(soon, keep=wanted)
        lost = {cell: self._lost[cell.environment] for cell in wanted if cell.environment in self._lost}
        found = {cell: self._without(cell, error) for cell, error in lost.items()}
        todo = {cell: count for cell, count in wanted.items() if cell not in found}
        with self._ready.first(locks.values()):
            for rerun in (True, False):
                if some := {cell: count for cell, count in todo.items() if rerun == self._to_renew(cell)}:
                    found |= self._run(some, given, rerun=rerun, hlo=hlo)
        return {cell: found[cell] for cell in wanted}

    def _run(
        self, wanted: Mapping[Cell, int], given: Mapping[Environment, Lock], *, rerun: bool, hlo: bool
    ) -> dict[Cell, CellResult]:
        cells = tuple(
            replace(
                cell,
                repeat=attempts,
                hlo="off" if cell.hlo == "failures" and not (hlo and cell not in self._failed) else cell.hlo,
            )
            for cell, attempts in wanted.items()
        )
        request = replace(self.request, rerun=rerun)
        run = run_selection(
            *(self.project, request, self._selection(cells), self.engine, self._quiet, self.cancel),
            ready=self._ready,
            given=given,
        )
        self._renewed.update(wanted)
        if run.interrupted or any(result.reason == INTERRUPTED for result in run.cells):
            raise KeyboardInterrupt
        found = dict(zip(wanted, run.cells, strict=True))
        # The HLO of a failure is collected by a second run of the script, and once is enough.
        if hlo:
            self._failed |= {cell for cell, result in found.items() if cell.hlo == "failures" and result.outcome.failed}
        return found

    def kept(
        self, cells: Iterable[Cell], given: Mapping[Environment, Lock] = _NONE_GIVEN
    ) -> dict[Cell, tuple[AttemptResult, ...]]:
        """The kept attempts of those cells that have any; asks no network, makes no lock and runs nothing.

        Raises:
            UserError: A lock file is damaged.
        """
        wanted = tuple(cell for cell in dict.fromkeys(cells) if not self._to_renew(cell))
        if not wanted:
            return {}
        request = replace(self.request, offline=True)
        plan = make(
            *(self.project, request, self._selection(wanted), self.engine, count_gpus(), Silent(), self.cancel), given
        )
        rules = self.matrix.signatures
        with Results(self.project.state) as results:
            kept = results.many(plan.keys.values())
            for cell, key in plan.keys.items():
                renewed = tuple(up_to_date(self.project, cell, rules, each) for each in kept.get(key, ()))
                for before, after in zip(kept.get(key, ()), renewed, strict=True):
                    if before != after:
                        results.amend(key, after)
                        kept[key] = renewed
        return {cell: kept[key] for cell, key in plan.keys.items() if key in kept}

    def made(self, cell: Cell, number: int) -> bool:
        """Whether this attempt of `cell` ran here: those of another search in this checkout are kept like our own."""
        return f"{cell.id}#{number}" in self._quiet.attempts

    def lock(self, cell: Cell) -> Lock | None:
        """The lock of its environment, made if there is none; None where it cannot exist or cannot be had now."""
        return self._lock([cell.environment]).get(cell.environment)

    def _lock_ahead(self, cell: Cell, _: threading.Event) -> Lock:
        return self._lock([cell.environment], remember=False)[cell.environment]

    def _fetch_ahead(self, cell: Cell, stop: threading.Event) -> None:
        lock = self._lock_ahead(cell, stop)
        if self._ready.give_way(lock, stop):
            self._ready.fetch(lock, stop)

    def _build_ahead(self, cell: Cell, stop: threading.Event) -> None:
        lock = self._lock_ahead(cell, stop)
        if self._ready.give_way(lock, stop):
            self._ready.prepare(lock, stop)

    def _lock(self, environments: Iterable[Environment], *, remember: bool = True) -> dict[Environment, Lock]:
        """Lock what is not locked yet; one thread at a time, since all note in one file what is impossible.

        Args:
            remember: What cannot be locked for the machine's fault is not asked for again.
        """
        with self._locking:
            todo = [each for each in dict.fromkeys(environments) if each not in self._lost]
            found = lock_all(
                *(todo, self.matrix, self.project, self._quiet), offline=self.request.offline, cancel=self.cancel
            )
            if remember and not self.cancel.is_set():
                self._lost |= {each: state for each, state in found.items() if isinstance(state, InfraError)}
        return {each: state for each, state in found.items() if isinstance(state, Lock)}

    def _to_renew(self, cell: Cell) -> bool:
        return self.request.rerun and cell not in self._renewed

    def _selection(self, cells: tuple[Cell, ...]) -> Selection:
        return Selection(self.matrix, self.repros, cells, (), len(cells))

    def _without(self, cell: Cell, error: InfraError) -> CellResult:
        """The result of a cell that has no environment for the machine's fault."""
        absent = (Outcome.INFRA, error.line)
        return assemble(cell, "", (), absent, engine="", base="", lock=None, command=again(cell, ""))
