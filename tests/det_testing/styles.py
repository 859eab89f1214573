"""The fake of the kit with two other styles of loop.

The framework's with a callback, and in chunks.
"""

from __future__ import annotations

from collections.abc import Callable

from det_core import Loop, Metrics, Stop
from det_testing.fakes import FakeAdapter, FakeTrial, Scalar, Training


class CallbackTrial(FakeTrial):
    """A trial of the framework that owns its loop."""


class ChunkedTrial(FakeTrial):
    """A trial of the framework that runs several batches at once."""


class CallbackAdapter(FakeAdapter[CallbackTrial]):
    """The framework writes the `for`, by epochs, and calls back after each batch."""

    def train(self, loop: Loop) -> None:
        framework = _Framework(self.training)
        framework.fit(loop.done, on_batch_end=lambda logs: framework.stop(bool(loop.step(logs))))


class _Framework:
    def __init__(self, training: Training) -> None:
        self._training = training
        self._stop = False

    def stop(self, stop: bool) -> None:
        self._stop = stop

    def fit(self, done: int, on_batch_end: Callable[[Metrics], None]) -> None:
        length = self._training.data.batches_per_epoch
        epoch, batch = divmod(done, length)
        while not self._stop:
            while batch < length and not self._stop:
                on_batch_end(self._training.batch(epoch * length + batch))
                batch += 1
            epoch, batch = epoch + 1, 0


class ChunkedAdapter(FakeAdapter[ChunkedTrial]):
    """The framework runs as many batches at once as it may, and gives the mean of their metrics."""

    def train(self, loop: Loop) -> None:
        stop, done = Stop.NO, loop.done
        while not stop:
            chunk = loop.remaining
            losses = [
                self.training.batch(number)["loss"].item() for number in range(done, done + chunk)
            ]
            done += chunk
            stop = loop.step({"loss": Scalar(sum(losses) / chunk)}, batches=chunk)


class CallbackOneVar(CallbackTrial):
    """The one-weight model for the loop that the framework owns."""


class ChunkedOneVar(ChunkedTrial):
    """The one-weight model for the loop in chunks."""
