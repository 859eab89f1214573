"""A trial's validation, over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import Communicator

from .data import BatchError, Feed
from .listeners import Listeners, Tests
from .metrics import MetricObjects, flat


class Evaluation:
    """Evaluates a model on the whole of its validation data; `data` is this rank's share, None where it has none."""

    def __init__(
        self, model: Any, feed: Feed, objects: MetricObjects, listeners: Listeners, distributed: Communicator
    ) -> None:
        self._model, self._feed, self._objects = model, feed, objects
        self._listeners, self._distributed = listeners, distributed
        self.data = feed.validation()

    def __call__(self, *, quiet: bool = False) -> dict[str, Any]:
        """Return the metrics of all ranks, named `val_...`; with `quiet`, callbacks hear nothing."""
        objects = self._objects
        before = objects.state()
        own = self._evaluated(self.data, [] if quiet else [Tests(self._listeners)]) if self.data is not None else {}
        together = objects.values()
        raw = [each for each in self._distributed.allgather(own) if each]
        values = {name: sum(each[name] for each in raw) / len(raw) for name in raw[0]}
        values |= {name: value for name, value in together.items() if name in values}
        objects.reset()
        objects.restore(before)
        return {name if name.startswith("val_") else f"val_{name}": value for name, value in values.items()}

    def build(self) -> None:
        """Evaluate a batch of this rank's, by which Keras makes the variables of the model and its metrics."""
        self._evaluated(self.data.take(1), [])

    def _evaluated(self, data: Any, callbacks: list[Any]) -> dict[str, float]:
        try:
            logs = self._model.evaluate(data, verbose=0, return_dict=True, callbacks=callbacks)
        except tf.errors.OpError:
            raise_what_it_raised(self._feed)
            raise
        raise_what_it_raised(self._feed)
        return flat(logs)


def raise_what_it_raised(feed: Feed) -> None:
    """Raise what stopped the reading of data in the user's own code, if anything did."""
    failure = feed.failure()
    if failure is not None:
        raise failure from None if isinstance(failure, BatchError) else failure
