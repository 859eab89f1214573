"""All uses of Lightning's private names, and of names that its documentation does not contain.

Lightning may change them in any release. Each function names those that it uses, their purpose, and
the version in which they were seen. `tests/det_lightning/test_internals.py` shows for each of them
what broke.
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
from lightning.pytorch.trainer.connectors.data_connector import (
    _DataLoaderSource,
    _parse_num_batches,
    _resolve_overfit_batches,
)
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden

# Loops


class LightningsFitLoop(_FitLoop):
    """Lightning's loop of a fit, `_FitLoop`. The loop of a trial derives from it. Seen in 2.6.6."""


def set_restarting(trainer: pl.Trainer, restarting: bool) -> None:
    """Set whether a fit counts as resumed within its epoch.

    At the end of such an epoch, schedulers that watch a metric are not stepped. Sets `_restarting`,
    as the public setter gives True for every fit that is limited in steps. Seen in 2.6.6.
    """
    trainer.fit_loop._restarting = restarting


def accumulates(trainer: pl.Trainer) -> bool:
    """Return whether the current batch waits for the step of a later one.

    A checkpoint must hold its gradients then.

    Calls `_should_accumulate`, which knows about an epoch's last batch and the strategy. Seen in
    2.6.6.
    """
    return trainer.fit_loop.epoch_loop._should_accumulate()


@contextmanager
def fewer_steps(trainer: pl.Trainer, steps: int) -> Iterator[None]:
    """Reduce the step count that loggers see in the body. det's validation is logged at the step of
    its batch.

    Reduces `_batches_that_stepped` and restores it. Seen in 2.6.6.
    """
    loop = trainer.fit_loop.epoch_loop
    loop._batches_that_stepped -= steps
    try:
        yield
    finally:
        loop._batches_that_stepped += steps


