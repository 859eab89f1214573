"""A callback for scripts that call `Trainer.fit` themselves.

They keep their Trainer and its schedule, and get reports, checkpoints and pauses.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import torch

from det_core import TrialError
from det_core.core import Context
from det_torch.metrics import Numbers

from . import logged, snapshot
from .loop_controller import Fit, LoopController
from .settings import check_no_finder, other_lightning
from .training_loop import Hooks, TrainingLoop

_LENGTHS = ("max_epochs", "max_steps", "max_time")
_WAY_OUT = (
    "call trainer.fit(..., ckpt_path=callback.ckpt_path, weights_only=True), or make the Trainer"
    " with det_lightning.trainer()"
)


class DetCallback(TrainingLoop):
    """Reports a script's training to det, saves checkpoints, and stops when the experiment is
    paused.

    Training metrics are reported every `report_every` batches. The default is the Trainer's
    `log_every_n_steps`. Validation metrics are reported when the validation ends. A checkpoint is
    saved after each validation, before a pause, and at the end.

    A run that continues from a checkpoint needs `trainer.fit(..., ckpt_path=callback.ckpt_path)`.
    `det_lightning.trainer` does this itself.
    """

    def __init__(self, core_context: Context, report_every: int | None = None) -> None:
        if not isinstance(core_context, Context):
            raise TrialError(
                f"DetCallback got {type(core_context).__name__}; give what det_core.core.init()"
                " returns"
            )
        if report_every is not None and report_every < 1:
            raise TrialError(f"report_every is {report_every}; give a number of batches, 1 or more")
        info = core_context.info
        seed = info.trial.trial_seed if info is not None else torch.initial_seed() % 2**31
        super().__init__(
            _ScriptPace(core_context, report_every),
            core_context.distributed,
            seed=seed,
            check=check_no_finder,
        )
        self._core = core_context
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._settings_pending = False
        self._ckpt_path: str | None = None
        self._asked = False
        self.max_batches: int | None = None
        if info is not None and info.latest_checkpoint is not None:
            self._fetch(info.latest_checkpoint, from_start=not info.steps_completed)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint to give to `trainer.fit`, or None at the beginning of a trial.

        None in a second call of fit(), too: the checkpoint is of the first.
        """
        self._asked = True
        return None if self._core.fits.is_later else self._ckpt_path

    def _fetch(self, uuid: str, *, from_start: bool) -> None:
        if not from_start:
            self._core.fits.check(self._core.checkpoint.get_metadata(uuid))
        with self._core.checkpoint.restore_path(uuid) as path:
            checkpoint, contents = snapshot.read(path)
        self.resume(checkpoint, contents, from_start=from_start)
        # det sets the position itself.
        del checkpoint["loops"]
        self._directory = tempfile.TemporaryDirectory(prefix="det-lightning-")
        self._ckpt_path = str(Path(self._directory.name) / snapshot.LIGHTNING_FILE)
        torch.save(checkpoint, self._ckpt_path)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for thing, wanted in ((trainer, "Trainer"), (pl_module, "LightningModule")):
            _check_kind(thing, wanted)
        if stage == "fit":
            self.attach(trainer, validation=False)
            ranks = self._core.distributed.size
            if trainer.world_size != ranks:
                raise TrialError(
                    f"the Trainer has {trainer.world_size} processes, but the core context knows of"
                    f" {ranks}; start the script with det launch, and give core.init() a"
                    " DistributedContext"
                )
            self._begin_fit()
            loop = trainer.fit_loop
            # Not the loop's attribute, which an earlier fit may have replaced.
            hooks = MethodType(type(loop).on_advance_end, loop)
            loop.on_advance_end = partial(self._end_epoch, hooks)  # type: ignore[method-assign]
        super().setup(trainer, pl_module, stage)

    def _begin_fit(self) -> None:
        pace = self._pace
        assert isinstance(pace, _ScriptPace)
        if self._core.fits.is_later:
            self._ckpt_path, self._contents, self._loops = None, {}, {}
        pace.offset = self._core.fits.begin(chief=self._core.distributed.rank == 0)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._ckpt_path is not None and str(trainer.ckpt_path) != self._ckpt_path:
            raise TrialError(f"this run goes on from a checkpoint; {_WAY_OUT}")
        # Not at the restart, when hours may have been trained.
        if not self._asked and self._core.info is not None and self._core.distributed.rank == 0:
            self._asked = True
            warnings.warn(f"this script cannot go on from a checkpoint; {_WAY_OUT}", stacklevel=2)
        super().on_fit_start(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._before = logged.known(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not self.running:
            return
        found = self._returned.means() | logged.changed(trainer, self._before)
        pace = self._pace
        assert isinstance(pace, _ScriptPace)
        pace.validated(self.at.done + (self._row is not None), found)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.begin()
        # A run that a callback has ended trains no more.
        if self._contents and self._own_contents().get("ended"):
            trainer.should_stop = True

    def _of_rank(self) -> dict[str, Any]:
        return {**super()._of_rank(), "ended": bool(self.trainer.should_stop)}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._restore_pending_settings()
        super().on_train_epoch_start(trainer, pl_module)

    def _between(self) -> bool:
        if self._settings_pending and self.running:
            self._restore_pending_settings()
        return super()._between()

    def _restore_settings(self) -> None:
        # The hooks of other callbacks and of the module at the start of training run after those of
        # this one.
        self._settings_pending = True

    def _restore_pending_settings(self) -> None:
        if self._settings_pending:
            self._settings_pending = False
            super()._restore_settings()

    def _end_epoch(self, hooks: Hooks) -> None:
        """Pass an epoch's last batch to the pace, and call the hooks that end the epoch.

        A save calls them first, as they clear what was collected over the epoch.
        """
        self._restore_pending_settings()
        self._hooks = hooks
        if not self._stopped:
            self._end_of_data()
        self.call_hooks()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._go_on()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._epoch_metrics.collect_late(self.trainer)
        pace = self._pace
        assert isinstance(pace, _ScriptPace)
        if not self._stopped:
            pace.end(self)
        self._running = False
        self.close()

    def _should_stop(self) -> None:
        """Do nothing. Lightning stops, as the script owns the schedule."""


class _ScriptPace(LoopController):
    """Reports and saves. The script decides when to stop, except for pauses."""

    def __init__(self, core: Context, report_every: int | None) -> None:
        self._core, self._every = core, report_every
        self._numbers = Numbers()
        self._rows: list[dict[str, Any]] = []
        # The last report, by its position.
        self._reported: dict[int, dict[str, float]] = {}
        self._due = False
        self._saved_at = -1
        self.offset = 0
        """The position from which this call of fit() counts."""

    def begin(self, fit: Fit) -> bool:
        self._every = self._every or fit.trainer.log_every_n_steps or 50  # type: ignore[attr-defined]
        self._saved_at = fit.at.done if fit.at.done else -1
        return self._ends(fit)

    def step(self, fit: Fit, row: dict[str, Any]) -> bool:
        self._rows.append(row)
        done = fit.at.done
        if done % (self._every or 1) == 0 or fit.at.ended:
            self._report(fit)
        preempted = self._preempted(done)
        if self._due or preempted:
            self._save(fit)
        return preempted or self._ends(fit)

    def request_stop(self) -> None:
        """Do nothing, as Lightning stops by itself."""

    def validated(self, batches: int, metrics: Mapping[str, Any]) -> None:
        """Report a validation, and save when its batch is over."""
        if self._core.distributed.rank == 0:
            (found,) = self._numbers([metrics])
            self._core.train.report_validation_metrics(self.offset + batches, found)
        self._due = True

    def end(self, fit: Fit) -> None:
        """Report the rest, and save if that has not been done."""
        self._report(fit)
        if fit.at.done:
            self._save(fit)

    def _ends(self, fit: Fit) -> bool:
        limit = getattr(fit, "max_batches", None)
        if limit is None or fit.at.done < limit:
            return False
        if fit.at.done:
            self._report(fit)
            self._save(fit)
        return True

    def _preempted(self, done: int) -> bool:
        """Return whether the experiment is paused.

        A single rank asks after every batch. Several ranks ask every `report_every` batches, as all
        of them must ask together.
        """
        if self._core.distributed.size > 1 and done % (self._every or 1):
            return False
        return self._core.preempt.should_preempt()

    def _report(self, fit: Fit) -> None:
        found, self._rows = self._rows, []
        late = fit.take_epoch_metrics()
        if self._core.distributed.rank != 0:
            return
        rows, (epoch,) = self._numbers(found), self._numbers([late])
        if rows or epoch:
            names = dict.fromkeys(name for row in rows for name in row)
            means = {name: _mean([row[name] for row in rows if name in row]) for name in names}
            # A second report of a position replaces the first, so it must contain its metrics.
            before = self._reported.get(fit.at.done, {})
            self._reported = {fit.at.done: {**before, **means, **epoch}}
            self._core.train.report_training_metrics(
                self.offset + fit.at.done, self._reported[fit.at.done]
            )

    def _save(self, fit: Fit) -> None:
        self._due = False
        if self._saved_at == fit.at.done:
            return
        self._saved_at = fit.at.done
        fit.call_hooks()
        if _is_over(fit):
            # A run that goes on from here reports nothing.
            self._report(fit)
        if self._core.distributed.rank == 0:
            facts = {"steps_completed": self.offset + fit.at.done, **self._core.fits.metadata()}
            with self._core.checkpoint.store_path(facts) as (path, _):
                fit.save(path)
        else:
            fit.save(Path())


def _is_over(fit: Fit) -> bool:
    """Return whether Lightning trains no further epoch."""
    trainer = fit.trainer
    limits = [(fit.at.epoch, trainer.max_epochs), (trainer.global_step, trainer.max_steps)]
    return bool(trainer.should_stop) or any(
        limit is not None and 0 < limit <= count for count, limit in limits
    )


def trainer(
    core_context: Context, *, report_every: int | None = None, **lightning: Any
) -> pl.Trainer:
    """Return Lightning's `Trainer(**lightning)` with a `DetCallback`.

    It continues from the run's checkpoint, if there is one.

    Without `max_epochs`, `max_steps` and `max_time` it trains for the experiment's
    `searcher.max_length`.
    """
    callback = DetCallback(core_context, report_every)
    given = lightning.pop("callbacks", None)
    callbacks = [given] if isinstance(given, pl.Callback) else list(given or [])
    for each in callbacks:
        _check_kind(each, "Callback")
    if not any(lightning.get(name) not in (None, -1) for name in _LENGTHS):
        epochs, callback.max_batches = _length(core_context)
        lightning["max_epochs"] = epochs
    lightning.setdefault("num_sanity_val_steps", 0)
    lightning.setdefault(
        "enable_checkpointing", any(isinstance(each, pl.callbacks.Checkpoint) for each in callbacks)
    )
    return _Resuming(callbacks=[callback, *callbacks], **lightning)


class _Resuming(pl.Trainer):
    """A Trainer whose fit continues from its DetCallback's checkpoint."""

    def fit(
        self,
        model: pl.LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> None:
        own = next(each for each in self.callbacks if isinstance(each, DetCallback))  # type: ignore[attr-defined]
        if own.ckpt_path is not None:
            ckpt_path, weights_only = own.ckpt_path, True
        _check_kind(model, "LightningModule")
        if datamodule is not None:
            _check_kind(datamodule, "LightningDataModule")
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)


def _check_kind(thing: Any, wanted: str) -> None:
    """Raise TrialError for an object of `pytorch_lightning`.

    Lightning reports other wrong objects.
    """
    if other := other_lightning(thing):
        raise TrialError(f"{type(thing).__name__} is no {wanted} of lightning.pytorch{other}")


def _length(core: Context) -> tuple[int | None, int | None]:
    """Return the epochs, or the batches, of the searcher's length."""
    if core.info is None:
        return None, None
    length = core.info.trial.config["searcher"].get("max_length")
    if isinstance(length, int):
        return -1, length
    unit, number = next(iter((length or {}).items()), ("", 0))
    if unit not in ("epochs", "batches"):
        raise TrialError(
            "searcher.max_length gives no batches and no epochs; give det_lightning.trainer()"
            " max_epochs or max_steps"
        )
    return (int(number), None) if unit == "epochs" else (-1, int(number))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
