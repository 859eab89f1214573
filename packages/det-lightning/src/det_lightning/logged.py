"""Reads what a module has logged from Lightning's own collection: its values, and its sums for a
checkpoint and back.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torchmetrics import Metric, MetricCollection

from . import internals

_FACTS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
)
_MORE = ("dataloader_idx", "metric_attribute")
_REDUCTIONS = ("mean", "sum", "max", "min")


class StepMetrics:
    """The values of each batch, by the names that loggers see.

    A row contains only what was logged in its batch.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._names: dict[str, str | None] = {}

    def __call__(self, trainer: pl.Trainer) -> dict[str, Any]:
        row: dict[str, Any] = {}
        seen, names = self._seen, self._names
        for key, metric in internals.results_of_epoch(trainer).items():
            if key not in names:
                names[key] = _name(metric.meta, step=True) if metric.meta.on_step else None
            name = names[key]
            if name is not None:
                value = internals.value_of_batch(metric)
                if value is not None and value is not seen.get(key):
                    seen[key] = row[name] = value
        return row


class EpochMetrics:
    """The values that were logged over epochs and are not reported yet."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        # What callbacks saw when det's step ended an epoch.
        self._at_end: tuple[dict[str, Any], set[str]] | None = None

    def collect(self, trainer: pl.Trainer) -> None:
        """Add what was logged over the epoch that ends."""
        self.values |= epoch_metrics(trainer)

    def note_end(self, trainer: pl.Trainer) -> None:
        """Note what callbacks see now. Hooks that end the epoch may log more."""
        self._at_end = known(trainer), names(trainer)

    def collect_late(self, trainer: pl.Trainer) -> None:
        """Add what hooks have logged at the end of the epoch, after det's step."""
        if self._at_end is not None:
            (before, early), self._at_end = self._at_end, None
            late = changed(trainer, before)
            self.values |= {name: value for name, value in late.items() if name not in early}

    def take(self) -> dict[str, Any]:
        """Return the values, and forget them."""
        found, self.values = self.values, {}
        return found


def epoch_metrics(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what was logged over the epoch that ends, by the names that loggers see."""
    found = {}
    results = internals.results_of_epoch(trainer)
    for _, metric in results.valid_items():
        if metric.meta.on_epoch:
            value = internals.value_of_epoch(results, metric)
            if isinstance(value, torch.Tensor):
                found[_name(metric.meta, step=False)] = value
    return found


def names(trainer: pl.Trainer) -> set[str]:
    """Return all names under which callbacks and loggers see what was logged over the epoch that
    ends.
    """
    found = internals.results_of_epoch(trainer).valid_items()
    return {
        name for _, metric in found for name in (metric.meta.name, _name(metric.meta, step=False))
    }


def changed(trainer: pl.Trainer, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that callbacks see and that differ from `before`."""
    now = internals.metrics_of_callbacks(trainer)
    return {name: value for name, value in now.items() if before.get(name) is not value}


def known(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the metrics that callbacks see."""
    return dict(internals.metrics_of_callbacks(trainer))


def set_known(trainer: pl.Trainer, metrics: Mapping[str, Any], *, within_epoch: bool) -> None:
    """Restore what `known` returned. With `within_epoch`, sums that have begun continue."""
    internals.set_metrics_of_callbacks(trainer, dict(metrics), within_epoch=within_epoch)


def shares(trainer: pl.Trainer, batches: int) -> dict[str, tuple[str, float]]:
    """Return for each metric of a validation its reduction over the ranks and its weight.

    `batches` is the number of batches on this rank. Metrics that Lightning has reduced are equal on
    all ranks.
    """
    found: dict[str, tuple[str, float]] = {}
    for metric in internals.results_of_validation(trainer).values():
        meta, reduction = metric.meta, "mean"
        weight = float(batches)
        if metric.is_tensor and not meta.sync.should:
            reduction = next(name for name in _REDUCTIONS if getattr(meta, f"is_{name}_reduction"))
            if reduction == "mean" and meta.fx.startswith("validation_step"):
                weight = float(metric.cumulated_batch_size)
        found[_name(meta, step=False)] = reduction, weight
    return found


# To a checkpoint and back


def sums(trainer: pl.Trainer) -> list[dict[str, Any]]:
    """Return the sums of the current epoch."""
    return [_packed(key, metric) for key, metric in internals.results_of_epoch(trainer).items()]


def set_sums(trainer: pl.Trainer, saved: list[dict[str, Any]]) -> None:
    """Restore what `sums` returned."""
    results = internals.results_of_epoch(trainer)
    for each in saved:
        results[each["key"]] = _unpacked(trainer, each)


def _packed(key: str, metric: Any) -> dict[str, Any]:
    meta = metric.meta
    sync = meta.sync
    reduction = next(name for name in _REDUCTIONS if getattr(meta, f"is_{name}_reduction"))
    packed = {name: getattr(meta, name) for name in (*_FACTS, *_MORE)} | {
        "key": key,
        "reduction": reduction,
        "of_python": meta.reduce_fx is getattr(builtins, reduction, None),
        "sync": [sync.should, sync.rank_zero_only],
        "has_reset": metric.has_reset,
        "is_tensor": metric.is_tensor,
        "updates": metric.update_count,
    }
    if metric.is_tensor:
        packed["value"] = metric.value
        packed["weight"] = getattr(metric, "cumulated_batch_size", None)
    return packed


def _unpacked(trainer: pl.Trainer, saved: Mapping[str, Any]) -> Any:
    facts = {name: saved[name] for name in (*_FACTS, *_MORE)}
    reduction = getattr(builtins if saved["of_python"] else torch, saved["reduction"])
    synced, chief_only = saved["sync"]
    metric = internals.new_result(
        trainer,
        facts,
        reduction,
        is_tensor=saved["is_tensor"],
        synced=synced,
        chief_only=chief_only,
    )
    metric.has_reset = saved["has_reset"]
    internals.set_updates(metric, saved.get("updates", 1))
    device = trainer.strategy.root_device
    if metric.is_tensor:
        metric.value = saved["value"].to(device)
        if saved["weight"] is not None:
            metric.cumulated_batch_size = _to(saved["weight"], device)
    else:
        metric.value = trainer.lightning_module.get_submodule(saved["metric_attribute"])
    return metric


def metric_states(module: torch.nn.Module) -> dict[str, Any]:
    """Return the states of a module's torchmetrics that have been updated."""
    for each in module.modules():
        if isinstance(each, MetricCollection):
            # Updates the members that share a state.
            list(each.items(copy_state=False))
    return {
        name: {"state": dict(each.metric_state), "updates": each.update_count}
        for name, each in module.named_modules()
        if isinstance(each, Metric) and each.update_count
    }


def set_metric_states(
    module: torch.nn.Module, saved: Mapping[str, Any], device: torch.device
) -> None:
    """Restore what `metric_states` returned."""
    for name, each in saved.items():
        metric = module.get_submodule(name)
        for key, value in each["state"].items():
            setattr(metric, key, _to(value, device))
        internals.set_updates(metric, each["updates"])


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_to(each, device) for each in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _name(meta: Any, *, step: bool) -> str:
    name: str = meta.forked_name(step)
    if meta.add_dataloader_idx and meta.dataloader_idx is not None:
        name += f"/dataloader_idx_{meta.dataloader_idx}"
    return name
