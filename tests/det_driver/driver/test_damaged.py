"""A trial whose newest checkpoint is damaged goes on from the newest sound one.

Or from one that is named.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_endings import Bench

from det_core import Outcome, StoreError
from det_core.checkpoint.manifest import WAY_OUT
from det_driver.driver import resume_from_checkpoint
from det_driver.store import CheckpointState, Store, TrialState

MODEL = """
    import os
    from pathlib import Path
    from det_testing.fakes import OwnedOneVar

    class Trial(OwnedOneVar):
        def build_data(self):
            return Failing(super().build_data())

    class Failing:
        def __init__(self, data):
            self.data = data
        def __getattr__(self, name):
            return getattr(self.data, name)
        def records(self, batch):
            if batch == 35 and "FAILS" in os.environ:
                raise RuntimeError("fails")
            if batch == 35 and "DAMAGES" in os.environ and os.environ["DET_TRIAL_ID"] == "1":
                (file,) = Path(os.environ["DET_CHECKPOINT_ROOT"]).glob("*/loop.json")
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)
                raise RuntimeError("fails")
            return self.data.records(batch)
"""
SINGLE = """
searcher: {name: single, metric: val_loss, max_length: 40}
min_checkpoint_period: 10
min_validation_period: 10
checkpoint_policy: none
checkpoint_storage: {save_trial_latest: 3}
"""


def checkpoints(home: Path) -> dict[int, Any]:
    with Store.reader(home) as store:
        return {row.batches: row for row in store.checkpoints.list(experiment_id=1)}


def flip(home: Path, uuid: str) -> None:
    """Flip a bit of what a checkpoint holds."""
    file = home / "checkpoints" / uuid / "loop.json"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.process
def test_trial_resumes_from_its_newest_intact_checkpoint(project: Any) -> None:
    """It fails at batch 35, with checkpoints at 10, 20 and 30.

    A bit of the two newer ones flips.
    """
    project.det.cwd.joinpath("model_def.py").write_text(textwrap.dedent(MODEL))
    text = project.write(SINGLE)
    text.write_text(
        text.read_text().replace("lr: {type: log, minval: -4, maxval: -1, count: 2}", "lr: 0.01")
    )
    project.det("run", text, "--quiet", status=1, env=project.environ(env={"FAILS": "1"}))
    saved = checkpoints(project.det.home)
    for batches in (20, 30):
        flip(project.det.home, saved[batches].uuid)
    again = project.det("resume", "1", status=1, env=project.environ(env={"FAILS": "1"}))
    assert f"it goes on from {saved[20].uuid} (batch 20)" in again.stdout
    assert f"it goes on from {saved[10].uuid} (batch 10)" in again.stdout
    assert [run.first_batch for run in project.runs()[0]] == [0, 30, 20, 10]
    states = {row.uuid: row.state for row in checkpoints(project.det.home).values()}
    assert states.get(saved[30].uuid, CheckpointState.DAMAGED) is CheckpointState.DAMAGED
    flip(project.det.home, saved[20].uuid)  # it is mended
    project.det(
        *("resume", "1", "--trial", "1", "--checkpoint", saved[20].uuid[:8], "--quiet"),
        env=project.environ(),
    )
    assert project.runs()[0][-1].first_batch == 20
    (trial,) = project.outcome().trials
    assert (str(trial.state), trial.batches) == ("COMPLETED", 40)


SEARCH = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": 10}


def test_search_trial_falls_back_and_fails_if_none_is_intact(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        bench = Bench(store, SEARCH, max_restarts=0)
        bench.begin()
        for batches in (3, 6):
            bench.save(batches)
        older, newer = f"{bench.live.active.run.id}-3", f"{bench.live.active.run.id}-6"
        bench.live.active.outcome = Outcome.PREEMPTED
        bench.live.active.preempting = True
        bench.end()
        damage = (
            f"checkpoint {newer}: state.json has the SHA-256 1, 2 expected: it was altered; go on"
            " from an older one"
        )
        assert bench.ends(Outcome.DAMAGED, message=damage) is TrialState.QUEUED
        assert bench.row.latest_checkpoint == older
        assert bench.row.restarts == 0
        assert bench.failures.notices == [
            f"trial {bench.live.id}: {damage.partition(';')[0]}; it goes on from {older} (batch 3)"
        ]
        assert bench.ends(Outcome.DAMAGED, message=damage.replace(newer, older)) is TrialState.ERROR
        assert bench.failures.mistake


@pytest.mark.parametrize(
    ("searcher", "way_out"),
    [
        (
            SEARCH,
            (
                "and the search goes on without this trial: restore its files and start another"
                " experiment with searcher.source_checkpoint_uuid: {uuid}"
            ),
        ),
        (
            SEARCH | {"name": "single"},
            (
                "restore its files and go on with det resume {id} --checkpoint {uuid}, or train"
                " again: det resume {id}"
            ),
        ),
    ],
    ids=["search", "single"],
)
def test_loss_of_the_only_checkpoint_is_reported_with_a_remedy(
    tmp_path: Path, searcher: dict[str, Any], way_out: str
) -> None:
    settings = {
        name: value
        for name, value in searcher.items()
        if searcher["name"] != "single" or name != "max_trials"
    }
    with Store(tmp_path) as store:
        bench = Bench(store, settings)
        bench.begin(outcome=Outcome.PREEMPTED, preempting=True)
        bench.save(3)
        uuid = f"{bench.live.active.run.id}-3"
        bench.end()
        assert (
            bench.ends(Outcome.DAMAGED, message=f"checkpoint {uuid}: it was altered; {WAY_OUT}")
            is TrialState.ERROR
        )
        (said,) = bench.failures.messages
        assert said.startswith(f"trial 1: checkpoint {uuid}: it was altered; no older one is sound")
        assert said.endswith(way_out.format(uuid=uuid, id=bench.state.id))


@pytest.mark.thorough
@pytest.mark.process
def test_search_reports_which_trial_lost_its_only_checkpoint(project: Any) -> None:
    """A bit of it flips as its run fails; what is advised is done, word by word."""
    project.det.cwd.joinpath("model_def.py").write_text(textwrap.dedent(MODEL))
    text = project.write(
        SINGLE.replace("name: single", "name: random, max_trials: 2, max_concurrent_trials: 1")
    )
    only = text.read_text().replace("min_checkpoint_period: 10", "min_checkpoint_period: 30")
    text.write_text(only.replace("max_restarts: 0", "max_restarts: 1"))
    done = project.det("run", text, "--quiet", env=project.environ(slots=1, env={"DAMAGES": "1"}))
    assert "notice: trial 1 failed, and the search went on without it\n" in done.stdout
    assert [str(trial.state) for trial in project.outcome().trials] == ["ERROR", "COMPLETED"]
    advice = re.search(
        r"start another experiment with searcher\.(source_checkpoint_uuid): (\S+)\n", done.stderr
    )
    assert advice, done.stderr
    flip(project.det.home, advice[2])
    text.write_text(
        text.read_text().replace(
            "{name: random, max_trials: 2",
            f"{{{advice[1]}: {advice[2]}, name: random, max_trials: 1",
        )
    )
    project.det("run", text, "--quiet", env=project.environ())
    (trial,) = project.outcome(2).trials
    assert (str(trial.state), trial.batches, trial.source_checkpoint) == (
        "COMPLETED",
        40,
        advice[2],
    )


def test_a_damaged_checkpoint_of_another_trial_has_no_older_one(tmp_path: Path) -> None:
    """A warm start's is named in the configuration; the trial's own are as good as they were."""
    with Store(tmp_path) as store:
        bench = Bench(store, SEARCH, max_restarts=0)
        bench.begin()
        bench.save(3)
        bench.live.active.message, bench.live.active.outcome = (
            "checkpoint 99: it was altered",
            Outcome.DAMAGED,
        )
        assert bench.end() is TrialState.ERROR


def trial_with_checkpoints(store: Store, state: TrialState) -> int:
    id = store.experiments.create(name="x", config="{}", metric="loss").id
    with store.lock(id):
        trial = store.trials.create(id, 0, {}, 1)
        run = store.runs.begin(trial.id, 0, first=True)
        for batches in (3, 6):
            store.checkpoints.record(
                f"{id}-{batches}", trial.id, run.id, batches, storage="{}", size=0
            )
        store.trials.update(trial.id, state=state)
    return id


def test_a_trial_goes_on_from_the_checkpoint_that_is_named(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        mine, other = (trial_with_checkpoints(store, TrialState.PAUSED) for _ in range(2))
        (trial,) = store.trials.list(mine)
        resume_from_checkpoint(store, mine, f"{mine}-3", trial.id)
        assert store.trials.get(trial.id).latest_checkpoint == f"{mine}-3"
        with pytest.raises(
            StoreError,
            match=f"is of trial {trial.id} of experiment {mine}; det checkpoint list {other}",
        ):
            resume_from_checkpoint(store, other, f"{mine}-3")
        with pytest.raises(StoreError, match="is of trial"):
            resume_from_checkpoint(store, mine, f"{mine}-3", trial.id + 1)
        store.checkpoints.mark_deleted(f"{mine}-6")
        with pytest.raises(StoreError, match="its files are deleted"):
            resume_from_checkpoint(store, mine, f"{mine}-6")


def test_a_trial_that_its_search_went_on_without_does_not_go_on(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = trial_with_checkpoints(store, TrialState.ERROR)
        with pytest.raises(
            StoreError,
            match=r"is error, and its search went on without it; .*source_checkpoint_uuid",
        ):
            resume_from_checkpoint(store, id, f"{id}-3")
