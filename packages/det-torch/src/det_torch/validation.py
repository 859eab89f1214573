"""One validation: the whole set, reduced over batches and ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from det_core import TrialError, number

from .build import evaluation_step, overrides
from .callbacks import Callbacks
from .context import PyTorchTrialContext
from .data import ValidationBatches
from .reducers import Reducer, reduce_batches, reduce_ranks
from .state import untouched_rng
from .trial import PyTorchTrial


class Validation:
    """Validates a trial, again and again; changes no weight and no generator of the training."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Callbacks,
        data: ValidationBatches,
        quick: bool,
    ) -> None:
        self._trial, self._context, self._callbacks, self._data = trial, context, callbacks, data
        self._quick = quick
        self._full = overrides(trial, "evaluate_full_dataset")

    def __call__(self) -> dict[str, Any]:
        """Return the metrics, the same on every rank."""
        context = self._context
        training = [model.training for model in context.models]
        for model in context.models:
            model.eval()
        context.reducers.reset(training=False)
        try:
            with untouched_rng(), torch.no_grad():
                self._callbacks("on_validation_start")
                metrics = self._whole() if self._full else self._batches()
                metrics |= context.reducers.metrics(context.distributed.allgather, training=False)
                self._callbacks("on_validation_end", metrics)
        finally:
            for model, mode in zip(context.models, training, strict=True):
                model.train(mode)
        return metrics

    def _whole(self) -> dict[str, Any]:
        metrics = None
        if self._context.distributed.rank == 0:
            metrics = self._trial.evaluate_full_dataset(self._data)
            _must_be_dict(metrics, "evaluate_full_dataset")
        gathered: dict[str, Any] = self._context.distributed.broadcast(metrics)
        return dict(gathered)

    def _batches(self) -> dict[str, Any]:
        self._callbacks("on_validation_epoch_start")
        outputs = self._outputs(evaluation_step(self._trial, self._context))
        self._callbacks("on_validation_epoch_end", outputs)
        return self._reduced(outputs)

    def _outputs(self, evaluate: Callable[[Any, int], Any]) -> list[dict[str, Any]]:
        outputs: list[dict[str, Any]] = []
        for index, batch in enumerate(islice(iter(self._data), 1 if self._quick else None)):
            metrics = evaluate(self._context.to_device(batch) if self._context.auto_to_device else batch, index)
            _must_be_dict(metrics, "evaluate_batch")
            if outputs and metrics.keys() != outputs[0].keys():
                raise TrialError(
                    f"evaluate_batch returned {sorted(metrics)} for batch {index} and {sorted(outputs[0])} before; return the "
                    "same metrics for every batch"
                )
            outputs.append(metrics)
        return outputs

    def _reduced(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        names = list(outputs[0]) if outputs else []
        mine = {name: _reduce([o[name] for o in outputs], name, self._reducer(name, names)) for name in names}
        everyone = self._context.distributed.allgather((mine, len(outputs)))
        ranks = [metrics for metrics, count in everyone if count]
        if not ranks:
            raise TrialError("the validation data loader is empty; give it data")
        counts = [count for _, count in everyone if count]
        names = list(ranks[0])
        return {n: reduce_ranks([r[n] for r in ranks], counts, self._reducer(n, names)) for n in names}

    def _reducer(self, name: str, names: list[str]) -> Reducer:
        chosen = self._trial.evaluation_reducer()
        if isinstance(chosen, dict):
            if set(chosen) != set(names):
                raise TrialError(
                    f"evaluation_reducer covers {sorted(chosen)}, but evaluate_batch returns {sorted(names)}; give each metric one"
                )
            chosen = chosen[name]
        if not isinstance(chosen, Reducer):
            raise TrialError(f"evaluation_reducer gives {chosen!r} for {name!r}; give one of det_torch.Reducer")
        return chosen


def _reduce(values: list[Any], name: str, reducer: Reducer) -> Any:
    try:
        return number(name, reduce_batches(values, reducer))
    except (TypeError, ValueError, RuntimeError):
        return number(name, values[-1])  # raises the sentence that says what it is


def _must_be_dict(metrics: Any, method: str) -> None:
    if not isinstance(metrics, dict):
        raise TrialError(f"{method} returned {type(metrics).__name__}; return a dict of metrics by name")
