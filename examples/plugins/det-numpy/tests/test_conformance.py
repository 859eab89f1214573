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
            return [np.array([1.0, 2.0])]
        return [np.array(self.settings.records(batch)) for batch in range(self.settings.batches_per_epoch)]

    def train_batch(self, params, batch, rng):
        labels = batch * (1 + self.settings.noise * rng.uniform(-1, 1)) if self.settings.noise else batch
        error = labels - params["w"] * batch
        params["w"] += self.settings.lr * 2 * np.mean(batch * error)
        return {"loss": np.mean(error**2)}

    def evaluate(self, params, batches):
        (batch,) = batches
        return {"val_loss": np.mean((batch - params["w"] * batch) ** 2), "weight": params["w"]}


class TestNumpy(AdapterSuite):
    @pytest.fixture
    def trial(self):
        return OneVarTrial
