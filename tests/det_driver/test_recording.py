"""Scripts that det did not start are experiments of the home, too."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from det_core import InvalidHP, core
from det_core.errors import ArgumentError, ConfigError, StoreError
from det_driver.client import Client
from det_driver.driver import cancel_trial, describe, reopen, send_command
from det_driver.provenance import read
from det_driver.recording import RecordedExperiment
from det_driver.store import ExperimentState, Store, TrialState, _models

ERROR = core.DefaultConfig(name="mine", hparams={"lr": 0.1}, searcher={"metric": "error"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DET_RECORD", "1")
    script = tmp_path / "train.py"
    script.write_text("print('trains')\n")
    monkeypatch.setattr(sys, "argv", [str(script), "--token=secret"])
    return tmp_path / "home"


def same(experiment: str = "exp", trial: str | None = "a") -> core.UnmanagedConfig:
    return core.UnmanagedConfig(external_experiment_id=experiment, external_trial_id=trial)


def train(context: core.Context, first: int, last: int) -> None:
    """Train from batch `first`, and save at batch `last`."""
    for batch in range(first, last + 1):
        context.train.report_training_metrics(batch, {"loss": 1.0 / batch})
    context.train.report_validation_metrics(last, {"error": 10.0 / last})
    with context.checkpoint.store_path({"steps_completed": last}) as (path, _):
        (path / "at.txt").write_text(str(last))


def reported(home: Path, trial: int, group: str) -> list[tuple[int, dict[str, Any]]]:
    with Store.reader(home) as store:
        return [(m.batches, m.values) for m in store.metrics.read(trial_id=trial, group=group)]


def test_script_is_an_experiment_with_all_it_reported(home: Path, capsys: Any) -> None:
    with core.init(defaults=ERROR) as context:
        train(context, 1, 5)
        context.train.report_progress(0.5)
    assert "this run is experiment 1: det show 1" in capsys.readouterr().err
    with Store.reader(home) as store:
        (summary,) = store.experiments.list()
        experiment, (trial,) = summary.experiment, store.trials.list(1)
        (checkpoint,) = store.checkpoints.list(trial_id=trial.id)
        (run,) = store.runs.list(trial.id)
    assert (experiment.name, experiment.state) == ("mine", ExperimentState.COMPLETED)
    assert (experiment.entrypoint, experiment.progress) == ("python3 train.py", 1.0)
    assert (trial.state, trial.hparams) == (TrialState.COMPLETED, {"lr": 0.1})
    assert (trial.batches, trial.best_metric, summary.best_metric) == (5, 2.0, 2.0)
    assert (run.outcome, run.ended is not None) == ("completed", True)
    assert reported(home, 1, "training") == [(n, {"loss": 1.0 / n}) for n in range(1, 6)]
    assert reported(home, 1, "validation") == [(5, {"error": 2.0, "batches": 5})]
    assert (Path(checkpoint.storage) / "at.txt").read_text() == "5"
    assert Path(checkpoint.storage).parent == home / "checkpoints"


def test_script_and_its_origin_are_kept_without_arguments(home: Path) -> None:
    with core.init():
        pass
    directory = home / "experiments" / "1"
    assert (directory / "code" / "train.py").read_text() == "print('trains')\n"
    assert read(directory)["python"]
    assert all(b"secret" not in each.read_bytes() for each in directory.rglob("*.*"))


def test_checkpoint_that_a_model_has_cannot_be_deleted(home: Path) -> None:
    with core.init(defaults=ERROR) as context:
        train(context, 1, 2)
        (checkpoint,) = Client(home).get_experiment(1).get_trials()[0].list_checkpoints()
        model = Client(home).create_model("digits")
        model.add_version(checkpoint)
        with pytest.raises(StoreError, match="is version 1 of model"):
            context.checkpoint.delete(checkpoint.uuid)
        assert (home / "checkpoints" / checkpoint.uuid).is_dir()
        model.delete()
        context.checkpoint.delete(checkpoint.uuid)
    assert not (home / "checkpoints" / checkpoint.uuid).exists()


def test_client_finds_metrics_and_checkpoint_of_a_script(home: Path) -> None:
    with core.init(defaults=ERROR) as context:
        train(context, 1, 3)
    experiment = Client(home).get_experiment(1)
    assert experiment.state == ExperimentState.COMPLETED
    assert experiment.top_checkpoint().batches == 3


def test_failure_is_recorded_with_its_traceback(home: Path) -> None:
    with pytest.raises(ZeroDivisionError), core.init():
        _ = 1 / 0
    with Store.reader(home) as store:
        experiment, (trial,) = store.experiments.get(1), store.trials.list(1)
        (run,) = store.runs.list(trial.id)
    assert (experiment.state, trial.state) == (ExperimentState.ERROR, TrialState.ERROR)
    assert experiment.reason == trial.exit_reason == "ZeroDivisionError: division by zero"
    assert "_ = 1 / 0" in (run.log_dir / "rank-0.log").read_text()


@pytest.mark.parametrize(
    ("error", "experiment", "trial"),
    [
        (SystemExit(3), ExperimentState.ERROR, TrialState.ERROR),
        (SystemExit(0), ExperimentState.COMPLETED, TrialState.COMPLETED),
        (KeyboardInterrupt(), ExperimentState.CANCELED, TrialState.CANCELED),
        (InvalidHP("no"), ExperimentState.ERROR, TrialState.INVALID_HP),
    ],
)
def test_state_says_how_a_script_ended(
    home: Path, error: BaseException, experiment: ExperimentState, trial: TrialState
) -> None:
    with pytest.raises(BaseException), core.init():  # noqa: B017
        raise error
    with Store.reader(home) as store:
        assert store.experiments.get(1).state is experiment
        assert store.trials.list(1)[0].state is trial


def test_same_identifiers_continue_the_same_trial(home: Path) -> None:
    """The first run fails at batch 8, after its checkpoint at batch 5."""
    with suppress(RuntimeError), core.init(unmanaged=same()) as context:
        assert context.info is not None
        assert context.info.latest_checkpoint is None
        train(context, 1, 5)
        context.train.report_training_metrics(8, {"loss": 9.0})
        raise RuntimeError("power cut")
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        info = context.info
        assert info is not None
        assert info.latest_checkpoint is not None
        assert (info.steps_completed, info.trial.hparams) == (5, {"lr": 0.1})
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            assert (path / "at.txt").read_text() == "5"
        train(context, 6, 7)
    with Store.reader(home) as store:
        (summary,) = store.experiments.list()
        (trial,) = store.trials.list(1)
        runs = store.runs.list(trial.id)
    assert summary.experiment.state is ExperimentState.COMPLETED
    assert (trial.state, trial.runs, trial.exit_reason) == (TrialState.COMPLETED, 2, None)
    assert [run.outcome for run in runs] == ["error", "completed"]
    assert [at for at, _ in reported(home, 1, "training")] == [1, 2, 3, 4, 5, 6, 7]


def test_reports_before_the_place_of_a_restart_stay(home: Path) -> None:
    """A script that keeps its own state goes on where no checkpoint of det is."""
    with core.init(unmanaged=same()) as context:
        for batch in (1, 2, 3):
            context.train.report_training_metrics(batch, {"loss": 1.0})
    with core.init(unmanaged=same()) as context:
        for batch in (3, 4):
            context.train.report_training_metrics(batch, {"loss": 2.0})
    assert [(at, each["loss"]) for at, each in reported(home, 1, "training")] == [
        (1, 1.0),
        (2, 1.0),
        (3, 2.0),
        (4, 2.0),
    ]


def test_each_trial_identifier_is_a_trial_of_the_experiment(home: Path) -> None:
    for trial in ("a", "b", None, None, "a"):
        with core.init(unmanaged=same(trial=trial)) as context:
            context.train.report_training_metrics(1, {"loss": 1.0})
    with core.init(unmanaged=same("other")):
        pass
    with Store.reader(home) as store:
        assert [trial.runs for trial in store.trials.list(1)] == [2, 1, 1, 1]
        assert len(store.trials.list(2)) == 1


def test_second_process_of_an_experiment_goes_on_unrecorded(home: Path, capsys: Any) -> None:
    with core.init(unmanaged=same()), core.init(unmanaged=same(trial="b")) as second:
        second.train.report_training_metrics(1, {"loss": 0.5})
        assert second.info is not None
        assert second.info.trial.experiment_id == 0
    out, err = capsys.readouterr()
    assert "this run is not recorded: experiment 1 is held by process" in err
    assert '"loss": 0.5' in out


def test_home_that_cannot_be_made_does_not_end_the_script(home: Path, capsys: Any) -> None:
    home.write_text("a file")
    with core.init(checkpoint_storage=str(home.parent / "checkpoints")) as context:
        train(context, 1, 2)
    out, err = capsys.readouterr()
    assert err.count("this run is not recorded: ") == 1
    assert out.count('"group": "training"') == 2


@contextmanager
def full_disk() -> Iterator[None]:
    """Files may not grow past a limit, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill(context: core.Context, said: Any) -> str:
    """Report until the disk is full, and return what was said of it."""
    err = ""
    for batch in range(1, 600):
        context.train.report_metrics("texts", batch, {"text": f"{batch:09}" * 1000})
        err += said.readouterr().err
        if "tries again" in err:
            break
        time.sleep(0.01)
    return err


