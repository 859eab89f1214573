"""The Core API outside of `det run`, and what it promises inside."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from det_core import CheckpointError, InvalidHP, MetricError, core

CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\n"


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as made:
        yield made


def run(det, script: str, config: str = CONFIG, **arguments):
    det.cwd.joinpath("train.py").write_text(script)
    det.cwd.joinpath("c.yaml").write_text(config)
    return det("run", "c.yaml", **arguments)


def test_outside_of_a_run_there_is_no_cluster_info(context):
    assert core.get_cluster_info() is None
    assert context.info is None
    assert context.train.get_tensorboard_path() is None


def test_outside_of_a_run_reports_are_printed_and_nothing_preempts(context, capsys):
    context.train.report_training_metrics(5, {"loss": 0.5})
    context.train.report_validation_metrics(5, {"error": 0.25})
    assert '"loss": 0.5' in capsys.readouterr().out
    assert context.preempt.should_preempt() is False


def test_outside_of_a_run_there_is_one_operation_of_one_epoch(context):
    lengths = []
    for operation in context.searcher.operations():
        lengths.append(operation.length)
        operation.report_completed(0.5)
    assert lengths == [1]
    assert context.searcher.get_configured_units() is core.Unit.EPOCHS


def test_a_checkpoint_that_is_stored_comes_back_with_its_metadata(context):
    with context.checkpoint.store_path({"steps_completed": 7, "note": "x"}) as (path, uuid):
        (path / "deep").mkdir()
        (path / "deep" / "file").write_bytes(b"\0\1")
    with context.checkpoint.restore_path(uuid) as path:
        assert (path / "deep" / "file").read_bytes() == b"\0\1"
    metadata = context.checkpoint.get_metadata(uuid)
    assert metadata["steps_completed"] == 7
    assert metadata["note"] == "x"


def test_nothing_is_stored_when_the_body_raises(context, tmp_path):
    def fail() -> None:
        with context.checkpoint.store_path() as (path, _):
            (path / "file").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not [p for p in (tmp_path / "checkpoints").glob("*") if not p.name.startswith(".")]


def test_a_selector_picks_files_both_ways(context, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_text(name)
    uuid = context.checkpoint.upload(source, selector=lambda name: name == "a")
    context.checkpoint.download(uuid, tmp_path / "target")
    assert (tmp_path / "target" / "a").read_text() == "a"
    assert not (tmp_path / "target" / "b").exists()


def test_uploading_nothing_is_refused(context, tmp_path):
    with pytest.raises(RuntimeError, match="ckpt_dir is None"):
        context.checkpoint.upload(None)
    with pytest.raises(CheckpointError, match="is not a directory"):
        context.checkpoint.upload(tmp_path / "nowhere")


def test_a_sharded_upload_holds_its_metadata_file(context, tmp_path):
    with context.checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, uuid):
        (path / "part-0").write_text("x")
    context.checkpoint.download(uuid, tmp_path / "target")
    assert (tmp_path / "target" / "metadata.json").exists()
    assert (tmp_path / "target" / "part-0").exists()


def test_a_deleted_checkpoint_is_gone(context):
    with context.checkpoint.store_path() as (path, uuid):
        (path / "file").write_text("x")
    context.checkpoint.delete(uuid)
    with pytest.raises(Exception, match=uuid), context.checkpoint.restore_path(uuid):
        pass


def test_progress_outside_of_0_to_1_is_refused(context):
    with pytest.raises(ValueError, match=r"progress is 1\.5"):
        context.train.report_progress(1.5)


def test_a_validation_metric_that_is_none_is_refused(context):
    with pytest.raises(MetricError, match="'error' is None"):
        context.train.report_validation_metrics(1, {"error": None})


def test_the_profiler_refuses_nonsense_and_may_be_turned_off_twice(context):
    with pytest.raises(ValueError, match="sampling_interval"):
        context.profiler.on(sampling_interval=0.01)
    with pytest.raises(ValueError, match="samples_per_report"):
        context.profiler.on(samples_per_report=0)
    context.profiler.on(sampling_interval=0.1, samples_per_report=1)
    context.profiler.off()
    context.profiler.off()


def test_taking_the_next_operation_without_completing_the_last_is_refused(context):
    operations = context.searcher.operations()
    next(operations)
    with pytest.raises(RuntimeError, match="report_completed"):
        next(operations)


def test_an_operation_is_completed_once(context):
    operation = next(context.searcher.operations())
    operation.report_completed(1.0)
    with pytest.raises(RuntimeError, match="completed already"):
        operation.report_completed(1.0)


def test_preempt_mode_is_honoured_outside_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with core.init(preempt_mode=core.PreemptMode.ChiefOnly) as context:
        assert context.preempt.should_preempt() is False


def test_invalid_hyperparameters_end_the_process_with_status_0(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as stop, core.init():
        raise InvalidHP("no")
    assert stop.value.code == 0


def test_every_group_of_metrics_is_stored(det):
    run(
        det,
        """
