"""Histories of MLflow, TensorBoard and CSV files, as the libraries wrote them."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.det_migrate.test_command import call, invoke

from det_core.errors import DetError
from det_driver.provenance import elsewhere
from det_driver.store import ExperimentState, Store, TrialState
from det_migrate.mlflow import find_mlflow
from det_migrate.others import OtherOptions, OtherProject, OtherRun, Point, migrate_projects
from det_migrate.tables import Columns, find_csv
from det_migrate.tally import Tally
from det_migrate.tensorboard import find_tensorboard

DATA = Path(__file__).with_name("data")
KEY = "hush-hush-hush"
BEGAN = 1_600_000_000


def write_files(place: Path) -> Path:
    for name, text in json.loads((DATA / "mlruns.json").read_text()).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place / "mlruns"


def write_database(place: Path) -> Path:
    with closing(sqlite3.connect(place / "mlflow.db")) as database:
        database.executescript((DATA / "mlflow.sql").read_text())
    return place / "mlflow.db"


STORES = pytest.mark.parametrize("write", [write_files, write_database])
Write = Callable[[Path], Path]


def read(
    home: Path, experiment: int
) -> dict[str, tuple[TrialState, dict[str, Any], dict[str, Any]]]:
    """Return the state, hyperparameters and reports by group of each trial, by its name there."""
    with Store.reader(home) as store:
        kept = elsewhere(store.experiment_dir(experiment))["trials"]
        found = {}
        for trial in store.trials.list(experiment):
            reports: dict[str, Any] = {}
            for each in store.metrics.read(trial_id=trial.id):
                reports.setdefault(each.group, []).append((each.batches, each.time, each.values))
            found[kept[str(trial.id)]["name"]] = trial.state, dict(trial.hparams), reports
    return found


def bring(projects: list[OtherProject], home: Path, **options: Any) -> Tally:
    return migrate_projects(projects, home, OtherOptions(**options))


@STORES
def test_what_mlflow_stored_comes_back_as_it_was(write: Write, tmp_path: Path, home: Path) -> None:
    tally = bring(find_mlflow(str(write(tmp_path))), home, metric="val/loss")
    with Store.reader(home) as store:
        first, second = store.experiments.get(1), store.experiments.get(2)
        assert (first.name, first.state) == ("digits", ExperimentState.COMPLETED)
        assert first.description == "the first try"
        assert second.name == "digits: a search"
        best = {trial.hparams["lr"]: trial.best_metric for trial in store.trials.list(1)}
        assert best == {lr: 1 / 20 + lr for lr in (0.1, 0.2, 0.3, 0.4)}
        # `exit_reason` says why a trial ended.
        reasons = [
            trial.exit_reason for trial in store.trials.list(1) if trial.hparams["lr"] == 0.4
        ]
        assert reasons[0] is not None
        assert reasons[0].startswith("it never ended in MLflow")
    trials = read(home, 1)
    assert {name: rest[0] for name, rest in trials.items()} == {
        "finished": TrialState.COMPLETED,
        "failed": TrialState.ERROR,
        "killed": TrialState.CANCELED,
        "without a word": TrialState.ERROR,
    }
    _, hparams, reports = trials["finished"]
    assert hparams["lr"] == 0.1
    assert hparams["net"] == "mlp"
    assert reports["validation"] == [
        (at, BEGAN + at / 1000, {"val/loss": 1 / at + 0.1}) for at in (10, 20)
    ]
    training = {at: values for at, _, values in reports["training"]}
    assert training[20] == {"loss": 7.0, "odd": math.inf}
    assert training[10]["loss"] == 2 / 10 + 0.1
    assert math.isnan(training[10]["odd"])
    # What was logged without steps is numbered.
    assert [training[at]["plain"] for at in range(3)] == [0.0, 0.5, 1.0]
    assert set(read(home, 2)) == {"a search", "child 0.7", "child 0.8"}
    lines = list(tally.lines())
    assert "trials: 7 read, 7 written" in lines
    assert "  7 left out: at a step where the metric has a later value" in lines
    assert "  7 left out: at a step that is no whole number from 0 on" in lines
    assert not [
        file for file in home.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()
    ]


@STORES
def test_a_second_time_changes_nothing(write: Write, tmp_path: Path, home: Path) -> None:
    store = write(tmp_path)
    assert "experiments: 3 read, 2 written" in list(bring(find_mlflow(str(store)), home).lines())
    before = read(home, 1)
    again = bring(find_mlflow(str(store)), home)
    assert again.left_out == {
        ("experiments", "there already"): 2,
        ("experiments", "without runs"): 1,
    }
    assert read(home, 1) == before
    changed = find_mlflow(str(store))
    changed[1] = OtherProject(
        "MLflow", "digits", {**changed[1].versions, "more": ""}, changed[1].records
    )
    noted = bring(changed, home)
    assert any("has changed since; to take it again: det rm" in note for note in noted.notes)
    assert read(home, 1) == before


def test_a_store_in_another_place_is_the_same(tmp_path: Path, home: Path) -> None:
    first = write_files(tmp_path)
    bring(find_mlflow(str(first)), home)
    shutil.copytree(first, tmp_path / "moved")
    assert not bring(find_mlflow(f"file://{tmp_path}/moved"), home).written["experiments"]


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("gone", "there is no gone; name MLflow's directory mlruns"),
        ("empty", "is no store of MLflow"),
        ("text", "is no SQLite database of MLflow"),
        ("other.db", "is no SQLite database of MLflow: no such table"),
        ("postgresql://u:p@h/d", "postgresql:// is no store that det reads"),
        ("torn", r"cannot read .*meta.yaml"),
    ],
)
def test_what_is_no_store_is_named(
    store: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("text").write_text("no database " * 100)
    sqlite3.connect("other.db").execute("CREATE TABLE t (id)").connection.close()
    Path("torn").mkdir()
    Path("torn/meta.yaml").write_text("experiment_id: 0\nname: [")
    with pytest.raises(DetError, match=why):
        find_mlflow(store)


def test_torn_line_is_named_and_its_experiment_left_out(tmp_path: Path, home: Path) -> None:
    store = write_files(tmp_path)
    file = next(store.rglob("metrics/loss"))
    file.write_text(file.read_text() + "1600 what\n")
    with pytest.raises(DetError, match=r"loss, line 4: '1600 what' is no time, value and step"):
        bring(find_mlflow(str(store)), home)
    with Store(home) as there:
        assert there.experiments.list() == []


def test_the_largest_value_is_the_best_where_that_is_asked_for(tmp_path: Path, home: Path) -> None:
    store = write_database(tmp_path)
    done = invoke(home, "migrate", "mlflow", str(store), "--metric", "loss", "--larger-is-better")
    assert done.exit_code == 0, done.output
    with Store.reader(home) as there:
        assert {trial.best_metric for trial in there.trials.list(1)} == {7.0}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A directory of TensorBoard: 12,000 values, a restart, hyperparameters and an image."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    root = tmp_path / "logs"

    def write(folder: str, *found: tuple[int, Any]) -> None:
        writer = EventFileWriter(str(root / folder))
        for step, summary in found:
            if isinstance(summary, SessionLog):
                writer.add_event(Event(wall_time=BEGAN, step=step, session_log=summary))
            else:
                writer.add_event(Event(wall_time=BEGAN + step, step=step, summary=summary))
        writer.close()

    def scalar(tag: str, value: float) -> Summary:
        return Summary(value=[Summary.Value(tag=tag, simple_value=value)])

    write("long", *((step, scalar("loss", step)) for step in range(12_000)))
    write("again", *((step, scalar("loss", 1.0)) for step in range(10)))
    restarted = SessionLog(status=SessionLog.START)
    write("again", (5, restarted), *((step, scalar("loss", 2.0)) for step in (5, 6)))
    image = Summary.Value(
        tag="picture", image=Summary.Image(height=1, width=1, encoded_image_string=b"x")
    )
    write(
        "again/1700.5",
        (0, summary_v2.hparams_pb({"lr": 0.5, "net": "mlp", "aug": True})),
        (0, scalar("best", 3.0)),
    )
    write("again", (7, Summary(value=[image])))
    return root


@pytest.mark.slow
def test_all_points_of_event_files_come_along(events: Path, tmp_path: Path, home: Path) -> None:
    tally = bring(find_tensorboard(events), home)
    done = invoke(tmp_path / "other", "migrate", "tensorboard", str(events))
    assert done.stdout.splitlines()[:-1] == list(tally.lines())
    trials = read(home, 1)
    assert set(trials) == {"long", "again"}
    long = trials["long"][2]["training"]
    assert [(at, values["loss"]) for at, _, values in long] == [
        (step, float(step)) for step in range(12_000)
    ]
    _, hparams, reports = trials["again"]
    assert hparams == {"lr": 0.5, "net": "mlp", "aug": True}
    assert [values["loss"] for _, _, values in reports["training"]] == [1.0] * 5 + [2.0] * 2
    assert reports["training"][0][2]["best"] == 3.0
    assert tally.left_out == {
        ("metrics", "taken back by a restart"): 5,
        ("metrics", "not a number"): 1,
    }
    assert tally.read("metrics") == 12_000 + 10 + 2 + 1 + 1


@pytest.mark.slow
def test_truncated_event_file_is_read_up_to_its_end(events: Path, home: Path) -> None:
    [file] = (events / "long").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    (events / "again" / "events.out.tfevents.9.none").write_text("no event")
    tally = bring(find_tensorboard(events), home)
    assert len(read(home, 1)["long"][2]["training"]) == 11_999
    assert [note for note in tally.notes if "holds no event that can be read" in note]


def test_a_directory_without_event_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(DetError, match="there is no event file below"):
        find_tensorboard(tmp_path)
    with pytest.raises(DetError, match="there is no directory"):
        find_tensorboard(tmp_path / "gone")


def table(place: Path, *rows: tuple[object, ...]) -> Path:
    with (place / "table.csv").open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    return place / "table.csv"


def test_a_csv_file_is_read_by_its_columns(tmp_path: Path, home: Path) -> None:
    file = table(
        tmp_path,
        ("id", "epoch", "when", "lr", "host", "loss", "note"),
        ("a", 1, "2020-09-13 12:26:40", "1e-3", "x", 0.5, ""),
        ("b", 1, BEGAN, "0.1", "x", "nan", "good"),
        ("a", 2, "2020-09-13T13:26:41+01:00", "1e-3", "x", "", ""),
        ("a", 3, "", "1e-3", "x", 0.25, ""),
    )
    options = (
        "--run",
        "id",
        "--step",
        "epoch",
        "--time",
        "when",
        "--param",
        "lr",
        "--skip",
        "host",
        "--metric",
        "loss",
    )
    dry = call(home, "csv", file, *options, "--dry-run")
    assert dry.stdout.startswith("nothing was written; what would be")
    assert not home.exists()
    done = invoke(home, "migrate", "csv", str(file), *options)
    assert "metrics: 4 read, 3 written\n  1 left out: not a number" in done.stdout
    *counts, room = dry.stdout.splitlines()[1:]
    assert counts == done.stdout.splitlines()[:-1]
    assert re.fullmatch(
        r"that is 0\.0 MiB of reports, before they are packed, 0\.0 MiB of logs;"
        rf" \d+ MiB are free in {home}",
        room,
    )
    trials = read(home, 1)
    _, lr, reports = trials["a"]
    assert lr == {"lr": 0.001}
    assert reports == {"validation": [(1, BEGAN, {"loss": 0.5}), (3, BEGAN, {"loss": 0.25})]}
    assert math.isnan(trials["b"][2]["validation"][0][2]["loss"])
    shown = invoke(home, "show", "1").stdout
    assert shown.startswith("experiment 1 (table) is completed, 100%")
    assert invoke(home, "show", "1", "--all").stdout.count('"tracker": "CSV"') == 1


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [
        ([], Columns(), "is empty"),
        ([("a", "b")], Columns(step="c"), "has no column 'c'; it has a, b"),
        ([("a", "a")], Columns(), "has several columns 'a'"),
        ([("s", "a"), ("x", 1)], Columns(step="s"), "line 2: 'x' in s is no step"),
        ([("t", "a"), ("x", 1)], Columns(time="t"), "line 2: Invalid isoformat"),
        ([("a",), (1, 2)], Columns(), "line 2: more cells than columns"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_named(
    rows: list[tuple[object, ...]], columns: Columns, why: str, tmp_path: Path, home: Path
) -> None:
    with pytest.raises(DetError, match=why):
        bring(find_csv(table(tmp_path, *rows), columns), home)


def test_a_metric_that_no_run_has_is_named(tmp_path: Path, home: Path) -> None:
    done = call(home, "csv", table(tmp_path, ("loss", "acc"), (1, 2)), "--metric", "los")
    assert "no run of table has los; there are acc, loss" in done.stdout


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, home: Path) -> None:
    def records() -> Iterator[OtherRun | Point]:
        yield OtherRun("r", "r", TrialState.COMPLETED, log=tmp_path / "gone.log")
        yield Point("r", "loss", 1, None, 1.0)

    project = OtherProject("CSV", "p", {"r": ""}, records)
    with pytest.raises(DetError, match=r"cannot write p: .*gone\.log"):
        bring([project], home)
    with Store(home) as store:
        assert store.experiments.list() == []
    assert not [path for path in (home / "experiments").iterdir() if path.is_dir()]


KILLED = """
import sys
from pathlib import Path
from det_migrate.mlflow import find_mlflow
from det_migrate.others import OtherOptions, migrate_projects
print("ready", flush=True)
migrate_projects(find_mlflow(sys.argv[1]), Path(sys.argv[2]), OtherOptions())
"""


@pytest.mark.process
def test_one_that_is_killed_and_called_again_comes_to_the_same(tmp_path: Path) -> None:
    store = write_database(tmp_path)
    with closing(sqlite3.connect(store)) as database, database:
        for id in range(100, 112):
            run = f"run{id}"
            database.execute(
                "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (?, ?,"
                " 'active')",
                (id, run),
            )
            database.execute(
                "INSERT INTO runs (run_uuid, name, status, lifecycle_stage, experiment_id) VALUES"
                " (?, ?, 'FINISHED', 'active', ?)",
                (run, run, id),
            )
            rows = [("loss", step / 7, step, run, step, False) for step in range(2_000)]
            database.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?,"
                " ?, ?, ?, ?)",
                rows,
            )

    def bring(home: Path, seconds: float | None) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, store, home], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        process.communicate()

    def content(home: Path) -> dict[str, Any]:
        with Store.reader(home) as there:
            experiments = [summary.experiment for summary in there.experiments.list()]
        assert len({each.name for each in experiments}) == len(experiments)
        return {each.name: repr(sorted(read(home, each.id).items())) for each in experiments}

    began = time.monotonic()
    bring(tmp_path / "other", None)
    took = time.monotonic() - began
    for part in (0.2, 0.4, 0.6, 0.5):
        bring(tmp_path / "home", took * part)
    bring(tmp_path / "home", None)
    wanted = content(tmp_path / "other")
    assert len(wanted) == 14
    assert content(tmp_path / "home") == wanted


LIMITED = """
import resource, sys
from det_driver.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
main()
"""


@pytest.mark.process
def test_a_disk_that_fails_is_named_and_the_next_call_writes_it(tmp_path: Path, home: Path) -> None:
    names = [f"val{number}" for number in range(40)]
    file = table(tmp_path, names, *((float(step), *range(39)) for step in range(300)))
    settings = {"DET_HOME": str(home), "PATH": "/usr/bin:/bin"}
    # No file can have more than 100 kB.
    command = [sys.executable, "-c", LIMITED, "100000", "migrate", "csv", str(file)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "the disk failed" in done.stderr.splitlines()[-1], done.stderr
    with Store(home) as store:
        assert store.experiments.list() == []
    assert call(home, "csv", file).exit_code == 0
    with Store.reader(home) as store:
        [summary] = store.experiments.list()
    assert len(read(home, summary.experiment.id)["table"][2]["validation"]) == 300
