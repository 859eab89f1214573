"""The class that a user derives to wrap a LightningModule, and its context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from det_core import RunInfo, TrialContext, TrialError

from . import settings


class LightningTrialContext(TrialContext):
    """The context of a `LightningAdapter`.

    With `managed` false, for a trial that is loaded for use and not for training, no trainer is
    made.
    """

    def __init__(self, run: RunInfo, *, managed: bool = True) -> None:
        super().__init__(run)
        self.managed = managed


class LightningAdapter:
    """A trial of a LightningModule, which provides the model, steps, optimizers and, by default,
    the data.

    - `datamodule`: provides the data instead of the module.
    - `precision`: Lightning's name, or 16 or 32. The default is `optimizations.precision`.
    - Other keywords go to Lightning's `Trainer`. Those that det decides, such as `max_epochs`, are
      refused with advice what to set instead.

    Define `build_training_data_loader` and `build_validation_data_loader` to provide the data here,
    and `build_callbacks` for Lightning callbacks.
    """

    def __init__(
        self,
        context: LightningTrialContext,
        lightning_module: pl.LightningModule,
        precision: Any = None,
        amp_backend: str = "native",
        amp_level: str | None = None,
        *,
        datamodule: pl.LightningDataModule | None = None,
        **trainer: Any,
    ) -> None:
        if not isinstance(lightning_module, pl.LightningModule):
            raise TrialError(
                f"lightning_module is {type(lightning_module).__name__}; it is no LightningModule"
                f" of lightning.pytorch{settings.other_lightning(lightning_module)}"
            )
        if _has_trainer(lightning_module):
            raise TrialError(
                "lightning_module has a Trainer already; give a module that is not being trained"
            )
        if datamodule is not None and not isinstance(datamodule, pl.LightningDataModule):
            raise TrialError(
                f"datamodule is {type(datamodule).__name__}; it is no LightningDataModule of"
                f" lightning.pytorch{settings.other_lightning(datamodule)}"
            )
        settings.check_amp(amp_backend, amp_level)
        settings.check_given(trainer)
        settings.check_strategy(trainer.get("strategy"))
        self.context = context
        module = (
            context.run.build.model(context, lambda: lightning_module)
            if context.managed
            else lightning_module
        )
        if not isinstance(module, pl.LightningModule):
            raise TrialError(
                f"a plugin's det_build_model made {type(module).__name__} of the LightningModule;"
                " it must return a LightningModule"
            )
        self.lightning_module: pl.LightningModule = module
        self.datamodule = datamodule
        self.precision = precision
        self.trainer_arguments: Mapping[str, Any] = trainer

    def build_training_data_loader(self) -> Any:
        """Return a loader, or a list or dict of them.

        By default the module or data module provides the data.
        """
        raise NotImplementedError

    def build_validation_data_loader(self) -> Any:
        """Return a finite loader, or several.

        By default the module or data module provides the data.
        """
        raise NotImplementedError

    def build_callbacks(self) -> Mapping[str, pl.Callback] | list[pl.Callback]:
        """Return Lightning callbacks."""
        return []


def own(trial: LightningAdapter, method: str) -> Any:
    """Return a trial's own method, or None if the trial does not override it."""
    return (
        None
        if getattr(type(trial), method) is getattr(LightningAdapter, method)
        else getattr(trial, method)
    )


def _has_trainer(module: pl.LightningModule) -> bool:
    try:
        return isinstance(module.trainer, pl.Trainer)
    except RuntimeError:
        # Lightning raises this for a module without a trainer.
        return False
