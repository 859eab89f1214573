"""Rows that no tidy history has."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_migrate.conftest import Migrate
from tests.det_migrate.eras import (
    BEGAN,
    NEW,
    OLD,
    REQUESTS,
    UUIDS,
    Tables,
    archive,
    change,
    dump,
    stamp,
    tables,
)

from det_core.config import MASK, from_json
from det_core.errors import DetError, StoreError
from det_driver.client import Client
from det_driver.driver import reopen
from det_driver.store import Store
from det_migrate.configuration import mask_files, mask_text, modernise, moved, storage_url
from det_migrate.copies import Block
from det_migrate.migration import Options, migrate
from det_migrate.scratch import Scratch
from det_migrate.sources import open_source
from det_migrate.values import (
    read_checkpoint_state,
    read_json,
    read_metrics,
    read_position,
    read_state,
    read_time,
)


def add(made: Tables, table: str, **values: Any) -> None:
    """Add a row like the last, but for these values."""
    columns, rows = made[table]
    rows.append(rows[-1])
    change(made, table, len(rows) - 1, **values)
    assert set(values) <= set(columns)


def positions(
    home: Path, trial: int, group: str = "training", *, archived: bool = False
) -> list[int]:
    with Store.reader(home) as store:
        return [
            m.batches for m in store.metrics.read(trial_id=trial, group=group, archived=archived)
        ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2020-09-13 12:26:40+00", 1.6e9),
        ("2020-09-13 14:26:40.5+02", 1.6e9 + 0.5),
        ("2020-09-13 17:56:40+05:30", 1.6e9),
        ("2020-09-13 12:26:40", 1.6e9),
        ("infinity", None),
        ("-infinity", None),
        ("0044-03-15 00:00:00+00 BC", None),
        (None, None),
    ],
)
def test_times_of_any_zone_are_unix_seconds(text: str | None, seconds: float | None) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"avg_metrics": {"a": 1, "b": {"c": "NaN"}, "d": ["Infinity"]}}, {"a": 1, "b": {"c": math.nan}, "d": [math.inf]}),
        ({"avg_metrics": {"a": "-Infinity", "b": "x", "c": True, "d": None}}, {"a": -math.inf, "b": "x", "c": True, "d": None}),
        ({"avg_metrics": {}, "batch_metrics": [{"a": 1}]}, None),
        ({"avg_metrics": {}}, None),
        ({"batch_metrics": [{"a": 1, "b": 2.0}, {"a": 2}, {"a": "NaN", "t": "x"}]}, {"a": math.nan, "b": 2.0}),
        ({"batch_metrics": [{"a": "Infinity"}, {"a": "-Infinity"}]}, {"a": math.nan}),
        ({"batch_metrics": None}, None),
        ({"validation_metrics": {"batches": 3, "time": 1, "a/b.c": 2, "😀": 0}}, {"batches": 3, "time": 1, "a/b.c": 2, "😀": 0}),
        (None, None),
        ([1], None),
    ],
)  # fmt: skip
def test_metrics_of_any_kind_are_read(stored: Any, read: Any) -> None:
    assert repr(read_metrics(json.dumps(stored))) == repr(read)


def test_numbers_of_any_size_are_read() -> None:
    tiny = f"0.{'0' * 319}1"
    assert read_json(f'{{"a": {2**70}, "b": {tiny}, "c": 1{"0" * 5000}}}') == {
        "a": 2**70,
        "b": 1e-320,
        "c": math.inf,
    }


def test_states_and_positions() -> None:
    assert [
        str(read_state(each)[0])
        for each in ("COMPLETED", "STOPPING_COMPLETED", "STOPPING_KILLED", "ERROR")
    ] == [*("COMPLETED", "COMPLETED", "CANCELED", "ERROR")]
    assert [read_state(each) for each in ("ACTIVE", "DELETE_FAILED")] == [
        ("PAUSED", "it had not ended in Determined (ACTIVE)"),
        ("ERROR", "Determined was deleting it (DELETE_FAILED)"),
    ]
    assert [
        read_position(each)
        for each in (12, "12", 12.0, "12.0", None, "x", -1, 1e300, math.nan, True)
    ] == [*(12, 12, 12, 12, None, None, None, None, None, 1)]
    assert [read_checkpoint_state(each) for each in ("PARTIALLY_DELETED", "ACTIVE", "ERROR")] == [
        *("PARTIALLY_DELETED", None, None)
    ]


def sections(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(NEW), **changes}


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        (OLD, ()),
        (NEW, ()),
        ({**OLD, "searcher": {"name": "adaptive_simple", "metric": "m", "max_trials": 4, "max_steps": 9, "mode": "standard"}}, ()),
        ({**OLD, "entrypoint": "", "internal": {"native": {"command": ["script.py"]}}}, ()),
        (sections(labels={"a": True}), ()),
        (sections(searcher={"name": "sync_halving", "metric": "m", "smaller_is_better": False}), ()),
        (sections(searcher={"name": "custom", "metric": "m", "unit": "batches"}), ("searcher",)),
        (sections(our_key=1), ("our_key",)),
        (sections(entrypoint=None, searcher={"name": "single", "metric": "m", "max_length": None}), ()),
        (sections(hyperparameters={"a": [1, 2], "b": {"c": None}}), ()),
        ({"searcher": "x", "labels": 3, "resources": []}, ("resources", "searcher")),
        ({}, ()),
    ],
)  # fmt: skip
def test_configurations_of_every_era_are_read_as_far_as_can_be(
    config: Mapping[str, Any], left_out: tuple[str, ...]
) -> None:
    found = modernise(config, name="n", project="p", workspace="w", storage={})

    assert found.left_out == left_out
    assert (found.config.name, found.config.project, found.config.workspace) == ("n", "p", "w")
    given = config.get("searcher")
    if isinstance(given, dict):
        assert found.config.searcher.metric == given["metric"]
        assert found.config.searcher.smaller_is_better == given.get("smaller_is_better", True)


def test_storages_are_found_where_they_are_today() -> None:
    config = sections(
        checkpoint_storage={"type": "shared_fs", "host_path": "/mnt/old/ck", "storage_path": "in"}
    )
    for storage, place in (
        ({}, "/mnt/old/ck/in/u"),
        ({"/mnt": "/a", "/mnt/old": "/data/"}, "/data/ck/in/u"),
        ({"/mnt/ol": "/data"}, "/mnt/old/ck/in/u"),
    ):
        found = modernise(config, name="n", project="", workspace="", storage=storage)
        assert storage_url(found.config, "u") == place
    assert moved("/mnt", {"/mnt": "/new"}) == "/new"


def test_secrets_in_texts_are_blotted_out() -> None:
    text = (
        "storage: {access_key: abc, type: s3}\npassword: 'x y'\n- HF_TOKEN=zzz\nurl:"
        " https://me:pw12@host/\ntokenizer: bert\n"
    )
    hidden = mask_text(text, ["bert"])
    assert [each for each in ("abc", "x y", "zzz", "pw12", "bert") if each in hidden] == []
    assert "type: s3" in hidden
    assert "tokenizer: " in hidden


def test_a_read_only_file_with_a_secret_is_replaced(tmp_path: Path) -> None:
    """It is not written, which root alone could, and keeps its mode."""
    code, linked = tmp_path / "code", tmp_path / "linked"
    code.mkdir()
    (code / "const.yaml").write_text("a: hf_1234567\n")
    (code / "const.yaml").chmod(0o400)
    os.link(code / "const.yaml", linked)
    mask_files(code, ["hf_1234567"])
    assert (code / "const.yaml").read_text() == "a: ********\n"
    assert (code / "const.yaml").stat().st_mode & 0o777 == 0o400
    assert linked.read_text() == "a: hf_1234567\n"


def test_positions_of_steps_are_sums_of_what_steps_were(bring: Migrate, home: Path) -> None:
    made = tables("0.13.0")
    config = {**OLD, "batches_per_step": 7}
    change(made, "experiments", 0, config=config)
    for row, batches in enumerate((0, 5, None, 4, 4, 4)):
        change(made, "steps", row, num_batches=batches)
    change(made, "steps", 0, id=0)  # a validation before training
    change(made, "validations", 0, step_id=0)
    bring(made)

    assert positions(home, 5) == [0, 5, 12]
    assert positions(home, 5, "validation") == [0, 12]


def test_the_newest_of_several_live_rows_counts(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    for id, attempt, loss in ((900, 1, 7.0), (901, 3, 8.0), (902, 3, 9.0), (903, 0, 1.0)):
        metrics = {"avg_metrics": {"loss": loss}}
        add(
            made,
            "raw_steps",
            id=id,
            trial_id=9,
            total_batches=200,
            trial_run_id=attempt,
            archived=False,
            metrics=metrics,
        )
    tally = bring(made)

    assert positions(home, 9) == [100, 200, 300]
    with Store.reader(home) as store:
        [found] = store.metrics.read(trial_id=9, first=200, last=200)
        assert found.values == {"loss": 9.0}
        assert [run.number for run in store.runs.list(9)] == [1, 2, 3]
    assert positions(home, 9, archived=True) == [200] * 5
    assert tally.read("metrics") == len(made["raw_steps"][1]) + len(made["raw_validations"][1])


def test_reports_that_report_nothing_are_counted(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    for at, changes in (
        (800, {"metrics": None, "state": "ACTIVE"}),
        (801, {"metrics": None}),
        (-5, {"metrics": {"avg_metrics": {"loss": 1}}}),
        (10**30, {"metrics": {"avg_metrics": {"loss": 1}}}),
    ):
        add(
            made,
            "raw_steps",
            id=at,
            trial_id=9,
            total_batches=at,
            state="COMPLETED",
            archived=False,
        )
        change(made, "raw_steps", len(made["raw_steps"][1]) - 1, **changes)
    tally = bring(made)

    assert {why: count for (kind, why), count in tally.left_out.items() if kind == "metrics"} == {
        "at no position": 2,
        "never finished (ACTIVE)": 1,
        "without metrics": 3,
    }
    assert positions(home, 9) == [100, 200, 300]


def test_incomplete_checkpoints_are_left_out_and_named(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    task = f"3.{REQUESTS[5]}"
    for uuid, metadata, of in (
        ("no-position", {}, task),
        ("of-a-notebook", {}, "notebook"),
        ("text", {"steps_completed": "12"}, task),
    ):
        rest = {"state": "COMPLETED", "resources": None, "metadata": metadata, "task_id": of}
        add(made, "checkpoints_v2", id=7, uuid=uuid, **rest)
    add(made, "checkpoints_v2", id=8, uuid="half", state="ACTIVE")
    tally = bring(made)

    assert tally.left_out == {("checkpoints", "never finished (ACTIVE)"): 1}
    assert tally.notes == [
        "checkpoint no-position of trial 5 says no position; it stands at batch 0"
    ]
    with Store.reader(home) as store:
        assert sorted(
            (c.batches, c.uuid, c.size) for c in store.checkpoints.list(experiment_id=3)
        ) == [*((0, "no-position", 0), (12, "text", 0), (100, UUIDS[0], 15), (200, UUIDS[1], 15))]
    kept = json.loads((home / "experiments/3/determined.json").read_text())
    assert [each["uuid"] for each in kept["checkpoints_left_out"]] == ["half"]


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("shared_fs", {"host_path": "/old/host", "storage_path": "below"}, "/new/host/below/"),
        ("shared_fs", {"host_path": "/other", "storage_path": None}, "/other/"),
        ("s3", {"bucket": "other", "prefix": "p", "secret_key": "hidden"}, "s3://other/p/"),
        ("gcs", {"bucket": "b", "prefix": None}, "gs://b/"),
        ("azure", {"container": "c", "connection_string": "hidden"}, "azure://c/"),
        ("directory", {"container_path": "/old/here"}, "/new/here/"),
    ],
)
def test_a_checkpoint_lies_where_its_row_says(
    bring: Migrate, home: Path, kind: str, row: dict[str, Any], expected: str
) -> None:
    """An experiment whose storage was changed has checkpoints in both (since 0.28.1)."""
    made = tables("0.28.1")
    made[f"storage_backend_{kind}"] = (("id", *row), [(4, *row.values())])
    made["storage_backend"] = (("id", f"{kind}_id"), [(9, 4)])
    change(made, "checkpoints_v2", 0, storage_id=9)
    bring(made, storage={"/old": "/new"})
    with Store.reader(home) as store:
        found = {c.uuid: c.storage for c in store.checkpoints.list(experiment_id=3)}
    assert found[UUIDS[0]] == expected + UUIDS[0]
    assert not found[UUIDS[1]].startswith(expected)
    assert all(b"hidden" not in file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_models_keep_the_numbers_of_their_versions(bring: Migrate, home: Path) -> None:
    """What the registry cannot have is named, and a second call adds nothing."""
    made = tables("0.38.0")
    facts = {"state": "COMPLETED", "resources": None, "metadata": {"steps_completed": 12}}
    add(made, "checkpoints_v2", id=7, uuid="text", **facts)
    made["models"] = (
        ("id", "name", "labels", "metadata", "archived"),
        [
            (1, "digits", '{small,"not large"}', '{"from": "a paper"}', True),
            (2, "a/b", "{}", {}, 0),
        ],
    )
    made["model_versions"] = (
        ("model_id", "version", "checkpoint_uuid", "comment", "creation_time"),
        [
            (1, 2, UUIDS[0], "the first", stamp(BEGAN)),
            (1, 4, "gone", "", stamp(BEGAN)),
            (1, 5, "text", "", stamp(BEGAN)),
            (2, 1, UUIDS[0], "", stamp(BEGAN)),
        ],
    )
    tally = bring(made)
    with Store.reader(home) as store:
        model = store.models.list(archived=True)[0]
        versions = store.models.versions("digits")
    assert (model.labels, model.metadata) == (("small", "not large"), {"from": "a paper"})
    assert [(each.version, each.uuid, each.notes) for each in versions] == [
        (5, "text", ""),
        (2, UUIDS[0], "the first"),
    ]
    assert versions[1].created == BEGAN
    assert [note.partition(":")[0] for note in tally.notes] == [
        "model 'digits', version 4",
        "model 'a/b'",
    ]
    again = bring(made)
    assert (again.written["models"], again.written["model versions"]) == (0, 0)


def test_warm_start_is_found_by_number_or_configuration(bring: Migrate, home: Path) -> None:
    made = tables("0.15.6")
    change(made, "trials", 1, warm_start_checkpoint_id=100)
    bring(made)
    with Store.reader(home) as store:
        assert [trial.source_checkpoint for trial in store.trials.list(3)] == [None, UUIDS[0]]


def test_secrets_are_masked_wherever_rows_repeat_them(bring: Migrate, home: Path) -> None:
    """In hyperparameters, in variables of a pod, in log lines, and not in other texts."""
    made = tables("0.38.0")
    pod = {"containers": [{"env": [{"name": "DB_PASSWORD", "value": "of-a-pod-1"}]}]}
    key = {"type": "const", "val": "of-a-key-1"}
    config = sections(hyperparameters={"api_key": key, "lr": {"type": "const", "val": 0.5}})
    config["environment"] = {**config["environment"], "pod_spec": {"spec": pod}}
    change(made, "experiments", 0, config=config)
    change(made, "runs", 0, hparams={"api_key": "of-a-key-1", "lr": 0.5, "name": "adam"})
    change(made, "task_logs", 0, log=b"lr 0.5 of-a-pod-1 of-a-key-1 ok\n")
    tally = bring(made, verify=True)
    assert (tally.failed, tally.notes) == (False, [])
    for file in (path for path in home.rglob("*") if path.is_file()):
        assert [each for each in (b"of-a-pod-1", b"of-a-key-1") if each in file.read_bytes()] == []
    with Store.reader(home) as store:
        assert store.trials.get(5).hparams == {"api_key": MASK, "lr": 0.5, "name": "adam"}
        log = store.runs.list(5)[-1].log_dir / "rank-0.log"
        assert log.read_text().splitlines()[0] == f"lr 0.5 {MASK} {MASK} ok"


def test_values_that_are_no_json_are_named(bring: Migrate, home: Path) -> None:
    """Damaged ones, and such that nest too deep, cost nothing else."""
    made = tables("0.38.0")
    deep = "[" * 100_000 + "]" * 100_000
    change(made, "experiments", 0, config="{")
    change(made, "projects", 0, notes=deep)
    change(made, "runs", 0, hparams=deep, tags="{")
    change(made, "runs_metadata", 0, metadata=deep)
    change(made, "checkpoints_v2", 0, metadata=deep)
    change(made, "raw_steps", 0, metrics=deep)
    change(made, "models", 0, metadata="{")
    tally = bring(made)
    assert (tally.written["metrics"], tally.written["checkpoints"]) == (12, 2)
    assert {
        note.removesuffix(" cannot be read as JSON and is left out") for note in tally.notes
    } == {
        "experiment 3: the notes of its project",
        "experiment 3: its configuration",
        "trial 5: its hyperparameters",
        "trial 5: its tags",
        "trial 5: its metadata",
        "metadata of a model or version",
        f"checkpoint {UUIDS[0]} of trial 5 says no position; it stands at batch 0",
    }
    with Store.reader(home) as store:
        assert len(store.trials.list(3)) == 2


ODD = "name of\nlines \N{SNOWMAN}" + "x" * 3000


def test_odd_experiments_can_be_read_by_everything(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    devil = archive({"../out": "x"})
    for id, changes in enumerate(
        (
            {"model_definition": b""},
            {"model_definition": b"no archive", "config": sections(name="")},
            {"model_definition": devil, "config": sections(name=ODD)},
            {"end_time": None, "archived": True, "config": {}, "model_definition": b""},
            {
                "end_time": stamp(BEGAN - 99),
                "state": "STOPPING_CANCELED",
                "config": sections(our_key=1),
                "archived": False,
            },
            {
                "start_time": "infinity",
                "state": "ACTIVE",
                "config": {**OLD, "searcher": {"name": "x", "metric": "m"}},
            },
        ),
        40,
    ):
        add(made, "experiments", id=id, **changes)
    tally = bring(made)

    assert tally.written["experiments"] == 7
    assert sum("its code cannot be unpacked" in note for note in tally.notes) == 2
    assert not (home / "experiments/out").exists()
    client = Client(home)
    with Store.reader(home) as store:
        names = {s.experiment.id: s.experiment.name for s in store.experiments.list(archived=None)}
        assert [names[41], names[42]] == ["Experiment 41", ODD]
        for id in names:
            from_json(store.experiments.get(id).config)
            store.experiments.config(id)
            client.get_experiment(id).export(home / f"{id}.tar")
        assert str(store.experiments.get(44).state) == "CANCELED"
        assert store.experiments.get(44).ended == store.experiments.get(44).started
        assert [s.experiment.id for s in store.experiments.list()] == [45, 44, 42, 41, 40, 3]


def test_history_that_has_not_ended_cannot_go_on(bring: Migrate, home: Path) -> None:
    made = tables("0.17.0")
    change(
        made,
        "experiments",
        0,
        state="ACTIVE",
        end_time=None,
        config=sections(checkpoint_storage=None),
    )
    change(made, "trials", 0, state="ACTIVE", end_time=None)
    bring(made)
    with Store(home) as store:
        assert [str(trial.state) for trial in store.trials.list(3)] == ["PAUSED", "COMPLETED"]
        with pytest.raises(StoreError, match="the history of another system"):
            reopen(store, 3)


def test_a_trial_of_two_tasks_has_the_runs_of_both(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    task = f"3.{REQUESTS[5]}-1"
    add(made, "run_id_task_id", run_id=5, task_id=task)
    add(
        made,
        "allocations",
        task_id=task,
        allocation_id=f"{task}.1",
        start_time=stamp(BEGAN + 500, zone=False),
    )
    add(
        made,
        "task_logs",
        id=10,
        task_id=task,
        allocation_id=f"{task}.1",
        log=b"\xff no text\n",
        timestamp=None,
    )
    bring(made)
    with Store.reader(home) as store:
        runs = store.runs.list(5)
        assert [run.number for run in runs] == [1, 2, 3]
        logs = [(run.log_dir / "rank-0.log") for run in runs]
        assert [b"\xff no text\n" in log.read_bytes() for log in logs if log.exists()] in (
            [True],
            [True, False],
            [False, True],
        )


def test_a_second_time_changes_nothing(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    bring(made)
    before = {path: path.stat().st_mtime_ns for path in (home / "experiments/3").rglob("*")}
    tally = bring(made)
    assert tally.left_out == {("experiments", "there already"): 1}
    assert {path: path.stat().st_mtime_ns for path in (home / "experiments/3").rglob("*")} == before
    change(made, "experiments", 0, end_time=stamp(BEGAN + 999))
    tally = bring(made)
    assert tally.left_out == {("experiments", "there already, as it was earlier"): 1}
    assert "det rm --keep-checkpoints 3" in tally.notes[0]


def test_what_a_partial_dump_lacks_is_named_also_later(bring: Migrate, home: Path) -> None:
    """An experiment that came without its logs is not taken for a whole one."""
    made = tables("0.28.1")
    del made["models"], made["model_versions"]
    parts = {
        "logs": ("trial_logs", "task_logs"),
        "metrics": ("raw_steps", "raw_validations", "generic_metrics"),
    }
    partial = {name: made[name] for name in made if name not in (*parts["logs"], *parts["metrics"])}
    [metrics, logs] = bring(partial).notes
    assert metrics.endswith("has no table with metrics: they do not come along")
    assert logs.endswith("has no table with logs: they do not come along")
    assert bring(made).notes == [
        "experiment 3 is there as 3, without its metrics, logs, as an earlier call did not read"
        " them; to take it again: det rm --keep-checkpoints 3"
    ]
    assert "without its metrics, as" in bring(made, logs=False).notes[0]
    Client(home).get_experiment(3).delete(keep_checkpoints=True)
    assert bring(made, logs=False).written["metrics"] == 13
    assert "without its logs, as" in bring(made).notes[0]


def test_numbers_that_are_taken_are_left_to_others(bring: Migrate, home: Path) -> None:
    with Store(home) as store:
        for _ in range(3):
            store.experiments.create(name="own", config="{}")
    made = tables("0.28.1")
    tally = bring(made)
    assert tally.left_out["experiments", "a number of it is taken (--renumber gives others)"] == 1
    assert tally.read("metrics") == 13
    assert "is left out: there is another experiment 3" in tally.notes[0]
    tally = bring(made, renumber=True)
    assert tally.notes == ["experiment 3 is 4 here"]
    with Store.reader(home) as store:
        assert [trial.id for trial in store.trials.list(4)] == [5, 9]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"experiments": {4}}, "not asked for (--experiments)"),
        ({"since": BEGAN}, "began earlier (--since)"),
        ({"project": "Other"}, "of another project (--project)"),
        ({"user": "bob"}, "of another user (--user)"),
    ],
)
def test_experiments_are_chosen(options: dict[str, Any], why: str, bring: Migrate) -> None:
    made = tables("0.28.1")
    add(made, "experiments", id=4, start_time=stamp(BEGAN + 5), owner_id=None, project_id=None)
    tally = bring(made, **options)
    assert (tally.left_out["experiments", why], tally.written["experiments"]) in ((1, 1), (2, 0))


def test_chosen_ones_bring_nothing_of_others(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    add(made, "experiments", id=4)
    tally = bring(made, project="Team/Vision", user="ann", experiments={4}, logs=False)
    assert (tally.written["experiments"], tally.read("metrics"), tally.read("log lines")) == (
        1,
        0,
        0,
    )
    with pytest.raises(DetError, match="there is no experiment 17; of 2 the newest is 4"):
        bring(made, experiments={17})


def test_a_dry_run_says_it_and_writes_nothing(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    tally = bring(made, dry_run=True)
    assert not home.exists()
    assert (tally.written["experiments"], tally.written["metrics"], tally.written["log lines"]) == (
        1,
        13,
        3,
    )
    bring(made)
    assert bring(made, dry_run=True).left_out == {("experiments", "there already"): 1}


def test_a_dry_run_says_how_much_there_is_and_how_much_room(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    change(made, "task_logs", 0, log=b"x" * 3 * 2**20)
    [said] = bring(made, dry_run=True).notes
    assert re.fullmatch(
        r"that is 0\.0 MiB of reports, before they are packed, 3\.0 MiB of logs, 0\.0 MiB of code;"
        rf" \d+ MiB are free in {home}",
        said,
    )


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        assert [*tmp_path.iterdir()] == []  # its file goes with the process, however that ends
        [(count,)] = scratch.rows("PRAGMA page_count")
        [*scratch.rows(f"PRAGMA max_page_count = {count + 2}")]
        block = Block("users", ("id", "username"), ([b"1", b"x" * 9999] for _ in range(9)))
        with pytest.raises(
            DetError, match=r"rows cannot be kept in .*disk is full.*free some space"
        ):
            scratch.load_small(block)


def test_one_that_cannot_be_written_stops_no_other(bring: Migrate, home: Path) -> None:
    made = tables("0.28.1")
    change(made, "checkpoints_v2", 0, resources="{")
    add(made, "experiments", id=4)
    tally = bring(made)
    assert tally.failed
    assert (tally.written["experiments"], tally.read("metrics"), tally.written["metrics"]) == (
        1,
        13,
        0,
    )
    assert tally.notes[0].startswith("experiment 3 is left out: JSONDecodeError")
    assert sorted(path.name for path in (home / "experiments").iterdir()) == [".writing.lock", "4"]


numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53))
rows = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 3),
        st.booleans(),
        st.dictionaries(st.text(max_size=3), numbers, max_size=3),
    ),
    max_size=25,
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows)
def test_any_rows_come_to_the_one_that_counts_at_each_position(
    found: list[tuple[int, int, bool, dict[str, Any]]],
) -> None:
    """What counts is what a plain reading of the rules says."""
    found = [
        (at, attempt, taken, json.loads(json.dumps(each).replace("\\u0000", "z")))
        for at, attempt, taken, each in found
    ]
    made = tables("0.28.1")
    columns = (
        "id",
        "trial_id",
        "end_time",
        "metrics",
        "total_batches",
        "trial_run_id",
        "archived",
        "metric_group",
    )
    listed = [
        (n, 9, stamp(BEGAN + n), {"avg_metrics": each}, at, attempt, taken, "g")
        for n, (at, attempt, taken, each) in enumerate(found)
    ]
    made["generic_metrics"] = columns, listed
    wanted: dict[int, tuple[int, int, dict[str, Any]]] = {}
    for n, (at, attempt, taken, each) in enumerate(found):
        if each and not taken:
            wanted[at] = max(
                wanted.get(at, (-1, -1, {})), (attempt, n, each), key=lambda found: found[:2]
            )
    with tempfile.TemporaryDirectory() as place:
        home, file = Path(place) / "home", Path(place) / "dump.sql"
        file.write_bytes(dump(made))
        tally = migrate(open_source(str(file)), home, Options())
        with Store.reader(home) as store:
            got = {
                m.batches: (m.time - BEGAN, m.values)
                for m in store.metrics.read(trial_id=9, group="g")
            }
    assert got == {at: (n, each) for at, (_, n, each) in wanted.items()}
    assert tally.read("metrics") == len(found) + 12


KILLED = """
import sys
from pathlib import Path
from det_migrate.migration import Options, migrate
from det_migrate.sources import open_source
print("ready", flush=True)
migrate(open_source(sys.argv[1]), Path(sys.argv[2]), Options())
"""


@pytest.mark.process
def test_one_that_is_killed_and_called_again_comes_to_the_same(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    made = tables("0.28.1")
    for id in range(50, 80):
        add(made, "experiments", id=id)
        add(made, "runs", id=id, experiment_id=id)
        add(made, "raw_validations", id=id, trial_id=id)
    file = tmp_path / "dump.sql"
    file.write_bytes(dump(made))

    def bring(home: Path, seconds: float | None = None) -> bool:
        """Return whether it came to its end before it was killed."""
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, file, home], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        process.communicate()
        return process.returncode == 0

    def content(home: Path) -> list[Any]:
        with Store.reader(home) as store:
            ids = [summary.experiment.id for summary in store.experiments.list()]
            return [
                ids,
                [store.trials.list(id) for id in ids],
                [[*store.metrics.read(experiment_id=id)] for id in ids],
            ]

    began = time.monotonic()
    assert bring(tmp_path / "other")
    took = time.monotonic() - began
    wanted = content(tmp_path / "other")
    assert len(wanted[0]) == 31
    rng, kills = random.Random(37), pytestconfig.getoption("--kills")
    home, killed = tmp_path / "home", 0
    for _ in range(kills):
        killed += not bring(home, took * rng.uniform(0.05, 0.95))
        # Every other time it is killed twice.
        if rng.random() < 0.5:
            killed += not bring(home, took * rng.uniform(0.05, 0.5))
        assert bring(home)
        assert repr(content(home)) == repr(wanted)
        left = {path.name for path in home.glob("*")} | {
            path.name for path in home.glob("experiments/*")
        }
        assert {name for name in left if name.startswith(".")} == {".writing.lock"}
        assert os.stat(home).st_mode & 0o077 == 0
        shutil.rmtree(home)
    assert killed >= kills / 2
