"""The way into the local store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..store import import_experiment
from ._checkpoint import Checkpoint, Home
from ._experiment import Experiment, Trial
from ._watch import Watch


class Client:
    """The experiments of one store: that in the directory `home`, by default `$DET_HOME`, or `~/.det`."""

    def __init__(self, home: str | Path | None = None) -> None:
        chosen = Path(home) if home is not None else Path(os.environ.get("DET_HOME") or Path.home() / ".det")
        self._home = Home(chosen.expanduser().absolute(), dict(os.environ))

    def create_experiment(
        self, config: str | Path | Mapping[str, Any], model_dir: str | Path | None = None, *, start: bool = True
    ) -> Experiment:
        """Make an experiment of a configuration (a mapping, or the path of a YAML file) and the code in `model_dir`.

        It runs in the background, unless `start` is false: then it is paused. Raises ConfigError for what is wrong with the
        configuration.
        """
        source, name = config, "experiment"
        if not isinstance(config, Mapping):
            source, name = Path(config), Path(config).absolute().parent.name
        made = self._home.make(source, Path(model_dir) if model_dir is not None else None, name)
        experiment = Experiment(self._home, made)
        if start:
            experiment.activate()
        return experiment

    def watch(self, seconds: float = 0.25) -> Watch:
        """Return what yields, when it is iterated over, what changes in the home; it looks every so often."""
        return Watch(self._home.reader(), seconds)

    def import_experiment(self, file: str | Path) -> Experiment:
        """Take over an experiment that `Experiment.export` wrote, under its own number unless that is taken."""
        with self._home.writer() as store:
            return Experiment(self._home, store.experiments.get(import_experiment(store, Path(file))))

    def list_experiments(self, *, archived: bool | None = False, limit: int | None = None) -> list[Experiment]:
        """Return the experiments, the newest first; `archived` None asks for all."""
        with self._home.reader() as store:
            found = store.experiments.list(archived=archived, limit=limit)
            return [Experiment(self._home, each.experiment) for each in found]

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment; StoreError where there is none of that number."""
        with self._home.reader() as store:
            return Experiment(self._home, store.experiments.get(experiment_id))

    def get_trial(self, trial_id: int) -> Trial:
        """Return a trial; StoreError where there is none of that number."""
        with self._home.reader() as store:
            return Trial(self._home, store.trials.get(trial_id))

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint by its uuid, or the beginning of it; StoreError where there is none."""
        with self._home.reader() as store:
            return Checkpoint(self._home, store.checkpoints.get(uuid))
