"""All that det does with names of Lightning's that begin with an underscore, or that no page of its documentation has.

Lightning may change them in any release. Each function names those that it touches, what they are for, and the version in
which they were seen; `tests/det_lightning/test_internals.py` tells by each of them what broke.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.strategies.model_parallel import _load_checkpoint
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden

# Loops


class LightningsFitLoop(_FitLoop):
    """Lightning's loop of a fit, `_FitLoop`, of which the loop of a trial is a kind: its ends are det's. Seen in 2.6.6."""


def set_restarting(trainer: pl.Trainer, restarting: bool) -> None:
    """Let a fit count as resumed within its epoch, or not: schedulers that watch a metric are passed over at its end, or stepped.

    Sets `_restarting`, as the public setter says True of every fit that is limited in steps. Seen in 2.6.6.
    """
    trainer.fit_loop._restarting = restarting


def accumulates(trainer: pl.Trainer) -> bool:
    """Return whether the batch that is trained waits for a later one's step, so that a checkpoint must hold its gradients.

    Asks `_should_accumulate`, which knows of an epoch's last batch and of the strategy. Seen in 2.6.6.
    """
    return trainer.fit_loop.epoch_loop._should_accumulate()


@contextmanager
def fewer_steps(trainer: pl.Trainer, steps: int) -> Iterator[None]:
    """Let loggers count so many steps fewer for a while: a validation of det's is logged at the step of its batch.

    Takes from `_batches_that_stepped`, and gives back. Seen in 2.6.6.
    """
    loop = trainer.fit_loop.epoch_loop
    loop._batches_that_stepped -= steps
    try:
        yield
    finally:
        loop._batches_that_stepped += steps


def checkpoint_of(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what Lightning would write to a checkpoint, which det checks and completes before it is written.

    Calls `_checkpoint_connector.dump_checkpoint`; `save_checkpoint`, which is public, writes it at once. Seen in 2.6.6.
    """
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


# Data


class DataSource(_DataLoaderSource):
    """Where a loop gets its data from, `_DataLoaderSource`, of which det's source is a kind. Seen in 2.6.6."""


def replace_source(loop: Any, make: Callable[[Any], DataSource]) -> None:
    """Let a loop get its data from what `make` returns, which is given its source until now: the data is dealt by det.

    Sets `_data_source` of the loop of a fit, or of a validation's. Seen in 2.6.6.
    """
    loop._data_source = make(loop._data_source)


def mode_of(loader: CombinedLoader) -> str:
    """Return how loaders are read side by side, which the feed of training batches does itself. Reads `_mode`; seen in 2.6.6."""
    return loader._mode


# What is logged


def results_of_epoch(trainer: pl.Trainer) -> Any:
    """Return what is logged over a training epoch, by Lightning's keys: reports, and the sums in a checkpoint, come from it.

    Reads `_results` of the loop of an epoch. Seen in 2.6.6.
    """
    return trainer.fit_loop.epoch_loop._results


def results_of_validation(trainer: pl.Trainer) -> Any:
    """Return what is logged over a validation, by Lightning's keys: how its metrics are reduced over ranks comes from it.

    Reads `_results` of the loop of a validation within a fit. Seen in 2.6.6.
    """
    return trainer.fit_loop.epoch_loop.val_loop._results


def value_of_batch(metric: Any) -> Any:
    """Return the value of the last batch that logged a metric, or None: a batch's report has it. Reads `_forward_cache`; 2.6.6."""
    return metric._forward_cache


def value_of_epoch(results: Any, metric: Any) -> Any:
    """Return the value of a metric over the epoch so far, for a report. Calls `_get_cache`, as Lightning does. Seen in 2.6.6."""
    return results._get_cache(metric, on_step=False)


def new_result(
    trainer: pl.Trainer,
    facts: Mapping[str, Any],
    reduction: Callable[..., Any],
    *,
    is_tensor: bool,
    synced: bool,
    chief_only: bool,
) -> Any:
    """Return an empty metric, as `log` makes one of these arguments: it takes a sum out of a checkpoint.

    Makes a `_ResultMetric` of `_Metadata` and `_Sync`, which must equal those of the next `log`. Seen in 2.6.6.
    """
    sync = _Sync(fn=trainer.strategy.reduce, rank_zero_only=chief_only)
    sync.should = synced
    meta = _Metadata(**facts, reduce_fx=reduction)
    meta.sync = sync
    return _ResultMetric(meta, is_tensor)


def set_updates(metric: Any, updates: int) -> None:
    """Let a metric out of a checkpoint, whose state is put back, count so many updates and compute its value anew.

    Sets `_update_count` and `_computed` of torchmetrics. Seen in Lightning 2.6.6 with torchmetrics 1.9.0.
    """
    metric._update_count = updates
    metric._computed = None


def metrics_of_callbacks(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the metrics that callbacks see, for what a validation or the hooks of an epoch's end have changed.

    Reads `_logger_connector._callback_metrics`; `callback_metrics`, which is public, computes those of the epoch. Seen in 2.6.6.
    """
    return trainer._logger_connector._callback_metrics


def set_metrics_of_callbacks(trainer: pl.Trainer, metrics: dict[str, Any], *, within_epoch: bool) -> None:
    """Give callbacks the metrics out of a checkpoint, and let sums that are begun where `within_epoch` go on.

    Sets `_logger_connector._callback_metrics`, and `_first_loop_iter`, by which Lightning clears sums. Seen in 2.6.6.
    """
    connector = trainer._logger_connector
    connector._callback_metrics = metrics
    connector._first_loop_iter = True if within_epoch else None


@contextmanager
def between_epochs(trainer: pl.Trainer) -> Iterator[None]:
    """Let a validation log as one behind an epoch, while the sums of the epoch are left to go on.

    Keeps `_first_loop_iter` of the `_logger_connector`, which is told that an epoch is over. Seen in 2.6.6.
    """
    connector = trainer._logger_connector
    iteration = connector._first_loop_iter
    connector.epoch_end_reached()
    try:
        yield
    finally:
        connector._first_loop_iter = iteration


# Modules and strategies


def overrides(module: pl.LightningModule, hook: str) -> bool:
    """Return whether a module has a hook of its own: a validation calls that one even where gradients are not cleared.

    Calls `is_overridden` of `model_helpers`, which no page of Lightning's documentation has. Seen in 2.6.6.
    """
    return is_overridden(hook, module)


def layer_sync(strategy: ParallelStrategy) -> LayerSync | None:
    """Return what `sync_batchnorm` makes of layers, or None: Horovod's strategy refuses it.

    Reads `_layer_sync`, which the trainer sets on a strategy. Seen in 2.6.6.
    """
    return strategy._layer_sync


def divides_as_told(strategy: ModelParallelStrategy) -> bool:
    """Return whether all ranks are to have a part of the model each, and no tensor is computed by several.

    Reads `_tensor_parallel_size`, which a trial gave. Seen in 2.6.6.
    """
    return strategy._tensor_parallel_size in ("auto", 1)


def read_divided(strategy: ModelParallelStrategy, file: Path, weights_only: bool | None) -> dict[str, Any]:
    """Give each rank its part of a checkpoint that is whole, from a file of its own; return the rest of it.

    Calls `_load_checkpoint`, as the strategy's own method does with a path that it takes from the chief. Seen in 2.6.6.
    """
    assert strategy.lightning_module is not None
    state = {"state_dict": strategy.model, **{f"optimizer_{n}": each for n, each in enumerate(strategy.optimizers)}}
    strict = strategy.lightning_module.strict_loading
    return _load_checkpoint(file, state, strict, optimizer_states_from_list=True, weights_only=weights_only)
