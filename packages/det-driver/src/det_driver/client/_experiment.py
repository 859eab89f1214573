"""An experiment and its trials, which know one another."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_core.code import copy_code
from det_core.config import from_json, to_builtins
from det_core.errors import CheckpointError, StoreError
from det_core.plugins import extensions_of

from ..driver import ask, dismiss, give_up, reopen, start_driver
from ..store import CheckpointState, ExperimentState, TrialRow, export_experiment
from ._checkpoint import Checkpoint, Home
from ._notebook import StatusLine, as_html
from ._reported import TrialReports
from ._searched import Searched

_POLL_SECONDS = 0.2


class Experiment(Searched):
    """A configuration with the user's code, and all that came of it."""

    # What came of it

    def list_trials(self) -> list[Trial]:
        """Return its trials, in the order of their creation."""
        with self._home.reader() as store:
            return [Trial(self._home, row) for row in store.trials.list(self.id)]

    get_trials = list_trials  # an older word

    def list_checkpoints(self, max_results: int | None = None) -> list[Checkpoint]:
        """Return the checkpoints that exist, the best by the searcher's metric first, those without it last."""
        with self._home.reader() as store:
            rows = [r for r in store.checkpoints.list(experiment_id=self.id) if r.state is CheckpointState.COMPLETED]
        sign = 1 if self.smaller_is_better else -1
        rows.sort(key=lambda r: (r.metric is None, sign * (r.metric or 0.0), -r.created))
        return [Checkpoint(self._home, row) for row in rows[:max_results]]

    def top_checkpoint(self) -> Checkpoint:
        """Return the best checkpoint; CheckpointError where there is none."""
        best = self.list_checkpoints(1)
        if not best:
            raise CheckpointError(f"experiment {self.id} has no checkpoint; wait for one, or see det logs {self.id}")
        return best[0]

    def top_n_checkpoints(self, limit: int) -> list[Checkpoint]:
        """Return the best checkpoint of each of the best trials, at most `limit`."""
        of_trials: dict[int, Checkpoint] = {}
        for checkpoint in self.list_checkpoints():
            of_trials.setdefault(checkpoint.trial_id, checkpoint)
        return list(of_trials.values())[:limit]

    def download_code(self, output_dir: str | Path | None = None) -> str:
        """Copy the code that it runs to a directory, by default `experiment-ID`; return where it is."""
        target = Path(output_dir) if output_dir is not None else Path(f"experiment-{self.id}")
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty; name a directory that does not exist yet")
        with self._home.reader() as store:
            copy_code(store.code_dir(self.id), target)
        return str(target)

    # What becomes of it

    def wait(self, polling_interval: float = _POLL_SECONDS, progress: bool | None = None) -> ExperimentState:
        """Wait until it has ended or is paused; return its state. StoreError where its driver is gone.

        With `progress` a line says meanwhile how far it is, and is written over; by default in notebooks.
        """
        line = StatusLine("ipykernel" in sys.modules if progress is None else progress)
        while True:
            with self._home.reader() as store:
                summary = store.experiments.summary(self.id)
                gone = store.experiments.orphaned(summary.experiment)
            line.write(summary)
            if summary.experiment.state is not ExperimentState.ACTIVE:
                line.close()
                return summary.experiment.state
            if gone:
                line.close()
                raise StoreError(f"the driver of experiment {self.id} is gone; go on with activate()")
            time.sleep(polling_interval)

    def await_first_trial(self, interval: float = _POLL_SECONDS) -> Trial:
        """Wait for its first trial; StoreError where it ends without one."""
        while not (trials := self.list_trials()):
            if self._row.state.ended:
                raise StoreError(f"experiment {self.id} ended without a trial; see: det show {self.id}")
            time.sleep(interval)
        return trials[0]

    def pause(self) -> None:
        """Ask its driver to save and pause; return at once."""
        self._ask("pause")

    def cancel(self) -> None:
        """Ask its driver to save and end it for good."""
        self._ask("cancel")

    def kill(self) -> None:
        """Ask its driver to end it at once, without saving."""
        self._ask("kill")

    def activate(self) -> None:
        """Go on with it, in a driver of its own in the background, which has it when this returns."""
        with self._home.writer() as store:
            reopen(store, self.id)
        with self._home.reader() as store:
            start_driver(store, self._home.path, self.id, self._home.environ)

    def archive(self) -> None:
        """Leave it out of listings; StoreError unless it has ended."""
        with self._home.writer() as store:
            state = store.experiments.get(self.id).state
            if not state.ended:
                raise StoreError(f"experiment {self.id} is {state.lower()}; only one that has ended can be archived")
            store.experiments.update(self.id, archived=True)

    def unarchive(self) -> None:
        """Show it in listings again."""
        with self._home.writer() as store:
            store.experiments.update(self.id, archived=False)

    def fork(self, config: str | Path | Mapping[str, Any] | None = None, *, start: bool = True) -> Experiment:
        """Make another of its code, with another configuration, as `Client.create_experiment` takes it, or the same."""
        with self._home.reader() as store:
            row, code = store.experiments.get(self.id), store.code_dir(self.id)
        made = self._home.make(to_builtins(from_json(row.config)) if config is None else config, code, self.name)
        other = Experiment(self._home, made)
        if start:
            other.activate()
        return other

    def delete(self, *, keep_checkpoints: bool = False) -> list[str]:
        """Delete it and all that came of it, its checkpoints too unless they are to be kept.

        Returns the uuids of those checkpoints that stay, as trials of other experiments start from them. Raises
        ExperimentBusy while it is driven.
        """
        with self._home.writer() as store, store.lock(self.id):
            dismiss(store, self.id, at_once=True)
            rows = [] if keep_checkpoints else store.checkpoints.list(experiment_id=self.id)
            needed = store.checkpoints.elsewhere(self.id) if rows else set()
            doomed = [row.uuid for row in rows if row.uuid not in needed and row.state is not CheckpointState.DELETED]
            if doomed:
                config = from_json(store.experiments.get(self.id).config, extensions=extensions_of(self._home.plugins))
                storage = self._home.plugins.storage_of(config, self._home.path / "checkpoints")
                for uuid in doomed:
                    storage.delete(uuid)
                    store.checkpoints.mark_deleted(uuid)
            store.experiments.delete(self.id)
        return sorted(needed)

    def export(self, file: str | Path, *, checkpoints: bool = True) -> int:
        """Write it to a tar file, with the checkpoints that lie in the home, for `Client.import_experiment`; return how many."""
        with self._home.writer() as store:
            return export_experiment(store, self.id, Path(file), checkpoints=checkpoints)

    def _ask(self, kind: str) -> None:
        with self._home.writer() as store:
            ask(store, self.id, kind)

    def _repr_html_(self) -> str:
        """What a notebook shows of it: how it stands, and its best trials."""
        with self._home.reader() as store:
            return as_html(store, self.id)

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={json.dumps(self.name)})"


