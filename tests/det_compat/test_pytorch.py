"""PyTorchTrials as Determined's users wrote them, run unmodified."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

CONST = """
    name: mnist_style
    entrypoint: model_def:MNistTrial
    hyperparameters:
      learning_rate: 0.05
      global_batch_size: 64
      n_filters1: 8
      dropout1: 0.25
    records_per_epoch: 1200
    searcher:
      name: single
      metric: accuracy
      smaller_is_better: false
      max_length:
        epochs: 2
    max_restarts: 0
"""
DIGITS = """
    import torch
    from sklearn.datasets import load_digits

    def dataset(train):
        images, labels = load_digits(return_X_y=True)
        cut = 1200
        images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        labels = torch.tensor(labels)
        part = slice(0, cut) if train else slice(cut, None)
        return torch.utils.data.TensorDataset(images[part], labels[part])
"""
MNIST = """
    from typing import Any, Dict, List, Sequence, Union, cast

    import numpy as np
    import torch
    from torch import nn
    from data import dataset

    import determined as det
    from determined import pytorch
    from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext, TorchData


    class PerClassAccuracy(pytorch.MetricReducer):
        def __init__(self):
            self.reset()

        def reset(self):
            self.right, self.seen = np.zeros(10), np.zeros(10)

        def update(self, labels, predictions):
            for label, prediction in zip(labels, predictions):
                self.seen[label] += 1
                self.right[label] += int(label == prediction)

        def per_slot_reduce(self):
            return self.right, self.seen

        def cross_slot_reduce(self, per_slot_metrics):
            right, seen = (sum(each) for each in zip(*per_slot_metrics))
            return {f"accuracy_{c}": float(r / s) for c, (r, s) in enumerate(zip(right, seen))}


    class MNistTrial(PyTorchTrial):
        def __init__(self, context: PyTorchTrialContext) -> None:
            self.context = context
            self.reducer = context.wrap_reducer(PerClassAccuracy(), for_training=False)
            self.worst = context.wrap_reducer(max, name="worst_loss", for_training=False)
            self.model = self.context.wrap_model(
                nn.Sequential(
                    nn.Conv2d(1, self.context.get_hparam("n_filters1"), 3, 1),
                    nn.ReLU(),
                    nn.Flatten(),
                    nn.Dropout(self.context.get_hparam("dropout1")),
                    nn.Linear(36 * self.context.get_hparam("n_filters1"), 10),
                    nn.LogSoftmax(dim=1),
                )
            )
            self.optimizer = self.context.wrap_optimizer(
                torch.optim.SGD(self.model.parameters(), lr=self.context.get_hparam("learning_rate"), momentum=0.9)
            )

        def build_training_data_loader(self) -> DataLoader:
            return DataLoader(dataset(train=True), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

        def build_validation_data_loader(self) -> DataLoader:
            return DataLoader(dataset(train=False), batch_size=self.context.get_per_slot_batch_size())

        def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, torch.Tensor]:
            batch = cast(Sequence[torch.Tensor], batch)
            data, labels = batch
            loss = torch.nn.functional.nll_loss(self.model(data), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch: TorchData) -> Dict[str, Any]:
            data, labels = cast(Sequence[torch.Tensor], batch)
            output = self.model(data)
            predictions = output.argmax(dim=1)
            self.reducer.update(labels, predictions)
            loss = torch.nn.functional.nll_loss(output, labels).item()
            self.worst.update(loss)
            return {"validation_loss": loss, "accuracy": (predictions == labels).float().mean().item()}
