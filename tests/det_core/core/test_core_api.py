"""The Core API outside of `det run`, and what it promises inside."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from det_core import CheckpointError, InvalidHP, MetricError, StorageError, core

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


def test_outside_a_run_reports_are_printed_and_nothing_preempts(context, capsys):
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


def test_stored_checkpoint_is_restored_with_its_metadata(context):
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
    with pytest.raises(
        ValueError, match=r"report_progress\(progress=1\.5\): give a number from 0 to 1"
    ):
        context.train.report_progress(1.5)


@pytest.mark.parametrize(
    "steps", [1.5, True, -1, 2**63, "3", None, np.float64(3.0), np.bool_(True)]
)
def test_invalid_position_is_refused_at_the_callers_line(context, steps):
    for report in ("report_validation_metrics", "report_training_metrics"):
        with pytest.raises(core.ArgumentError) as refused:
            getattr(context.train, report)(steps, {"error": 1.0})
        assert re.match(rf"test_core_api\.py:\d+: {report}\(steps_completed=", str(refused.value))
        assert "give a whole number of batches, 0 or more" in str(refused.value)


@pytest.fixture
def run_context(tmp_path, monkeypatch):
    """A context that knows its run, as under `det run`."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    storage = str(tmp_path / "checkpoints")
    with core.init(checkpoint_storage=storage, defaults=core.DefaultConfig()) as made:
        yield made


@pytest.mark.parametrize("group", ["training", "validation", "inference"])
def test_position_below_the_furthest_of_its_group_is_refused(run_context, group):
    """A checkpoint has the metrics of its position, which another phase would replace."""
    train = run_context.train
    for position in (1, 5, 5):
        train.report_metrics(group, position, {"error": 1.0})
    with pytest.raises(core.ArgumentError) as refused:
        train.report_metrics(group, 1, {"error": 2.0})
    assert re.fullmatch(
        r"test_core_api\.py:\d+: report_metrics\(steps_completed=1\): give 5 or more, as this run"
        rf" has reported '{group}' at 5 before; let a further phase of the script count on from"
        " there",
        str(refused.value),
    )
    assert [batches for _, batches, _ in run_context._host.history] == [1, 5, 5]
    train.report_metrics(group, 6, {"error": 2.0})


def test_groups_lag_behind_each_other(run_context):
    """A validation may take longer than the training that goes on meanwhile."""
    for batch in (10, 20, 30):
        run_context.train.report_training_metrics(batch, {"loss": 1.0})
    run_context.train.report_validation_metrics(20, {"error": 1.0})


@pytest.mark.parametrize("furthest", ["validated", "stored"])
def test_checkpoint_of_an_earlier_position_is_noticed_once(run_context, capsys, furthest):
    """The best model may be stored when the training is over."""
    store = run_context.checkpoint.store_path
    if furthest == "validated":
        run_context.train.report_validation_metrics(5, {"error": 1.0})
    for position in (5, 3, 4) if furthest == "stored" else (3, 4):
        with store({"steps_completed": position}) as (path, _):
            (path / "x").write_text("x")
    manifests = [manifest.batches for manifest, _ in run_context._host.checkpoints]
    assert manifests[-2:] == [3, 4]
    assert capsys.readouterr().err.splitlines() == [
        "det: a checkpoint is stored at position 3 after 5: it counts as the model that was"
        " validated at 3; if it is of a further phase of the script, let that count on"
    ]


def test_context_without_a_record_may_serve_several_trainings(context, capsys):
    for _ in range(2):
        for position in (1, 2):
            context.train.report_training_metrics(position, {"loss": 1.0})
    assert [batches for _, batches, _ in context._host.history] == [1, 2, 1, 2]
    assert capsys.readouterr().err == (
        "det: 'training' is reported at position 1 after 2; in a run of det that is an error, so"
        " let a further phase of the script count on\n"
    )


DEEP = "upload(metadata=<dict, whose __repr__ raised RecursionError>)"
UNREADABLE = "set_status(status=<Unreadable, whose __repr__ raised ZeroDivisionError>)"