from det_core import core
with core.init() as context:
    context.train.report_metrics("inference", 3, {"speed": 2.5})
    context.train.report_training_metrics(3, {"loss": float("nan"), "text": "kept"})
    context.train.report_validation_metrics(3, {"error": 1.0, "raw": b"dropped"})
    context.train.set_status("thinking")
    context.train.report_progress(0.5)
""",
    )
    rows = {row["group"]: row for row in det.metrics(1)}
    assert rows["inference"]["speed"] == 2.5
    assert rows["training"]["loss"] == "NaN"  # JSON has no number for it
    assert rows["training"]["text"] == "kept"
    assert "raw" not in rows["validation"]


def test_a_user_requested_stop_completes_the_trial(det):
    run(
        det,
        """
from det_core import core
with core.init() as context:
    context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
""",
    )
    assert det.json("show", "1")["trials"][0]["state"] == "COMPLETED"


@pytest.mark.parametrize(("acknowledge", "state"), [(True, "PAUSED"), (False, "COMPLETED")])
def test_an_acknowledged_preemption_is_a_pause_and_another_exit_0_completes(det, wait_until, acknowledge, state):
    det.cwd.joinpath("train.py").write_text(
        f"""
import pathlib, time
from det_core import core
with core.init() as context:
    pathlib.Path("started").touch()
    while not context.preempt.should_preempt(auto_ack=False):
        time.sleep(0.02)
    if {acknowledge}:
        context.preempt.acknowledge_preemption_signal()
"""
    )
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    driver = det.start("run", "c.yaml")
    wait_until((det.home / "experiments/1/code/started").exists, "the start")
    det("pause", "1")
    driver.wait(timeout=30)
    assert det.json("show", "1")["trials"][0]["state"] == state


def test_a_script_learns_the_best_validation_of_its_experiment(det):
    """And may say that it has no more operations, as scripts of Determined do."""
    run(
        det,
        """
from det_core import core
with core.init() as context:
    found = [context.train.get_experiment_best_validation()]
    for at, error in enumerate([0.5, 0.25, 1.0], 1):
        context.train.report_validation_metrics(at, {"error": error})
        found.append(context.train.get_experiment_best_validation())
    context.searcher.acknowledge_out_of_ops()
    assert found == [None, 0.5, 0.25, 0.25], found
""",
    )
    assert det.json("show", "1")["trials"][0]["state"] == "COMPLETED"


def test_the_profiler_reports_what_the_machine_does(det):
    run(
        det,
        """
import time
from det_core import core
with core.init() as context:
    context.profiler.on(sampling_interval=0.1, samples_per_report=2)
    time.sleep(0.6)
""",
    )
    reports = det.metrics(1, "system")
    assert reports
    assert reports[0]["memory_used_bytes"] > 2**20
    assert any(name.startswith("gpu") for name in reports[0]) == has_nvml()


def has_nvml() -> bool:
    """Tell whether there are GPUs to be sampled, and what samples them; benchmarks/gpu_check.py looks at the numbers."""
    return shutil.which("nvidia-smi") is not None and importlib.util.find_spec("pynvml") is not None


def test_tensorboard_files_are_uploaded_in_place_of_earlier_ones(det):
    run(
        det,
        """
from det_core import core
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    place = context.train.get_tensorboard_path()
    assert context.train.upload_tensorboard_files() is None
    (place / "sub").mkdir(parents=True)
    for name in ("one", "sub/two", "sub/three"):
        (place / name).write_text(name)
    names = [
        context.train.upload_tensorboard_files(),
        context.train.upload_tensorboard_files(
            lambda path: path.name != "one", lambda path, rank: path.with_name(f"{path.name}#{rank}")
        ),
    ]
    assert len(set(names)) == 1
    print("stored under", names[0])
""",
    )
    name = re.search(r"stored under (\S+)", det("logs", "1").stdout).group(1)
    stored = det.home / "checkpoints" / name
    files = {str(path.relative_to(stored)): path.read_text() for path in stored.rglob("*") if path.is_file()}
    files.pop("manifest.json")
    assert files == {"sub/two#0": "sub/two", "sub/three#0": "sub/three"}
    assert det.json("checkpoint", "list", "1") == []


def test_alone_there_are_no_tensorboard_files_to_upload(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with core.init() as context:
        assert context.train.upload_tensorboard_files() is None


def test_reports_become_tensorboard_event_files(det):
    run(
        det,
        """
from det_core import core
with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 0.5})
    context.train.report_validation_metrics(1, {"error": 0.25})
""",
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = Path(det("tensorboard", "1", "--logdir").stdout.strip()) / "trial-1"
    events = EventAccumulator(str(directory))
    events.Reload()
    assert events.Scalars("Determined/loss")[0].value == 0.5
    assert events.Scalars("Determined/val_error")[0].step == 1