def test_reports_wait_for_room_on_a_full_disk(home: Path, capsys: Any) -> None:
    with core.init() as context:
        with full_disk():
            err = fill(context, capsys)
            assert err.count("the script goes on, and det tries again to record it") == 1
        context.train.report_training_metrics(1000, {"loss": 1.0})
        with context.checkpoint.store_path({"steps_completed": 1000}) as (path, _):
            (path / "a").write_text("a")
    assert "can be written again, and nothing is lost" in capsys.readouterr().err
    texts = [at for at, _ in reported(home, 1, "texts")]
    assert texts == [*range(1, texts[-1] + 1)]
    with Store.reader(home) as store:
        assert store.experiments.get(1).state is ExperimentState.COMPLETED


@pytest.mark.slow
def test_what_a_full_disk_cost_is_said_at_the_end(home: Path, capsys: Any) -> None:
    with full_disk():
        with core.init() as context:
            fill(context, capsys)
            context.train.report_training_metrics(1000, {"loss": 1.0})
        err = capsys.readouterr().err
    assert "not recorded of experiment 1: " in err
    assert "to 1000)" in err


@pytest.mark.parametrize("switched_off", ["by its argument", "by a variable"])
def test_recording_can_be_switched_off(
    home: Path, monkeypatch: pytest.MonkeyPatch, switched_off: str
) -> None:
    if switched_off == "by a variable":
        monkeypatch.setenv("DET_RECORD", "0")
    with core.init(defaults=ERROR, record=switched_off == "by a variable") as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
        assert context.info is not None
        assert context.info.trial.hparams == {"lr": 0.1}
    assert not Store.is_at(home)


