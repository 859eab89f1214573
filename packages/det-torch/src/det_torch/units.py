"""Lengths and periods of `Trainer.fit`, in batches or epochs."""

from __future__ import annotations

from collections.abc import Container, Iterable

from det_core import At, DetError, Every

Period = Every | At


class TrainUnit:
    """A length or a period: a number of units.

    A period may also be a container of the absolute positions where it is due.

    `Batch(100)` as a period is due at every 100th batch. `Batch([10, 50])` is due after batches 10
    and 50.
    """

    def __init__(self, value: int | Container[int]) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, Container)):
            raise TypeError(
                f"{type(self).__name__}({value!r}): give a whole number or a container of them"
            )
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))

    def should_stop(self, n: int) -> bool:
        """Return whether the period is due after `n` units."""
        if isinstance(self.value, int):
            return self.value < 1 or (n > 0 and n % self.value == 0)
        return n in self.value

    def batches(self, per_epoch: int | None) -> int:
        """Return a length in batches. Raises TypeError for a container."""
        if not isinstance(self.value, int):
            raise TypeError(f"{self!r} is no length; give a whole number of batches or epochs")
        return self.value * self.scale(per_epoch)

    def period(self, per_epoch: int | None) -> Period:
        """Return the positions, in batches, at which the period is due."""
        scale = self.scale(per_epoch)
        if isinstance(self.value, int):
            return Every(max(1, self.value) * scale)
        if isinstance(self.value, Iterable):
            return At([position * scale for position in self.value])
        return At(self.value if scale == 1 else _Scaled(self.value, scale))

    def scale(self, per_epoch: int | None) -> int:
        """Return the number of batches in a unit."""
        return 1


class Batch(TrainUnit):
    """Batches."""


class Epoch(TrainUnit):
    """Epochs: passes over the training data, by the loader's length."""

    def scale(self, per_epoch: int | None) -> int:
        if not per_epoch:
            raise DetError(
                f"{self!r} cannot be counted, as the training data has no length; give Batch(n)"
            )
        return per_epoch


class _Scaled:
    """Presents a container of epochs as a container of batches."""

    def __init__(self, epochs: Container[int], per_epoch: int) -> None:
        self._epochs, self._per_epoch = epochs, per_epoch

    def __contains__(self, batches: object) -> bool:
        if not isinstance(batches, int):
            return False
        epoch, rest = divmod(batches, self._per_epoch)
        return rest == 0 and epoch in self._epochs
