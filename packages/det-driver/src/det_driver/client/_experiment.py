"""Experiments and trials, which refer to each other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from det_core.errors import CheckpointError, StoreError

from ..config import mask_text
from ..store import CheckpointRow, ExperimentState, Metric, TrialRow, export_experiment
from . import _calls
from ._checkpoint import Checkpoint
from ._home import AnyHome, check_name
from ._notebook import MOST_ROWS, StatusLine, as_html
from ._reading import LogPart, Series
from ._searched import Searched

_LOG_BLOCK = 1 << 20


def _rank(
    smaller_is_better: bool,
) -> Callable[[CheckpointRow | Checkpoint], tuple[bool, float, int, int]]:
    """Return the key that sorts the best first, and equal ones by trial and position."""
    sign = 1 if smaller_is_better else -1
    return lambda each: (
        each.metric is None,
        sign * (each.metric or 0.0),
        each.trial_id,
        each.batches,
    )


class TrialReports:
    """One trial's metrics and logs."""

    def __init__(self, home: AnyHome, row: TrialRow) -> None:
        self._home = home
        self.id = row.id

    def iter_metrics(self, group: str | None = None) -> Iterator[Metric]:
        """Yield the reports of one group (`training`, `validation`, …) or of all groups, in order.

        Each report has `group`, `batches` (the position), `values` (by name), `time` (Unix
        seconds), `trial_id` and `run_id`. If a later run reported a position again, only its report
        is included.
        """
        first = 0
        while found := self._home.call(_calls.reports, self.id, group, first):
            yield from found
            first = found[-1].batches + 1

    def series(
        self,
        metric: str,
        group: str = "training",
        width: int = 1000,
        range: tuple[float, float] | None = None,
        by: Literal["batches", "epochs", "seconds"] = "batches",
    ) -> Series:
        """Return one metric as a curve of at most 2 `width` + 2 points, in a range of `by`.

        The range is divided into `width` parts of equal length. The curve keeps the least and the
        greatest value of each part, and the first and the last value of all. Epochs are the
        reported epochs. Seconds count from the trial's start.
        """
        return self._home.call(_calls.curve, self.id, metric, group, width, range, by)

    def logs(self) -> Iterator[str]:
        """Yield the lines of the logs of its processes, run by run and rank by rank."""
        for run, ranks in self._home.call(_calls.log_files, self.id).items():
            for rank in ranks:
                end, rest = 0, ""
                while True:
                    part = self.log(rank, end, run=run, limit=_LOG_BLOCK)
                    *lines, rest = f"{rest}{part.text}".split("\n")
                    yield from (f"{line}\n" for line in lines)
                    if part.end in (end, part.size):
                        break
                    end = part.end
                if rest:
                    yield rest

    def log_files(self) -> dict[int, dict[int, Path]]:
        """Return the existing log files by the number of the run (from 1) and by rank.

        The files are on the machine of the home.
        """
        found = self._home.call(_calls.log_files, self.id)
        return {
            run: {rank: Path(file) for rank, file in ranks.items()} for run, ranks in found.items()
        }

    def log(
        self, rank: int = 0, offset: int = 0, *, run: int | None = None, limit: int = 65536
    ) -> LogPart:
        """Return about `limit` bytes of the log of a rank in a run, in whole lines.

        `run` is the last run by default. The part begins at the byte `offset`. A negative offset
        counts from the end. The part is empty where the rank has written nothing. Raises StoreError
        if the rank has no log.
        """
        return self._home.call(_calls.log, self.id, rank, offset, run, limit)


_POLL_SECONDS = 0.2