@pytest.mark.parametrize(
    "variable", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK"]
)
def test_other_ranks_of_a_launcher_record_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with core.init():
        pass
    assert not Store.is_at(home)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: core.init(defaults={"name": "x"}), "give a core.DefaultConfig, or None"),
        (lambda: core.init(unmanaged="x"), "give a core.UnmanagedConfig, or None"),
        (lambda: core.UnmanagedConfig(external_trial_id="a"), "give external_experiment_id, too"),
        (lambda: core.init(defaults=core.DefaultConfig(hparams={"a": {1}})), "JSON can hold"),
        (lambda: core.init(defaults=core.DefaultConfig(searcher={"x": 1})), "searcher"),
    ],
)
def test_wrong_description_of_a_script_is_refused(home: Path, make: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ConfigError), match=message):
        make()
    assert not Store.is_at(home)


def test_det_cannot_stop_or_resume_a_script_it_did_not_start(home: Path) -> None:
    with core.init(), Store(home) as store:
        for kind in ("pause", "cancel", "kill"):
            with pytest.raises(StoreError, match=f"cannot {kind} it; end its process yourself: "):
                send_command(store, 1, kind)
        with pytest.raises(StoreError, match="cannot cancel it; end its process yourself: "):
            cancel_trial(store, 1, now=True)
        with pytest.raises(StoreError, match=r"det did not start the script .* cannot resume it"):
            reopen(store, 1)


@pytest.mark.parametrize("hparams", [{"opt": {"type": "adam", "lr": 0.1}}, {"x": {"type": "int"}}])
def test_hyperparameters_of_a_script_may_be_any_dict(home: Path, hparams: Any) -> None:
    with core.init(defaults=core.DefaultConfig(hparams=hparams)) as context:
        assert context.info is not None
        assert context.info.trial.hparams == hparams
    with Store.reader(home) as store:
        assert store.trials.list(1)[0].hparams == hparams


def test_a_number_that_is_not_finite_is_refused(home: Path) -> None:
    with pytest.raises(ArgumentError, match="what JSON can hold"):
        core.init(defaults=core.DefaultConfig(hparams={"clip": float("inf")}))


def state_of(home: Path) -> ExperimentState:
    with Store.reader(home) as store:
        return store.experiments.get(1).state


def test_closing_in_finally_after_an_error_is_no_completion(home: Path) -> None:
    def script() -> None:
        context = core.init()
        try:
            raise ValueError("boom")
        finally:
            context.close()

    with pytest.raises(ValueError, match="boom"):
        script()
    assert state_of(home) is ExperimentState.ERROR


def test_second_attempt_after_an_exception_completes(home: Path) -> None:
    try:
        raise ValueError("first")
    except ValueError:
        with core.init():
            pass
    assert state_of(home) is ExperimentState.COMPLETED


@pytest.mark.process
def test_sys_exit_outside_of_the_context_is_an_error(home: Path) -> None:
    code = "import sys; from det_core import core; core.init(); sys.exit(3)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    assert state_of(home) is ExperimentState.ERROR


def test_group_with_half_a_character_is_stored_escaped(home: Path) -> None:
    with core.init() as context:
        context.train.report_metrics("a\udcff", 1, {"x": 1.0})
    assert reported(home, 1, "a\\udcff") == [(1, {"x": 1.0})]


