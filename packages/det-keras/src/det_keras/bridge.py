"""Connects Keras's loop with det-core's by a callback of `model.fit`."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from det_core import Loop, Stop

from .chunks import Chunks
from .listeners import Listeners
from .measures import Measures
from .versions import keras

_NOTHING = MappingProxyType[str, Any]({})


class Bridge(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes batches on to det-core's loop, and calls the trial's callbacks for the trial's epochs.

    Keras itself sees only one endless epoch.
    """

    # Keras 2 then leaves metrics on the device.
    _supports_tf_logs = True

    def __init__(
        self,
        loop: Loop,
        listeners: Listeners,
        measures: Measures,
        steps: int,
        epoch: int | None,
        begin: Callable[[], None],
        finish_epoch: Callable[[], None],
        go_on: Callable[[], None],
    ) -> None:
        super().__init__()
        self._loop, self._listeners, self._measures = loop, listeners, measures
        self._steps, self._epoch = steps, epoch
        self._begin, self._finish_epoch, self._go_on = begin, finish_epoch, go_on
        self._size = 1
        self.chunks: Chunks | None = None
        self._rows = not measures.objects_only
        self._watched = bool(listeners.callbacks)

    def chunk(self) -> int:
        """Return how many batches the next execution trains.

        They reach at most to the next boundary, or to the end of an epoch that callbacks must see.
        """
        room = self._loop.remaining
        if self._epoch and self._watched:
            room = min(room, self._epoch - self._measures.position % self._epoch)
        self._size = max(1, min(self._steps, room))
        return self._size

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restore the metrics of an interrupted run, because Keras has just reset its own."""
        self._begin()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._watched:
            return
        done, epoch = self._measures.position, self._epoch
        if self._measures.period_begins:
            self._measures.period_begins = False
            self._listeners.directly("on_train_workload_begin", done, self._loop.remaining, {})
        if epoch and done % epoch == 0:
            self._listeners("on_epoch_begin", done // epoch)
        self._listeners("on_train_batch_begin", done % epoch if epoch else done)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        size, measures, epoch = self._size, self._measures, self._epoch
        measures.trained(size, logs)
        done = measures.position
        if self._watched:
            self._listeners("on_train_batch_end", (done - 1) % epoch if epoch else done - 1, logs)
            self.look_for_stop()
        if self._watched and epoch and done % epoch == 0:
            measures.end_epoch()
            if self._loop.remaining > size:
                # No boundary is here.
                self._finish_epoch()
        row = (self.chunks.mean if self.chunks else logs) if self._rows else _NOTHING
        stop = self._loop.step(row, batches=size)
        if measures.epoch_ended and stop is not Stop.PREEMPTED:
            # After a preemption, the next run finishes the epoch.
            self._finish_epoch()
            stop = self._loop.conclude()
        if stop:
            self.model.stop_training = True
        self._go_on()

    def look_for_stop(self) -> None:
        """Ask det-core's loop to stop if a callback has set `model.stop_training`."""
        if self.model.stop_training and not self._loop.stop:
            self.model.stop_training = False
            self._loop.request_stop()