class Experiment(Searched):
    """A configuration with the user's code, and its trials and checkpoints."""

    # Results
    def list_trials(self) -> list[Trial]:
        """Return its trials, in the order of their creation."""
        return [Trial(self._home, row) for row in self._home.call(_calls.trials, self.id)]

    # The name in earlier APIs.
    get_trials = list_trials

    def list_checkpoints(self, max_results: int | None = None) -> list[Checkpoint]:
        """Return the existing checkpoints, the best by the searcher's metric first.

        Among equal metrics, the trial with the lower number comes first, and of one trial the
        earlier position. Checkpoints without the metric come last.
        """
        rows = self._home.call(_calls.checkpoints, experiment_id=self.id)
        rows.sort(key=_rank(self.smaller_is_better))
        return [Checkpoint(self._home, row) for row in rows[:max_results]]

    def top_checkpoint(self) -> Checkpoint:
        """Return the best checkpoint. Raises CheckpointError if there is none."""
        best = self.list_checkpoints(1)
        if not best:
            raise CheckpointError(
                f"experiment {self.id} has no checkpoint; wait for one, or see det logs {self.id}"
            )
        return best[0]

    def top_n_checkpoints(self, limit: int) -> list[Checkpoint]:
        """Return the best checkpoint of each of the best trials, at most `limit`."""
        of_trials: dict[int, Checkpoint] = {}
        for checkpoint in self.list_checkpoints():
            of_trials.setdefault(checkpoint.trial_id, checkpoint)
        return list(of_trials.values())[:limit]

    def download_code(self, output_dir: str | Path | None = None) -> str:
        """Copy its code to a directory, by default `experiment-ID`, and return the path."""
        target = Path(output_dir) if output_dir is not None else Path(f"experiment-{self.id}")
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty; name a directory that does not exist yet")
        target.mkdir(parents=True, exist_ok=True)
        for name in self._home.call(_calls.code_names, self.id):
            content, is_executable = self._home.call(_calls.code_file, self.id, name)
            file = target / check_name(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            if is_executable:
                file.chmod(file.stat().st_mode | 0o111)
        return str(target)

    # Control
    def wait(
        self, polling_interval: float = _POLL_SECONDS, progress: bool | None = None
    ) -> ExperimentState:
        """Wait until it has ended or is paused, and return its state.

        With `progress`, by default in notebooks, a status line shows the progress. Raises
        StoreError if its driver is gone.
        """
        line = StatusLine("ipykernel" in sys.modules if progress is None else progress)
        while True:
            summary, gone = self._home.call(_calls.summary, self.id)
            line.write(summary)
            if summary.experiment.state is not ExperimentState.ACTIVE:
                line.close()
                return summary.experiment.state
            if gone:
                line.close()
                raise StoreError(
                    summary.experiment.abandoned
                    if summary.experiment.outside
                    else f"the driver of experiment {self.id} is gone; go on with activate()"
                )
            time.sleep(polling_interval)

    def await_first_trial(self, interval: float = _POLL_SECONDS) -> Trial:
        """Wait for its first trial. Raises StoreError if it ends without one."""
        while not (trials := self.list_trials()):
            if self._row.state.ended:
                raise StoreError(
                    f"experiment {self.id} ended without a trial; see: det show {self.id}"
                )
            time.sleep(interval)
        return trials[0]

    def pause(self) -> None:
        """Ask its driver to save checkpoints and pause. Does not wait for that."""
        self._home.call(_calls.send, self.id, "pause")

    def cancel(self) -> None:
        """Ask its driver to save checkpoints and cancel it. It cannot be resumed."""
        self._home.call(_calls.send, self.id, "cancel")

    def kill(self) -> None:
        """Ask its driver to end it at once, without checkpoints."""
        self._home.call(_calls.send, self.id, "kill")

    def activate(self) -> None:
        """Resume it with a driver in the background, which has started when this returns."""
        self._home.call(_calls.activate, self.id)

    def archive(self) -> None:
        """Hide it in listings. Raises StoreError if it has not ended."""
        self._home.call(_calls.archive, self.id, True)

    def unarchive(self) -> None:
        """Show it in listings again."""
        self._home.call(_calls.archive, self.id, False)

    def fork(
        self, config: str | Path | Mapping[str, Any] | None = None, *, start: bool = True
    ) -> Experiment:
        """Make another experiment with the same code, and start it unless `start` is false.

        `config` is as for `Client.create_experiment`, by default the configuration of this
        experiment.
        """
        made = self._home.fork(self._row, config, start=start)
        return Experiment(self._home, self._home.call(_calls.experiment, made))

    def delete(self, *, keep_checkpoints: bool = False) -> list[str]:
        """Delete it with its trials and, unless `keep_checkpoints`, its checkpoints.

        Returns the uuids of the checkpoints that stay for one of two reasons:

        - Trials of other experiments start from them.
        - They came with an import, which has not put them into the home.

        Raises ExperimentBusy while it is driven, and StoreError if a version of a model has one of
        its checkpoints. Nothing is deleted then.
        """
        return self._home.call(_calls.delete, self.id, keep_checkpoints)

    def check_deletable(self) -> None:
        """Raise the error with which `delete` would refuse: it is driven, or a model needs it."""
        self._home.call(_calls.check_deletable, self.id)

    def export(self, file: str | Path, *, checkpoints: bool = True) -> int:
        """Write it to the tar file `file`, for `Client.import_experiment`.

        Returns the number of checkpoints in the file: those that are in the home, or 0 if
        `checkpoints` is false. Secrets of the configuration are left out. Raises StoreError if the
        file exists, and ExperimentBusy while it is driven.
        """
        with self._home.local("Experiment.export").writer() as store:
            return export_experiment(store, self.id, Path(file), mask_text, checkpoints=checkpoints)

    def _repr_html_(self) -> str:
        """Return its HTML for a notebook: its state, and its best trials."""
        summary, _ = self._home.call(_calls.summary, self.id)
        return as_html(summary, self._home.call(_calls.trials, self.id, True, MOST_ROWS))

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={json.dumps(self.name)})"


