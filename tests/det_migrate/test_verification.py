"""What is stored, compared with the source: `--verify`; and the metrics of single batches."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.det_migrate.conftest import Migrate
from tests.det_migrate.eras import ERAS, UUIDS, change, tables
from tests.det_migrate.test_odd_rows import add, positions

from det_driver.store import Store


@pytest.mark.parametrize("era", ERAS)
def test_what_was_written_is_what_was_read(era: str, bring: Migrate) -> None:
    tally = bring(tables(era), verify=True)
    assert not tally.failed
    assert tally.notes == []
    assert tally.written["verified"] == 2
    again = bring(tables(era), verify=True)
    assert (again.failed, again.written["verified"], again.written["experiments"]) == (False, 2, 0)


def test_trials_with_other_numbers_are_compared_too(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    change(made, "cluster_id", 0, cluster_id="another")
    bring(tables("0.17.0"))
    tally = bring(made, verify=True, renumber=True)
    assert (tally.failed, tally.written["verified"]) == (False, 2)
    assert tally.numbers != [3]


ONE = "'training' differ"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "UPDATE metrics SET data = '{\"error\":9}' WHERE kind = 'validation' AND batches = 300",
            "1 reports of",
        ),
        ("DELETE FROM metrics WHERE kind = 'training' AND archived = 0 AND trial_id = 5", ONE),
        ("DELETE FROM metrics WHERE archived > 0", "archived reports of 'training' differ"),
        ("UPDATE trials SET hparams = '{}' WHERE id = 9", "trial 9: "),
        ("UPDATE trials SET ended = 1 WHERE id = 9", "trial 9: "),
        ("UPDATE runs SET outcome = 'lost' WHERE number = 2 AND trial_id = 5", "trial 5 run 2: "),
        ("DELETE FROM runs WHERE number = 2 AND trial_id = 5", "run 2 is missing"),
        ("UPDATE checkpoints SET batches = 1", f"checkpoint {UUIDS[0]}: "),
        ("DELETE FROM checkpoints", f"checkpoint {UUIDS[1]} is missing"),
    ],
)
def test_whatever_is_stored_otherwise_is_named(
    sql: str, said: str, bring: Migrate, home: Path
) -> None:
    bring(tables("0.17.0"))
    with sqlite3.connect(home / "experiments/3/experiment.db") as database:
        assert database.execute(sql).rowcount
    tally = bring(tables("0.17.0"), verify=True)
    assert tally.failed
    assert any(said in note for note in tally.notes), tally.notes


def test_logs_are_compared_byte_by_byte(bring: Migrate, home: Path) -> None:
    bring(tables("0.17.0"))
    with (home / "experiments/3/trials/5/run-2/rank-0.log").open("ab") as log:
        log.write(b"more\n")
    tally = bring(tables("0.17.0"), verify=True)
    assert tally.notes == ["experiment 3, trials/5/run-2/rank-0.log differs"]


def test_metrics_of_batches_come_along_where_they_are_asked_for(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    rows = [{"loss": 1.0}, {"loss": "NaN"}, {}, {"loss": 4.0}]
    change(made, "raw_steps", 0, metrics={"avg_metrics": {"loss": 2.0}, "batch_metrics": rows})
    # A report of a later attempt at the same position counts instead.
    add(made, "raw_steps", id=90, trial_id=5, total_batches=300, trial_run_id=1, archived=False, state="COMPLETED",
        metrics={"avg_metrics": {"loss": 3.0}, "batch_metrics": [{"loss": 0.5}]})  # fmt: skip
    tally = bring(made, batch_metrics=True, verify=True)
    assert (tally.failed, tally.notes) == (False, [])
    assert positions(home, 5, "batch") == [97, 98, 100]
    with Store.reader(home) as store:
        values = [m.values["loss"] for m in store.metrics.read(trial_id=5, group="batch")]
    assert [repr(value) for value in values] == ["1.0", "nan", "4.0"]
    assert tally.written["batch metrics"] == 3
    assert [line for line in tally.lines() if "batch metrics" in line] == [
        "batch metrics: 4 read, 3 written"
    ]


def test_metrics_of_batches_are_left_there_otherwise(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    change(
        made,
        "raw_steps",
        0,
        metrics={"avg_metrics": {"loss": 2.0}, "batch_metrics": [{"loss": 1.0}]},
    )
    bring(made)
    assert positions(home, 5, "batch") == []
