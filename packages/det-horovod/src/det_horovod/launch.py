"""Starts Horovod's rendezvous over Gloo for a launch: `python3 -m det_horovod.launch`.

Each rank gets the environment variables by which it finds the rendezvous.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from det_core.errors import DetError
from det_core.ranks.launcher import Launcher, Layout
from det_core.ranks.network import address_to_bind

from ._rendezvous import Rendezvous, address_variables, horovod_slots


class Horovod(Launcher):
    """Launches ranks that exchange their addresses over a server in this process."""

    interface_variables = ("HOROVOD_GLOO_IFACE",)

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[Sequence[Mapping[str, str]]]:
        if layout.size == 1:
            yield [{}]
            return
        if find_spec("horovod") is None:
            raise DetError("Horovod is not installed; run: det horovod install")
        slots = horovod_slots([place.ranks for place in layout.places])
        with Rendezvous(_listened_on(layout.here), slots) as rendezvous:
            shared = address_variables(layout.here, rendezvous.path(), layout.start_timeout)
            yield [{**slot.variables(), **shared} for slot in slots]


def _listened_on(here: str) -> str:
    """Return the address to bind.

    For a host name that is all addresses, because other hosts may resolve the name to another
    address than this one.
    """
    with suppress(ValueError):
        if ipaddress.ip_address(here).version == 4:
            return address_to_bind(here)
        raise DetError(
            f"Horovod's rendezvous speaks IPv4 only, and the address is {here}; give IPv4 addresses"
        )
    return address_to_bind("")


if __name__ == "__main__":
    from det_node.launch import run_as_module

    run_as_module("horovod", "det_horovod.launch")
