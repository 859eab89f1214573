"""Optimizers that aggregate the gradients of several batches and reduce them over the ranks.

Keras 3 calls `apply`, and Keras 2 calls `apply_gradients`. An optimizer gets a subclass of its
class that overrides this method. So its class stays the same for Keras, the user and a saved model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from det_core import TrialError

from .versions import KERAS_3, keras

Reduce = Callable[[Sequence[Any]], list[Any]]
_HOROVOD = "horovod"


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How gradients become steps.

    A step uses the mean or sum of the gradients of `frequency` batches. `reduce` then reduces it
    over the ranks, if there are several.
    """

    frequency: int = 1
    average: bool = True
    reduce: Reduce | None = None

    @classmethod
    def of(cls, optimizations: Any, reduce: Reduce | None = None) -> Reduction:
        """Return the reduction that the configuration sets."""
        return cls(
            frequency=optimizations.aggregation_frequency,
            average=optimizations.average_aggregated_gradients,
            reduce=reduce,
        )

    @property
    def needed(self) -> bool:
        return self.frequency > 1 or self.reduce is not None


def adapt_optimizer(optimizer: Any, reduction: Reduction) -> Any:
    """Make an optimizer aggregate and reduce, and return the same object.

    Its class becomes a subclass. Raises TrialError for an optimizer that is wrapped by Horovod,
    whose gradients would be reduced twice, or under Keras 3 never.
    """
    if is_horovods(optimizer):
        raise TrialError(
            f"the optimizer {type(optimizer).__name__} is wrapped by"
            " horovod.tensorflow.keras.DistributedOptimizer"
            f"{', which exchanges no gradients under Keras 3' if KERAS_3 else ''};"
            " give the bare optimizer: det wraps it"
        )
    if not reduction.needed:
        return optimizer
    if not hasattr(type(optimizer), "apply" if KERAS_3 else "apply_gradients"):
        raise TrialError(
            f"the optimizer {type(optimizer).__name__} has no apply(); give an optimizer of Keras"
        )
    if _is_legacy(optimizer):
        raise TrialError(
            f"{type(optimizer).__name__} is one of keras.optimizers.legacy, which cannot aggregate"
            f" or reduce gradients here; use keras.optimizers.{type(optimizer).__name__}"
        )
    base = type(optimizer)
    optimizer.__class__ = _subclass(base)
    object.__setattr__(optimizer, "_det_waiting", _Waiting(reduction))
    return optimizer


def is_horovods(optimizer: Any) -> bool:
    """Return whether an optimizer is wrapped by Horovod's Keras integration."""
    return any(
        hasattr(cls, "_allreduce_grads") or cls.__module__.partition(".")[0] == _HOROVOD
        for cls in type(optimizer).__mro__
    )


def _is_legacy(optimizer: Any) -> bool:
    legacy = getattr(keras.optimizers, "legacy", None)
    return not KERAS_3 and legacy is not None and isinstance(optimizer, legacy.Optimizer)


