"""Turns an `input_fn` into batches in the graph, which can begin at any batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_keras.data import Shown

from .context import EstimatorTrialContext
from .wrapped import Begun, begun, is_wrapped

_FORGOTTEN = "pass each dataset through context.wrap_dataset(dataset) right after creating it"


class Batches:
    """The batches of one split in the current graph.

    `features` and `labels` are tensors, or structures of them. A training split is endless, and
    `start` sets its first batch. `length` is the number of batches in an epoch, or None if the
    dataset does not know it.
    """

    def __init__(
        self, context: EstimatorTrialContext, split: str, input_fn: Any, **arguments: Any
    ) -> None:
        before = context.wrapped_datasets
        dataset = context.run.build.data_loader(
            context, lambda: _called(input_fn, **arguments), split
        )
        name = "TrainSpec" if split == "training" else "EvalSpec"
        _check(dataset, name, wrapped=context.wrapped_datasets > before)
        self._name, self._begun = name, begun(dataset) or Begun()
        self._cardinality = tf.data.experimental.cardinality(dataset)
        self._skip = tf.compat.v1.placeholder_with_default(
            tf.constant(0, tf.int64), [], "det_first_batch"
        )
        if split == "training":
            dataset = dataset.repeat().skip(self._skip)
        self._shown = (
            Shown(context.run.observe) if split == "training" and context.run.observe else None
        )
        if self._shown is not None:
            dataset = self._shown.of(dataset)
        self._iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        self.features, self.labels = _split(self._iterator.get_next(), name)
        self.length: int | None = None

    def measure(self) -> None:
        """Compute the length of an epoch, in a session.

        Raises TrialError for a dataset without batches.
        """
        with tf.compat.v1.Session(graph=self._skip.graph) as session:
            length = int(session.run(self._cardinality))
        if length == 0:
            raise TrialError(
                f"the dataset of {self._name}.input_fn is empty; give one that has at least a batch"
                " on each rank"
            )
        self.length = self._begun.length or (length if length > 0 else None)

    def start(self, session: Any, first: int = 0) -> None:
        """Begin with batch number `first`.

        The batches before it are read and skipped, so that their random numbers are drawn.
        """
        if self._shown is not None:
            self._shown.number = first
        session.run(self._iterator.initializer, {self._skip: first - self._begun.first})


def _called(input_fn: Callable[..., Any], **arguments: Any) -> Any:
    """Call an `input_fn` as an estimator does.

    It gets those of `mode`, `params` and `config` that it takes.
    """
    accepted = inspect.signature(input_fn).parameters
    with tf.compat.v1.device("/cpu:0"):
        return input_fn(**{name: value for name, value in arguments.items() if name in accepted})


def _check(dataset: Any, name: str, *, wrapped: bool) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TrialError(
            f"{name}.input_fn returned {type(dataset).__name__}; return a tf.data.Dataset of"
            " batches"
        )
    if not (wrapped or is_wrapped(dataset)):
        raise TrialError(f"{name}.input_fn returned a dataset that is not wrapped; {_FORGOTTEN}")


def _split(batch: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(batch, (list, tuple)):
        return batch, None
    if len(batch) != 2:
        raise TrialError(
            f"the dataset of {name}.input_fn gives {len(batch)} values a batch; give (features,"
            " labels)"
        )
    return batch[0], batch[1]
