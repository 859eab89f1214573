"""det-jax keeps the contract of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from det_jax.testing import Finishing, OneVarTrial, Scheduled, StrictTrial, contents

from det_testing import AdapterSuite, OneVar


class TestJax(AdapterSuite):
    @pytest.fixture
    def trial(self) -> type:
        return OneVarTrial

    @pytest.fixture
    def strict_trial(self) -> type:
        return StrictTrial

    @pytest.fixture
    def strict_settings(self) -> dict[str, Any]:
        return {"aggregation": 2}

    @pytest.fixture
    def contents(self) -> Any:
        return contents

    @pytest.fixture
    def variants(self) -> dict[str, type]:
        return {"finishing": Finishing, "scheduled": Scheduled}

    @pytest.fixture
    def evaluate(self) -> Any:
        return evaluated

    @pytest.fixture
    def plain(self) -> Any:
        return trained


def evaluated(trial: type, path: Path, settings: OneVar) -> dict[str, float]:
    """numpy and JAX alone read a checkpoint, and validate."""
    with np.load(path / "state.npz") as saved:
        return validated(jnp.asarray(saved["['params']['w']"]), settings)


def trained(trial: type, settings: OneVar, batches: int) -> tuple[list[float], dict[str, float]]:
    """JAX and optax alone train."""
    lr = optax.linear_schedule(settings.lr, 0.0, batches) if trial is Scheduled else settings.lr
    optimizer, w, losses = optax.sgd(lr), jnp.zeros(()), []

    @jax.jit
    def step(w: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch - w * batch) ** 2))(w)
        updates, state = optimizer.update(gradient, state, w)
        return optax.apply_updates(w, updates), state, loss

    state = optimizer.init(w)
    for number in range(batches):
        w, state, loss = step(
            w, state, jnp.array(settings.records(number % settings.batches_per_epoch))
        )
        losses.append(loss.item())
    return losses, validated(2 * w if trial is Finishing else w, settings)


@jax.jit
def _loss(w: jax.Array, batch: jax.Array) -> jax.Array:
    return jnp.mean((batch - w * batch) ** 2)


def validated(w: jax.Array, settings: OneVar) -> dict[str, float]:
    return {
        "val_loss": _loss(w, jnp.array(settings.validation_records())).item(),
        "weight": w.item(),
    }
