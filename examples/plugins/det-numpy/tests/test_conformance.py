"""det-numpy keeps the contract of adapters."""

import numpy as np
import pytest
from det_numpy import NumpyTrial

from det_testing import AdapterSuite, OneVar


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
        return [np.array(self.settings.records(batch)) for batch in range(self.settings.batches_per_epoch)]

    def train_batch(self, params, batch, rng):
        labels = batch * (1 + self.settings.noise * rng.uniform(-1, 1)) if self.settings.noise else batch
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


class TestNumpy(AdapterSuite):
    @pytest.fixture
    def trial(self):
        return OneVarTrial

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