class Trial(TrialReports):
    """One choice of hyperparameters of an experiment."""

    def __init__(self, home: AnyHome, row: TrialRow) -> None:
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
        """The number of batches that it has trained."""
        return self._row.batches

    def cancel(self) -> None:
        """Ask its driver to cancel it with a checkpoint. The search continues without it."""
        self._home.call(_calls.cancel_trial, self.id, False)

    def kill(self) -> None:
        """Ask its driver to end it at once. The search continues without it."""
        self._home.call(_calls.cancel_trial, self.id, True)

    @property
    def seconds(self) -> float:
        """The time from its start to its end, or to now. 0 before its start."""
        return (
            0.0 if (row := self._row).started is None else (row.ended or time.time()) - row.started
        )

    @property
    def best_metric(self) -> float | None:
        """The best value of the searcher's metric so far."""
        return self._row.best_metric

    def get_experiment(self) -> Experiment:
        """Return its experiment."""
        return Experiment(self._home, self._home.call(_calls.experiment, self.experiment_id))

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return its existing checkpoints, the latest first."""
        mine = self._home.call(_calls.checkpoints, trial_id=self.id)
        return [
            Checkpoint(self._home, row)
            for row in sorted(mine, key=lambda r: r.batches, reverse=True)
        ]

    def select_checkpoint(
        self, latest: bool = False, best: bool = False, uuid: str | None = None
    ) -> Checkpoint:
        """Return one checkpoint: the latest, the best by the searcher's metric, or one by its uuid.

        Raises ValueError unless exactly one of these is given, and CheckpointError if there is
        none.
        """
        if [latest, best, uuid is not None].count(True) != 1:
            raise ValueError("give exactly one of latest, best and uuid")
        found = self.list_checkpoints()
        if uuid is not None:
            found = [c for c in found if c.uuid == uuid]
        elif best:
            measured = [c for c in found if c.metric is not None]
            found = sorted(measured, key=_rank(self.get_experiment().smaller_is_better))
        if not found:
            what = f"checkpoint {uuid}" if uuid else f"{'best' if best else 'latest'} checkpoint"
            raise CheckpointError(
                f"trial {self.id} has no {what}; list_checkpoints() shows those that it has"
            )
        return found[0]

    def top_checkpoint(self) -> Checkpoint:
        """Return the best checkpoint by the searcher's metric."""
        return self.select_checkpoint(best=True)

    @property
    def _row(self) -> TrialRow:
        return self._home.call(_calls.trial, self.id)

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, hparams={self.hparams!r})"