def _subclass(base: type) -> type:
    """Return a subclass that has the name of `base`, so that it is saved as `base`."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = list(
            trainable_variables if trainable_variables is not None else self._trainable_variables
        )
        self._det_waiting(self, list(grads), variables, lambda g: base.apply(self, g, variables))  # type: ignore[attr-defined]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def step(grads: Sequence[Any]) -> None:
            base.apply_gradients(self, zip(grads, variables, strict=True), *args, **kwargs)  # type: ignore[attr-defined]

        self._det_waiting(self, [grad for grad, _ in pairs], variables, step)
        return self.iterations

    body: dict[str, Any] = {"apply": apply} if KERAS_3 else {"apply_gradients": apply_gradients}
    made = type(
        base.__name__,
        (base,),
        {**body, "__module__": base.__module__, "__qualname__": base.__qualname__},
    )
    return made


class _Waiting:
    """Gradients that wait for their step. They are variables, and part of a checkpoint."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self.variables: list[Any] = []

    def __call__(
        self,
        optimizer: Any,
        grads: list[Any],
        variables: list[Any],
        step: Callable[[list[Any]], Any],
    ) -> None:
        frequency = self._reduction.frequency
        # The optimizer's variables must not be made inside a condition.
        build_optimizer(optimizer, variables)
        if frequency == 1:
            step(self._reduced(grads))
            return
        # As in Keras's own accumulation, sums are dense.
        dense = [_dense(grad) for grad in grads]
        self.build(variables)
        count, *sums = self.variables
        count.assign_add(1)
        for place, grad in zip(sums, dense, strict=True):
            if grad is not None:
                place.assign_add(tf.cast(grad, place.dtype))

        def now() -> Any:
            scale = 1 / frequency if self._reduction.average else 1.0
            step(
                self._reduced(
                    [
                        None if g is None else tf.cast(s * scale, g.dtype)
                        for s, g in zip(sums, dense, strict=True)
                    ]
                )
            )
            for place in sums:
                place.assign(tf.zeros_like(place))
            return tf.constant(True)

        tf.cond(tf.equal(count % frequency, 0), now, lambda: tf.constant(False))

    def build(self, variables: Sequence[Any]) -> None:
        """Create the variables for the sums of gradients, unless they exist or are not needed.

        `variables` are the variables that the model trains.
        """
        if self.variables or self._reduction.frequency == 1:
            return
        with tf.init_scope():
            sums = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]
            self.variables = [tf.Variable(0, dtype=tf.int64, trainable=False), *sums]

    def _reduced(self, grads: list[Any]) -> list[Any]:
        reduce = self._reduction.reduce
        present = [grad for grad in grads if grad is not None]
        if reduce is None or not present:
            return grads
        done = iter(reduce(present))
        return [None if grad is None else next(done) for grad in grads]


def _dense(grad: Any) -> Any:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create an optimizer's own variables, such as its moments, unless they exist.

    `variables` are the variables that the model trains. An optimizer without `build`, such as
    Keras 2's oldest ones, creates its variables at its first step.
    """
    if (
        getattr(optimizer, "built", False)
        or getattr(optimizer, "_built", False)
        or not hasattr(optimizer, "build")
    ):
        return
    with tf.init_scope():
        optimizer.build(list(variables))
    if KERAS_3:
        optimizer.built = True


def waiting_of(optimizer: Any) -> Any:
    """Return the gradients that wait in an optimizer, or None if it is not adapted."""
    return getattr(optimizer, "_det_waiting", None)


def release_optimizer(optimizer: Any) -> None:
    """Restore the original class of an adapted optimizer."""
    if waiting_of(optimizer) is not None:
        optimizer.__class__ = type(optimizer).__mro__[1]
        object.__delattr__(optimizer, "_det_waiting")


def variables_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's own variables, with those of its loss scale at the end.

    In Keras 2's oldest optimizers this is a method.
    """
    variables = optimizer.variables
    own = variables() if callable(variables) and not isinstance(variables, list) else variables
    return [*own, *loss_scale_of(optimizer)]


def loss_scale_of(optimizer: Any) -> list[Any]:
    """Return the variables of a loss scale that are not among Keras 2's `variables`."""
    scale: Any = getattr(optimizer, "_loss_scale", None)
    moves = hasattr(scale, "current_loss_scale")
    return [scale.current_loss_scale, scale.counter] if moves else []


def computed_by(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer computes from its steps, and that need no saving."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_current_learning_rate", None)
    return [rate] if isinstance(rate, tf.Variable) else []


def trained_by(optimizer: Any, weights: Sequence[Any]) -> list[int]:
    """Return the positions of the weights that an optimizer trains, or none if it is not built."""
    if KERAS_3:
        places = {id(weight): place for place, weight in enumerate(weights)}
        return [
            places[id(each)]
            for each in getattr(optimizer, "_trainable_variables", [])
            if id(each) in places
        ]
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # Maps the key of a variable to its index.
    known = getattr(inner, "_index_dict", {})
    keys = [inner._var_key(weight) for weight in weights] if known else []
    found = {known[key]: place for place, key in enumerate(keys) if key in known}
    return [found[order] for order in sorted(found)]
