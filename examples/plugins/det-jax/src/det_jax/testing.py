"""The conformance kit's one-weight model, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from det_core import TrialContext
from det_testing import OneVar

from .data import ArrayData
from .trial import JaxTrial


class OneVarTrial(JaxTrial):
    """Trains the one-weight model; `det_testing.OneVar` says what must come of it."""

    def __init__(self, context: TrialContext) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())

    def init_params(self, key: jax.Array) -> dict[str, jax.Array]:
        return {"w": jnp.zeros(())}

    def build_optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(self.settings.lr)

    def build_data(self, split: str) -> ArrayData:
        if split == "validation":
            return ArrayData(np.array(self.settings.validation_records(), np.float32))
        records = [x for batch in range(self.settings.batches_per_epoch) for x in self.settings.records(batch)]
        return ArrayData(np.array(records, np.float32), shuffle=self.settings.shuffle)

    def loss(self, params: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        labels = batch
        if self.settings.noise:
            labels = batch * (1 + self.settings.noise * jax.random.uniform(key, batch.shape, minval=-1, maxval=1))
        return jnp.mean((labels - params["w"] * batch) ** 2)

    def evaluate(self, params: Any, batch: jax.Array) -> dict[str, jax.Array]:
        return {"val_loss": jnp.mean((batch - params["w"] * batch) ** 2), "weight": params["w"]}


class Finishing(OneVarTrial):
    """Doubles the weight at the end."""

    def finish(self, params: Any) -> Any:
        return jax.tree.map(lambda array: 2 * array, params)


class Scheduled(OneVarTrial):
    """Lets the learning rate fall to 0 at the trial's length."""

    def build_optimizer(self) -> optax.GradientTransformation:
        length = self.context.run.length
        assert length is not None
        return optax.sgd(optax.linear_schedule(self.settings.lr, 0.0, length.n))
