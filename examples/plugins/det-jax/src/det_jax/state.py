"""Trees of arrays as files: arrays by their place in the tree, nothing pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from det_core import CheckpointError

FILE = "state.npz"


def save(state: Any, directory: Path) -> None:
    """Write the arrays of a tree."""
    leaves, _ = jax.tree.flatten_with_path(state)
    arrays: dict[str, Any] = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    np.savez(directory / FILE, **arrays)


def load(like: Any, directory: Path) -> Any:
    """Return what `save` wrote, in the shape of `like`.

    Raises CheckpointError where they differ, naming the array.
    """
    with np.load(directory / FILE, allow_pickle=False) as saved:
        known = set(saved.files)

        def restored(path: Any, leaf: Any) -> np.ndarray[Any, Any]:
            name = jax.tree_util.keystr(path)
            if name not in known:
                raise CheckpointError(
                    f"the checkpoint has no {name}; resume with the model and optimizer that"
                    " wrote it"
                )
            array, wanted = saved[name], np.asarray(leaf)
            if array.shape != wanted.shape or array.dtype.itemsize != wanted.dtype.itemsize:
                raise CheckpointError(
                    f"{name} is {array.dtype}{list(array.shape)} in the checkpoint, but"
                    f" {wanted.dtype}{list(wanted.shape)} in the trial; resume with the model and"
                    " optimizer that wrote it"
                )
            viewed: np.ndarray[Any, Any] = array.view(
                wanted.dtype
            )  # bfloat16 is not known to numpy's files
            return viewed

        return jax.tree.map_with_path(restored, like)
