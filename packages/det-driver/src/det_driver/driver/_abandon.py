"""What an experiment is left as when its driver cannot go on."""

from __future__ import annotations

import time

from ..store import ExperimentState, Store, TrialState


def abandon(store: Store, experiment_id: int) -> None:
    """Record that nobody drives the experiment, and that its processes are gone; it may be resumed when it is mended."""
    with store.transaction():
        store.experiments.update(experiment_id, state=ExperimentState.ERROR, ended=time.time(), pid=None, boot=None)
        store.slots.stop_waiting(experiment_id)
        for trial in store.trials.list(experiment_id):
            if not trial.state.ended:
                store.trials.update(trial.id, state=TrialState.PAUSED)
                for run in store.runs.list(trial.id):
                    if run.ended is None:
                        store.runs.end(run.id, "abandoned")
