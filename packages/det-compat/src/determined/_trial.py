"""What trial classes of every framework have in common, for annotations and `isinstance`."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


class _AnyTrial(ABCMeta):
    """Counts the trial classes of det's plugins as derived, though they know nothing of this package."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        from det_core import DetError, Plugins

        try:
            Plugins.installed().framework_of(subclass)
        except DetError:
            return super().__subclasscheck__(subclass)
        return True


class Trial(metaclass=_AnyTrial):
    """The base of `PyTorchTrial`, `TFKerasTrial`, `EstimatorTrial` and of what strangers' plugins register."""