"""


def test_an_mnist_style_trial_with_custom_reducers(det: Any, write: Any) -> None:
    write(const__yaml=CONST, model_def__py=MNIST, data__py=DIGITS)
    det("experiment", "create", "const.yaml", ".", "-f")
    last = det.metrics(1, "validation")[-1]
    assert last["accuracy"] > 0.8
    assert set(last) >= {*(f"accuracy_{c}" for c in range(10)), "worst_loss", "validation_loss"}
    assert last["worst_loss"] >= last["validation_loss"]


GAN = """
    import torch
    from torch import nn
    from data import dataset
    from determined.pytorch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial


    class Saves(PyTorchCallback):
        def __init__(self):
            self.saved = 0

        def on_checkpoint_save_start(self, checkpoint):
            checkpoint["saved_before"] = self.saved
            self.saved += 1

        def on_checkpoint_load_start(self, checkpoint):
            print("restored a checkpoint after", checkpoint["saved_before"], "others", flush=True)

        def on_checkpoint_end(self, checkpoint_dir):
            print("checkpoint in a directory", flush=True)

        def state_dict(self):
            return {"saved": self.saved}

        def load_state_dict(self, state_dict):
            self.saved = state_dict["saved"]


    class GANTrial(PyTorchTrial):
        def __init__(self, context):
            self.context = context
            self.generator = context.wrap_model(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)))
            self.discriminator = context.wrap_model(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)))
            lr = context.get_hparam("lr")
            self.opt_g = context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), lr=lr))
            self.opt_d = context.wrap_optimizer(torch.optim.Adam(self.discriminator.parameters(), lr=lr))
            context.wrap_lr_scheduler(
                torch.optim.lr_scheduler.ExponentialLR(self.opt_d, 0.99), step_mode=LRScheduler.StepMode.STEP_EVERY_BATCH
            )

        def build_training_data_loader(self):
            return DataLoader(dataset(train=True), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

        def build_validation_data_loader(self):
            return DataLoader(dataset(train=False), batch_size=self.context.get_per_slot_batch_size())

        def build_callbacks(self):
            return {"saves": Saves()}

        def train_batch(self, batch, epoch_idx, batch_idx):
            images = batch[0].flatten(1)
            noise = torch.randn(len(images), 8)
            loss_of = nn.functional.binary_cross_entropy_with_logits
            real, fake = torch.ones(len(images), 1), torch.zeros(len(images), 1)
            for p in self.discriminator.parameters():
                p.requires_grad = False
            g_loss = loss_of(self.discriminator(self.generator(noise)), real)
            self.context.backward(g_loss)
            self.context.step_optimizer(self.opt_g)
            for p in self.discriminator.parameters():
                p.requires_grad = True
            d_loss = loss_of(self.discriminator(images), real) + loss_of(self.discriminator(self.generator(noise).detach()), fake)
            self.context.backward(d_loss)
            self.context.step_optimizer(self.opt_d, clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, 1.0))
            return {"loss": d_loss, "g_loss": g_loss, "d_loss": d_loss}

        def evaluate_full_dataset(self, data_loader):
            right = sum((self.discriminator(batch[0].flatten(1)) > 0).sum().item() for batch in data_loader)
            return {"believed": right / 597}
"""
GAN_CONST = """
    name: gan
    entrypoint: model_def:GANTrial
    hyperparameters: {lr: 0.001, global_batch_size: 100}
    searcher: {name: single, metric: believed, smaller_is_better: false, max_length: {batches: 24}}
    min_checkpoint_period: {batches: 8}
    min_validation_period: {batches: 12}
    max_restarts: 1
"""


@pytest.mark.thorough
def test_a_gan_with_two_optimizers_and_checkpoint_hooks(det: Any, write: Any) -> None:
    """It dies once, behind its second checkpoint, and goes on from there."""
    once = """
    import os, pathlib
    MARK = pathlib.Path(os.environ["DET_TENSORBOARD_DIR"]).parent / "died"
    """
    model = GAN.replace(
        "            images = batch[0].flatten(1)\n            noise",
        "            if batch_idx == 12 and not MARK.exists():\n               "
        " MARK.parent.mkdir(parents=True, exist_ok=True); MARK.touch(); os._exit(3)\n           "
        " images = batch[0].flatten(1)\n            noise",
    )
    write(const__yaml=GAN_CONST, model_def__py=once + model, data__py=DIGITS)
    det("e", "create", "const.yaml", ".", "-f")
    logs = det("e", "logs", "1").stdout
    assert "restored a checkpoint after 1 others" in logs
    assert logs.count("checkpoint in a directory") == 4
    reports = det.metrics(1, "training")
    assert reports[-1]["batches"] == 24
    assert set(reports[-1]) >= {"loss", "g_loss", "d_loss"}


CONSTRAINED = """
    import determined as det
    from determined.pytorch import PyTorchTrial, PyTorchTrialContext
    from model_def import MNistTrial


    class ConstrainedTrial(MNistTrial):
        def __init__(self, context: PyTorchTrialContext) -> None:
            if context.get_hparam("n_filters1") > 8 and context.get_hparam("dropout1") < 0.2:
                raise det.InvalidHP("too many filters for so little dropout")
            super().__init__(context)
"""
CONSTRAINED_CONST = """
    name: hp_constraints
    entrypoint: constrained:ConstrainedTrial
    reproducibility: {experiment_seed: 1}
    hyperparameters:
      learning_rate: {type: log, minval: -3, maxval: -1, base: 10}
      global_batch_size: {type: const, val: 64}
      n_filters1: {type: categorical, vals: [4, 8, 16, 32]}
      dropout1: {type: double, minval: 0.0, maxval: 0.4}
    searcher:
      name: random
      metric: accuracy
      smaller_is_better: false
      max_trials: 4
      max_length: {batches: 6}
    max_restarts: 0
