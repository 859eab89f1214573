"""Checkpoints of Determined that are copied into det's form, and training from them."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_migrate.conftest import Migrate
from tests.det_migrate.eras import SECRET, UUIDS, Tables, at_least, change, dump
from tests.det_migrate.imported import invoke, one_trial

from det_core.checkpoint import read_checkpoint
from det_core.config import Length
from det_core.errors import StorageError, StoreError
from det_core.hooks import Plugins
from det_core.ranks.distributed import DistributedContext
from det_core.storage import LocalStorage
from det_core.train.adapter import RunInfo
from det_core.train.entrypoint import load_trial, make_importable
from det_core.train.host import Target
from det_core.train.local import LocalHost
from det_core.train.run import run_trial
from det_core.train.saving import CheckpointSink
from det_driver.client import Client
from det_driver.driver import collect_left, reopen
from det_driver.driver._garbage import expect_garbage
from det_driver.store import Store
from det_migrate.adoption import adopt, framework_of

torch = pytest.importorskip("torch")
pytest.importorskip("det_torch")
import numpy as np  # noqa: E402

CODE = """
import torch
from torch import nn
from det_torch import DataLoader, LRScheduler, PyTorchTrial


class T(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if context.get_hparam("scaled"):
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=150))
        self.model = context.wrap_model(nn.Linear(1, 1))
        adam = torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr"))
        self.optimizer = context.wrap_optimizer(adam)
        decay = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        context.wrap_lr_scheduler(decay, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def data(self):
        x = torch.linspace(-1, 1, 64).reshape(-1, 1)
        return DataLoader(torch.utils.data.TensorDataset(x, 3 * x + 1), batch_size=16)

    build_training_data_loader = build_validation_data_loader = data

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        if self.context.get_hparam("scaled"):
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
        else:
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"error": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
"""
CONST = f"hyperparameters: {{pad_token: x}}\ncheckpoint_storage: {{access_key: {SECRET}}}\n"
FIRST, LAST = 100, 400
ERAS = ("0.12.0", "0.13.0", "0.17.0", "0.28.1")


class Alone:
    """The same training in plain PyTorch, whose state Determined would have saved."""

    def __init__(self, scaled: bool) -> None:
        torch.manual_seed(5)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=150) if scaled else None
        )
        self.batches = 0

    def train(self, until: int) -> None:
        x = torch.linspace(-1, 1, 64).reshape(-1, 1)
        while self.batches < until:
            part = x[self.batches % 4 * 16 :][:16]
            loss = torch.nn.functional.mse_loss(self.model(part), 3 * part + 1)
            self.optimizer.zero_grad()
            if self.scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
            self.batches += 1

    def save(self, era: str, directory: Path) -> None:
        """Write a checkpoint with the files and keys of an era."""
        (directory / "code").mkdir(parents=True)
        (directory / "code" / "model_def.py").write_text(CODE)
        (directory / "code" / "const.yaml").write_text(CONST)
        parts = {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "lr_scheduler": self.scheduler.state_dict(),
        }
        if era != "0.12.0":
            plural = ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict")
            parts = dict(zip(plural, ([each] for each in parts.values()), strict=True))
            generators = (torch.get_rng_state(), np.random.get_state(), random.getstate())
            names = ("cpu_rng_state", "np_rng_state", "random_rng_state")
            parts |= {"callbacks": {}, "rng_state": dict(zip(names, generators, strict=True))}
        if self.scaler is not None:
            parts["scaler_state_dict"] = self.scaler.state_dict()
        torch.save(parts, directory / "state_dict.pth")
        config = {"entrypoint": "model_def:T", "checkpoint_storage": {"access_key": SECRET}}
        facts = {"trial_type": "PyTorchTrial", "experiment_config": config, "hparams": {"lr": 0.05}}
        if era == "0.12.0":
            torch.save(self.model, directory / "model.pth")
            (directory / "metadata.json").write_text(json.dumps(facts))
        elif era == "0.17.0":
            (directory / "workload_sequencer.pkl").write_bytes(
                pickle.dumps({"latest_batch": FIRST})
            )
        elif era == "0.28.1":
            (directory / "load_data.json").write_text(
                json.dumps({**facts, "trial_cls_spec": "model_def:T"})
            )
            (directory / "metadata.json").write_text(json.dumps({"steps_completed": FIRST}))
            (directory / "trial_state.pkl").write_bytes(pickle.dumps({"batches_trained": FIRST}))


def single(era: str, place: Path, state: str = "ERROR", **searcher: Any) -> Tables:
    """Return the tables of an experiment with one trial, which has not come to its end."""
    return one_trial(
        era,
        place,
        {"model_def.py": CODE, "const.yaml": CONST},
        entrypoint="model_def:T",
        hparams={"lr": 0.05, "scaled": at_least(era, "0.17.0"), "global_batch_size": 16},
        length=LAST,
        state=state,
        searcher=searcher,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the directory of the cluster's checkpoints."""
    return tmp_path / "shared"


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("model_def", None)


def go_on(home: Path, experiment: int = 3, *, trial_id: int | None = None) -> str:
    """Train the trial of an experiment to its end, as a run does; return the last checkpoint.

    Another `trial_id` starts from the weights of the trial's checkpoint.
    """
    plugins = Plugins.installed()
    with Store.reader(home) as store:
        [trial] = store.trials.list(experiment)
        config, code = store.experiments.config(experiment), store.code_dir(experiment)
    make_importable(code)
    chosen = load_trial("model_def:T", code)
    framework, storage = (
        plugins.framework_of(chosen),
        plugins.storage_of(config, home / "checkpoints"),
    )
    info = RunInfo(
        config=config,
        hparams=trial.hparams,
        seed=trial.seed,
        build=plugins.build(framework.name),
        distributed=DistributedContext(),
        trial_id=trial.id if trial_id is None else trial_id,
        checkpoint=trial.latest_checkpoint,
        length=Length("batches", LAST),
        code_dir=code,
    )
    host = LocalHost(Target(n=LAST), metric="error")
    run_trial(framework, chosen, info, host, CheckpointSink(storage=storage))
    return host.checkpoints[-1][0].uuid


def assert_equal(directory: Path, alone: Alone) -> None:
    """Compare what a checkpoint holds with the plain training, bit for bit."""
    state = torch.load(directory / "state_dict.pth", weights_only=True)
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(state["models_state_dict"][0][name], weight)
    moments = alone.optimizer.state_dict()["state"]
    for index, own in state["optimizers_state_dict"][0]["state"].items():
        assert all(
            torch.equal(own[name], moments[index][name])
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
    assert state["lr_schedulers_state_dict"][0]["last_epoch"] == LAST
    if alone.scaler is not None:
        assert state["scaler_state_dict"] == alone.scaler.state_dict()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("state", ["ERROR", "ACTIVE"])
def test_training_goes_on_from_a_checkpoint_of_every_era(
    bring: Migrate, home: Path, place: Path, era: str, state: str
) -> None:
    """Weights, optimizer, scheduler, scaler and position.

    All of them are those of an uninterrupted training.
    """
    alone = Alone(scaled=at_least(era, "0.17.0"))
    alone.train(FIRST)
    alone.save(era, place / UUIDS[0])
    before = content(place)
    bring(single(era, place, state))
    done = invoke(home, "migrate", "checkpoints", "3")
    assert done.stdout.splitlines() == [
        "copied 1 checkpoints of experiment 3",
        "go on with it: det resume 3",
    ]
    with Store(home) as store:
        reopen(store, 3)
        [trial] = store.trials.list(3)
        assert str(trial.state) == "PAUSED"
    alone.train(LAST)
    assert_equal(home / "checkpoints" / go_on(home), alone)
    assert content(place) == before
    assert not [path for path, data in content(home).items() if SECRET.encode() in data]


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.process
def test_det_resume_ends_what_determined_began(bring: Migrate, home: Path, place: Path) -> None:
    alone = Alone(scaled=True)
    alone.train(FIRST)
    alone.save("0.17.0", place / UUIDS[0])
    bring(single("0.17.0", place))
    invoke(home, "migrate", "checkpoints", "3")
    done = invoke(home, "resume", "3", "--in-process", "--quiet")
    assert done.exit_code == 0, done.output
    with Store.reader(home) as store:
        [trial] = store.trials.list(3)
        assert (str(trial.state), trial.batches) == ("COMPLETED", LAST)
        assert [m.batches for m in store.metrics.read(trial_id=trial.id, group="training")] == [
            100,
            200,
            300,
            400,
        ]
        latest = str(trial.latest_checkpoint)
    alone.train(LAST)
    assert_equal(home / "checkpoints" / latest, alone)


def test_a_new_trial_starts_from_the_weights_of_a_search(
    bring: Migrate, home: Path, place: Path
) -> None:
    alone = Alone(scaled=True)
    alone.train(FIRST)
    alone.save("0.17.0", place / UUIDS[0])
    bring(single("0.17.0", place, "COMPLETED", name="random", max_trials=1))
    done = invoke(home, "migrate", "checkpoints", "3", "--to", str(home / "checkpoints"))
    assert (
        done.stdout.splitlines()[-1]
        == "it cannot be resumed: experiment 3 is completed; start another with"
        " searcher.source_trial_id"
    )
    with Store(home) as store:
        with pytest.raises(StoreError, match="experiment 3 is completed"):
            reopen(store, 3)
        assert store.trials.get(5).latest_checkpoint == UUIDS[0]
    last = go_on(home, trial_id=77)
    state = torch.load(home / "checkpoints" / last / "state_dict.pth", weights_only=True)
    # The weights are taken, and the batches are counted from the start.
    assert state["optimizers_state_dict"][0]["state"][0]["step"] == FIRST + LAST
    assert json.loads((home / "checkpoints" / last / "loop.json").read_text())["batches"] == LAST


def two(place: Path) -> Tables:
    """Return the tables of a trial with two checkpoints, at 100 and 200 batches."""
    made = single("0.17.0", place)
    change(made, "raw_checkpoints", 1, state="COMPLETED")
    return made


def test_copies_are_deleted_by_name_only(bring: Migrate, home: Path, place: Path) -> None:
    for uuid in UUIDS:
        Alone(scaled=True).save("0.17.0", place / uuid)
    bring(two(place))
    kept = home.parent / "kept"
    assert adopt(home, 3, to=str(kept)).copied == [*UUIDS]
    client = Client(home)
    with Store(home) as store:
        config = json.loads(store.experiments.get(3).config)
        storage = {**config["checkpoint_storage"], "save_trial_best": 0, "save_trial_latest": 0}
        store.experiments.update(3, config=json.dumps({**config, "checkpoint_storage": storage}))
        expect_garbage(store, 3)
        assert collect_left(store, Plugins.installed()) == {3: []}
    client.get_checkpoint(UUIDS[0]).delete()
    assert [path.name for path in kept.iterdir()] == [UUIDS[1]]
    assert client.get_experiment(3).delete() == [UUIDS[1]]
    assert [path.name for path in kept.iterdir()] == [UUIDS[1]]
    assert sorted(path.name for path in place.iterdir()) == [*UUIDS]


def test_what_is_missing_is_named_and_can_be_copied_later(
    bring: Migrate, home: Path, place: Path
) -> None:
    Alone(scaled=True).save("0.17.0", place / UUIDS[0])
    bring(two(place))
    done = invoke(home, "migrate", "checkpoints", "3")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].startswith(
        f"not copied: {UUIDS[1]}: no checkpoint {UUIDS[1]} in {place}"
    )
    with Store.reader(home) as store:
        assert store.trials.get(5).latest_checkpoint == UUIDS[0]
    other = home.parent / "found"
    Alone(scaled=True).save("0.17.0", other / UUIDS[1])
    again = invoke(home, "migrate", "checkpoints", "3", "--from", str(other))
    assert again.stdout.splitlines() == [
        "copied 1 checkpoints of experiment 3, 1 were there already",
        "go on with it: det resume 3",
    ]
    with Store.reader(home) as store:
        assert store.trials.get(5).latest_checkpoint == UUIDS[1]
    with pytest.raises(StoreError, match="have been copied to another storage"):
        adopt(home, 3, to=str(other))


def test_unrecorded_copy_is_recorded_by_the_next_call(
    bring: Migrate, home: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Alone(scaled=True).save("0.17.0", place / UUIDS[0])
    bring(single("0.17.0", place))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("det_driver.store._checkpoints.Checkpoints.adopt", killed)
        with pytest.raises(KeyboardInterrupt):
            adopt(home, 3)
    assert adopt(home, 3).copied == [UUIDS[0]]
    with read_checkpoint(LocalStorage(home / "checkpoints"), UUIDS[0]) as (_, manifest):
        assert (manifest.framework, manifest.batches, manifest.trial_id) == ("torch", 100, 5)


def test_option_copies_checkpoints_with_the_history(home: Path, place: Path) -> None:
    Alone(scaled=True).save("0.17.0", place / UUIDS[0])
    file = home.parent / "dump.sql"
    file.write_bytes(dump(single("0.17.0", place)))
    done = invoke(home, "migrate", str(file), "--checkpoints", "copy", "--verify")
    assert done.stdout.splitlines()[-4:] == [
        "verified: 1 trials, as they are stored, were compared with the source",
        "look at them: det list",
        "copied 1 checkpoints of experiment 3",
        "go on with it: det resume 3",
    ]
    again = invoke(home, "migrate", str(file), "--verify")
    assert again.exit_code == 0
    assert "experiment 3 has gone on here and is not compared" in again.stdout


@pytest.mark.parametrize(
    ("files", "framework"),
    [
        (["state_dict.pth"], "torch"),
        (["determined/state_dict.pth"], "torch"),
        (["determined-keras-model-weights.index"], "keras"),
        (["determined-keras-model.h5"], "keras"),
        (["saved_model/saved_model.pb"], "keras"),
        (["serving/1600000000/saved_model.pb"], "estimator"),
        (["model.ckpt-3.index"], "estimator"),
        (["det_state_dict_rank0.pth"], ""),
    ],
)
def test_the_files_say_which_framework_wrote_a_checkpoint(files: list[str], framework: str) -> None:
    assert framework_of(files) == framework


def test_what_cannot_be_copied_says_why(bring: Migrate, home: Path, place: Path) -> None:
    Alone(scaled=True).save("0.17.0", place / UUIDS[0])
    bring(single("0.17.0", place))
    assert "where it lies already" in adopt(home, 3, to=str(place)).failed[UUIDS[0]]
    with pytest.raises(StorageError, match="ftp://x is no storage; give a directory"):
        adopt(home, 3, to="ftp://x")
    (home / "experiments/3/determined.json").unlink()
    with pytest.raises(StoreError, match="experiment 3 was not imported from Determined"):
        adopt(home, 3)
