"""What a user writes, a LightningModule, wrapped; and the context that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from det_core import RunInfo, TrialContext, TrialError

from . import settings


class LightningTrialContext(TrialContext):
    """The context of a `LightningAdapter`.

    With `managed` false (a trial that is loaded to be used, not trained) no trainer is made.
    """

    def __init__(self, run: RunInfo, *, managed: bool = True) -> None:
        super().__init__(run)
        self.managed = managed


class LightningAdapter:
    """A trial whose model, steps, optimizers and, unless it builds them itself, data are those of a LightningModule.

    `datamodule` gives the data in the module's stead. `precision` is Lightning's, or 16 or 32; by default
    `optimizations.precision` says. Other keywords go to Lightning's `Trainer`, but for those that det decides, such as
    `max_epochs`, which are refused with what to set instead. Define `build_training_data_loader` and
    `build_validation_data_loader` to give the data here, and `build_callbacks` for Lightning callbacks.
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
                f"lightning_module is {type(lightning_module).__name__}; give a LightningModule of lightning.pytorch"
                f"{_other_lightning(lightning_module)}"
            )
        if _has_trainer(lightning_module):
            raise TrialError("lightning_module has a Trainer already; give a module that is not being trained")
        if datamodule is not None and not isinstance(datamodule, pl.LightningDataModule):
            raise TrialError(f"datamodule is {type(datamodule).__name__}; give a LightningDataModule")
        settings.check_amp(amp_backend, amp_level)
        settings.check_given(trainer)
        settings.check_strategy(trainer.get("strategy"))
        self.context = context
        module = context.run.build.model(context, lambda: lightning_module) if context.managed else lightning_module
        if not isinstance(module, pl.LightningModule):
            raise TrialError(
                f"a plugin's det_build_model made {type(module).__name__} of the LightningModule; it must return a LightningModule"
            )
        self.lightning_module: pl.LightningModule = module
        self.datamodule = datamodule
        self.precision = precision
        self.trainer_arguments: Mapping[str, Any] = trainer

    def build_training_data_loader(self) -> Any:
        """Return a loader, or a list or dict of them; unless overridden, the module or data module says."""
        raise NotImplementedError

    def build_validation_data_loader(self) -> Any:
        """Return a finite loader, or several; unless overridden, the module or data module says."""
        raise NotImplementedError

    def build_callbacks(self) -> Mapping[str, pl.Callback] | list[pl.Callback]:
        """Return callbacks of Lightning's."""
        return []


def own(trial: LightningAdapter, method: str) -> Any:
    """Return a trial's own method, or None where it left it to its module."""
    return None if getattr(type(trial), method) is getattr(LightningAdapter, method) else getattr(trial, method)


def _has_trainer(module: pl.LightningModule) -> bool:
    try:
        return isinstance(module.trainer, pl.Trainer)
    except RuntimeError:  # as Lightning says of a module that has none
        return False


def _other_lightning(module: Any) -> str:
    """Tell a module of the distribution `pytorch_lightning`, which is another package to Python."""
    if any(cls.__module__.startswith("pytorch_lightning") for cls in type(module).__mro__):
        return ", not of pytorch_lightning: import lightning.pytorch as pl"
    return ""
