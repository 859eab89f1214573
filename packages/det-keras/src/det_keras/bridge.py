"""Where Keras's own loop meets core's: a callback in `model.fit`."""

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
    """Tells core's loop of batches, and callbacks of the trial's own epochs, which Keras's endless one knows nothing of."""

    _supports_tf_logs = True  # of Keras 2: leave metrics on the device

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
        """Return how many batches the next execution trains: up to a boundary at most, or to an epoch's end of which to tell."""
        room = self._loop.remaining
        if self._epoch and self._watched:
            room = min(room, self._epoch - self._measures.position % self._epoch)
        self._size = max(1, min(self._steps, room))
        return self._size

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras has just begun its metrics anew: take up those of an interrupted run."""
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
            if self._loop.remaining > size:  # nothing falls due here
                self._finish_epoch()
        row = (self.chunks.mean if self.chunks else logs) if self._rows else _NOTHING
        stop = self._loop.step(row, batches=size)
        if stop:
            self.model.stop_training = True
        if stop is not Stop.PREEMPTED:  # the next run finds it still to do
            self._finish_epoch()
        self._go_on()

    def look_for_stop(self) -> None:
        """Pass on that a callback has set `model.stop_training`."""
        if self.model.stop_training and not self._loop.stop:
            self.model.stop_training = False
            self._loop.request_stop()
