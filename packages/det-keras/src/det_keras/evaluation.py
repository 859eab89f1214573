"""Validates a trial over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import Communicator

from .data import BatchError, Feed
from .listeners import Tests
from .metrics import MetricObjects


class Evaluation:
    """Evaluates a model on all of its validation data. `data` is this rank's share, or None."""

    def __init__(
        self, model: Any, feed: Feed, objects: MetricObjects, distributed: Communicator
    ) -> None:
        self._model, self._feed, self._objects, self._distributed = (
            model,
            feed,
            objects,
            distributed,
        )
        self.data = feed.validation()

    def __call__(self, callbacks: list[Any]) -> dict[str, Any]:
        """Return the metrics of all ranks, named `val_...`.

        The callbacks are called for the batches.
        """
        objects = self._objects
        before = objects.state()
        # A rank without data would add its training metrics.
        objects.reset()
        tests = [Tests(callbacks)] if callbacks else []
        own = self._evaluated(self.data, tests) if self.data is not None else {}
        together = objects.values()
        raw = [each for each in self._distributed.allgather(own) if each]
        values = {name: sum(each[name] for each in raw) / len(raw) for name in raw[0]}
        values |= {name: value for name, value in together.items() if name in values}
        objects.reset()
        objects.restore(before)
        return {
            name if name.startswith("val_") else f"val_{name}": value
            for name, value in values.items()
        }

    def build(self, batches: Any, times: int = 1) -> None:
        """Evaluate a batch `times` times, so that Keras makes all variables."""
        self._evaluated(batches.take(1).repeat(times), [])

    def _evaluated(self, data: Any, callbacks: list[Any]) -> dict[str, float]:
        try:
            logs = self._model.evaluate(data, verbose=0, return_dict=True, callbacks=callbacks)
        except tf.errors.OpError:
            raise_what_it_raised(self._feed)
            raise
        raise_what_it_raised(self._feed)
        return self._objects.numbers(logs)


def raise_what_it_raised(feed: Feed) -> None:
    """Raise the error of the user's code that stopped the reading of data, if there is one."""
    failure = feed.failure()
    if failure is not None:
        raise failure from None if isinstance(failure, BatchError) else failure
