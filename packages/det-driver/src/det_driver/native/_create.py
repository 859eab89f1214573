"""`create`: a script with a trial class that is its own experiment."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from det_core.errors import DetError

from ._begin import begin
from ._loading import LOADING, take_over
from ._local import LocalResult, train_here
from ._mode import Mode


def create(
    trial_def: type,
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
) -> LocalResult | None:
    """Train a trial class: `config` is an experiment configuration without its entrypoint.

    `Mode.LOCAL` trains here, to the searcher's `max_length`, with the hyperparameters of the search's first trial, and returns
    what came of it. `Mode.CLUSTER` submits the code in `context_dir`, follows the experiment, and ends this process with its
    status: each worker executes the script again, as `command` says (by default as it was called here; a notebook by its path), up
    to this call. When the script is imported, such as by who loads a checkpoint, nothing happens and None is returned.

    Raises ConfigError for what is wrong with `config`, and DetError for the rest.
    """
    if not inspect.isclass(trial_def):
        raise DetError(f"create got {trial_def!r:.60}; give a trial class")
    if LOADING.get() is not None:
        take_over(trial_def)
    if sys._getframe(1).f_globals.get("__name__") != "__main__":
        return None
    place = begin(config, mode, context_dir, command, framework="")
    return train_here(trial_def, place)
