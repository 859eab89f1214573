"""One experiment as MLflow keeps it: a run for each trial, however often that is interrupted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from .background import Background
from .settings import Settings

WAIT_SECONDS = 60.0
STATUS = {"completed": "FINISHED", "user_stopped": "FINISHED", "preempted": "SCHEDULED"}
AT_THE_END = {"COMPLETED": "FINISHED", "CANCELED": "KILLED", "ERROR": "FAILED"}


class Recorder:
    """Writes to MLflow in the background.

    Parameters, metrics, the latest checkpoint, logs, and how a trial ended.
    """

    def __init__(self, experiment: Any, settings: Settings) -> None:
        self._home, self._name = str(experiment.directory), settings.experiment or experiment.name
        self._settings, self._background = settings, Background()
        self._client_made: MlflowClient | None = None
        self._runs: dict[int, str] = {}
        self._waiting: set[int] = set()

    def starts(self, trial: Any) -> None:
        """A run of the trial starts, its first or a further one."""
        self._background.do(lambda: self._start(trial.id, dict(trial.hparams)))

    def reports(self, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """The trial has reported; what is no number is left out."""
        now = int(time.time() * 1000)
        found = [
            Metric(f"{group}/{name}", float(value), now, batches)
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and name != "batches"
        ]
        self._background.do(lambda: self._client().log_batch(self._runs[trial.id], metrics=found))

    def saves(self, trial: Any, checkpoint: Any) -> None:
        """The trial has a new checkpoint."""
        tags = [
            RunTag("det.checkpoint", checkpoint.uuid),
            RunTag("det.checkpoint.batches", str(checkpoint.batches)),
        ]
        self._background.do(lambda: self._client().log_batch(self._runs[trial.id], tags=tags))

    def ends(self, trial: Any, run: Any, outcome: str) -> None:
        """A run of the trial has ended."""
        log_dir = Path(run.log_dir) if self._settings.logs else None
        self._background.do(lambda: self._end(trial.id, outcome, run.number, log_dir))

    def close(self, state: str) -> None:
        """The experiment ends, or pauses."""
        self._background.do(lambda: self._end_waiting(state))
        self._background.close(WAIT_SECONDS)

    # In the background

    def _client(self) -> MlflowClient:
        if self._client_made is None:
            self._client_made = MlflowClient(tracking_uri=self._settings.tracking_uri)
        return self._client_made

    def _start(self, trial: int, hparams: Mapping[str, Any]) -> None:
        client = self._client()
        known = self._run_of(client, trial)
        if known is None:
            tags = {
                "mlflow.runName": f"trial {trial}",
                "det.experiment": self._home,
                "det.trial": str(trial),
            }
            known = client.create_run(self._experiment(client), tags=tags)
            params = [Param(name, str(value)) for name, value in flat(hparams)]
            client.log_batch(known.info.run_id, params=params)
        self._runs[trial] = known.info.run_id
        self._waiting.discard(trial)
        client.update_run(known.info.run_id, status="RUNNING")

    def _experiment(self, client: MlflowClient) -> str:
        found = client.get_experiment_by_name(self._name)
        if found is not None:
            return str(found.experiment_id)
        return str(
            client.create_experiment(self._name, artifact_location=self._settings.artifact_location)
        )

    def _run_of(self, client: MlflowClient, trial: int) -> Run | None:
        """Return the run of a trial that an earlier driver may have begun."""
        query = f"tags.`det.experiment` = '{self._home}' and tags.`det.trial` = '{trial}'"
        found = client.search_runs([self._experiment(client)], query, max_results=1)
        return found[0] if found else None

    def _end(self, trial: int, outcome: str, number: int, log_dir: Path | None) -> None:
        status = STATUS.get(outcome, "FAILED")
        self._client().set_tag(self._runs[trial], "det.outcome", outcome)
        self._client().set_terminated(self._runs[trial], status)
        if status == "SCHEDULED":
            self._waiting.add(trial)
        if log_dir is not None and log_dir.is_dir():
            self._client().log_artifacts(self._runs[trial], str(log_dir), f"logs/run-{number}")

    def _end_waiting(self, state: str) -> None:
        for trial in self._waiting if state in AT_THE_END else ():
            self._client().set_terminated(self._runs[trial], AT_THE_END[state])


def flat(hparams: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield hyperparameters, nested ones as `outer.inner`."""
    for name, value in hparams.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
