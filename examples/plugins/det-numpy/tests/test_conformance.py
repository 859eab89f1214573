"""det-numpy keeps the contract of adapters."""

import dataclasses
import json

import numpy as np
import pytest
from det_numpy import NumpyTrial
from det_numpy.adapter import NumpyAdapter

from det_core import Plugins
from det_testing import SAVES_EACH, AdapterSuite, OneVar, Runs, resumed_differences


class OneVarTrial(NumpyTrial):
    """The kit's model of one weight."""

    def __init__(self, hparams):
        super().__init__(hparams)
        self.settings = OneVar.of(hparams)
        self.shuffle = self.settings.shuffle

    def build_params(self, rng):
        return {"w": np.zeros(())}

    def build_batches(self, split):
        if split == "validation":
            return [np.array(self.settings.validation_records())]
        return [
            np.array(self.settings.records(batch))
            for batch in range(self.settings.batches_per_epoch)
        ]

    def train_batch(self, params, batch, rng):
        labels = (
            batch * (1 + self.settings.noise * rng.uniform(-1, 1)) if self.settings.noise else batch
        )
        error = labels - params["w"] * batch
        params["w"] += self.lr() * 2 * np.mean(batch * error)
        return {"loss": np.mean(error**2)}

    def evaluate(self, params, batches):
        (batch,) = batches
        return {"val_loss": np.mean((batch - params["w"] * batch) ** 2), "weight": params["w"]}

    def lr(self):
        return self.settings.lr


class Finishing(OneVarTrial):
    def finish(self, params):
        params["w"] *= 2


class Scheduled(OneVarTrial):
    batch = 0

    def lr(self):
        return self.settings.lr * (1 - self.batch / self.length)

    def train_batch(self, params, batch, rng):
        self.batch = int(params.setdefault("batches", np.zeros((), int)))
        params["batches"] += 1
        return super().train_batch(params, batch, rng)


class StrictTrial(NumpyTrial):
    """Has state of each kind that det-numpy keeps between two batches.

    Its weights have momentum and an average, its features are centred on a mean that is assigned
    anew, its rate falls with the steps, some features are dropped, and labels get numbers in the
    order in which they come. An epoch has three batches.
    """

    def build_params(self, rng):
        return {
            "weights": rng.normal(size=3),
            "momentum": np.zeros(3),
            "average": np.zeros(3),
            "mean": np.zeros(3),
            "steps": np.zeros((), int),
            "labels": np.zeros(5, int),
        }

    def build_batches(self, split):
        records = np.random.default_rng(3).normal(size=(3, 4, 3))
        return list(records if split == "training" else records[:1] + 1)

    def train_batch(self, params, batch, rng):
        params["steps"] += 1
        params["mean"] = 0.9 * params["mean"] + 0.1 * batch.mean(0)
        label = int(params["steps"]) * 3 % 5
        if not params["labels"][label]:
            params["labels"][label] = params["labels"].max() + 1
        x = (batch - params["mean"]) * (rng.random(3) < 0.8)
        error = x @ params["weights"] - batch.sum(1) - params["labels"][label]
        gradient = 2 * error @ x / len(batch)
        params["momentum"] = 0.9 * params["momentum"] + gradient
        params["weights"] = params["weights"] - 0.05 / params["steps"] * params["momentum"]
        params["average"] = 0.9 * params["average"] + 0.1 * params["weights"]
        return {"loss": np.mean(error**2)}

    def evaluate(self, params, batches):
        (batch,) = batches
        error = (batch - params["mean"]) @ params["average"] - batch.sum(1)
        return {"val_loss": np.mean(error**2)}


def contents(path):
    """Return all of a checkpoint that is det-numpy's."""
    with np.load(path / "params.npz") as saved:
        return {"params": dict(saved), "rng": json.loads((path / "rng.json").read_text())}


class TestNumpy(AdapterSuite):
    @pytest.fixture
    def trial(self):
        return OneVarTrial

    @pytest.fixture
    def strict_trial(self):
        return StrictTrial

    @pytest.fixture
    def contents(self):
        return contents

    @pytest.fixture
    def variants(self):
        return {"finishing": Finishing, "scheduled": Scheduled}

    @pytest.fixture
    def evaluate(self):
        return evaluated

    @pytest.fixture
    def plain(self):
        return trained


def evaluated(trial, path, settings):
    """numpy alone reads a checkpoint, and validates."""
    with np.load(path / "params.npz") as saved:
        return validated(saved["w"], settings)


def trained(trial, settings, batches):
    """numpy alone trains."""
    w, losses = 0.0, []
    for number in range(batches):
        batch = np.array(settings.records(number))
        error = batch - w * batch
        lr = settings.lr * (1 - number / batches) if trial is Scheduled else settings.lr
        w += lr * 2 * np.mean(batch * error)
        losses.append(np.mean(error**2))
    return losses, validated(2 * w if trial is Finishing else w, settings)


def validated(w, settings):
    batch = np.array(settings.validation_records())
    return {"val_loss": np.mean((batch - w * batch) ** 2), "weight": w}


# What the suite's strict model finds if an adapter leaves one item of the state out

AT = 4
"""The first batch of epoch 1."""
ITEMS = ["weights", "momentum", "average", "mean", "steps", "labels", "the generator"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    run = Runs(Plugins.installed(strict=True), StrictTrial, tmp_path_factory.mktemp("whole"))
    return run, run(7, schedule=SAVES_EACH)


def differences_without(whole, item):
    class Leaky(NumpyAdapter):
        def load(self, path):
            super().load(path)
            if item == "the generator":
                self._rng = np.random.default_rng(9)
            elif item is not None:
                assert self._params[item].any()
                self._params[item] = np.zeros_like(self._params[item])

    run, uninterrupted = whole
    leaky = dataclasses.replace(run.framework, load=lambda: Leaky)
    found = resumed_differences(
        run, 7, contents, positions=[AT], whole=uninterrupted, framework=leaky
    )
    return found.get(AT, [])


def test_nothing_is_found_where_nothing_is_left_out(whole):
    assert differences_without(whole, None) == []


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_that_is_left_out_is_found(whole, item):
    assert differences_without(whole, item)


def test_the_items_are_all_that_a_checkpoint_holds(whole):
    run, uninterrupted = whole
    found = contents(run.storage.root / uninterrupted.checkpoints[AT])
    assert [*found["params"], "the generator"] == ITEMS