def test_whole_numbers_of_numpy_are_positions(context, capsys):
    context.train.report_training_metrics(np.int64(3), {"loss": 1.0})
    assert '"batches": 3' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda c: c.train.report_metrics("", 1, {}), "report_metrics(group='')"),
        (lambda c: c.train.report_metrics(3, 1, {}), "report_metrics(group=3)"),
        (lambda c: c.train.report_metrics("g", 1, [1]), "report_metrics(metrics=[1])"),
        (lambda c: c.train.report_progress("0.5"), "report_progress(progress='0.5')"),
        (lambda c: c.train.report_progress(float("nan")), "report_progress(progress=nan)"),
        (lambda c: c.train.set_status(None), "set_status(status=None)"),
        (lambda c: c.train.report_early_exit("no reason"), "report_early_exit(reason='no reason')"),
        (
            lambda c: c.train.upload_tensorboard_files(selector="*"),
            "upload_tensorboard_files(selector='*')",
        ),
        (lambda c: c.checkpoint.upload(3), "upload(ckpt_dir=3)"),
        (
            lambda c: c.checkpoint.upload(".", {"x": object}),
            "upload(metadata={'x': <class 'object'>})",
        ),
        (lambda c: c.checkpoint.upload(".", selector="*"), "upload(selector='*')"),
        (
            lambda c: c.checkpoint.store_path({"steps_completed": 1.5}).__enter__(),
            "store_path(metadata['steps_completed']=1.5)",
        ),
        (lambda c: c.checkpoint.restore_path(None).__enter__(), "restore_path(storage_id=None)"),
        (
            lambda c: c.checkpoint.restore_path("x", "shared").__enter__(),
            "restore_path(download_mode='shared')",
        ),
        (lambda c: c.checkpoint.download("x", 5), "download(ckpt_dir=5)"),
        (lambda c: c.checkpoint.get_metadata(1), "get_metadata(storage_id=1)"),
        (lambda c: c.checkpoint.delete(b"x"), "delete(storage_id=b'x')"),
        (lambda c: c.profiler.on("1"), "profiler.on(sampling_interval='1')"),
        (lambda c: c.profiler.on(None), "profiler.on(sampling_interval=None)"),
        (lambda c: c.profiler.on(float("inf")), "profiler.on(sampling_interval=inf)"),
        (lambda c: c.profiler.on(float("nan")), "profiler.on(sampling_interval=nan)"),
        (lambda c: c.profiler.on(1e300), "profiler.on(sampling_interval=1e+300)"),
        (lambda c: c.profiler.on(1, True), "profiler.on(samples_per_report=True)"),
        (lambda c: c.checkpoint.upload(".", nested(5000)), DEEP),
        (lambda c: c.train.set_status(Unreadable()), UNREADABLE),
        (lambda c: next(c.searcher.operations("all")), "operations(searcher_mode='all')"),
        (
            lambda c: next(c.searcher.operations()).report_progress(True),
            "op.report_progress(length=True)",
        ),
        (lambda c: core.init(distributed=3), "core.init(distributed=3)"),
        (lambda c: core.init(checkpoint_storage=3), "core.init(checkpoint_storage=3)"),
        (lambda c: core.init(preempt_mode="all"), "core.init(preempt_mode='all')"),
    ],
)
def test_every_argument_is_checked_where_it_is_given(context, call, argument):
    """In a run, it is a mistake of the user's, which is not tried again."""
    with pytest.raises(core.ArgumentError) as refused:
        call(context)
    assert re.match(r"test_core_api\.py:\d+: ", str(refused.value))
    assert f"{argument}: give " in str(refused.value)


class Unreadable:
    """Raises, whatever is asked of it."""

    def __repr__(self):
        raise ZeroDivisionError

    item = tolist = __float__ = __repr__


class Loud(str):
    def __str__(self):
        raise ZeroDivisionError


def nested(deep):
    found = {}
    for _ in range(deep):
        found = {"a": found}
    return found


