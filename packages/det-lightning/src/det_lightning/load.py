"""Loads a trial from a checkpoint for use without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core import CheckpointError
from det_core.train.load_data import loading_run, read_load_data, trial_class_of
from det_torch.structure import make_buffers

from . import snapshot
from .adapter import build_trial
from .trial import LightningAdapter, LightningTrialContext


def load_trial_from_checkpoint_path(
    path: str | Path, trial_class: type[LightningAdapter] | None = None, **kwargs: Any
) -> LightningAdapter:
    """Return the trial of the checkpoint in the directory `path`.

    Its module has the weights and is on the CPU.

    The class is imported from the checkpoint's `code/`, unless `trial_class` gives it. Other
    keywords go to its constructor. Nothing is unpickled. Raises CheckpointError if the directory
    holds no checkpoint, or one of another trial.
    """
    directory = Path(path)
    checkpoint, _ = snapshot.read(directory)
    facts = read_load_data(directory)
    with trial_class_of(directory, facts, LightningAdapter, trial_class) as chosen:
        run = replace(
            loading_run("lightning", facts.get("hparams"), None), seed=facts.get("trial_seed") or 0
        )
        trial = build_trial(chosen, LightningTrialContext(run, managed=False), **kwargs)
    try:
        make_buffers(trial.lightning_module, checkpoint["state_dict"])
        trial.lightning_module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{directory} does not fit {chosen.__name__}: {reason}; give the trial_class that the"
            " checkpoint is of"
        ) from error
    return trial


def tensors(path: Path) -> dict[str, Any]:
    """Return the weights of a checkpoint, and the states of its optimizers and schedules, for
    `det verify`.
    """
    checkpoint, _ = snapshot.read(path)
    return {
        name: checkpoint[name]
        for name in ("state_dict", "optimizer_states", "lr_schedulers")
        if name in checkpoint
    }
