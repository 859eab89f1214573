"""Making an experiment that has ended ready to go on."""

from __future__ import annotations

from det_core.config import Single, from_json
from det_core.errors import StoreError

from ..store import ExperimentState, Store, TrialState
from . import _events as events


def reopen(store: Store, experiment_id: int) -> None:
    """Check that an experiment can go on; the failed trial of a single search is taken up again.

    Raises StoreError for one that is completed or canceled, and for a failed search, whose other trials went on
    without those that failed.
    """
    experiment = store.experiments.get(experiment_id)
    if experiment.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED):
        return
    if experiment.state is not ExperimentState.ERROR:
        raise StoreError(
            f"experiment {experiment_id} is {experiment.state.lower()}; start another from its checkpoints with "
            "searcher.source_trial_id"
        )
    with store.lock(experiment_id), store.transaction():
        failed = [t for t in store.trials.list(experiment_id) if t.state is TrialState.ERROR]
        searcher = from_json(experiment.config).searcher
        if failed and not isinstance(searcher, Single):
            raise StoreError(
                f"experiment {experiment_id} is a search whose trials failed; mend them and start it again with det run"
            )
        for trial in failed:
            store.journal.append(experiment_id, events.encode(events.Reopened(trial.request)))
            store.trials.update(trial.id, state=TrialState.PAUSED, restarts=0, ended=None, exit_reason=None)


__all__ = ["reopen"]
