"""One trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from det_core.errors import CheckpointError

from ..store import CheckpointState, Metric
from ..store import TrialRow as Row
from ._checkpoint import Checkpoint
from ._home import Home

if TYPE_CHECKING:
    from ._experiment import Experiment


class Trial:
    """One choice of hyperparameters of an experiment."""

    def __init__(self, home: Home, row: Row) -> None:
        self._home = home
        self.id = row.id
        self.trial_id = row.id
        self.experiment_id = row.experiment_id
        self.hparams = dict(row.hparams)

    @property
    def state(self) -> str:
        """QUEUED, RUNNING, WAITING, PAUSED, COMPLETED, ERROR, CANCELED or INVALID_HP."""
        return str(self._row.state)

    @property
    def batches(self) -> int:
        """How many batches it has trained."""
        return self._row.batches

    @property
    def best_metric(self) -> float | None:
        """The best value of the searcher's metric so far."""
        return self._row.best_metric

    def get_experiment(self) -> Experiment:
        """Return the experiment that it is of."""
        from ._experiment import Experiment

        with self._home.reader() as store:
            return Experiment(self._home, store.experiments.get(self.experiment_id))

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints that exist, the latest first."""
        with self._home.reader() as store:
            rows = store.checkpoints.list(experiment_id=self.experiment_id)
        mine = [r for r in rows if r.trial_id == self.id and r.state is CheckpointState.COMPLETED]
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

    def iter_metrics(self, group: str | None = None) -> Iterator[Metric]:
        """Yield what it reported, in order, of one group (`training`, `validation`, …) or of all."""
        with self._home.reader() as store:
            yield from store.metrics.read(trial_id=self.id, group=group)

    def logs(self) -> Iterator[str]:
        """Yield the lines that its processes wrote, run by run, rank by rank."""
        with self._home.reader() as store:
            runs = store.runs.list(self.id)
        for run in runs:
            for file in sorted(run.log_dir.glob("rank-*.log"), key=lambda f: (len(f.name), f.name)):
                with file.open(errors="replace") as lines:
                    yield from lines

    @property
    def _row(self) -> Row:
        with self._home.reader() as store:
            return store.trials.get(self.id)

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, hparams={self.hparams!r})"
