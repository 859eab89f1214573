"""The driver: one thread that hears of everything in order, journals it, and acts on it.

Connections, processes, signals and commands only put messages into its queue; the store is written here alone. An event
is committed before what follows from it is done, so that a driver killed at any instant is replaced by one that replays
the journal.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .. import wire
from ..checkpoint import Manifest
from ..config import ExperimentConfig, from_json, is_trial_entrypoint
from ..engines import Engine, RunSpec
from ..environ import WorkerEnv
from ..errors import DetError
from ..host import Outcome, Target
from ..loop import number_or_none
from ..plugins import Plugins
from ..protocol import (
    Answer,
    AskBest,
    AskTarget,
    Checkpointed,
    Completed,
    Deleted,
    Finished,
    Hello,
    Preempt,
    Progressed,
    Reported,
    Status,
    Validated,
    Word,
    decode_word,
    encode,
)
from ..schedule import NEVER
from ..searchers import Create, Exit
from ..store import ExperimentState, Store, TrialState, boot_id
from . import _events as events
from ._collect import collect_garbage
from ._logs import cancels_retries
from ._recover import adopt_spooled, end_leftovers
from ._search import Search
from ._settings import DriverSettings
from ._trials import Active, Live
from ._views import ExperimentView

_POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 600


class Driver:
    """Drives one experiment until it ends or is paused.

    `run` does it all, in the thread that calls it; `pause`, `cancel` and `kill` may be called from any thread and from
    signal handlers. Raises ExperimentBusy when another driver holds the experiment.
    """

    def __init__(self, settings: DriverSettings, experiment_id: int, plugins: Plugins) -> None:
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._key = secrets.token_bytes(32)
        self._trials: dict[int, Live] = {}  # by the searcher's number
        self._by_run: dict[int, Live] = {}
        self._wish: ExperimentState | None = None  # PAUSED, CANCELED or ERROR: what to become when the runs have ended
        self._wished_at = 0.0
        self.engine: Engine = plugins.engines()[settings.engine].load()(self._ended)
        self.failures: list[str] = []
        self.traceback = ""
        self.mistake = False
        self.resumable = False

    # From any thread

    def pause(self) -> None:
        """Checkpoint every trial and end."""
        self._inbox.put(lambda: self._stop_all(ExperimentState.PAUSED, "the experiment is paused"))

    def cancel(self) -> None:
        """Checkpoint every trial and end for good."""
        self._inbox.put(lambda: self._stop_all(ExperimentState.CANCELED, "the experiment is canceled"))

    def kill(self) -> None:
        """End every run at once; what is not checkpointed is lost."""
        self._inbox.put(self._kill_all)

    # The thread of the driver

    def run(self) -> ExperimentState:
        """Drive the experiment; return the state that it ends in."""
        with Store(self._settings.home) as store, store.lock(self._id):
            self._store = store
            self._begin()
            try:
                with self._listening():
                    self._drive()
                return self._end()
            finally:
                self._end_everything()

    def _begin(self) -> None:
        experiment = self._store.experiments.get(self._id)
        self._config: ExperimentConfig = from_json(experiment.config)
        directory = self._store.experiment_dir(self._id)
        self._view = ExperimentView(
            id=self._id,
            name=experiment.name,
            config=self._config,
            directory=directory,
            tensorboard_dir=directory / "tensorboard",
        )
        self._unit = _unit(self._config)
        end_leftovers(self._store, self._id)
        adopt_spooled(self._store, self._id, self._spool())
        self._replay()
        self._store.commands.take(self._id)  # what was asked of an earlier driver is no longer meant
        self._store.experiments.update(
            self._id,
            state=ExperimentState.ACTIVE,
            started=experiment.started or time.time(),
            ended=None,
            pid=os.getpid(),
            boot=boot_id(),
        )
        self._plugins.observe("det_experiment_started", experiment=self._view)

    def _replay(self) -> None:
        seed = self._config.reproducibility.experiment_seed or 0
        searcher = self._config.searcher
        assert searcher is not None
        record = self._plugins.searchers()[_tag(searcher)]
        made = record.make(searcher, self._config.hyperparameters, seed)
        journal = [events.decode(event.data) for event in self._store.journal.read(self._id)]
        self._search = Search.replayed(made, journal)
        rows = {trial.request: trial for trial in self._store.trials.list(self._id)}
        for request, plan in self._search.plans.items():
            row = rows[request]
            self._trials[request] = Live(id=row.id, plan=plan, restarts=row.restarts, progress=row.progress)
        if not journal:
            self._happened(events.Started())

    @contextmanager
    def _listening(self) -> Iterator[None]:
        server = wire.Server(self._key, on_connect=self._serve)
        self._address = server.address
        try:
            yield
        finally:
            server.close()

    def _drive(self) -> None:
        next_poll = 0.0
        while not self._finished():
            self._schedule()
            if self._finished():
                return
            try:
                self._inbox.get(timeout=_POLL_SECONDS)()
            except queue.Empty:
                pass
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + _POLL_SECONDS
                self._obey_commands()
                self._lose_patience()

    def _finished(self) -> bool:
        if any(live.active for live in self._trials.values()):
            return False
        return self._wish is not None or not any(live.queued for live in self._trials.values())

    def _end(self) -> ExperimentState:
        state = self._wish or self._final_state()
        over = state in (ExperimentState.COMPLETED, ExperimentState.CANCELED) or (
            state is ExperimentState.ERROR and not any(live.blocked for live in self._trials.values())
        )
        with self._store.transaction():
            self._store.experiments.update(
                self._id, state=state, ended=time.time(), progress=self._progress(), pid=None, boot=None
            )
            for live in self._trials.values():
                if live.plan.exited is None:
                    final = TrialState.CANCELED if state is ExperimentState.CANCELED else TrialState.PAUSED
                    self._store.trials.update(live.id, state=final)
        if over:
            collect_garbage(self._store, self._id, self._config, self._plugins, self._checkpoint_root())
        self._plugins.observe("det_experiment_finished", experiment=self._view, state=str(state))
        return state

    def _final_state(self) -> ExperimentState:
        ended = [live.plan.exited for live in self._trials.values()]
        good = [e for e in ended if e in (Exit.COMPLETED, Exit.USER_STOPPED)]
        if not good or any(live.blocked for live in self._trials.values()):
            return ExperimentState.ERROR
        return ExperimentState.COMPLETED

    # What happens in the search

    def _happened(self, event: events.Event) -> None:
        """Journal an event, with what follows from it in the tables, in one transaction."""
        with self._store.transaction():
            self._store.journal.append(self._id, events.encode(event))
            for operation in self._search.apply(event):
                if isinstance(operation, Create):
                    self._create(operation)
        for live in self._trials.values():
            if live.active and live.plan.closed and not live.active.preempting:
                self._preempt(live, "the searcher closed the trial")

    def _create(self, operation: Create) -> None:
        row = self._store.trials.create(
            self._id,
            operation.trial,
            operation.hparams,
            operation.seed,
            source_checkpoint=self._source(operation.source),
        )
        self._trials[operation.trial] = Live(id=row.id, plan=self._search.plans[operation.trial])

    def _source(self, source: int | None) -> str | None:
        """Return the checkpoint that a new trial starts from, if any."""
        searcher = self._config.searcher
        if source is not None:
            return self._store.trials.get(self._trials[source].id).latest_checkpoint
        if searcher is not None and searcher.source_trial_id is not None:
            found = self._store.trials.get(searcher.source_trial_id).latest_checkpoint
            if found is None:
                raise DetError(f"searcher.source_trial_id is {searcher.source_trial_id}, a trial without a checkpoint")
            return found
        return searcher.source_checkpoint_uuid if searcher is not None else None

    def _close_silently(self) -> None:
        """Tell the searcher of trials that it closed while they waited: they have no run that could end."""
        for live in list(self._trials.values()):
            if live.plan.closed and live.plan.exited is None and live.active is None:
                self._exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    def _exit(self, live: Live, reason: Exit, state: TrialState, message: str = "") -> None:
        with self._store.transaction():
            self._store.trials.update(live.id, state=state, ended=time.time(), exit_reason=message or str(reason))
            self._happened(events.Exited(live.plan.request, reason))

    # Runs

    def _schedule(self) -> None:
        """Start what can be started, in order of creation."""
        self._close_silently()
        if self._wish is not None:
            return
        slots = self._config.resources.slots_per_trial
        for live in [each for each in self._trials.values() if each.queued]:
            lease = self._store.slots.lease(self._id, slots, max(self._settings.slots, 1))
            if lease is None:
                return
            self._start(live, lease)
        self._store.slots.stop_waiting(self._id)

    def _start(self, live: Live, lease: Any) -> None:
        row = self._store.trials.get(live.id)
        own = row.latest_checkpoint
        batches = self._store.checkpoints.get(own).batches if own else 0
        run = self._store.runs.begin(live.id, batches)
        self._store.trials.update(live.id, state=TrialState.RUNNING)
        live.active = Active(run=run, lease=lease, spec_batches=batches, progressed_to=batches)
        self._by_run[run.id] = live
        entrypoint = self._config.entrypoint
        assert entrypoint is not None
        spec = RunSpec(
            run_id=run.id,
            entrypoint=entrypoint if isinstance(entrypoint, str) else tuple(entrypoint),
            trial_class=is_trial_entrypoint(entrypoint),
            code_dir=self._store.code_dir(self._id),
            log_dir=run.log_dir,
            variables=self._variables(live, lease.slots, own or row.source_checkpoint, batches, warm=own is None),
        )
        self.engine.start(spec)
        self._plugins.observe("det_run_started", experiment=self._view, trial=row, run=run)

    def _variables(
        self, live: Live, slots: tuple[int, ...], checkpoint: str | None, batches: int, warm: bool
    ) -> dict[str, str]:
        assert live.active is not None
        env = WorkerEnv(
            experiment_id=self._id,
            trial_id=live.id,
            run_id=live.active.run.id,
            run_number=live.active.run.number,
            seed=live.plan.seed,
            hparams=live.plan.hparams,
            config=self._config,
            slot_ids=slots,
            driver=self._address,
            key=self._key,
            checkpoint_root=self._checkpoint_root(),
            tensorboard_dir=self._view.tensorboard_dir / f"trial-{live.id}",
            spool=self._spool(),
            latest_checkpoint=checkpoint,
            steps_completed=batches,
            slots=max(1, len(slots)),
            warm=warm and checkpoint is not None,
        )
        variables = self._config.environment.environment_variables
        user = dict(v.partition("=")[::2] for v in (variables.cuda if self._settings.gpus else variables.cpu))
        devices = {}
        if self._settings.gpus:
            devices["CUDA_VISIBLE_DEVICES"] = ",".join(self._settings.gpus[s] for s in slots)
        return {**user, **devices, **env.variables()}

    def _ended(self, run_id: int, status: int) -> None:
        """The engine's word that a process ended; from any thread."""
        self._inbox.put(lambda: self._run_ended(run_id, status))

    def _run_ended(self, run_id: int, status: int) -> None:
        live = self._by_run.pop(run_id)
        active = live.active
        assert active is not None
        live.active = None
        for connection in [active.connection, *active.others]:
            if connection is not None:
                connection.close()
        self._store.slots.release(active.lease)
        self._settle(live, active, status)
        with self._store.transaction():
            outcome = str(active.outcome.value if active.outcome else _status(status))
            self._store.runs.end(run_id, outcome)
            self._store.experiments.update(self._id, progress=self._progress())
        self._plugins.observe(
            "det_run_finished",
            experiment=self._view,
            trial=self._store.trials.get(live.id),
            run=self._store.runs.get(run_id),
            outcome=outcome,
        )

    def _settle(self, live: Live, active: Active, status: int) -> None:
        """Decide what a trial is after its run ended."""
        outcome = active.outcome
        if outcome is None and status == 0:
            outcome = active.outcome = Outcome.COMPLETED
        match outcome:
            case Outcome.COMPLETED:
                self._completed(live)
            case Outcome.USER_STOPPED:
                self._exit(live, Exit.USER_STOPPED, TrialState.COMPLETED)
            case Outcome.INVALID_HP:
                self._exit(live, Exit.INVALID_HP, TrialState.INVALID_HP, active.message)
            case Outcome.PREEMPTED:
                self._preempted(live)
            case Outcome.BLOCKED:
                self._blocked(live, active)
            case Outcome.MISTAKE:
                self.mistake = True
                self._failed_for_good(live, active.message, "")
            case _:
                self._failed(live, active, status)

    def _completed(self, live: Live) -> None:
        if not live.plan.closed and not live.plan.wanted:
            self._store.trials.update(live.id, state=TrialState.WAITING)
        elif not live.plan.closed and self._is_trial_class():
            self._store.trials.update(live.id, state=TrialState.QUEUED)  # its target was raised while the run was ending
        else:
            self._exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    def _preempted(self, live: Live) -> None:
        if live.plan.closed:
            self._exit(live, Exit.COMPLETED, TrialState.COMPLETED)
        elif self._wish is ExperimentState.CANCELED:
            self._exit(live, Exit.CANCELED, TrialState.CANCELED)
        else:
            self._store.trials.update(live.id, state=TrialState.PAUSED if self._wish else TrialState.QUEUED)

    def _blocked(self, live: Live, active: Active) -> None:
        live.blocked = self.mistake = self.resumable = True
        self.failures.append(f"trial {live.id}: {active.message}")
        self._store.trials.update(live.id, state=TrialState.PAUSED, exit_reason=active.message)
        self._stop_all(ExperimentState.ERROR, active.message)

    def _failed(self, live: Live, active: Active, status: int) -> None:
        if live.plan.closed:
            self._exit(live, Exit.COMPLETED, TrialState.COMPLETED)
            return
        if self._wish is not None and active.outcome is None:
            self._preempted(live)  # killed because it was asked for
            return
        message = active.message or _status(status)
        failure = (message, active.progressed_to)
        repeats = active.outcome is Outcome.ERROR and live.failure == failure
        live.failure = failure
        live.restarts += 1
        if repeats:
            self._failed_for_good(live, message, active.traceback)
        elif live.restarts > self._config.max_restarts or cancels_retries(self._config, active.run.log_dir):
            live.restarts -= 1
            self._failed_for_good(live, message, active.traceback)
        else:
            self._store.trials.update(live.id, state=TrialState.QUEUED, restarts=live.restarts)

    def _failed_for_good(self, live: Live, message: str, trace: str) -> None:
        self.failures.append(f"trial {live.id}: {message}")
        self.traceback = trace or self.traceback
        self._store.trials.update(live.id, restarts=live.restarts)
        self._exit(live, Exit.ERRORED, TrialState.ERROR, message)

    # Connections

    def _serve(self, connection: wire.Connection) -> None:
        """Read one worker's words into the inbox; runs in the connection's own thread."""
        try:
            hello = decode_word(connection.recv(timeout=30))
            if not isinstance(hello, Hello):
                return
            self._inbox.put(lambda: self._connected(hello, connection))
            while True:
                word = decode_word(connection.recv())
                self._inbox.put(lambda word=word: self._hear(hello.run_id, connection, word))  # type: ignore[misc]
        except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
            connection.close()

    def _connected(self, hello: Hello, connection: wire.Connection) -> None:
        live = self._by_run.get(hello.run_id)
        if live is None or live.active is None:
            connection.close()
            return
        if hello.rank == 0:
            live.active.connection = connection
        else:
            live.active.others.append(connection)
        if live.active.preempting:
            self._send_to(connection, Preempt("the run is to end"))

    def _hear(self, run_id: int, connection: wire.Connection, word: Word) -> None:
        live = self._by_run.get(run_id)
        if live is None or live.active is None:
            return
        try:
            answer = self._answer(live, live.active, word)
        except DetError as error:
            answer = Answer(error=str(error))
        if answer is not None:
            self._send_to(connection, answer)

    def _answer(self, live: Live, active: Active, word: Word) -> Answer | None:
        match word:
            case AskTarget():
                return Answer(target=self._target(live))
            case Validated():
                return Answer(target=self._validated(live, active, word))
            case Completed():
                return Answer(target=self._completed_target(live, active, word))
            case Deleted():
                self._store.checkpoints.mark_deleted(word.uuid)
                return Answer()
            case Checkpointed():
                self._checkpointed(live, active, word.manifest, word.storage)
                return Answer()
            case AskBest():
                return Answer(value=self._best())
            case Finished():
                active.outcome, active.message, active.traceback = word.outcome, word.message, word.traceback
                return Answer()
            case Reported():
                self._reported(live, active, word.group, word.batches, word.metrics)
            case Progressed():
                live.progress = word.fraction
                self._store.trials.update(live.id, progress=word.fraction)
            case Status():
                live.status = word.text
        return None

    def _target(self, live: Live, best: bool = False) -> Target:
        plan = live.plan
        if not plan.runnable:
            return Target(n=None, unit=self._unit, best=best)
        if plan.until is None:
            return Target(n=NEVER, unit="batches", best=best)
        return Target(n=plan.until, unit=self._unit, best=best)

    def _validated(self, live: Live, active: Active, word: Validated) -> Target:
        best = self._is_best(word.metrics)
        length = word.length if word.length is not None and word.length < NEVER else self._length(live, word)
        active.validated_at = word.batches
        with self._store.transaction():
            self._reported(live, active, "validation", word.batches, word.metrics)
            self._happened(events.Validated(live.plan.request, length, word.batches, word.metrics))
        return self._target(live, best)

    def _completed_target(self, live: Live, active: Active, word: Completed) -> Target:
        """Take a script's word that it reached its target; the validation's metrics, reported before, are not replaced."""
        with self._store.transaction():
            if active.validated_at != word.batches:
                self._reported(live, active, "validation", word.batches, word.metrics)
            self._happened(events.Validated(live.plan.request, word.length, word.batches, word.metrics))
        return self._target(live)

    def _length(self, live: Live, word: Validated) -> int:
        """Return the position, in the searcher's unit, of a validation that does not complete the target."""
        if self._unit == "epochs":
            length = int(word.metrics.get("epochs", 0))
        elif self._unit == "records":
            size = self._config.hyperparameters.get("global_batch_size")
            length = word.batches * int(getattr(size, "val", 1))
        else:
            length = word.batches
        return length if live.plan.until is None else min(length, live.plan.until - 1)

    def _reported(self, live: Live, active: Active, group: str, batches: int, metrics: dict[str, Any]) -> None:
        active.progressed_to = max(active.progressed_to, batches)
        self._store.metrics.report(live.id, active.run.id, group, batches, metrics)
        self._plugins.observe(
            "det_metrics_reported",
            experiment=self._view,
            trial=self._store.trials.get(live.id),
            group=group,
            batches=batches,
            metrics=metrics,
        )

    def _checkpointed(self, live: Live, active: Active, manifest: Manifest, storage: str) -> None:
        checkpoint = self._store.checkpoints.record(
            manifest.uuid,
            live.id,
            active.run.id,
            manifest.batches,
            storage=storage,
            size=sum(file.size for file in manifest.files.values()),
            metadata=manifest.metadata,
            framework=manifest.framework,
        )
        self._plugins.observe(
            "det_checkpoint_saved",
            experiment=self._view,
            trial=self._store.trials.get(live.id),
            checkpoint=checkpoint,
        )

    def _send_to(self, connection: wire.Connection, reply: Answer | Preempt) -> None:
        try:
            connection.send(encode(reply))
        except (wire.ConnectionLost, TimeoutError, OSError):
            connection.close()

    # The end

    def _preempt(self, live: Live, reason: str) -> None:
        active = live.active
        assert active is not None
        active.preempting = True
        connections = [active.connection] if active.connection else []
        for connection in [*connections, *active.others]:
            self._send_to(connection, Preempt(reason))
        if not self._is_trial_class() and active.connection is None:
            self.engine.terminate(active.run.id)  # a script that does not use the Core API

    def _stop_all(self, wish: ExperimentState, reason: str) -> None:
        if self._wish is not ExperimentState.ERROR:
            self._wish = wish
        self._wished_at = time.monotonic()
        for live in self._trials.values():
            if live.active and not live.active.preempting:
                self._preempt(live, reason)

    def _kill_all(self) -> None:
        self._wish = self._wish or ExperimentState.PAUSED
        for live in self._trials.values():
            if live.active:
                self.engine.kill(live.active.run.id)

    def _lose_patience(self) -> None:
        """Kill runs that were asked to end long ago."""
        patience = self._config.preemption_timeout or _PATIENCE_SECONDS
        if self._wish is not None and time.monotonic() - self._wished_at > patience:
            self._kill_all()

    def _obey_commands(self) -> None:
        for command in self._store.commands.take(self._id):
            match command.kind:
                case "pause":
                    self._stop_all(ExperimentState.PAUSED, "det pause")
                case "cancel":
                    self._stop_all(ExperimentState.CANCELED, "det cancel")
                case "kill":
                    self._wish = ExperimentState.CANCELED
                    self._kill_all()

    def _end_everything(self) -> None:
        """Leave no process behind, whatever went wrong."""
        for live in self._trials.values():
            if live.active:
                self.engine.kill(live.active.run.id)
                self._store.slots.release(live.active.lease)
        self.engine.close()

    # Small answers

    def _is_trial_class(self) -> bool:
        return is_trial_entrypoint(self._config.entrypoint or "")

    def _checkpoint_root(self) -> Path:
        return self._settings.home / "checkpoints"

    def _spool(self) -> Path:
        return self._store.experiment_dir(self._id) / "spool"

    def _progress(self) -> float:
        running = {r: live.progress for r, live in self._trials.items() if live.plan.exited is None}
        return self._search.progress(running)

    def _best(self) -> float | None:
        trials = self._store.trials.list(self._id, best_first=True, limit=1)
        return trials[0].best_metric if trials else None

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        searcher = self._config.searcher
        if searcher is None or not searcher.metric:
            return True
        value, best = number_or_none(metrics.get(searcher.metric)), self._best()
        if value is None:
            return False
        return best is None or (value < best if searcher.smaller_is_better else value > best)


def _tag(searcher: msgspec.Struct) -> str:
    return str(type(searcher).__struct_config__.tag)


def _unit(config: ExperimentConfig) -> str:
    """Return the unit in which the searcher counts: that of `max_length`, or of the time metric."""
    searcher = config.searcher
    length = getattr(searcher, "max_length", None) or getattr(searcher, "length_per_round", None)
    if length is not None:
        return str(length.unit)
    time_metric = getattr(searcher, "time_metric", None)
    return time_metric if time_metric in ("batches", "epochs", "records") else "batches"


def _status(status: int) -> str:
    return f"the process was killed by signal {-status}" if status < 0 else f"the process exited with status {status}"
