"""The context of an `EstimatorTrial`: its hyperparameters, and the wrapping of its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from det_core import RunInfo, TrialContext, TrialError

from .metrics import CustomMetric, MetricReducer
from .optimizer import placed
from .wrapped import is_wrapped, mark

if TYPE_CHECKING:
    from .experimental import Experimental


class EstimatorTrialContext(TrialContext):
    """The context of an `EstimatorTrial`.

    `wrapped_datasets` and `wrapped_optimizers` count the calls that wrap. `metrics` holds the
    metrics of `make_metric`. Nothing is wrapped if `managed` is false, for an estimator that is
    loaded for use and not trained.
    """

    def __init__(self, run: RunInfo, *, backend: Any = None, managed: bool = True) -> None:
        super().__init__(run)
        self.backend, self._managed = backend, managed
        self.wrapped_datasets = self.wrapped_optimizers = 0
        self.metrics: list[CustomMetric] = []
        self._wrapped: list[Any] = []

    @cached_property
    def experimental(self) -> Experimental:
        """Features that may change: caches of datasets on disk."""
        # This imports det-keras, and so Keras.
        from .experimental import Experimental

        return Experimental(self, self._count_dataset)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return this rank's part of a dataset.

        It has every size-th record, beginning with the record of its rank. Call it right after
        creating a dataset, before it is shuffled and batched. A dataset that is already wrapped, or
        made from a wrapped one, is returned unchanged. If `shard_dataset` is false, every rank gets
        all records.
        """
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(f"wrap_dataset got {type(dataset).__name__}; give a tf.data.Dataset")
        self._count_dataset()
        if is_wrapped(dataset):
            return dataset
        ranks = self.distributed
        if shard_dataset and self._managed and ranks.size > 1:
            dataset = dataset.shard(ranks.size, ranks.rank)
        return mark(dataset)

    def _count_dataset(self) -> None:
        self.wrapped_datasets += 1

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer to use.

        It reduces gradients over the ranks and aggregates them as configured. Call it where the
        optimizer is made: in `model_fn`, or in `build_estimator` for a premade estimator. An
        optimizer that is already wrapped is returned unchanged. None, for a premade estimator that
        has no optimizer, stays None. For None it raises TrialError if there are gradients to reduce
        or to aggregate.
        """
        self.wrapped_optimizers += 1
        if optimizer is None:
            self._must_train_alone()
            return None
        if not self._managed or any(optimizer is known for known in self._wrapped):
            return optimizer
        wrapped = self.run.build.optimizer(self, lambda: optimizer)
        self._wrapped.append(wrapped)
        return wrapped

    def _must_train_alone(self) -> None:
        frequency = self.run.config.optimizations.aggregation_frequency
        if self.distributed.size > 1 or frequency > 1:
            what = (
                f"aggregation_frequency is {frequency}"
                if frequency > 1
                else f"there are {self.distributed.size} ranks"
            )
            raise TrialError(
                f"wrap_optimizer got None, and {what}; an estimator without an optimizer has no"
                " gradients to share: set resources.slots_per_trial and"
                " optimizations.aggregation_frequency to 1"
            )

    def place_optimizer(self, optimizer: Any) -> Any:
        """Return a user's optimizer adapted to this run."""
        return placed(optimizer, self.run, self.backend)

    def make_metric(
        self, metric: Any, reducer: Callable[[list[Any]], Any] | MetricReducer, numpy_dtype: Any
    ) -> tuple[Any, Any]:
        """Return `(value_op, update_op)` for `eval_metric_ops`, for a metric that Python reduces.

        It is reduced over batches and ranks. `metric` is a tensor, or a list or dict of tensors. If
        `reducer` is a function, it gets the values of all batches of all ranks as a list of arrays.
        A `MetricReducer` keeps its own state. The result becomes an array of `numpy_dtype`.
        """
        custom = CustomMetric(reducer, numpy_dtype)
        self.metrics.append(custom)
        return custom.ops(metric)