def test_report_that_cannot_be_stored_costs_itself_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write = RecordedExperiment.write

    def refuse(self: RecordedExperiment, records: list[Any]) -> None:
        if any(getattr(record, "group", None) == "odd" for record in records):
            raise ValueError("an odd group")
        write(self, records)

    monkeypatch.setattr(RecordedExperiment, "write", refuse)
    with core.init() as context:
        context.train.report_metrics("odd", 1, {"x": 1.0})
        context.train.report_validation_metrics(2, {"x": 1.0})
    assert "is not recorded: an odd group" in capsys.readouterr().err
    assert state_of(home) is ExperimentState.COMPLETED
    assert [at for at, _ in reported(home, 1, "validation")] == [2]


def test_a_broken_recorder_does_not_end_the_script(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "det_driver.recording", None)
    core.init().close()
    assert "this run is not recorded: import of det_driver.recording" in capsys.readouterr().err


@pytest.mark.process
def test_slow_git_does_not_hold_a_script_at_its_end(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\necho asked >> $0.asked\nexec sleep 300\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    core.init().close()
    assert state_of(home) is ExperimentState.COMPLETED


def test_a_trial_that_was_never_made_is_nobodys(home: Path) -> None:
    """A process that is killed before its commit may have noted the trial."""

    def train_once(trial: str) -> int:
        with core.init(unmanaged=same("e", trial)) as context:
            assert context.info is not None
            return context.info.trial.trial_id

    first, file = train_once("a"), home / "experiments" / "1" / "outside.json"
    ids = json.loads(file.read_text())
    ids["trials"]["killed"] = 1
    file.write_text(json.dumps(ids))
    assert len({first, train_once("b"), train_once("killed")}) == 3


def test_a_model_gets_no_checkpoint_that_a_script_deletes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_models, "BUSY_SECONDS", 0.2)
    is_free = _models.Models.check_free

    def add_meanwhile(models: _models.Models, uuids: Any) -> None:
        is_free(models, uuids)
        with Store(home) as other:
            other.models.create("m")
            with pytest.raises(StoreError, match="is locked"):
                other.models.add_version("m", *uuids)

    with core.init() as context:
        train(context, 1, 1)
        (checkpoint,) = Client(home).get_experiment(1).get_trials()[0].list_checkpoints()
        monkeypatch.setattr(_models.Models, "check_free", add_meanwhile)
        context.checkpoint.delete(checkpoint.uuid)
    with Store.reader(home) as store:
        assert store.models.get("m").latest is None
        assert not store.models.checkpoints()


def test_running_script_can_be_named_and_labelled(home: Path) -> None:
    with core.init(), Store(home) as store:
        describe(store, 1, name="other", labels=["kept"])
        row = store.experiments.get(1)
    assert (row.name, row.labels) == ("other", ("kept",))


@pytest.mark.process
def test_fork_of_a_script_records_nothing(home: Path) -> None:
    with core.init() as context:
        if (pid := os.fork()) == 0:
            context.train.report_training_metrics(7, {"loss": 7.0})
            context.close()
            os._exit(0)
        os.waitpid(pid, 0)
        context.train.report_training_metrics(1, {"loss": 1.0})
    assert [at for at, _ in reported(home, 1, "training")] == [1]


SCRIPT = """
import time
from det_core import core
ids = core.UnmanagedConfig(external_experiment_id="exp", external_trial_id="a")
with core.init(unmanaged=ids) as context:
    first = context.info.steps_completed
    for batch in range(first + 1, first + 4):
        context.train.report_training_metrics(batch, {"loss": 1.0})
        with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
            (path / "state").write_text("x")
    print("saved", flush=True)
    time.sleep(600 if first == 0 else 0)
"""


@pytest.mark.process
def test_killed_script_is_shown_as_killed_and_continues(det: Any) -> None:
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    environment = det.env({"DET_RECORD": "1"})

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=det.cwd,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start() as first:
        det.started.append(first)
        while first.stdout.readline() != "saved\n":
            assert first.poll() is None
        assert "ACTIVE" in det("list").stdout
        first.send_signal(signal.SIGKILL)
    det.started.clear()
    listed = det("list").stdout
    assert "KILLED" in listed
    assert "the script of experiment 1 was killed; run it again as you did before" in listed
    assert "the script of experiment 1 was killed" in det("show", "1").stdout
    assert "cannot resume it" in det("resume", "1", status=2).stderr
    with start() as second:
        second.communicate(timeout=60)
        assert second.returncode == 0
    (shown,) = det.json("show", "1")["trials"]
    assert (shown["state"], shown["runs"], shown["batches"]) == ("COMPLETED", 2, 6)
    assert [row["batches"] for row in det.metrics(1, "training")] == [1, 2, 3, 4, 5, 6]
    assert "det did not start the script" in det("logs", "1").stderr
