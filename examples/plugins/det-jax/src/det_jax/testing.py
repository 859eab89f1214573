"""The conformance kit's models in JAX: one with one weight, and one with all kinds of state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from det_core import TrialContext
from det_testing import OneVar

from . import state
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
        records = [
            x
            for batch in range(self.settings.batches_per_epoch)
            for x in self.settings.records(batch)
        ]
        return ArrayData(np.array(records, np.float32), shuffle=self.settings.shuffle)

    def loss(self, params: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        labels = batch
        if self.settings.noise:
            labels = batch * (
                1 + self.settings.noise * jax.random.uniform(key, batch.shape, minval=-1, maxval=1)
            )
        return jnp.mean((labels - params["w"] * batch) ** 2)

    def evaluate(self, params: Any, batch: jax.Array) -> dict[str, jax.Array]:
        return {"val_loss": jnp.mean((batch - params["w"] * batch) ** 2), "weight": params["w"]}


class StrictTrial(JaxTrial):
    """Has state of each kind that det-jax keeps between two batches.

    Two parts of the parameters have optimizers of their own, one with a schedule. The updates are
    averaged, features are dropped, and with `aggregation_frequency` gradients wait. An epoch has
    three batches.
    """

    def init_params(self, key: jax.Array) -> dict[str, jax.Array]:
        first, second = jax.random.split(key)
        return {"hidden": jax.random.normal(first, (3, 4)), "out": jax.random.normal(second, (4,))}

    def build_optimizer(self) -> optax.GradientTransformation:
        rates = optax.linear_schedule(0.05, 0.0, 20)
        each = {"adam": optax.adam(rates), "momentum": optax.sgd(0.02, momentum=0.9)}
        parts = {"hidden": "adam", "out": "momentum"}
        return optax.chain(optax.partition(each, parts), optax.ema(0.9))

    def build_data(self, split: str) -> ArrayData:
        size = self.context.get_global_batch_size()
        records = np.random.default_rng(3).normal(size=(3 * size, 3)).astype(np.float32)
        return ArrayData(records if split == "training" else records[:size] + 1, shuffle=True)

    def loss(self, params: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        return self._error(params, batch * jax.random.bernoulli(key, 0.8, batch.shape), batch)

    def evaluate(self, params: Any, batch: jax.Array) -> dict[str, jax.Array]:
        return {"val_loss": self._error(params, batch, batch)}

    def _error(self, params: Any, inputs: jax.Array, batch: jax.Array) -> jax.Array:
        found = jnp.tanh(inputs @ params["hidden"]) @ params["out"]
        return jnp.mean((found - batch.sum(1)) ** 2)


def contents(path: Path) -> dict[str, Any]:
    """Return all arrays of a checkpoint, by their places in the state."""
    with np.load(path / state.FILE) as saved:
        return dict(saved)


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
