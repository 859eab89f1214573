"""Makes the Trainer of a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl

from det_core import RunInfo, TrialError
from det_torch.backends import TorchBackend
from det_torch.device import choose_device

from . import settings
from .ends import FitLoop, TrialConductor
from .ranks import arguments, divides, must_divide
from .trial import LightningAdapter

_DEFAULTS: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def make_trainer(
    trial: LightningAdapter,
    run: RunInfo,
    conductor: TrialConductor,
    backend: TorchBackend | None,
    batches: Callable[[], int],
) -> pl.Trainer:
    """Return a Trainer that knows the length of the run, `batches()`, and trains until it is
    stopped.

    It validates and saves only on request.
    """
    given = dict(trial.trainer_arguments)
    if divides(given, run):
        must_divide(trial.lightning_module)
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
    trainer = pl.Trainer(**chosen)
    trainer.fit_loop = FitLoop(trainer, conductor, run.length, batches)
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
                f"build_callbacks gives {type(each).__name__}, which is no Callback of"
                " lightning.pytorch"
                f"{settings.other_lightning(each) or ', whose Trainer trains a LightningAdapter'}"
            )
    return listed