def checkpoint_of(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the contents that Lightning would write to a checkpoint. det checks and completes them
    before it writes them.

    Calls `_checkpoint_connector.dump_checkpoint`. The public `save_checkpoint` writes at once. Seen
    in 2.6.6.
    """
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


# Data


def built_in(trainer: pl.Trainer) -> list[float]:
    """Return the epochs in which the training and validation data was last built. -inf stands for
    data that was not built.

    Reads `_last_train_dl_reload_epoch` and `_last_val_dl_reload_epoch`, from which
    `reload_dataloaders_every_n_epochs` counts. Seen in 2.6.6.
    """
    loop = trainer.fit_loop
    return [loop._last_train_dl_reload_epoch, loop.epoch_loop.val_loop._last_val_dl_reload_epoch]


def set_built_in(trainer: pl.Trainer, epoch: float) -> None:
    """Set the epoch in which the training data counts as built.

    Sets `_last_train_dl_reload_epoch`. Seen in 2.6.6.
    """
    trainer.fit_loop._last_train_dl_reload_epoch = epoch


class DataSource(_DataLoaderSource):
    """The source of a loop's data, `_DataLoaderSource`. det's source derives from it.

    Seen in 2.6.6.
    """


def replace_source(loop: Any, make: Callable[[Any], DataSource]) -> None:
    """Replace the source of a loop's data by `make(current source)`.

    The new source passes the data through det, which distributes its batches over the ranks.

    Sets `_data_source` of the loop of a fit or of a validation. Seen in 2.6.6.
    """
    loop._data_source = make(loop._data_source)


def mode_of(loader: CombinedLoader) -> str:
    """Return the mode in which loaders are read in parallel.

    The feed of training batches implements the modes itself.

    Reads `_mode`. Seen in 2.6.6.
    """
    return loader._mode


def limited(length: int | None, limit: int | float) -> int | None:
    """Return the batches of an epoch under `limit_train_batches`, or None if they are unknown.

    Calls `_parse_num_batches` with `RunningStage.TRAINING`, as Lightning does with the length of a
    loader. Seen in 2.6.6.
    """
    whole = float("inf") if length is None else length
    found = _parse_num_batches(RunningStage.TRAINING, whole, limit)
    return None if found == float("inf") else int(found)


def unshuffled(loaders: Any) -> CombinedLoader:
    """Return loaders without shuffling, as `overfit_batches` needs them.

    Lightning cannot change det's feed.

    Calls `_resolve_overfit_batches` with `RunningStage.TRAINING`. Seen in 2.6.6.
    """
    own = (
        loaders
        if isinstance(loaders, CombinedLoader)
        else CombinedLoader(loaders, "max_size_cycle")
    )
    _resolve_overfit_batches(own, mode=RunningStage.TRAINING)
    return own


# Logging


def results_of_epoch(trainer: pl.Trainer) -> Any:
    """Return what is logged over a training epoch, by Lightning's keys.

    Reports and the sums in a checkpoint use it.

    Reads `_results` of the loop of an epoch. Seen in 2.6.6.
    """
    return trainer.fit_loop.epoch_loop._results


def results_of_validation(trainer: pl.Trainer) -> Any:
    """Return what is logged over a validation, by Lightning's keys.

    It says how metrics are reduced over ranks.

    Reads `_results` of the loop of a validation within a fit. Seen in 2.6.6.
    """
    return trainer.fit_loop.epoch_loop.val_loop._results


def value_of_batch(metric: Any) -> Any:
    """Return the value of a metric in the last batch that logged it, or None.

    A batch's report contains it.

    Reads `_forward_cache`. Seen in 2.6.6.
    """
    return metric._forward_cache


def value_of_epoch(results: Any, metric: Any) -> Any:
    """Return the value of a metric over the epoch so far, for a report.

    Calls `_get_cache`, as Lightning does. Seen in 2.6.6.
    """
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
    """Return an empty metric, as `log` makes it for these arguments.

    It receives a sum from a checkpoint.

    Makes a `_ResultMetric` of `_Metadata` and `_Sync`, which must equal those of the next `log`.
    Seen in 2.6.6.
    """
    sync = _Sync(fn=trainer.strategy.reduce, rank_zero_only=chief_only)
    sync.should = synced
    meta = _Metadata(**facts, reduce_fx=reduction)
    meta.sync = sync
    return _ResultMetric(meta, is_tensor)


def set_updates(metric: Any, updates: int) -> None:
    """Set the number of updates of a metric whose state was restored. Its value is computed again.

    Sets `_update_count` and `_computed` of torchmetrics. Seen in Lightning 2.6.6 with torchmetrics
    1.9.0.
    """
    metric._update_count = updates
    metric._computed = None


def metrics_of_callbacks(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the metrics that callbacks see.

    They show what a validation or the hooks at an epoch's end have changed.

    Reads `_logger_connector._callback_metrics`. The public `callback_metrics` computes those of the
    epoch. Seen in 2.6.6.
    """
    return trainer._logger_connector._callback_metrics


def set_metrics_of_callbacks(
    trainer: pl.Trainer, metrics: dict[str, Any], *, within_epoch: bool
) -> None:
    """Give callbacks the metrics of a checkpoint.

    With `within_epoch`, sums that have begun continue.

    Sets `_logger_connector._callback_metrics` and `_first_loop_iter`. By the latter Lightning
    clears sums. Seen in 2.6.6.
    """
    connector = trainer._logger_connector
    connector._callback_metrics = metrics
    connector._first_loop_iter = True if within_epoch else None


@contextmanager
def between_epochs(trainer: pl.Trainer) -> Iterator[None]:
    """Let a validation log like one after an epoch.

    The sums of the epoch are kept and continue afterwards.

    Calls `epoch_end_reached` of the `_logger_connector`, and restores its `_first_loop_iter`. Seen
    in 2.6.6.
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
    """Return whether a module overrides a hook.

    A validation calls such a hook even if gradients are not cleared.

    Calls `is_overridden` of `model_helpers`, which Lightning's documentation does not contain. Seen
    in 2.6.6.
    """
    return is_overridden(hook, module)


def attributes_of_a_module() -> set[str]:
    """Return the attributes that Lightning sets on each module.

    They are not part of a module's own state.

    Reads those of an empty `LightningModule` and adds those of `save_hyperparameters`: `_hparams`,
    `_hparams_name` and `_hparams_initial`. Seen in 2.6.6.
    """
    return set(vars(pl.LightningModule())) | {"_hparams", "_hparams_name", "_hparams_initial"}


def layer_sync(strategy: ParallelStrategy) -> LayerSync | None:
    """Return the layer synchronization of `sync_batchnorm`, or None. Horovod's strategy refuses it.

    Reads `_layer_sync`, which the trainer sets on a strategy. Seen in 2.6.6.
    """
    return strategy._layer_sync


def shards_over_all_ranks(strategy: ModelParallelStrategy) -> bool:
    """Return whether the model is sharded over all ranks without tensor parallelism.

    Reads `_tensor_parallel_size`, which the trial gave. Seen in 2.6.6.
    """
    return strategy._tensor_parallel_size in ("auto", 1)


def read_divided(
    strategy: ModelParallelStrategy, file: Path, weights_only: bool | None
) -> dict[str, Any]:
    """Load each rank's part of a whole checkpoint from a file of this rank.

    Returns the rest of the checkpoint.

    Calls `_load_checkpoint`, as the strategy's own method does with a path from the chief. Seen in
    2.6.6.
    """
    assert strategy.lightning_module is not None
    state = {
        "state_dict": strategy.model,
        **{f"optimizer_{n}": each for n, each in enumerate(strategy.optimizers)},
    }
    strict = strategy.lightning_module.strict_loading
    return _load_checkpoint(
        file, state, strict, optimizer_states_from_list=True, weights_only=weights_only
    )
