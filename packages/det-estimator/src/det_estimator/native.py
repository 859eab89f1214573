"""`init`: makes a script of TensorFlow's Estimator an experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_driver.native import (
    LocalResult,
    Mode,
    NativeContext,
    ScriptPlace,
    begin,
    take_over,
    train_here,
)

from .context import EstimatorTrialContext
from .trial import EstimatorTrial, ServingInputReceiverFn

v1: Any = tf.compat.v1
_FRAMEWORK = "estimator"
_SEARCHER = {"name": "single", "metric": "loss"}


def init(
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
) -> EstimatorNativeContext:
    """Make this script an experiment. `config` is its configuration, without an entrypoint.

    From then on, det takes over at `tf.estimator.train_and_evaluate` or the context's own.
    `Mode.LOCAL` trains there, to the searcher's `max_length`, with the hyperparameters of the
    search's first trial, and then the script continues. `Mode.CLUSTER` submits the code in
    `context_dir`, follows the experiment, and ends this process with its status. Each worker runs
    the script again up to `train_and_evaluate`. It runs `command`, which is by default the command
    of this process.

    Raises ConfigError for errors in `config`, and DetError for others.
    """
    place = begin(
        {"searcher": _SEARCHER, **(config or {})}, mode, context_dir, command, framework=_FRAMEWORK
    )
    context = EstimatorNativeContext(place)
    for module in (tf.estimator, v1.estimator):
        module.train_and_evaluate = context.instead_of_tensorflows
    return context


class EstimatorNativeContext(NativeContext):
    """The result of `init`: it gives hyperparameters, sizes and ids, and wraps the script's parts.

    `serving_input_receiver_fns` may be filled, by name, before training. Each checkpoint then holds
    these saved models.
    """

    def __init__(self, place: ScriptPlace) -> None:
        super().__init__(place)
        self.serving_input_receiver_fns: dict[str, ServingInputReceiverFn] = {}
        self.trial_context: EstimatorTrialContext | None = None
        self._before = EstimatorTrialContext(place.run)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return this rank's part of a dataset. Call it right after creating the dataset."""
        return (self.trial_context or self._before).wrap_dataset(dataset, shard_dataset)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer to use. It reduces gradients over the ranks and aggregates them."""
        if self.trial_context is not None:
            return self.trial_context.wrap_optimizer(optimizer)
        if not isinstance(optimizer, v1.train.Optimizer):
            raise TrialError(
                f"wrap_optimizer got {type(optimizer).__name__} before training has begun; give an"
                " optimizer of tf.compat.v1.train, and the estimator of tf.compat.v1.estimator"
                " that takes it, or wrap it in model_fn"
            )
        return _Later(optimizer, self)

    def make_metric(self, metric: Any, reducer: Any, numpy_dtype: Any) -> tuple[Any, Any]:
        """Return `(value_op, update_op)` for `eval_metric_ops`, for a metric that Python reduces.

        It is reduced over batches and ranks.
        """
        return (self.trial_context or self._before).make_metric(metric, reducer, numpy_dtype)

    def train_and_evaluate(self, estimator: Any, train_spec: Any, eval_spec: Any) -> LocalResult:
        """Train.

        In a worker the script ends here, and in `Mode.LOCAL` it continues with the result.
        """
        trial = _trial(self, estimator, train_spec, eval_spec)
        if self.place.local:
            return train_here(trial, self.place)
        take_over(trial)

    def instead_of_tensorflows(
        self, estimator: Any, train_spec: Any, eval_spec: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """Train as `train_and_evaluate` does, and return what TensorFlow's function returns.

        That is a pair of metrics and exports.
        """
        return self.train_and_evaluate(estimator, train_spec, eval_spec).validation, []


def _trial(
    native: EstimatorNativeContext, estimator: Any, train_spec: Any, eval_spec: Any
) -> type[EstimatorTrial]:
    """Return the class of a trial whose parts exist already."""

    class Script(EstimatorTrial):
        def __init__(self, context: EstimatorTrialContext) -> None:
            super().__init__(context)
            native.trial_context = context

        def build_estimator(self) -> Any:
            return estimator

        def build_train_spec(self) -> Any:
            return train_spec

        def build_validation_spec(self) -> Any:
            return eval_spec

        def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
            return native.serving_input_receiver_fns

    Script.__module__ = sys.modules["__main__"].__name__
    Script.__qualname__ = "Script"
    return Script


class _Later(v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer for a premade estimator that is made before training begins.

    In the graph, the run's own optimizer takes its place.
    """

    def __init__(self, inner: Any, native: EstimatorNativeContext) -> None:
        super().__init__(use_locking=False, name=f"Det{type(inner).__name__}")
        self._inner, self._native = inner, native
        self._placed: dict[Any, Any] = {}

    def _of_run(self) -> Any:
        context = self._native.trial_context
        if context is None:
            raise TrialError(
                "the optimizer is used before training has begun; call train_and_evaluate"
            )
        if context not in self._placed:
            self._placed[context] = context.wrap_optimizer(self._inner)
        return self._placed[context]

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._of_run().compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._of_run().apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._of_run().get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._of_run().get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._of_run().variables()
