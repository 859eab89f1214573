"""One validation: the whole set, reduced over batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from det_core import Communicator, TrialError

from .build import evaluation_step, full_evaluation, overrides
from .callbacks import Callbacks
from .context import PyTorchTrialContext
from .data import ValidationBatches
from .reduction import Reducer, reduce_batches, reduce_ranks
from .rng import untouched_rng
from .trial import PyTorchTrial

_NONE = object()


class Validation:
    """Validates a trial.

    It can be called repeatedly and changes no weights and no random generators of the training.

    With `quick` only the first batch is evaluated.
    """

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Callbacks,
        data: ValidationBatches,
        quick: bool,
    ) -> None:
        self._trial, self._context, self._callbacks = trial, context, callbacks
        self._data: Any = _First(data) if quick else data
        self._full = overrides(trial, "evaluate_full_dataset")
        self._must_suit(data)
        self.advice = data.advice

    def __call__(self) -> dict[str, Any]:
        """Return the metrics, the same on every rank."""
        reducers, callbacks = self._context.reducers, self._callbacks
        reducers.reset()
        with _evaluating(self._context.models), untouched_rng(), torch.no_grad():
            callbacks("on_validation_start")
            # The name of the hook before 0.17.
            callbacks("on_validation_step_start")
            metrics = self._whole() if self._full else self._batches()
            metrics |= reducers.metrics(self._context.distributed.allgather, training=False)
            callbacks("on_validation_step_end", metrics)
            callbacks("on_validation_end", metrics)
        reducers.reset()
        return metrics

    def _must_suit(self, data: ValidationBatches) -> None:
        if not self._full or self._context.distributed.size == 1:
            return
        if self._context.sharding.used:
            raise TrialError(
                "evaluate_full_dataset runs on the chief alone, and a sharded model needs all ranks"
                " for each forward pass; define evaluate_batch"
            )
        if data.sharded:
            raise TrialError(
                "evaluate_full_dataset gets all of the data on the chief, but the validation data"
                " is sharded by rank; build it whole, or define evaluate_batch"
            )

    def _whole(self) -> dict[str, Any]:
        metrics = None
        if self._context.distributed.rank == 0:
            evaluate = self._context.precision.around(full_evaluation(self._trial, self._context))
            metrics = evaluate(self._data)
            _must_be_dict(metrics, "evaluate_full_dataset")
        gathered: dict[str, Any] = self._context.distributed.broadcast(metrics)
        return dict(gathered)

    def _batches(self) -> dict[str, Any]:
        self._callbacks("on_validation_epoch_start")
        outputs = self._outputs(
            self._context.precision.around(evaluation_step(self._trial, self._context))
        )
        self._callbacks("on_validation_epoch_end", outputs)
        return self._reduced(outputs)

    def _outputs(self, evaluate: Callable[[Any, int], Any]) -> list[dict[str, Any]]:
        outputs: list[dict[str, Any]] = []
        for index, (batch, own) in enumerate(self._own()):
            moved = self._context.to_device(batch) if self._context.auto_to_device else batch
            # Another rank's forward pass needs this one. Its metrics are discarded.
            if not own:
                with self._context.reducers.held():
                    evaluate(moved, index)
                continue
            metrics = evaluate(moved, index)
            _must_be_dict(metrics, "evaluate_batch")
            if outputs and metrics.keys() != outputs[0].keys():
                raise TrialError(
                    f"evaluate_batch returned {sorted(metrics)} for batch {index} and"
                    f" {sorted(outputs[0])} before; return the same metrics for every batch"
                )
            # The metric may be a buffer that the next batch changes.
            outputs.append(
                {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in metrics.items()}
            )
        return outputs

    def _own(self) -> Iterator[tuple[Any, bool]]:
        """Yield batches, and whether they are this rank's own."""
        if self._context.sharding.used and self._context.distributed.size > 1:
            return in_step(self._data, self._context.distributed)
        return ((batch, True) for batch in self._data)

    def _reduced(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        mine: dict[str, Any] = {}
        if outputs:
            reducers = self._reducers(list(outputs[0]))
            mine = {
                name: reduce_batches(name, [o[name] for o in outputs], r)
                for name, r in reducers.items()
            }
        everyone = self._context.distributed.allgather((mine, len(outputs)))
        ranks = [metrics for metrics, count in everyone if count]
        if not ranks:
            raise TrialError("the validation data loader is empty; give it at least one batch")
        counts = [count for _, count in everyone if count]
        reducers = self._reducers(list(ranks[0]))
        return {
            name: reduce_ranks([r[name] for r in ranks], counts, chosen)
            for name, chosen in reducers.items()
        }

    def _reducers(self, names: list[str]) -> dict[str, Reducer]:
        chosen = self._trial.evaluation_reducer()
        if isinstance(chosen, dict) and set(chosen) != set(names):
            raise TrialError(
                f"evaluation_reducer covers {sorted(chosen)}, but evaluate_batch returns"
                f" {sorted(names)}; give each metric one"
            )
        reducers = {name: chosen[name] if isinstance(chosen, dict) else chosen for name in names}
        for name, reducer in reducers.items():
            if not isinstance(reducer, Reducer):
                raise TrialError(
                    f"evaluation_reducer gives {reducer!r} for {name!r}; give one of"
                    " det_torch.Reducer"
                )
        return reducers


class _First:
    """The first batch of some data. All attributes are those of the data."""

    def __init__(self, data: ValidationBatches) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._data), 1)

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)


def in_step(batches: Iterable[Any], ranks: Communicator) -> Iterator[tuple[Any, bool]]:
    """Yield this rank's batches, each with True, while all ranks stay in step.

    All ranks take part in each forward pass of a sharded model. While another rank still has
    batches, yield the last batch again with False. A rank without any batch gets the first batch of
    another rank.
    """
    source = iter(batches)
    last: Any = _NONE
    while True:
        batch = next(source, _NONE)
        last = last if batch is _NONE else batch
        everyone = ranks.allgather([batch is not _NONE, last is not _NONE])
        if not any(more for more, _ in everyone):
            return
        if not all(some for _, some in everyone):
            lender = [some for _, some in everyone].index(True)
            lent = ranks.allgather(last if ranks.rank == lender else None)[lender]
            last = lent if last is _NONE else last
        yield last, batch is not _NONE


@contextmanager
def _evaluating(models: list[torch.nn.Module]) -> Iterator[None]:
    """Put models into evaluation mode.

    At the end, restore the mode of every module, also of frozen parts.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    before = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, before, strict=True):
            # A module's own `train` may do more than set the mode.
            model.train(training)
        for module, training in modes:
            module.training = training


def _must_be_dict(metrics: Any, method: str) -> None:
    if not isinstance(metrics, dict):
        raise TrialError(
            f"{method} returned {type(metrics).__name__}; return a dict of metrics by name"
        )
