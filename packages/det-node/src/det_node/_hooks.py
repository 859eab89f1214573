"""Registers the backend `socket` and the launchers of det-node, as other plugins do theirs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name
from typing import Any

from det_core import BackendRecord, LauncherRecord, hookimpl

_LAUNCHERS = {
    "socket": "socket:SocketLauncher",
    "tensorflow": "tensorflow:TensorFlow",
    "torch": "torch_distributed:Torch",
}


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="socket", load=partial(resolve_name, "det_node.backends.socket:Socket"), priority=-1
    )


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    for name, place in _LAUNCHERS.items():
        yield LauncherRecord(name=name, load=partial(_made, f"det_node.launch.{place}"))


def _made(place: str) -> Any:
    return resolve_name(place)()
