"""Trees of arrays survive a file, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from det_jax import state

from det_core import CheckpointError


def test_every_array_comes_back_as_it_was(tmp_path: Path) -> None:
    params = {"w": jnp.arange(3.0), "half": jnp.ones(2, jnp.bfloat16)}
    tree = {
        "params": params,
        "optimizer": optax.adam(0.1).init(params),
        "key": jax.random.key_data(jax.random.key(5)),
    }
    state.save(tree, tmp_path)
    loaded = state.load(jax.tree.map(jnp.zeros_like, tree), tmp_path)
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    for before, after in zip(jax.tree.leaves(tree), jax.tree.leaves(loaded), strict=True):
        assert before.dtype == after.dtype
        assert (before == after).all()


def test_an_array_of_another_shape_is_named(tmp_path: Path) -> None:
    state.save({"w": jnp.zeros(3)}, tmp_path)
    with pytest.raises(
        CheckpointError,
        match=r"\['w'\] is float32\[3\] in the checkpoint, but float32\[4\] in the trial",
    ):
        state.load({"w": jnp.zeros(4)}, tmp_path)


def test_an_array_that_is_missing_is_named(tmp_path: Path) -> None:
    state.save({"w": jnp.zeros(3)}, tmp_path)
    with pytest.raises(
        CheckpointError, match=r"the checkpoint has no \['b'\]; resume with the model"
    ):
        state.load({"w": jnp.zeros(3), "b": jnp.zeros(1)}, tmp_path)