class Trial(TrialReports):
    """One choice of hyperparameters of an experiment."""

    def __init__(self, home: Home, row: TrialRow) -> None:
        super().__init__(home, row)
        self.trial_id = row.id
        self.experiment_id = row.experiment_id
        self.hparams = dict(row.hparams)

    @property
    def state(self) -> str:
        """PREPARING, QUEUED, RUNNING, WAITING, PAUSED, COMPLETED, ERROR, CANCELED or INVALID_HP."""
        return str(self._row.state)

    @property
    def batches(self) -> int:
        """How many batches it has trained."""
        return self._row.batches

    def cancel(self) -> None:
        """Have its driver end it for good, with a checkpoint; the search goes on without it."""
        with self._home.writer() as store:
            give_up(store, self.id, now=False)

    def kill(self) -> None:
        """Have its driver end it for good, at once; the search goes on without it."""
        with self._home.writer() as store:
            give_up(store, self.id, now=True)

    @property
    def seconds(self) -> float:
        """How long it has taken since its start, until now where it has not ended; 0 before that."""
        return 0.0 if (row := self._row).started is None else (row.ended or time.time()) - row.started

    @property
    def best_metric(self) -> float | None:
        """The best value of the searcher's metric so far."""
        return self._row.best_metric

    def get_experiment(self) -> Experiment:
        """Return the experiment that it is of."""
        with self._home.reader() as store:
            return Experiment(self._home, store.experiments.get(self.experiment_id))

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints that exist, the latest first."""
        with self._home.reader() as store:
            mine = [r for r in store.checkpoints.list(trial_id=self.id) if r.state is CheckpointState.COMPLETED]
        return [Checkpoint(self._home, row) for row in sorted(mine, key=lambda r: r.batches, reverse=True)]

    def select_checkpoint(self, latest: bool = False, best: bool = False, uuid: str | None = None) -> Checkpoint:
        """Return one checkpoint: the latest, the best by the searcher's metric, or that with the uuid.

        Raises ValueError unless exactly one is asked for, and CheckpointError where there is none.
        """
        if [latest, best, uuid is not None].count(True) != 1:
            raise ValueError("give exactly one of latest, best and uuid")
        found = self.list_checkpoints()
        if uuid is not None:
            found = [c for c in found if c.uuid == uuid]
        elif best:
            smaller = self.get_experiment().smaller_is_better
            measured = [c for c in found if c.metric is not None]
            found = sorted(measured, key=lambda c: (c.metric or 0.0) * (1 if smaller else -1))
        if not found:
            what = f"checkpoint {uuid}" if uuid else f"{'best' if best else 'latest'} checkpoint"
            raise CheckpointError(f"trial {self.id} has no {what}; list_checkpoints() shows those that it has")
        return found[0]

    def top_checkpoint(self) -> Checkpoint:
        """Return the best checkpoint by the searcher's metric."""
        return self.select_checkpoint(best=True)

    @property
    def _row(self) -> TrialRow:
        with self._home.reader() as store:
            return store.trials.get(self.id)

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, hparams={self.hparams!r})"