"""


@pytest.mark.thorough
def test_a_search_with_constraints_replaces_what_cannot_work(det: Any, write: Any) -> None:
    write(
        constrained__yaml=CONSTRAINED_CONST,
        constrained__py=CONSTRAINED,
        model_def__py=MNIST,
        data__py=DIGITS,
    )
    det("experiment", "create", "constrained.yaml", ".", "-f")
    trials = det.json("show", "1")["trials"]
    states = [trial["state"] for trial in trials]
    assert states.count("COMPLETED") == 4
    assert states.count("INVALID_HP") >= 1
    for trial in trials:
        bad = trial["hparams"]["n_filters1"] > 8 and trial["hparams"]["dropout1"] < 0.2
        assert (trial["state"] == "INVALID_HP") == bad


def test_the_trainer_of_a_script(det: Any, write: Any) -> None:
    script = """
    import determined as det
    from determined import pytorch
    from model_def import MNistTrial

    def main():
        info = det.get_cluster_info()
        hparams = info.trial.hparams if info else {"learning_rate": 0.05, "global_batch_size": 64, "n_filters1": 4, "dropout1": 0.1}
        with pytorch.init(hparams=hparams) as train_context:
            trial = MNistTrial(train_context)
            trainer = pytorch.Trainer(trial, train_context)
            trainer.fit(
                max_length=pytorch.Batch(12),
                validation_period=pytorch.Batch(6),
                latest_checkpoint=info.latest_checkpoint if info else None,
            )

    if __name__ == "__main__":
        main()
    """
    const = CONST.replace(
        "entrypoint: model_def:MNistTrial", "entrypoint: python3 train.py"
    ).replace("      max_length:\n        epochs: 2\n", "")
    write(const__yaml=const, train__py=script, model_def__py=MNIST, data__py=DIGITS)
    det("e", "create", "const.yaml", ".", "-f")
    assert [row["batches"] for row in det.metrics(1, "validation")] == [6, 12]


@pytest.mark.thorough
def test_a_writer_of_determined_writes_where_tensorboard_looks(det: Any, write: Any) -> None:
    pytest.importorskip("tensorboard")
    written = """
    from determined.tensorboard.metric_writers.pytorch import TorchWriter
    from model_def import MNistTrial


    class Written(MNistTrial):
        def __init__(self, context):
            super().__init__(context)
            self.logger = TorchWriter()

        def train_batch(self, batch, epoch_idx, batch_idx):
            self.logger.add_scalar("mine", float(batch_idx), batch_idx)
            self.logger.writer.add_histogram("labels", batch[1], batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)
    """
    const = CONST.replace("model_def:MNistTrial", "written:Written").replace(
        "epochs: 2", "batches: 3"
    )
    write(const__yaml=const, written__py=written, model_def__py=MNIST, data__py=DIGITS)
    det("e", "create", "const.yaml", ".", "-f")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in det.home.glob("experiments/1/**/events*"):
        events = EventAccumulator(str(file), size_guidance={"histograms": 0})
        events.Reload()
        found |= {
            tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
        found |= {tag: len(events.Histograms(tag)) for tag in events.Tags()["histograms"]}
    assert found["mine"] == [0, 1, 2]
    assert found["labels"] == 3
    from determined.tensorboard.metric_writers.pytorch import TorchWriter

    TorchWriter().add_scalar("outside of a run", 1.0, 0)


def test_types_that_were_warned_of_are_taken() -> None:
    import torch

    from determined.pytorch import to_device

    batch = {"x": torch.ones(2), "name": object()}
    with pytest.warns(UserWarning, match="a object in a batch was not moved"):
        moved = to_device(batch, torch.device("cpu"), warned_types={str})
    assert moved["x"].device.type == "cpu"


def test_all_names_of_the_pytorch_api_are_there() -> None:
    from determined import pytorch
    from determined.pytorch import samplers

    for module in (pytorch, samplers):
        names = [name for name in dir(module) if not name.startswith("_") and name != "lightning"]
        assert [name for name in names if getattr(module, name, None) is None] == []


def test_a_trial_is_a_trial_of_determined() -> None:
    import determined as det
    from determined.pytorch import PyTorchTrial

    assert issubclass(PyTorchTrial, det.Trial)
    assert not issubclass(dict, det.Trial)
