"""Optimizers that reduce gradients over ranks and aggregate them over batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import RunInfo, TrialError

from .backend import Reduce

v1: Any = tf.compat.v1
_V1: Any = v1.train.Optimizer
_KERAS: Any = tf.keras.optimizers.legacy.Optimizer
WAITING = "det_waiting_gradients"
"""The collection of the variables that hold gradients until they are applied."""


def placed(optimizer: Any, run: RunInfo, backend: Any) -> Any:
    """Return the optimizer for a run: the user's, or a wrapper that reduces and aggregates."""
    if not isinstance(optimizer, (_V1, _KERAS)):
        raise TrialError(
            f"wrap_optimizer got {type(optimizer).__name__}; give a tf.compat.v1.train.Optimizer"
            " or, for the premade estimators that take no other, a"
            " tf.keras.optimizers.legacy.Optimizer"
        )
    optimizations = run.config.optimizations
    frequency, average = (
        optimizations.aggregation_frequency,
        optimizations.average_aggregated_gradients,
    )
    reduce = backend.reducer(optimizations) if backend is not None else None
    if frequency == 1 and reduce is None:
        return optimizer
    if isinstance(optimizer, _V1):
        return Reducing(optimizer, frequency, average, reduce)
    if frequency > 1:
        raise TrialError(
            f"optimizations.aggregation_frequency is {frequency}, and {type(optimizer).__name__} of"
            " Keras cannot aggregate here; set it to 1, or use the estimator of"
            " tf.compat.v1.estimator, whose optimizer is of tf.compat.v1.train"
        )
    assert reduce is not None
    return _reducing_keras(optimizer, reduce)


class Reducing(_V1):  # type: ignore[misc]
    """Wraps an optimizer, and applies gradients only after every `frequency`-th batch.

    It applies the sum or mean of the gradients since the last step. Gradients are reduced in
    `compute_gradients`, so that what happens before `apply_gradients`, such as clipping, uses the
    gradients of all ranks. The global step counts batches.
    """

    def __init__(self, inner: Any, frequency: int, average: bool, reduce: Reduce | None) -> None:
        super().__init__(use_locking=False, name=f"Det{type(inner).__name__}")
        self._inner, self._frequency, self._average, self._reduce = (
            inner,
            frequency,
            average,
            reduce,
        )
        self._due: dict[Any, Any] = {}
        self._gathered: dict[Any, list[Any]] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        pairs = self._inner.compute_gradients(*args, **kwargs)
        used = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        gradients = [gradient for gradient, _ in used]
        if self._frequency > 1:
            gradients = self._gather(used)
        elif self._reduce is not None:
            gradients = self._reduce(gradients)
        found = iter(gradients)
        return [
            (None if gradient is None else next(found), variable) for gradient, variable in pairs
        ]

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        pairs = list(grads_and_vars)
        graph = v1.get_default_graph()
        if self._frequency == 1:
            return self._inner.apply_gradients(pairs, global_step, name)
        if graph not in self._due:
            raise TrialError(
                "optimizations.aggregation_frequency is above 1, and gradients are applied that"
                " compute_gradients() of the wrapped optimizer did not give; compute them with it"
            )

        def apply() -> Any:
            with tf.control_dependencies([self._inner.apply_gradients(pairs)]):
                emptied = [sum_.assign(tf.zeros_like(sum_)) for sum_ in self._gathered[graph]]
            with tf.control_dependencies(emptied):
                return tf.constant(True)

        applied = tf.cond(self._due[graph], apply, lambda: tf.constant(False))
        with tf.control_dependencies([applied]):
            return (
                tf.no_op(name)
                if global_step is None
                else v1.assign_add(global_step, 1, name=name).op
            )

    def _gather(self, used: list[tuple[Any, Any]]) -> list[Any]:
        """Add gradients to sums that are part of the checkpoint. Reduce them when a step is due."""
        graph, share = v1.get_default_graph(), 1 / self._frequency if self._average else 1.0
        with v1.variable_scope(None, "det_gradients"):
            count = _zero([], tf.int64, "count")
            sums = [
                _zero(v.shape, v.dtype.base_dtype, v.op.name.replace("/", "_")) for _, v in used
            ]
        for total in sums:
            v1.add_to_collection(WAITING, total)
        counted = count.assign_add(1, read_value=True)
        dense = [tf.convert_to_tensor(gradient) for gradient, _ in used]
        added = [
            total.assign_add(each, read_value=True) for total, each in zip(sums, dense, strict=True)
        ]
        self._due[graph], self._gathered[graph] = tf.equal(counted % self._frequency, 0), sums
        shares = [total * tf.cast(share, total.dtype) for total in added]
        if self._reduce is None:
            return shares
        return self._reduce(shares, self._due[graph])

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._inner.variables()


def _zero(shape: Any, dtype: Any, name: str) -> Any:
    # A tensor of zeros would get the control dependencies around the optimizer. Initializing the
    # variable would then read a batch and update statistics.
    zeros = v1.zeros_initializer()
    return v1.get_variable(name, shape, dtype, zeros, trainable=False, use_resource=True)


def _reducing_keras(optimizer: Any, reduce: Reduce) -> Any:
    """Return a Keras optimizer of the same class and settings, whose gradients are reduced."""
    kind: Any = type(optimizer)

    def get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
        gradients = kind.get_gradients(self, loss, params)
        reduced = iter(reduce([gradient for gradient in gradients if gradient is not None]))
        return [None if gradient is None else next(reduced) for gradient in gradients]

    reducing: Any = type(kind.__name__, (kind,), {"get_gradients": get_gradients})
    return reducing.from_config(optimizer.get_config())
