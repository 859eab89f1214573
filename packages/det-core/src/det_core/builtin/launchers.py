"""The launchers that need nothing installed but the framework whose ranks they start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..hookspecs import hookimpl
from ..records import LauncherRecord

if TYPE_CHECKING:
    from ..launchers import Launcher


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    yield LauncherRecord(name="horovod", load=_horovod)
    yield LauncherRecord(name="socket", load=_socket)
    yield LauncherRecord(name="tensorflow", load=_tensorflow)
    yield LauncherRecord(name="torch", load=_torch)


def _horovod() -> Launcher:
    from ..launchers.horovod import Horovod

    return Horovod()


def _socket() -> Launcher:
    from ..launchers.socket import Socket

    return Socket()


def _tensorflow() -> Launcher:
    from ..launchers.tensorflow import TensorFlow

    return TensorFlow()


def _torch() -> Launcher:
    from ..launchers.torch import Torch

    return Torch()
