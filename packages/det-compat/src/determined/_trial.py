"""The common base of the trial classes of all frameworks, for annotations and `isinstance`."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


class _AnyTrial(ABCMeta):
    """Makes plugins' trial classes subclasses, although they do not import this package."""

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
    """The base of all trial classes.

    These are `PyTorchTrial`, `TFKerasTrial`, `EstimatorTrial` and those that other plugins
    register.
    """
