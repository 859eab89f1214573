"""An experiment of another system, written at once."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.store import (
    BulkWriter,
    CheckpointState,
    ExperimentState,
    NumberConflict,
    PastExperiment,
    Report,
    Store,
    TrialState,
    bulk_writer,
    export_experiment,
    import_experiment,
)

CONFIG = json.dumps({"name": "old", "searcher": {"name": "single", "metric": "loss"}})


def past(**changes: object) -> PastExperiment:
    known = {
        "name": "old",
        "config": CONFIG,
        "created": 1e9,
        "started": 1e9,
        "ended": 1e9 + 60,
        "metric": "loss",
    }
    return PastExperiment(
        **{**known, "state": ExperimentState.COMPLETED, "progress": 1.0, **changes}
    )


def fill(writer: BulkWriter, wanted: int, count: int = 300) -> None:
    """Write a trial of two runs, the second of which takes back the last report of the first."""
    writer.add_trial(
        wanted,
        hparams={"lr": wanted / 10},
        state=TrialState.COMPLETED,
        seed=7,
        started=1e9,
        ended=1e9 + 9,
    )
    first = writer.add_run(
        wanted, 1, started=1e9, ended=1e9 + 4, outcome="errored", reason="lost a GPU"
    )
    second = writer.add_run(
        wanted, 2, started=1e9 + 5, ended=1e9 + 9, outcome="completed", first_batch=100
    )
    writer.add_reports(
        wanted,
        "training",
        (Report(second, 10 * n, 1e9 + n, {"loss": 1 / n}) for n in range(1, count + 1)),
    )
    writer.add_reports(
        wanted, "training", [Report(first, 120, 1e9 + 3, {"loss": 9.0})], archived=True
    )
    validations = [
        Report(second, 100, 1e9 + 6, {"loss": 0.25}),
        Report(second, 200, 1e9 + 7, {"loss": math.nan}),
    ]
    writer.add_reports(wanted, "validation", validations)
    for batches, state in ((100, CheckpointState.COMPLETED), (200, CheckpointState.DELETED)):
        writer.add_checkpoint(
            *(wanted, f"uuid-{wanted}-{batches}"),
            **{
                "run_id": second,
                "batches": batches,
                "state": state,
                "storage": "s3://b",
                "size": 5,
                "created": 1e9,
            },
        )
    (writer.log_dir(wanted, 2) / "rank-0.log").write_text("line\n")


@contextmanager
def written(
    store: Store, id: int = 5, trials: tuple[int, ...] = (7, 8, 12), **options: bool
) -> Iterator[BulkWriter]:
    with bulk_writer(store, past(), trials, id=id, **options) as writer:
        for trial in trials:
            fill(writer, trial)
        yield writer


def left(store: Store) -> list[str]:
    return sorted(
        path.name for path in (store.home / "experiments").iterdir() if path.name != ".writing.lock"
    )


def test_it_is_read_as_it_was_written(store: Store) -> None:
    with written(store) as writer:
        (writer.directory / "determined.json").write_text("{}")
        assert left(store)[-1] == "5"
        assert store.experiments.list() == []  # nothing of it can be seen

    [summary] = store.experiments.list()
    found = summary.experiment
    assert (found.id, found.name, found.state, found.created, found.ended) == (
        5,
        "old",
        "COMPLETED",
        1e9,
        1e9 + 60,
    )
    assert (summary.best_metric, summary.best_trial) == (0.25, 7)
    trials = store.trials.list(5)
    assert [(t.id, t.request, t.batches, t.runs) for t in trials] == [
        (n, k, 3000, 2) for k, n in enumerate((7, 8, 12))
    ]
    trial = store.trials.get(12)
    assert (trial.best_metric, trial.best_batches, trial.latest_metric, trial.progress) == (
        0.25,
        100,
        None,
        1.0,
    )
    assert (trial.started, trial.ended, trial.seed, trial.hparams) == (1e9, 1e9 + 9, 7, {"lr": 1.2})
    assert trial.latest_checkpoint == "uuid-12-100"
    first, second = store.runs.list(12)
    assert (first.number, first.reason, second.first_batch) == (1, "lost a GPU", 100)
    assert (second.log_dir / "rank-0.log").read_text() == "line\n"
    metrics = [*store.metrics.read(trial_id=12, group="training")]
    assert [(m.batches, m.time, m.values) for m in metrics] == [
        (10 * n, 1e9 + n, {"loss": 1 / n}) for n in range(1, 301)
    ]
    assert [(m.batches, m.run_id) for m in store.metrics.read(trial_id=12, archived=True)] == [
        (120, first.id)
    ]
    assert [row.validation for row in store.checkpoints.list(trial_id=7)][:1] == [{"loss": 0.25}]
    assert store.checkpoints.imported(5) == {
        f"uuid-{t}-{b}" for t in (7, 8, 12) for b in (100, 200)
    }
    assert left(store) == ["5"]


def test_numbers_of_others_stay_theirs(store: Store) -> None:
    with written(store):
        pass
    made = store.experiments.create(name="new", config="{}")
    with store.lock(made.id):
        assert (made.id, store.trials.create(made.id, 0, {}, seed=0).id) == (6, 13)

    for id, trials in ((6, (30,)), (7, (6, 8)), (7, (13,))):
        with pytest.raises(NumberConflict), written(store, id, trials):
            pass
    assert left(store) == ["5", "6"]
    with written(store, 7, (9, 11)):  # between those of experiment 5
        pass
    with written(store, 6, (8, 30), renumber=True) as writer:
        assert (writer.id, writer.trials) == (8, {8: 14, 30: 15})
    assert store.trials.get(15).hparams == {"lr": 3.0}
    assert store.trials.get(15).experiment_id == 8
    before = store.index.experiment_of(11), store.index.experiment_of(12)
    store.index.path.unlink()
    assert (store.index.experiment_of(11), store.index.experiment_of(12)) == before == (7, 5)


def test_one_that_fails_leaves_nothing_and_no_number(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), written(store):
        _ = 1 / 0
    assert left(store) == []
    with written(store) as writer:
        assert (writer.id, [*writer.trials.values()]) == (5, [7, 8, 12])


def test_many_are_written_with_few_files_open(store: Store) -> None:
    store.experiments.list()
    before = len(os.listdir("/proc/self/fd"))
    for id in range(1, 4):
        with written(store, id, (id,)):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # the index's, by now
    assert [summary.experiment.id for summary in store.experiments.list()] == [3, 2, 1]


def test_one_without_trials_and_one_that_is_archived(store: Store) -> None:
    with bulk_writer(store, past(archived=True, labels=("a", "b")), [], id=3):
        pass
    assert store.experiments.list() == []
    assert store.experiments.get(3).labels == ("a", "b")


def test_reports_out_of_order_are_refused(store: Store) -> None:
    with bulk_writer(store, past(), [1], id=1) as writer:
        writer.add_trial(1, hparams={}, state=TrialState.COMPLETED)
        with pytest.raises(ValueError, match="at 10 after 10"):
            writer.add_reports(1, "training", [Report(1, 10, 0.0, {}), Report(1, 10, 0.0, {})])


def test_an_index_that_cannot_be_written_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.index, "attempt", lambda act: None)
    with pytest.raises(StoreError, match="gives no numbers for trials"), written(store):
        pass


def test_it_can_be_exported_and_imported_again(store: Store, tmp_path: Path) -> None:
    with written(store):
        pass
    export_experiment(store, 5, tmp_path / "file")
    with Store(tmp_path / "other") as other:
        assert import_experiment(other, tmp_path / "file") == 5
        here, there = (repr([*each.metrics.read(experiment_id=5)]) for each in (store, other))
        assert here == there
        assert other.trials.list(5) == store.trials.list(5)


values = st.dictionaries(
    st.text(max_size=4),
    st.one_of(
        st.floats(), st.integers(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.booleans(), st.none(),
        st.lists(st.floats(allow_nan=False), max_size=2),
    ),
    max_size=4,
)  # fmt: skip


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**17), values), unique_by=lambda pair: pair[0], max_size=40
    ),
    st.text(),
)
def test_any_values_come_back(
    tmp_path: Path, reports: list[tuple[int, dict[str, object]]], group: str
) -> None:
    group = group.encode(errors="replace").decode()
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    given_ = [
        Report(1, at, float(at), each) for at, each in sorted(reports, key=lambda pair: pair[0])
    ]
    with Store(home) as store:
        with bulk_writer(store, past(), [1], id=1) as writer:
            writer.add_trial(1, hparams={}, state=TrialState.COMPLETED)
            writer.add_run(1, 1, started=0)
            assert writer.add_reports(1, group, given_) == len(given_)
        found = [
            Report(m.run_id, m.batches, m.time, m.values)
            for m in store.metrics.read(trial_id=1, group=group)
        ]
    assert repr(found) == repr(given_)


WRITE = """
import sys
from pathlib import Path
from det_driver.store import Store
from tests.det_driver.store.test_bulk import written
with Store(Path(sys.argv[1])) as store:
    print("ready", flush=True)
    for id in range(1, 9):
        if not store.experiment_dir(id).joinpath("experiment.db").exists():
            with written(store, id, tuple(range(id, 33, 8))):
                pass
"""


@pytest.mark.process
def test_one_that_is_killed_anywhere_is_written_again_once(tmp_path: Path) -> None:
    """Killed again and again, it comes to what an undisturbed one comes to."""

    def write(home: Path, seconds: float | None) -> int:
        process = subprocess.Popen([sys.executable, "-c", WRITE, str(home)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        return process.returncode

    def read(home: Path) -> list[object]:
        with Store(home) as store:
            ids = [summary.experiment.id for summary in store.experiments.list()]
            trials = [store.trials.list(id) for id in ids]
            return [
                ids,
                trials,
                [repr([*store.metrics.read(experiment_id=id)]) for id in ids],
                left(store),
            ]

    dice, killed, other = random.Random(0), tmp_path / "killed", tmp_path / "other"
    began = time.monotonic()
    assert write(other, None) == 0
    took = time.monotonic() - began
    ended = [write(killed, dice.uniform(0, took / 8)) for _ in range(4)]
    assert -signal.SIGKILL in ended
    assert write(killed, None) == 0
    assert read(killed) == read(other)
    assert left(Store(killed)) == [str(id) for id in range(1, 9)]
