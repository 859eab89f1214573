"""The launchers that need nothing installed but the framework whose ranks they start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..hookspecs import hookimpl
from ..records import LauncherRecord


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    yield LauncherRecord(name="horovod", load=_horovod)
    yield LauncherRecord(name="tensorflow", load=_tensorflow)
    yield LauncherRecord(name="torch", load=_torch)


def _horovod() -> Any:
    from ..launchers.horovod import Horovod

    return Horovod()


def _tensorflow() -> Any:
    from ..launchers.tensorflow import TensorFlow

    return TensorFlow()


def _torch() -> Any:
    from ..launchers.torch import Torch

    return Torch()
