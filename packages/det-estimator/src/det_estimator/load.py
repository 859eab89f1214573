"""A saved model out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import CheckpointError


def load_estimator_from_checkpoint_path(
    path: str | Path, tags: Sequence[str] | None = None, name: str | None = None
) -> Any:
    """Return the saved model of the checkpoint in the directory `path`, loaded by `tf.saved_model.load`.

    `name` is that which `build_serving_input_receiver_fns` gave it; it may be left out where there is one. Raises
    CheckpointError where there is none of that name, or more than one and no name.
    """
    directory = Path(path)
    models = {file.parent.name: file.parent for file in sorted(directory.glob("*/saved_model.pb"))}
    known = ", ".join(models) or "none"
    if name is None and len(models) != 1:
        raise CheckpointError(
            f"{directory} holds {len(models)} saved models ({known}); "
            + (
                "say which one by name"
                if models
                else "define build_serving_input_receiver_fns, which gives each checkpoint one"
            )
        )
    if name is not None and name not in models:
        raise CheckpointError(f"{directory} holds no saved model {name!r}; there are: {known}")
    chosen = models[name] if name is not None else next(iter(models.values()))
    return tf.saved_model.load(str(chosen), tags=list(tags) if tags else None)
