"""An experiment finds on a cluster what it finds on this machine.

The same trials, decisions and metrics.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project
from tests.support.clusters.searches import Searches, ended, on_each_engine

from det_driver.driver._search import decode_event
from det_driver.store import Store

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"
# One trial at a time, as which one is promoted depends on who has finished first.
ASHA = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters:
  lr: {type: log, minval: -3, maxval: 0}
  momentum: {type: double, minval: 0, maxval: 0.99}
  hidden: {type: int, minval: 8, maxval: 64}
  dropout: 0.2
  global_batch_size: 64
  workers: 0
searcher: {name: adaptive_asha, metric: accuracy, smaller_is_better: false, max_trials: 24, max_length: {epochs: 16}}
resources: {max_slots: 1}
reproducibility: {experiment_seed: 1}
"""
TWO_RANKS = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {{lr: 0.1, momentum: 0.9, hidden: 64, dropout: 0.2, global_batch_size: 64, workers: 0}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{epochs: 3}}}}
min_validation_period: {{epochs: 1}}
scheduling_unit: 10
distributed: {{backend: {backend}}}
resources: {{slots_per_trial: 2}}
reproducibility: {{experiment_seed: 1}}
"""


@pytest.fixture
def clustered(request: pytest.FixtureRequest) -> Searches:
    """Searches with the example on the cluster that the test is about."""
    searches: Searches = request.getfixturevalue(request.param)
    shutil.copy(EXAMPLE / "model_def.py", searches.project.det.cwd)
    return searches


def told(project: Project, experiment: int) -> Any:
    """Return what the searcher heard, in its order, and each trial with all that was measured."""
    with Store.reader(project.det.home) as store:
        events = [decode_event(event.data) for event in store.journal.read(experiment)]
        trials = {
            trial.request: (
                trial.hparams,
                trial.seed,
                str(trial.state),
                trial.batches,
                [
                    (each.group, each.batches, dict(each.values))
                    for each in store.metrics.read(trial_id=trial.id)
                ],
            )
            for trial in store.trials.list(experiment)
        }
    return events, trials


def here_and_there(searches: Searches, text: str, slots: int, **settings: Any) -> tuple[Any, Any]:
    """Run an experiment on the cluster and on this machine; return what is told of both."""
    project, text = searches.project, searches.stored(text)
    there, here = (project.det.cwd / f"{name}.yaml" for name in ("there", "here"))
    there.write_text(f"{text}engine: {searches.engine(**settings)}\n")
    here.write_text(text)
    ended(searches.start("run", there, "--quiet", lease=20.0), seconds=600)
    ended(project.det.start("run", here, "--quiet", env=project.environ(slots)), seconds=600)
    searches.no_job_is_left()
    return told(project, 1), told(project, 2)


@on_each_engine()
def test_search_of_24_trials_decides_the_same_on_a_cluster(clustered: Searches) -> None:
    (there, trials), (here, same) = here_and_there(clustered, ASHA, 1)
    assert len(trials) == 24
    assert len({batches for _, _, _, batches, _ in trials.values()}) > 1  # some were stopped early
    assert trials == same
    assert there == here


@pytest.mark.parametrize("backend", ["native", "horovod"])
@on_each_engine()
def test_trial_on_two_machines_has_the_losses_of_one_machine(
    clustered: Searches, backend: str
) -> None:
    if backend == "horovod":
        pytest.importorskip("horovod.torch")
    text = TWO_RANKS.format(backend=backend)
    (_, there), (_, here) = here_and_there(clustered, text, 2, slots_per_node=1)
    assert [len(metrics) for *_, metrics in there.values()] != [0]
    assert there == here
