"""Horovod's rendezvous over Gloo, and the variables with which its ranks come to it: `python3 -m det_horovod.launch`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from det_core.errors import DetError
from det_core.launcher import Launcher, Layout
from det_core.machine import address_to_bind

from ._rendezvous import Rendezvous, address_variables, horovod_slots


class Horovod(Launcher):
    """Ranks exchange their addresses over a server that this process runs, and then connect to one another."""

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
    """Return the address to bind; for a name all addresses, as others may know it by another than this machine does."""
    with suppress(ValueError):
        if ipaddress.ip_address(here).version == 4:
            return address_to_bind(here)
        raise DetError(f"Horovod's rendezvous speaks IPv4 only, and the address is {here}; give IPv4 addresses")
    return address_to_bind("")


if __name__ == "__main__":
    from det_core.launch import run_as_module

    run_as_module("horovod", "det_horovod.launch")
