"""One history, as each era of Determined stored it, comes to one and the same experiment."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tests.det_migrate.conftest import Migrate
from tests.det_migrate.eras import BEGAN, ERAS, LOG, SECRET, UUIDS, at_least, reports, tables

from det_core.config import from_json
from det_driver.store import LogTimes, Store


def content(store: Store, trial: int) -> dict[str, Any]:
    """Return what counts of a trial."""
    row = store.trials.get(trial)
    found = store.metrics.read(trial_id=trial)
    metrics = sorted(
        (m.group, m.batches, m.time, json.dumps(m.values))
        for m in found
        if m.group != "translation"
    )
    checkpoints = [
        (
            c.uuid,
            c.batches,
            str(c.state),
            c.size,
            c.framework,
            c.created,
            c.storage,
            c.metadata["mine"],
        )
        for c in store.checkpoints.list(trial_id=trial)
    ]
    return {
        "experiment": row.experiment_id,
        "request": row.request,
        "hparams": row.hparams,
        "seed": row.seed,
        "state": str(row.state),
        "times": (row.started, row.ended),
        "best": (
            row.best_metric,
            row.best_batches,
            row.latest_metric,
            row.batches,
            row.latest_checkpoint,
        ),
        "metrics": metrics,
        "checkpoints": checkpoints,
    }


@pytest.mark.parametrize("era", ERAS)
def test_a_history_of_each_era_is_equal(era: str, bring: Migrate, home: Path) -> None:
    tally = bring(tables(era))

    assert tally.notes == []
    with Store.reader(home) as store:
        for trial, request in ((5, 0), (9, 1)):
            of = reports(trial)
            rows = [
                (group, at, time, json.dumps(each)) for group in of for at, time, each in of[group]
            ]
            best = min((value["error"], at) for at, _, value in of["validation"])
            checkpoints = [
                (UUIDS[0], 100, "COMPLETED", 15, "torch", BEGAN + 102, f"s3://b/p/{UUIDS[0]}", 1),
                (UUIDS[1], 200, "DELETED", 15, "torch", BEGAN + 202, f"s3://b/p/{UUIDS[1]}", 1),
            ]
            assert content(store, trial) == {
                "experiment": 3,
                "request": request,
                "hparams": {"lr": trial / 10},
                "seed": 77,
                "state": "COMPLETED",
                "times": (BEGAN, BEGAN + 350),
                "best": (*best, best[0], 300, UUIDS[0] if trial == 5 else None),
                "metrics": sorted(rows),
                "checkpoints": checkpoints if trial == 5 else [],
            }
        found = store.experiments.get(3)
        assert (found.name, found.state, found.started, found.ended) == (
            "digits",
            "COMPLETED",
            BEGAN - 10,
            BEGAN + 400,
        )
        assert (found.labels, found.metric, found.progress) == (("first", "second"), "error", 1.0)
        assert found.description == ("a note" if at_least(era, "0.15.6") else "digits")
        config = from_json(found.config)
        assert config.searcher is not None
        searcher = (config.searcher.name, str(config.searcher.max_length))
        assert searcher == (
            ("adaptive_asha", "None") if at_least(era, "0.38.0") else ("random", "300 batches")
        )
        assert config.project == ("Vision" if at_least(era, "0.18.0") else "")
        runs = store.runs.list(5)
        assert [run.number for run in runs] == ([1, 2] if at_least(era, "0.15.6") else [1])
        if len(runs) == 2:
            assert (runs[1].started, runs[1].ended) == (BEGAN + 160, BEGAN + 350)
            [lost] = store.metrics.read(trial_id=5, archived=True)
            assert (lost.batches, lost.values, lost.run_id) == (200, {"loss": 99.0}, runs[0].id)
        log = runs[-1].log_dir / "rank-0.log"
        assert log.read_text(encoding="utf-8") == "".join(LOG)
        if at_least(era, "0.14.2"):
            times = LogTimes(log)
            times.read()
            assert [times.at(0), times.at(len(LOG[0]))] == [BEGAN + 200, BEGAN + 201]
        assert (store.code_dir(3) / "model_def.py").read_text() == "class Digits: ...\n"
        if at_least(era, "0.23.0"):
            [generic] = store.metrics.read(trial_id=5, group="translation")
            assert generic.values["bleu"] == 0.5
            assert math.isnan(generic.values["odd"])
    check_that_no_secret_is_stored(home)


@pytest.mark.parametrize("era", ["0.12.0", "0.17.0", "0.28.1", "0.38.0"])
def test_every_row_is_written_or_left_out_for_a_reason(era: str, bring: Migrate) -> None:
    made = tables(era)
    tally = bring(made)

    def count(*names: str) -> int:
        return sum(len(made[name][1]) for name in names if name in made)

    assert tally.read("experiments") == count("experiments") == 1
    assert tally.read("trials") == 2
    metrics = ("steps", "validations", "raw_steps", "raw_validations", "generic_metrics")
    assert tally.read("metrics") == count(*metrics)
    assert tally.read("checkpoints") == count("checkpoints", "raw_checkpoints", "checkpoints_v2")
    assert tally.written["log lines"] == len(LOG)
    assert sorted(tally.left_out) == sorted(
        [("checkpoints", "without a uuid"), ("metrics", "without metrics")]
        if not at_least(era, "0.28.1")
        else []
    )


def test_what_has_no_place_is_kept_in_a_file(bring: Migrate, home: Path) -> None:
    bring(tables("0.38.0"))

    kept = json.loads((home / "experiments/3/determined.json").read_text())
    assert (kept["cluster_id"], kept["schema"]) == ("the-cluster", "20240401000000")
    experiment = kept["experiment"]
    assert (experiment["owner"], experiment["workspace"], experiment["project"]) == (
        "ann",
        "Team",
        "Vision",
    )
    assert (experiment["notes"], experiment["job_id"]) == ("a note", "j")
    assert kept["trials"]["5"]["metadata"] == {"who": "me"}
    assert kept["trials"]["9"]["request_id"].startswith("bbbbbbbb")
    assert kept["config"]["retention_policy"] == {"log_retention_days": 90}
    assert kept["config"]["log_policies"][0]["name"] == "out of memory"
    assert ("archived" in kept["trials"]["5"], kept["trials"]["9"]["archived"]) == (False, True)
    models = json.loads((home / "models.json").read_text())["models"]
    assert models["reader"]["versions"] == [
        {"model_id": "1", "version": "1", "checkpoint_uuid": UUIDS[0]}
    ]
    with Store.reader(home) as store:
        assert store.models.refer("reader").uuid == UUIDS[0]
        assert store.models.get("reader").description == "reads digits"


def check_that_no_secret_is_stored(home: Path) -> None:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        data = path.read_bytes()
        assert [
            path for secret in (SECRET, "s3cr3t-value", "$2a$hash") if secret.encode() in data
        ] == []
    assert os.stat(home / "experiments/3/determined.json").st_mode & 0o077 == 0
