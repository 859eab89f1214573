"""Making the Trainer of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from det_core import RunInfo, TrialError
from det_core.config import Length
from det_torch.backends import TorchBackend
from det_torch.device import choose_device

from . import settings
from .conductor import Conductor
from .ranks import arguments
from .trial import LightningAdapter

_DEFAULTS: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Trainer(pl.Trainer):
    """Lightning's own Trainer, which knows how long the experiment means to train."""

    length: Length | None = None
    global_batch_size: int | None = None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Return the optimizer's steps in the searcher's length, for schedulers that must know; infinity where it has none."""
        self.fit_loop.setup_data()
        epoch, every = self.num_training_batches, self.accumulate_grad_batches
        batches = self._batches(epoch)
        if batches is None:
            return math.inf
        if epoch == math.inf:
            return -(-batches // every)
        epochs, rest = divmod(batches, int(epoch))
        return epochs * -(-int(epoch) // every) - (-rest // every)  # it steps behind the last batch of an epoch, too

    def _batches(self, epoch: int | float) -> int | None:
        length = self.length
        if length is None:
            return None
        if length.unit == "epochs":
            return None if epoch == math.inf else length.n * int(epoch)
        if length.unit == "records":
            return length.n // self.global_batch_size if self.global_batch_size else None
        return length.n


def make_trainer(trial: LightningAdapter, run: RunInfo, conductor: Conductor, backend: TorchBackend | None) -> Trainer:
    """Return a Trainer that trains until it is stopped, and validates and saves only when it is asked to."""
    given = dict(trial.trainer_arguments)
    callbacks = [*_callbacks(given.pop("callbacks", None)), *_callbacks(trial.build_callbacks())]
    settings.check_callbacks(callbacks)
    given.pop("enable_checkpointing", None)
    chosen = {
        **_DEFAULTS,
        **given,
        "callbacks": [conductor, *callbacks],
        "max_epochs": -1,
        "check_val_every_n_epoch": settings.NEVER,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "accumulate_grad_batches": settings.accumulation(given, run.config),
        **_place(given, run, backend),
    }
    precision = settings.precision(trial.precision, run.config)
    if precision is not None:
        chosen["precision"] = precision
    if run.quick:
        chosen["limit_val_batches"] = 1
    if run.config.optimizations.compile:
        trial.lightning_module.compile()
    trainer = Trainer(**chosen)
    searcher, size = run.config.searcher, run.hparams.get("global_batch_size")
    trainer.length = getattr(searcher, "max_length", None)
    trainer.global_batch_size = size if isinstance(size, int) else None
    return trainer


def _place(given: Mapping[str, Any], run: RunInfo, backend: TorchBackend | None) -> dict[str, Any]:
    """Return the accelerator, devices and strategy of a run."""
    device = choose_device(run)
    if backend is not None:
        return arguments(given, run, backend, device)
    own = given.get("accelerator")
    return (
        {"accelerator": "gpu" if device.type == "cuda" else "cpu"}
        | ({"accelerator": own} if own not in (None, "auto") else {})
        | {"devices": 1, "strategy": "auto"}
    )


def _callbacks(given: Any) -> list[pl.Callback]:
    listed = (
        list(given.values())
        if isinstance(given, Mapping)
        else [given]
        if isinstance(given, pl.Callback)
        else list(given or [])
    )
    for each in listed:
        if not isinstance(each, pl.Callback):
            raise TrialError(
                f"build_callbacks gives {type(each).__name__}; give callbacks of lightning.pytorch: a LightningAdapter is "
                "trained by Lightning's own Trainer"
            )
    return listed