def cyclic():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        1j,
        [1, object()],
        np.array([object()]),
        np.datetime64("2026-01-01"),
        Unreadable(),
        cyclic(),
        nested(5000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_metric_that_is_no_metric_is_refused_at_the_call(context, value):
    """It would be found when the training has ended, by a searcher that cannot compare it."""
    for report in ("report_validation_metrics", "report_training_metrics"):
        with pytest.raises(MetricError, match=r"^metric 'error' is .*; report a number, text, a"):
            getattr(context.train, report)(1, {"error": value})


def test_numbers_and_texts_of_other_types_are_plain(context, capsys):
    metrics = {"a": Decimal("1.5"), "b": Fraction(1, 4), "c": Loud("x"), "d": "\ud800", "e": [[1]]}
    context.train.report_metrics(Loud("g\ud800"), 1, metrics)
    context.train.set_status(Loud("busy \ud800"))
    context.alert(Loud("title \ud800"))
    printed = json.loads(capsys.readouterr().out.splitlines()[0])
    assert printed == {
        "group": "g\\ud800",
        "batches": 1,
        **{"a": 1.5, "b": 0.25, "c": "x", "d": "\\ud800", "e": [[1]]},
    }


def test_profiler_takes_numbers_of_numpy(context):
    context.profiler.on(np.float64(0.1), np.int64(3))
    context.profiler.off()


def test_name_that_no_checkpoint_can_have_is_no_outage(context):
    """An outage would be waited for."""
    with pytest.raises(StorageError, match="at most 255 letters") as refused:
        context.checkpoint.restore_path("a" * 5000).__enter__()
    assert type(refused.value) is StorageError
    assert len(str(refused.value)) < 250


def test_a_searchers_metric_that_is_no_number_is_refused(context):
    with pytest.raises(MetricError, match=r"op\.report_completed"):
        next(context.searcher.operations()).report_completed("small")


def test_a_validation_metric_that_is_none_is_refused(context):
    with pytest.raises(MetricError, match="'error' is None"):
        context.train.report_validation_metrics(1, {"error": None})


def test_profiler_refuses_invalid_settings_and_may_stop_twice(context):
    with pytest.raises(ValueError, match="sampling_interval"):
        context.profiler.on(sampling_interval=0.01)
    with pytest.raises(ValueError, match="samples_per_report"):
        context.profiler.on(samples_per_report=0)
    context.profiler.on(sampling_interval=0.1, samples_per_report=1)
    context.profiler.off()
    context.profiler.off()


def test_next_operation_is_refused_until_the_last_is_completed(context):
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


PHASES = """
from det_core import core
with core.init() as context:
    for phase, steps in ((1, 5), (2, 3)):
        for step in range(1, steps + 1):
            context.train.report_metrics("validation", step, {"error": 1 / (phase * 10 + step)})
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "model").write_text(f"phase {phase} step {step}")
"""


def test_run_whose_positions_go_back_fails_and_says_where(det):
    """It is a mistake of the script, so it is not tried again, and nothing is replaced."""
    done = run(det, PHASES, status=2)
    assert (
        "train.py:6: report_metrics(steps_completed=1): give 5 or more, as this run has reported"
        " 'validation' at 5 before"
    ) in done.stdout + done.stderr
    rows = [row for row in det.metrics(1) if row["group"] == "validation"]
    assert [(row["batches"], row["error"]) for row in rows] == [
        (step, 1 / (10 + step)) for step in range(1, 6)
    ]


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
def test_exit_0_pauses_only_after_an_acknowledged_preemption(det, wait_until, acknowledge, state):
    """Without an acknowledgement, exit status 0 completes the trial."""
    det.cwd.joinpath("train.py").write_text(f"""
import pathlib, time
from det_core import core
with core.init() as context:
    pathlib.Path("started").touch()
    while not context.preempt.should_preempt(auto_ack=False):
        time.sleep(0.02)
    if {acknowledge}:
        context.preempt.acknowledge_preemption_signal()
""")
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
from det_core import core
with core.init() as context:
    context.profiler.on()
""",
    )
    # A training that ends before the first report is due has one, too.
    reports = det.metrics(1, "system")
    assert len(reports) == 1
    assert reports[0]["memory_used_bytes"] > 2**20
    assert any(name.startswith("gpu") for name in reports[0]) == has_nvml()


def has_nvml() -> bool:
    """Tell whether there are GPUs to be sampled, and what samples them.

    benchmarks/gpu_check.py looks at the numbers.
    """
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
    files = {
        str(path.relative_to(stored)): path.read_text()
        for path in stored.rglob("*")
        if path.is_file()
    }
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


@pytest.mark.parametrize("name", ["manifest.json", "metadata.json"])
def test_a_file_by_one_of_dets_own_names_is_refused(context, name):
    """It would be written over."""
    with pytest.raises(CheckpointError, match=f"{name} is a file of det's own"):  # noqa: SIM117
        with context.checkpoint.store_path() as (path, _):
            (path / name).write_text('{"uuid": "mine"}')


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.symlink("nowhere", path)], ids=["fifo", "broken link"]
)
def test_what_is_no_file_is_refused(context, tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(
        CheckpointError, match="x is neither a file nor a directory, or a link to nothing"
    ):
        context.checkpoint.upload(tmp_path)


@pytest.mark.parametrize("shard", [False, True])
def test_directories_that_a_checkpoint_cannot_hold_are_named(context, shard):
    """Storages have files alone.

    An empty directory, or a link to one, would vanish without a word.
    """
    link = "" if shard else ", full/link"
    lost = (
        rf"^not in the checkpoint: empty, full/empty{link}; a directory is stored by the files in"
        r" it, and a link to"
    )
    store = context.checkpoint.store_path(shard=shard)
    with pytest.warns(UserWarning, match=lost), store as (path, uuid):  # noqa: PT031
        for name in ("empty", "full/deeper", "full/empty"):
            (path / name).mkdir(parents=True)
        (path / "full/deeper/file").touch()
        if link:  # shards with one are refused
            (path / "full/link").symlink_to("deeper")
    with context.checkpoint.restore_path(uuid) as path:
        assert {each.name for each in path.rglob("*")} >= {"full", "deeper", "file"}


def test_a_checkpoint_that_was_fetched_can_be_stored_again(context, tmp_path):
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "file").write_text("x")
    context.checkpoint.download(uuid, tmp_path / "target")
    again = context.checkpoint.upload(tmp_path / "target")
    with context.checkpoint.restore_path(again) as path:
        assert (path / "file").read_text() == "x"
