"""What Determined 0.13 to 0.38 named its client and contexts' methods and their parameters.

All are taken here.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import det_core
from det_core import DetError
from det_core.errors import CheckpointError, StoreError
from det_driver.store import Store
from determined import _masters, core, util
from determined._gone import GONE, METHODS
from determined.experimental import client

SIGNATURES: dict[str, dict[str, str]] = {
    "Checkpoint": {
        "add_metadata": "metadata",
        "delete": "",
        "download": "path mode",
        "from_json": "data master session",
        "get_metrics": "group",
        "get_pachyderm_commit": "",
        "get_type": "metadata",
        "load": "path tags",
        "load_from_path": "path tags",
        "parse_metadata": "directory",
        "reload": "",
        "remove_files": "globs",
        "remove_metadata": "keys",
        "write_metadata_file": "path",
    },
    "CheckpointContext": {
        "delete": "storage_id",
        "download": "storage_id ckpt_dir download_mode selector",
        "get_metadata": "storage_id",
        "restore_path": "storage_id download_mode selector",
        "store_path": "metadata shard",
        "upload": "ckpt_dir metadata shard selector",
    },
    "Context": {
        "alert": "title description level",
        "close": "exc_type exc_val exc_tb",
        "start": "",
    },
    "Determined": {
        "__init__": "master user password cert_path cert_name noverify",
        "add_oauth_client": "domain name",
        "create_experiment": "config model_dir includes project_id template",
        "create_model": "name description metadata labels workspace_name",
        "create_user": "username admin password remote",
        "create_workspace": "name",
        "delete_workspace": "name",
        "get_checkpoint": "uuid",
        "get_experiment": "experiment_id",
        "get_model": "name model_id identifier",
        "get_model_by_id": "model_id",
        "get_model_labels": "",
        "get_models": (
            "sort_by order_by name description model_id workspace_name workspaceId workspace_names"
            " workspace_ids"
        ),
        "get_session_username": "",
        "get_trial": "trial_id",
        "get_user_by_id": "user_id",
        "get_user_by_name": "user_name",
        "get_workspace": "name",
        "iter_trials_metrics": "trial_ids group",
        "list_experiments": "sort_by order_by experiment_ids labels users states name project_id",
        "list_models": "sort_by order_by name description model_id workspace_names workspace_ids",
        "list_oauth_clients": "",
        "list_users": "active",
        "list_workspaces": "",
        "logout": "",
        "remove_oauth_client": "client_id",
        "stream_trials_metrics": "trial_ids group",
        "stream_trials_training_metrics": "trial_ids",
        "stream_trials_validation_metrics": "trial_ids",
        "whoami": "",
    },
    # What collectives are given is given by position.
    "DistributedContext": {
        "__init__": (
            "rank size local_rank local_size cross_rank cross_size chief_ip pub_port pull_port"
            " port_offset force_tcp"
        ),
        "allgather": "",
        "allgather_local": "",
        "broadcast": "",
        "broadcast_local": "",
        "close": "",
        "from_deepspeed": "chief_ip",
        "from_horovod": "hvd chief_ip",
        "from_tf_config": "",
        "from_torch_distributed": "chief_ip",
        "gather": "",
        "gather_local": "",
        "get_local_rank": "",
        "get_num_agents": "",
        "get_rank": "",
        "get_size": "",
    },
    "Experiment": {
        "activate": "",
        "add_label": "label",
        "archive": "",
        "await_first_trial": "interval",
        "cancel": "",
        "delete": "",
        "delete_tensorboard_files": "",
        "download_code": "output_dir",
        "get_config": "",
        "get_pachyderm_config": "",
        "get_trials": "sort_by order_by",
        "iter_trials": "sort_by order_by limit",
        "kill": "",
        "list_checkpoints": "sort_by order_by max_results",
        "list_trials": "sort_by order_by",
        "move_to_project": "workspace_name project_name",
        "pause": "",
        "reload": "",
        "remove_label": "label",
        "set_description": "description",
        "set_labels": "labels",
        "set_name": "name",
        "set_notes": "notes",
        "top_checkpoint": "sort_by smaller_is_better",
        "top_n_checkpoints": "limit sort_by smaller_is_better",
        "unarchive": "",
        "wait": "interval",
    },
    "Model": {
        "add_metadata": "metadata",
        "archive": "",
        "delete": "",
        "get_version": "version",
        "get_versions": "order_by",
        "list_versions": "sort_by order_by",
        "move_to_workspace": "workspace_name",
        "register_version": "checkpoint_uuid",
        "reload": "",
        "remove_metadata": "keys",
        "set_description": "description",
        "set_labels": "labels",
        "unarchive": "",
    },
    "ModelVersion": {
        "delete": "",
        "reload": "",
        "set_name": "name",
        "set_notes": "notes",
    },
    "PyTorchExperimentalContext": {
        "disable_auto_to_device": "",
        "disable_dataset_reproducibility_checks": "",
        "reduce_metrics": "for_training",
        "reset_reducers": "",
        "use_amp": "",
        "wrap_reducer": "reducer name for_training for_validation",
    },
    "PyTorchTrialContext": {
        "autocast_forward_pass": "to_wrap",
        "backward": "loss gradient retain_graph create_graph",
        "configure_apex_amp": (
            "models optimizers enabled opt_level cast_model_type patch_torch_functions "
            "keep_batchnorm_fp32 master_weights loss_scale cast_model_outputs num_losses "
            "verbosity min_loss_scale max_loss_scale"
        ),
        "current_train_batch": "",
        "current_train_epoch": "",
        "get_data_config": "",
        "get_enable_tensorboard_logging": "",
        "get_experiment_config": "",
        "get_experiment_id": "",
        "get_global_batch_size": "",
        "get_hparam": "name",
        "get_hparams": "",
        "get_initial_batch": "",
        "get_per_slot_batch_size": "",
        "get_stop_requested": "",
        "get_tensorboard_path": "",
        "get_tensorboard_writer": "",
        "get_trial_id": "",
        "get_trial_seed": "",
        "is_epoch_end": "",
        "is_epoch_start": "",
        "set_enable_tensorboard_logging": "enable_tensorboard_logging",
        "set_profiler": "",
        "set_stop_requested": "stop_requested",
        "step_optimizer": "optimizer clip_grads auto_zero_grads scaler",
        "to_device": "data",
        "wrap_lr_scheduler": "lr_scheduler step_mode frequency",
        "wrap_model": "model",
        "wrap_optimizer": (
            "optimizer backward_passes_per_step fp16_compression average_aggregated_gradients"
        ),
        "wrap_scaler": "scaler",
    },
    "TrainContext": {
        "get_experiment_best_validation": "",
        "get_metadata": "",
        "get_tensorboard_path": "",
        "report_early_exit": "reason",
        "report_metrics": "group steps_completed metrics",
        "report_progress": "progress",
        "report_training_metrics": "steps_completed metrics batch_metrics",
        "report_validation_metrics": "steps_completed metrics",
        "set_metadata": "metadata",
        "set_status": "status",
        "upload_tensorboard_files": "selector mangler",
    },
    "Trial": {
        "get_checkpoints": "sort_by order_by",
        "get_experiment": "",
        "iter_logs": (
            "follow head tail container_ids rank_ids stdtypes min_level timestamp_before "
            "timestamp_after sources search_text"
        ),
        "iter_metrics": "group",
        "kill": "",
        "list_checkpoints": "sort_by order_by max_results",
        "logs": "follow head tail container_ids rank_ids stdtypes min_level",
        "reload": "",
        "select_checkpoint": "latest best uuid sort_by smaller_is_better",
        "stream_metrics": "group",
        "stream_training_metrics": "",
        "stream_validation_metrics": "",
        "top_checkpoint": "sort_by smaller_is_better",
    },
    "client": {
        "add_oauth_client": "domain name",
        "create_experiment": "config model_dir includes project_id template",
        "create_model": "name description metadata",
        "create_user": "username admin password remote",
        "create_workspace": "name",
        "delete_workspace": "name",
        "get_checkpoint": "uuid",
        "get_experiment": "experiment_id",
        "get_model": "name model_id identifier",
        "get_model_by_id": "model_id",
        "get_model_labels": "",
        "get_models": "sort_by order_by name description",
        "get_session_username": "",
        "get_trial": "trial_id",
        "get_user_by_id": "user_id",
        "get_user_by_name": "user_name",
        "get_workspace": "name",
        "iter_trials_metrics": "trial_ids group",
        "list_experiments": "sort_by order_by experiment_ids labels users states name project_id",
        "list_models": "sort_by order_by name description model_id workspace_names workspace_ids",
        "list_oauth_clients": "",
        "list_users": "active",
        "list_workspaces": "",
        "login": "master user password cert_path cert_name noverify",
        "logout": "",
        "remove_oauth_client": "client_id",
        "stream_trials_metrics": "trial_ids group",
        "stream_trials_training_metrics": "trial_ids",
        "stream_trials_validation_metrics": "trial_ids",
        "whoami": "",
    },
}
OWNERS: dict[str, Any] = {
    **{
        name: getattr(client, name)
        for name in ("Checkpoint", "Determined", "Experiment", "Model", "ModelVersion", "Trial")
    },
    **{
        name: getattr(core, name)
        for name in ("CheckpointContext", "Context", "DistributedContext", "TrainContext")
    },
    "client": client,
}
CONFIG = (
    '{"name": "mine", "entrypoint": "python3 x.py", "searcher": {"name": "grid", "metric":'
    ' "error"}}'
)


@pytest.mark.parametrize("owner", SIGNATURES)
def test_every_name_and_parameter_is_taken(owner: str) -> None:
    if owner.startswith("PyTorch"):
        found = getattr(pytest.importorskip("determined.pytorch"), owner)
    else:
        found = OWNERS[owner]
    missing = []
    for name, words in SIGNATURES[owner].items():
        if owner == "client" and f"determined.experimental.client.{name}" in GONE:
            continue
        method = inspect.getattr_static(found, name, None)
        if method is None:
            missing.append(name)
            continue
        taken = inspect.signature(
            method.__func__ if isinstance(method, classmethod | staticmethod) else method
        ).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            missing += [f"{name}({word})" for word in words.split() if word not in taken]
    assert missing == []


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> client.Experiment:
    """An experiment of two trials with two checkpoints each, and a log of three lines."""
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with Store(tmp_path) as store, ExitStack() as locked:
        row = store.experiments.create(name="mine", config=CONFIG, metric="error", labels=["a"])
        locked.enter_context(store.lock(row.id))
        for number, worst in ((1, 4.0), (2, 2.0)):
            trial = store.trials.create(row.id, number, {"lr": number}, 0)
            run = store.runs.begin(trial.id)
            run.log_dir.mkdir(parents=True)
            (run.log_dir / "rank-0.log").write_text("one\ntwo\n")
            (run.log_dir / "rank-1.log").write_text("three\n")
            for batches in (1, 2):
                values = {"error": worst / batches, "f1": batches / worst}
                store.metrics.report(trial.id, run.id, "training", batches, {"loss": 1.0})
                store.metrics.report(trial.id, run.id, "validation", batches, values)
                store.checkpoints.record(
                    f"{number}-{batches}", trial.id, run.id, batches, storage="{}", size=0
                )
    return client.get_experiment(row.id)


def test_checkpoints_are_chosen_by_any_metric(stored: client.Experiment) -> None:
    assert stored.top_checkpoint().uuid == "2-2"
    assert stored.top_checkpoint(sort_by="error", smaller_is_better=False).uuid == "1-1"
    assert stored.top_checkpoint("f1", False).uuid == "2-2"
    assert [c.uuid for c in stored.top_n_checkpoints(2, sort_by="f1", smaller_is_better=True)] == [
        "1-1",
        "2-1",
    ]
    trial = stored.get_trials()[0]
    assert trial.top_checkpoint(sort_by="f1", smaller_is_better=True).uuid == "1-1"
    assert trial.select_checkpoint(best=True, smaller_is_better=False).uuid == "1-1"
    assert [c.uuid for c in trial.get_checkpoints()] == ["1-2", "1-1"]
    with pytest.raises(
        CheckpointError, match="validation metric 'acc'; give one of those there are: error, f1"
    ):
        stored.top_checkpoint(sort_by="acc")
    with pytest.raises(DetError, match=r"list_trials\(sort_by='x'\): lists have one order only"):
        stored.list_trials("x")


def test_a_checkpoint_says_what_it_was_trained_by(stored: client.Experiment) -> None:
    best = stored.top_checkpoint()
    training = best.training
    assert (training.trial_id, training.experiment_id, training.hparams) == (
        2,
        stored.id,
        {"lr": 2},
    )
    assert (
        training.experiment_config["searcher"]["metric"]
        == best.experiment_config["searcher"]["metric"]
        == "error"
    )
    assert (
        training.validation_metrics["avgMetrics"] == best.validation["metrics"]["validationMetrics"]
    )
    assert best.validation_metrics == {"error": 1.0, "f1": 1.0}
    assert {m.group: m.metrics for m in best.get_metrics()} == {
        "training": {"loss": 1.0},
        "validation": best.validation_metrics,
    }


def test_metadata_of_a_checkpoint_is_changed_in_the_store(
    stored: client.Experiment, tmp_path: Path
) -> None:
    checkpoint = stored.top_checkpoint()
    checkpoint.add_metadata({"a": 1, "b": 2})
    checkpoint.remove_metadata(["b"])
    assert client.get_checkpoint("2-2").metadata == {"a": 1}
    checkpoint.write_metadata_file(tmp_path / "m.json")
    assert (tmp_path / "m.json").read_text() == '{\n  "a": 1\n}'


def test_model_of_the_registry_has_determineds_names(stored: client.Experiment) -> None:
    model = client.create_model("digits", "reads", {"a": 1}, labels=["x", "y"])
    assert model.get_version() is None
    first = model.register_version("1-1")
    assert (first.model_version, first.model_name, first.checkpoint.uuid) == (1, "digits", "1-1")
    assert isinstance(first.checkpoint, client.Checkpoint)
    model.register_version("2-2", name="v2")
    newest = model.get_version()
    assert newest is not None
    newest.set_notes("better")
    newest.set_name("best")
    newest.reload()
    assert (newest.name, newest.notes, newest.comment, newest.model_version_id) == (
        "best",
        "better",
        "better",
        2,
    )
    assert [each.model_version for each in model.get_versions()] == [2, 1]
    assert [each.uuid for each in model.list_versions()] == ["2-2", "1-1"]
    model.set_alias("production", 1)
    assert [model.get_version(v).uuid for v in (1, "production")] == ["1-1", "1-1"]  # type: ignore[union-attr]
    with pytest.raises(StoreError, match="model 'digits' has no version or alias '7'"):
        model.get_version(7)
    with pytest.raises(StoreError, match="checkpoint 2-2 is version 2 of model 'digits'"):
        client.get_checkpoint("2-2").delete()
    newest.delete()
    with pytest.raises(DetError, match=r"list_versions\(order_by='x'\): lists have one order only"):
        model.get_versions("x")


def test_models_are_found_and_described(stored: client.Experiment) -> None:
    digits = client.create_model("digits", "reads", labels=["x", "y"])
    faces = client.create_model("faces", metadata={"a": 1, "b": 2})
    faces.add_metadata({"a": 3, "c": 4})
    faces.remove_metadata(["b"])
    faces.set_labels(["y"])
    faces.set_description("finds")
    faces.reload()
    faces.archive()
    assert (faces.metadata, faces.description, faces.archived) == ({"a": 3, "c": 4}, "finds", True)
    assert faces.last_updated_time > faces.creation_time
    faces.unarchive()
    assert not faces.archived
    for found in (
        client.get_model("faces"),
        client.get_model(2),
        client.get_model("2"),
        client.get_model(name="faces"),
        client.get_model(model_id=2),
        client.get_model_by_id(2),
    ):
        assert (found.model_id, found.name) == (2, "faces")
    assert [each.name for each in client.list_models()] == ["digits", "faces"]
    assert [each.name for each in client.get_models(name="DIG")] == ["digits"]
    assert [each.name for each in client.list_models(description="find")] == ["faces"]
    assert client.Determined().get_models(model_id=9) == []
    assert client.get_model_labels() == ["y", "x"]
    digits.delete()
    assert [each.name for each in client.list_models()] == ["faces"]
    with pytest.raises(StoreError, match="no model with the number 1; list_models"):
        client.get_model(1)
    with pytest.raises(StoreError, match="no model 'digits'; det model list --all shows all"):
        client.get_model("digits")
    with pytest.raises(DetError, match="users and workspaces are those of a server"):
        client.Determined().create_model("x", workspace_name="w")
    with pytest.raises(DetError, match="users and workspaces are those of a server"):
        client.list_models(workspace_ids=[1])


def test_labels_trials_and_experiments_are_listed(stored: client.Experiment) -> None:
    stored.add_label("b")
    stored.remove_label("a")
    stored.reload()
    assert stored.labels == ["b"]
    assert [trial.id for trial in stored.iter_trials()] == [1, 2]
    assert [
        e.id
        for e in client.list_experiments(
            labels=["b"], name="MIN", states=[client.ExperimentState.ACTIVE]
        )
    ] == [1]
    assert (
        client.list_experiments(labels=["a"]) == client.list_experiments(experiment_ids=[9]) == []
    )
    with pytest.raises(DetError, match="users and workspaces are those of a server"):
        client.list_experiments(users=["me"])


def test_limit_of_experiments_counts_those_that_match(
    stored: client.Experiment, tmp_path: Path
) -> None:
    with Store(tmp_path) as store:
        store.experiments.create(name="newer", config=CONFIG, metric="error")
    found = client.Determined().list_experiments(name="mine", limit=1)
    assert [each.id for each in found] == [stored.id]


def test_logs_and_metrics_of_a_trial_are_chosen(stored: client.Experiment) -> None:
    trial = stored.list_trials()[0]
    assert [*trial.iter_logs()] == [*trial.logs()] == ["one\n", "two\n", "three\n"]
    assert (
        [*trial.iter_logs(tail=1)]
        == [*trial.iter_logs(rank_ids=[1])]
        == [*trial.logs(search_text="th")]
        == ["three\n"]
    )
    assert [*trial.iter_logs(head=1)] == ["one\n"]
    with pytest.raises(
        DetError,
        match=r"iter_logs\(min_level=3\): logs are files here; use rank_ids or search_text",
    ):
        trial.iter_logs(min_level=3)
    assert [(m.steps_completed, m.metrics) for m in trial.stream_training_metrics()] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 1.0}),
    ]
    of_all = [(m.trial_id, m.batches) for m in client.iter_trials_metrics([1, 2], "validation")]
    assert of_all == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_master_without_a_sign_in_is_mentioned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    _masters._warn.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.login(master="http://x:8080", user="u")
        client.Determined("http://x", "u")
        client.Determined(master="35.1.1.1")
    assert [str(each.message) for each in caught] == [
        "nobody has signed in to the master that is named (det login URL), so it is not asked;"
        " experiments are those of det's home, $DET_HOME"
    ]
    with pytest.raises(DetError, match="is plain http to another machine"):
        client.login("http://x:8080", "u", "p")


@pytest.mark.parametrize(
    ("owner", "name"), [(cls, name) for cls, names, _ in METHODS for name in names]
)
def test_a_method_that_is_gone_says_what_to_use(owner: str, name: str) -> None:
    cls = getattr(client, owner.rpartition(".")[2])
    [instead] = [text for each, names, text in METHODS if each == owner and name in names]
    with pytest.raises(DetError) as caught:
        getattr(object.__new__(cls), name)("m", description="d")
    assert str(caught.value) == f"{owner}.{name} is not in det; {instead}"


def test_a_script_alerts_in_its_log_and_keeps_no_metadata(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with core.init() as context:
        context.alert(title="slow", description="the disk is full", level="warn")
        with pytest.raises(
            DetError,
            match=r"set_metadata is not in det; give it to checkpoint.store_path\(metadata\)",
        ):
            context.train.set_metadata({"a": 1})
        with pytest.raises(DetError, match="get_metadata is not in det"):
            context.train.get_metadata()
    assert "alert warn: slow: the disk is full\n" in capsys.readouterr().err


def test_ranks_of_deepspeed_are_those_of_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    numbers = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_SIZE": "1",
        "CROSS_RANK": "0",
    }
    for name, number in numbers.items():
        monkeypatch.setenv(name, number)
    monkeypatch.delenv("CROSS_SIZE", raising=False)
    with pytest.raises(
        DetError, match="CROSS_SIZE are not set; start the ranks with det launch torch"
    ):
        core.DistributedContext.from_deepspeed()
    monkeypatch.setenv("CROSS_SIZE", "1")
    with core.DistributedContext.from_deepspeed() as ranks:
        assert isinstance(ranks, det_core.DistributedContext)
        assert (ranks.rank, ranks.size) == (0, 1)


class Blob:
    """A blob that answers at the third time."""

    def __init__(self) -> None:
        self.asked = 0

    def download_as_string(self) -> bytes:
        self.asked += 1
        if self.asked < 3:
            raise OSError("busy")
        return b"data"


def test_what_examples_took_from_util_works(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = util.merge_dicts({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}})
    assert merged == {"a": {"b": 4, "c": 2}, "d": {"e": 5}}
    monkeypatch.setattr(util.time, "sleep", lambda seconds: None)
    assert util.download_gcs_blob_with_backoff(Blob(), n_retries=3) == b"data"
    with pytest.raises(OSError, match="busy"):
        util.download_gcs_blob_with_backoff(Blob(), n_retries=2)
